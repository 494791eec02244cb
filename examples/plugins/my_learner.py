"""A learner to copy: behavior cloning in which each action counts by its reward (docs/add_a_learner.md)."""

import torch
from torch import nn

from plaudit.learners.base import LearnerBase, make_adam, optimizer_step
from plaudit.learners.config import OffPolicyConfig
from plaudit.policies.config import ActorConfig, GaussianConfig
from plaudit.policies.networks import Encoder, ObsTensors, TanhGaussian, obs_to_tensors
from plaudit.registry import LEARNER_REGISTRY


@LEARNER_REGISTRY.register("awbc")
class AwbcConfig(OffPolicyConfig):  # gamma, batch_size, utd_ratio, random_steps, demo_ratio
    lr: float = 1e-3
    hidden_dims: tuple[int, ...] = (64, 64)

    def build(self, env_spec, seed, device):
        return Awbc(self, env_spec, seed, device)


class Awbc(LearnerBase):  # version, rng, sync, weights(), state_dict(), load_state_dict()
    def make_net(self):  # the learner's seed gives the initial weights
        encoder = Encoder(self.env_spec)
        actor = TanhGaussian(encoder.size, self.env_spec.action_dim, self.config.hidden_dims)
        return nn.ModuleDict({"encoder": encoder, "actor": actor})

    def make_optimizers(self):
        return {"all": make_adam(self.config.lr, self.net)}

    @property
    def replay_options(self):
        return {"gamma": self.config.gamma, "cameras": tuple(self.env_spec.cameras)}

    @property
    def components(self):
        return dict(self.net.items())

    def update(self, batch):
        self.version += 1
        actions = self._mode(ObsTensors(batch.images, batch.state))
        error = (actions - batch.actions.clamp(-1, 1)).square().mean(dim=-1)
        loss = ((0.1 + batch.reward) * error).mean()
        optimizer_step(self.optimizers["all"], loss, self.sync)
        return {"loss/actor": loss.detach()}

    def _mode(self, obs):
        encoder, actor = self.net["encoder"], self.net["actor"]
        return actor.mode(encoder(obs))

    def act_fn(self, *, explore):
        def act(observation):
            with torch.inference_mode():
                return self._mode(obs_to_tensors(observation, self.env_spec, self.device)).cpu().numpy()

        return act

    def policy_config(self, *, explore=False):
        actor = ActorConfig(kind="squashed", hidden_dims=self.config.hidden_dims)
        return GaussianConfig(**self.env_spec.policy_fields(), actor=actor, stochastic=explore, seed=self.seed)
