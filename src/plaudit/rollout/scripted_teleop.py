"""A simulated person for experiments: the expert of a built-in task takes over where the policy makes no progress.

    plaudit online env=pick_place learner=sac demos.scripted=20 teleop.type=scripted teleop.budget_s=600

A person watches the task's dense reward. After `patience` steps without progress they decide to help, react `delay`
steps later, and act for up to `duration` steps. Once the task has succeeded they do not act again in this episode: what
follows is not learned from. Their time is limited. Nothing of what they see reaches the learner: episodes hold their
commands alone.
"""

from collections.abc import Callable
from typing import Any, Literal, Protocol, Self, runtime_checkable

import numpy as np
from pydantic import Field

from plaudit.config import Fraction, NonNegativeFloat, NonNegativeInt, PositiveInt, Seed
from plaudit.errors import RolloutError
from plaudit.policies.scripted import Outcome, ScriptedExpert
from plaudit.registry import TELEOP_REGISTRY
from plaudit.robots.limits import Limited
from plaudit.robots.sim import SimRobot
from plaudit.robots.twin.task import TwinTask
from plaudit.rollout.operator import OperatorCommand
from plaudit.rollout.teleop import TeleopConfig
from plaudit.types import AnyArray, FloatArray

PROGRESS = 0.01  # of the dense reward, which is at most 1: less is none
LEADER_SPEED = 0.5  # of the task's largest displacement: what the joints of a twin follow without overshoot
SEEN_S = 0.3  # that a success lasts before the leader reports it
PATIENCE_S = 15.0  # after which the leader reports a failure, again and again


@runtime_checkable
class _BuiltInTask(Protocol):
    task_name: str

    def task_state(self) -> Any: ...


@TELEOP_REGISTRY.register("scripted")
class ScriptedTeleopConfig(TeleopConfig):
    """A simulated person who corrects the policy of a built-in task."""

    type: Literal["scripted"] = "scripted"
    patience: PositiveInt = 10  # steps without progress before they decide to help
    delay: NonNegativeInt = 2  # steps from the decision to the first command
    duration: PositiveInt = 15  # steps that they act for, at most
    skill: Fraction = 1.0  # of the interventions, those that bring the task forward; others miss
    noise: NonNegativeFloat = Field(default=0.05, le=1)  # standard deviation of the noise on their commands
    budget_s: NonNegativeFloat | None = None  # seconds that they act for in a run; None: no limit
    seed: Seed = 0  # of the simulated person

    def build(self, action_dim: int) -> "ScriptedTeleop":
        """A person who has not seen the robot yet; see `ScriptedTeleop.begin_episode`."""
        return ScriptedTeleop(self)

    def resumed(self, acted_s: float) -> Self:
        """With the rest of their time."""
        left_s = None if self.budget_s is None else max(self.budget_s - acted_s, 0.0)
        return self.model_copy(update={"budget_s": left_s})


class ScriptedTeleop:
    """See `ScriptedTeleopConfig`."""

    relative = False  # actions of the built-in tasks are displacements already

    def __init__(self, config: ScriptedTeleopConfig):
        self._config = config
        self._rng = np.random.default_rng(config.seed)
        self._acted_s = 0.0

    def begin_episode(self, robot: Any) -> None:
        """Watch a robot, which is a simulated task; called after each reset."""
        self._robot = robot.robot if isinstance(robot, Limited) else robot
        self.watch(self._robot.env if isinstance(self._robot, SimRobot | TwinTask) else None)
        self._best, self._waited, self._left, self._done = -np.inf, 0, 0, False

    def command(self) -> FloatArray | None:
        """[A], or None while the policy acts."""
        self._done |= bool(self._robot.privileged().get("success", False))
        if self._done or self._is_spent:
            return None
        progress = self.progress()
        stalls = progress <= self._best + PROGRESS
        self._best = max(self._best, progress)
        if not self._left:
            self._waited = self._waited + 1 if stalls else 0
            if self._waited < self._config.patience + self._config.delay:
                return None
            self._begin()
        self._left -= 1
        self._waited = 0
        self._acted_s += 1 / self._robot.fps
        return self._act()

    @property
    def _is_spent(self) -> bool:
        budget = self._config.budget_s
        return budget is not None and self._acted_s >= budget

    def _begin(self) -> None:
        """Take over."""
        self._left = self._config.duration
        outcome: Outcome = "success" if self._rng.random() < self._config.skill else "miss"
        seed = int(self._rng.integers(2**31))
        self._act = self.plan(outcome, self._config.noise, seed)

    def watch(self, env: Any) -> None:
        """Take the environment of a new episode. A person for another simulator overrides this and the next two."""
        if not isinstance(env, _BuiltInTask):
            raise RolloutError(
                "teleop.type=scripted helps in a built-in task (lift, pick_place, push); choose a device"
            )
        self._env = env

    def progress(self) -> float:
        """How far the task is, from 0 to 1."""
        return float(self._robot.privileged().get("shaping", 0.0))

    def plan(self, outcome: Outcome, noise: float, seed: int) -> Callable[[], FloatArray]:
        """The commands of an intervention, one at a call."""
        expert = ScriptedExpert(self._env.task_name, 1, [outcome], noise, seed)
        return lambda: expert.act(self._env.task_state())[0]

    def close(self) -> None:
        """Nothing to close."""


class ScriptedLeader:
    """A `Leader`: the same person at a twin with a task (`plaudit robot twin NAME --task lift --leader help`).

    They command the robot's joints on its topic `teleop`, and report success or failure on its topic `operator`.
    """

    def __init__(self, task: TwinTask, config: ScriptedTeleopConfig, *, waits: bool = False):
        """waits: for a policy that moves the robot, which they then help"""
        self._task, self._person, self._waits = task, ScriptedTeleop(config), waits
        self._scene = -1  # that they look at

    def __call__(self, holding: bool = False) -> tuple[AnyArray | None, str]:
        """Joint targets [J], None while the policy acts; and what they report, "" for nothing.

        holding: whether no commands reach the robot
        """
        if holding and self._waits:
            self._scene = -1  # they look again when a policy begins
            return None, ""
        if self._scene != self._task.num_scenes:
            self._scene, self._ticks, self._success_ticks = self._task.num_scenes, 0, 0
            self._person.begin_episode(self._task)
        self._ticks += 1
        self._success_ticks += bool(self._task.privileged()["success"])
        action = self._person.command()
        command = ""
        if self._success_ticks == int(SEEN_S * self._task.fps):
            command = OperatorCommand.SUCCESS
            self._success_ticks += 1
        elif self._ticks % int(PATIENCE_S * self._task.fps) == 0:  # again where the scene stays: nothing has moved
            command = OperatorCommand.SUCCESS if self._success_ticks else OperatorCommand.FAILURE
        return None if action is None else self._task.joints_for(action, LEADER_SPEED), command
