"""Other people's files of weights: the tensors and their names, and never a line of code from the file.

    found = read_state_dict(path)                                          # whatever the file holds
    tensors = select_tensors(found, {"conv1.weight": (64, 3, 7, 7)}, path=path, network="ResNet-10")

Files are told apart by their first bytes, because their names say little: `.pt`, `.pth` and `.bin` are all torch's, and
a `.pkl` may be anything. A file either fits to the last tensor or is refused with the first one that does not: a
network that was filled in part looks like one that works.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from plaudit.data.formats.decoder import load_pickle
from plaudit.data.weights import LEGACY, ZIP, read_safetensors, read_torch
from plaudit.errors import BadFile
from plaudit.files import Root, unreadable

Shape = tuple[int, ...]

_PICKLE = b"\x80"


def read_state_dict(path: Path) -> dict[str, Any]:
    """All that a file of weights holds, nested names joined with '/': torch tensors, arrays, and what else there is."""
    if path.is_dir():
        files = ", ".join(sorted(file.name for file in path.iterdir() if file.is_file()))
        raise BadFile(path, f"this is a folder; name the file of weights in it (it has: {files or 'none'})")
    if not path.exists():
        raise BadFile(path, "there is no such file of weights; download it first and name the place")
    root = Root.of_named_file(path)
    with root.open(path) as file:
        start = file.read(16)
    if start[8:9] == b"{":
        message = "this safetensors file is damaged ({}); copy it again from its source"
        return dict(read_safetensors(path, message, root))
    if start.startswith((ZIP, LEGACY)):
        tree = read_torch(path, root)
    elif start.startswith(_PICKLE):
        tree = load_pickle(path, root)
    else:
        raise unreadable(path, f"this is no file of weights (safetensors, torch or a pickle); it starts with {start!r}")
    if not isinstance(tree, dict):
        raise BadFile(path, f"this file holds a {type(tree).__name__}; weights are a dictionary of names and tensors")
    while len(tree) == 1 and isinstance(
        only := next(iter(tree.values())), dict
    ):  # {"params": ...}, {"state_dict": ...}
        tree = only
    return _flat(tree)


def select_tensors(
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
