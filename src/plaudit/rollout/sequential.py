"""One after the other in one process: read, infer, act out the chunk, and again.

The robot gets no command while the policy infers. Those ticks are counted as missed, in the table and in the episode's
meta, because nothing of this can be seen in the recorded steps: they follow each other as if no time had passed.
"""

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from typing import Self

import numpy as np

from plaudit.errors import RolloutError
from plaudit.registry import INFERENCE_REGISTRY
from plaudit.rollout.clock import NoRateLimiter, RateLimiter, gc_disabled
from plaudit.rollout.driver import ControlStep
from plaudit.rollout.engine import (
    InferenceConfig,
    PolicyConfig,
    RobotConfig,
    enter_if_context,
    error_message,
    robot_spec,
    validate_chunk,
)
from plaudit.rollout.memory import ActionChunk, EpisodeBuffer
from plaudit.rollout.teleop import TeleopConfig
from plaudit.rollout.timing import KEPT, LatencyStats
from plaudit.types import Episode, PolicyWeights


@INFERENCE_REGISTRY.register("sequential")
class Sequential:
    """An `InferenceEngine` in the process that makes it."""

    def __init__(
        self,
        robot: RobotConfig,
        policy: PolicyConfig,
        config: InferenceConfig = InferenceConfig(),  # noqa: B008 - frozen
        teleop: TeleopConfig | None = None,
    ):
        self._config = config
        self._policy = policy.build()
        self._policy.freeze_all_model_params()
        self._policy.warmup()
        with ExitStack() as stack:
            self._robot = enter_if_context(robot.build(), stack)
            stack.callback(self._robot.hold)
            person = None if teleop is None else teleop.build(self._robot.action_dim)
            if person is not None:
                stack.callback(person.close)
            self._driver = ControlStep(self._robot, person, config)
            self.env_spec, self.priority = robot_spec(self._robot, config.name, config.control_hz), "ordinary priority"
            self._normalizer = config.load_normalizer(self.env_spec)
            self._open = stack.pop_all()
        self._parts: deque[LatencyStats] = deque(maxlen=KEPT)
        self._stopping = threading.Event()
        self._new: tuple[PolicyWeights, bool] | None = None  # and whether they are for the next chunk already
        self._version = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def timing(self) -> LatencyStats:
        return LatencyStats.joined(self._parts)

    def episodes(self, count: int, *, task: str = "", seed: int | None = None) -> Iterator[Episode]:
        for number in range(count):
            self._take_weights(between=True)
            episode, trouble = self._episode(task, None if seed is None else seed + number)
            if episode is not None:
                yield episode
            if trouble is not None:
                raise trouble
            if self._stopping.is_set():
                return

    def push(self, weights: PolicyWeights, now: bool = False) -> None:
        self._new = weights, now

    def stop(self) -> None:
        self._stopping.set()

    def close(self) -> None:
        """The robot holds; asked twice, does nothing."""
        self._open.close()

    def _episode(self, task: str, seed: int | None) -> tuple[Episode | None, BaseException | None]:
        """What was recorded, and what went wrong; the robot holds."""
        memory = EpisodeBuffer.allocate(self.env_spec, self._config.max_episode_steps)
        terminated, trouble = False, None
        try:
            with gc_disabled() if self._config.realtime else nullcontext():
                ended = self._drive(memory, seed)
            terminated = ended == self._config.stop_on
        except KeyboardInterrupt as error:
            ended, trouble = "interrupted", error
        except Exception as error:  # noqa: BLE001 - of a robot or a policy, which may raise anything
            ended = error_message(error)
            trouble = RolloutError(ended)
            trouble.__cause__ = error
        finally:
            refused = self._hold()
        if refused is not None:
            ended = f"{ended}; and the robot could not be told to hold: {error_message(refused)}"
            if not isinstance(trouble, KeyboardInterrupt):
                trouble = RolloutError(ended)
                trouble.__cause__ = refused
        timing = LatencyStats.of(memory)
        self._parts.append(timing)
        privileged = {name: np.stack(values) for name, values in self._driver.privileged.items()}
        facts = {"ended": ended, "missed_ticks": int(timing.missed.sum()), **memory.weights_facts()}
        meta = {**({} if seed is None else {"seed": seed}), **facts}
        return memory.episode(privileged, task=task, terminated=terminated, meta=meta), trouble

    def _hold(self) -> Exception | None:
        """Tell the robot to; returns why that was not possible: what it recorded must not be lost with it."""
        try:
            self._robot.hold()
        except Exception as error:  # noqa: BLE001 - of a robot, which may raise anything
            return error
        return None

    def _drive(self, memory: EpisodeBuffer, seed: int | None) -> str:
        """Returns why it ended."""
        self._driver.begin(memory, seed)
        chunk = self._infer(memory, 0)
        clock = RateLimiter(self.env_spec.fps) if self._config.realtime else NoRateLimiter()
        for step in range(memory.steps + 1):
            self._driver.wake(*clock.wait())
            if step and self._driver.observe(step):
                return self._config.stop_on
            if step == memory.steps:
                break
            if self._stopping.is_set():
                return "stopped"
            if step - chunk.row >= min(self._config.execution_horizon or len(chunk.actions), len(chunk.actions)):
                chunk = self._driver.elsewhere(lambda row=step: self._infer(memory, row))
            self._driver.send(step, chunk)
        return "steps"

    def _infer(self, memory: EpisodeBuffer, row: int) -> ActionChunk:
        self._take_weights(between=False)
        begun = time.monotonic()
        actions = self._policy.predict(memory.observation(row), self._normalizer)
        memory.infer(row, begun - memory.seen_at[row], time.monotonic() - begun, self._version)
        return ActionChunk(validate_chunk(actions, self.env_spec.action_dim), row)

    def _take_weights(self, between: bool) -> None:
        """Those that were pushed, if they are for now."""
        if self._new is not None and (between or self._new[1]):
            weights, self._new = self._new[0], None
            self._policy.load_weights(weights)
            self._version = weights.version
