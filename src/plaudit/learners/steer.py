"""Steering: critics choose among N chunks of a policy that is not trained (best of N, as in 2304.10573 and 2410.13816).

The policy may be anything that returns several chunks for one observation: a flow, a policy of another library, a model
behind a server. It is sampled when it acts and never in an update, so a slow one is asked as often as without learning.

    critics     Q(s, a_1..a_h) of what was executed. What follows is valued by the actions that did follow (SARSA):
                target = r_1 + .. + gamma^h Q'(s_h, a_(h+1)..a_2h), which are in the same window of replay
    policy      the best of N chunks. Newer episodes were chosen by newer critics, and the values follow.

Critics do not learn from a window of 2h actions that the time limit cut short: the actions that would follow were never
executed. They do from one in which the episode terminated, after which nothing follows.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from plaudit.devices import Adam
from plaudit.learners.base import (
    CriticLearner,
    act_by_chunks,
    chunk_critic_loss,
    make_adam,
    optimizer_step,
    sample_critics,
    soft_update,
)
from plaudit.learners.config import SteerConfig
from plaudit.policies.config import CriticConfig, SteerPolicyConfig
from plaudit.policies.flow import clip_actions
from plaudit.policies.networks import CriticEnsemble, Encoder
from plaudit.policies.steering import BestOf, Candidates, compose_units
from plaudit.rollout.vector import ActFn
from plaudit.types import Batch, FloatArray, Observation


class SteerNet(nn.Module):
    """The critics and their target networks."""

    def __init__(self, config: SteerPolicyConfig, make_encoder: Callable[[], Encoder]):
        super().__init__()
        self.policy, self.target_encoder = BestOf(config, make_encoder()), make_encoder()
        inputs = self.target_encoder.size + config.critic_horizon * config.action_dim
        self.target_critic = CriticEnsemble(config.critic.num_critics, inputs, config.critic.hidden_dims)
        self.target_encoder.load_state_dict(self.policy.encoder.state_dict())
        self.target_critic.load_state_dict(self.policy.critic.state_dict())


class Steer(CriticLearner):
    """A `Learner` of batches from replay: windows of 2h actions and the sum of the first h rewards."""

    config: SteerConfig
    net: SteerNet

    def make_net(self) -> SteerNet:
        """The critics, and how they choose."""
        self.config.check_fits(self.env_spec, self.encoder.config, self.encoder.history)
        net = SteerNet(self.policy_config(), self.make_encoder)
        compose_units(net.policy.units, self.config.base_spec, self.around)
        return net

    def make_optimizers(self) -> dict[str, Adam]:
        """One of the critics."""
        return {"critic": make_adam(self.config.lr, self.net.policy)}

    @property
    def windows(self) -> dict[str, int]:
        """The valued actions with their rewards, and the actions that follow them."""
        return {"n_step": self.config.backup_horizon, "horizon": 2 * self.config.backup_horizon}

    @property
    def replay_options(self) -> Mapping[str, Any]:
        """Without windows that the time limit cut short."""
        return {**super().replay_options, "whole_windows": True}

    def act_fn(self, *, explore: bool) -> ActFn:
        """For one rollout in simulation: the policy is sampled for one environment after the other."""
        seed = self.rollout_rng(explore=explore).initial_seed()
        base = Candidates(self.config.base_spec.on(str(self.device)), seed, self.env_spec.action_dim)

        def plan(observation: Observation) -> FloatArray:
            count = range(len(observation.state))
            chunks = np.stack([base.sample(observation[n], self.config.num_samples) for n in count])
            with torch.inference_mode():
                return (
                    self.net.policy(self.tensors(observation), torch.from_numpy(chunks).to(self.device)).cpu().numpy()
                )

        return act_by_chunks(plan, self.config.backup_horizon)

    def update(self, batch: Batch[Tensor]) -> Mapping[str, Tensor]:
        """One step of the critics."""
        self.count_update()
        self.net.policy.learned.fill_(True)
        return self.run_step(self._step, batch)

    def _step(self, batch: Batch[Tensor]) -> dict[str, Tensor]:
        obs, next_obs = self.augment_batch(batch, self.config.random_shift_pad)
        config, policy, valued = self.config, self.net.policy, self.config.backup_horizon
        actions = clip_actions(batch.actions)
        with torch.no_grad():
            subset = sample_critics(config.num_subsample_critics, config.num_critics, self.rng)
            following = actions[:, valued:].flatten(1)  # past the end its last action again: see `whole_windows`
            values = self.net.target_critic(self.net.target_encoder(policy.units.scaled(next_obs)), following, subset)
            target = batch.reward + batch.discount * values.mean(dim=0)
        values = policy.critic(policy.features(obs), actions[:, :valued].flatten(1))
        loss = chunk_critic_loss(values, target, batch, valued)
        optimizer_step(self.optimizers["critic"], loss, self.sync)
        soft_update(self.net.target_critic, policy.critic, config.tau)
        soft_update(self.net.target_encoder, policy.encoder, config.tau)
        return {"loss/critic": loss.detach(), "critic/q_mean": values.detach().mean()}

    @property
    def critics(self) -> list[tuple[nn.Module, nn.Module | None]]:
        """The ensemble with its target network."""
        return [(self.net.policy.critic, self.net.target_critic)]

    @property
    def components(self) -> dict[str, nn.Module]:
        """The policy's part: the critics. The policy that is sampled has a file of its own."""
        return {"policy": self.net.policy}

    def policy_config(self, *, explore: bool = False) -> SteerPolicyConfig:
        """The config of the policy that acts with these weights; sampling explores, in any case."""
        config = self.config
        return SteerPolicyConfig(
            **self.policy_fields(explore=explore),
            base=config.base,
            horizon=config.action_horizon,
            critic_horizon=config.backup_horizon,
            critic=CriticConfig(num_critics=config.num_critics, hidden_dims=config.hidden_dims),
            num_samples=config.num_samples,
        )
