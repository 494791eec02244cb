"""Samples N chunks by flow matching and takes the one that critics value most: Q-chunking (arXiv 2507.07969).

The flow models what was done in a state, good and bad; the critics estimate the return. The components have the names
of the learner's, so that the weights of `plaudit train` are loaded as they are: that learner observes states and
returns actions in the robot's own units, so its normalizer is the identity.
"""

import torch
from torch import Tensor

from plaudit.policies.config import QChunkPolicyConfig
from plaudit.policies.flow import FlowPolicy
from plaudit.policies.networks import CriticEnsemble, Encoder, encode, seeded
from plaudit.protocols import Normalizer
from plaudit.types import FloatArray, Observation


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
