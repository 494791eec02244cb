"""A learner as a user writes one: no `type`, no name in any registry, found by its dotted path alone.

It imitates what was rewarded: actions of a batch, each weighted by its reward. `Unfinished` forgot half of its methods.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from plaudit.checkpoint import load_checkpoint, save_checkpoint
from plaudit.config import Config
from plaudit.policies.gaussian.config import ActorConfig, GaussianConfig
from plaudit.policies.networks import Encoder, Seen, Spaces, TanhGaussian, seen_of, weights_of
from plaudit.types import Batch, FloatArray, Observation, Weights


class ImitationConfig(Config):
    gamma: float = 0.95
    batch_size: int = 8
    updates_per_step: float = 0.5
    demo_share: float = 0.5
    start_after: int = 0
    hidden: tuple[int, ...] = (8,)

    @property
    def horizon(self) -> int:
        return 1

    def build(self, spaces: Spaces, seed: int, device: str) -> "Imitation":
        return Imitation(self, spaces, seed, device)


class Imitation:
    clone_updates = 0

    def __init__(self, config: ImitationConfig, spaces: Spaces, seed: int, device: str):
        self.config, self.spaces, self.device = config, spaces, torch.device(device)
        self.version, self.sync = 0, None
        self.rng = torch.Generator(device).manual_seed(seed)
        eye = Encoder(spaces)
        actor = TanhGaussian(eye.size, spaces.action_dim, config.hidden)
        self.net = nn.ModuleDict({"eye": eye, "actor": actor})
        self.optimizers = {"all": torch.optim.Adam(self.net.parameters(), lr=1e-3)}

    @property
    def components(self) -> dict[str, nn.Module]:
        return {"eye": self.net["eye"], "actor": self.net["actor"]}

    @property
    def replay_options(self) -> dict[str, Any]:
        return {"gamma": self.config.gamma, "cameras": tuple(self.spaces.cameras)}

    def acting(self, *, explore: bool) -> Any:
        return partial(self._act)

    def _act(self, observation: Observation) -> FloatArray:
        with torch.inference_mode():
            return self._best(seen_of(observation, self.spaces, self.device)).numpy()

    def _best(self, seen: Seen) -> Tensor:
        actor: Any = self.net["actor"]
        return actor.best(self.net["eye"](seen))

    def update(self, batch: Batch[Tensor]) -> Mapping[str, float]:
        self.version += 1
        error = (self._best(Seen(batch.images, batch.state)) - batch.actions).square().mean(dim=-1)
        loss = (batch.reward * error).mean()
        self.optimizers["all"].zero_grad()
        loss.backward()
        self.optimizers["all"].step()
        return {"loss/actor": float(loss.detach())}

    def weights(self) -> Weights:
        return weights_of(self.version, self.components)

    def policy_config(self, *, explore: bool = False) -> GaussianConfig:
        actor = ActorConfig(kind="squashed", hidden=self.config.hidden)
        return GaussianConfig(**self.spaces.fields(), actor=actor, explore=explore)

    def save(self, path: str) -> None:
        save_checkpoint(Path(path), self, {})

    def load(self, path: str) -> None:
        load_checkpoint(Path(path), self)


class UnfinishedConfig(ImitationConfig):
    def build(self, spaces: Spaces, seed: int, device: str) -> Any:
        return Unfinished()


class Unfinished:
    version = 0

    def update(self, batch: Batch[Tensor]) -> Mapping[str, float]:
        return {}
