"""A robot and a policy that can be followed by eye, in processes of their own, and without torch.

The robot's state is the number of commands it got; its frames are filled with that number. It writes what it was told,
a line each, into a file. The policy's command for step t is t, whatever it sees.
"""

import time
from pathlib import Path

import numpy as np

from plaudit.config import Config
from plaudit.protocols import Normalizer
from plaudit.types import AnyArray, FloatArray, Observation, Weights


class PuppetConfig(Config):
    log: Path
    fps: float = 100.0
    size: tuple[int, int] = (4, 6)
    fails_at: int = -1  # the command that it raises at
    succeeds_at: int = -1
    slow: float = 0.0  # s that an observation takes

    def build(self) -> "Puppet":
        return Puppet(self)


class Puppet:
    state_dim, action_dim = 1, 2

    def __init__(self, config: PuppetConfig):
        self._config, self.fps = config, config.fps
        self.cameras = {"front": config.size, "wrist": config.size}
        self._count = 0

    def reset(self, seed: int | None = None) -> Observation:
        self._count = 0
        self._write(f"reset {seed}")
        return self.observe()

    def act(self, action: FloatArray) -> None:
        if self._count == self._config.fails_at:
            raise OSError("a wire came off")
        self._count += 1
        self._write("act " + " ".join(f"{number:g}" for number in action))

    def observe(self) -> Observation:
        time.sleep(self._config.slow)
        frame = np.full((*self._config.size, 3), self._count % 256, np.uint8)
        return Observation({"front": frame, "wrist": frame + 1}, np.float32([self._count]))

    def privileged(self) -> dict[str, AnyArray]:
        return {"success": np.bool_(self._count == self._config.succeeds_at)} if self._config.succeeds_at >= 0 else {}

    def hold(self) -> None:
        self._write("hold")

    def _write(self, line: str) -> None:
        with self._config.log.open("a") as log:
            log.write(line + "\n")


class CounterConfig(Config):
    horizon: int = 8
    took: float = 0.0  # s
    stuck_after: int = -1  # chunks, after which it takes for ever
    fails_after: int = -1  # chunks, after which it raises
    nan_after: int = -1
    imports: str = ""  # a module
    amount: float = 1.0  # a step

    def build(self) -> "Counter":
        return Counter(self)


class Counter:
    """Step t gets [t, what it knows]: 0 for a chunk of `predict`, the expected delay for one that goes on, and
    1000 x the weights' version on top."""

    def __init__(self, config: CounterConfig):
        self._config, self.components, self._chunks, self._version = config, {}, 0, 0
        if config.imports:
            __import__(config.imports)

    def predict(self, observation: Observation, normalizer: Normalizer) -> FloatArray:
        return self._chunk(observation, 0)

    def guided_inference(
        self, observation: Observation, normalizer: Normalizer, previous: FloatArray, delay: int, executed: int
    ) -> FloatArray:
        return self._chunk(observation, delay)

    def _chunk(self, observation: Observation, known: int) -> FloatArray:
        self._chunks += 1
        time.sleep(1e6 if self._chunks - 1 == self._config.stuck_after else self._config.took)
        if self._chunks - 1 == self._config.fails_after:
            raise ZeroDivisionError("a hole in the net")
        steps = observation.state[0] + np.arange(self._config.horizon)
        actions = np.stack([self._config.amount * steps, np.full(len(steps), known + 1000 * self._version)], axis=1)
        return np.float32(actions) * (np.nan if self._chunks - 1 == self._config.nan_after else 1)

    def warmup(self) -> None: ...

    def freeze_all_model_params(self) -> None: ...

    def load_weights(self, weights: Weights) -> None:
        self._version = int(weights.tensors["net/version"][0])


class HandConfig(Config):
    """A person who takes over at the ticks from `first` to `last`."""

    first: int
    last: int
    command: float = 500.0
    relative: bool = False

    def build(self, action_dim: int) -> "Hand":
        return Hand(self)


class Hand:
    def __init__(self, config: HandConfig):
        self._config, self._ticks, self.relative = config, -1, config.relative

    def command(self) -> FloatArray | None:
        self._ticks += 1
        taken = self._config.first <= self._ticks <= self._config.last
        return np.full(2, self._config.command, np.float32) if taken else None

    def close(self) -> None: ...
