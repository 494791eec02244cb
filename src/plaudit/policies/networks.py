"""Networks of policies, which learners train: an encoder of observations, and actors.

Images come as the store keeps them, uint8 [B, H, W, 3]; `permute` makes that channels-last memory without a copy, which
is also what convolutions like best.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from plaudit.types import Observation, Weights


@dataclass(frozen=True)
class Spaces:
    """What goes in and what comes out."""

    state_dim: int
    action_dim: int
    cameras: Mapping[str, tuple[int, int]]  # name -> (H, W); {} for a learner of states

    def fields(self) -> dict[str, Any]:
        """As the configs of policies have them."""
        return {"state_dim": self.state_dim, "action_dim": self.action_dim, "cameras": dict(self.cameras)}


@dataclass(frozen=True)
class Seen:
    """A batch of observations as tensors."""

    images: Mapping[str, Tensor]  # camera -> uint8 [B, H, W, 3]
    state: Tensor  # f32 [B, S]

    def __getitem__(self, rows: Tensor) -> "Seen":
        return Seen({c: images[rows] for c, images in self.images.items()}, self.state[rows])


def seen_of(observation: Observation, spaces: Spaces, device: torch.device) -> Seen:
    """The part of what N robots see that a learner looks at."""
    images = {camera: torch.from_numpy(observation.images[camera]).to(device) for camera in spaces.cameras}
    return Seen(images, torch.from_numpy(observation.state).to(device))


def weights_of(version: int, parts: Mapping[str, nn.Module]) -> Weights:
    """Components as plain arrays, "component/parameter" each."""
    named = {f"{part}/{name}": t for part, module in parts.items() for name, t in module.state_dict().items()}
    return Weights(version, {name: tensor.detach().cpu().numpy().copy() for name, tensor in named.items()})


class Linear(nn.Module):
    """As `nn.Linear`, by a plain matrix product: on ARM the fused kernel takes three times as long at these sizes."""

    def __init__(self, inputs: int, outputs: int, gain: float = 1.0):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs).uniform_(-gain, gain) / math.sqrt(inputs))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


def mlp(sizes: Sequence[int], activation: type[nn.Module], *, norm: bool = False) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [Linear(before, after), *([nn.LayerNorm(after)] if norm else []), activation()]
    return nn.Sequential(*layers)


class Encoder(nn.Module):
    """Observations to features: the state as it is, each camera through a small convolutional network."""

    def __init__(self, spaces: Spaces, features: int = 64):
        """features: that each camera is squeezed into"""
        super().__init__()
        self.spaces = spaces
        self.eyes = nn.ModuleDict({camera: _eye(size, features) for camera, size in sorted(spaces.cameras.items())})
        self.size = spaces.state_dim + features * len(self.eyes)

    def forward(self, seen: Seen) -> Tensor:
        """Features [B, size] of images as they are stored."""
        return self.normalized({camera: seen.images[camera].float() / 255 for camera in self.eyes}, seen.state)

    def normalized(self, images: Mapping[str, Tensor], state: Tensor) -> Tensor:
        """The same of images in [0, 1] and a state that a normaliser has seen, as policies have them."""
        if not self.eyes:
            return state
        looks = [eye(images[camera].permute(0, 3, 1, 2) - 0.5) for camera, eye in self.eyes.items()]
        return torch.cat([*looks, state], dim=1)


def _eye(size: tuple[int, int], features: int) -> nn.Module:
    channels, layers = 3, []
    height, width = size
    for out in (32, 32, 64, 64):
        layers += [nn.Conv2d(channels, out, 3, stride=2, padding=1), nn.ReLU()]
        channels, height, width = out, (height + 1) // 2, (width + 1) // 2
    return nn.Sequential(
        *layers, nn.Flatten(), Linear(channels * height * width, features), nn.LayerNorm(features), nn.Tanh()
    )


def random_shift(images: Tensor, generator: torch.Generator, pad: int = 4) -> Tensor:
    """Each image moved by up to `pad` pixels, its edge repeated (DrQ, arXiv 2004.13649): [B, H, W, C] to the same."""
    batch, height, width, _ = images.shape
    by = torch.randint(-pad, pad + 1, (batch, 2), generator=generator, device=generator.device).to(images.device)
    rows = (torch.arange(height, device=images.device) + by[:, :1]).clamp(0, height - 1)
    columns = (torch.arange(width, device=images.device) + by[:, 1:]).clamp(0, width - 1)
    each = torch.arange(batch, device=images.device)[:, None, None]
    return images[each, rows[:, :, None], columns[:, None, :]]


class TanhGaussian(nn.Module):
    """An actor whose actions lie in [-1, 1]: a Gaussian squeezed by tanh."""

    def __init__(self, features: int, action_dim: int, hidden: Sequence[int], log_std: tuple[float, float] = (-5, 2)):
        super().__init__()
        self.trunk = mlp([features, *hidden], nn.ReLU, norm=True)
        self.head = Linear(hidden[-1], 2 * action_dim)
        self.low, self.high = log_std

    def forward(self, features: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions [B, A] for standard normal noise [B, A], and the log of their density [B]."""
        mean, log_std = self.head(self.trunk(features)).chunk(2, dim=-1)
        log_std = log_std.clamp(self.low, self.high)
        raw = mean + log_std.exp() * noise
        log_density = (-0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)
        squeezed = (2 * (math.log(2) - raw - F.softplus(-2 * raw))).sum(-1)
        return raw.tanh(), log_density - squeezed

    def best(self, features: Tensor) -> Tensor:
        """The middle of the distribution."""
        return self.head(self.trunk(features)).chunk(2, dim=-1)[0].tanh()


def plain_actor(features: int, action_dim: int, hidden: Sequence[int]) -> nn.Sequential:
    """The middle of a plain Gaussian over actions, which begins near 0."""
    return nn.Sequential(mlp([features, *hidden], nn.Tanh), Linear(hidden[-1], action_dim, gain=0.01))
