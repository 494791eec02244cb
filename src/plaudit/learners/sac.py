"""Soft actor-critic with demonstrations: SAC (arXiv 1812.05905) with the changes of RLPD (2302.02948).

The changes: each batch is half demonstrations, half the robot's own experience (`ReplaySampler.mix`); critics have
LayerNorm, against overestimation beyond the data (`CriticEnsemble`); the target is the minimum of a random subset of an
ensemble (`_critic_loss`); several critic updates follow each step of the robot (`utd_ratio`, counted by the run's
loop). As in HIL-SERL (2410.21845), the entropy is not part of the target. Reward and termination come from the labels
alone: `target = reward + discount * value`. With `bc_weight` the actor also clones the demonstrations (as in
1709.10089): it learns sooner, and stays near them where a judge could be fooled. During the first `clone_updates` it
only clones what people do (HG-DAgger, 1810.02890), and the critics learn; then it follows them.

`gripper: discrete` is that of HIL-SERL: a grasp critic values three gripper actions, and the best one is sent, also
when exploring. It learns by double DQN (1509.06461), from the same rewards. Actor and critics have the other numbers of
an action. The gripper's penalty of HIL-SERL is left out. With `bc_weight` the cross-entropy of the demonstrated gripper
action is part of its loss, with the values as logits. It lowers the values of what was not demonstrated (as in CQL).
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from plaudit.devices import Adam
from plaudit.errors import TrainingError
from plaudit.learners.base import CriticLearner, make_adam, optimizer_step, sample_critics, soft_update
from plaudit.learners.config import SacConfig
from plaudit.policies.config import ActorConfig, GaussianConfig
from plaudit.policies.networks import (
    CriticEnsemble,
    Encoder,
    ObsTensors,
    TanhGaussian,
    grasp_critic,
    run_parallel,
    with_gripper,
)
from plaudit.rollout.vector import ActFn
from plaudit.types import Batch, EnvSpec, FloatArray, Observation


class SacNet(nn.Module):
    """All that is trained. Actor and critics have an image encoder each, or share that of the critics."""

    def __init__(self, env_spec: EnvSpec, config: SacConfig, make_encoder: Callable[[], Encoder], *, shared: bool):
        super().__init__()
        self.own_actor_encoder = None if shared else make_encoder()
        self.critic_encoder, self.target_critic_encoder = make_encoder(), make_encoder()
        is_discrete = config.gripper == "discrete"
        size, actions = self.critic_encoder.size, env_spec.action_dim - is_discrete
        self.actor = TanhGaussian(size, actions, config.hidden_dims)
        self.critic, self.target_critic = (
            CriticEnsemble(config.num_critics, size + actions, config.hidden_dims) for _ in range(2)
        )
        self.log_temperature = nn.Parameter(torch.tensor(config.temperature_init).log())
        self.target_critic.load_state_dict(self.critic.state_dict())
        self.target_critic_encoder.load_state_dict(self.critic_encoder.state_dict())
        self.grasp_critic = grasp_critic(size, config.hidden_dims) if is_discrete else None
        self.target_grasp_critic = deepcopy(self.grasp_critic)

    @property
    def actor_encoder(self) -> Encoder:
        return self.own_actor_encoder or self.critic_encoder


class Sac(CriticLearner):
    """A `Learner` of batches from replay."""

    config: SacConfig
    net: SacNet

    def make_net(self) -> SacNet:
        """Encoders, actor, critics and temperature."""
        is_discrete = self.config.gripper == "discrete"
        if is_discrete and self.env_spec.action_dim < 2:
            raise TrainingError(
                "learner.gripper=discrete needs actions of two numbers or more; the last is the gripper"
            )
        self._arm = self.env_spec.action_dim - is_discrete  # numbers of an action that the actor chooses
        self._shared = self.encoder.config.shared
        self.target_entropy = self.config.target_entropy if self.config.target_entropy is not None else -self._arm / 2
        return SacNet(self.env_spec, self.config, self.make_encoder, shared=self._shared)

    def make_optimizers(self) -> dict[str, Adam]:
        """One of the critics and their encoder, one of the actor and the temperature."""
        lr, net = self.config.lr, self.net
        own_encoder = [] if self._shared else [net.actor_encoder]
        grasp_critics = [] if net.grasp_critic is None else [net.grasp_critic]
        return {
            "critic": make_adam(lr, net.critic_encoder, net.critic, *grasp_critics),
            "actor": make_adam(lr, *own_encoder, net.actor, net.log_temperature),
        }

    @property
    def windows(self) -> dict[str, int]:
        """Single steps with returns of `n_step` rewards."""
        return {"n_step": self.config.n_step}

    def act_fn(self, *, explore: bool) -> ActFn:
        """For one rollout: observations of N envs -> actions [N, A]."""
        return partial(self.act, rng=self.rollout_rng(explore=True) if explore else None)

    def act(self, observation: Observation, rng: torch.Generator | None) -> FloatArray:
        """Actions [N, A] for N observations. rng: of the noise that explores; None: the likeliest actions"""
        with torch.inference_mode():
            obs = self.tensors(observation)
            features = self.net.actor_encoder(obs)
            if rng is not None:
                actions, _ = self.net.actor(features, self._noise(len(features), rng))
            else:
                actions = self.net.actor.mode(features)
            if self.net.grasp_critic is not None:
                actions = with_gripper(actions, self.net.grasp_critic(self._critic_features(obs, features)))
        return actions.cpu().numpy()

    def update(self, batch: Batch[Tensor]) -> Mapping[str, Tensor]:
        """One step of the critics and, every `policy_update_freq`, of actor and temperature."""
        update_actor = self.count_update() and self.version % self.config.policy_update_freq == 0
        clone_only = self.version <= self.config.clone_updates
        return self.run_step(self._step, batch, update_actor=update_actor, clone_only=clone_only)

    def _step(self, batch: Batch[Tensor], *, update_actor: bool, clone_only: bool) -> dict[str, Tensor]:
        obs, next_obs = self.augment_batch(batch, self.config.random_shift_pad)
        # Critics.
        needs_features = update_actor and not self._shared
        (values, grasp_values, critic_features), targets, features = run_parallel(
            lambda: self._values(batch, obs),
            lambda: self._targets(batch, next_obs),
            lambda: self.net.actor_encoder(obs) if needs_features else None,
        )
        loss = critic_loss = (values - targets[0]).square().mean(dim=1).sum()
        metrics = {"loss/critic": critic_loss, "critic/q_mean": values.mean()}
        if grasp_values is not None:
            metrics["loss/grasp_critic"] = grasp_loss = self._grasp_loss(grasp_values, targets[1], batch)
            loss = critic_loss + grasp_loss
        optimizer_step(self.optimizers["critic"], loss, self.sync)
        # Actor and temperature, target networks.
        if update_actor:
            critic_features = critic_features.detach()
            own = critic_features if features is None else features
            of_actor, _ = run_parallel(
                lambda: self._update_actor(batch, own, critic_features, clone_only=clone_only), self._update_targets
            )
            metrics |= of_actor
        else:
            self._update_targets()
        return {name: number.detach() for name, number in metrics.items()}

    def _update_actor(
        self, batch: Batch[Tensor], features: Tensor, critic_features: Tensor, *, clone_only: bool
    ) -> dict[str, Tensor]:
        """
        critic_features: from before the update of the critics, as in DrQ-v2, which saves an encoder pass
        clone_only: what it samples comes near the demonstrations, whatever the critics say
        """
        actions, log_density = self.net.actor(features, self._noise(len(features), self.rng))
        entropy = -log_density.detach().mean()
        actor_loss = (self.net.log_temperature.exp().detach() * log_density).mean()
        metrics = {"policy/entropy": entropy}
        if clone_only:
            metrics["loss/bc"] = self._bc_loss(actions, batch)
            actor_loss = actor_loss + metrics["loss/bc"]
        else:
            actor_loss = actor_loss - self.net.critic(critic_features, actions).mean()
            if self.config.bc_weight:
                metrics["loss/bc"] = self._bc_loss(self.net.actor.mode(features), batch)
                actor_loss = actor_loss + self.config.bc_weight * metrics["loss/bc"]
        temperature = self.net.log_temperature.exp()
        temperature_loss = temperature * (entropy - self.target_entropy).detach()
        optimizer_step(self.optimizers["actor"], actor_loss + temperature_loss, self.sync)
        return metrics | {"loss/actor": actor_loss, "policy/temperature": temperature}

    def _update_targets(self) -> None:
        soft_update(self.net.target_critic, self.net.critic, self.config.tau)
        soft_update(self.net.target_critic_encoder, self.net.critic_encoder, self.config.tau)
        if self.net.grasp_critic is not None and self.net.target_grasp_critic is not None:
            soft_update(self.net.target_grasp_critic, self.net.grasp_critic, self.config.tau)

    def _critic_features(self, obs: ObsTensors, actor_features: Tensor) -> Tensor:
        """Features of the critics' encoder, which is also the actor's where they share one."""
        return actor_features if self._shared else self.net.critic_encoder(obs)

    def _values(self, batch: Batch[Tensor], obs: ObsTensors) -> tuple[Tensor, Tensor | None, Tensor]:
        """Values of the batch's actions, [E, B], of all three gripper actions, [B, 3], and the critics' features."""
        features, net = self.net.critic_encoder(obs), self.net
        grasp_values = None if net.grasp_critic is None else net.grasp_critic(features)
        return net.critic(features, batch.actions[:, : self._arm].clamp(-1, 1)), grasp_values, features

    @torch.no_grad()
    def _targets(self, batch: Batch[Tensor], next_obs: ObsTensors) -> Tensor:
        """What each step should be valued at: by the critics, and by the grasp critic, [1 or 2, B]."""
        features, target_features = run_parallel(
            lambda: self.net.actor_encoder(next_obs), lambda: self.net.target_critic_encoder(next_obs)
        )
        actions, _ = self.net.actor(features, self._noise(len(batch.reward), self.rng))
        subset = sample_critics(self.config.num_subsample_critics, self.config.num_critics, self.rng)
        values = [self.net.target_critic(target_features, actions, subset).amin(dim=0)]
        if self.net.grasp_critic is not None and self.net.target_grasp_critic is not None:
            best = self.net.grasp_critic(self._critic_features(next_obs, features)).argmax(dim=1, keepdim=True)
            values.append(self.net.target_grasp_critic(target_features).gather(1, best).squeeze(1))
        return batch.reward + batch.discount * torch.stack(values)

    def _grasp_loss(self, values: Tensor, target: Tensor, batch: Batch[Tensor]) -> Tensor:
        """values: of the three gripper actions, [B, 3]; the nearest to the batch's action was taken"""
        taken = batch.actions[:, -1].clamp(-1, 1).round().long() + 1
        loss = (values.gather(1, taken[:, None]).squeeze(1) - target).square().mean()
        if not self.config.bc_weight:
            return loss
        is_demo = (batch.part == 0).float()
        cloning = F.cross_entropy(values, taken, reduction="none")
        return loss + self.config.bc_weight * (cloning * is_demo).sum() / is_demo.sum().clamp(min=1)

    def _bc_loss(self, actions: Tensor, batch: Batch[Tensor]) -> Tensor:
        """How far the actor's actions are from those of the demonstrations, the first part of a mix."""
        is_demo = (batch.part == 0).float()
        apart = (actions - batch.actions[:, : self._arm].clamp(-1, 1)).square().sum(dim=-1)
        return (apart * is_demo).sum() / is_demo.sum().clamp(min=1)

    @property
    def critics(self) -> list[tuple[nn.Module, nn.Module | None]]:
        """Each critic with its target network."""
        net = self.net
        pairs: list[tuple[nn.Module, nn.Module | None]] = [(net.critic, net.target_critic)]
        if net.grasp_critic is not None and net.target_grasp_critic is not None:
            pairs.append((net.grasp_critic, net.target_grasp_critic))
        return pairs

    @property
    def components(self) -> dict[str, nn.Module]:
        """The policy's part."""
        parts: dict[str, nn.Module] = {"encoder": self.net.actor_encoder, "actor": self.net.actor}
        if self.net.grasp_critic is not None:
            parts |= {} if self._shared else {"critic_encoder": self.net.critic_encoder}
            parts["grasp_critic"] = self.net.grasp_critic
        return parts

    def policy_config(self, *, explore: bool = False) -> GaussianConfig:
        """The config of the policy that acts with these weights."""
        actor = ActorConfig(kind="squashed", hidden_dims=self.config.hidden_dims)
        own = {"actor": actor, "gripper": self.config.gripper, "stochastic": explore}
        return GaussianConfig(**self.policy_fields(explore=explore), **own)

    def _noise(self, count: int, rng: torch.Generator) -> Tensor:
        return torch.randn(count, self._arm, generator=rng, device=self.device)
