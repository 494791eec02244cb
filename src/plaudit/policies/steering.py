"""Policies on top of a trained flow, the base: an edit of its chunks, its initial noise, or the choice among chunks.

Each is one module, which its learner trains and the robot's policy takes whole, so that both act by the same code. The
base is part of it, with the statistics that it was trained with: the observations and the chunks around it are in the
units of the run.

    EditedChunks     learners/expo.py    the best of N base chunks and N edited ones
    NoiseActor       learners/dsrl.py    an actor chooses the noise that the base starts from
    BestOf           learners/steer.py   critics choose among N chunks of any policy that can be sampled
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from plaudit.data.normalize import ACTION, STATE
from plaudit.data.normalize import Normalizer as AffineNormalizer
from plaudit.errors import PolicyError
from plaudit.policies.config import DsrlPolicyConfig, ExpoPolicyConfig, FlowSettings, SteerPolicyConfig
from plaudit.policies.flow import NUM_FLAGS, Units, VelocityNet, clip_actions, flagged_velocity, integrate
from plaudit.policies.loader import PolicySpec, load_policy, read_weights
from plaudit.policies.networks import (
    CriticEnsemble,
    Encoder,
    NetworkPolicy,
    ObsTensors,
    TanhGaussian,
    frozen_encoder,
    load_components,
    obs_to_tensors,
    seeded,
)
from plaudit.protocols import Normalizer, SampledPolicy
from plaudit.types import EnvSpec, FloatArray, Observation, PolicyWeights

FIRST_LOG_STD = -1.5  # of the editor, before tanh


class BaseFlow(nn.Module):
    """A flow policy as a module: observations and noise in, chunks within [-1, 1] out."""

    def __init__(self, config: FlowSettings):
        super().__init__()
        self.config = config
        spec = EnvSpec(config.state_dim, config.action_dim, config.cameras)
        with seeded(config.seed):
            self.frozen = frozen_encoder(config.encoder, config.cameras, torch.device("cpu"))
            self.encoder = Encoder(spec, config.encoder, self.frozen, history=config.history)
            inputs = self.encoder.size + (0 if config.improvement is None else NUM_FLAGS)
            net = config.velocity_net
            self.velocity_net = VelocityNet(
                inputs, config.horizon, config.action_dim, net.width, net.depth, config.max_prefix
            )
        self.units = Units(config.state_dim, config.action_dim)

    def features(self, obs: ObsTensors) -> Tensor:
        """[B, F] of observations in the units around it."""
        return self.encoder(self.units.scaled(obs))

    def sample(self, obs: ObsTensors, rng: torch.Generator) -> Tensor:
        """A chunk [B, H, A] for each observation, from normal noise."""
        features = self.features(obs)
        shape = len(features), 1, self.config.horizon, self.config.action_dim
        return self.chunks(features, torch.randn(shape, generator=rng, device=features.device))[:, 0]

    def chunks(self, features: Tensor, noise: Tensor) -> Tensor:
        """Chunks [B, N, H, A] from noise of that shape, in the units around it. features: [B, F]"""

        def velocity(chunks: Tensor, tau: float) -> Tensor:
            time = torch.full((1,), tau, device=chunks.device)
            return flagged_velocity(self.velocity_net, chunks, time, features[:, None], self.config.improvement)

        return clip_actions(self.units.from_action(integrate(noise, velocity, self.config.num_inference_steps)))


def load_base(spec: PolicySpec, flow: FlowSettings, around: AffineNormalizer | None) -> BaseFlow:
    """The flow of a policy's file with its weights.

    flow: its config; where the file's has no improvement flag and this has one, the flag has no effect yet
    around: the normalizer of the run, whose units the base is given; None: the robot's own
    """
    base = BaseFlow(flow)
    if spec.weights is None:
        raise PolicyError("the base policy is untrained: its file names no weights; train it first (train-policy)")
    weights = read_weights(spec.weights)
    tensors = dict(weights.tensors)
    first = "velocity_net/observation.0.weight"
    if flow.improvement is not None and spec.config.improvement is None and first in tensors:
        tensors[first] = np.concatenate([tensors[first], np.zeros((NUM_FLAGS, tensors[first].shape[1]), np.float32)])
    parts: dict[str, nn.Module] = {"encoder": base.encoder, "velocity_net": base.velocity_net}
    if spec.config.own_units:
        parts["units"] = base.units
    load_components(parts, PolicyWeights(weights.version, tensors))
    if base.frozen is not None:
        if spec.frozen is None:
            raise PolicyError(
                "the base policy has a frozen image encoder, and its file names no weights of it (frozen)"
            )
        load_components({"frozen": base.frozen}, read_weights(spec.frozen))
    compose_units(base.units, spec, around)
    return base


@torch.no_grad()
def compose_units(units: Units, spec: PolicySpec, around: AffineNormalizer | None) -> None:
    """Put the conversion from the units around a policy to those of its own normalizer in front of `units`."""
    own = None if spec.normalizer is None else AffineNormalizer.load(spec.normalizer)
    for key, name in ((STATE, "state"), (ACTION, "action")):
        scale, shift = getattr(units, f"{name}_scale"), getattr(units, f"{name}_shift")
        if len(scale):
            (mean, std), (outer_mean, outer_std) = (_affine(each, key, len(scale)) for each in (own, around))
            shift.add_(scale * torch.from_numpy((outer_mean - mean) / std))  # (x * outer_std + outer_mean - mean) / std
            scale.mul_(torch.from_numpy(outer_std / std))


def _affine(normalizer: AffineNormalizer | None, key: str, size: int) -> tuple[FloatArray, FloatArray]:
    """Mean and standard deviation as a normalizer uses them."""
    if normalizer is None:
        return np.zeros(size, np.float32), np.ones(size, np.float32)
    stats = normalizer.stats_of(key)
    if stats.mean.shape != (size,):
        raise PolicyError(f"the statistics of '{key}' have {len(stats.mean)} values, and the base policy takes {size}")
    return stats.mean.astype(np.float32), (stats.std + normalizer.eps).astype(np.float32)


def chunk_values(
    critic: CriticEnsemble, features: Tensor, chunks: Tensor, valued: int, members: Tensor | None = None
) -> Tensor:
    """Values [E, B, N] of chunks [B, N, H, A] by the first `valued` actions of each. members: some of the critics"""
    batch, count = chunks.shape[:2]
    inputs = chunks[:, :, :valued].reshape(batch * count, -1)
    return critic(features.repeat_interleave(count, dim=0), inputs, members).view(-1, batch, count)


def pick(chunks: Tensor, values: Tensor, learned: Tensor) -> Tensor:
    """Of chunks [B, N, H, A] the one [B, H, A] with the highest value [B, N]; the first, while nothing is learned."""
    best = torch.where(learned, values.argmax(dim=1), 0)
    return chunks[torch.arange(len(chunks), device=chunks.device), best]


class Editor(nn.Module):
    """Bounded corrections of the first actions of a chunk: scale * tanh of a Gaussian."""

    def __init__(self, features: int, actions: int, hidden_dims: tuple[int, ...]):
        super().__init__()
        self.actor = TanhGaussian(features + actions, actions, hidden_dims)
        with torch.no_grad():  # it starts with small corrections of about the entropy that learning aims at
            self.actor.head.weight.mul_(0.01)
            self.actor.head.bias[actions:] = FIRST_LOG_STD
        self.scale = nn.Buffer(torch.zeros(()))  # grows to the largest correction; goes to the robot with the weights

    def forward(self, features: Tensor, chunks: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Edited chunks [B, N, v, A] of chunks [B, N, v, A], and the log density of tanh's sample [B, N].

        features: [B, F]; noise: [B, N, v * A]
        """
        edits, log_density = self.edits(features, chunks, noise)
        return clip_actions(chunks + self.scale * edits), log_density

    def edits(self, features: Tensor, chunks: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """The same before scaling: edits within [-1, 1]."""
        flat = chunks.flatten(2)
        seen = torch.cat([features[:, None].expand(-1, flat.shape[1], -1), flat], dim=-1)
        edits, log_density = self.actor(seen, noise)
        return edits.view_as(chunks), log_density


class EditedChunks(nn.Module):
    """What EXPO acts with: the best of the base's chunks and of their edits. Before any update it acts as the base."""

    def __init__(self, config: ExpoPolicyConfig, encoder: Encoder):
        super().__init__()
        self.config = config
        self.valued = config.critic_horizon or config.base.horizon  # actions of a chunk
        actions = self.valued * config.action_dim
        self.base, self.encoder = BaseFlow(config.base), encoder
        self.critic = CriticEnsemble(config.critic.num_critics, encoder.size + actions, config.critic.hidden_dims)
        self.editor = Editor(encoder.size, actions, config.critic.hidden_dims)
        self.learned = nn.Buffer(torch.tensor(False))  # whether there was an update

    def features(self, obs: ObsTensors) -> Tensor:
        """[B, F] for editor and critics, of states scaled as the base scales them."""
        return self.encoder(self.base.units.scaled(obs))

    def candidates(self, obs: ObsTensors, features: Tensor, rng: torch.Generator) -> Tensor:
        """[B, 2N, H, A] chunks of the base and the same edited; without a choice the edited ones alone."""
        shape = (len(features), self.config.num_samples, self.config.base.horizon, self.config.action_dim)
        noise = torch.randn(shape, generator=rng, device=features.device)
        chunks = self.base.chunks(self.base.features(obs), noise)
        first, rest = chunks[:, :, : self.valued], chunks[:, :, self.valued :]
        edit_noise = torch.randn(first.flatten(2).shape, generator=rng, device=features.device)
        edited = torch.cat([self.editor(features, first, edit_noise)[0], rest], dim=2)
        return torch.cat([chunks, edited], dim=1) if self.config.select else edited

    def choose(self, features: Tensor, candidates: Tensor, rng: torch.Generator) -> Tensor:
        """The candidate [B, H, A] that the less convinced of two random critics values most."""
        if candidates.shape[1] == 1:
            return candidates[:, 0]
        pair = torch.rand(self.config.critic.num_critics, generator=rng, device=features.device).topk(2).indices
        values = chunk_values(self.critic, features, candidates, self.valued, pair).amin(dim=0)
        return pick(candidates, values, self.learned)

    def forward(self, obs: ObsTensors, rng: torch.Generator) -> Tensor:
        """Chunks [B, H, A]."""
        features = self.features(obs)
        return self.choose(features, self.candidates(obs, features, rng), rng)


class NoiseActor(nn.Module):
    """What DSRL acts with: the base, from noise that an actor chooses. Before any update the noise is normal."""

    def __init__(self, config: DsrlPolicyConfig, encoder: Encoder):
        super().__init__()
        self.config, self.base, self.encoder = config, BaseFlow(config.base), encoder
        self.size = config.action_dim * (1 if config.repeat_noise else config.base.horizon)  # numbers that are chosen
        self.actor = TanhGaussian(encoder.size, self.size, config.hidden_dims)
        self.learned = nn.Buffer(torch.tensor(False))  # whether there was an update

    def features(self, obs: ObsTensors) -> Tensor:
        """[B, F] for actor and critics, of states scaled as the base scales them."""
        return self.encoder(self.base.units.scaled(obs))

    def noise(self, chosen: Tensor) -> Tensor:
        """The noise [B, H, A] of what an actor chose, [B, size]."""
        rows = chosen.view(len(chosen), -1, self.config.action_dim)
        return rows.expand(-1, self.config.base.horizon, -1)

    def chunks(self, base_features: Tensor, chosen: Tensor) -> Tensor:
        """The base's chunks [B, H, A] from that noise."""
        return self.base.chunks(base_features, self.noise(chosen)[:, None])[:, 0]

    def sample(self, features: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Chosen noise [B, size], and the log density [B] of it divided by the bound."""
        standard = torch.randn(len(features), self.size, generator=rng, device=features.device)
        actions, log_density = self.actor(features, standard)
        return self.config.noise_bound * actions, log_density

    def forward(self, obs: ObsTensors, rng: torch.Generator, explore: bool | None = None) -> Tensor:
        """Chunks [B, H, A]. explore: sample the noise; None: as the config says"""
        explore = self.config.stochastic if explore is None else explore
        features = self.features(obs)
        chosen = self.sample(features, rng)[0] if explore else self.config.noise_bound * self.actor.mode(features)
        noise = self.noise(chosen)
        normal = torch.randn(noise.shape, generator=rng, device=noise.device)
        noise = torch.where(self.learned, noise, normal)
        return self.base.chunks(self.base.features(obs), noise[:, None])[:, 0]


class BestOf(nn.Module):
    """What `steer` acts with, in addition to the policy that it samples: critics of chunks."""

    def __init__(self, config: SteerPolicyConfig, encoder: Encoder):
        super().__init__()
        self.config, self.encoder = config, encoder
        self.units = Units(config.state_dim, config.action_dim)
        inputs = encoder.size + config.critic_horizon * config.action_dim
        self.critic = CriticEnsemble(config.critic.num_critics, inputs, config.critic.hidden_dims)
        self.learned = nn.Buffer(torch.tensor(False))  # whether there was an update

    def features(self, obs: ObsTensors) -> Tensor:
        """[B, F] for the critics, of states scaled as the policy scales them."""
        return self.encoder(self.units.scaled(obs))

    def forward(self, obs: ObsTensors, chunks: Tensor) -> Tensor:
        """Of N chunks [B, N, H, A] the one [B, H, A] that the critics value most on average."""
        chunks = clip_actions(chunks)
        values = chunk_values(self.critic, self.features(obs), chunks, self.config.critic_horizon).mean(dim=0)
        return pick(chunks, values, self.learned)


MODULES: dict[str, type[nn.Module]] = {"expo": EditedChunks, "dsrl": NoiseActor, "steer": BestOf}


class SteeredPolicy(NetworkPolicy):
    """A policy around one of these modules. A new chunk is blended with the previous one: only a flow can be guided."""

    def __init__(self, config: Any):
        super().__init__(config)
        self.config = config
        with seeded(config.seed):
            encoder = Encoder(self.env_spec, config.encoder, history=config.history)
            self.module = MODULES[config.type](config, encoder).to(self.device)
        self.components = {"policy": self.module}

    def predict(self, observation: Observation, normalizer: Normalizer) -> FloatArray:
        """A chunk [H, A] in the robot's units."""
        with torch.inference_mode():
            (chunk,) = self.module(self._tensors(observation, normalizer), self.rng)
        return normalizer.denormalize_action(chunk.cpu().numpy())

    def _tensors(self, observation: Observation, normalizer: Normalizer) -> ObsTensors:
        """One observation in the units of the run, [1, ...]."""
        seen = observation.window(self.config.history, self.env_spec.cameras)
        state = normalizer.normalize_state(seen.state) if self.env_spec.state_dim else seen.state
        images = {camera: frames[None] for camera, frames in seen.images.items()}
        return obs_to_tensors(Observation(images, state[None]), self.env_spec, self.device)


class SteerPolicy(SteeredPolicy):
    """The best of N chunks of a policy from another file, by critics."""

    def __init__(self, config: SteerPolicyConfig):
        super().__init__(config)
        self.base = Candidates(load_policy(config.base), config.seed, config.action_dim)

    def predict(self, observation: Observation, normalizer: Normalizer) -> FloatArray:
        """The best chunk [H, A], in the robot's units."""
        chunks = normalizer.normalize_action(self.base.sample(observation, self.config.num_samples))
        with torch.inference_mode():
            seen = self._tensors(observation, normalizer)
            (best,) = self.module(seen, torch.from_numpy(chunks[None]).to(self.device))
        return normalizer.denormalize_action(best.cpu().numpy())


class Candidates:
    """Any policy that can be sampled, with its own normalizer: observations and chunks are in the robot's units."""

    def __init__(self, spec: PolicySpec, seed: int, action_dim: int):
        if "seed" in type(spec.config).model_fields:
            spec = spec.model_copy(update={"policy": {**spec.policy, "seed": seed}})
        policy = spec.build()
        if not isinstance(policy, SampledPolicy):
            raise PolicyError(
                f"a '{spec.policy['type']}' policy gives one chunk for an observation, so there is nothing to choose "
                "from; take one that can be sampled, like flow (docs/pretrained.md has a table)"
            )
        self.policy, self._action_dim = policy, action_dim
        self._normalizer = None if spec.normalizer is None else AffineNormalizer.load(spec.normalizer)

    def sample(self, observation: Observation, count: int) -> FloatArray:
        """Chunks [count, H, A]."""
        identity = AffineNormalizer.identity(observation.state.shape[-1], self._action_dim)
        return self.policy.sample(observation, self._normalizer or identity, count)
