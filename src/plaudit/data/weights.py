"""Reading weights from others, and building the networks that they describe.

    tree = read_torch(Path("model.pt"))          # tensors, numbers, strings and containers of these
    with numbers_at_most(fitting(shapes), path):
        network = config.build()                 # BadFile before it allocates more than its weights could fill

A file of torch is a pickle, so a child process with limits reads it (`torch.load(weights_only=True)`) and returns dense
tensors. The safetensors library runs no code and checks sizes, so it maps a file in this process.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.overrides import TorchFunctionMode

from plaudit.data.formats.decoder import decode_file
from plaudit.errors import BadFile
from plaudit.files import Root, open_safetensors, readable

FREE = 1 << 25  # numbers of 4 bytes in addition to the weights: an image of 4,000 x 2,700 pixels to try the network on
UNTAUGHT = 1 << 27  # for a network without weights

_MAKERS = {torch.empty, torch.zeros, torch.ones, torch.rand, torch.randn, torch.full, torch.randint, torch.eye}
_COUNTED = {torch.arange, torch.linspace}
_CONVOLUTIONS = {torch.conv2d, torch.nn.functional.conv2d}


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

    def __init__(self, most: int, path: Path):
        super().__init__()
        self._most, self._left, self._path = most, most, path

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
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
