"""Soft actor-critic for robots that have demonstrations: SAC (arXiv 1812.05905) as RLPD (2302.02948) runs it.

What RLPD changes, and where to find it below: each batch is half demonstrations, half the robot's own experience
(`Replay.mix` made it); critics have LayerNorm, which keeps them from dreaming beyond the data (`Critics`); the target
is the least of a random few out of an ensemble (`_critic_loss`); several critic steps follow each step of the robot
(`updates_per_step`, the run's loop counts). As in HIL-SERL (2410.21845), the entropy is not part of the
target. Reward and end come from the labels alone: `target = reward + discount * value`.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

import torch
from pydantic import Field, PositiveFloat, PositiveInt, model_validator
from torch import Tensor, nn

from plaudit.checkpoint import load_checkpoint, save_checkpoint
from plaudit.config import Config
from plaudit.learners.steps import Sync, descend, few, follow, shifted
from plaudit.policies.critics import Critics
from plaudit.policies.gaussian.config import ActorConfig, GaussianConfig
from plaudit.policies.networks import Encoder, Seen, Spaces, TanhGaussian, seen_of, weights_of
from plaudit.rollout.rounds import Act
from plaudit.types import Batch, FloatArray, Observation, Weights


class SacConfig(Config):
    type: Literal["sac"] = "sac"
    gamma: float = Field(default=0.95, ge=0, le=1)  # discount of a step; tasks here take 15 to 50
    lr: PositiveFloat = 1e-3
    n_step: PositiveInt = 1  # rewards summed up before a critic is asked
    tau: float = Field(default=0.005, gt=0, le=1)  # how far the target critics move to the critics at each update
    batch_size: PositiveInt = 256
    hidden: tuple[PositiveInt, ...] = (128, 128)
    critics: PositiveInt = 2  # in the ensemble
    critics_in_target: PositiveInt = (
        1  # drawn anew for each target, the least counts; 1 is quickest with sparse rewards
    )
    updates_per_step: PositiveFloat = 0.5  # the update-to-data ratio: critic updates a step of the robot
    actor_every: PositiveInt = 2  # critic updates to one of the actor
    temperature: PositiveFloat = 0.01  # at the start; it then follows the target entropy
    target_entropy: float | None = None  # None: minus half the number of actions
    start_after: int = Field(default=100, ge=0)  # steps that earn no update; `train` acts at random meanwhile
    demo_share: float = Field(default=0.5, ge=0, le=1)  # of each batch, when there are demonstrations
    shift: int = Field(default=4, ge=0)  # pixels by which images are moved at random; 0 for none

    @model_validator(mode="after")
    def _targets_ask_critics_that_are_there(self) -> Self:
        if self.critics_in_target > self.critics:
            raise ValueError(f"critics_in_target is {self.critics_in_target}, but there are {self.critics} critics")
        return self

    @property
    def horizon(self) -> int:
        """Actions that its policy says at a time."""
        return 1

    def build(self, spaces: Spaces, seed: int, device: str) -> "Sac":
        return Sac(self, spaces, seed, device)


class SacNet(nn.Module):
    """Everything that learns. Actor and critics look at images with eyes of their own."""

    def __init__(self, spaces: Spaces, config: SacConfig):
        super().__init__()
        self.actor_eye, self.critic_eye, self.target_eye = (Encoder(spaces) for _ in range(3))
        size, actions = self.actor_eye.size, spaces.action_dim
        self.actor = TanhGaussian(size, actions, config.hidden)
        self.critic, self.target = (Critics(config.critics, size + actions, config.hidden) for _ in range(2))
        self.log_temperature = nn.Parameter(torch.tensor(config.temperature).log())
        self.target.load_state_dict(self.critic.state_dict())
        self.target_eye.load_state_dict(self.critic_eye.state_dict())


class Sac:
    """A `Learner` of batches from replay."""

    clone_updates = 0  # with demonstrations alone, before the first episode: RLPD needs none

    def __init__(self, config: SacConfig, spaces: Spaces, seed: int = 0, device: str = "cpu"):
        self.config, self.spaces, self.seed, self.device = config, spaces, seed, torch.device(device)
        self.version = 0
        self.sync: Sync | None = None
        self.rng = torch.Generator(device).manual_seed(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.net = SacNet(spaces, config).to(self.device)
        self.target_entropy = config.target_entropy if config.target_entropy is not None else -spaces.action_dim / 2
        self.optimizers = {
            "critic": self._adam(self.net.critic_eye, self.net.critic),
            "actor": self._adam(self.net.actor_eye, self.net.actor),
            "temperature": torch.optim.Adam([self.net.log_temperature], lr=config.lr),
        }

    def _adam(self, *parts: nn.Module) -> torch.optim.Adam:
        return torch.optim.Adam([p for part in parts for p in part.parameters()], lr=self.config.lr, fused=True)

    @property
    def replay_options(self) -> dict[str, Any]:
        """What `Replay` has to know to make the batches that `update` takes."""
        cameras = tuple(self.spaces.cameras)
        return {"gamma": self.config.gamma, "n_step": self.config.n_step, "cameras": cameras}

    def acting(self, *, explore: bool) -> Act:
        """For one round of episodes."""
        return partial(self.act, explore=explore)

    def act(self, observation: Observation, *, explore: bool) -> FloatArray:
        """Actions [N, A] for N observations."""
        with torch.inference_mode():
            features = self.net.actor_eye(seen_of(observation, self.spaces, self.device))
            actions = (
                self.net.actor(features, self._noise(len(features)))[0] if explore else self.net.actor.best(features)
            )
        return actions.cpu().numpy()

    def update(self, batch: Batch[Tensor]) -> Mapping[str, Tensor]:
        """One step of the critics and, every so often, of actor and temperature.

        What it returns stays on the device: to ask for a number is to wait for the GPU.
        """
        self.version += 1
        seen = Seen(shifted(batch.images, self.rng, self.config.shift), batch.state)
        after = Seen(shifted(batch.next_images, self.rng, self.config.shift), batch.next_state)
        critic_loss, value = self._critic_loss(batch, seen, after)
        descend(self.optimizers["critic"], critic_loss, self.sync)
        metrics = {"loss/critic": critic_loss, "value/mean": value}
        if self.version % self.config.actor_every == 0:
            actor_loss, entropy = self._actor_loss(seen)
            descend(self.optimizers["actor"], actor_loss, self.sync)
            temperature_loss = self.net.log_temperature.exp() * (entropy - self.target_entropy).detach()
            descend(self.optimizers["temperature"], temperature_loss, self.sync)
            metrics |= {"loss/actor": actor_loss, "policy/entropy": entropy}
            metrics |= {"policy/temperature": self.net.log_temperature.exp()}
        follow(self.net.target, self.net.critic, self.config.tau)
        follow(self.net.target_eye, self.net.critic_eye, self.config.tau)
        return {name: number.detach() for name, number in metrics.items()}

    def _critic_loss(self, batch: Batch[Tensor], seen: Seen, after: Seen) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            actions, _ = self.net.actor(self.net.actor_eye(after), self._noise(len(batch.reward)))
            asked = few(self.config.critics_in_target, self.config.critics, self.rng)
            values = self.net.target(self.net.target_eye(after), actions, asked)
            target = batch.reward + batch.discount * values.amin(dim=0)
        values = self.net.critic(self.net.critic_eye(seen), batch.actions.clamp(-1, 1))
        return (values - target).square().mean(dim=1).sum(), values.detach().mean()

    def _actor_loss(self, seen: Seen) -> tuple[Tensor, Tensor]:
        actions, log_density = self.net.actor(self.net.actor_eye(seen), self._noise(len(seen.state)))
        with torch.no_grad():
            features = self.net.critic_eye(seen)
        value = self.net.critic(features, actions).mean(dim=0)
        temperature = self.net.log_temperature.exp().detach()
        return (temperature * log_density - value).mean(), -log_density.detach().mean()

    @property
    def components(self) -> dict[str, nn.Module]:
        """What a robot needs of it."""
        return {"eye": self.net.actor_eye, "actor": self.net.actor}

    def weights(self) -> Weights:
        return weights_of(self.version, self.components)

    def policy_config(self, *, explore: bool = False) -> GaussianConfig:
        """What a robot builds to act with these weights."""
        actor = ActorConfig(kind="squashed", hidden=self.config.hidden)
        seed = self.seed if explore else 0  # of the noise
        return GaussianConfig(**self.spaces.fields(), actor=actor, explore=explore, seed=seed)

    def save(self, path: str) -> None:
        save_checkpoint(Path(path), self, {})

    def load(self, path: str) -> None:
        load_checkpoint(Path(path), self)

    def _noise(self, count: int) -> Tensor:
        return torch.randn(count, self.spaces.action_dim, generator=self.rng, device=self.device)
