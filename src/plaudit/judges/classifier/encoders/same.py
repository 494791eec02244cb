"""The padding that TensorFlow and Flax call SAME, which torch has not got for strides.

What comes out is `ceil(size / stride)` long, and when the zeros to add are odd in number the extra one goes after the
image: a 3x3 convolution of stride 2 gets (0, 1) at an even size, where torch's `padding=1` gives (1, 0) in effect.
Weights that were learned with the one see an image that is shifted by a pixel, at every stride, with the other.
"""

import math

from torch import Tensor, nn
from torch.nn import functional as F


def same_padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """Cells before and after one axis of `size` cells."""
    total = max((math.ceil(size / stride) - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


def pad_same(x: Tensor, kernel: int, stride: int, value: float) -> Tensor:
    """[B, C, H, W] with its edges filled with `value`."""
    top, bottom = same_padding(x.shape[2], kernel, stride)
    left, right = same_padding(x.shape[3], kernel, stride)
    return F.pad(x, (left, right, top, bottom), value=value)


class SameConv2d(nn.Conv2d):
    """A convolution without bias and with a square kernel."""

    def __init__(self, channels_in: int, channels_out: int, kernel: int, stride: int = 1, groups: int = 1):
        super().__init__(channels_in, channels_out, kernel, stride, groups=groups, bias=False)

    def forward(self, input: Tensor) -> Tensor:
        kernel, stride = self.kernel_size[0], self.stride[0]
        vertical = same_padding(input.shape[2], kernel, stride)
        horizontal = same_padding(input.shape[3], kernel, stride)
        if vertical[0] == vertical[1] and horizontal[0] == horizontal[1]:  # torch pads these itself, without a copy
            return F.conv2d(input, self.weight, None, stride, (vertical[0], horizontal[0]), groups=self.groups)
        return F.conv2d(F.pad(input, (*horizontal, *vertical)), self.weight, None, stride, groups=self.groups)


class SameMaxPool2d(nn.Module):
    """The largest of each window; what lies outside of the image never wins."""

    def __init__(self, kernel: int, stride: int):
        super().__init__()
        self.kernel, self.stride = kernel, stride

    def forward(self, x: Tensor) -> Tensor:
        padding = [same_padding(size, self.kernel, self.stride) for size in x.shape[2:]]
        if all(before == after for before, after in padding):  # torch pads these itself, without a copy
            return F.max_pool2d(x, self.kernel, self.stride, [before for before, _ in padding])
        if all(pair == (0, 1) for pair in padding):  # a last window that reaches one cell out: no copy either
            return F.max_pool2d(x, self.kernel, self.stride, ceil_mode=True)
        return F.max_pool2d(pad_same(x, self.kernel, self.stride, -math.inf), self.kernel, self.stride)
