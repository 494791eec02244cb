"""A scripted expert for the built-in tasks: demonstrations on demand, and failures worth learning from.

It sees what the simulation knows, not the pictures. Each scene is in one of a few phases and moves straight to where
that phase wants the finger tips; noise on the actions makes no two demonstrations alike. The failures look nearly
right, which is what a judge of images has to tell apart: fingers that close beside the cube, a cube let go on the way,
one that stops short of the goal, one brought to a wrong place.
"""

from collections.abc import Sequence
from typing import Literal, Protocol, get_args

import numpy as np

from plaudit.envs.panda.scene import CUBE, STEP
from plaudit.envs.panda.tasks import Facts, Lift
from plaudit.errors import EnvError, nearest
from plaudit.types import AnyArray, FloatArray, Observation


class Scenes(Protocol):
    """What an expert has to know of the world."""

    num_envs: int

    @property
    def task_name(self) -> str: ...

    def facts(self) -> Facts: ...


Outcome = Literal["success", "miss", "drop", "near_goal", "wrong_place"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)

HOVER = 0.09  # of the tips over the table on the way, m
ALIGNED = 0.012  # how well placed the tips are before they go on, m
CLOSING = 4  # steps that fingers get to close


def check_script(outcomes: Sequence[str], noise: float) -> None:
    """Whether an expert can be told so."""
    if not outcomes:
        raise EnvError(f"name at least one outcome of {', '.join(OUTCOMES)}")
    for outcome in outcomes:
        if outcome not in OUTCOMES:
            raise EnvError(f"there is no outcome '{outcome}'; {nearest(outcome, OUTCOMES)}")
    if noise < 0:
        raise EnvError(f"noise is {noise}; it is a standard deviation, 0 or more")


class ScriptedExpert:
    """Acts in every scene of a world at once, each towards its own outcome."""

    def __init__(self, world: Scenes, outcomes: Sequence[str] = ("success",), noise: float = 0.0, seed: int = 0):
        """
        outcomes: one a scene; fewer are repeated
        noise: standard deviation of what is added to an action, of which 1 is the most
        """
        check_script(outcomes, noise)
        self._world, self._noise = world, noise
        self._rng = np.random.default_rng(seed)
        self.outcome = np.resize(np.array(outcomes), world.num_envs)
        self.start()

    def start(self) -> None:
        """All scenes are reset before the next action: it begins anew."""
        self._begun = False

    def act(self, observation: Observation | None = None) -> FloatArray:
        """The next actions, [N, 4] in -1..1."""
        facts = self._world.facts()
        if not self._begun:
            self._begin(facts)
        target, gripper = self._push(facts) if self._world.task_name == "push" else self._pick(facts)
        move = np.clip((target - facts.tip) / STEP, -1, 1)
        actions = np.concatenate([move, gripper[:, None]], axis=1)
        return np.clip(actions + self._rng.normal(0, 1, actions.shape) * self._noise, -1, 1).astype(np.float32)

    def _begin(self, facts: Facts) -> None:
        """Decide where each scene's cube is taken, and where its fingers close."""
        self._begun, count = True, self._world.num_envs
        self._closed = np.zeros(count, int)  # steps since the fingers began to close
        self._let_go = np.zeros(count, bool)
        self._aside, self._goal = np.zeros((count, 3)), facts.goal.copy()
        angle = self._rng.uniform(-np.pi, np.pi, count)
        way = facts.goal - facts.cube
        if self._world.task_name == "push":
            angle = np.arctan2(way[:, 1], way[:, 0]) + np.where(angle > 0, np.pi / 2, -np.pi / 2)  # to one side of it
        sideways = np.stack([np.cos(angle), np.sin(angle), np.zeros(count)], axis=1)
        beside = 0.06 if self._world.task_name == "push" else np.array([0.055, 0.085, 0])  # open fingers reach out in y
        self._fail("miss", self._aside, beside * sideways)  # where they close or push, beside the cube
        if self._world.task_name == "lift":
            self._goal[:] = facts.cube + (0, 0, Lift.height + 0.04)
            self._fail("near_goal", self._goal, -self._short_by(count))
            self._fail("wrong_place", self._goal, 0.1 * sideways - (0, 0, Lift.height + 0.02))
        elif self._world.task_name == "pick_place":
            self._fail("near_goal", self._goal, 0.06 * sideways)
            self._fail("wrong_place", self._goal, 0.12 * sideways)
            self._fail("drop", self._goal, 0.12 * sideways + (0, 0, 0.1))  # on a way that does not cross the goal
        else:
            self._fail("near_goal", self._goal, -0.06 * way / np.linalg.norm(way[:, :2], axis=1, keepdims=True))
            self._fail("wrong_place", self._goal, 0.1 * sideways)

    def _short_by(self, count: int) -> AnyArray:
        """[N, 3] how much lower than an expert these stop: anywhere from half way up to just below what counts."""
        if not (self.outcome == "near_goal").any():
            return np.zeros((count, 3))
        return self._rng.uniform(0.05, 0.09, (count, 1)) * (0, 0, 1)

    def _fail(self, outcome: Outcome, places: AnyArray, shift: AnyArray) -> None:
        """Move the places of the scenes with this outcome."""
        places += np.where((self.outcome == outcome)[:, None], shift, 0.0)

    def _pick(self, facts: Facts) -> tuple[AnyArray, AnyArray]:
        over = facts.cube + self._aside
        off = np.linalg.norm((facts.tip - over)[:, :2], axis=1)
        down = over.copy()
        down[:, 2] = np.where(off < ALIGNED, CUBE, HOVER)
        arrived = (off < ALIGNED) & (facts.tip[:, 2] < CUBE + 0.008)
        self._closed += arrived | (self._closed > 0)
        carrying = self._closed > CLOSING
        lost = carrying & ~facts.grasped & (self.outcome != "miss") & ~self._let_go
        self._closed[lost] = 0  # try again
        carried = facts.tip + self._goal - np.where(self._aside.any(1, keepdims=True), facts.tip, facts.cube)
        self._let_go |= (self.outcome == "drop") & carrying & (facts.cube[:, 2] > CUBE + 0.03)
        target = np.where(carrying[:, None], carried, np.where(self._closed[:, None] > 0, facts.tip, down))
        return target, np.where((self._closed > 0) & ~self._let_go, -1.0, 1.0)

    def _push(self, facts: Facts) -> tuple[AnyArray, AnyArray]:
        way = (self._goal - facts.cube) * (1, 1, 0)
        far = np.linalg.norm(way, axis=1, keepdims=True)
        ahead = way / np.maximum(far, 1e-6)
        behind = facts.cube - 0.05 * ahead + self._aside
        off = np.linalg.norm((facts.tip - behind)[:, :2], axis=1)
        reach = facts.tip - facts.cube - self._aside
        along = (reach * ahead).sum(axis=1, keepdims=True)
        astray = np.linalg.norm((reach - along * ahead)[:, :2], axis=1)
        low = facts.tip[:, 2] < 0.03
        pushing = low & (astray < 0.015) & (along[:, 0] < 0)
        ground = np.array([1, 1, 0])
        target = behind * ground + np.where(off < ALIGNED, CUBE, HOVER)[:, None] * (0, 0, 1)
        back = facts.tip - STEP / 2 * ahead + (0, 0, STEP)  # away from the cube first: lifting would drag it along
        target = np.where((low & (off >= ALIGNED))[:, None], back, target)
        fastest = np.where(self.outcome == "drop", 0.01, 0.02)[:, None]  # m a step: the cube is not to slide on
        slowly = np.minimum(0.25 * far + 0.004, fastest)
        onwards = (facts.cube + self._aside + (along + slowly) * ahead) * ground + (0, 0, CUBE)
        target = np.where(pushing[:, None], onwards, target)
        self._let_go |= (far[:, 0] < 0.008) | ((self.outcome == "drop") & (far[:, 0] < 0.075))
        aside = np.where((facts.tip[:, 2] < 2 * HOVER)[:, None], back, facts.tip)  # up and away, then wait
        target = np.where(self._let_go[:, None], aside, target)
        return target, np.full(len(target), -1.0)
