"""The scene and its tasks: a Panda arm made of primitives at a table, with a cube and a goal marker.

Link lengths and joint axes are those of the real arm; its covers are capsules and boxes, so there is nothing to
download and a ray meets a surface in closed form. A weld to a mocap body holds the hand, which always points down: an
action moves that body, and the solver moves the joints. (Rejected: inverse kinematics and joint servos in Python, which
cost more than the physics.) Gravity acts on the cube alone. Only pairs that can meet have contacts.

A task is how an episode starts, what counts as success, and a dense reward, computed for N environments at once from
the simulator's own state. Success is what a judge has to recognize in the images. The dense reward is for learners that
may use privileged state, and for comparison with other simulators. Its shape follows ManiSkill's PickCube: in [0, 1],
and 1 on success. Nothing here needs MuJoCo.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from plaudit.errors import EnvError, did_you_mean
from plaudit.types import AnyArray, BoolArray, FloatArray

# Also in scene.xml:
TIMESTEP: Final = 0.00625  # of physics, s
CUBE_HALF_SIZE: Final = 0.02  # m
FINGER_OPEN: Final = 0.04  # a finger's travel from the middle, m
TIP_OFFSET: Final = 0.1034  # from the hand's frame to between the fingertips, m
MOVING_GROUP, FIXED_GROUP = 1, 0  # geom groups
CAMERAS: Final = ("front", "side", "wrist")
MAX_IMAGE_SIZE: Final = 1280  # edge of an image, pixels
SKY: Final = np.array([0.80, 0.85, 0.90])

TABLE_CENTER: Final = np.array([0.5, 0.0, 0.0])  # middle of the workspace, m
WORKSPACE_LOW: Final = np.array([0.3, -0.25, 0.012])  # limits of the fingertips, m
WORKSPACE_HIGH: Final = np.array([0.7, 0.25, 0.35])
SUBSTEPS: Final = 8  # of physics per control step: 20 Hz
ACTION_SCALE: Final = 0.04  # how far an action of 1 moves the hand in a step, m

# The names of `Observation.state`, in order.
DISTANCE_SCALE: Final = 0.1  # m: offsets between things are given in this unit
STATE_LIMIT: Final = 50.0  # every value is clipped to this; only a cube that fell off the table reaches it
# Proprioception, part of every kind of observation:
ARM_STATE: Final = (
    *(f"joint{number}" for number in range(1, 8)),  # rad
    "finger",  # 0 closed, 1 open
    *("tip_x", "tip_y", "tip_z"),  # between the fingertips, m from the arm's base
    *("moved_x", "moved_y", "moved_z"),  # by the tip in the last step; 1 is as far as an action can send it
    "finger_sent",  # the last gripper command: 0 closed, 1 open
)
# Privileged state, with obs "state" and "both":
SCENE_STATE: Final = (
    *("cube_x", "cube_y", "cube_z"),  # m
    *("tip_to_cube_x", "tip_to_cube_y", "tip_to_cube_z"),  # in units of DISTANCE_SCALE
    *("goal_x", "goal_y", "goal_z"),  # m
    *("cube_to_goal_x", "cube_to_goal_y", "cube_to_goal_z"),  # in units of DISTANCE_SCALE
    *("cube_qw", "cube_qx", "cube_qy", "cube_qz"),  # orientation of the cube
    "grasped",  # 1 while both fingers touch the cube
)


def check_cameras(cameras: Sequence[str]) -> None:
    """Raise `EnvError` unless all of these are cameras of the scene."""
    if not cameras:
        raise EnvError(f"name at least one camera of {', '.join(CAMERAS)}; to have no images, set obs to 'state'")
    for camera in cameras:
        if camera not in CAMERAS:
            raise EnvError(f"there is no camera '{camera}'; {did_you_mean(camera, CAMERAS)}")
        if list(cameras).count(camera) > 1:
            raise EnvError(f"camera '{camera}' is named twice")


# The tasks

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
