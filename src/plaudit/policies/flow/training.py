"""Teaching a flow policy by example: conditional flow matching on windows of H actions.

    fit_flow(policy, Observation({}, state), chunks, normalizer, steps=2000)      # arrays, [N, S] and [N, H, A]
    fit_flow_from_store(policy, store, normalizer, steps=20_000)                  # recorded and labelled episodes

The loss is `matching_loss` in network.py. Where a window reaches past the end of its episode, nothing is asked.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from plaudit.checkpoint import load_checkpoint, save_checkpoint
from plaudit.data.replay import Replay
from plaudit.data.store import Store
from plaudit.errors import PolicyError
from plaudit.policies.flow.config import FitConfig
from plaudit.policies.flow.network import matching_loss
from plaudit.policies.flow.policy import FlowPolicy
from plaudit.policies.networks import random_shift, weights_of
from plaudit.policies.parts import tensor_of
from plaudit.protocols import Normalizer
from plaudit.types import AnyArray, Batch, BoolArray, FloatArray, Observation, Weights

Watch = Callable[[int, float], bool]  # (step, loss) -> whether to go on
GRAD_CLIP = 1.0


@dataclass(frozen=True, eq=False)
class Windows:
    """B moments and what was done from there on."""

    observation: Observation  # with a leading B
    chunks: FloatArray  # [B, H, A] in the robot's units
    mask: BoolArray  # [B, H] False past the end of an episode

    @classmethod
    def of(cls, batch: Batch[AnyArray]) -> Self:
        return cls(Observation(batch.images, batch.state), batch.actions, batch.action_mask)

    def __getitem__(self, rows: AnyArray) -> "Windows":
        images = {camera: frames[rows] for camera, frames in self.observation.images.items()}
        return Windows(Observation(images, self.observation.state[rows]), self.chunks[rows], self.mask[rows])


class FlowTrainer:
    """A `Learner` of windows."""

    def __init__(self, policy: FlowPolicy, normalizer: Normalizer, config: FitConfig):
        self.policy, self.normalizer, self.config = policy, normalizer, config
        self.version = 0
        self.rng = torch.Generator(policy.device).manual_seed(config.seed)
        self.net = nn.ModuleDict(dict(policy.components))
        self.optimizers = {"all": torch.optim.AdamW(self.net.parameters(), lr=config.lr, weight_decay=1e-4, fused=True)}

    def update(self, windows: Windows) -> Mapping[str, float]:
        """One step."""
        chunks = self._tensor(self.normalizer.normalize_action(windows.chunks))
        mask = self._tensor(windows.mask)
        loss = matching_loss(self.policy.velocity, self._look(windows.observation), chunks, mask, self.rng)
        self._descend(loss)
        return {"loss/flow": float(loss.detach())}

    def _descend(self, loss: Tensor) -> None:
        config, optimizer = self.config, self.optimizers["all"]
        rising = min(1.0, (self.version + 1) / (config.warmup_steps + 1))
        falling = 0.5 * (1 + math.cos(math.pi * min(1.0, self.version / config.steps)))
        for group in optimizer.param_groups:
            group["lr"] = config.lr * rising * falling
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), GRAD_CLIP)
        optimizer.step()
        self.version += 1

    def _look(self, observation: Observation) -> Tensor:
        """As the policy does, with gradients and with images moved about."""
        images = {c: self._moved(observation.images[c]) for c in self.policy.config.cameras}
        state = (
            self.normalizer.normalize_state(observation.state) if self.policy.config.state_dim else observation.state
        )
        return self.policy.eye.normalized(images, self._tensor(state))

    def _moved(self, images: AnyArray) -> Tensor:
        normalized = self._tensor(self.normalizer.normalize_image(images))
        return random_shift(normalized, self.rng, self.config.shift) if self.config.shift else normalized

    def _tensor(self, array: AnyArray) -> Tensor:
        return tensor_of(array, self.policy.device)

    def weights(self) -> Weights:
        return weights_of(self.version, self.policy.components)

    def save(self, path: str) -> None:
        save_checkpoint(Path(path), self, {})

    def load(self, path: str) -> None:
        load_checkpoint(Path(path), self)


def fit_flow(
    policy: FlowPolicy,
    observations: Observation,
    chunks: FloatArray,
    normalizer: Normalizer,
    *,
    mask: BoolArray | None = None,
    watch: Watch = lambda step, loss: True,
    **options: Any,
) -> FlowTrainer:
    """Teach from arrays: observations with a leading N, chunks [N, H, A], mask [N, H]; options are a FitConfig's."""
    config = FitConfig(**options)
    windows = Windows(observations, chunks, np.ones(chunks.shape[:2], bool) if mask is None else mask)
    _check(policy, windows)
    rng = np.random.default_rng(config.seed)
    drawn = (windows[rng.integers(len(chunks), size=config.batch_size)] for _ in range(config.steps))
    return _teach(FlowTrainer(policy, normalizer, config), drawn, watch)


def fit_flow_from_store(
    policy: FlowPolicy,
    store: Store,
    normalizer: Normalizer,
    *,
    watch: Watch = lambda step, loss: True,
    **options: Any,
) -> FlowTrainer:
    """Teach from the labelled steps of a store; options are a FitConfig's."""
    config = FitConfig(**options)
    replay = Replay(store, horizon=policy.config.horizon, cameras=tuple(policy.config.cameras), seed=config.seed)
    return _teach(FlowTrainer(policy, normalizer, config), _windows(replay, policy, config), watch)


def _windows(replay: Replay, policy: FlowPolicy, config: FitConfig) -> Iterator[Windows]:
    for number in range(config.steps):
        windows = Windows.of(replay.sample(config.batch_size))
        if number == 0:
            _check(policy, windows)
        yield windows


def _teach(trainer: FlowTrainer, batches: Iterable[Windows], watch: Watch) -> FlowTrainer:
    for windows in batches:
        loss = trainer.update(windows)["loss/flow"]
        if not watch(trainer.version, loss):
            break
    return trainer


def _check(policy: FlowPolicy, windows: Windows) -> None:
    config, observation = policy.config, windows.observation
    count = len(windows.chunks)
    wanted = {"chunks": (count, config.horizon, config.action_dim), "mask": (count, config.horizon)}
    wanted |= {"state": (count, config.state_dim)}
    wanted |= {f"images of '{camera}'": (count, *size, 3) for camera, size in config.cameras.items()}
    found = {"chunks": windows.chunks.shape, "mask": windows.mask.shape, "state": observation.state.shape}
    found |= {f"images of '{camera}'": frames.shape for camera, frames in observation.images.items()}
    for name, shape in wanted.items():
        if found.get(name) != shape:
            raise PolicyError(f"this policy learns from {name} {list(shape)}, not {list(found.get(name, ()))}")
