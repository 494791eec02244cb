"""Reading pickles without running them.

A pickle is a program: loading one from a stranger may run anything. The layouts of other stacks are pickles all the
same (`.pkl` episodes, statistics files, `.npy` of dictionaries), so they are read through an unpickler that admits
numpy arrays and plain containers and refuses every other name with a sentence.

Not even numpy's own constructors are called. `dtype.__setstate__` believes what it is told, and a file that tells it
that floats are object pointers makes the interpreter follow them; an earlier version of this module admitted those
constructors, and a file with a few random bytes changed crashed the process. So the names that numpy writes lead to the
shells below, which keep what the file says, and arrays are made from it with `np.frombuffer` once it has been checked.
The unpickler is the one written in Python: the C one allocates whatever table a damaged file names, tens of gigabytes.
"""

import math
import pickle
import re
from pathlib import Path
from typing import IO, Any, ClassVar

import numpy as np
from numpy.lib import format as npy_format

from plaudit.data.lfs import unreadable
from plaudit.errors import BadFile, UnsafeFile
from plaudit.types import AnyArray

UnpicklingError = pickle.UnpicklingError  # for those who call a reader that raises it, such as torch.load

_PLAIN_DTYPE = re.compile(r"[<>|=]?(b1|[iu][1248]|f[248]|[US]\d{1,6})")
_OBJECT_DTYPE = re.compile(r"\|?O8?")


class _Damaged(ValueError):
    """The file says something that no numpy writes."""


class _Dtype:
    """Stands in for `numpy.dtype`: a type of plain numbers or text, in either byte order, or of objects."""

    def __init__(self, text: Any, align: Any = False, copy: Any = False):
        if not isinstance(text, str) or not (_PLAIN_DTYPE.fullmatch(text) or _OBJECT_DTYPE.fullmatch(text)):
            raise _Damaged(f"a dtype {text!r}")
        self.is_object = _OBJECT_DTYPE.fullmatch(text) is not None
        self._text, self._order = text.lstrip("<>|="), "="

    def __setstate__(self, state: Any) -> None:
        """Of what numpy keeps there (sub-arrays, fields, flags), only the byte order is taken."""
        if not isinstance(state, tuple) or len(state) < 5 or state[1] not in ("<", ">", "|", "="):
            raise _Damaged("the state of a dtype")
        if any(part is not None for part in state[2:5]):
            raise _Damaged("a dtype with fields")
        self._order = state[1]

    def real(self) -> np.dtype[Any]:
        if self.is_object:
            raise _Damaged("objects where numbers should be")
        dtype = np.dtype(self._text)
        return dtype.newbyteorder(">") if self._order == ">" else dtype


class _Array:
    """Stands in for an array until its state has come and was checked."""

    def __init__(self) -> None:
        self.value: AnyArray | None = None
        self.objects: list[Any] | None = None  # what an array of objects holds
        self.shape: tuple[int, ...] = ()

    def __setstate__(self, state: Any) -> None:
        version, self.shape, dtype, fortran, data = state
        if not isinstance(dtype, _Dtype) or version != 1:
            raise _Damaged("the state of an array")
        if dtype.is_object:
            self.objects = list(data)
        else:
            self.value = _array(data, dtype, self.shape, "F" if fortran else "C")


def _array(data: Any, dtype: Any, shape: Any, order: str) -> AnyArray:
    if not isinstance(data, bytes | bytearray) or not isinstance(dtype, _Dtype):
        raise _Damaged("the bytes of an array")
    if not isinstance(shape, tuple) or not all(type(n) is int and n >= 0 for n in shape):
        raise _Damaged(f"a shape {shape!r}")
    real = dtype.real()
    if math.prod(shape) * real.itemsize != len(data):
        raise _Damaged(f"{len(data)} bytes for an array of {shape}")
    return np.frombuffer(bytearray(data), real).reshape(shape, order="F" if order == "F" else "C")


def _reconstruct(kind: Any, shape: Any, code: Any) -> _Array:
    return _Array()


def _scalar(dtype: Any, data: Any) -> Any:
    return _array(data, dtype, (), "C")[()]


def _encode(text: Any, encoding: Any) -> bytes:
    """How protocols up to 2 write bytes."""
    if not isinstance(text, str) or encoding != "latin1":
        raise _Damaged("an encoding")
    return text.encode("latin1")


_ADMITTED: dict[tuple[str, str], Any] = {
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _reconstruct for core in ("core", "_core")},
    **{(f"numpy.{core}.multiarray", "scalar"): _scalar for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _array for core in ("core", "_core")},
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("collections", "OrderedDict"): dict,
    ("_codecs", "encode"): _encode,
    ("__builtin__", "bytes"): lambda: b"",
}


_PythonUnpickler: Any = pickle._Unpickler


class _Unpickler(_PythonUnpickler):
    dispatch: ClassVar = dict(_PythonUnpickler.dispatch)

    def __init__(self, file: IO[bytes], path: Path):
        super().__init__(file)
        self._path = path

    def load_build(self) -> None:
        """State is given to our shells and to nothing else."""
        state = self.stack.pop()
        if not isinstance(self.stack[-1], _Dtype | _Array):
            raise _Damaged("state for something that has none")
        self.stack[-1].__setstate__(state)

    dispatch[pickle.BUILD[0]] = load_build

    def find_class(self, module: str, name: str) -> Any:
        found = _ADMITTED.get((module, name))
        if found is None:
            raise UnsafeFile(
                self._path,
                f"this pickle asks for {module}.{name}, which could run code; nothing was run. "
                "Only numpy arrays and plain containers are read: convert the file where you trust it",
            )
        return found

    def persistent_load(self, pid: Any) -> Any:
        raise UnsafeFile(self._path, "this pickle refers to objects outside the file; nothing was run")


def load_pickle(path: str | Path) -> Any:
    """What a pickle of arrays, numbers, strings and containers holds."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            return _resolve(_Unpickler(file, path).load(), path)
    except UnsafeFile:
        raise
    except FileNotFoundError:
        raise BadFile(path, "there is no such file") from None
    except Exception as error:
        raise unreadable(
            path, f"this pickle is cut short or damaged ({error}); copy it again from its source"
        ) from error


def load_npy(path: str | Path) -> Any:
    """What a `.npy` file holds: an array, or the dictionary that `np.save` pickled into it."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            old = npy_format.read_magic(file) == (1, 0)
            read_header = npy_format.read_array_header_1_0 if old else npy_format.read_array_header_2_0
            shape, fortran, dtype = read_header(file)
            if dtype.hasobject:
                value = _Unpickler(file, path).load()
                if isinstance(value, _Array) and value.objects and value.shape == ():
                    value = value.objects[0]  # np.save wraps a dictionary in an array of no dimensions
                return _resolve(value, path)
            return _array(file.read(), _Dtype(dtype.str), shape, "F" if fortran else "C")
    except UnsafeFile:
        raise
    except FileNotFoundError:
        raise BadFile(path, "there is no such file") from None
    except Exception as error:
        raise unreadable(
            path, f"this .npy file is cut short or damaged ({error}); copy it again from its source"
        ) from error


def _resolve(value: Any, path: Path) -> Any:
    """Shells to arrays, all the way down; refuses arrays of objects and anything else that is not plain."""
    if isinstance(value, _Array):
        if value.objects is not None:
            raise UnsafeFile(path, "this file holds an array of objects; save plain arrays (numbers) instead")
        if value.value is None:
            raise _Damaged("an array without content")
        return value.value
    if type(value) is dict:
        return {_resolve(key, path): _resolve(item, path) for key, item in value.items()}
    if type(value) in (list, tuple, set, frozenset):
        return type(value)(_resolve(item, path) for item in value)
    if value is None or isinstance(
        value, bool | int | float | complex | str | bytes | bytearray | np.generic | np.ndarray
    ):
        return value
    raise _Damaged(f"a {type(value).__name__} where data should be")
