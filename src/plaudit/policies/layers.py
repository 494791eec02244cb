"""Layers of policies: products, a small convolutional network per camera with its fast form on a GPU, random shift.

On a GPU the convolutions of `ConvNet` run in bfloat16, fused with ReLU. The first one has 3 input channels, which is
slow in cuDNN, so it is computed as a 1x1 convolution over patches of pixels. `cut_patches` cuts the frames of a batch
once, for all networks that see them.
"""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

WIDTHS = (32, 32, 64, 64)  # channels of the convolutions, each 3x3 with stride 2
_IDLE: "list[torch.cuda.Stream]" = []  # streams for branches of CUDA graphs
PATCH = 32  # values of a patch: 3x3 pixels of 3 channels, 1 for the bias, and 4 that count for nothing


class Linear(nn.Module):
    """As `nn.Linear`, by a plain matrix product: on ARM the fused kernel takes three times as long at these sizes."""

    def __init__(self, inputs: int, outputs: int, gain: float = 1.0):
        super().__init__()
        self._gain = gain
        self.weight, self.bias = nn.Parameter(torch.empty(inputs, outputs)), nn.Parameter(torch.empty(outputs))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw new weights."""
        self.weight.uniform_(-self._gain, self._gain).div_(math.sqrt(len(self.weight)))
        self.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        if x.is_cuda and x.dim() == 2:
            return torch.addmm(self.bias, x, self.weight)
        return x @ self.weight + self.bias


def mlp(sizes: Sequence[int], activation: type[nn.Module], *, norm: bool = False) -> nn.Sequential:
    """A multilayer perceptron, by the sizes of its layers."""
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [Linear(before, after), *([nn.LayerNorm(after)] if norm else []), activation()]
    return nn.Sequential(*layers)


class ConvNet(nn.Module):
    """Four convolutions and a projection: a frame to a few numbers in [-1, 1]."""

    def __init__(self, size: tuple[int, int], features: int):
        super().__init__()
        self.convs: Any = nn.ModuleList(
            nn.Conv2d(before, after, 3, stride=2, padding=1) for before, after in pairwise((3, *WIDTHS))
        )
        height, width = (-(-length // 2 ** len(WIDTHS)) for length in size)
        self.projection = Linear(WIDTHS[-1] * height * width, features)
        self.norm = nn.LayerNorm(features)
        self.unused = nn.Buffer(torch.zeros(WIDTHS[0], PATCH - 28), persistent=False)  # columns of a patch's weights

    def forward(self, frames: Tensor) -> Tensor:
        """Features [B, F]. frames: pixels in [0, 1] minus 0.5, [B, 3, H, W]; or their patches"""
        if frames.dtype == torch.bfloat16:
            return self._from_patches(frames)
        for conv in self.convs:
            frames = F.relu(conv(frames))
        return self.norm(self.projection(frames.permute(0, 2, 3, 1).flatten(1))).tanh()

    def _from_patches(self, patches: Tensor) -> Tensor:
        first = self.convs[0]
        columns = first.weight.permute(0, 2, 3, 1).flatten(1)
        weight = torch.cat([columns, first.bias[:, None], self.unused], dim=1).bfloat16()
        x: Tensor = _ConvReLU.apply(patches.permute(0, 3, 1, 2), weight[:, :, None, None], None, 1, 0)
        for conv in self.convs[1:]:
            weight = conv.weight.to(torch.bfloat16, memory_format=torch.channels_last)
            x = _ConvReLU.apply(x, weight, conv.bias.bfloat16(), 2, 1)
        x = x.permute(0, 2, 3, 1).flatten(1) @ self.projection.weight.bfloat16()
        return self.norm(x.float() + self.projection.bias).tanh()


def random_shift(images: Tensor, generator: torch.Generator, pad: int = 4) -> Tensor:
    """Each image moved by up to `pad` pixels, its edge repeated (DrQ, arXiv 2004.13649): [B, H, W, C] to the same.

    All images of a history [B, N, H, W, C] are moved in the same way, so that only real motion is seen.
    """
    if not pad:
        return images
    frames, offsets = _pair(images, random_offsets(len(images), generator, pad).to(images.device))
    batch, height, width, _ = frames.shape
    if frames.device.type == "cpu":  # which copies slices many times as fast as it gathers pixels
        padded = np.pad(frames.numpy(), ((0, 0), (pad, pad), (pad, pad), (0, 0)), mode="edge")
        starts = enumerate((offsets + pad).tolist())
        moved = np.stack([padded[n, y : y + height, x : x + width] for n, (y, x) in starts])
        return torch.from_numpy(moved).view(images.shape)
    rows, columns = _sources(offsets, height, width)
    each = torch.arange(batch, device=images.device)[:, None, None]
    return frames[each, rows[:, :, None], columns[:, None, :]].view(images.shape)


def random_offsets(batch: int, generator: torch.Generator, pad: int) -> Tensor:
    """Pixels to move each image by, [B, 2]."""
    return torch.randint(-pad, pad + 1, (batch, 2), generator=generator, device=generator.device)


def _pair(images: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
    """Images [B, ..., H, W, C] one after the other, and the offsets [B, 2] of each."""
    frames = images.flatten(0, -4)
    return frames, offsets[:, None].expand(-1, len(frames) // len(offsets), -1).reshape(-1, 2)


def cut_patches(images: Tensor, offsets: Tensor) -> Tensor:
    """Frames moved and cut into the patches that the first convolution sees.

    images: uint8 [B, ..., H, W, 3]
    offsets: pixels to move each image or history by, [B, 2]; its edge is repeated
    returns: bfloat16 [B, ..., H / 2, W / 2, 32]
    """
    frames, offsets = _pair(images, offsets)
    batch, height, width, _ = frames.shape
    rows, columns = _sources(offsets, height, width)
    pixels = F.pad(frames, (0, 1)).view(torch.int32).view(batch, -1)  # one number per pixel: fast to gather
    moved = pixels.gather(1, (rows[:, :, None] * width + columns[:, None]).flatten(1))
    moved = moved.view(torch.uint8).view(batch, height, width, 4)[..., :3]
    padded = torch.zeros(batch, height + 2, width + 2, 3, dtype=torch.bfloat16, device=frames.device)
    torch.add(torch.tensor(-0.5), moved, alpha=1 / 255, out=padded[:, 1:-1, 1:-1])
    windows = padded.unfold(1, 3, 2).unfold(2, 3, 2).permute(0, 1, 2, 4, 5, 3)  # [B, H / 2, W / 2, 3, 3, channels]
    patches = torch.ones(*windows.shape[:3], PATCH, dtype=torch.bfloat16, device=frames.device)
    patches[..., :27].unflatten(-1, (3, 3, 3)).copy_(windows)
    return patches.unflatten(0, images.shape[:-3])


def _sources(offsets: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """The rows [B, H] and columns [B, W] of an image that the moved image consists of."""
    rows = torch.arange(height, device=offsets.device) + offsets[:, :1]
    columns = torch.arange(width, device=offsets.device) + offsets[:, 1:]
    return rows.clamp(0, height - 1), columns.clamp(0, width - 1)


def run_parallel(*calls: Callable[[], Any]) -> list[Any]:
    """The results of calls. While a CUDA graph is captured, they become branches of it that run at the same time."""
    if len(calls) < 2 or not torch.cuda.is_available() or not torch.cuda.is_current_stream_capturing():
        return [call() for call in calls]
    main = torch.cuda.current_stream()
    branches = [_IDLE.pop() if _IDLE else torch.cuda.Stream() for _ in calls[1:]]
    for branch in branches:
        branch.wait_stream(main)
    results = [calls[0]()]
    for branch, call in zip(branches, calls[1:], strict=True):
        with torch.cuda.stream(branch):
            results.append(call())
        if isinstance(results[-1], Tensor):  # else the branch could reuse its memory before `main` has read it
            results[-1].record_stream(main)
    for branch in branches:
        main.wait_stream(branch)
    _IDLE.extend(branches)
    return results


class _ConvReLU(torch.autograd.Function):
    """A convolution and ReLU in one kernel, where cuDNN has it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int) -> Tensor:
        if x.is_cuda:
            out = torch.cudnn_convolution_relu(x, weight, bias, [stride] * 2, [padding] * 2, [1, 1], 1)
        else:
            out = F.relu(F.conv2d(x, weight, bias, stride, padding))
        ctx.save_for_backward(x, weight, out)
        ctx.has_bias, ctx.stride, ctx.padding = bias is not None, stride, padding
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, out = ctx.saved_tensors
        grad = torch.ops.aten.threshold_backward(grads[0], out, 0)
        wanted = [ctx.needs_input_grad[0], True, ctx.has_bias]
        sizes = [len(weight)] if ctx.has_bias else None
        stride, padding = [ctx.stride] * 2, [ctx.padding] * 2
        of_x, of_weight, of_bias = torch.ops.aten.convolution_backward(
            grad, x, weight, sizes, stride, padding, [1, 1], False, [0, 0], 1, wanted
        )
        return of_x, of_weight, of_bias, None, None
