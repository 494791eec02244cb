"""Saving all of something that learns, so that what goes on is what stopped: weights, optimisers, random numbers.

Two files in a folder that appears whole or not at all: `state.safetensors` with every tensor, and `facts.json`
with what is not one. No pickles: a checkpoint from somebody else is data.
"""

import errno
import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load, load_file, save, save_file
from torch import Tensor, nn

from plaudit.data.journal import disk_error, sync
from plaudit.errors import BadFile
from plaudit.safetensors_file import check_safetensors
from plaudit.untrusted import MAX_JSON, parse_json, read_own, shown

FORMAT = 1
VERSION = "version"  # of a learner, among dumped tensors


class Checkpointed(Protocol):
    """What a learner has to show to be saved."""

    version: int
    rng: torch.Generator

    @property
    def net(self) -> nn.Module: ...

    @property
    def optimizers(self) -> Mapping[str, torch.optim.Optimizer]: ...


def save_checkpoint(folder: Path, learner: Checkpointed, facts: Mapping[str, Any]) -> None:
    """Write a new checkpoint; `facts` are the caller's own, JSON values."""
    beside = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(beside, ignore_errors=True)
    try:
        beside.mkdir(parents=True)
        save_file(_tensors(learner), beside / "state.safetensors")
        told = json.dumps({"format": FORMAT, "version": learner.version, **facts}, indent=1)
        (beside / "facts.json").write_text(told)
        for path in (*beside.iterdir(), beside):
            sync(path)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(beside, ignore_errors=True)
        what = error if isinstance(error, OSError) else OSError(_number_in(str(error)), str(error))
        raise disk_error(what, beside.parent, "this checkpoint was not written") from error
    shutil.rmtree(folder, ignore_errors=True)  # of the same step: a run that was asked to save twice
    beside.replace(folder)
    sync(folder.parent)


def _number_in(words: str) -> int:
    """safetensors tells of a system error in words: "... (os error 28)"."""
    found = re.search(r"os error (\d+)", words)
    return int(found[1]) if found else errno.EIO


def dump_checkpoint(learner: Checkpointed) -> bytes:
    """All of a learner, to be put into another of the same config elsewhere (`load_dumped`)."""
    return save({**_tensors(learner), VERSION: torch.tensor(learner.version)})


def load_dumped(data: bytes, learner: Checkpointed) -> None:
    tensors = load(data)
    _put(tensors, learner)
    learner.version = int(tensors[VERSION])


def load_checkpoint(folder: Path, learner: Checkpointed) -> dict[str, Any]:
    """Put a learner into the state that was saved; returns the caller's facts."""
    facts = read_facts(folder)
    try:
        check_safetensors(folder / "state.safetensors")
        tensors = load_file(folder / "state.safetensors")
    except (OSError, ValueError, TypeError, KeyError, RuntimeError, SafetensorError) as error:
        raise BadFile(folder, f"this is not a whole checkpoint: {str(error)[:200]}") from error
    mine = _tensors(learner)
    model = {name: tensor for name, tensor in tensors.items() if name.startswith("model/")}
    for name in sorted({n for n in mine if n.startswith("model/")} ^ set(model)):
        raise BadFile(folder, f"tensor {name} is in {'it' if name in model else 'the learner'} alone: another network")
    for name, tensor in model.items():
        if tensor.shape != mine[name].shape:
            raise BadFile(folder, f"{name} is {list(tensor.shape)}, this learner has {list(mine[name].shape)}")
    try:
        _put(tensors, learner)
    except (KeyError, ValueError, TypeError, RuntimeError) as error:
        raise BadFile(folder, f"this checkpoint does not fit the learner ({str(error)[:200]})") from error
    learner.version = facts["version"]
    return facts


def read_facts(folder: Path) -> dict[str, Any]:
    """What a checkpoint says of itself, and the caller's facts."""
    try:
        facts = parse_json(read_own(folder / "facts.json", MAX_JSON))
    except (OSError, ValueError) as error:
        raise BadFile(folder, f"this is not a whole checkpoint: {str(error)[:200]}") from error
    if not isinstance(facts, dict) or type(facts.get("version")) is not int or type(facts.get("step", 0)) is not int:
        raise BadFile(folder, "this is not a whole checkpoint: facts.json does not say its version or its step")
    if facts.get("format") != FORMAT:
        raise BadFile(folder, f"written as format {shown(facts.get('format'))}; this version of plaudit reads {FORMAT}")
    return facts


def _put(tensors: Mapping[str, Tensor], learner: Checkpointed) -> None:
    model = {name.removeprefix("model/"): tensor for name, tensor in tensors.items() if name.startswith("model/")}
    learner.net.load_state_dict(model)
    learner.rng.set_state(tensors["rng"])
    for name, optimizer in learner.optimizers.items():
        _load_optimizer(optimizer, f"optimizer/{name}/", tensors)


def _tensors(learner: Checkpointed) -> dict[str, Tensor]:
    found = {f"model/{name}": tensor for name, tensor in learner.net.state_dict().items()}
    for name, optimizer in learner.optimizers.items():
        for number, state in optimizer.state_dict()["state"].items():
            found |= {f"optimizer/{name}/{number}/{key}": value for key, value in state.items()}
    found["rng"] = learner.rng.get_state()
    return {name: tensor.detach().contiguous().cpu() for name, tensor in found.items()}


def _load_optimizer(optimizer: torch.optim.Optimizer, prefix: str, tensors: Mapping[str, Tensor]) -> None:
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith(prefix):
            number, key = name.removeprefix(prefix).split("/")
            state.setdefault(int(number), {})[key] = tensor
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
