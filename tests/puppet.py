"""A robot and a policy that are easy to follow, for tests in other processes, without torch.

The robot's state is the number of commands it received, and its frames are filled with that number. It logs every call
to a file, one line each. The policy's command for step t is t, whatever it observes.
"""

import mmap
import sys
import time
from pathlib import Path

import numpy as np

from plaudit.errors import PolicyUnavailable, RobotSilent
from plaudit.policies.config import PolicyConfig
from plaudit.protocols import Normalizer
from plaudit.robots.config import RobotConfig
from plaudit.robots.limits import CommandLimiter
from plaudit.rollout.teleop import TeleopConfig
from plaudit.types import AnyArray, FloatArray, Observation, PolicyWeights


class PuppetConfig(RobotConfig):
    log: Path
    fps: float = 100.0
    size: tuple[int, int] = (4, 6)
    fails_at: int = -1  # the command at which it raises
    nan_at: int = -1  # commands after which its state is NaN
    succeeds_at: int = -1
    loses_at: int = -1  # commands after which it reports a failure
    deaf: int = 0  # times that `hold` raises
    silent: Path | None = None  # a file: while it exists, the robot sends nothing
    tells_builds: bool = False  # whether it logs that it was built
    tells_modules: bool = False  # whether it logs the modules that its process imported

    def build(self) -> "Puppet":
        return Puppet(self)


class Puppet:
    state_dim, action_dim = 1, 2

    def __init__(self, config: PuppetConfig):
        if min(config.size) < 1:
            raise ValueError(f"camera front cannot have the size {config.size}")
        self._config, self.fps = config, config.fps
        self.cameras = {"front": config.size, "wrist": config.size}
        self._count, self._deaf = 0, config.deaf
        self.last_command: FloatArray | None = None
        if config.tells_builds:
            self._write("built")

    def reset(self, seed: int | None = None) -> Observation:
        self._count = 0
        self._write(f"reset {seed}")
        return self.observe()

    def act(self, action: FloatArray) -> None:
        if self._count == self._config.fails_at:
            raise OSError("a wire came off")
        self._count += 1
        self.last_command = action
        self._write("act " + " ".join(f"{number:g}" for number in action))

    def observe(self) -> Observation:
        if self._config.silent is not None and self._config.silent.exists():
            raise RobotSilent("camera 'front' is silent")
        frame = np.full((*self._config.size, 3), self._count % 256, np.uint8)
        state = np.nan if self._count == self._config.nan_at else self._count
        return Observation({"front": frame, "wrist": frame + 1}, np.array([state], np.float32))

    def privileged(self) -> dict[str, AnyArray]:
        flags = {"success": self._config.succeeds_at, "failure": self._config.loses_at}
        return {name: np.asarray(self._count == at) for name, at in flags.items() if at >= 0}

    def hold(self) -> None:
        if self._deaf:
            self._deaf -= 1
            raise OSError("nobody answers")
        if self._config.tells_modules:
            self._write("modules " + " ".join(sys.modules))
            self._config = self._config.model_copy(update={"tells_modules": False})
        self._write("hold")

    def _write(self, line: str) -> None:
        with self._config.log.open("a") as log:
            log.write(line + "\n")


class WalkerConfig(PuppetConfig):
    way: int = 30  # commands to the start pose

    def build(self) -> "Walker":
        return Walker(self)


class Walker(Puppet):
    """A puppet that moves to its start pose in `way` commands, each a line "move"."""

    def __init__(self, config: WalkerConfig):
        super().__init__(config)
        self._way = config.way
        self.limiter = CommandLimiter(config.limits(self.action_dim), config.fps)

    def reset(self, seed: int | None = None) -> Observation:
        for _ in range(self._way):
            self.limiter.limit(np.zeros(self.action_dim))
            self._write("move")
            time.sleep(0.005)
        return super().reset(seed)

    def act(self, action: FloatArray) -> None:
        super().act(self.limiter.limit(action))


class CounterConfig(PolicyConfig):
    horizon: int = 100
    took: float = 0.0  # s
    warmup_took: float = 0.0  # s, of each chunk before the first episode; these are not counted below
    stuck_after: int = -1  # chunks, after which it hangs
    fails_after: int = -1  # chunks, after which it raises
    nan_after: int = -1
    away: Path | None = None  # a file: while it exists, the policy's server does not answer
    refuses_copies: bool = False  # of frames: they must be in the memory they were recorded in
    amount: float = 1.0  # a step

    def build(self) -> "Counter":
        return Counter(self)


class Counter:
    """The action of step t is [t, d + 1000 * version]: d is 0 in `predict` and the delay in `guided_inference`."""

    def __init__(self, config: CounterConfig):
        if config.horizon < 1:
            raise ValueError(f"a horizon of {config.horizon}")
        self._config, self.components, self._chunks, self._version = config, {}, 0, 0

    def predict(self, observation: Observation, normalizer: Normalizer) -> FloatArray:
        return self._chunk(observation, 0)

    def guided_inference(
        self, observation: Observation, normalizer: Normalizer, previous: FloatArray, delay: int, executed: int
    ) -> FloatArray:
        return self._chunk(observation, delay)

    def _chunk(self, observation: Observation, delay: int) -> FloatArray:
        self.warmup()
        assert not self._config.refuses_copies or isinstance(backing(observation.images["front"]), mmap.mmap)
        if not any(image.any() for image in observation.images.values()):  # a blank observation
            time.sleep(self._config.warmup_took)
            return np.full((self._config.horizon, 2), delay, np.float32)
        self._chunks += 1
        time.sleep(1e6 if self._chunks - 1 == self._config.stuck_after else self._config.took)
        if self._chunks - 1 == self._config.fails_after:
            raise ZeroDivisionError("a hole in the net")
        steps = observation.state[0] + np.arange(self._config.horizon)
        actions = np.stack([self._config.amount * steps, np.full(len(steps), delay + 1000 * self._version)], axis=1)
        if self._chunks - 1 == self._config.nan_after:
            actions[2] = np.nan
        return actions.astype(np.float32)

    def warmup(self) -> None:
        if self._config.away is not None and self._config.away.exists():
            raise PolicyUnavailable("the server is away")

    def freeze_all_model_params(self) -> None: ...

    def load_weights(self, weights: PolicyWeights) -> None:
        self._version = int(weights.tensors["net/version"][0])


def backing(array: AnyArray) -> object:
    """The object whose memory an array shows, through all views."""
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    return base.obj if isinstance(base, memoryview) else base


def lines(log: Path, what: str = "") -> list[str]:
    """The lines of a puppet's log that begin with `what`."""
    return [line for line in log.read_text().splitlines() if line.startswith(what)] if log.exists() else []


def received(log: Path) -> FloatArray:
    """[T, A] every command that the puppet received."""
    return np.array([line.split()[1:] for line in lines(log, "act")], np.float32)


class HandConfig(TeleopConfig):
    """A person who teleoperates from tick `first` to tick `last`."""

    first: int
    last: int
    command: float = 500.0
    relative: bool = False

    def build(self, action_dim: int) -> "Hand":
        return Hand(self)


class Hand:
    def __init__(self, config: HandConfig):
        self._config, self._ticks, self.relative = config, -1, config.relative

    def begin_episode(self, robot: object) -> None: ...

    def command(self) -> FloatArray | None:
        self._ticks += 1
        taken = self._config.first <= self._ticks <= self._config.last
        return np.full(2, self._config.command, np.float32) if taken else None

    def close(self) -> None: ...


def wave(observation: Observation) -> FloatArray:
    """A script for 24 joints: 50 commands, a little further each."""
    return observation.state + np.linspace(0, 0.1, 50, dtype=np.float32)[:, None]
