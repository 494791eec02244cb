"""A learner as a user writes one: no name in any registry, found by its dotted path alone.

It imitates what was rewarded: actions of a batch, each weighted by its reward. `Unfinished` lacks half of its methods.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from plaudit.learners.base import LearnerBase, make_adam, optimizer_step
from plaudit.learners.config import OffPolicyConfig
from plaudit.policies.config import ActorConfig, GaussianConfig
from plaudit.policies.networks import Encoder, ObsTensors, TanhGaussian, obs_to_tensors
from plaudit.types import Batch, EnvSpec, FloatArray, Observation


class ImitationConfig(OffPolicyConfig):
    batch_size: int = 8
    hidden_dims: tuple[int, ...] = (8,)

    def build(self, env_spec: EnvSpec, seed: int, device: str) -> "Imitation":
        return Imitation(self, env_spec, seed, device)


class Imitation(LearnerBase):
    def __init__(self, config: ImitationConfig, env_spec: EnvSpec, seed: int, device: str):
        super().__init__(config, env_spec, seed, device)

    def make_net(self) -> nn.ModuleDict:
        encoder = Encoder(self.env_spec)
        actor = TanhGaussian(encoder.size, self.env_spec.action_dim, self.config.hidden_dims)
        return nn.ModuleDict({"encoder": encoder, "actor": actor})

    def make_optimizers(self) -> dict[str, torch.optim.Optimizer]:
        return {"all": make_adam(1e-3, self.net)}

    @property
    def components(self) -> dict[str, nn.Module]:
        return dict(self.net.items())

    @property
    def replay_options(self) -> dict[str, Any]:
        return {"gamma": self.config.gamma, "cameras": tuple(self.env_spec.cameras)}

    def act_fn(self, *, explore: bool) -> Any:
        return self._act

    def _act(self, observation: Observation) -> FloatArray:
        with torch.inference_mode():
            return self._mode(obs_to_tensors(observation, self.env_spec, self.device)).numpy()

    def _mode(self, obs: ObsTensors) -> Tensor:
        actor: Any = self.net["actor"]
        return actor.mode(self.net["encoder"](obs))

    def update(self, batch: Batch[Tensor]) -> Mapping[str, float]:
        self.version += 1
        error = (self._mode(ObsTensors(batch.images, batch.state)) - batch.actions).square().mean(dim=-1)
        loss = (batch.reward * error).mean()
        optimizer_step(self.optimizers["all"], loss, self.sync)
        return {"loss/actor": float(loss.detach())}

    def policy_config(self, *, explore: bool = False) -> GaussianConfig:
        actor = ActorConfig(kind="squashed", hidden_dims=self.config.hidden_dims)
        return GaussianConfig(**self.env_spec.policy_fields(), actor=actor, stochastic=explore)


class UnfinishedConfig(ImitationConfig):
    def build(self, env_spec: EnvSpec, seed: int, device: str) -> Any:
        return Unfinished()


class Unfinished:
    version = 0

    def update(self, batch: Batch[Tensor]) -> Mapping[str, float]:
        return {}
