"""Draws N chunks by flow matching and takes the one that critics value most: Q-chunking (arXiv 2507.07969).

The flow has learned what was done in such a place, good and bad; the critics, what came of it. Its components and their
names are those of the learner, so that what `plaudit train` writes is loaded as it is: that learner sees states and
sends actions in the robot's own units, so it goes with `Normalizer.identity`.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from plaudit.policies.critics import Critics
from plaudit.policies.flow.policy import FlowPolicy
from plaudit.policies.networks import Encoder
from plaudit.policies.parts import freeze, look, nothing_seen, take
from plaudit.policies.qchunk.config import QChunkPolicyConfig
from plaudit.protocols import Normalizer
from plaudit.types import FloatArray, Observation, Weights


class QChunkPolicy:
    """A `Policy`: a `FlowPolicy` that is asked N times at once, and critics."""

    def __init__(self, config: QChunkPolicyConfig):
        self.config, self.device = config, torch.device(config.device)
        self._flow = FlowPolicy(config.flow)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            self.critic_eye = Encoder(self._flow.eye.spaces, config.critic_eye.features).to(self.device)
            size = self.critic_eye.size + config.horizon * config.action_dim
            self.critic = Critics(config.critic.count, size, config.critic.hidden).to(self.device)
        mine: Mapping[str, nn.Module] = {"critic_eye": self.critic_eye, "critic": self.critic}
        self.components: Mapping[str, nn.Module] = {**self._flow.components, **mine}

    def predict(self, observation: Observation, normalizer: Normalizer) -> FloatArray:
        return self._best(self._flow.draw(observation, normalizer, self.config.samples), observation, normalizer)

    def guided_inference(
        self, observation: Observation, normalizer: Normalizer, previous: FloatArray, delay: int, executed: int
    ) -> FloatArray:
        """Each of the N goes on from the previous chunk as a flow policy's would."""
        chunks = self._flow.draw_guided(observation, normalizer, self.config.samples, previous, delay, executed)
        return self._best(chunks, observation, normalizer)

    def _best(self, chunks: Tensor, observation: Observation, normalizer: Normalizer) -> FloatArray:
        """Of chunks [N, H, A], one for the robot [H, A]."""
        features = look(self.critic_eye, observation, normalizer, self.device)
        with torch.no_grad():
            (best,) = best_of(self.critic, features, chunks[None])
        return normalizer.denormalize_action(best.cpu().numpy())

    def warmup(self) -> None:
        """Both ways to a chunk, on nothing."""
        nothing, normalizer = nothing_seen(self.critic_eye.spaces)
        with self._flow.rehearsal():
            chunk = self.predict(nothing, normalizer)
            self.guided_inference(nothing, normalizer, chunk, 0, 0)

    def freeze_all_model_params(self) -> None:
        freeze(self.components)

    def load_weights(self, weights: Weights) -> None:
        take(self.components, weights)


def best_of(critic: Critics, features: Tensor, chunks: Tensor) -> Tensor:
    """Of N chunks [B, N, H, A] for each of B observations the one [B, H, A] that the critics value most on average.

    They are clipped before: critics judge what will be done.
    features: of the observations in the critics' eyes, [B, F]
    """
    batch, count = chunks.shape[:2]
    chunks = clipped(chunks)
    values = critic(features.repeat_interleave(count, dim=0), chunks.reshape(batch * count, -1)).mean(dim=0)
    best = values.view(batch, count).argmax(dim=1)
    return chunks[torch.arange(batch, device=chunks.device), best]


def clipped(chunks: Tensor) -> Tensor:
    """To what a learner may say, within which its critics are right; a flow goes beyond it now and then."""
    return chunks.clamp(-1, 1)
