"""A policy to copy: a small network tells it where to go (docs/add_a_policy.md)."""

from collections.abc import Mapping

import torch
from torch import nn

from plaudit.config import Config
from plaudit.policies.guidance import blend_with_previous
from plaudit.registry import POLICY_REGISTRY


class NetworkConfig(Config):
    hidden: int = 32


@POLICY_REGISTRY.register("my_policy")
class MyPolicy:
    def __init__(self, state_dim: int, action_dim: int, network: NetworkConfig, horizon: int = 8):
        self.state_dim, self.action_dim, self.horizon = state_dim, action_dim, horizon
        self.network = nn.Sequential(
            nn.Linear(state_dim, network.hidden),
            nn.Tanh(),
            nn.Linear(network.hidden, horizon * action_dim),
        )
        self.components: Mapping[str, nn.Module] = {"network": self.network}

    def predict(self, observation, normalizer):
        state = torch.from_numpy(normalizer.normalize_state(observation.state))
        with torch.no_grad():
            chunk = self.network(state).view(self.horizon, self.action_dim)
        return normalizer.denormalize_action(chunk.numpy())

    def guided_inference(self, observation, normalizer, previous, delay, executed):
        return blend_with_previous(previous, self.predict(observation, normalizer), delay, executed)

    def warmup(self):
        self.network(torch.zeros(self.state_dim))

    def freeze_all_model_params(self):
        self.network.requires_grad_(False)

    def load_weights(self, weights):
        tensors = {name.removeprefix("network/"): torch.tensor(array) for name, array in weights.tensors.items()}
        self.network.load_state_dict(tensors)
