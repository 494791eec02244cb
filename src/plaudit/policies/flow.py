"""Samples chunks of actions by flow matching (arXiv 2210.02747), with the guidance of real-time chunking (2506.07339).

A chunk starts as noise at tau = 0 and follows the velocity to tau = 1 in a few Euler steps. To continue the previous
chunk Y with weights W, each step predicts the final chunk and corrects the velocity towards Y:

    A1 = A + (1 - tau) v                                      the predicted final chunk
    v' = v + min(beta, (1 - tau) / (tau r^2)) * J^T [(Y - A1) * W],  r^2 = (1 - tau)^2 / (tau^2 + (1 - tau)^2)

J is the Jacobian of A1 by A. Through it the guided actions also change the free ones, as the network has learned that
they depend on each other; without it ("identity") each action is corrected on its own.

Q-chunking (2507.07969) samples N chunks and takes the one that critics value most. The flow models what was done in a
state, good and bad; the critics estimate the return. The components of its policy have the names of the learner's, so
that the weights of `plaudit train` are loaded as they are: that learner observes states and returns actions in the
robot's own units, so its normalizer is the identity.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from plaudit.errors import PolicyError
from plaudit.policies.config import FlowSettings, QChunkPolicyConfig
from plaudit.policies.guidance import compute_guided_prefix_weights, shift_chunk
from plaudit.policies.networks import CriticEnsemble, Encoder, Linear, NetworkPolicy, encode, seeded, to_tensor
from plaudit.protocols import Normalizer
from plaudit.types import FloatArray, Observation

NUM_FREQUENCIES = 32  # of the time embedding


class VelocityNet(nn.Module):
    """The velocity v(chunk, tau, features) of a flow: the direction in which noise moves to become actions.

    A residual network over the whole chunk as one vector. Time and observation enter each block as a scale and a shift
    (as in DiT, arXiv 2212.09748). (Rejected: a transformer over actions, which uses each parameter once per action and
    at 16 to 50 actions costs that many times the arithmetic, on CPUs with a control tick to meet.)
    """

    def __init__(self, features: int, horizon: int, action_dim: int, width: int, depth: int):
        super().__init__()
        self.time = nn.Sequential(Linear(2 * NUM_FREQUENCIES, width), nn.SiLU(), Linear(width, width))
        self.observation = nn.Sequential(Linear(features, width), nn.SiLU(), Linear(width, width))
        self.enter = Linear(horizon * action_dim, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.leave = nn.Sequential(nn.LayerNorm(width), Linear(width, horizon * action_dim, gain=0.0))

    def forward(self, actions: Tensor, tau: Tensor, features: Tensor) -> Tensor:
        """[B, H, A] at chunks [B, H, A] and times tau [B] between 0, noise, and 1, actions; features are [B, F].

        Leading axes broadcast: N chunks an observation, [B, N, H, A], go with features [B, 1, F] and one time [1], and
        what depends on these alone is worked out once.
        """
        condition = F.silu(self.time(time_embedding(tau)) + self.observation(features))
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
    predicted = velocity(along * chunks + (1 - along) * noise, tau, features)
    error = (predicted - (chunks - noise)).square() * counts
    return error.sum() / (counts.sum().clamp(min=1) * chunks.shape[2])


def sample_chunks(net: VelocityNet, features: Tensor, shape: Sequence[int], steps: int, rng: torch.Generator) -> Tensor:
    """Chunks of this shape, [..., H, A], each from noise of its own."""

    def velocity(chunks: Tensor, tau: float) -> Tensor:
        return net(chunks, torch.full((1,), tau, device=chunks.device), features)

    return integrate(torch.randn(*shape, generator=rng, device=features.device), velocity, steps)


class FlowPolicy(NetworkPolicy):
    """Samples chunks of normalized actions from normalized states."""

    def __init__(self, config: FlowSettings):
        super().__init__(config)
        self.config = config
        with seeded(config.seed):
            self.encoder = Encoder(self.env_spec, config.encoder, self.frozen, history=config.history).to(self.device)
            size = config.velocity_net
            self.velocity_net = VelocityNet(
                self.encoder.size, config.horizon, config.action_dim, size.width, size.depth
            ).to(self.device)
        self.components = {"encoder": self.encoder, "velocity_net": self.velocity_net}

    def predict(self, observation: Observation, normalizer: Normalizer) -> FloatArray:
        """Actions [H, A] in the robot's units."""
        return normalizer.denormalize_action(self.sample(observation, normalizer, 1)[0].cpu().numpy())

    def guided_inference(
        self, observation: Observation, normalizer: Normalizer, previous: FloatArray, delay: int, executed: int
    ) -> FloatArray:
        """[H, A] that continues the previous chunk."""
        (chunk,) = self.sample_guided(observation, normalizer, 1, previous, delay, executed)
        return normalizer.denormalize_action(chunk.cpu().numpy())

    def sample(self, observation: Observation, normalizer: Normalizer, count: int) -> Tensor:
        """Chunks [count, H, A], normalized, each from noise of its own."""
        features = encode(self.encoder, observation, normalizer, self.device)
        return self._integrate(count, lambda a, tau: self._velocity(a, tau, features))

    def sample_guided(
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
            return torch.lerp(self.sample(observation, normalizer, count), target, bound)
        features = encode(self.encoder, observation, normalizer, self.device)
        return self._integrate(count, lambda a, tau: self._guided_velocity(a, tau, features, target, bound))

    def _velocity(self, actions: Tensor, tau: float, features: Tensor) -> Tensor:
        with torch.no_grad():
            return self.velocity_net(actions, torch.full((1,), tau, device=self.device), features)

    def _guided_velocity(self, actions: Tensor, tau: float, features: Tensor, target: Tensor, bound: Tensor) -> Tensor:
        """The velocity, corrected towards a target [H, A] by weights [H, 1]."""
        weight = guidance_weight(tau, self.config.max_guidance_weight)
        if self.config.guidance == "identity":
            velocity = self._velocity(actions, tau, features)
            return velocity + weight * (target - actions - (1 - tau) * velocity) * bound
        with torch.enable_grad():
            actions = actions.detach().requires_grad_()
            velocity = self.velocity_net(actions, torch.full((1,), tau, device=self.device), features)
            heading = actions + (1 - tau) * velocity
            off = ((target - heading) * bound).detach()
            (pull,) = torch.autograd.grad(heading, actions, grad_outputs=off)
        return velocity.detach() + weight * pull

    def _integrate(self, count: int, velocity: Velocity) -> Tensor:
        shape = (count, self.config.horizon, self.config.action_dim)
        noise = torch.randn(shape, generator=self.rng, device=self.device)
        return integrate(noise, velocity, self.config.num_inference_steps)


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
        self.components = {**self.components, "critic_encoder": self.critic_encoder, "critic": self.critic}

    def predict(self, observation: Observation, normalizer: Normalizer) -> FloatArray:
        """The best chunk [H, A], in the robot's units."""
        return self._best(self.sample(observation, normalizer, self.config.num_samples), observation, normalizer)

    def guided_inference(
        self, observation: Observation, normalizer: Normalizer, previous: FloatArray, delay: int, executed: int
    ) -> FloatArray:
        """The best of N chunks, each guided as in a flow policy."""
        chunks = self.sample_guided(observation, normalizer, self.config.num_samples, previous, delay, executed)
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
