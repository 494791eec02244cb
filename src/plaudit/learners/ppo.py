"""Proximal policy optimization (arXiv 1707.06347), for simulators that make more episodes than a learner needs.

One update takes one rollout: values of all observations, advantages by GAE (1506.02438), then a few epochs of
minibatches under the clipped objective. An episode that was truncated is bootstrapped with the value of its last
observation; one that terminated is not. Actions are sampled from a plain Gaussian, and the robot clips them. Settings
are near those ManiSkill's PickCube is run with; the details follow "The 37 implementation details of PPO".
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from plaudit.data.step_table import history_window
from plaudit.devices import Adam
from plaudit.learners.base import LearnerBase, make_adam
from plaudit.learners.config import PpoConfig
from plaudit.policies.config import ActorConfig, GaussianConfig
from plaudit.policies.networks import Encoder, Linear, ObsTensors, gaussian_actor, mlp, run_parallel
from plaudit.rollout.vector import ActFn, RolloutBatch
from plaudit.types import AnyArray, Batch, EnvSpec, FloatArray, Observation

MAX_BATCH = 512  # observations at a time when a rollout is prepared
PADDED_TO = 8  # sizes of minibatches on a GPU are multiples of this


class ActorCritic(nn.Module):
    """A Gaussian policy and a value that share nothing: an untrained value would spoil the encoder of a policy that
    was pretrained on demonstrations."""

    def __init__(
        self,
        env_spec: EnvSpec,
        hidden_dims: tuple[int, ...],
        log_std_init: float,
        make_encoder: Callable[[], Encoder],
    ):
        super().__init__()
        self.actor_encoder = make_encoder()
        self.actor = gaussian_actor(self.actor_encoder.size, env_spec.action_dim, hidden_dims)
        self.critic_encoder = make_encoder()
        size = self.critic_encoder.size
        self.critic = nn.Sequential(mlp([size, *hidden_dims], nn.Tanh), Linear(hidden_dims[-1], 1))
        self.log_std = nn.Parameter(torch.full((env_spec.action_dim,), log_std_init))
        # Whether demonstrations were cloned. Among the tensors, so that every checkpoint has it.
        self.bc_pretrained = nn.Buffer(torch.tensor(False))

    def forward(self, obs: ObsTensors, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Log density of actions [B, A] and value, [B] each."""
        mean, value = run_parallel(
            lambda: self.actor(self.actor_encoder(obs)), lambda: self.critic(self.critic_encoder(obs))
        )
        z = (actions - mean) / self.log_std.exp()
        log_density = (-0.5 * z.square() - self.log_std - 0.5 * math.log(2 * math.pi)).sum(-1)
        return log_density, value.squeeze(-1)


class Ppo(LearnerBase):
    """A `Learner` of rollouts."""

    config: PpoConfig
    net: ActorCritic

    on_policy = True

    def make_net(self) -> ActorCritic:
        """Actor and critic, each with an encoder."""
        return ActorCritic(self.env_spec, self.config.hidden_dims, self.config.log_std_init, self.make_encoder)

    def make_optimizers(self) -> dict[str, Adam]:
        """One of everything."""
        return {"all": make_adam(self.config.lr, self.net, eps=1e-5)}

    def act_fn(self, *, explore: bool) -> ActFn:
        """For one rollout: observations of N envs -> actions [N, A]."""
        return partial(self.act, rng=self.rollout_rng(explore=True) if explore else None)

    def act(self, observation: Observation, rng: torch.Generator | None) -> FloatArray:
        """Actions [N, A] for N observations. rng: of the noise that explores; None: without noise"""
        with torch.inference_mode():
            mean = self.net.actor(self.net.actor_encoder(self.tensors(observation)))
            if rng is not None:
                noise = torch.randn(mean.shape, generator=rng, device=self.device)
                mean = mean + self.net.log_std.exp() * noise
        return mean.cpu().numpy()

    def update(self, rollout: RolloutBatch) -> Mapping[str, float]:
        """Learn from one rollout, once."""
        self.version += 1
        if not rollout.used.any():
            return {}
        data = self._prepare(rollout)
        warming_up = bool(self.net.bc_pretrained) and self.version <= self.config.critic_warmup_iterations
        steps: list[Mapping[str, Tensor]] = []
        for rows in self._minibatches(len(data.returns)):
            steps.append(self.run_step(self._step, self._minibatch(data, rows), update_policy=not warming_up))
            if self.config.target_kl is not None and float(steps[-1]["policy/approx_kl"]) > self.config.target_kl:
                break
        means = {name: float(torch.stack([metrics[name] for metrics in steps]).mean()) for name in steps[0]}
        std = float(self.net.log_std.detach().exp().mean())
        return {**means, "policy/std": std, "policy/num_minibatches": len(steps)}

    def bc_update(self, batch: Batch[Tensor]) -> Tensor:
        """One step of behavior cloning, without which a sparse reward is rarely found at all; returns the loss."""
        self.net.bc_pretrained.fill_(True)
        return self.run_step(self._bc_step, batch)["loss/bc"]

    def _bc_step(self, batch: Batch[Tensor]) -> dict[str, Tensor]:
        (obs,) = self.augment(ObsTensors(batch.images, batch.state), pad=self.config.random_shift_pad)
        density, _ = self.net(obs, batch.actions.clamp(-1, 1))
        loss = -density.mean()
        self._optimizer_step(loss, self.config.pretrain_lr)
        return {"loss/bc": loss.detach()}

    def _optimizer_step(self, loss: Tensor, lr: float) -> None:
        optimizer = self.optimizers["all"]
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), self.config.max_grad_norm)
        optimizer.step()

    def _minibatches(self, count: int) -> Iterator[Tensor]:
        for _ in range(self.config.update_epochs):
            order = torch.randperm(count, generator=self.rng, device=self.device)
            yield from order.chunk(self.config.num_minibatches)

    def _minibatch(self, data: "_RolloutTensors", rows: Tensor) -> "_RolloutTensors":
        """Some steps of a rollout. On a GPU they are padded, so that few sizes occur and few graphs are captured."""
        padding = -len(rows) % PADDED_TO if self.device.type == "cuda" else 0
        weight = torch.ones(len(rows), device=self.device)
        rows, weight = F.pad(rows, (0, padding)), F.pad(weight, (0, padding))
        return _RolloutTensors(
            obs=data.obs[rows],
            actions=data.actions[rows],
            density=data.density[rows],
            advantage=data.advantage[rows],
            returns=data.returns[rows],
            weight=weight,
        )

    @property
    def components(self) -> dict[str, nn.Module]:
        """The policy's part."""
        return {"encoder": self.net.actor_encoder, "actor": self.net.actor}

    def policy_config(self, *, explore: bool = False) -> GaussianConfig:
        """The config of the policy that acts with these weights, without exploration: it has no standard deviation."""
        actor = ActorConfig(kind="plain", hidden_dims=self.config.hidden_dims)
        return GaussianConfig(**self.policy_fields(explore=False), actor=actor)

    def _prepare(self, rollout: RolloutBatch) -> "_RolloutTensors":
        """Values, advantages and old densities of every step, in one pass over the rollout."""
        steps = len(rollout.reward)
        frozen, cameras = self.encoder.frozen, self.env_spec.cameras
        frames = rollout.images if frozen is None else frozen.encode(rollout.images)
        images = {camera: self._windows(frames[camera]) for camera in cameras}
        state = self._windows(rollout.state)
        actions = torch.from_numpy(rollout.actions).to(self.device)
        flat = ObsTensors({c: i.flatten(0, 1) for c, i in images.items()}, state.flatten(0, 1))
        taken = torch.cat([actions, actions[-1:]]).flatten(0, 1)  # no action follows the last observation
        with torch.no_grad():
            parts = [self.net(self._seen(flat[r]), taken[r]) for r in torch.arange(len(taken)).split(MAX_BATCH)]
        density, values = (torch.cat(part).unflatten(0, (steps + 1, -1)) for part in zip(*parts, strict=True))
        advantages = gae(rollout, values.cpu().numpy(), self.config.gamma, self.config.gae_lambda)
        valid = torch.from_numpy(rollout.used).to(self.device)
        advantage = torch.from_numpy(advantages).to(self.device)[valid]
        return _RolloutTensors(
            obs=ObsTensors({c: i[:-1][valid] for c, i in images.items()}, state[:-1][valid]),
            actions=actions[valid],
            density=density[:-1][valid],
            advantage=advantage,
            returns=advantage + values[:-1][valid],
            weight=torch.ones_like(advantage),
        )

    def _windows(self, observed: AnyArray) -> Tensor:
        """What was observed, [T+1, N, ...], each with its history, [T+1, N, 1 + history, ...]."""
        steps, values = np.arange(len(observed)), torch.from_numpy(observed).to(self.device)
        if not self.encoder.history:
            return values
        return values[torch.from_numpy(history_window(steps, 0, self.encoder.history)).to(self.device)].movedim(1, 2)

    def _seen(self, obs: ObsTensors) -> ObsTensors:
        """Observations as updates see them: without random shifts, which would change the densities."""
        (seen,) = self.augment(obs, pad=0)
        return seen

    def _step(self, data: "_RolloutTensors", *, update_policy: bool) -> dict[str, Tensor]:
        """One minibatch."""
        config, share = self.config, data.weight / data.weight.sum()
        density, value = self.net(self._seen(data.obs), data.actions)
        log_ratio = density - data.density
        ratio = log_ratio.exp()
        centered = data.advantage - (share * data.advantage).sum()
        advantage = centered / ((share * centered.square()).sum().sqrt() + 1e-8)
        clipped = ratio.clamp(1 - config.clip_coef, 1 + config.clip_coef)
        policy_loss = -(share * torch.minimum(ratio * advantage, clipped * advantage)).sum()
        value_loss = 0.5 * (share * (value - data.returns).square()).sum()
        entropy = self.net.log_std.sum() + 0.5 * math.log(2 * math.pi * math.e) * self.env_spec.action_dim
        loss = config.vf_coef * value_loss
        if update_policy:
            loss = loss + policy_loss - config.ent_coef * entropy
        self._optimizer_step(loss, self.config.lr)
        with torch.no_grad():
            approx_kl = (share * (ratio - 1 - log_ratio)).sum()
            clip_fraction = (share * ((ratio - 1).abs() > config.clip_coef)).sum()
        metrics = {"loss/policy": policy_loss, "loss/value": value_loss}
        metrics |= {"policy/approx_kl": approx_kl, "policy/clip_fraction": clip_fraction}
        return {name: number.detach() for name, number in metrics.items()}


@dataclass(frozen=True)
class _RolloutTensors:
    """M steps of a rollout, as tensors."""

    obs: ObsTensors
    actions: Tensor  # [M, A]
    density: Tensor  # [M] log density when it was sampled
    advantage: Tensor  # [M]
    returns: Tensor  # [M]
    weight: Tensor  # [M] 0 for padding


def gae(rollout: RolloutBatch, values: FloatArray, gamma: float, lam: float) -> FloatArray:
    """Advantages [T, N] from values [T+1, N]: sums of (gamma * lam)^k * td error, up to where each episode ends."""
    steps, count = rollout.reward.shape
    last = np.arange(steps)[:, None] == rollout.length - 1
    goes_on = ~(last & rollout.terminated)
    error = rollout.reward + gamma * values[1:] * goes_on - values[:-1]
    advantages = np.zeros((steps, count), np.float32)
    running = np.zeros(count, np.float32)
    for t in reversed(range(steps)):
        running = error[t] + gamma * lam * running * ~last[t]
        running = np.where(t < rollout.length, running, 0.0)
        advantages[t] = running
    return advantages
