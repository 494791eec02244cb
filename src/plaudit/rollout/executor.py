"""What drives a robot with a policy, episode after episode, and what all ways of doing it have in common.

    with Rtc(robot, policy, settings) as executor:       # configs: each is built in the process where it runs
        for episode in executor.episodes(10):
            store.append(episode)
            executor.push(learner.weights())             # the next episode acts with them

`Rtc` (rollout/rtc.py) infers in one process while another controls; `Sequential` (rollout/sequential.py) does one after
the other, and its robot waits meanwhile. Both check a chunk before it is used, let a person take over, limit how fast a
command may change, record what was really sent, and tell the robot to hold on every way out.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from pydantic import Field

from plaudit.config import Config
from plaudit.data.normalize import Normalizer
from plaudit.data.store import Store
from plaudit.errors import PlauditError, RolloutError
from plaudit.protocols import Policy, Robot
from plaudit.rollout.memory import LONGEST_CHUNK, Body
from plaudit.rollout.timing import Timing
from plaudit.types import Episode, FloatArray, Weights


class RobotConfig(Protocol):
    """A config of `ROBOT_REGISTRY`."""

    def build(self) -> Robot: ...


class PolicyConfig(Protocol):
    """A config of `POLICY_REGISTRY`."""

    def build(self) -> Policy: ...


class ExecutorConfig(Config):
    """How to drive."""

    name: str = ""  # of the robot, as episodes have it; "": that of its class
    steps: int = Field(default=1000, ge=1)  # of an episode, at most
    until: str = ""  # a flag that only a simulation knows, like success: an episode ends when it turns true
    rate: float | None = Field(default=None, gt=0)  # control steps a second; None: the robot's
    realtime: bool = True  # False, for a simulation and sequential: as fast as it goes, the rate is only recorded
    execute: int | None = Field(default=None, ge=1)  # steps of a chunk before the next; None: half (rtc) or all of it
    max_change: float | tuple[float, ...] | None = None  # of a command from a tick to the next, one for all or a joint
    idle: Literal["last", "zero"] = "last"  # sent when there is nothing to send: targets again, or no velocity
    guide: bool = True  # rtc: go on from the chunk before; False: whatever the policy says next, jumps and all
    delays: int = Field(default=8, ge=1)  # rtc: the next is expected to be the longest of so many
    # Statistics of state and action, a file or what stands in it; None: the policy has the robot's own units.
    normalizer: Path | dict[str, Any] | None = None
    cpu: int | None = None  # rtc: the core that control stays on
    patience: float = Field(default=120.0, gt=0)  # s for building robot and policy, and for a first chunk

    def load_normalizer(self, body: Body) -> Normalizer:
        if self.normalizer is None:
            return Normalizer.identity(body.state_dim, body.action_dim)
        return Normalizer.load(self.normalizer)


class Executor(Protocol):
    """See above."""

    @property
    def timing(self) -> Timing:
        """Of all episodes so far."""
        ...

    def episodes(self, count: int, *, task: str = "", seed: int | None = None) -> Iterator[Episode]:
        """Drive `count` times and hand out what was recorded.

        When something fails, the episode so far comes out first, marked with `meta["ended"]`; then the error is
        raised. Ctrl-C does the same. The robot holds before either.
        seed: of the first; a simulation starts from it, and the next episode from the next
        """
        ...

    def push(self, weights: Weights, now: bool = False) -> None:
        """New weights for the next episode, or for the next chunk; each episode's `meta["weights"]` has the version."""
        ...

    def stop(self) -> None:
        """End the episode at hand, from another thread; it comes out marked, and it is the last."""
        ...

    def close(self) -> None: ...


def recorded(executor: Executor, store: Store, count: int, *, task: str = "", seed: int | None = None) -> Iterator[int]:
    """Drive and store, and tell the number of each episode that is. What fails is raised after what was recorded is
    stored."""
    for episode in executor.episodes(count, task=task, seed=seed):
        yield store.append(episode)


def checked_chunk(chunk: Any, action_dim: int) -> FloatArray:
    """A policy's answer, if it can be sent to a robot."""
    if not isinstance(chunk, np.ndarray) or chunk.ndim != 2 or chunk.shape[1] != action_dim or not len(chunk):
        what = list(chunk.shape) if isinstance(chunk, np.ndarray) else type(chunk).__name__
        raise RolloutError(f"the policy must return actions [H, {action_dim}], it returned {what}")
    if len(chunk) > LONGEST_CHUNK:
        raise RolloutError(f"the policy returned {len(chunk)} actions at once; {LONGEST_CHUNK} are the most")
    bad = np.flatnonzero(~np.isfinite(chunk).all(axis=1))
    if len(bad):
        raise RolloutError(
            f"the policy returned NaN or infinity in action {bad[0]} of {len(chunk)}; nothing of it was sent"
        )
    return chunk.astype(np.float32, copy=False)


def opened(robot: Robot, stack: ExitStack) -> Robot:
    """One that has to be closed is, with the stack."""
    return stack.enter_context(robot) if isinstance(robot, AbstractContextManager) else robot


def described(error: BaseException) -> str:
    """For who does not see the traceback."""
    return str(error) if isinstance(error, PlauditError) else f"{type(error).__name__}: {error}"
