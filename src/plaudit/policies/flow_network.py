"""The velocity of a flow: the direction in which noise moves to become actions.

A residual network over the whole chunk as one vector. Time and observation enter at each block as a scale and a
shift (as in DiT, arXiv 2212.09748). A transformer over actions was the other candidate: it uses each parameter once an
action, so that at 16 to 50 actions it costs that many times the arithmetic, on processors with a control tick to meet.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from plaudit.policies.networks import Linear

NUM_FREQUENCIES = 32  # of the time embedding


class VelocityNet(nn.Module):
    """v(chunk, tau, features)."""

    def __init__(self, features: int, horizon: int, action_dim: int, width: int, depth: int):
        super().__init__()
        self.time = nn.Sequential(Linear(2 * NUM_FREQUENCIES, width), nn.SiLU(), Linear(width, width))
        self.observation = nn.Sequential(Linear(features, width), nn.SiLU(), Linear(width, width))
        self.enter = Linear(horizon * action_dim, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.leave = nn.Sequential(nn.LayerNorm(width), Linear(width, horizon * action_dim, gain=0.0))

    def forward(self, actions: Tensor, tau: Tensor, features: Tensor) -> Tensor:
        """[B, H, A] at chunks [B, H, A] and times tau [B] between 0, noise, and 1, actions; features are [B, F].

        Leading axes broadcast: N chunks an observation, [B, N, H, A], go with features [B, 1, F] and one time [1], and
        what depends on these alone is worked out once.
        """
        condition = F.silu(self.time(time_embedding(tau)) + self.observation(features))
        x = self.enter(actions.flatten(-2))
        for block in self.blocks:
            x = block(x, condition)
        return self.leave(x).view_as(actions)


class Block(nn.Module):
    """A residual block, modulated by the condition."""

    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.modulate = Linear(width, 2 * width, gain=0.0)
        self.layers = nn.Sequential(Linear(width, 2 * width), nn.SiLU(), Linear(2 * width, width))

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """The velocity of a noisy chunk."""
        scale, shift = self.modulate(condition).chunk(2, dim=-1)
        return x + self.layers(self.norm(x) * (1 + scale) + shift)


def time_embedding(tau: Tensor) -> Tensor:
    """[B] -> [B, 2 * NUM_FREQUENCIES], sines and cosines of low to high frequency."""
    frequency = torch.logspace(0, math.log10(200), NUM_FREQUENCIES, device=tau.device)
    angle = tau[:, None] * frequency
    return torch.cat([angle.sin(), angle.cos()], dim=1)


def integrate(noise: Tensor, velocity: Callable[[Tensor, float], Tensor], steps: int) -> Tensor:
    """From noise to chunks of the same shape, by Euler; the velocity is that of chunks at a time tau."""
    chunks = noise
    for step in range(steps):
        chunks = chunks + velocity(chunks, step / steps) / steps
    return chunks


def matching_loss(
    velocity: VelocityNet, features: Tensor, chunks: Tensor, mask: Tensor, generator: torch.Generator
) -> Tensor:
    """Conditional flow matching of chunks [B, H, A]; where the mask [B, H] is False, actions do not count.

    At a random time tau on the straight line from noise e to actions a, the network is to predict the velocity a - e.
    """
    noise = torch.randn(chunks.shape, generator=generator, device=chunks.device)
    tau = torch.rand(len(chunks), generator=generator, device=chunks.device)
    along, counts = tau[:, None, None], mask[:, :, None]
    predicted = velocity(along * chunks + (1 - along) * noise, tau, features)
    error = (predicted - (chunks - noise)).square() * counts
    return error.sum() / (counts.sum() * chunks.shape[2])
