"""Checkpoints of a learner, from which a resumed run continues exactly: weights, optimizers, random numbers.

A folder appears complete or not at all. It has two files: `model.safetensors` with all tensors, and `state.json` with
the rest. There are no pickles, so a checkpoint from somebody else runs no code.
"""

import errno
import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save, save_file
from torch import Tensor

from plaudit.data.disk import disk_error, sync
from plaudit.data.weights import read_safetensors
from plaudit.errors import BadFile
from plaudit.files import MAX_JSON, Root, brief, parse_json, readable
from plaudit.protocols import Learner

FORMAT = 1
TENSORS, STATE = "model.safetensors", "state.json"
INCOMPLETE = "this is not a whole checkpoint: {}"
VERSION = "version"  # of a learner, among dumped tensors


class Stateful:
    """Base class of learners in torch: the state is network, optimizers, random generator and version."""

    version: int  # updates made
    rng: torch.Generator
    net: Any  # the nn.Module of all that is trained
    optimizers: Mapping[str, torch.optim.Optimizer]

    def state_dict(self) -> dict[str, Tensor]:
        """Everything needed to continue, by name; on the CPU."""
        state = {f"model/{name}": tensor for name, tensor in self.net.state_dict().items()}
        for name, optimizer in self.optimizers.items():
            for number, moments in optimizer.state_dict()["state"].items():
                state |= {f"optimizer/{name}/{number}/{key}": value for key, value in moments.items()}
        state["rng"] = self.rng.get_state()
        state[VERSION] = torch.tensor(self.version)
        return {name: tensor.detach().contiguous().cpu() for name, tensor in state.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a state of an object with the same config."""
        model = {name.removeprefix("model/"): tensor for name, tensor in state.items() if name.startswith("model/")}
        self.net.load_state_dict(model)
        self.rng.set_state(state["rng"])
        for name, optimizer in self.optimizers.items():
            moments: dict[int, dict[str, Tensor]] = {}
            for path, tensor in state.items():
                if path.startswith(prefix := f"optimizer/{name}/"):
                    number, key = path.removeprefix(prefix).split("/")
                    moments.setdefault(int(number), {})[key] = tensor.clone()  # the optimizer keeps and changes it
            optimizer.load_state_dict({**optimizer.state_dict(), "state": moments})
        self.version = int(state[VERSION])


def save_checkpoint(folder: Path, learner: Stateful | Learner, state: Mapping[str, Any]) -> None:
    """Write a new checkpoint into a folder that does not exist yet; `state` is the caller's own, JSON values."""
    beside = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(beside, ignore_errors=True)
    try:
        beside.mkdir(parents=True)
        save_file(dict(learner.state_dict()), beside / TENSORS)
        tree = {"format": FORMAT, "version": learner.version, **state}
        (beside / STATE).write_text(json.dumps(tree, indent=1))
        for path in (*beside.iterdir(), beside):
            sync(path)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(beside, ignore_errors=True)
        if not isinstance(error, OSError):  # safetensors reports a system error in words: "... (os error 28)"
            number = re.search(r"os error (\d+)", str(error))
            error = OSError(int(number[1]) if number else errno.EIO, str(error))
        raise disk_error(error, beside.parent, "this checkpoint was not written") from error
    beside.replace(folder)
    sync(folder.parent)


def dump_checkpoint(learner: Stateful | Learner) -> bytes:
    """The state of a learner as bytes, for another of the same config elsewhere (`load_dumped`)."""
    return save(dict(learner.state_dict()))


def load_dumped(data: bytes, learner: Stateful | Learner) -> None:
    """Continue from the bytes of `dump_checkpoint`."""
    learner.load_state_dict(load(data))


def load_checkpoint(folder: Path, learner: Stateful | Learner) -> dict[str, Any]:
    """Put a learner into the state that was saved; returns the caller's state."""
    state = read_state(folder)
    tensors = read_safetensors(folder / TENSORS, INCOMPLETE)
    own = learner.state_dict()
    model = {name: tensor for name, tensor in tensors.items() if name.startswith("model/")}
    for name in sorted({n for n in own if n.startswith("model/")} ^ set(model)):
        raise BadFile(folder, f"tensor {name} is in {'it' if name in model else 'the learner'} alone: another network")
    for name, tensor in model.items():
        if tensor.shape != own[name].shape:
            raise BadFile(folder, f"{name} is {list(tensor.shape)}, this learner has {list(own[name].shape)}")
    try:
        learner.load_state_dict({VERSION: torch.tensor(state["version"]), **tensors})
    except (KeyError, ValueError, TypeError, RuntimeError) as error:
        raise BadFile(folder, f"this checkpoint does not fit the learner ({str(error)[:200]})") from error
    return state


def read_state(folder: Path) -> dict[str, Any]:
    """The content of `state.json`: format, version and the caller's state."""
    path = folder / STATE
    with readable(path, INCOMPLETE, INCOMPLETE.format("there is no such file")):
        state = parse_json(Root(folder).read(path, MAX_JSON))
    if not isinstance(state, dict) or type(state.get("version")) is not int or type(state.get("step", 0)) is not int:
        raise BadFile(folder, f"this is not a whole checkpoint: {path.name} does not say its version or its step")
    if state.get("format") != FORMAT:
        raise BadFile(folder, f"written as format {brief(state.get('format'))}; this version of plaudit reads {FORMAT}")
    return state
