"""Proximal policy optimisation (arXiv 1707.06347), for simulators that make more episodes than a learner needs.

One update takes one round of episodes: values of all observations, advantages by GAE (1506.02438), then a few epochs of
minibatches under the clipped objective. An episode that ran out of time goes on in the value of its last
observation; one that ended does not. Actions are drawn from a plain Gaussian, and the robot clips them. Settings are
near those ManiSkill's PickCube is run with; the details follow "The 37 implementation details of PPO".
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor, nn

from plaudit.checkpoint import load_checkpoint, save_checkpoint
from plaudit.config import Config
from plaudit.policies.gaussian.config import ActorConfig, GaussianConfig
from plaudit.policies.networks import (
    Encoder,
    Linear,
    Seen,
    Spaces,
    mlp,
    plain_actor,
    random_shift,
    seen_of,
    weights_of,
)
from plaudit.rollout.rounds import Act, Round
from plaudit.types import Batch, FloatArray, Observation, Weights


class PpoConfig(Config):
    type: Literal["ppo"] = "ppo"
    gamma: float = Field(default=0.9, ge=0, le=1)  # discount of a step
    gae_lambda: float = Field(default=0.9, ge=0, le=1)
    lr: PositiveFloat = 1e-3
    clip: PositiveFloat = 0.2  # how far the ratio of probabilities may move
    epochs: PositiveInt = 8  # over each round
    minibatches: PositiveInt = 16  # of each epoch
    value_weight: PositiveFloat = 0.5
    entropy_weight: float = Field(default=0.0, ge=0)
    grad_clip: PositiveFloat = 0.5
    target_kl: PositiveFloat | None = 0.1  # an update stops when the policy has moved this far; None: never
    hidden: tuple[PositiveInt, ...] = (128, 128)
    log_std: float = -0.5  # of the actions, at the start
    clone_updates: NonNegativeInt = 2000  # batches of demonstrations, where there are some, before the first round
    clone_batch_size: PositiveInt = 256
    # Rounds after cloning from which only the value learns: with one that knows nothing every advantage is noise, and
    # a few updates of noise undo what was cloned.
    value_rounds: NonNegativeInt = 2
    # Pixels by which images of demonstrations are moved at random. Those of a round are not: it would change the
    # densities that the old ones are compared with, and undo in a few updates what was learned.
    shift: int = Field(default=4, ge=0)

    def build(self, spaces: Spaces, seed: int, device: str) -> "Ppo":
        return Ppo(self, spaces, seed, device)


class ActorCritic(nn.Module):
    """A Gaussian policy and a value that share nothing: a value that has yet to learn would spoil the eye of a policy
    that learned from demonstrations."""

    def __init__(self, spaces: Spaces, hidden: tuple[int, ...], log_std: float):
        super().__init__()
        self.eye = Encoder(spaces)
        self.pi = plain_actor(self.eye.size, spaces.action_dim, hidden)
        self.value_eye = Encoder(spaces)
        self.v = nn.Sequential(mlp([self.eye.size, *hidden], nn.Tanh), Linear(hidden[-1], 1))
        self.log_std = nn.Parameter(torch.full((spaces.action_dim,), log_std))
        # Whether demonstrations were cloned. Among the tensors, so that every checkpoint has it.
        self.cloned = nn.Buffer(torch.tensor(False))

    def forward(self, seen: Seen, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Log density of actions [B, A] and value, [B] each."""
        z = (actions - self.pi(self.eye(seen))) / self.log_std.exp()
        log_density = (-0.5 * z.square() - self.log_std - 0.5 * math.log(2 * math.pi)).sum(-1)
        return log_density, self.v(self.value_eye(seen)).squeeze(-1)


class Ppo:
    """A `Learner` of rounds."""

    def __init__(self, config: PpoConfig, spaces: Spaces, seed: int = 0, device: str = "cpu"):
        self.config, self.spaces, self.device = config, spaces, torch.device(device)
        self.version = 0
        self.rng = torch.Generator(device).manual_seed(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.net = ActorCritic(spaces, config.hidden, config.log_std).to(self.device)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=config.lr, eps=1e-5, fused=True)
        self.optimizers = {"all": self.optimizer}

    def acting(self, *, explore: bool) -> Act:
        """For one round of episodes."""
        return partial(self.act, explore=explore)

    def act(self, observation: Observation, *, explore: bool) -> FloatArray:
        """Actions [N, A] for N observations."""
        with torch.inference_mode():
            mean = self.net.pi(self.net.eye(seen_of(observation, self.spaces, self.device)))
            if explore:
                noise = torch.randn(mean.shape, generator=self.rng, device=self.device)
                mean = mean + self.net.log_std.exp() * noise
        return mean.cpu().numpy()

    def update(self, played: Round) -> Mapping[str, float]:
        """Learn from one round of episodes, once."""
        self.version += 1
        data = self._prepare(played)
        acting = not bool(self.net.cloned) or self.version > self.config.value_rounds
        seen: list[dict[str, Tensor]] = []
        for rows in self._minibatches(len(data.returns)):
            seen.append(self._step(data, rows, acting))
            if self.config.target_kl is not None and float(seen[-1]["policy/kl"]) > self.config.target_kl:
                break
        means = {name: float(torch.stack([metrics[name] for metrics in seen]).mean()) for name in seen[0]}
        return {**means, "policy/std": float(self.net.log_std.detach().exp().mean()), "policy/minibatches": len(seen)}

    def clone(self, batch: Batch[Tensor]) -> float:
        """One step towards the actions of a demonstration, which is how a sparse reward is found at all; the loss."""
        seen = Seen({c: self._moved(batch.images[c]) for c in self.spaces.cameras}, batch.state)
        self.net.cloned.fill_(True)
        density, _ = self.net(seen, batch.actions.clamp(-1, 1))
        loss = -density.mean()
        self._descend(loss)
        return float(loss.detach())

    def _moved(self, images: Tensor) -> Tensor:
        return random_shift(images, self.rng, self.config.shift) if self.config.shift else images

    def _descend(self, loss: Tensor) -> None:
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), self.config.grad_clip)
        self.optimizer.step()

    def _minibatches(self, count: int) -> Iterator[Tensor]:
        for _ in range(self.config.epochs):
            order = torch.randperm(count, generator=self.rng, device=self.device)
            yield from order.chunk(self.config.minibatches)

    def weights(self) -> Weights:
        """The policy's, as a robot needs them."""
        return weights_of(self.version, {"eye": self.net.eye, "actor": self.net.pi})

    def policy_config(self) -> GaussianConfig:
        """What a robot builds to act with these weights."""
        actor = ActorConfig(kind="plain", hidden=self.config.hidden)
        return GaussianConfig(**self.spaces.fields(), actor=actor)

    def save(self, path: str) -> None:
        save_checkpoint(Path(path), self, {})

    def load(self, path: str) -> None:
        load_checkpoint(Path(path), self)

    def _prepare(self, played: Round) -> "_Data":
        """Values, advantages and old densities of every step, in one pass over the round."""
        steps = len(played.reward)
        state = torch.from_numpy(played.state).to(self.device)
        images = {c: torch.from_numpy(played.images[c]).to(self.device) for c in self.spaces.cameras}
        actions = torch.from_numpy(played.actions).to(self.device)
        with torch.no_grad():
            looks = []
            for t in range(steps + 1):
                seen = Seen({c: i[t] for c, i in images.items()}, state[t])
                looks.append(self.net(seen, actions[min(t, steps - 1)]))
            density, values = (torch.stack(parts) for parts in zip(*looks, strict=True))
        advantages = gae(played, values.cpu().numpy(), self.config.gamma, self.config.gae_lambda)
        valid = torch.from_numpy(played.valid).to(self.device)
        advantage = torch.from_numpy(advantages).to(self.device)[valid]
        return _Data(
            seen=Seen({c: i[:-1][valid] for c, i in images.items()}, state[:-1][valid]),
            actions=actions[valid],
            density=density[:-1][valid],
            advantage=advantage,
            returns=advantage + values[:-1][valid],
        )

    def _step(self, data: "_Data", rows: Tensor, acting: bool) -> dict[str, Tensor]:
        """acting: whether the policy learns too, or the value alone. What it returns stays on the device: to ask for a
        number is to wait for the GPU."""
        config = self.config
        seen = data.seen[rows]
        density, value = self.net(seen, data.actions[rows])
        log_ratio = density - data.density[rows]
        ratio = log_ratio.exp()
        advantage = data.advantage[rows]
        advantage = (advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-8)
        clipped = ratio.clamp(1 - config.clip, 1 + config.clip)
        policy_loss = -torch.minimum(ratio * advantage, clipped * advantage).mean()
        value_loss = 0.5 * (value - data.returns[rows]).square().mean()
        entropy = self.net.log_std.sum() + 0.5 * math.log(2 * math.pi * math.e) * self.spaces.action_dim
        loss = config.value_weight * value_loss
        if acting:
            loss = loss + policy_loss - config.entropy_weight * entropy
        self._descend(loss)
        with torch.no_grad():
            kl = (ratio - 1 - log_ratio).mean()
            clip_share = ((ratio - 1).abs() > config.clip).float().mean()
        named = {"loss/policy": policy_loss, "loss/value": value_loss, "policy/kl": kl, "policy/clipped": clip_share}
        return {name: number.detach() for name, number in named.items()}


@dataclass(frozen=True)
class _Data:
    """Every step of a round that counts, as tensors."""

    seen: Seen
    actions: Tensor  # [M, A]
    density: Tensor  # [M] log density when it was drawn
    advantage: Tensor  # [M]
    returns: Tensor  # [M]


def gae(played: Round, values: FloatArray, gamma: float, lam: float) -> FloatArray:
    """Advantages [T, N] from values [T+1, N]: sums of (gamma * lam)^k * td error, up to where each episode ends."""
    steps, count = played.reward.shape
    last = np.arange(steps)[:, None] == played.length - 1
    goes_on = ~(last & played.terminated)
    error = played.reward + gamma * values[1:] * goes_on - values[:-1]
    advantages = np.zeros((steps, count), np.float32)
    running = np.zeros(count, np.float32)
    for t in reversed(range(steps)):
        running = error[t] + gamma * lam * running * ~last[t]
        running = np.where(t < played.length, running, 0.0)
        advantages[t] = running
    return advantages
