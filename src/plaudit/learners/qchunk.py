"""Q-chunking (QC, arXiv 2507.07969): reinforcement learning over chunks of h actions, from sparse rewards and demos.

    behavior    a flow clones the chunks of actions in replay, good and bad
    critics     Q(s, a_1..a_h) of chunks; the backup skips h steps, and is unbiased because the h actions are executed
                without another observation:  target = r_1 + .. + gamma^(h-1) r_h + gamma^h Q'(s_h, best of N)
    policy      best of N: sample N chunks, execute the one that the critics value most, here and in the target

Real-time chunking never executes a chunk to its end. For it the flow returns longer chunks (`horizon`), and the critics
and the backup use only the first actions, which are executed (`critic_horizon`, h above).

There is no policy gradient: the policy improves by selection. Critics do not learn from a window that the time limit
cut short; they do from one in which the episode terminated. As in RLPD, each batch mixes demonstrations and the robot's
own experience, and critics have LayerNorm.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from plaudit.devices import Adam
from plaudit.errors import DataError
from plaudit.learners.base import (
    CriticLearner,
    chunk_critic_loss,
    make_adam,
    optimizer_step,
    sample_critics,
    soft_update,
)
from plaudit.learners.config import QChunkConfig
from plaudit.policies.config import CriticConfig, QChunkPolicyConfig
from plaudit.policies.flow import VelocityNet, best_of_n, clip_actions, matching_loss, sample_chunks
from plaudit.policies.networks import CriticEnsemble, Encoder, ObsTensors
from plaudit.types import Batch, EnvSpec


class QChunkNet(nn.Module):
    """All that is trained. The flow and the critics have an image encoder each."""

    def __init__(self, env_spec: EnvSpec, config: QChunkConfig, make_encoder: Callable[[], Encoder]):
        super().__init__()
        self.encoder, self.critic_encoder, self.target_critic_encoder = (make_encoder() for _ in range(3))
        size, horizon, actions = self.encoder.size, config.horizon, env_spec.action_dim
        net = config.velocity_net
        self.velocity_net = VelocityNet(size, horizon, actions, net.width, net.depth)
        inputs = size + config.backup_horizon * actions
        self.critic, self.target_critic = (
            CriticEnsemble(config.num_critics, inputs, config.hidden_dims) for _ in range(2)
        )
        self.target_critic.load_state_dict(self.critic.state_dict())
        self.target_critic_encoder.load_state_dict(self.critic_encoder.state_dict())


class QChunk(CriticLearner):
    """A `Learner` of batches from replay: windows of h actions and the sum of their rewards."""

    config: QChunkConfig
    net: QChunkNet

    def make_net(self) -> QChunkNet:
        """The flow policy and the critics, each with an encoder."""
        return QChunkNet(self.env_spec, self.config, self.make_encoder)

    def make_optimizers(self) -> dict[str, Adam]:
        """One of the critics, one of the flow policy."""
        lr, net = self.config.lr, self.net
        return {
            "critic": make_adam(lr, net.critic_encoder, net.critic),
            "flow": make_adam(lr, net.encoder, net.velocity_net),
        }

    @property
    def windows(self) -> dict[str, int]:
        """Whole chunks, with the rewards of the valued actions."""
        return {"n_step": self.config.backup_horizon, "horizon": self.config.horizon}

    def choose_chunks(self, obs: ObsTensors, rng: torch.Generator, *, explore: bool = True) -> Tensor:
        """For each of B observations the best of N chunks, [B, H, A]; sampling them is what explores."""
        features = self.net.encoder(obs)[:, None]
        shape = (len(features), self.config.num_samples, self.config.horizon, self.env_spec.action_dim)
        chunks = sample_chunks(self.net.velocity_net, features, shape, self.config.num_inference_steps, rng)
        return best_of_n(self.net.critic, self.net.critic_encoder(obs), chunks, self.config.backup_horizon)

    def update(self, batch: Batch[Tensor]) -> Mapping[str, Tensor]:
        """One step of the critics and one of the flow."""
        self._check(batch)
        self.count_update()
        return self.run_step(self._step, batch)

    def _step(self, batch: Batch[Tensor]) -> dict[str, Tensor]:
        obs, next_obs = self.augment_batch(batch, self.config.random_shift_pad)
        # Critics.
        critic_loss, q_mean = self._critic_loss(batch, obs, next_obs)
        optimizer_step(self.optimizers["critic"], critic_loss, self.sync)
        # Behavior flow.
        flow_loss = matching_loss(
            self.net.velocity_net, self.net.encoder(obs), clip_actions(batch.actions), batch.action_mask, self.rng
        )
        optimizer_step(self.optimizers["flow"], flow_loss, self.sync)
        # Target networks.
        soft_update(self.net.target_critic, self.net.critic, self.config.tau)
        soft_update(self.net.target_critic_encoder, self.net.critic_encoder, self.config.tau)
        metrics = {"loss/critic": critic_loss, "loss/flow": flow_loss, "critic/q_mean": q_mean}
        return {name: number.detach() for name, number in metrics.items()}

    def _critic_loss(self, batch: Batch[Tensor], obs: ObsTensors, next_obs: ObsTensors) -> tuple[Tensor, Tensor]:
        valued = self.config.backup_horizon
        with torch.no_grad():
            chunks = self.choose_chunks(next_obs, self.rng)[:, :valued].flatten(1)
            subset = sample_critics(self.config.num_subsample_critics, self.config.num_critics, self.rng)
            values = self.net.target_critic(self.net.target_critic_encoder(next_obs), chunks, subset)
            target = batch.reward + batch.discount * values.amin(dim=0)
        values = self.net.critic(self.net.critic_encoder(obs), clip_actions(batch.actions[:, :valued]).flatten(1))
        return chunk_critic_loss(values, target, batch, valued), values.mean()

    def _check(self, batch: Batch[Tensor]) -> None:
        wanted, shape = [self.config.horizon, self.env_spec.action_dim], list(batch.actions.shape[1:])
        if shape != wanted:
            differs = f"this learner takes windows of {wanted} actions, the batch has {shape}"
            raise DataError(f"{differs}; sample it with the learner's replay_options")

    @property
    def critics(self) -> list[tuple[nn.Module, nn.Module | None]]:
        """The ensemble with its target network."""
        return [(self.net.critic, self.net.target_critic)]

    @property
    def components(self) -> dict[str, nn.Module]:
        """The policy's part: the flow and the critics."""
        net = self.net
        return {
            "encoder": net.encoder,
            "velocity_net": net.velocity_net,
            "critic_encoder": net.critic_encoder,
            "critic": net.critic,
        }

    def policy_config(self, *, explore: bool = False) -> QChunkPolicyConfig:
        """The config of the policy that acts with these weights; it explores by sampling, in any case."""
        config = self.config
        return QChunkPolicyConfig(
            **self.policy_fields(explore=explore),
            critic_encoder=self.encoder.config,
            horizon=config.horizon,
            critic_horizon=config.critic_horizon,
            velocity_net=config.velocity_net,
            critic=CriticConfig(num_critics=config.num_critics, hidden_dims=config.hidden_dims),
            num_samples=config.num_samples,
            num_inference_steps=config.num_inference_steps,
        )
