"""The tasks: how an episode starts, what counts as success, and a dense reward.

Everything is computed for N environments at once, from the simulator's own state. Success is what a judge has to
recognize in the images; the dense reward is for learners that may use privileged state, and for comparison with other
simulators. Its shape follows ManiSkill's PickCube: in [0, 1], and 1 on success.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from plaudit.envs.panda.scene import CUBE_HALF_SIZE, TABLE_CENTER
from plaudit.types import AnyArray, BoolArray, FloatArray

START_RANGE = 0.1  # half the edge of the square in which cubes and goals start, m
HIDDEN = np.array([0.0, 0.0, -1.0])  # below the floor: where the marker goes in a task without a goal position


@dataclass(frozen=True)
class TaskState:
    """The simulator's own state of N environments, in meters and seconds."""

    tip_pos: AnyArray  # [N, 3] between the fingertips
    cube_pos: AnyArray  # [N, 3]
    cube_speed: AnyArray  # [N]
    goal_pos: AnyArray  # [N, 3]
    is_grasped: BoolArray  # [N] both fingers touch the cube


@dataclass(frozen=True)
class Start:
    """How one episode starts."""

    cube: AnyArray  # [3] x, y (m) and yaw (rad)
    goal: AnyArray  # [3] m


class Task(ABC):
    """One task: its start distribution, success condition and dense reward."""

    name: ClassVar[str]
    instruction: ClassVar[str]

    @abstractmethod
    def sample_start(self, rng: np.random.Generator) -> Start:
        """Draw the start of one episode."""

    @abstractmethod
    def success(self, state: TaskState) -> BoolArray:
        """[N] whether the task is done."""

    @abstractmethod
    def dense_reward(self, state: TaskState) -> FloatArray:
        """[N] in [0, 1), without the bonus for success."""


def _sample_cube(rng: np.random.Generator, half_range: float = START_RANGE) -> AnyArray:
    return np.array([*(TABLE_CENTER[:2] + rng.uniform(-half_range, half_range, 2)), rng.uniform(-np.pi / 4, np.pi / 4)])


def _proximity(a: AnyArray, b: AnyArray) -> AnyArray:
    """[N] 1 where the points coincide, falling to 0 with their distance."""
    return 1 - np.tanh(5 * np.linalg.norm(a - b, axis=1))


class Lift(Task):
    """Hold the cube above the table."""

    name, instruction = "lift", "lift the red cube"
    height = 0.1  # of the cube above the table, m

    def sample_start(self, rng: np.random.Generator) -> Start:
        return Start(_sample_cube(rng), HIDDEN)

    def success(self, state: TaskState) -> BoolArray:
        return state.is_grasped & (state.cube_pos[:, 2] - CUBE_HALF_SIZE > self.height)

    def dense_reward(self, state: TaskState) -> FloatArray:
        lifted = np.clip((state.cube_pos[:, 2] - CUBE_HALF_SIZE) / self.height, 0, 1)
        reach = _proximity(state.tip_pos, state.cube_pos)
        return ((reach + state.is_grasped * (1 + lifted)) / 4).astype(np.float32)


class PickPlace(Task):
    """Bring the cube to the marker, on the table or above it, and keep it still there."""

    name, instruction = "pick_place", "put the red cube on the green marker"
    goal_radius, max_speed = 0.025, 0.15  # m, m/s

    def sample_start(self, rng: np.random.Generator) -> Start:
        cube = _sample_cube(rng)
        goal_xy = TABLE_CENTER[:2] + rng.uniform(-START_RANGE, START_RANGE, 2)
        return Start(cube, np.array([*goal_xy, rng.uniform(CUBE_HALF_SIZE, 0.25)]))

    def success(self, state: TaskState) -> BoolArray:
        return self._at_goal(state) & (state.cube_speed < self.max_speed)

    def dense_reward(self, state: TaskState) -> FloatArray:
        reach = _proximity(state.tip_pos, state.cube_pos)
        carry = state.is_grasped * (1 + _proximity(state.cube_pos, state.goal_pos))
        stop = self._at_goal(state) * (1 - np.tanh(5 * state.cube_speed))
        return ((reach + carry + stop) / 5).astype(np.float32)

    def _at_goal(self, state: TaskState) -> BoolArray:
        return np.linalg.norm(state.cube_pos - state.goal_pos, axis=1) < self.goal_radius


class Push(Task):
    """Slide the cube onto the marker."""

    name, instruction = "push", "push the red cube onto the green marker"
    goal_radius = 0.03  # m

    def sample_start(self, rng: np.random.Generator) -> Start:
        cube = _sample_cube(rng, START_RANGE / 2)
        angle, distance = rng.uniform(-np.pi, np.pi), rng.uniform(0.08, 0.14)
        return Start(cube, np.array([cube[0] + distance * np.cos(angle), cube[1] + distance * np.sin(angle), 0.0]))

    def success(self, state: TaskState) -> BoolArray:
        at_goal = np.linalg.norm((state.cube_pos - state.goal_pos)[:, :2], axis=1) < self.goal_radius
        return at_goal & (state.cube_pos[:, 2] < 1.5 * CUBE_HALF_SIZE)

    def dense_reward(self, state: TaskState) -> FloatArray:
        to_goal = (state.goal_pos - state.cube_pos)[:, :2]
        direction = to_goal / np.maximum(np.linalg.norm(to_goal, axis=1, keepdims=True), 1e-6)
        behind_cube = state.cube_pos.copy()
        behind_cube[:, :2] -= 0.04 * direction
        cube_on_table = state.cube_pos.copy()
        cube_on_table[:, 2] = 0.0
        reach = _proximity(state.tip_pos, behind_cube)
        return ((reach + 2 * _proximity(cube_on_table, state.goal_pos)) / 4).astype(np.float32)


TASKS: dict[str, Task] = {task.name: task for task in (Lift(), PickPlace(), Push())}
