"""Loading pickles and `.npy` files without running them.

A pickle is a program: loading one from somebody else may run anything. Other stacks store pickles all the same (`.pkl`
episodes, statistics files, `.npy` of dictionaries), so this unpickler admits only numpy arrays and plain containers.

Numpy's own constructors are not called either: `dtype.__setstate__` accepts a file that declares floats to be object
pointers. The names that numpy writes lead to the stand-ins below, and arrays are made with `np.frombuffer`, after
checks.

A file can still ask for more memory, time or stack than there is, so these functions run only in the process of
`plaudit.data.formats.worker`, which has limits. Use `plaudit.data.formats.decoder.load_pickle` elsewhere.
"""

import io
import math
import os
import pickle
import re
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy_format

from plaudit.errors import UnsafeFile
from plaudit.files import MAX_DEPTH, brief
from plaudit.types import AnyArray

MAX_NODES = 300_000  # values in a file; a value that is referenced twice counts twice
MAX_BITS = 1 << 12  # of an integer
MAX_HEADER = 4096  # bytes of a .npy file before its numbers; numpy writes 118

DAMAGED = "this {} is cut short or damaged ({}); copy it again from its source"  # with the kind of file and the reason

_PLAIN_DTYPE = re.compile(r"[<>|=]?(b1|[iu][1248]|f[248]|[US]\d{1,6})")
_OBJECT_DTYPE = re.compile(r"\|?O8?")
_PLAIN = bool | int | float | complex | str | bytes | bytearray | np.generic | np.ndarray


class Damaged(ValueError):
    """The file says something that numpy never writes."""


class _Dtype:
    """Stands in for `numpy.dtype`: a type of plain numbers or text, in either byte order, or of objects."""

    __slots__ = ("_order", "_text", "is_object")

    def __init__(self, text: Any, align: Any = False, copy: Any = False):
        if not isinstance(text, str) or not (_PLAIN_DTYPE.fullmatch(text) or _OBJECT_DTYPE.fullmatch(text)):
            raise Damaged(f"a dtype {brief(text)}")
        self.is_object = _OBJECT_DTYPE.fullmatch(text) is not None
        self._text, self._order = text.lstrip("<>|="), "="

    def __setstate__(self, state: Any) -> None:
        """Take only the byte order of what numpy keeps there (sub-arrays, fields, flags)."""
        if not isinstance(state, tuple) or len(state) < 5 or state[1] not in ("<", ">", "|", "="):
            raise Damaged("the state of a dtype")
        if any(part is not None for part in state[2:5]):
            raise Damaged("a dtype with fields")
        self._order = state[1]

    def real(self) -> np.dtype[Any]:
        if self.is_object:
            raise Damaged("objects where numbers should be")
        dtype = np.dtype(self._text)
        return dtype.newbyteorder(">") if self._order == ">" else dtype


class _Array:
    """Stands in for an array until its state has been read and checked."""

    __slots__ = ("objects", "shape", "value")

    def __init__(self) -> None:
        self.value: AnyArray | None = None
        self.objects: list[Any] | None = None  # the content of an array of objects
        self.shape: tuple[int, ...] = ()

    def __setstate__(self, state: Any) -> None:
        version, self.shape, dtype, fortran, data = state
        if not isinstance(dtype, _Dtype) or version != 1:
            raise Damaged("the state of an array")
        if dtype.is_object:
            self.objects = list(data)
        else:
            self.value = _array(data, dtype, self.shape, "F" if fortran else "C")


def _array(data: Any, dtype: Any, shape: Any, order: str) -> AnyArray:
    if not isinstance(data, bytes | bytearray) or not isinstance(dtype, _Dtype):
        raise Damaged("the bytes of an array")
    if not isinstance(shape, tuple) or not all(type(n) is int and n >= 0 for n in shape):
        raise Damaged("a shape that no array has")
    real = dtype.real()
    if math.prod(shape) * real.itemsize != len(data):
        raise Damaged(f"{len(data)} bytes for an array of {len(shape)} dimensions that needs others")
    return np.frombuffer(bytearray(data), real).reshape(shape, order="F" if order == "F" else "C")


def _encode(text: Any, encoding: Any) -> bytes:
    """Protocols up to 2 write bytes in this way."""
    if not isinstance(text, str) or encoding != "latin1":
        raise Damaged("an encoding")
    return text.encode("latin1")


class _Namespace(dict[str, Any]):
    """Stands in for `argparse.Namespace`, in which training scripts keep their settings: a plain dictionary."""

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, dict) or not all(isinstance(key, str) for key in state):
            raise Damaged("the state of a namespace")
        self.update(state)


ADMITTED: dict[tuple[str, str], Any] = {
    **{(f"numpy.{core}.multiarray", "_reconstruct"): lambda kind, shape, code: _Array() for core in ("core", "_core")},
    **{
        (f"numpy.{core}.multiarray", "scalar"): lambda dtype, data: _array(data, dtype, (), "C")[()]
        for core in ("core", "_core")
    },
    **{(f"numpy.{core}.numeric", "_frombuffer"): _array for core in ("core", "_core")},
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("collections", "OrderedDict"): dict,
    ("_codecs", "encode"): _encode,
    ("argparse", "Namespace"): _Namespace,
    ("__builtin__", "bytes"): lambda: b"",
}


class _Unpickler(pickle.Unpickler):
    """Admits the names that numpy writes."""

    def __init__(self, file: IO[bytes], path: Path):
        super().__init__(file)
        self._path = path

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ADMITTED:
            raise UnsafeFile(
                self._path,
                f"this pickle asks for {module[:60]}.{name[:60]}, which could run code; nothing was run. "
                "Only numpy arrays and plain containers are read: convert the file where you trust it",
            )
        return ADMITTED[module, name]

    def persistent_load(self, pid: Any) -> Any:
        raise UnsafeFile(self._path, "this pickle refers to objects outside the file; nothing was run")


def unpickle(file: IO[bytes], path: Path) -> Any:
    """The arrays, numbers, strings and containers in a pickle."""
    return resolve(_Unpickler(file, path).load(), path)


def parse_npy(data: bytes) -> AnyArray:
    """The array of plain numbers in the bytes of a `.npy` file. Nothing is unpickled, so any process may call it."""
    file = io.BytesIO(data)
    shape, fortran, dtype = _npy_header(file)
    if dtype.hasobject:
        raise Damaged("objects where numbers should be")
    return _array(file.read(), _Dtype(dtype.str), shape, "F" if fortran else "C")


def read_npy(file: IO[bytes], path: Path) -> Any:
    """The content of a `.npy` file: an array, or the dictionary that `np.save` pickled into it."""
    shape, fortran, dtype = _npy_header(file)
    if not dtype.hasobject:
        data = file.read(os.fstat(file.fileno()).st_size)
        return _array(data, _Dtype(dtype.str), shape, "F" if fortran else "C")
    value = _Unpickler(file, path).load()
    if isinstance(value, _Array) and value.objects and value.shape == ():
        value = value.objects[0]  # np.save wraps a dictionary in an array of no dimensions
    return resolve(value, path)


def _npy_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = npy_format.read_magic(file)
    length = file.read(2 if version == (1, 0) else 4)
    size = int.from_bytes(length, "little")
    if size > MAX_HEADER:
        raise Damaged(f"a header of {size:,} bytes")
    header = file.read(size)
    if sum(header.count(bracket) for bracket in (b"(", b"[", b"{")) > MAX_DEPTH:  # which Python's parser recurses into
        raise Damaged("a header that nests too deep")
    read_header = npy_format.read_array_header_1_0 if version == (1, 0) else npy_format.read_array_header_2_0
    return read_header(io.BytesIO(length + header))


def resolve(tree: Any, path: Path, others: tuple[type, ...] = ()) -> Any:
    """Replace stand-ins by arrays; refuses arrays of objects and everything else that is not plain.

    others: types that are admitted too
    """
    count = 0

    def resolved(value: Any, depth: int) -> Any:
        nonlocal count
        count += 1
        if count > MAX_NODES or depth > MAX_DEPTH:
            raise Damaged("values within values without end")
        if isinstance(value, _Array):
            if value.objects is not None:
                raise UnsafeFile(path, "this file holds an array of objects; save plain arrays (numbers) instead")
            if not isinstance(value.value, np.ndarray):
                raise Damaged("an array without content")
            return value.value
        if isinstance(value, dict):
            return {key: resolved(item, depth + 1) for key, item in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            kind = next(kind for kind in (list, tuple, set, frozenset) if isinstance(value, kind))
            return kind([resolved(item, depth + 1) for item in value])
        if type(value) is int and value.bit_length() > MAX_BITS:
            raise Damaged(brief(value))
        if value is None or isinstance(value, (_PLAIN, *others)):
            return value
        raise Damaged(f"a {type(value).__name__} where data should be")

    return resolved(tree, 0)
