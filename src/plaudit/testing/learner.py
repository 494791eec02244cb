"""A learner whose policy is one vector: the mean of its two actions, pulled towards what was rewarded.

It improves on the task, and learns to press the button where the judge pays for that. Every batch that it is given is
shown to the world first, which compares it with what should have been paid. The real learners take part too, with small
networks (`SMALL`), and so does a small image encoder.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar
from unittest.mock import patch

import numpy as np
import torch
from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor, nn

from plaudit.config import Seed
from plaudit.data.normalize import ACTION, Normalizer, Stats
from plaudit.encoders import PretrainedConfig, SmallEncoder
from plaudit.learners.base import LearnerBase
from plaudit.learners.config import LearnerConfig, OffPolicyConfig
from plaudit.learners.dagger import Dagger
from plaudit.learners.dsrl import Dsrl
from plaudit.learners.expo import Expo
from plaudit.learners.ppo import Ppo
from plaudit.learners.qchunk import QChunk
from plaudit.learners.sac import Sac
from plaudit.learners.steer import Steer
from plaudit.learners.weighted_bc import WeightedBC
from plaudit.policies.config import FlowConfig, PolicyConfig, VelocityNetConfig
from plaudit.policies.flow import FlowPolicy
from plaudit.policies.loader import save_policy
from plaudit.policies.networks import load_components, seeded, weights_of
from plaudit.rollout.vector import ActFn, RolloutBatch
from plaudit.testing.world import world
from plaudit.types import Batch, FloatArray, Observation, PolicyWeights

NOISE, RATE = 0.5, 0.05
# As `learner=` names them: by their paths, since names are for what users may choose.
OFF_POLICY = "plaudit.testing.learner:SimulatedLearnerConfig"
ON_POLICY = "plaudit.testing.learner:SimulatedOnPolicyConfig"
ENCODER = "plaudit.testing.learner:SimulatedEncoderConfig"
_CHUNKS = {"horizon": 2, "velocity_net.width": 8, "velocity_net.depth": 1, "pretrain_updates": 5, "batch_size": 8}
_FROM_BASE = {"hidden_dims": [8], "batch_size": 8, "random_steps": 10}
_CRITICS = {"hidden_dims": [8], "resets.relearn_updates": 3}
SMALL: Mapping[str, Mapping[str, Any]] = {  # settings of the real learners, so that an update takes milliseconds
    "sac": {**_CRITICS, "batch_size": 8, "random_steps": 10},
    "qchunk": {**_CRITICS, "num_samples": 2, **_CHUNKS},
    "dagger": _CHUNKS,
    "ppo": {"hidden_dims": [8], "update_epochs": 2, "pretrain_updates": 5, "pretrain_batch_size": 8},
    "weighted_bc": _FROM_BASE,
    "expo": {**_FROM_BASE, **_CRITICS, "num_samples": 2, "edit_warmup": 5},
    "dsrl": {**_FROM_BASE, **_CRITICS, "check_episodes": 0},
    "steer": {**_FROM_BASE, **_CRITICS, "num_samples": 2},
}


@cache
def base_policy() -> tuple[Path, TemporaryDirectory[str]]:
    """A flow that pushes the slider now and then, and the folder that keeps it while this process lives."""
    folder = TemporaryDirectory(prefix="plaudit-base-")
    config = FlowConfig(state_dim=4, action_dim=2, horizon=2, velocity_net=VelocityNetConfig(width=8, depth=1))
    pushes = Stats(np.array([0.4, 0], np.float32), np.array([0.4, 0.4], np.float32))
    stats = {**Normalizer.identity(4, 2).stats, ACTION: pushes}
    return save_policy(folder.name, config, weights_of(1, FlowPolicy(config).components), Normalizer(stats)), folder


class Mean(nn.Module):
    """The vector."""

    def __init__(self, size: int):
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(size), requires_grad=False)


class SimulatedLearnerConfig(OffPolicyConfig):
    """From replay."""

    learner_class: ClassVar[str] = "plaudit.testing.learner:SimulatedLearner"
    takes_history: ClassVar[bool] = True
    batch_size: PositiveInt = 8
    n_step: PositiveInt = 1
    horizon: PositiveInt = 1  # actions of a chunk
    bc_weight: float = Field(default=0.0, ge=0)
    pretrain_updates: NonNegativeInt = 0

    @property
    def action_horizon(self) -> int:
        return self.horizon

    @property
    def clones_demos(self) -> bool:
        return self.bc_weight > 0


class SimulatedOnPolicyConfig(LearnerConfig):
    """From rollouts."""

    learner_class: ClassVar[str] = "plaudit.testing.learner:SimulatedOnPolicyLearner"
    on_policy: ClassVar[bool] = True
    pretrain_updates: NonNegativeInt = 0
    pretrain_batch_size: PositiveInt = 8


class _Base(LearnerBase):
    config: Any
    net: Mean

    def make_net(self) -> Mean:
        return Mean(self.env_spec.action_dim)

    def make_optimizers(self) -> dict[str, torch.optim.Optimizer]:
        return {}

    @property
    def components(self) -> Mapping[str, nn.Module]:
        return {"actor": self.net}

    @property
    def horizon(self) -> int:
        return getattr(self.config, "horizon", 1)

    def act_fn(self, *, explore: bool) -> ActFn:
        def act(observation: Observation) -> FloatArray:
            mean = self.net.mean.expand(len(observation.state), -1)
            noise = torch.randn(mean.shape, generator=self.rng) if explore else 0.0
            return (mean + NOISE * noise).clamp(-1, 1).numpy()

        return act

    def _pull(self, actions: Tensor, reward: Tensor) -> Mapping[str, Any]:
        self.version += 1
        actions = actions[:, 0] if actions.ndim == 3 else actions
        self.net.mean.add_(RATE * (reward.clamp(-2, 2)[:, None] * (actions - self.net.mean)).mean(dim=0))
        self.net.mean.clamp_(-1, 1)
        return {"loss/actor": float(reward.mean())}

    def policy_config(self, *, explore: bool = False) -> "SimulatedPolicyConfig":
        seed = self.seed if explore else 0
        return SimulatedPolicyConfig(
            action_dim=self.env_spec.action_dim, horizon=self.horizon, noise=NOISE if explore else 0.0, seed=seed
        )


class SimulatedLearner(_Base):
    """A `Learner` of batches."""

    @property
    def replay_options(self) -> Mapping[str, Any]:
        chunk, cameras = self.config.horizon, tuple(self.env_spec.cameras)
        steps = {"n_step": chunk, "horizon": chunk} if chunk > 1 else {"n_step": self.config.n_step}
        return {"gamma": self.config.gamma, "cameras": cameras, "history": self.encoder.history, **steps}

    def update(self, batch: Batch[Tensor]) -> Mapping[str, Any]:
        world().on_batch(self, batch)
        return self._pull(batch.actions, batch.reward)


class SimulatedOnPolicyLearner(_Base):
    """A `Learner` of rollouts."""

    on_policy = True

    @property
    def replay_options(self) -> Mapping[str, Any]:
        return {"gamma": self.config.gamma, "cameras": tuple(self.env_spec.cameras)}

    def bc_update(self, batch: Batch[Tensor]) -> None:
        self._pull(batch.actions, torch.ones(len(batch.actions)))

    def update(self, rollout: RolloutBatch) -> Mapping[str, Any]:
        world().on_rollout(self, rollout)
        valid = rollout.valid
        return self._pull(torch.from_numpy(rollout.actions[valid]), torch.from_numpy(rollout.reward[valid]))


class SimulatedPolicyConfig(PolicyConfig):
    """The vector as a policy."""

    policy_class: ClassVar[str] = "plaudit.testing.learner:SimulatedPolicy"
    action_dim: PositiveInt = 2
    horizon: PositiveInt = 1
    noise: float = 0.0
    seed: Seed = 0


class SimulatedPolicy:
    """A `Policy`."""

    def __init__(self, config: SimulatedPolicyConfig):
        self._config, self._rng = config, np.random.default_rng(config.seed)
        self._mean = Mean(config.action_dim)
        self.components: Mapping[str, nn.Module] = {"actor": self._mean}

    def predict(self, observation: Observation, normalizer: Normalizer) -> FloatArray:
        noise = self._rng.standard_normal((self._config.horizon, self._config.action_dim))
        actions = self._mean.mean.numpy() + self._config.noise * noise
        return np.clip(actions, -1, 1).astype(np.float32)

    def guided_inference(
        self, observation: Observation, normalizer: Normalizer, previous: FloatArray, delay: int, executed: int
    ) -> FloatArray:
        return self.predict(observation, normalizer)

    def warmup(self) -> None: ...

    def freeze_all_model_params(self) -> None: ...

    def load_weights(self, weights: PolicyWeights) -> None:
        load_components(self.components, weights)


@contextmanager
def watched_learners() -> Iterator[None]:
    """Show what the real learners are given to the world too, for as long as the block lasts."""

    def watched(update: Any) -> Any:
        def show(learner: Any, batch: Any) -> Any:
            (world().on_rollout if learner.on_policy else world().on_batch)(learner, batch)
            return update(learner, batch)

        return show

    with ExitStack() as stack:
        for cls in (Sac, QChunk, Dagger, Ppo, WeightedBC, Expo, Dsrl, Steer):
            stack.enter_context(patch.object(cls, "update", watched(cls.update)))
        yield


class SimulatedEncoderConfig(PretrainedConfig):
    """An encoder of judges, with weights that a seed gives instead of a file."""

    weights: Any = 0

    def build(self, *, pretrained: bool = True) -> SmallEncoder:
        with seeded(self.weights if pretrained else 1):
            return SmallEncoder((4, 4))
