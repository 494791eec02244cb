"""The half of a Qwen3-VL that sees: frames to features, all frames of one size together.

The weights are transformers' own, the mathematics too; the order of work is ours. Its attention goes through the images
one by one, 50 frames times 27 blocks of tiny kernels, and its patches through a 3-D convolution; here both are one
product of matrices for hundreds of frames.
"""

import math
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from plaudit.judges.vlm.attention import Attend
from plaudit.judges.vlm.images import MERGE, PATCH, patches

AT_ONCE = 256  # the most frames that go through together: products are large enough, and memory stays small


class Linear(NamedTuple):
    weight: Tensor
    bias: Tensor


class Block(NamedTuple):
    """Weights of one block."""

    norm1: Linear
    qkv: Linear
    proj: Linear
    norm2: Linear
    up: Linear
    down: Linear


class Features(NamedTuple):
    """Of n tokens."""

    first: Tensor  # [n, D] what stands in for their embeddings
    deep: list[Tensor]  # [n, D] each, what is added after the first decoder layers


class Vision:
    def __init__(self, visual: Any, attend: Attend, compiled: bool):
        """visual: a `Qwen3VLVisionModel`"""
        self._visual, self._attend = visual, attend
        self._heads: int = visual.config.num_heads
        self._blocks = [_block(block) for block in visual.blocks]
        self._deep = dict(zip(visual.config.deepstack_visual_indexes, visual.deepstack_merger_list, strict=True))
        self._run = torch.compile(run_block) if compiled else run_block
        self._where = lru_cache(maxsize=16)(self._embed)

    def __call__(self, frames: Tensor) -> Features:
        """uint8 [N, h, w, 3], edges in whole tokens."""
        seen = [self._see(part) for part in frames.tensor_split(math.ceil(len(frames) / AT_ONCE))]
        deep = [torch.cat(parts) for parts in zip(*(features.deep for features in seen), strict=True)]
        return Features(torch.cat([features.first for features in seen]), deep)

    def _see(self, frames: Tensor) -> Features:
        kernel = self._visual.patch_embed.proj
        place, cos, sin = self._where(frames.shape[1] // PATCH, frames.shape[2] // PATCH)
        x = F.linear(patches(frames, kernel.weight.dtype), kernel.weight.flatten(1), kernel.bias) + place
        deep = []
        for number, block in enumerate(self._blocks):
            x = self._run(x, cos, sin, block, self._heads, self._attend)
            if number in self._deep:
                deep.append(self._deep[number](x.flatten(0, 1)))
        return Features(self._visual.merger(x.flatten(0, 1)), deep)

    def _embed(self, rows: int, columns: int) -> tuple[Tensor, Tensor, Tensor]:
        """Where each patch is: the learned grid stretched to the image [P, D], and the angles of rotation [P, 1, d]."""
        grid = self._visual.pos_embed.weight
        side = int(len(grid) ** 0.5)
        learned = grid.T.reshape(1, -1, side, side).float()
        place = F.interpolate(learned, (rows, columns), mode="bilinear", align_corners=True)[0].flatten(1).T
        frequencies = self._visual.rotary_pos_emb.inv_freq.to(grid.device, torch.float32)
        y, x = (axis.flatten() for axis in torch.meshgrid(*map(torch.arange, (rows, columns)), indexing="ij"))
        angles = torch.cat([axis.to(grid.device)[:, None] * frequencies for axis in (y, x)], dim=1).repeat(1, 2)
        order = torch.arange(rows * columns, device=grid.device).view(rows // MERGE, MERGE, columns // MERGE, MERGE)
        order = order.transpose(1, 2).flatten()  # the patches of a token come together
        return place[order].to(grid.dtype), angles.cos()[order, None], angles.sin()[order, None]


def run_block(x: Tensor, cos: Tensor, sin: Tensor, block: Block, heads: int, attend: Attend) -> Tensor:
    """[N, P, D]; every patch of a frame sees all others of it."""
    normed = F.layer_norm(x, x.shape[-1:], *block.norm1, eps=1e-6)
    q, k, v = F.linear(normed, *block.qkv).unflatten(2, (3, heads, -1)).unbind(2)
    x = x + F.linear(attend(turned(q, cos, sin), turned(k, cos, sin), v, False).flatten(2), *block.proj)
    normed = F.layer_norm(x, x.shape[-1:], *block.norm2, eps=1e-6)
    return x + F.linear(F.gelu(F.linear(normed, *block.up), approximate="tanh"), *block.down)


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions, in the precision of the angles."""
    one, other = x.chunk(2, dim=-1)
    return (x * cos + torch.cat([-other, one], dim=-1) * sin).to(x.dtype)


def _block(block: Any) -> Block:
    modules = (block.norm1, block.attn.qkv, block.attn.proj, block.norm2, block.mlp.linear_fc1, block.mlp.linear_fc2)
    return Block(*(Linear(module.weight, module.bias) for module in modules))
