"""DSRL (arXiv 2506.15799): reinforcement learning over the noise that a trained flow starts from.

A flow turns noise into a chunk of actions. The flow stays as it is, and an actor chooses the noise, so whatever the
robot does is something that the flow would do. This is the noise-aliased variant (DSRL-NA). Replay holds the actions
that were executed, whoever chose them, and no noise is recorded:

    critics         Q(s, a_1..a_h) of executed actions; target = r_1 + .. + gamma^h min Q'(s_h, flow(s_h, w')),
                    with w' from the actor
    noise critics   Qw(s, w) are fitted to Q(s, flow(s, w)) for noise w of all kinds, of all sizes that the actor may
                    choose: no gradient goes through the flow
    actor           SAC on Qw: w = noise_bound * tanh of a Gaussian

With `repeat_noise` one row of noise is repeated over the chunk. A flow may freeze or drift from noise that it has never
seen, so a run compares success from both kinds before it begins (`check_episodes`).
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from plaudit.devices import Adam
from plaudit.learners.base import (
    EVAL_SEED,
    CriticLearner,
    act_by_chunks,
    chunk_critic_loss,
    make_adam,
    optimizer_step,
    sample_critics,
    soft_update,
)
from plaudit.learners.config import DsrlConfig
from plaudit.policies.config import DsrlPolicyConfig
from plaudit.policies.flow import clip_actions
from plaudit.policies.networks import CriticEnsemble, Encoder, ObsTensors
from plaudit.policies.steering import NoiseActor, load_base
from plaudit.rollout.vector import ActFn
from plaudit.types import Batch, FloatArray, Observation


class DsrlNet(nn.Module):
    """What is trained, the base and the target networks. The actor sees the critics' features."""

    def __init__(self, policy: DsrlPolicyConfig, config: DsrlConfig, make_encoder: Callable[[], Encoder]):
        super().__init__()
        self.policy, self.target_encoder = NoiseActor(policy, make_encoder()), make_encoder()
        size = self.target_encoder.size
        actions = config.backup_horizon * policy.action_dim
        self.critic, self.target_critic = (
            CriticEnsemble(config.num_critics, size + actions, config.hidden_dims) for _ in range(2)
        )
        self.noise_critic = CriticEnsemble(2, size + self.policy.size, config.hidden_dims)
        self.log_temperature = nn.Parameter(torch.tensor(config.temperature_init).log())
        self.target_encoder.load_state_dict(self.policy.encoder.state_dict())
        self.target_critic.load_state_dict(self.critic.state_dict())


class Dsrl(CriticLearner):
    """A `Learner` of batches from replay: windows of h actions and the sum of their rewards."""

    config: DsrlConfig
    net: DsrlNet

    def make_net(self) -> DsrlNet:
        """The base, the actor of its noise, and critics of actions and of noise."""
        config = self.config
        config.check_fits(self.env_spec, self.encoder.config, self.encoder.history)
        net = DsrlNet(self.policy_config(), config, self.make_encoder)
        net.policy.base = load_base(config.base_spec, config.flow, self.around)
        self.target_entropy = -net.policy.size / 2 if config.target_entropy is None else config.target_entropy
        return net

    def make_optimizers(self) -> dict[str, Adam]:
        """One of each kind of critic, one of the actor and the temperature."""
        lr, net = self.config.lr, self.net
        return {
            "critic": make_adam(lr, net.policy.encoder, net.critic),
            "noise_critic": make_adam(lr, net.noise_critic),
            "actor": make_adam(lr, net.policy.actor, net.log_temperature),
        }

    @property
    def windows(self) -> dict[str, int]:
        """The valued actions and their rewards."""
        return {"n_step": self.config.backup_horizon, "horizon": self.config.backup_horizon}

    def choose_chunks(self, obs: ObsTensors, rng: torch.Generator, *, explore: bool = True) -> Tensor:
        """Chunks [N, H, A] for N observations, from noise that the actor chooses."""
        return self.net.policy(obs, rng, explore)

    def random_noise(self, count: int, rng: torch.Generator) -> Tensor:
        """Normal noise in the form that the actor chooses, [count, size]."""
        bound = self.config.noise_bound
        noise = torch.randn(count, self.net.policy.size, generator=rng, device=self.device)
        return noise.clamp(-bound, bound)

    def act_at_random(self, *, normal: bool) -> ActFn:
        """For one rollout: the base from normal noise, or from random noise of the actor's form, to compare both."""
        policy, rng = self.net.policy, torch.Generator(self.device).manual_seed(EVAL_SEED)

        def plan(observation: Observation) -> FloatArray:
            with torch.inference_mode():
                obs = self.tensors(observation)
                if normal:
                    return policy.base.sample(obs, rng).cpu().numpy()
                seen = policy.base.features(obs)
                return policy.chunks(seen, self.random_noise(len(seen), rng)).cpu().numpy()

        return act_by_chunks(plan, self.config.backup_horizon)

    def update(self, batch: Batch[Tensor]) -> Mapping[str, Tensor]:
        """One step of the critics, the noise critics, and of actor and temperature."""
        self.net.policy.learned.fill_(True)
        return self.run_step(self._step, batch, update_actor=self.count_update())

    def _step(self, batch: Batch[Tensor], *, update_actor: bool) -> dict[str, Tensor]:
        obs, next_obs = self.augment_batch(batch, self.config.random_shift_pad)
        # Critics.
        critic_loss, q_mean = self._critic_loss(batch, obs, next_obs)
        optimizer_step(self.optimizers["critic"], critic_loss, self.sync)
        with torch.no_grad():
            features, seen = self.net.policy.features(obs), self.net.policy.base.features(obs)
        noise_loss = self._noise_critic_loss(features, seen)
        optimizer_step(self.optimizers["noise_critic"], noise_loss, self.sync)
        metrics = {"loss/critic": critic_loss, "loss/noise_critic": noise_loss, "critic/q_mean": q_mean}
        # Actor and temperature.
        if update_actor:
            metrics |= self._update_actor(features)
        # Target networks.
        soft_update(self.net.target_critic, self.net.critic, self.config.tau)
        soft_update(self.net.target_encoder, self.net.policy.encoder, self.config.tau)
        return {name: number.detach() for name, number in metrics.items()}

    def _critic_loss(self, batch: Batch[Tensor], obs: ObsTensors, next_obs: ObsTensors) -> tuple[Tensor, Tensor]:
        config, policy, valued = self.config, self.net.policy, self.config.backup_horizon
        with torch.no_grad():
            chosen, _ = policy.sample(policy.features(next_obs), self.rng)
            chunks = policy.chunks(policy.base.features(next_obs), chosen)[:, :valued].flatten(1)
            subset = sample_critics(config.num_subsample_critics, config.num_critics, self.rng)
            values = self.net.target_critic(self.net.target_encoder(policy.base.units.scaled(next_obs)), chunks, subset)
            target = batch.reward + batch.discount * values.amin(dim=0)
        values = self.net.critic(policy.features(obs), clip_actions(batch.actions).flatten(1))
        return chunk_critic_loss(values, target, batch, valued), values.mean()

    def _noise_critic_loss(self, features: Tensor, seen: Tensor) -> Tensor:
        """For half of the observations normal noise, for half of them noise by the actor."""
        policy, half = self.net.policy, len(features) // 2
        with torch.no_grad():
            noise = self.random_noise(len(features), self.rng)
            noise[half:] = policy.sample(features[half:], self.rng)[0]
            chunks = policy.chunks(seen, noise)[:, : self.config.backup_horizon].flatten(1)
            target = self.net.critic(features, chunks).mean(dim=0)
        return (self.net.noise_critic(features, noise) - target).square().mean(dim=1).sum()

    def _update_actor(self, features: Tensor) -> dict[str, Tensor]:
        chosen, log_density = self.net.policy.sample(features, self.rng)
        entropy, temperature = -log_density.detach().mean(), self.net.log_temperature.exp()
        value = self.net.noise_critic(features, chosen).amin(dim=0).mean()
        loss = temperature.detach() * log_density.mean() - value
        temperature_loss = temperature * (entropy - self.target_entropy).detach()
        optimizer_step(self.optimizers["actor"], loss + temperature_loss, self.sync)
        return {"loss/actor": loss, "policy/entropy": entropy, "policy/temperature": temperature}

    @property
    def critics(self) -> list[tuple[nn.Module, nn.Module | None]]:
        """The ensemble with its target network, and the noise critics, which the actor follows."""
        return [(self.net.critic, self.net.target_critic), (self.net.noise_critic, None)]

    @property
    def components(self) -> dict[str, nn.Module]:
        """The policy's part: base, actor and its image encoder."""
        return {"policy": self.net.policy}

    def policy_config(self, *, explore: bool = False) -> DsrlPolicyConfig:
        """The config of the policy that acts with these weights."""
        config = self.config
        return DsrlPolicyConfig(
            **self.policy_fields(explore=explore),
            base=config.flow,
            hidden_dims=config.hidden_dims,
            noise_bound=config.noise_bound,
            repeat_noise=config.repeat_noise,
            stochastic=explore,
        )
