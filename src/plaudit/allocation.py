"""Networks that a file of somebody else describes, built only as far as its weights go.

    with numbers_at_most(fitting(shapes), path):
        network = config.build()             # BadFile before it takes more memory than its weights could fill

A description of a few bytes can ask for layers of a billion numbers, or for images of a billion pixels to try them on.
What torch is asked to make is counted before it is made. (Rejected: building on the meta device first, which some
networks do not survive; a limit of the process, which hits whatever else it does.)
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from plaudit.errors import BadFile

FREE = 1 << 25  # numbers of 4 bytes beside the weights: a picture of 4,000 x 2,700 pixels to try the network on
UNTAUGHT = 1 << 27  # of a network that comes without weights

_MAKERS = {torch.empty, torch.zeros, torch.ones, torch.rand, torch.randn, torch.full, torch.randint, torch.eye}
_COUNTED = {torch.arange, torch.linspace}
_CONVOLUTIONS = {torch.conv2d, torch.nn.functional.conv2d}


def fitting(shapes: Iterable[tuple[int, ...]]) -> int:
    """How many numbers may be made for weights of these shapes: they are copied, and tried on a picture."""
    return FREE + 4 * sum(math.prod(shape) for shape in shapes)


@contextmanager
def numbers_at_most(most: int, path: Path) -> Iterator[None]:
    """BadFile about `path` where what is built meanwhile needs more numbers than that."""
    with _Counted(most, path):
        yield


class _Counted(TorchFunctionMode):
    """Sees every call of torch that makes a tensor, in this thread."""

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
            raise BadFile(
                self._path,
                "the network that this describes needs more numbers than its weights have; copy it again from its "
                "source",
            )
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
