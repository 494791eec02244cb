"""A policy that returns the mode of its distribution, or a sample: the actor of PPO or SAC, of states and images.

Its components and their names are those of the learners (`encoder`, `actor`), so that what `plaudit train` writes is
loaded as it is and acts the same: those learners observe states and return actions in the robot's own units, so they go
with `Normalizer.identity`.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from plaudit.policies.config import GaussianConfig
from plaudit.policies.guidance import blend_with_previous
from plaudit.policies.networks import (
    Encoder,
    TanhGaussian,
    encode,
    freeze,
    gaussian_actor,
    load_components,
    zero_observation,
)
from plaudit.protocols import Normalizer
from plaudit.types import EnvSpec, FloatArray, Observation, PolicyWeights


class GaussianPolicy:
    """A `Policy`."""

    def __init__(self, config: GaussianConfig):
        self.config, self.device = config, torch.device(config.device)
        env_spec = EnvSpec(config.state_dim, config.action_dim, config.cameras)
        outputs = config.horizon * config.action_dim
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            self.encoder = Encoder(env_spec, config.encoder.features).to(self.device)
            make = TanhGaussian if config.actor.kind == "squashed" else gaussian_actor
            self.actor = make(self.encoder.size, outputs, config.actor.hidden_dims).to(self.device)
        self.components: Mapping[str, nn.Module] = {"encoder": self.encoder, "actor": self.actor}
        self._rng = torch.Generator(self.device).manual_seed(config.seed)

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
        return self.actor(features, torch.randn(1, size, generator=self._rng, device=self.device))[0]

    def guided_inference(
        self, observation: Observation, normalizer: Normalizer, previous: FloatArray, delay: int, executed: int
    ) -> FloatArray:
        """By the plain blend: there is no flow to guide."""
        return blend_with_previous(previous, self.predict(observation, normalizer), delay, executed)

    def warmup(self) -> None:
        """One inference on zeros; what is sampled later stays what it would have been."""
        if self.device.type == "cuda":
            torch.backends.cudnn.benchmark = True
        state = self._rng.get_state()
        self.predict(*zero_observation(self.encoder.env_spec))
        self._rng.set_state(state)

    def freeze_all_model_params(self) -> None:
        """No gradients from here on."""
        freeze(self.components)

    def load_weights(self, weights: PolicyWeights) -> None:
        """All components at once, or an error and none."""
        load_components(self.components, weights)
