"""What a GPU needs to look fast: an encoder in half the bytes, and not a word from Python between its kernels.

    eager            each kernel is launched by itself
    graph            they are recorded once as a CUDA graph, for each of the first few sizes of batch, and played back
    compile          they are fused by torch.compile, which takes a minute the first time
    compile+graph    both

Nothing of this touches a model on a processor, and nothing the weights that are saved: these are copies. Only the
encoder is halved. What comes after it takes no time, and decides.

Torch's group norm turns images around in memory and back, which costs more than all the convolutions of a ResNet-10;
`ChannelsLastGroupNorm` leaves them as they are, for the compiler to fuse. On an H200, 256 images of 128x128 through
it take 5.1 ms eager, 2.6 compiled, and 1.4 compiled with this group norm; recording that as a graph saves 0.05 more.
"""

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from plaudit.judges.classifier.model import BinaryRewardClassifier

Execution = Literal["eager", "graph", "compile", "compile+graph"]
Look = Callable[..., list[Tensor]]

WARM_UP = 3  # runs before a graph is recorded, in which cuDNN chooses its kernels
# cuDNN tries its kernels and keeps the quickest, for each size of batch.
QUICKEST = partial(torch.backends.cudnn.flags, enabled=True, benchmark=True)
FEWEST = 16  # images of a compiled batch
MOST_GRAPHS = 4  # full mini-batches, as many scenes as a run has, and two more; each holds memory of its own


def halved(members: Sequence[BinaryRewardClassifier], execution: Execution) -> list[BinaryRewardClassifier]:
    """Copies whose encoders are in bfloat16; what members share, their copies share."""
    compiled = execution.startswith("compile")
    copies = copy.deepcopy(list(members))
    for member in copies:
        if compiled:
            _exchange(member.encoder)
        for module in member.encoder.modules():
            if not isinstance(module, nn.modules.batchnorm._BatchNorm):  # which takes both, and subtracts like numbers
                _halve(module)
    return copies


def _exchange(module: nn.Module) -> None:
    """What a compiler makes nothing good of, for what it does."""
    for name, child in module.named_children():
        if isinstance(child, nn.GroupNorm):
            setattr(module, name, ChannelsLastGroupNorm(child))
        elif isinstance(child, nn.Conv2d) and BlockConv.fits(child):
            setattr(module, name, BlockConv(child))
        else:
            _exchange(child)


class ChannelsLastGroupNorm(nn.Module):
    """As `nn.GroupNorm`, on images that lie in memory with their channels last."""

    def __init__(self, norm: nn.GroupNorm):
        super().__init__()
        self.weight, self.bias, self.groups, self.eps = norm.weight, norm.bias, norm.num_groups, norm.eps

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        y = x.permute(0, 2, 3, 1).reshape(batch, height * width, self.groups, channels // self.groups).float()
        variance, mean = torch.var_mean(y, dim=(1, 3), keepdim=True, correction=0)
        y = ((y - mean) * torch.rsqrt(variance + self.eps)).reshape(batch, height, width, channels)
        return (y * self.weight.float() + self.bias.float()).to(x.dtype).permute(0, 3, 1, 2)


class BlockConv(nn.Module):
    """A first convolution of 7x7 and stride 2, as one of 4x4 over blocks of 2x2 pixels: the same sums.

    A GPU multiplies 16 channels at once and three of colour leave most of it idle; the twelve of a block, and four of
    nothing, do not. The kernel becomes one of 8x8 whose first row and column are zero, cut into blocks.
    """

    def __init__(self, conv: nn.Conv2d):
        super().__init__()
        grown = F.pad(conv.weight.detach(), (1, 0, 1, 0))
        self.weight = nn.Parameter(F.pad(F.pixel_unshuffle(grown, 2), (0, 0, 0, 0, 0, 4)), requires_grad=False)

    @staticmethod
    def fits(conv: nn.Conv2d) -> bool:
        shape = (conv.in_channels, conv.kernel_size, conv.stride, conv.padding, conv.dilation, conv.groups)
        return shape == (3, (7, 7), (2, 2), (3, 3), (1, 1), 1) and conv.bias is None and type(conv) is nn.Conv2d

    def forward(self, x: Tensor) -> Tensor:
        odd = (0, x.shape[3] % 2, 0, x.shape[2] % 2)
        blocks = F.pixel_unshuffle(F.pad(x, odd), 2)
        blocks = F.pad(blocks, (2, 1, 2, 1, 0, 4)).contiguous(memory_format=torch.channels_last)
        return F.conv2d(blocks, self.weight)


def _halve(module: nn.Module) -> None:
    """Its own tensors, not those of modules inside."""
    for parameter in module.parameters(recurse=False):
        parameter.data = parameter.data.bfloat16()
    for name, buffer in module.named_buffers(recurse=False):
        if buffer.is_floating_point():
            setattr(module, name, buffer.bfloat16())


def executed(look: Look, execution: Execution, axis: int = 0) -> Look:
    """axis: of what it returns, along which the batch lies"""
    if execution.startswith("compile"):
        look = Filled(torch.compile(look, dynamic=False), axis)
    return Recorded(look) if execution.endswith("graph") else look


class Filled:
    """Runs a compiled function on batches filled up to a power of two: each size is compiled anew, for seconds."""

    def __init__(self, look: Look, axis: int):
        """axis: of the outputs, along which the batch lies"""
        self._look, self._axis = look, axis

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        with QUICKEST():
            return self._run(inputs)

    def _run(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        count = len(inputs[0])
        size = max(FEWEST, 1 << (count - 1).bit_length())
        if size == count:
            return self._look(*inputs)
        full = [torch.cat([given, given[-1:].expand(size - count, *given.shape[1:])]) for given in inputs]
        return [output.narrow(self._axis, 0, count) for output in self._look(*full)]


class Recorded:
    """Runs a function of CUDA tensors as graphs, one for each shape of input."""

    def __init__(self, look: Look):
        self._look = look
        self._graphs: dict[tuple[torch.Size, ...], Graph] = {}

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        shapes = tuple(given.shape for given in inputs)
        if shapes not in self._graphs:
            if len(self._graphs) == MOST_GRAPHS:
                return self._look(*inputs)
            self._graphs[shapes] = Graph(self._look, inputs)
        return self._graphs[shapes](inputs)


class Graph:
    """One call of a function, recorded."""

    def __init__(self, look: Look, inputs: Sequence[Tensor]):
        self._inputs = [given.clone() for given in inputs]  # where the graph reads from
        beside = torch.cuda.Stream()
        beside.wait_stream(torch.cuda.current_stream())
        with QUICKEST():
            with torch.cuda.stream(beside):
                for _ in range(WARM_UP):
                    look(*self._inputs)
            torch.cuda.current_stream().wait_stream(beside)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._outputs = look(*self._inputs)  # where it writes to, every time

    def __call__(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        for mine, given in zip(self._inputs, inputs, strict=True):
            mine.copy_(given, non_blocking=True)
        self._graph.replay()
        return [output.clone() for output in self._outputs]
