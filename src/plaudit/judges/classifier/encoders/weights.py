"""Other people's files of weights: the tensors and their names, and never a line of code from the file.

    found = read_tensors(path)                                          # whatever the file holds
    tensors = take(found, {"conv1.weight": (64, 3, 7, 7)}, path=path, network="ResNet-10")

Files are told apart by their first bytes, because their names say little: `.pt`, `.pth` and `.bin` are all torch's, and
a `.pkl` may be anything. A file either fits to the last tensor or is refused with the first one that does not: a
network that was filled in part looks like one that works.
"""

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from plaudit.data.dry_run import check_pickle
from plaudit.data.unpickle import UnpicklingError, load_pickle
from plaudit.errors import BadFile, UnsafeFile
from plaudit.untrusted import MAX_DEPTH

Shape = tuple[int, ...]

_ZIP = b"PK\x03\x04"  # what torch.save has written since 1.6
_OLD_TORCH = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_PICKLE = b"\x80"
_LFS_POINTER = b"version https://"


def read_tensors(path: Path) -> dict[str, Any]:
    """All that a file of weights holds, nested names joined with '/': torch tensors, arrays, and what else there is."""
    if path.is_dir():
        files = ", ".join(sorted(file.name for file in path.iterdir() if file.is_file()))
        raise BadFile(path, f"this is a folder; name the file of weights in it (it has: {files or 'none'})")
    if not path.is_file():
        raise BadFile(path, "there is no such file of weights; download it first and name the place")
    with path.open("rb") as file:
        start = file.read(16)
    if start[8:9] == b"{":
        return _read_safetensors(path)
    if start.startswith((_ZIP, _OLD_TORCH)):
        tree = read_torch(path)
    elif start.startswith(_PICKLE):
        tree = load_pickle(path)
    elif start == _LFS_POINTER:
        raise BadFile(path, "this is a pointer of Git LFS and not the weights; run 'git lfs pull' where you cloned it")
    else:
        raise BadFile(path, f"this is no file of weights (safetensors, torch or a pickle); it starts with {start!r}")
    if not isinstance(tree, dict):
        raise BadFile(path, f"this file holds a {type(tree).__name__}; weights are a dictionary of names and tensors")
    while len(tree) == 1 and isinstance(
        only := next(iter(tree.values())), dict
    ):  # {"params": ...}, {"state_dict": ...}
        tree = only
    return _flat(tree)


def take(
    found: Mapping[str, Any], wanted: Mapping[str, Shape], *, path: Path, network: str, skip: Sequence[str] = ()
) -> dict[str, Tensor]:
    """The wanted tensors as 32-bit floats; refuses a file where one is missing, of another shape, or too many.

    skip: what the names of tensors start with that may be there and are left, like the head of the classifier
    """
    taken: dict[str, Tensor] = {}
    for name, shape in wanted.items():
        if name not in found:
            raise BadFile(path, f"tensor '{name}' {list(shape)} of {network} is missing; take the file as published")
        tensor = _as_tensor(found[name])
        if tensor is None:
            raise BadFile(path, f"'{name}' should be a tensor of floats {list(shape)} of {network}; take another file")
        if tensor.shape != shape:
            raise BadFile(
                path,
                f"tensor '{name}' is {list(tensor.shape)} and {network} has {list(shape)} there; "
                "this is another network, take a file of this one",
            )
        taken[name] = tensor
    surplus = [name for name in found if name not in wanted and not name.startswith(tuple(skip))]
    if surplus:
        shape = list(np.shape(found[surplus[0]]))
        raise BadFile(
            path,
            f"tensor '{surplus[0]}' {shape} has no place in {network}, nor have {len(surplus) - 1} others; "
            "this is another network, take a file of this one",
        )
    return taken


def _read_safetensors(path: Path) -> dict[str, Any]:
    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError, TypeError, KeyError, RuntimeError, MemoryError) as error:
        raise BadFile(
            path, f"this safetensors file is damaged ({str(error)[:200]}); copy it again from its source"
        ) from error


def read_torch(path: Path) -> Any:
    """What `torch.save` wrote, as long as it is tensors and plain containers."""
    try:
        _check_archive(path)
        tree = torch.load(path, map_location="cpu", weights_only=True)
        _check_tensors(tree, path)
        return tree
    except BadFile:
        raise
    except UnpicklingError as error:
        raise UnsafeFile(
            path,
            "this file holds more than plain tensors, which could run code; nothing was run. "
            "Save the network's state_dict() alone where you trust it",
        ) from error
    except Exception as error:
        reason = str(error).split("\n")[0][:200]
        raise BadFile(path, f"torch cannot read this file ({reason}); copy it again from its source") from error


def _check_archive(path: Path) -> None:
    """torch's archives are not compressed, and its unpickler counts nothing: both are looked at before it begins."""
    if not zipfile.is_zipfile(path):
        return
    size = path.stat().st_size
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        if sum(entry.file_size for entry in entries) > size:
            raise BadFile(path, "this file unfolds to more than its size, which torch's never do; copy it again")
        for entry in entries:
            if entry.filename.endswith("data.pkl"):
                with archive.open(entry) as program:
                    check_pickle(program, entry.file_size)


def _check_tensors(tree: Any, path: Path, depth: int = 0) -> None:
    """A tensor may show one number a billion times; whoever converts it would write them all."""
    if isinstance(tree, Tensor):
        if tree.numel() * tree.element_size() > tree.untyped_storage().nbytes():
            raise BadFile(
                path, f"a tensor of {list(tree.shape)} has fewer numbers than that in this file; save it whole"
            )
    elif depth > MAX_DEPTH:
        raise BadFile(path, f"it nests more than {MAX_DEPTH} levels deep; save the network's state_dict() alone")
    elif isinstance(tree, dict | list | tuple):
        for part in tree.values() if isinstance(tree, dict) else tree:
            _check_tensors(part, path, depth + 1)


def _flat(tree: Mapping[Any, Any], above: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        flat |= _flat(value, f"{above}{name}/") if isinstance(value, dict) else {f"{above}{name}": value}
    return flat


def _as_tensor(value: Any) -> Tensor | None:
    if isinstance(value, Tensor) and value.is_floating_point():
        return value.detach().float()
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        return torch.from_numpy(value.astype(np.float32))
    return None
