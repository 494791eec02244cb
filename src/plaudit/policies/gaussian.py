"""A policy that returns the mode of its distribution, or a sample: the actor of PPO or SAC, of states and images.

Its components have the names of the learners' (`encoder`, `actor`), so that the weights of `plaudit train` are loaded
as they are: those learners observe states and return actions in the robot's own units, so their normalizer is the
identity.
"""

import torch
from torch import Tensor

from plaudit.policies.config import GaussianConfig
from plaudit.policies.guidance import blend_with_previous
from plaudit.policies.network_policy import NetworkPolicy
from plaudit.policies.networks import Encoder, TanhGaussian, encode, gaussian_actor, seeded
from plaudit.protocols import Normalizer
from plaudit.types import FloatArray, Observation


class GaussianPolicy(NetworkPolicy):
    """A Gaussian over chunks of actions."""

    def __init__(self, config: GaussianConfig):
        super().__init__(config)
        self.config = config
        outputs = config.horizon * config.action_dim
        with seeded(config.seed):
            self.encoder = Encoder(self.env_spec, config.encoder.features).to(self.device)
            make = TanhGaussian if config.actor.kind == "squashed" else gaussian_actor
            self.actor = make(self.encoder.size, outputs, config.actor.hidden_dims).to(self.device)
        self.components = {"encoder": self.encoder, "actor": self.actor}

    def predict(self, observation: Observation, normalizer: Normalizer) -> FloatArray:
        """Actions [H, A] in the robot's units."""
        features = encode(self.encoder, observation, normalizer, self.device)
        with torch.no_grad():
            actions = self._act(features).view(self.config.horizon, self.config.action_dim)
        return normalizer.denormalize_action(actions.cpu().numpy())

    def _act(self, features: Tensor) -> Tensor:
        if not isinstance(self.actor, TanhGaussian):
            return self.actor(features)
        if not self.config.stochastic:
            return self.actor.mode(features)
        size = self.config.horizon * self.config.action_dim
        return self.actor(features, torch.randn(1, size, generator=self.rng, device=self.device))[0]

    def guided_inference(
        self, observation: Observation, normalizer: Normalizer, previous: FloatArray, delay: int, executed: int
    ) -> FloatArray:
        """A new chunk, blended with the previous one: there is no flow to guide."""
        return blend_with_previous(previous, self.predict(observation, normalizer), delay, executed)
