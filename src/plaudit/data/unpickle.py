"""Reading pickles without running them.

A pickle is a program: loading one from a stranger may run anything. The layouts of other stacks are pickles all the
same (`.pkl` episodes, statistics files, `.npy` of dictionaries), so they are read through an unpickler that admits
numpy arrays and plain containers and refuses every other name with a sentence.

Not even numpy's own constructors are called. `dtype.__setstate__` believes what it is told, and a file that tells it
that floats are object pointers makes the interpreter follow them; an earlier version of this module admitted those
constructors, and a file with a few random bytes changed crashed the process. So the names that numpy writes lead to the
shells below, which keep what the file says, and arrays are made from it with `np.frombuffer` once it has been checked.
The unpickler is the one written in Python: the C one allocates whatever table a damaged file names, tens of gigabytes.

Without running anything a pickle can still ask for more than there is: fourteen bytes that announce gigabytes, tuples
within tuples until hashing them overflows the stack, one array of the file copied a thousand times over. So lengths are
compared with the file's, and steps, depth, numbers and copies are counted while it is read.
"""

import io
import math
import os
import pickle
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any, ClassVar, NoReturn

import numpy as np
from numpy.lib import format as npy_format

from plaudit.errors import UnsafeFile
from plaudit.types import AnyArray
from plaudit.untrusted import MAX_DEPTH, Root, brief, readable

MAX_STEPS = 2_000_000  # of a pickle's program: about 150 for a step of an episode
MAX_NODES = 300_000  # values that it holds, written out where it holds one in several places
MAX_COPIES = 4  # times the file's size that arrays made of it may take
MAX_BITS = 1 << 12  # of a whole number
MAX_LINE = 1 << 16  # bytes of a name or a number that is written out
MAX_HEADER = 4096  # bytes of a .npy file before its numbers; numpy writes 118

_PLAIN_DTYPE = re.compile(r"[<>|=]?(b1|[iu][1248]|f[248]|[US]\d{1,6})")
_PLAIN = bool | int | float | complex | str | bytes | bytearray | np.generic | np.ndarray
_OBJECT_DTYPE = re.compile(r"\|?O8?")


class Damaged(ValueError):
    """The file says something that no numpy writes."""


class _Dtype:
    """Stands in for `numpy.dtype`: a type of plain numbers or text, in either byte order, or of objects."""

    def __init__(self, text: Any, align: Any = False, copy: Any = False):
        if not isinstance(text, str) or not (_PLAIN_DTYPE.fullmatch(text) or _OBJECT_DTYPE.fullmatch(text)):
            raise Damaged(f"a dtype {brief(text)}")
        self.is_object = _OBJECT_DTYPE.fullmatch(text) is not None
        self._text, self._order = text.lstrip("<>|="), "="

    def __setstate__(self, state: Any) -> None:
        """Of what numpy keeps there (sub-arrays, fields, flags), only the byte order is taken."""
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
    """Stands in for an array until its state has come and was checked."""

    def __init__(self) -> None:
        self.value: AnyArray | None = None
        self.objects: list[Any] | None = None  # what an array of objects holds
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


def _scalar(dtype: Any, data: Any) -> Any:
    return _array(data, dtype, (), "C")[()]


def _encode(text: Any, encoding: Any) -> bytes:
    """How protocols up to 2 write bytes."""
    if not isinstance(text, str) or encoding != "latin1":
        raise Damaged("an encoding")
    return text.encode("latin1")


_ADMITTED: dict[tuple[str, str], Any] = {
    **{(f"numpy.{core}.multiarray", "_reconstruct"): lambda kind, shape, code: _Array() for core in ("core", "_core")},
    **{(f"numpy.{core}.multiarray", "scalar"): _scalar for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _array for core in ("core", "_core")},
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("collections", "OrderedDict"): dict,
    ("_codecs", "encode"): _encode,
    ("__builtin__", "bytes"): lambda: b"",
}


_PythonUnpickler: Any = pickle._Unpickler


class Measured:
    """A file that gives no more than it has: asking for more is an error, and not an allocation."""

    def __init__(self, file: IO[bytes], size: int):
        self._file, self.size, self._left = file, size, size

    def read(self, count: int) -> bytes:
        if not 0 <= count <= self._left:
            raise Damaged(f"{count:,} bytes announced where {self._left:,} are left")
        self._left -= count
        return self._file.read(count)

    def readline(self) -> bytes:
        line = self._file.readline(MAX_LINE)
        if len(line) == MAX_LINE:
            raise Damaged(f"a line of more than {MAX_LINE:,} bytes")
        self._left -= len(line)
        return line

    def readinto(self, buffer: Any) -> int:
        buffer[:] = self.read(len(buffer))
        return len(buffer)

    def rest(self) -> bytes:
        return self.read(self._left)


class BoundedUnpickler(_PythonUnpickler):
    """Counts what it is asked for, and admits the names that numpy writes."""

    dispatch: ClassVar[dict[int, Any]]  # opcode -> method

    def __init_subclass__(cls) -> None:
        cls._dispatch_to_own_methods()

    @classmethod
    def _dispatch_to_own_methods(cls) -> None:
        """`pickle` looks steps up in a table, and not by the name of their method, which a class can override."""
        steps = _PythonUnpickler.dispatch.items()
        cls.dispatch = {code: getattr(cls, step.__name__) for code, step in steps}

    def __init__(self, file: Measured, path: Path):
        super().__init__(file)
        self._path, self._measured = path, file
        self._copied = 0
        self._depths: dict[int, tuple[Any, int]] = {}  # of tuples, by identity; they are kept so that it stays theirs

    def find_class(self, module: str, name: str) -> Any:
        found = _ADMITTED.get((module, name))
        if found is None:
            raise UnsafeFile(
                self._path,
                f"this pickle asks for {module[:60]}.{name[:60]}, which could run code; nothing was run. "
                "Only numpy arrays and plain containers are read: convert the file where you trust it",
            )
        return found

    def persistent_load(self, pid: Any) -> Any:
        raise UnsafeFile(self._path, "this pickle refers to objects outside the file; nothing was run")

    def load(self) -> Any:
        """As the base class does, step by counted step."""
        self._unframer = frames = pickle._Unframer(self._file_read, self._file_readline)  # pyright: ignore
        self.read, self.readline, self.readinto = frames.read, frames.readline, frames.readinto
        self.metastack, self.stack, self.proto = [], [], 0
        self.append = self.stack.append
        try:
            for _ in range(MAX_STEPS):
                self.dispatch[self.read(1)[0]](self)
        except pickle._Stop as stop:  # pyright: ignore
            return stop.value
        raise Damaged(f"more than {MAX_STEPS:,} steps")

    def _bounded(self, length: int) -> None:
        if length > self._measured.size:
            raise Damaged(f"{length:,} bytes announced in a file of {self._measured.size:,}")

    def load_bytearray8(self) -> None:
        length = int.from_bytes(self.read(8), "little")
        self._bounded(length)
        self.append(bytearray(self.read(length)))

    def load_long4(self) -> None:
        length = int.from_bytes(self.read(4), "little", signed=True)
        if not 0 <= length <= MAX_BITS // 8:
            raise Damaged(f"a number of {length:,} bytes")
        self.append(pickle.decode_long(self.read(length)))

    def load_reduce(self) -> None:
        """What is made of the file's bytes is counted: one string can be turned into arrays again and again."""
        super().load_reduce()
        made = self.stack[-1]
        if isinstance(made, bytes | bytearray):
            self._count_copy(len(made))
        elif isinstance(made, np.ndarray | np.generic):
            self._count_copy(made.nbytes)

    def load_build(self) -> None:
        """State is given to our shells and to nothing else."""
        state = self.stack.pop()
        shell = self.stack[-1]
        if not isinstance(shell, _Dtype | _Array):
            raise Damaged("state for something that has none")
        shell.__setstate__(state)
        if isinstance(shell, _Array):
            self._count_copy(8 * len(shell.objects or ()) + (0 if shell.value is None else shell.value.nbytes))

    def _count_copy(self, nbytes: int) -> None:
        self._copied += nbytes
        if self._copied > MAX_COPIES * self._measured.size + (1 << 20):
            raise Damaged("the same bytes are made into arrays again and again")

    def load_append(self) -> None:
        self._check_filled(self.stack[-2], list)
        super().load_append()

    def load_appends(self) -> None:
        self._check_filled(self.metastack[-1][-1], list)
        super().load_appends()

    def load_setitem(self) -> None:
        self._check_filled(self.stack[-3], dict, self.stack[-2:-1])
        super().load_setitem()

    def load_setitems(self) -> None:
        self._check_filled(self.metastack[-1][-1], dict, self.stack[::2])
        super().load_setitems()

    def load_additems(self) -> None:
        self._check_filled(self.metastack[-1][-1], set, self.stack)
        super().load_additems()

    def load_dict(self) -> None:
        _check_keys(self.stack[::2])
        super().load_dict()

    def load_frozenset(self) -> None:
        _check_keys(self.stack)
        super().load_frozenset()

    def _check_filled(self, target: Any, kind: type, keys: Iterable[Any] = ()) -> None:
        """Items are put into plain containers only."""
        if type(target) is not kind:
            raise Damaged(f"items for something that is no {kind.__name__}")
        _check_keys(keys)

    def load_tuple(self) -> None:
        super().load_tuple()
        self._check_depth()

    def load_tuple1(self) -> None:
        super().load_tuple1()
        self._check_depth()

    def load_tuple2(self) -> None:
        super().load_tuple2()
        self._check_depth()

    def load_tuple3(self) -> None:
        super().load_tuple3()
        self._check_depth()

    def _check_depth(self) -> None:
        """Of a tuple that was made just now: its hash would follow its tuples without looking how deep."""
        made = self.stack[-1]
        depth = 1 + max((self._depths[id(part)][1] for part in made if id(part) in self._depths), default=0)
        if depth > MAX_DEPTH:
            raise Damaged(f"tuples within tuples more than {MAX_DEPTH} deep")
        self._depths[id(made)] = (made, depth)

    def load_inst(self) -> NoReturn:
        raise Damaged("objects, which neither arrays nor plain containers are")

    load_obj = load_newobj = load_newobj_ex = load_ext1 = load_ext2 = load_ext4 = load_inst


BoundedUnpickler._dispatch_to_own_methods()


def _check_keys(keys: Iterable[Any]) -> None:
    """What is looked up by its hash must be cheap to hash."""
    for key in keys:
        small = type(key) is int and key.bit_length() <= 60  # larger ones may all have the same hash
        if not (small or key is None or type(key) in (str, bytes, bool, float) or isinstance(key, np.generic)):
            raise Damaged("keys that no dictionary of arrays has")


def load_pickle(path: str | Path, root: Root | None = None) -> Any:
    """What a pickle of arrays, numbers, strings and containers holds.

    root: the data set that the file is of; None for a file that the user named
    """
    return _load(
        Path(path), root, "pickle", lambda file, where: Resolver(where).resolve(BoundedUnpickler(file, where).load(), 0)
    )


def load_npy(path: str | Path, root: Root | None = None) -> Any:
    """What a `.npy` file holds: an array, or the dictionary that `np.save` pickled into it."""
    return _load(Path(path), root, ".npy file", _npy)


def _load(path: Path, root: Root | None, kind: str, read: Callable[[Measured, Path], Any]) -> Any:
    root = root or Root.of_named_file(path)
    message = f"this {kind} is cut short or damaged ({{}}); copy it again from its source"
    with readable(path, message), root.open(path) as file:
        return read(Measured(file, os.fstat(file.fileno()).st_size), path)


def _npy(file: Measured, path: Path) -> Any:
    magic = file.read(npy_format.MAGIC_LEN)
    old = npy_format.read_magic(io.BytesIO(magic)) == (1, 0)
    length = file.read(2 if old else 4)
    size = int.from_bytes(length, "little")
    if size > MAX_HEADER:
        raise Damaged(f"a header of {size:,} bytes")
    header = file.read(size)
    if sum(header.count(bracket) for bracket in (b"(", b"[", b"{")) > MAX_DEPTH:  # which Python's parser recurses into
        raise Damaged("a header that nests too deep")
    read_header = npy_format.read_array_header_1_0 if old else npy_format.read_array_header_2_0
    shape, fortran, dtype = read_header(io.BytesIO(length + header))
    if not dtype.hasobject:
        return _array(file.rest(), _Dtype(dtype.str), shape, "F" if fortran else "C")
    value = BoundedUnpickler(file, path).load()
    if isinstance(value, _Array) and value.objects and value.shape == ():
        value = value.objects[0]  # np.save wraps a dictionary in an array of no dimensions
    return Resolver(path).resolve(value, 0)


class Resolver:
    """Shells to arrays, all the way down; refuses arrays of objects and anything else that is not plain.

    Counts what it meets: a value that stands in two places of one that stands in two places is there four times.
    """

    def __init__(self, path: Path):
        self._path, self._met = path, 0

    def count(self, depth: int) -> None:
        """One more, so deep within the others."""
        self._met += 1
        if self._met > MAX_NODES or depth > MAX_DEPTH:
            raise Damaged("values within values without end")

    def resolve(self, value: Any, depth: int) -> Any:
        self.count(depth)
        if isinstance(value, _Array):
            if value.objects is not None:
                raise UnsafeFile(self._path, "this file holds an array of objects; save plain arrays (numbers) instead")
            if value.value is None:
                raise Damaged("an array without content")
            return value.value
        if type(value) is dict:
            return {key: self.resolve(item, depth + 1) for key, item in value.items()}
        if type(value) in (list, tuple, set, frozenset):
            return type(value)([self.resolve(item, depth + 1) for item in value])
        if type(value) is int and value.bit_length() > MAX_BITS:
            raise Damaged(brief(value))
        if value is None or isinstance(value, _PLAIN):
            return value
        raise Damaged(f"a {type(value).__name__} where data should be")
