"""Q-chunking (QC, arXiv 2507.07969): reinforcement learning over chunks of h actions, from sparse rewards and demos.

    behaviour   a flow clones what is in replay, good and bad: chunks of actions that belong together, as they were done
    critics     Q(s, a_1..a_h) of whole chunks; the backup skips h steps, and is unbiased because a chunk is executed to
                its end without another look:  target = r_1 + .. + gamma^(h-1) r_h + gamma^h Q'(s_h, best of N)
    policy      best of N: draw N chunks, execute the one that the critics value most, here and in the target

Nothing is ever asked of a policy's gradient: improving is choosing. A window that the time limit cut is no whole
chunk, and no critic learns from it; one in which the episode ended is, whatever its last actions would have been.
As RLPD does, each batch mixes demonstrations and the robot's own experience, critics have LayerNorm.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

import torch
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator
from torch import Tensor, nn

from plaudit.checkpoint import load_checkpoint, save_checkpoint
from plaudit.config import Config
from plaudit.errors import DataError
from plaudit.learners.steps import Sync, descend, few, follow, shifted
from plaudit.policies.critics import Critics
from plaudit.policies.flow.config import VelocityConfig
from plaudit.policies.flow.network import Velocity, integrate, matching_loss
from plaudit.policies.networks import Encoder, Seen, Spaces, seen_of, weights_of
from plaudit.policies.qchunk.config import CriticConfig, QChunkPolicyConfig
from plaudit.policies.qchunk.policy import best_of, clipped
from plaudit.rollout.rounds import Act
from plaudit.types import Batch, FloatArray, Observation, Weights

COUNTED = 0  # seed of the noise in rounds that are played to be counted: two of them differ in nothing but the weights


class QChunkConfig(Config):
    type: Literal["qchunk"] = "qchunk"
    horizon: PositiveInt = 5  # actions of a chunk, h above
    samples: PositiveInt = 8  # chunks to choose from, N above
    flow_steps: PositiveInt = 5  # of Euler, from noise to actions
    velocity: VelocityConfig = VelocityConfig(width=64, depth=2)
    gamma: float = Field(default=0.95, ge=0, le=1)  # discount of a step
    lr: PositiveFloat = 2e-3
    tau: float = Field(default=0.01, gt=0, le=1)  # how far the target critics move to the critics at each update
    batch_size: PositiveInt = 128
    hidden: tuple[PositiveInt, ...] = (128, 128)  # of the critics
    critics: PositiveInt = 2  # in the ensemble
    critics_in_target: PositiveInt = 2  # drawn anew for each target, the least counts
    updates_per_step: PositiveFloat = 0.25  # the update-to-data ratio
    start_after: NonNegativeInt = 0  # steps that earn no update; `train` acts at random meanwhile, as the flow does too
    clone_updates: NonNegativeInt = 200  # with demonstrations alone, where there are some, before the first episode
    demo_share: float = Field(default=0.5, ge=0, le=1)  # of each batch, when there are demonstrations
    shift: NonNegativeInt = 4  # pixels by which images are moved at random; 0 for none

    @model_validator(mode="after")
    def _targets_ask_critics_that_are_there(self) -> Self:
        if self.critics_in_target > self.critics:
            raise ValueError(f"critics_in_target is {self.critics_in_target}, but there are {self.critics} critics")
        return self

    def build(self, spaces: Spaces, seed: int, device: str) -> "QChunk":
        return QChunk(self, spaces, seed, device)


class QChunkNet(nn.Module):
    """Everything that learns. The flow and the critics look at images with eyes of their own."""

    def __init__(self, spaces: Spaces, config: QChunkConfig):
        super().__init__()
        self.eye, self.critic_eye, self.target_eye = (Encoder(spaces) for _ in range(3))
        size, horizon, actions = self.eye.size, config.horizon, spaces.action_dim
        self.velocity = Velocity(size, horizon, actions, config.velocity.width, config.velocity.depth)
        inputs = size + horizon * actions
        self.critic, self.target = (Critics(config.critics, inputs, config.hidden) for _ in range(2))
        self.target.load_state_dict(self.critic.state_dict())
        self.target_eye.load_state_dict(self.critic_eye.state_dict())


class QChunk:
    """A `Learner` of batches from replay: windows of h actions and the sum of their rewards."""

    def __init__(self, config: QChunkConfig, spaces: Spaces, seed: int = 0, device: str = "cpu"):
        self.config, self.spaces, self.seed, self.device = config, spaces, seed, torch.device(device)
        self.version = 0
        self.sync: Sync | None = None
        self.rng = torch.Generator(device).manual_seed(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.net = QChunkNet(spaces, config).to(self.device)
        self.optimizers = {
            "critic": self._adam(self.net.critic_eye, self.net.critic),
            "flow": self._adam(self.net.eye, self.net.velocity),
        }

    def _adam(self, *parts: nn.Module) -> torch.optim.Adam:
        return torch.optim.Adam([p for part in parts for p in part.parameters()], lr=self.config.lr, fused=True)

    @property
    def clone_updates(self) -> int:
        return self.config.clone_updates

    @property
    def replay_options(self) -> dict[str, Any]:
        """What `Replay` has to know to make the batches that `update` takes."""
        horizon, cameras = self.config.horizon, tuple(self.spaces.cameras)
        return {"gamma": self.config.gamma, "n_step": horizon, "horizon": horizon, "cameras": cameras}

    def acting(self, *, explore: bool) -> Act:
        """For one round of episodes: a look and a plan every h steps, in between what was planned.

        What explores is that chunks are drawn, so both ways are the same but for where the noise comes from.
        """
        rng = self.rng if explore else torch.Generator(self.device).manual_seed(COUNTED)
        planned: list[FloatArray] = []  # [N, A] each

        def act(observation: Observation) -> FloatArray:
            if not planned:
                planned.extend(self.plan(observation, rng).swapaxes(0, 1))
            return planned.pop(0)

        return act

    def plan(self, observation: Observation, rng: torch.Generator) -> FloatArray:
        """Chunks [N, H, A] for N observations."""
        with torch.inference_mode():
            return self._best(seen_of(observation, self.spaces, self.device), rng).cpu().numpy()

    def _best(self, seen: Seen, rng: torch.Generator) -> Tensor:
        """For each of B observations the best of N chunks, [B, H, A]."""
        features = self.net.eye(seen)[:, None]
        shape = (len(features), self.config.samples, self.config.horizon, self.spaces.action_dim)
        noise = torch.randn(shape, generator=rng, device=self.device)
        at = lambda tau: torch.full((1,), tau, device=self.device)  # noqa: E731
        chunks = integrate(noise, lambda a, tau: self.net.velocity(a, at(tau), features), self.config.flow_steps)
        return best_of(self.net.critic, self.net.critic_eye(seen), chunks)

    def update(self, batch: Batch[Tensor]) -> Mapping[str, Tensor]:
        """One step of the critics and one of the flow.

        What it returns stays on the device: to ask for a number is to wait for the GPU.
        """
        self._check(batch)
        self.version += 1
        seen = Seen(shifted(batch.images, self.rng, self.config.shift), batch.state)
        after = Seen(shifted(batch.next_images, self.rng, self.config.shift), batch.next_state)
        critic_loss, value = self._critic_loss(batch, seen, after)
        descend(self.optimizers["critic"], critic_loss, self.sync)
        flow_loss = matching_loss(
            self.net.velocity, self.net.eye(seen), clipped(batch.actions), batch.action_mask, self.rng
        )
        descend(self.optimizers["flow"], flow_loss, self.sync)
        follow(self.net.target, self.net.critic, self.config.tau)
        follow(self.net.target_eye, self.net.critic_eye, self.config.tau)
        metrics = {"loss/critic": critic_loss, "loss/flow": flow_loss, "value/mean": value}
        return {name: number.detach() for name, number in metrics.items()}

    def _critic_loss(self, batch: Batch[Tensor], seen: Seen, after: Seen) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            chunks = self._best(after, self.rng).flatten(1)
            asked = few(self.config.critics_in_target, self.config.critics, self.rng)
            values = self.net.target(self.net.target_eye(after), chunks, asked)
            target = batch.reward + batch.discount * values.amin(dim=0)
            whole = (batch.action_mask[:, -1] | (batch.discount == 0)).float()  # to its end, or the episode's
        values = self.net.critic(self.net.critic_eye(seen), clipped(batch.actions).flatten(1))
        off = ((values - target).square() * whole).sum(dim=1) / whole.sum().clamp(min=1)
        return off.sum(), values.detach().mean()

    def _check(self, batch: Batch[Tensor]) -> None:
        wanted, found = [self.config.horizon, self.spaces.action_dim], list(batch.actions.shape[1:])
        if found != wanted:
            raise DataError(
                f"this learner takes windows of {wanted} actions, the batch has {found}; make the replay with its "
                "replay_options"
            )

    @property
    def components(self) -> dict[str, nn.Module]:
        """What a robot needs of it: the flow and the critics."""
        net = self.net
        return {"eye": net.eye, "velocity": net.velocity, "critic_eye": net.critic_eye, "critic": net.critic}

    def weights(self) -> Weights:
        return weights_of(self.version, self.components)

    def policy_config(self, *, explore: bool = False) -> QChunkPolicyConfig:
        """What a robot builds to act with these weights; it explores by drawing, in any case.

        explore: with noise of the run's own, not that of rounds that are played to be counted
        """
        config = self.config
        return QChunkPolicyConfig(
            **self.spaces.fields(),
            seed=self.seed if explore else COUNTED,
            horizon=config.horizon,
            velocity=config.velocity,
            critic=CriticConfig(count=config.critics, hidden=config.hidden),
            samples=config.samples,
            steps=config.flow_steps,
        )

    def save(self, path: str) -> None:
        save_checkpoint(Path(path), self, {})

    def load(self, path: str) -> None:
        load_checkpoint(Path(path), self)
