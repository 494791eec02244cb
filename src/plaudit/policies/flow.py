"""Samples chunks of actions by flow matching (arXiv 2210.02747), with the guidance of real-time chunking (2506.07339).

A chunk starts as noise at tau = 0 and follows the velocity to tau = 1 in a few Euler steps. To continue the previous
chunk Y with weights W, each step predicts the final chunk and corrects the velocity towards Y:

    A1 = A + (1 - tau) v                                      the predicted final chunk
    v' = v + min(beta, (1 - tau) / (tau r^2)) * J^T [(Y - A1) * W],  r^2 = (1 - tau)^2 / (tau^2 + (1 - tau)^2)

J is the Jacobian of A1 by A. Through it the guided actions also change the free ones, as the network has learned that
they depend on each other; without it ("identity") each action is corrected on its own.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from plaudit.errors import PolicyError
from plaudit.policies.config import FlowConfig
from plaudit.policies.flow_network import VelocityNet, integrate
from plaudit.policies.guidance import compute_guided_prefix_weights, shift_chunk
from plaudit.policies.network_policy import NetworkPolicy
from plaudit.policies.networks import Encoder, encode, seeded, to_tensor
from plaudit.protocols import Normalizer
from plaudit.types import FloatArray, Observation

Guide = Callable[[Tensor, float], Tensor]  # (actions [N, H, A], tau) -> the velocity there


class FlowPolicy(NetworkPolicy):
    """Samples chunks of normalized actions from normalized states."""

    def __init__(self, config: FlowConfig):
        super().__init__(config)
        self.config = config
        with seeded(config.seed):
            self.encoder = Encoder(self.env_spec, config.encoder.features).to(self.device)
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
        return self._flow(count, lambda a, tau: self._velocity(a, tau, features))

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
        return self._flow(count, lambda a, tau: self._guided_velocity(a, tau, features, target, bound))

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

    def _flow(self, count: int, velocity: Guide) -> Tensor:
        shape = (count, self.config.horizon, self.config.action_dim)
        return integrate(
            torch.randn(shape, generator=self.rng, device=self.device), velocity, self.config.num_inference_steps
        )


def guidance_weight(tau: float, max_weight: float) -> float:
    """min(beta, (1 - tau) / (tau r^2)); without bound at tau = 0, where all is noise."""
    if tau == 0:
        return max_weight
    return min(max_weight, (tau**2 + (1 - tau) ** 2) / (tau * (1 - tau)))
