"""Steps that learners from replay take alike: plain functions, so that each algorithm's file has its own ideas only."""

from collections.abc import Callable, Mapping
from typing import Protocol

import torch
from torch import Tensor, nn

from plaudit.policies.networks import random_shift

# Told which parameters' gradients are about to be used, so that workers side by side can average theirs.
Sync = Callable[[list[nn.Parameter]], None]


class Pace(Protocol):
    """The part of a learner's config that says when it learns."""

    @property
    def updates_per_step(self) -> float: ...

    @property
    def start_after(self) -> int: ...


def earned_updates(pace: Pace, steps: int) -> float:
    """Updates that so many steps of the robot have earned; those before `start_after` earn none, then or later."""
    return pace.updates_per_step * max(0, steps - pace.start_after)


def descend(optimizer: torch.optim.Optimizer, loss: Tensor, sync: Sync | None) -> None:
    """One step down the gradient of what this optimizer has; other networks that the loss went through get none."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    optimizer.zero_grad()
    loss.backward(inputs=parameters)
    if sync is not None:
        sync(parameters)
    optimizer.step()


def follow(slow: nn.Module, fast: nn.Module, tau: float) -> None:
    """A target moves a little towards what it is the target of."""
    with torch.no_grad():
        for mine, theirs in zip(slow.parameters(), fast.parameters(), strict=True):
            mine.lerp_(theirs, tau)


def shifted(images: Mapping[str, Tensor], rng: torch.Generator, pad: int) -> Mapping[str, Tensor]:
    """Each image moved at random by up to `pad` pixels; 0 for none."""
    return {camera: random_shift(image, rng, pad) for camera, image in images.items()} if pad else images


def few(asked: int, critics: int, rng: torch.Generator) -> Tensor | None:
    """Which of an ensemble's critics a target asks: a random few, or all (None)."""
    return None if asked == critics else torch.randperm(critics, generator=rng, device=rng.device)[:asked]
