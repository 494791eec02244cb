"""Weights in files: those from others, with the networks that they describe, and the checkpoints of learners.

    tree = read_torch(Path("model.pt"))          # tensors, numbers, strings and containers of these
    with numbers_at_most(fitting(shapes), path):
        network = config.build()                 # BadFile before it allocates more than its weights could fill

A file of torch is a pickle, so a child process with limits reads it (`torch.load(weights_only=True)`) and returns dense
tensors. The safetensors library runs no code and checks sizes, so it maps a file in this process.

From a checkpoint a resumed run continues exactly: weights, optimizers, random numbers. Its folder appears complete or
not at all. It has two files: `model.safetensors` with all tensors, and `state.json` with the rest. There are no
pickles, so a checkpoint from somebody else runs no code.
"""

import errno
import json
import math
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, load_file, save, save_file
from torch import Tensor
from torch.overrides import TorchFunctionMode

from plaudit.data.disk import disk_error, sync
from plaudit.data.formats.decoder import decode_file
from plaudit.errors import BadFile
from plaudit.files import MAX_JSON, Root, brief, open_safetensors, parse_json, readable
from plaudit.protocols import Learner

FREE = 1 << 25  # numbers of 4 bytes in addition to the weights: an image of 4,000 x 2,700 pixels to try the network on
UNTAUGHT = 1 << 27  # for a network without weights

_MAKERS = {torch.empty, torch.zeros, torch.ones, torch.rand, torch.randn, torch.full, torch.randint, torch.eye}
_COUNTED = {torch.arange, torch.linspace}
_CONVOLUTIONS = {torch.conv2d, torch.nn.functional.conv2d}
_RANDOM = {torch.nn.init.kaiming_uniform_, torch.Tensor.uniform_, torch.Tensor.normal_}


def read_torch(path: Path, root: Root | None = None) -> Any:
    """The dense tensors, plain values and containers that `torch.save` wrote; BadFile for anything else.

    root: the folder that the file is in; None: its parent
    """
    with readable(path, "this is no sound file of torch ({}); copy it again from its source"):
        return decode_file("torch", path, root or Root(path.parent), _unpack_tensor)


def _unpack_tensor(kind: str, value: Any, buffers: Sequence[Any]) -> Any:
    """A tensor or a dtype that the child process described."""
    name, shape, number = (value, (), 0) if kind == "dtype" else value
    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name} is not a numeric type")
    if kind == "dtype":
        return dtype
    if not math.prod(shape):
        return torch.zeros(shape, dtype=dtype)
    return torch.from_numpy(buffers[number]).view(dtype).reshape(shape)


def read_safetensors(path: Path, message: str, root: Root | None = None) -> dict[str, Tensor]:
    """All tensors of a safetensors file; BadFile with `message` if it is damaged, see `readable`.

    root: the folder that the file is in; None: its parent
    """
    with readable(path, message), open_safetensors(path, root) as name:
        return load_file(name)


def fitting(shapes: Iterable[Sequence[int]]) -> int:
    """How many numbers may be allocated for weights of these shapes, which are copied and tried on an image."""
    return FREE + 4 * sum(math.prod(shape) for shape in shapes)


class numbers_at_most(TorchFunctionMode):
    """BadFile about `path` if torch is asked to allocate more than `most` numbers in this block and thread.

    A description of a few bytes can ask for layers of a billion numbers. (Rejected: building on the meta device first,
    which some networks do not support; a limit of the process, which also affects everything else in it.)
    """

    def __init__(self, most: int, path: Path, *, random: bool = True):
        """random: False leaves out the random weights of a network that gets others"""
        super().__init__()
        self._most, self._left, self._path, self._random = most, most, path, random

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        if func in _RANDOM and not self._random:
            return args[0] if args else kwargs["tensor"]
        if func in _MAKERS:
            self._left -= _size(args, kwargs.get("size"))
        elif func in _COUNTED:
            self._left -= max((int(abs(n)) for n in args if isinstance(n, int | float)), default=0)
        if self._left < 0 or (func in _CONVOLUTIONS and _conv_output_size(args, kwargs) > self._most):
            what = "the network that this describes needs more numbers than its weights have"
            raise BadFile(self._path, f"{what}; copy it again from its source")
        return func(*args, **kwargs)


def _size(args: tuple[Any, ...], size: Any) -> int:
    if size is None:
        size = args[0] if args and isinstance(args[0], tuple | list) else [n for n in args if type(n) is int]
    return math.prod(n for n in ([size] if isinstance(size, int) else size) if isinstance(n, int))


def _conv_output_size(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    """About how many numbers come out of a convolution."""
    images, weight = (args[0], args[1]) if len(args) > 1 else (kwargs["input"], kwargs["weight"])
    stride = kwargs.get("stride", args[3] if len(args) > 3 else 1)
    steps = math.prod(stride) if isinstance(stride, tuple | list) else stride**2
    return images.shape[0] * weight.shape[0] * math.prod(images.shape[2:]) // max(steps, 1)


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
