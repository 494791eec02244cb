"""A reward model on a GPU: an encoder in bfloat16, and kernels that torch.compile fuses.

Nothing of this touches a model on a processor, nor the weights that are saved: these are copies. Only the encoder is in
bfloat16. What comes after it takes no time, and decides.

With `compile: true`, 256 images of 128x128 through a ResNet-10 take a third of the time on an H200 (docs/log.md), after
half a minute of compiling. Two modules are exchanged for that: torch's group norm turns images around in memory and
back, which costs more than all convolutions of a ResNet-10, and a first convolution of three channels leaves most of
the GPU idle.
"""

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from plaudit.judges.classifier.model import BinaryRewardClassifier

BatchFn = Callable[..., list[Tensor]]

MIN_BATCH = 16  # images of a compiled batch


def bf16_copies(members: Sequence[BinaryRewardClassifier], compiled: bool) -> list[BinaryRewardClassifier]:
    """Copies whose encoders are in bfloat16; what members share, their copies share."""
    copies = copy.deepcopy(list(members))
    for member in copies:
        if compiled:
            _exchange(member.encoder)
        for module in member.encoder.modules():
            if not isinstance(module, nn.modules.batchnorm._BatchNorm):  # which takes both, and subtracts like numbers
                _to_bf16(module)
    return copies


def _exchange(module: nn.Module) -> None:
    """Modules that the compiler cannot fuse for equal ones that it can."""
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

    A GPU multiplies 16 channels at once and three of color leave most of it idle; the twelve of a block, and four of
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


def _to_bf16(module: nn.Module) -> None:
    """Its own tensors, not those of modules inside."""
    for parameter in module.parameters(recurse=False):
        parameter.data = parameter.data.bfloat16()
    for name, buffer in module.named_buffers(recurse=False):
        if buffer.is_floating_point():
            setattr(module, name, buffer.bfloat16())


class CompiledBatches:
    """A compiled function, on batches padded to a power of two: each size is compiled anew, for seconds."""

    def __init__(self, function: BatchFn, axis: int = 0):
        """axis: of the outputs, along which the batch lies"""
        # reduce-overhead records CUDA graphs, whose outputs the next call overwrites: hence the clones below.
        self._function, self._axis = torch.compile(function, dynamic=False, mode="reduce-overhead"), axis

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        count = len(inputs[0])
        # cuDNN tries its kernels and keeps the quickest, for each size of batch.
        with torch.backends.cudnn.flags(enabled=True, benchmark=True):
            outputs = self._function(*pad_batch(inputs))
        return [output.narrow(self._axis, 0, count).clone() for output in outputs]


def pad_batch(inputs: Sequence[Tensor]) -> list[Tensor]:
    """The inputs with their last rows repeated, up to a power of two."""
    count = len(inputs[0])
    size = max(MIN_BATCH, 1 << (count - 1).bit_length())
    if size == count:
        return list(inputs)
    return [torch.cat([given, given[-1:].expand(size - count, *given.shape[1:])]) for given in inputs]
