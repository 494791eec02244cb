"""Draws chunks of actions: flow matching (arXiv 2210.02747), guided as real-time chunking is (2506.07339).

A chunk begins as noise at tau = 0 and follows the velocity to tau = 1 in a few Euler steps. To go on from the previous
chunk Y with weights W, each step looks at where it is heading and bends that towards Y:

    A1 = A + (1 - tau) v                                      the chunk it is heading for
    v' = v + min(beta, (1 - tau) / (tau r^2)) * J^T [(Y - A1) * W],  r^2 = (1 - tau)^2 / (tau^2 + (1 - tau)^2)

J is the Jacobian of A1 by A. Through it, the actions that are bound pull along those that are free, by what the
network knows of how they belong together; without it ("identity") each action is pulled alone.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from plaudit.errors import PolicyError
from plaudit.policies.flow.config import FlowConfig
from plaudit.policies.flow.network import Velocity, integrate
from plaudit.policies.guidance import compute_guided_prefix_weights, remaining
from plaudit.policies.networks import Encoder, Spaces
from plaudit.policies.parts import freeze, look, nothing_seen, take, tensor_of
from plaudit.protocols import Normalizer
from plaudit.types import FloatArray, Observation, Weights

Guide = Callable[[Tensor, float], Tensor]  # (actions [N, H, A], tau) -> the velocity there


class FlowPolicy:
    """A `Policy`. Inside, states and actions are as the normaliser makes them."""

    def __init__(self, config: FlowConfig):
        self.config, self.device = config, torch.device(config.device)
        spaces = Spaces(config.state_dim, config.action_dim, config.cameras)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            self.eye = Encoder(spaces, config.eye.features).to(self.device)
            size = config.velocity
            self.velocity = Velocity(self.eye.size, config.horizon, config.action_dim, size.width, size.depth)
            self.velocity.to(self.device)
        self.components: Mapping[str, nn.Module] = {"eye": self.eye, "velocity": self.velocity}
        self._rng = torch.Generator(self.device).manual_seed(config.seed)

    def predict(self, observation: Observation, normalizer: Normalizer) -> FloatArray:
        return normalizer.denormalize_action(self.draw(observation, normalizer, 1)[0].cpu().numpy())

    def guided_inference(
        self, observation: Observation, normalizer: Normalizer, previous: FloatArray, delay: int, executed: int
    ) -> FloatArray:
        (chunk,) = self.draw_guided(observation, normalizer, 1, previous, delay, executed)
        return normalizer.denormalize_action(chunk.cpu().numpy())

    def draw(self, observation: Observation, normalizer: Normalizer, count: int) -> Tensor:
        """Chunks [count, H, A], as the normaliser makes them, each from noise of its own."""
        features = look(self.eye, observation, normalizer, self.device)
        return self._flow(count, lambda a, tau: self._velocity(a, tau, features))

    def draw_guided(
        self,
        observation: Observation,
        normalizer: Normalizer,
        count: int,
        previous: FloatArray,
        delay: int,
        executed: int,
    ) -> Tensor:
        """The same, each going on from the previous chunk."""
        wanted = (self.config.horizon, self.config.action_dim)
        if previous.shape != wanted:
            raise PolicyError(f"the previous chunk is {list(previous.shape)}, this policy's are {list(wanted)}")
        target = tensor_of(normalizer.normalize_action(remaining(previous, executed)), self.device)
        bound = tensor_of(compute_guided_prefix_weights(self.config.horizon, delay, executed), self.device)[:, None]
        if self.config.guidance == "blend":
            return torch.lerp(self.draw(observation, normalizer, count), target, bound)
        features = look(self.eye, observation, normalizer, self.device)
        return self._flow(count, lambda a, tau: self._guided(a, tau, features, target, bound))

    def _velocity(self, actions: Tensor, tau: float, features: Tensor) -> Tensor:
        with torch.no_grad():
            return self.velocity(actions, torch.full((1,), tau, device=self.device), features)

    def _guided(self, actions: Tensor, tau: float, features: Tensor, target: Tensor, bound: Tensor) -> Tensor:
        """The velocity, bent towards a target [H, A] by weights [H, 1]."""
        weight = guidance_weight(tau, self.config.guidance_clip)
        if self.config.guidance == "identity":
            velocity = self._velocity(actions, tau, features)
            return velocity + weight * (target - actions - (1 - tau) * velocity) * bound
        with torch.enable_grad():
            actions = actions.detach().requires_grad_()
            velocity = self.velocity(actions, torch.full((1,), tau, device=self.device), features)
            heading = actions + (1 - tau) * velocity
            off = ((target - heading) * bound).detach()
            (pull,) = torch.autograd.grad(heading, actions, grad_outputs=off)
        return velocity.detach() + weight * pull

    def _flow(self, count: int, velocity: Guide) -> Tensor:
        shape = (count, self.config.horizon, self.config.action_dim)
        return integrate(torch.randn(shape, generator=self._rng, device=self.device), velocity, self.config.steps)

    def warmup(self) -> None:
        """Both ways to a chunk, on nothing."""
        nothing, normalizer = nothing_seen(self.eye.spaces)
        with self.rehearsal():
            chunk = self.predict(nothing, normalizer)
            self.guided_inference(nothing, normalizer, chunk, 0, 0)

    @contextmanager
    def rehearsal(self) -> Iterator[None]:
        """Whatever is drawn meanwhile, the noise of later chunks stays what it would have been."""
        if self.device.type == "cuda":
            torch.backends.cudnn.benchmark = True
        state = self._rng.get_state()
        yield
        self._rng.set_state(state)

    def freeze_all_model_params(self) -> None:
        freeze(self.components)

    def load_weights(self, weights: Weights) -> None:
        take(self.components, weights)


def guidance_weight(tau: float, most: float) -> float:
    """min(beta, (1 - tau) / (tau r^2)); without bound at tau = 0, where all is noise."""
    if tau == 0:
        return most
    return min(most, (tau**2 + (1 - tau) ** 2) / (tau * (1 - tau)))
