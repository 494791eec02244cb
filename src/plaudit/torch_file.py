"""What `torch.save` wrote, read without torch's own reader.

    tree = read_torch(Path("model.pt"))          # tensors, numbers, texts and containers of them

`torch.load(weights_only=True)` runs no code of the file, and believes its numbers: 400 bytes may say that a tensor has
a billion of them, that it is sparse, quantized or on the meta device; and it reads the archive with another reader than
Python's, so that what was looked at before and what is loaded can be two different things. So the archive is opened
once, its program runs in the unpickler of `plaudit.data.unpickle`, and a tensor is made here, of bytes that the file
has: dense, on the CPU, each number at most once.

Both layouts are read: the zip archive of today and the row of pickles from before torch 1.6. (Rejected: going through
the pickle first and then calling torch.load, which was done before and is two readers of one file.)
"""

import io
import math
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from plaudit.data.unpickle import BoundedUnpickler, Damaged, Measured, Resolver
from plaudit.errors import UnsafeFile
from plaudit.safetensors_file import open_safetensors
from plaudit.untrusted import Root, brief, readable, unreadable

ZIP = b"PK\x03\x04"
LEGACY = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # a pickle of torch's magic number

MAX_DIRECTORY = 8 << 20  # bytes of the archive's list of entries: about 100 for each tensor
MAX_DIMS = 32
MAX_EDGE = 1 << 40  # of one dimension; an empty tensor may have any other
MAX_SHARED = 64  # times that the numbers of a file may be shown, in all: networks share encoders

_DTYPES = {
    "Float": torch.float32,
    "Double": torch.float64,
    "Half": torch.float16,
    "BFloat16": torch.bfloat16,
    "Long": torch.int64,
    "Int": torch.int32,
    "Short": torch.int16,
    "Char": torch.int8,
    "Byte": torch.uint8,
    "Bool": torch.bool,
}


@dataclass(frozen=True)
class _Kind:
    """Stands in for `torch.FloatStorage` and its like."""

    dtype: torch.dtype


class _Storage:
    """Numbers of one type in a row, which tensors are views of."""

    def __init__(self, dtype: torch.dtype, data: bytearray):
        self.dtype, self.data = dtype, data
        self.count = len(data) // dtype.itemsize

    def numbers(self) -> Tensor:
        if not self.data:
            return torch.zeros(0, dtype=self.dtype)
        if self.dtype == torch.bool:  # bytes other than 0 and 1 are neither true nor false to torch
            return torch.frombuffer(self.data, dtype=torch.uint8) != 0
        return torch.frombuffer(self.data, dtype=self.dtype)


@dataclass
class _Shell:
    """Stands in for a tensor until all of the file was read."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.storage.dtype.itemsize

    def tensor(self) -> Tensor:
        return self.storage.numbers().as_strided(self.shape, self.stride, self.offset)


def _tensor(storage: Any, offset: Any, shape: Any, stride: Any, *others: Any) -> _Shell:
    """`torch._utils._rebuild_tensor_v2`; whether it learns, its hooks and its metadata are left."""
    sizes = (shape, stride)
    if not isinstance(storage, _Storage) or not all(isinstance(size, tuple) for size in sizes):
        raise Damaged("a tensor without numbers")
    numbers = (offset, *shape, *stride)
    sound = len(shape) == len(stride) <= MAX_DIMS and all(type(n) is int and 0 <= n <= MAX_EDGE for n in numbers)
    if not sound:
        raise Damaged("a tensor of a shape that none has")
    count = math.prod(shape)
    last = offset + sum((n - 1) * step for n, step in zip(shape, stride, strict=True))
    if count > storage.count or (count and last >= storage.count):
        found = f"[{', '.join(map(str, shape))}]"
        raise Damaged(f"a tensor of {found} where the file has {storage.count:,} numbers; save it whole")
    return _Shell(storage, offset, shape, stride)


def _parameter(data: Any, *others: Any) -> _Shell:
    if not isinstance(data, _Shell):
        raise Damaged("a parameter without numbers")
    return data


def _size(numbers: Any) -> tuple[int, ...]:
    if not isinstance(numbers, tuple | list) or not all(type(n) is int for n in numbers):
        raise Damaged("a size that is none")
    return tuple(numbers)


def _device(*words: Any) -> str:
    return str(words[0])[:20] if words else "cpu"


_ADMITTED: dict[tuple[str, str], Any] = {
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_tensor"): _tensor,
    ("torch._utils", "_rebuild_parameter"): _parameter,
    ("torch.nn.parameter", "Parameter"): _parameter,
    ("torch", "Size"): _size,
    ("torch", "device"): _device,
    **{("torch", f"{name}Storage"): _Kind(dtype) for name, dtype in _DTYPES.items()},
    **{("torch", str(dtype).removeprefix("torch.")): dtype for dtype in _DTYPES.values()},
}


class _Unpickler(BoundedUnpickler):
    """Admits the names of dense tensors, and asks `storage` for their numbers."""

    def __init__(self, file: Measured, path: Path, storage: Callable[[torch.dtype, str, int], _Storage], whole: int):
        """
        storage: of a type, a key and how many numbers
        whole: bytes of all of the file
        """
        super().__init__(file, path)
        self._storage, self._whole, self._shown_bytes = storage, whole, 0

    def find_class(self, module: str, name: str) -> Any:
        found = _ADMITTED.get((module, name))
        return super().find_class(module, name) if found is None else found

    def persistent_load(self, pid: Any) -> _Storage:
        if not isinstance(pid, tuple) or len(pid) not in (5, 6) or pid[0] != "storage" or pid[5:] not in ((), (None,)):
            raise Damaged("numbers that are kept in a way that is not read")
        _, kind, key, _, count = pid[:5]
        if not isinstance(kind, _Kind) or not isinstance(key, str) or type(count) is not int or count < 0:
            raise Damaged("numbers of a type that is not read")
        return self._storage(kind.dtype, key, count)

    def load_reduce(self) -> None:
        super().load_reduce()
        made = self.stack[-1]
        if isinstance(made, _Shell):
            self._shown_bytes += made.nbytes
            if self._shown_bytes > MAX_SHARED * self._whole + (1 << 20):
                raise Damaged("the same numbers as one tensor after the other")

    def load_build(self) -> None:
        """A state_dict has the versions of its modules as an attribute, which nothing here needs."""
        if type(self.stack[-2]) is dict:
            self.stack.pop()
        else:
            super().load_build()


class _TensorResolver(Resolver):
    """Shells to tensors, one for each."""

    def __init__(self, path: Path):
        super().__init__(path)
        self._tensors: dict[int, Tensor] = {}

    def resolve(self, value: Any, depth: int) -> Any:
        if isinstance(value, _Shell):
            self.count(depth)
            if id(value) not in self._tensors:
                self._tensors[id(value)] = value.tensor()
            return self._tensors[id(value)]
        return value if isinstance(value, torch.dtype) else super().resolve(value, depth)


def read_torch(path: Path, root: Root | None = None) -> Any:
    """What `torch.save` wrote, as long as it is dense tensors and plain containers; BadFile with what else it is.

    root: the folder that the file is in; None: its parent
    """
    message = "this is no sound file of torch ({}); copy it again from its source"
    try:
        with readable(path, message), (root or Root(path.parent)).open(path) as file:
            size = file.seek(0, io.SEEK_END)
            file.seek(0)
            start = file.read(len(LEGACY))
            file.seek(0)
            if start.startswith(ZIP):
                tree = _read_archive(file, size, path)
            elif start == LEGACY:
                tree = _read_legacy(Measured(file, size), path)
            else:
                raise unreadable(path, f"this is no file of torch; it starts with {start[:8]!r}")
            return _TensorResolver(path).resolve(tree, 0)
    except UnsafeFile as error:
        raise UnsafeFile(
            path,
            "this file holds more than plain tensors, which could run code; nothing was run "
            f"({_requested(error, path)}). Save the network's state_dict() alone where you trust it",
        ) from error


def read_safetensors(path: Path, message: str, root: Root | None = None) -> dict[str, Tensor]:
    """All tensors of a safetensors file; BadFile where it is damaged, with a sentence as for `readable`.

    root: the folder that the file is in; None: its parent
    """
    with readable(path, message), open_safetensors(path, root) as (name, _):
        return load_file(name)


def _requested(error: UnsafeFile, path: Path) -> str:
    return str(error).removeprefix(f"{path}: ").partition(",")[0].removeprefix("this pickle ")


class _Careful:
    """An open file for `zipfile`, which reads as much at once as a file's list of entries claims to take."""

    def __init__(self, file: IO[bytes]):
        self._file, self.most = file, MAX_DIRECTORY
        self.seek, self.tell, self.close = file.seek, file.tell, file.close
        self.seekable = file.seekable

    def read(self, count: int = -1) -> bytes:
        if count > self.most:
            raise Damaged(f"{count:,} bytes for the list of its entries")
        return self._file.read(self.most if count < 0 else count)


def _read_archive(file: IO[bytes], size: int, path: Path) -> Any:
    careful: Any = _Careful(file)
    with zipfile.ZipFile(careful) as archive:
        entries = {entry.filename: entry for entry in archive.infolist()}
        if len(entries) < len(archive.infolist()):
            raise Damaged("it has two entries of one name")
        if sum(entry.file_size for entry in entries.values()) > size:
            raise Damaged("it unfolds to more than its size, which torch's never do")
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries.values()):
            raise Damaged("its entries are compressed, which torch's never are")
        programs = [name for name in entries if name.endswith("/data.pkl") and name.count("/") == 1]
        if len(programs) != 1:
            raise Damaged(f"{len(programs)} data.pkl where there is one")
        home = programs[0].partition("/")[0]

        def content(name: str) -> bytearray:
            entry = entries.get(f"{home}/{name}")
            if entry is None:
                raise Damaged(f"it has no {brief(name)}")
            data = bytearray(entry.file_size)
            careful.most = size
            with archive.open(entry) as opened:
                stream: Any = opened
                if stream.readinto(data) != len(data):
                    raise Damaged(f"{brief(name)} is cut short")
            return data

        if f"{home}/byteorder" in entries and content("byteorder") != b"little":
            raise Damaged("its numbers are in the byte order of another machine")
        storages: dict[str, _Storage] = {}

        def storage(dtype: torch.dtype, key: str, count: int) -> _Storage:
            if key not in storages:
                storages[key] = _Storage(dtype, content(f"data/{key}"))
            found = storages[key]
            if found.dtype != dtype or len(found.data) != count * dtype.itemsize:
                raise Damaged(f"{count:,} numbers announced where the file has {found.count:,}")
            return found

        program = content("data.pkl")
        return _Unpickler(Measured(io.BytesIO(program), len(program)), path, storage, size).load()


def _read_legacy(file: Measured, path: Path) -> Any:
    """Magic number, version, facts of the machine, the tree, the keys of its storages, and their numbers."""
    storages: dict[str, _Storage] = {}
    announced = 0

    def storage(dtype: torch.dtype, key: str, count: int) -> _Storage:
        nonlocal announced
        if key not in storages:
            announced += count * dtype.itemsize
            if announced > file.size:
                raise Damaged(f"{announced:,} bytes announced in a file of {file.size:,}")
            storages[key] = _Storage(dtype, bytearray(count * dtype.itemsize))
        if storages[key].dtype != dtype or storages[key].count != count:
            raise Damaged("numbers that are announced twice, and not alike")
        return storages[key]

    _, _, machine, tree, keys = (_Unpickler(file, path, storage, file.size).load() for _ in range(5))
    if not isinstance(machine, dict) or machine.get("little_endian") is not True:
        raise Damaged("its numbers are in the byte order of another machine")
    if not isinstance(keys, list) or len(keys) != len(storages) or {*map(str, keys)} != {*storages}:
        raise Damaged("its numbers are not those that its tensors ask for")
    for key in keys:
        found = storages[str(key)]
        if int.from_bytes(file.read(8), "little") != found.count:
            raise Damaged("a storage of another length than announced")
        file.readinto(memoryview(found.data))
    return tree
