"""Samples chunks of actions by flow matching (arXiv 2210.02747), with the guidance of real-time chunking (2506.07339).

A chunk starts as noise at tau = 0 and follows the velocity to tau = 1 in a few Euler steps. To continue the previous
chunk Y with weights W, each step predicts the final chunk and corrects the velocity towards Y:

    A1 = A + (1 - tau) v                                      the predicted final chunk
    v' = v + min(beta, (1 - tau) / (tau r^2)) * J^T [(Y - A1) * W],  r^2 = (1 - tau)^2 / (tau^2 + (1 - tau)^2)

J is the Jacobian of A1 by A. Through it the guided actions also change the free ones, as the network has learned that
they depend on each other; without it ("identity") each action is corrected on its own.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from plaudit.errors import PolicyError
from plaudit.policies.config import FlowSettings
from plaudit.policies.guidance import compute_guided_prefix_weights, shift_chunk
from plaudit.policies.networks import Encoder, Linear, NetworkPolicy, encode, seeded, to_tensor
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
