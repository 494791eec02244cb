"""The base of policies with networks: components, their weights, and a warm-up that changes nothing."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn

from plaudit.data.normalize import Normalizer as AffineNormalizer
from plaudit.devices import resolve_device
from plaudit.policies.config import NetworkPolicyConfig
from plaudit.policies.networks import load_components
from plaudit.protocols import Normalizer
from plaudit.types import EnvSpec, FloatArray, Observation, PolicyWeights


class NetworkPolicy:
    """A `Policy`; a derived class makes `components` and implements `predict` and `guided_inference`."""

    components: Mapping[str, nn.Module]

    def __init__(self, config: NetworkPolicyConfig):
        self.device = resolve_device(config.device)
        self.env_spec = EnvSpec(config.state_dim, config.action_dim, config.cameras)
        self.rng = torch.Generator(self.device).manual_seed(config.seed)

    def predict(self, observation: Observation, normalizer: Normalizer) -> FloatArray:
        """Actions [H, A] in the robot's units."""
        raise NotImplementedError

    def guided_inference(
        self, observation: Observation, normalizer: Normalizer, previous: FloatArray, delay: int, executed: int
    ) -> FloatArray:
        """A new chunk [H, A] that continues the previous one."""
        raise NotImplementedError

    def warmup(self) -> None:
        """Call both methods on zeros."""
        spec = self.env_spec
        images = {camera: np.zeros((*size, 3), np.uint8) for camera, size in spec.cameras.items()}
        zeros = Observation(images, np.zeros(spec.state_dim, np.float32))
        normalizer = AffineNormalizer.identity(spec.state_dim, spec.action_dim)
        with self._preserve_rng():
            chunk = self.predict(zeros, normalizer)
            self.guided_inference(zeros, normalizer, chunk, 0, 0)

    def freeze_all_model_params(self) -> None:
        """Turn gradients off and switch to evaluation mode."""
        for component in self.components.values():
            component.requires_grad_(False).eval()

    def load_weights(self, weights: PolicyWeights) -> None:
        """Load all components at once, or raise and load none."""
        load_components(self.components, weights)

    @contextmanager
    def _preserve_rng(self) -> Iterator[None]:
        """What is sampled in this block does not change the noise of later chunks."""
        if self.device.type == "cuda":
            torch.backends.cudnn.benchmark = True
        state = self.rng.get_state()
        yield
        self.rng.set_state(state)
