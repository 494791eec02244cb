"""The tasks: where things start, what counts as success, and how a dense reward leads there.

Everything is computed for N scenes at once from what the simulation knows. Success is what a judge will have to see in
the pictures; the dense reward is for learners that are allowed to cheat and for comparison with others.
The shape of the dense rewards follows ManiSkill's PickCube, in [0, 1], 1 on success.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from plaudit.envs.panda.scene import CENTER, CUBE
from plaudit.types import AnyArray, BoolArray, FloatArray

AREA = 0.1  # half the square in which cubes and goals are put, m
HIDDEN = np.array([0.0, 0.0, -1.0])  # where a marker that a task has no use for goes: under the floor


@dataclass(frozen=True)
class Facts:
    """What is where in N scenes, in metres and seconds."""

    tip: AnyArray  # [N, 3] between the finger tips
    cube: AnyArray  # [N, 3]
    speed: AnyArray  # [N] of the cube
    goal: AnyArray  # [N, 3]
    grasped: BoolArray  # [N] both fingers touch the cube


@dataclass(frozen=True)
class Start:
    """One scene at its start."""

    cube: AnyArray  # [3] x, y, and turned by how much, rad
    goal: AnyArray  # [3]


class Task(ABC):
    """One of the family."""

    name: ClassVar[str]
    words: ClassVar[str]  # the instruction

    @abstractmethod
    def start(self, rng: np.random.Generator) -> Start: ...

    @abstractmethod
    def success(self, facts: Facts) -> BoolArray: ...

    @abstractmethod
    def dense(self, facts: Facts) -> FloatArray:
        """[N] in [0, 1)."""


def _cube(rng: np.random.Generator, area: float = AREA) -> AnyArray:
    return np.array([*(CENTER[:2] + rng.uniform(-area, area, 2)), rng.uniform(-np.pi / 4, np.pi / 4)])


def _near(one: AnyArray, other: AnyArray) -> AnyArray:
    """1 where they meet, falling to 0."""
    return 1 - np.tanh(5 * np.linalg.norm(one - other, axis=1))


class Lift(Task):
    name, words = "lift", "lift the red cube"
    height = 0.1  # of the cube over the table, m

    def start(self, rng: np.random.Generator) -> Start:
        return Start(_cube(rng), HIDDEN)

    def success(self, facts: Facts) -> BoolArray:
        return facts.grasped & (facts.cube[:, 2] - CUBE > self.height)

    def dense(self, facts: Facts) -> FloatArray:
        lifted = np.clip((facts.cube[:, 2] - CUBE) / self.height, 0, 1)
        return ((_near(facts.tip, facts.cube) + facts.grasped * (1 + lifted)) / 4).astype(np.float32)


class PickPlace(Task):
    name, words = "pick_place", "put the red cube on the green marker"
    reach, still = 0.025, 0.15  # m, m/s

    def start(self, rng: np.random.Generator) -> Start:
        cube = _cube(rng)
        return Start(cube, np.array([*(CENTER[:2] + rng.uniform(-AREA, AREA, 2)), rng.uniform(CUBE, 0.25)]))

    def success(self, facts: Facts) -> BoolArray:
        return (np.linalg.norm(facts.cube - facts.goal, axis=1) < self.reach) & (facts.speed < self.still)

    def dense(self, facts: Facts) -> FloatArray:
        there = np.linalg.norm(facts.cube - facts.goal, axis=1) < self.reach
        carried = facts.grasped * (1 + _near(facts.cube, facts.goal))
        stopping = there * (1 - np.tanh(5 * facts.speed))
        return ((_near(facts.tip, facts.cube) + carried + stopping) / 5).astype(np.float32)


class Push(Task):
    name, words = "push", "push the red cube onto the green marker"
    reach = 0.03  # m

    def start(self, rng: np.random.Generator) -> Start:
        cube = _cube(rng, AREA / 2)
        angle, far = rng.uniform(-np.pi, np.pi), rng.uniform(0.08, 0.14)
        return Start(cube, np.array([cube[0] + far * np.cos(angle), cube[1] + far * np.sin(angle), 0.0]))

    def success(self, facts: Facts) -> BoolArray:
        near = np.linalg.norm((facts.cube - facts.goal)[:, :2], axis=1) < self.reach
        return near & (facts.cube[:, 2] < 1.5 * CUBE)

    def dense(self, facts: Facts) -> FloatArray:
        way = (facts.goal - facts.cube)[:, :2]
        ahead = way / np.maximum(np.linalg.norm(way, axis=1, keepdims=True), 1e-6)
        behind = facts.cube.copy()
        behind[:, :2] -= 0.04 * ahead
        flat = facts.cube.copy()
        flat[:, 2] = 0.0
        return ((_near(facts.tip, behind) + 2 * _near(flat, facts.goal)) / 4).astype(np.float32)


TASKS: dict[str, Task] = {task.name: task for task in (Lift(), PickPlace(), Push())}
