"""Samples chunks of actions by flow matching (arXiv 2210.02747), with the guidance of real-time chunking (2506.07339).

A chunk starts as noise at tau = 0 and follows the velocity to tau = 1 in a few Euler steps. To continue the previous
chunk Y with weights W, each step predicts the final chunk and corrects the velocity towards Y:

    A1 = A + (1 - tau) v                                      the predicted final chunk
    v' = v + min(beta, (1 - tau) / (tau r^2)) * J^T [(Y - A1) * W],  r^2 = (1 - tau)^2 / (tau^2 + (1 - tau)^2)

J is the Jacobian of A1 by A. Through it the guided actions also change the free ones, as the network has learned that
they depend on each other; without it ("identity") each action is corrected on its own.

Training-time RTC (2512.05964) needs neither. In training, the first d actions of a chunk are given clean, d is random,
and the loss is that of the others. At inference ("prefix"), they are the actions that will have run by then.

Q-chunking (2507.07969) samples N chunks and takes the one that critics value most. The flow models what was done in a
state, good and bad; the critics estimate the return. The components of its policy have the names of the learner's, so
that the weights of `plaudit train` are loaded as they are: that learner observes states and returns actions in the
robot's own units, so its normalizer is the identity.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from plaudit.errors import PolicyError
from plaudit.files import brief
from plaudit.policies.config import FlowSettings, QChunkPolicyConfig
from plaudit.policies.guidance import compute_guided_prefix_weights, shift_chunk
from plaudit.policies.networks import (
    CriticEnsemble,
    Encoder,
    Linear,
    NetworkPolicy,
    ObsTensors,
    encode,
    seeded,
    to_tensor,
)
from plaudit.protocols import Normalizer
from plaudit.types import ANY_TASK, FloatArray, Observation

NUM_FREQUENCIES = 32  # of the time embedding
NUM_FLAGS = 2  # inputs that say whether a chunk improves on what was recorded: it does not, it does
NONE = -1  # neither
TASK_FEATURES = 32  # numbers of an instruction


class VelocityNet(nn.Module):
    """The velocity v(chunk, tau, features) of a flow: the direction in which noise moves to become actions.

    A residual network over the whole chunk as one vector. Time and observation enter each block as a scale and a shift
    (as in DiT, arXiv 2212.09748). (Rejected: a transformer over actions, which uses each parameter once per action and
    at 16 to 50 actions costs that many times the arithmetic, on CPUs with a control tick to meet.)
    """

    def __init__(self, features: int, horizon: int, action_dim: int, width: int, depth: int, max_prefix: int = 0):
        """max_prefix: actions at the start of a chunk that may be given clean"""
        super().__init__()
        self.max_prefix = max_prefix
        if max_prefix:
            self.prefix = Linear(horizon, width, gain=0.0)
        self.time = nn.Sequential(Linear(2 * NUM_FREQUENCIES, width), nn.SiLU(), Linear(width, width))
        self.observation = nn.Sequential(Linear(features, width), nn.SiLU(), Linear(width, width))
        self.enter = Linear(horizon * action_dim, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.leave = nn.Sequential(nn.LayerNorm(width), Linear(width, horizon * action_dim, gain=0.0))

    def forward(self, actions: Tensor, tau: Tensor, features: Tensor, given: Tensor | None = None) -> Tensor:
        """[B, H, A] at chunks [B, H, A] and times tau [B] between 0, noise, and 1, actions; features are [B, F].

        Leading axes broadcast: N chunks an observation, [B, N, H, A], go with features [B, 1, F] and one time [1], and
        what depends on these alone is worked out once.

        given: [..., H] True for the first actions, where they are clean; None: all of them are noisy
        """
        condition = self.time(time_embedding(tau)) + self.observation(features)
        if self.max_prefix:
            given = torch.zeros(actions.shape[-2], device=actions.device) if given is None else given.to(actions.dtype)
            condition = condition + self.prefix(given)
        condition = F.silu(condition)
        x = self.enter(actions.flatten(-2))
        for block in self.blocks:
            x = block(x, condition)
        return self.leave(x).view_as(actions)


class Block(nn.Module):
    """A residual block, modulated by the condition."""

    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.modulate = Linear(width, 2 * width, gain=0.0)
        self.layers = nn.Sequential(Linear(width, 2 * width), nn.SiLU(), Linear(2 * width, width))

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """The velocity of a noisy chunk."""
        scale, shift = self.modulate(condition).chunk(2, dim=-1)
        return x + self.layers(self.norm(x) * (1 + scale) + shift)


def time_embedding(tau: Tensor) -> Tensor:
    """[B] -> [B, 2 * NUM_FREQUENCIES], sines and cosines of low to high frequency."""
    frequency = torch.logspace(0, math.log10(200), NUM_FREQUENCIES, device=tau.device)
    angle = tau[:, None] * frequency
    return torch.cat([angle.sin(), angle.cos()], dim=1)


Velocity = Callable[[Tensor, float], Tensor]  # (chunks [N, H, A], tau) -> the velocity there


def integrate(noise: Tensor, velocity: Velocity, steps: int) -> Tensor:
    """From noise to chunks of the same shape, by Euler; the velocity is that of chunks at a time tau."""
    chunks = noise
    for step in range(steps):
        chunks = chunks + velocity(chunks, step / steps) / steps
    return chunks


def matching_loss(
    velocity: VelocityNet, features: Tensor, chunks: Tensor, mask: Tensor, generator: torch.Generator
) -> Tensor:
    """Conditional flow matching of chunks [B, H, A]; where the mask [B, H] is False, actions do not count.

    At a random time tau on the straight line from noise e to actions a, the network is to predict the velocity a - e.
    """
    noise = torch.randn(chunks.shape, generator=generator, device=chunks.device)
    tau = torch.rand(len(chunks), generator=generator, device=chunks.device)
    along, counts = tau[:, None, None], mask[:, :, None]
    noisy, given = along * chunks + (1 - along) * noise, None
    if velocity.max_prefix:
        lengths = torch.randint(velocity.max_prefix + 1, tau.shape, generator=generator, device=chunks.device)
        given = torch.arange(chunks.shape[1], device=chunks.device) < lengths[:, None]
        noisy, counts = torch.where(given[:, :, None], chunks, noisy), (mask & ~given)[:, :, None]
    predicted = velocity(noisy, tau, features, given)
    error = (predicted - (chunks - noise)).square() * counts
    return error.sum() / (counts.sum().clamp(min=1) * chunks.shape[2])


def sample_chunks(net: VelocityNet, features: Tensor, shape: Sequence[int], steps: int, rng: torch.Generator) -> Tensor:
    """Chunks of this shape, [..., H, A], each from noise of its own."""

    def velocity(chunks: Tensor, tau: float) -> Tensor:
        return net(chunks, torch.full((1,), tau, device=chunks.device), features)

    return integrate(torch.randn(*shape, generator=rng, device=features.device), velocity, steps)


def with_flag(features: Tensor, flag: Tensor) -> Tensor:
    """Features [..., F] with the improvement flag: 1 improves, 0 does not, NONE: it is not said. flag: [...]"""
    return torch.cat([features, torch.stack([flag == value for value in range(NUM_FLAGS)], dim=-1)], dim=-1)


def flagged_velocity(
    net: VelocityNet,
    chunks: Tensor,
    tau: Tensor,
    features: Tensor,
    improvement: float | None,
    given: Tensor | None = None,
) -> Tensor:
    """The velocity towards chunks that improve on what was recorded: (1 - w) v(not said) + w v(improves).

    improvement: the weight w; None: a flow without the flag
    """
    if improvement is None:
        return net(chunks, tau, features, given)
    flag = torch.ones(features.shape[:-1], dtype=torch.long, device=features.device)
    improving = net(chunks, tau, with_flag(features, flag), given)
    if improvement == 1:
        return improving
    return torch.lerp(net(chunks, tau, with_flag(features, NONE * flag), given), improving, improvement)


class Units(nn.Module):
    """Converts the states and actions that a flow is given to those that it was trained with: x * scale + shift."""

    state_scale: Tensor
    state_shift: Tensor
    action_scale: Tensor
    action_shift: Tensor

    def __init__(self, state_dim: int, action_dim: int):
        super().__init__()
        for name, size in (("state", state_dim), ("action", action_dim)):
            self.register_buffer(f"{name}_scale", torch.ones(size))
            self.register_buffer(f"{name}_shift", torch.zeros(size))

    def state(self, state: Tensor) -> Tensor:
        """States as the flow takes them."""
        return state * self.state_scale + self.state_shift

    def scaled(self, obs: ObsTensors) -> ObsTensors:
        """Observations with such states."""
        return ObsTensors(obs.images, self.state(obs.state))

    def action(self, actions: Tensor) -> Tensor:
        """Actions as the flow was trained with them."""
        return actions * self.action_scale + self.action_shift

    def from_action(self, actions: Tensor) -> Tensor:
        """The inverse of `action`."""
        return (actions - self.action_shift) / self.action_scale


class OwnUnits:
    """A `Normalizer` with `Units` after it."""

    def __init__(self, normalizer: Normalizer, units: Units):
        self.normalize_image = normalizer.normalize_image
        self._normalizer, self._units = normalizer, units

    def normalize_state(self, state: FloatArray) -> FloatArray:
        """States [..., S]."""
        return self._convert(self._units.state, self._normalizer.normalize_state(state))

    def normalize_action(self, action: FloatArray) -> FloatArray:
        """Actions [..., A]."""
        return self._convert(self._units.action, self._normalizer.normalize_action(action))

    def denormalize_action(self, action: FloatArray) -> FloatArray:
        """The inverse of `normalize_action`, of actions clipped to the range that they were learned in."""
        return self._normalizer.denormalize_action(self._convert(self._units.from_action, action).clip(-1, 1))

    def _convert(self, convert: Callable[[Tensor], Tensor], values: FloatArray) -> FloatArray:
        return convert(to_tensor(values, self._units.state_scale.device)).cpu().numpy()


class FlowPolicy(NetworkPolicy):
    """Samples chunks of normalized actions from normalized states."""

    def __init__(self, config: FlowSettings):
        super().__init__(config)
        self.config = config
        with seeded(config.seed):
            self.encoder = Encoder(self.env_spec, config.encoder, self.frozen, history=config.history).to(self.device)
            size = config.velocity_net
            inputs = self.encoder.size + (0 if config.improvement is None else NUM_FLAGS)
            inputs += TASK_FEATURES if config.tasks else 0
            self.velocity_net = VelocityNet(
                inputs, config.horizon, config.action_dim, size.width, size.depth, config.max_prefix
            ).to(self.device)
            self.task = nn.Embedding(len(config.tasks), TASK_FEATURES).to(self.device) if config.tasks else None
        self.components = {"encoder": self.encoder, "velocity_net": self.velocity_net}
        if self.task is not None:
            self.components["task"] = self.task
        self.units = Units(config.state_dim, config.action_dim).to(self.device) if config.own_units else None
        if self.units is not None:
            self.components["units"] = self.units

    @property
    def noise_shape(self) -> tuple[int, int]:
        """(H, A) of the noise that a chunk starts from."""
        return self.config.horizon, self.config.action_dim

    def predict(self, observation: Observation, normalizer: Normalizer) -> FloatArray:
        """Actions [H, A] in the robot's units."""
        return self.sample(observation, normalizer, 1)[0]

    def sample(
        self, observation: Observation, normalizer: Normalizer, count: int, noise: FloatArray | None = None
    ) -> FloatArray:
        """Chunks [count, H, A] in the robot's units. noise: [count, H, A] that they start from; None: random"""
        normalizer = self._own_units(normalizer)
        return normalizer.denormalize_action(self._sample(observation, normalizer, count, noise).cpu().numpy())

    def guided_inference(
        self, observation: Observation, normalizer: Normalizer, previous: FloatArray, delay: int, executed: int
    ) -> FloatArray:
        """[H, A] that continues the previous chunk."""
        normalizer = self._own_units(normalizer)
        (chunk,) = self._sample_guided(observation, normalizer, 1, previous, delay, executed)
        return normalizer.denormalize_action(chunk.cpu().numpy())

    def with_task(self, features: Tensor, tasks: Sequence[str]) -> Tensor:
        """Features [B, F] with the instruction of each observation, where the policy takes one."""
        if self.task is None:
            return features
        known = self.config.tasks
        for task in set(tasks) - {*known, ANY_TASK}:
            name = f"this policy does not know the task {brief(task)}" if task else "this policy needs a task"
            raise PolicyError(f"{name}; it was trained for {', '.join(map(brief, known[:20]))}")
        rows = torch.tensor([0 if task == ANY_TASK else known.index(task) for task in tasks], device=features.device)
        return torch.cat([features, self.task(rows)], dim=-1)

    def _features(self, observation: Observation, normalizer: Normalizer) -> Tensor:
        features = encode(self.encoder, observation, normalizer, self.device)
        with torch.no_grad():
            return self.with_task(features, [observation.task])

    def _own_units(self, normalizer: Normalizer) -> Normalizer:
        return normalizer if self.units is None else OwnUnits(normalizer, self.units)

    def _sample(
        self, observation: Observation, normalizer: Normalizer, count: int, noise: FloatArray | None = None
    ) -> Tensor:
        """Chunks [count, H, A], normalized, each from noise of its own."""
        features = self._features(observation, normalizer)
        return self._integrate(count, lambda a, tau: self._velocity(a, tau, features), noise)

    def _sample_guided(
        self,
        observation: Observation,
        normalizer: Normalizer,
        count: int,
        previous: FloatArray,
        delay: int,
        executed: int,
    ) -> Tensor:
        """The same, each a continuation of the previous chunk."""
        wanted = (self.config.horizon, self.config.action_dim)
        if previous.shape != wanted:
            raise PolicyError(f"the previous chunk is {list(previous.shape)}, this policy's are {list(wanted)}")
        target = to_tensor(normalizer.normalize_action(shift_chunk(previous, executed)), self.device)
        bound = to_tensor(compute_guided_prefix_weights(self.config.horizon, delay, executed), self.device)[:, None]
        if self.config.guidance == "blend":
            return torch.lerp(self._sample(observation, normalizer, count), target, bound)
        features = self._features(observation, normalizer)
        if self.config.guidance == "prefix":
            given = torch.arange(len(target), device=self.device) < min(delay, len(target) - executed)
            given &= torch.arange(len(target), device=self.device) < self.config.max_prefix
            return self._continued(count, features, target, given)
        return self._integrate(count, lambda a, tau: self._guided_velocity(a, tau, features, target, bound))

    def _continued(self, count: int, features: Tensor, target: Tensor, given: Tensor) -> Tensor:
        """Chunks that begin with the given actions of a target [H, A]."""

        def velocity(actions: Tensor, tau: float) -> Tensor:
            clean = torch.where(given[:, None], target, actions)
            return self._velocity(clean, tau, features, given)

        chunks = self._integrate(count, velocity)
        return torch.where(given[:, None], target, chunks)

    def _velocity(self, actions: Tensor, tau: float, features: Tensor, given: Tensor | None = None) -> Tensor:
        with torch.no_grad():
            time = torch.full((1,), tau, device=self.device)
            return flagged_velocity(self.velocity_net, actions, time, features, self.config.improvement, given)

    def _guided_velocity(self, actions: Tensor, tau: float, features: Tensor, target: Tensor, bound: Tensor) -> Tensor:
        """The velocity, corrected towards a target [H, A] by weights [H, 1]."""
        weight = guidance_weight(tau, self.config.max_guidance_weight)
        if self.config.guidance == "identity":
            velocity = self._velocity(actions, tau, features)
            return velocity + weight * (target - actions - (1 - tau) * velocity) * bound
        with torch.enable_grad():
            actions = actions.detach().requires_grad_()
            time = torch.full((1,), tau, device=self.device)
            velocity = flagged_velocity(self.velocity_net, actions, time, features, self.config.improvement)
            heading = actions + (1 - tau) * velocity
            off = ((target - heading) * bound).detach()
            (pull,) = torch.autograd.grad(heading, actions, grad_outputs=off)
        return velocity.detach() + weight * pull

    def _integrate(self, count: int, velocity: Velocity, noise: FloatArray | None = None) -> Tensor:
        shape = (count, *self.noise_shape)
        if noise is None:
            start = torch.randn(shape, generator=self.rng, device=self.device)
        elif noise.shape != shape:
            raise PolicyError(f"this policy takes noise of {list(shape)}, not {list(noise.shape)}")
        else:
            start = to_tensor(noise.astype(np.float32), self.device)
        return integrate(start, velocity, self.config.num_inference_steps)


def guidance_weight(tau: float, max_weight: float) -> float:
    """min(beta, (1 - tau) / (tau r^2)); without bound at tau = 0, where all is noise."""
    if tau == 0:
        return max_weight
    return min(max_weight, (tau**2 + (1 - tau) ** 2) / (tau * (1 - tau)))


class QChunkPolicy(FlowPolicy):
    """A flow policy that samples N chunks at once, and critics that choose one."""

    config: QChunkPolicyConfig

    def __init__(self, config: QChunkPolicyConfig):
        super().__init__(config)
        with seeded(config.seed):
            self.critic_encoder = Encoder(self.env_spec, config.critic_encoder, self.frozen, history=config.history).to(
                self.device
            )
            self._valued = config.critic_horizon or config.horizon  # actions of a chunk
            size = self.critic_encoder.size + self._valued * config.action_dim
            self.critic = CriticEnsemble(config.critic.num_critics, size, config.critic.hidden_dims).to(self.device)
        self.num_samples = config.num_samples
        self.components = {**self.components, "critic_encoder": self.critic_encoder, "critic": self.critic}

    def predict(self, observation: Observation, normalizer: Normalizer) -> FloatArray:
        """The best chunk [H, A], in the robot's units."""
        return self._best(self._sample(observation, normalizer, self.config.num_samples), observation, normalizer)

    def guided_inference(
        self, observation: Observation, normalizer: Normalizer, previous: FloatArray, delay: int, executed: int
    ) -> FloatArray:
        """The best of N chunks, each guided as in a flow policy."""
        chunks = self._sample_guided(observation, normalizer, self.config.num_samples, previous, delay, executed)
        return self._best(chunks, observation, normalizer)

    def _best(self, chunks: Tensor, observation: Observation, normalizer: Normalizer) -> FloatArray:
        """The best of chunks [N, H, A], in the robot's units."""
        features = encode(self.critic_encoder, observation, normalizer, self.device)
        with torch.no_grad():
            (best,) = best_of_n(self.critic, features, chunks[None], self._valued)
        return normalizer.denormalize_action(best.cpu().numpy())


def best_of_n(critic: CriticEnsemble, features: Tensor, chunks: Tensor, valued: int | None = None) -> Tensor:
    """Of N chunks [B, N, H, A] for each of B observations the one [B, H, A] that the critics value most on average.

    They are clipped before: critics value what will be executed.
    features: of the observations, by the critics' encoder, [B, F]
    valued: how many actions of a chunk the critics take; None: all
    """
    batch, count = chunks.shape[:2]
    chunks = clip_actions(chunks)
    inputs = chunks[:, :, :valued].reshape(batch * count, -1)
    values = critic(features.repeat_interleave(count, dim=0), inputs).mean(dim=0)
    best = values.view(batch, count).argmax(dim=1)
    return chunks[torch.arange(batch, device=chunks.device), best]


def clip_actions(chunks: Tensor) -> Tensor:
    """To [-1, 1], the range that the critics were trained on; a flow exceeds it now and then."""
    return chunks.clamp(-1, 1)
