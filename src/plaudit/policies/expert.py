"""A scripted expert for the built-in tasks: demonstrations on demand, and failures worth learning from.

It sees what the simulation knows, not the pictures. Each scene is in one of a few phases and moves straight to where
that phase wants the finger tips; noise on the actions makes no two demonstrations alike. The failures look nearly
right, which is what a judge of images has to tell apart: fingers that close beside the cube, a cube let go on the way,
one that stops short of the goal, one brought to a wrong place.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from plaudit.envs.panda.scene import ACTION_SCALE, CUBE_HALF_SIZE
from plaudit.envs.panda.tasks import Lift, TaskState
from plaudit.errors import EnvError, did_you_mean
from plaudit.types import AnyArray, FloatArray, Observation

if TYPE_CHECKING:
    from plaudit.envs.panda.vec_env import PandaVecEnv


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
            raise EnvError(f"there is no outcome '{outcome}'; {did_you_mean(outcome, OUTCOMES)}")
    if noise < 0:
        raise EnvError(f"noise is {noise}; it is a standard deviation, 0 or more")


def expert_act_fn(
    env: "PandaVecEnv", outcomes: Sequence[str], noise: float, seed: int
) -> Callable[[Observation], FloatArray]:
    """The act function of an expert that reads the state of `env` itself, whatever its observations contain."""
    expert = ScriptedExpert(env.task_name, env.num_envs, outcomes, noise, seed)
    return lambda _: expert.act(env.task_state())


class ScriptedExpert:
    """Acts in N environments of a built-in task at once, each towards its own outcome."""

    def __init__(
        self, task: str, num_envs: int = 1, outcomes: Sequence[str] = ("success",), noise: float = 0.0, seed: int = 0
    ):
        """
        task: the name of the task, "lift", "pick_place" or "push"
        outcomes: one per environment; fewer are repeated
        noise: standard deviation of the noise on an action, whose largest value is 1
        """
        check_script(outcomes, noise)
        self._task, self._num_envs, self._noise = task, num_envs, noise
        self._rng = np.random.default_rng(seed)
        self.outcome = np.resize(np.array(outcomes), num_envs)
        self.reset()

    def reset(self) -> None:
        """Plan anew at the next action: all environments are reset before it."""
        self._begun = False

    def act(self, state: TaskState) -> FloatArray:
        """The next actions, [N, 4] in -1..1."""
        if not self._begun:
            self._begin(state)
        target, gripper = self._push(state) if self._task == "push" else self._pick(state)
        move = np.clip((target - state.tip_pos) / ACTION_SCALE, -1, 1)
        actions = np.concatenate([move, gripper[:, None]], axis=1)
        return np.clip(actions + self._rng.normal(0, 1, actions.shape) * self._noise, -1, 1).astype(np.float32)

    def _begin(self, state: TaskState) -> None:
        """Decide where each scene's cube is taken, and where its fingers close."""
        self._begun, count = True, self._num_envs
        self._closed = np.zeros(count, int)  # steps since the fingers began to close
        self._let_go = np.zeros(count, bool)
        self._aside, self._goal = np.zeros((count, 3)), state.goal_pos.copy()
        angle = self._rng.uniform(-np.pi, np.pi, count)
        way = state.goal_pos - state.cube_pos
        if self._task == "push":
            angle = np.arctan2(way[:, 1], way[:, 0]) + np.where(angle > 0, np.pi / 2, -np.pi / 2)  # to one side of it
        sideways = np.stack([np.cos(angle), np.sin(angle), np.zeros(count)], axis=1)
        beside = 0.06 if self._task == "push" else np.array([0.055, 0.085, 0])  # open fingers reach out in y
        self._fail("miss", self._aside, beside * sideways)  # where they close or push, beside the cube
        if self._task == "lift":
            self._goal[:] = state.cube_pos + (0, 0, Lift.height + 0.04)
            self._fail("near_goal", self._goal, -self._short_by(count))
            self._fail("wrong_place", self._goal, 0.1 * sideways - (0, 0, Lift.height + 0.02))
        elif self._task == "pick_place":
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

    def _pick(self, state: TaskState) -> tuple[AnyArray, AnyArray]:
        over = state.cube_pos + self._aside
        off = np.linalg.norm((state.tip_pos - over)[:, :2], axis=1)
        down = over.copy()
        down[:, 2] = np.where(off < ALIGNED, CUBE_HALF_SIZE, HOVER)
        arrived = (off < ALIGNED) & (state.tip_pos[:, 2] < CUBE_HALF_SIZE + 0.008)
        self._closed += arrived | (self._closed > 0)
        carrying = self._closed > CLOSING
        lost = carrying & ~state.is_grasped & (self.outcome != "miss") & ~self._let_go
        self._closed[lost] = 0  # try again
        carried = (
            state.tip_pos + self._goal - np.where(self._aside.any(1, keepdims=True), state.tip_pos, state.cube_pos)
        )
        self._let_go |= (self.outcome == "drop") & carrying & (state.cube_pos[:, 2] > CUBE_HALF_SIZE + 0.03)
        target = np.where(carrying[:, None], carried, np.where(self._closed[:, None] > 0, state.tip_pos, down))
        return target, np.where((self._closed > 0) & ~self._let_go, -1.0, 1.0)

    def _push(self, state: TaskState) -> tuple[AnyArray, AnyArray]:
        way = (self._goal - state.cube_pos) * (1, 1, 0)
        far = np.linalg.norm(way, axis=1, keepdims=True)
        ahead = way / np.maximum(far, 1e-6)
        behind = state.cube_pos - 0.05 * ahead + self._aside
        off = np.linalg.norm((state.tip_pos - behind)[:, :2], axis=1)
        reach = state.tip_pos - state.cube_pos - self._aside
        along = (reach * ahead).sum(axis=1, keepdims=True)
        astray = np.linalg.norm((reach - along * ahead)[:, :2], axis=1)
        low = state.tip_pos[:, 2] < 0.03
        pushing = low & (astray < 0.015) & (along[:, 0] < 0)
        ground = np.array([1, 1, 0])
        target = behind * ground + np.where(off < ALIGNED, CUBE_HALF_SIZE, HOVER)[:, None] * (0, 0, 1)
        back = (
            state.tip_pos - ACTION_SCALE / 2 * ahead + (0, 0, ACTION_SCALE)
        )  # away from the cube first: lifting would drag it along
        target = np.where((low & (off >= ALIGNED))[:, None], back, target)
        fastest = np.where(self.outcome == "drop", 0.01, 0.02)[:, None]  # m a step: the cube is not to slide on
        slowly = np.minimum(0.25 * far + 0.004, fastest)
        onwards = (state.cube_pos + self._aside + (along + slowly) * ahead) * ground + (0, 0, CUBE_HALF_SIZE)
        target = np.where(pushing[:, None], onwards, target)
        self._let_go |= (far[:, 0] < 0.008) | ((self.outcome == "drop") & (far[:, 0] < 0.075))
        aside = np.where((state.tip_pos[:, 2] < 2 * HOVER)[:, None], back, state.tip_pos)  # up and away, then wait
        target = np.where(self._let_go[:, None], aside, target)
        return target, np.full(len(target), -1.0)
