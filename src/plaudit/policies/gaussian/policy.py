"""A policy that names the best action it knows: the actor of PPO or SAC, over a state, images, or both.

Its components and their names are those of the learners (`eye`, `actor`), so that what `plaudit train` writes is loaded
as it is and acts the same: those learners see states and send actions in the robot's own units, so they go with
`Normalizer.identity`.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from plaudit.policies.gaussian.config import GaussianConfig
from plaudit.policies.guidance import blended
from plaudit.policies.networks import Encoder, Spaces, TanhGaussian, plain_actor
from plaudit.policies.parts import freeze, look, nothing_seen, take
from plaudit.protocols import Normalizer
from plaudit.types import FloatArray, Observation, Weights


class GaussianPolicy:
    """A `Policy`."""

    def __init__(self, config: GaussianConfig):
        self.config, self.device = config, torch.device(config.device)
        spaces = Spaces(config.state_dim, config.action_dim, config.cameras)
        outputs = config.horizon * config.action_dim
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            self.eye = Encoder(spaces, config.eye.features).to(self.device)
            make = TanhGaussian if config.actor.kind == "squashed" else plain_actor
            self.actor = make(self.eye.size, outputs, config.actor.hidden).to(self.device)
        self.components: Mapping[str, nn.Module] = {"eye": self.eye, "actor": self.actor}
        self._rng = torch.Generator(self.device).manual_seed(config.seed)

    def predict(self, observation: Observation, normalizer: Normalizer) -> FloatArray:
        features = look(self.eye, observation, normalizer, self.device)
        with torch.no_grad():
            actions = self._act(features).view(self.config.horizon, self.config.action_dim)
        return normalizer.denormalize_action(actions.cpu().numpy())

    def _act(self, features: Tensor) -> Tensor:
        if not isinstance(self.actor, TanhGaussian):
            return self.actor(features)
        if not self.config.explore:
            return self.actor.best(features)
        size = self.config.horizon * self.config.action_dim
        return self.actor(features, torch.randn(1, size, generator=self._rng, device=self.device))[0]

    def guided_inference(
        self, observation: Observation, normalizer: Normalizer, previous: FloatArray, delay: int, executed: int
    ) -> FloatArray:
        """By the plain blend: there is no flow to guide."""
        return blended(previous, self.predict(observation, normalizer), delay, executed)

    def warmup(self) -> None:
        """One look at nothing; what is drawn later stays what it would have been."""
        if self.device.type == "cuda":
            torch.backends.cudnn.benchmark = True
        state = self._rng.get_state()
        self.predict(*nothing_seen(self.eye.spaces))
        self._rng.set_state(state)

    def freeze_all_model_params(self) -> None:
        freeze(self.components)

    def load_weights(self, weights: Weights) -> None:
        take(self.components, weights)
