"""Inference and control in turn, in one process: observe, infer, execute the chunk, and again.

The robot gets no command while the policy infers. Those ticks are counted as missed, in the table and in the episode's
meta, because they cannot be seen in the recorded steps, which follow each other as if no time had passed.
"""

import time
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace

import numpy as np

from plaudit.errors import RolloutError, RolloutFault
from plaudit.policies.config import PolicyConfig
from plaudit.policies.guidance import FixedPolicy
from plaudit.protocols import Policy
from plaudit.registry import INFERENCE_REGISTRY
from plaudit.robots.config import RobotConfig
from plaudit.robots.limits import EmergencyStopped, limiter_of
from plaudit.rollout import engine
from plaudit.rollout.control import connect
from plaudit.rollout.recording import ActionChunk, EpisodeBuffer
from plaudit.rollout.teleop import TeleopConfig
from plaudit.types import HUMAN, PolicyWeights


@INFERENCE_REGISTRY.register("sequential")
class Sequential(engine.EngineBase):
    """An `InferenceEngine` in the process that makes it."""

    def __init__(
        self,
        robot: RobotConfig,
        policy: PolicyConfig | None,
        config: engine.InferenceConfig = engine.InferenceConfig(),  # noqa: B008 - frozen
        teleop: TeleopConfig | None = None,
    ):
        super().__init__()
        self._config, self._robot_config, self._teleop = config, robot, teleop
        self._policy: Policy | None = None
        if policy is not None:
            self.load_policy(policy)  # before the robot is connected: a policy that fails leaves it alone
        self._connect()
        self._pushed: tuple[PolicyWeights, bool] | None = None  # and whether they are for the next chunk already
        self._version = 0
        self._faulty = False  # whether a fault has ended the last episode

    def _connect(self, again: bool = False) -> None:
        """again: after a fault, so that the robot must be heard first"""
        config = self._config
        with ExitStack() as stack:
            parts = self._robot_config, self._teleop, self.emergency_stop
            self._robot, teleoperator = connect(*parts, stack, again)
            self._control = engine.ControlStep(self._robot, teleoperator, config)
            self.env_spec, self.priority = engine.robot_spec(self._robot, config), "ordinary priority"
            self._normalizer = config.load_normalizer(self.env_spec)
            self._open = stack.pop_all()

    def recover(self) -> None:
        """Connect the robot and warm up the policy again, where a fault has ended an episode."""
        if not self._faulty:
            return
        with suppress(Exception):  # of a robot that is not there
            self._open.close()
        try:
            self._connect(again=True)
            if self._policy is not None:
                self._policy.warmup()
        except engine.MAY_PASS as error:
            raise RolloutFault(str(error)) from error
        self._faulty = False

    def look(self) -> None:
        """See `EngineBase.look`."""
        if self.preview is not None and not self._faulty:
            with suppress(Exception):  # of a robot that is not heard, or must be reset first
                self.preview.add_observation(0, self._robot.observe(), time.monotonic())

    def load_policy(self, policy: PolicyConfig) -> None:
        """Build the policy and run it once."""
        self._policy = engine.build_policy(policy)

    def push(self, weights: PolicyWeights, now: bool = False) -> None:
        """New weights for the next episode, or with `now` for the next chunk."""
        self._pushed = weights, now

    def close(self) -> None:
        """The robot holds and is closed; calling it twice does nothing."""
        self._open.close()

    def _run_episode(self, task: str, seed: int | None) -> engine.Outcome:
        policy = self._policy
        if policy is None:
            raise RolloutError(engine.NO_POLICY)
        self._load_pushed(policy, between_episodes=True)
        buffer = self.recording = EpisodeBuffer.allocate(self.env_spec, self.env_spec.max_steps)
        buffer.task, terminated, failure = task, False, None
        try:
            with engine.gc_disabled() if self._config.realtime else nullcontext():
                ended, terminated = self._drive(policy, buffer, seed)
        except KeyboardInterrupt as error:
            ended, failure = "interrupted", error
        except EmergencyStopped as stopped:  # no fault: the next episode begins when it is released
            ended = str(stopped)
        except Exception as error:  # noqa: BLE001 - of a robot or a policy, which may raise anything
            ended, failure = engine.error_message(error), _rollout_error(error)
        finally:
            hold_error = self._hold()
        if hold_error is not None:
            ended = f"{ended}; and the robot could not be told to hold: {engine.error_message(hold_error)}"
            if not isinstance(failure, KeyboardInterrupt):
                failure = _rollout_error(hold_error, ended)
        self._faulty = isinstance(failure, RolloutFault)
        privileged = self._control.privileged
        episode = self._recorded(buffer, privileged, task=task, seed=seed, ended=ended, terminated=terminated)
        return episode, failure

    def _hold(self) -> Exception | None:
        """Tell the robot to; returns what that raised, because the episode must not be lost with it."""
        try:
            self._robot.hold()
        except Exception as error:  # noqa: BLE001 - of a robot, which may raise anything
            return error
        return None

    def _drive(self, policy: Policy, buffer: EpisodeBuffer, seed: int | None) -> tuple[str, bool]:
        """Returns why the episode ended, and whether that terminated the task."""
        if reason := self._control.play_reset(self._reason_to_end):
            return reason, False
        self._control.begin(buffer, seed)
        chunk = self._infer(policy, buffer, 0)
        rate_limiter = engine.RateLimiter(self.env_spec.fps) if self._config.realtime else engine.NoRateLimiter()
        for step in range(buffer.max_steps + 1):
            self._control.begin_tick(*rate_limiter.wait())
            if step and (flag := self._control.observe(step)):
                return flag, True
            if step == buffer.max_steps:
                break
            if reason := self._reason_to_end():
                return reason, False
            human = self._control.human_command()
            if human is None and self._is_over(chunk, step, buffer):
                chunk = self._control.untimed(lambda row=step: self._infer(policy, buffer, row))
            self._control.act(step, chunk, human)
        return "steps", False

    def _is_over(self, chunk: ActionChunk, step: int, buffer: EpisodeBuffer) -> bool:
        """Whether a chunk was executed, or a human has moved the robot away from what it was inferred from."""
        length = len(chunk.actions)
        executed = min(self._config.execution_horizon or length, length, limiter_of(self._robot).stale_steps)
        return step - chunk.start_step >= executed or bool(step and buffer.control_mode[step - 1] == HUMAN)

    def _infer(self, policy: Policy, buffer: EpisodeBuffer, row: int) -> ActionChunk:
        self._load_pushed(policy, between_episodes=False)
        began = time.monotonic()
        actions = policy.predict(buffer.observation(row), self._normalizer)
        buffer.add_inference(row, began - buffer.observed_at[row], time.monotonic() - began, self._version)
        return ActionChunk(engine.validate_chunk(actions, self.env_spec.action_dim), row)

    def _load_pushed(self, policy: Policy, *, between_episodes: bool) -> None:
        if self._pushed is not None and (between_episodes or self._pushed[1]):
            weights, self._pushed = self._pushed[0], None
            policy.load_weights(weights)
            self._version = weights.version


class TeleopOnly(Sequential):
    """An `InferenceEngine` without a policy: a person drives, and the robot holds where they command nothing.

    All steps count as the person's, so that their pauses are part of the demonstration.
    """

    def __init__(self, robot: RobotConfig, config: engine.InferenceConfig, teleop: TeleopConfig):
        super().__init__(robot, None, config, teleop)
        self._policy = NoPolicy()

    def _run_episode(self, task: str, seed: int | None) -> engine.Outcome:
        episode, error = super()._run_episode(task, seed)
        if episode is not None:
            episode = replace(episode, control_mode=np.full_like(episode.control_mode, HUMAN))
        return episode, error

    def _infer(self, policy: Policy, buffer: EpisodeBuffer, row: int) -> ActionChunk:
        return ActionChunk(np.empty((0, self.env_spec.action_dim), np.float32), row)


class NoPolicy(FixedPolicy):
    """Placeholder for a policy; only a person acts."""

    no_weights = "only a person acts, so no weights can be loaded"


def _rollout_error(cause: Exception, message: str | None = None) -> RolloutError:
    kind = RolloutFault if isinstance(cause, engine.MAY_PASS) else RolloutError
    error = kind(message or engine.error_message(cause))
    error.__cause__ = cause
    return error
