"""HG-DAgger (arXiv 1810.02890): behavior cloning of a flow policy, during a run, on what people do.

The policy acts, a person takes over where it would fail, and the flow is trained on the demonstrations and on the steps
in which a person acted. No reward is used. A run with learner=qchunk continues from the policy of a finished run:
policy.path=runs/NAME/policy/policy.yaml. It has the same flow.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from plaudit.devices import Adam
from plaudit.learners.base import LearnerBase, make_adam, optimizer_step
from plaudit.learners.config import DaggerConfig
from plaudit.policies.config import FlowConfig
from plaudit.policies.flow import VelocityNet, clip_actions, matching_loss, sample_chunks
from plaudit.policies.networks import Encoder, ObsTensors
from plaudit.types import Batch, EnvSpec


class DaggerNet(nn.Module):
    """The trained modules."""

    def __init__(self, env_spec: EnvSpec, config: DaggerConfig, make_encoder: Callable[[], Encoder]):
        super().__init__()
        self.encoder, net = make_encoder(), config.velocity_net
        self.velocity_net = VelocityNet(self.encoder.size, config.horizon, env_spec.action_dim, net.width, net.depth)


class Dagger(LearnerBase):
    """A `Learner` of batches from replay, of which it uses the demonstrations and interventions."""

    config: DaggerConfig
    net: DaggerNet

    def make_net(self) -> DaggerNet:
        """The flow policy."""
        return DaggerNet(self.env_spec, self.config, self.make_encoder)

    def make_optimizers(self) -> dict[str, Adam]:
        """One of the flow policy."""
        return {"flow": make_adam(self.config.lr, self.net)}

    @property
    def windows(self) -> dict[str, int]:
        """Whole chunks."""
        return {"horizon": self.config.horizon}

    @property
    def executed(self) -> int:
        """The first half of a chunk."""
        return -(-self.config.horizon // 2)

    def choose_chunks(self, obs: ObsTensors, rng: torch.Generator, *, explore: bool = True) -> Tensor:
        """Chunks [N, H, A] for N observations; sampling them is all that explores."""
        features = self.net.encoder(obs)
        shape = len(features), self.config.horizon, self.env_spec.action_dim
        return clip_actions(sample_chunks(self.net.velocity_net, features, shape, self.config.num_inference_steps, rng))

    def update(self, batch: Batch[Tensor]) -> Mapping[str, Tensor]:
        """One step of the flow."""
        self.version += 1
        return self.run_step(self._step, batch)

    def _step(self, batch: Batch[Tensor]) -> dict[str, Tensor]:
        obs, _ = self.augment_batch(batch, self.config.random_shift_pad)
        by_people = batch.action_mask & (batch.part == 0)[:, None]  # part 1 is what the policy did
        loss = matching_loss(
            self.net.velocity_net, self.net.encoder(obs), clip_actions(batch.actions), by_people, self.rng
        )
        optimizer_step(self.optimizers["flow"], loss, self.sync)
        return {"loss/flow": loss.detach()}

    @property
    def components(self) -> dict[str, nn.Module]:
        """The modules of the policy: all trained modules."""
        return {"encoder": self.net.encoder, "velocity_net": self.net.velocity_net}

    def policy_config(self, *, explore: bool = False) -> FlowConfig:
        """The config of the policy that acts with these weights; sampling a chunk is all that explores."""
        return FlowConfig(
            **self.policy_fields(explore=explore),
            horizon=self.config.horizon,
            velocity_net=self.config.velocity_net,
            num_inference_steps=self.config.num_inference_steps,
        )
