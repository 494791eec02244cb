"""The head of a safetensors file, looked at before anything is built of it.

The library checks that what its head says of the tensors fits the bytes behind it, and puts up with 100 MB of head: a
million tensors without a number in them, which take gigabytes as objects. And it opens whatever has the name, a pipe
or a link too. So the file is opened here, its head must be short, and the library gets the open file.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from plaudit.errors import BadFile
from plaudit.untrusted import Root, brief, parse_json

MAX_HEAD = 16 << 20  # bytes; about 100 for each tensor
MAX_TENSORS = 100_000

Shape = tuple[int, ...]


def check_safetensors(path: Path) -> dict[str, Shape]:
    """The shape of each tensor of it; BadFile where it is none, FileNotFoundError where it is not there."""
    with open_safetensors(path) as (_, shapes):
        return shapes


@contextmanager
def open_safetensors(path: Path, root: Root | None = None) -> Iterator[tuple[str, dict[str, Shape]]]:
    """A name under which the library can open exactly this file, and the shape of each tensor; raises as above.

    root: the folder that the file is in; None: its parent
    """
    with (root or Root(path.parent)).open(path) as file:
        yield f"/dev/fd/{file.fileno()}", _read_shapes(path, file)


def _read_shapes(path: Path, file: BinaryIO) -> dict[str, Shape]:
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(8), "little")
    if not 2 <= length <= min(MAX_HEAD, size - 8):
        raise BadFile(path, f"this is no safetensors file: its head has {length:,} bytes, the file {size:,}")
    head = file.read(length)
    try:
        tree = parse_json(head)
    except ValueError as error:
        raise BadFile(path, f"this is no safetensors file: its head is no JSON ({str(error)[:100]})") from error
    if not isinstance(tree, dict) or len(tree) > MAX_TENSORS:
        raise BadFile(path, f"this is no safetensors file: its head is {brief(tree)}")
    return {name: _shape(path, name, entry) for name, entry in tree.items() if name != "__metadata__"}


def _shape(path: Path, name: str, entry: object) -> Shape:
    shape = entry.get("shape") if isinstance(entry, dict) else None
    sound = isinstance(shape, list) and len(shape) <= 32 and all(type(n) is int and 0 <= n < 1 << 40 for n in shape)
    if not isinstance(shape, list) or not sound:
        raise BadFile(path, f"this is no safetensors file: tensor {brief(name)} has a shape that none has")
    return tuple(shape)
