"""Policies without networks: a function, the expert of a built-in task, or the actions of a recorded episode.

    policy: {type: scripted, function: "my_package.my_module:wave", horizon: 8}
    policy: {type: scripted, expert: pick_place}
    policy: {type: replay, store: demos, episode: 3}

A function takes an `Observation` and returns one action [A] or a chunk [H, A]. The expert needs privileged state, which
the observations of a task have with obs "state" or "both".

The expert gives demonstrations of the built-in tasks, and failures that are hard to tell from them.

It acts on privileged state. Each environment is in one of a few phases and moves in a straight line to the target of
that phase; noise on the actions makes every demonstration different. The failures are near misses: fingers that close
next to the cube, a cube that is dropped, that stops short of the goal, or that is brought to the wrong place. A success
may be off center, just within what is allowed, so that a judge sees where success ends.
"""

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, get_args

import numpy as np
from pydantic import Field, model_validator

from plaudit.config import CodeName, Config, NonNegativeFloat, NonNegativeInt, Seed, SmallInt
from plaudit.data.store import Store
from plaudit.envs.panda.scene import ACTION_SCALE, ARM_STATE, CUBE_HALF_SIZE, SCENE_STATE, Lift, TaskState
from plaudit.errors import EnvError, PolicyError, did_you_mean
from plaudit.policies.guidance import FixedPolicy, blend_with_previous
from plaudit.protocols import Normalizer
from plaudit.types import AnyArray, FloatArray, Observation

if TYPE_CHECKING:
    from plaudit.envs.panda.vec_env import PandaVecEnv


Outcome = Literal["success", "off_center", "miss", "drop", "near_goal", "wrong_place"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
SUCCESSES: tuple[Outcome, ...] = ("success", "off_center")

HOVER_HEIGHT = 0.09  # of the fingertips above the table on the way, m
ALIGNED = 0.012  # error of the fingertips at which a phase is over, m
CLOSE_STEPS = 4  # for the fingers to close


def check_script(outcomes: Sequence[str], noise: float) -> None:
    """Raise `EnvError` unless an expert has these settings."""
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
        """Plan again at the next action, after all environments were reset."""
        self._planned = False

    def act(self, state: TaskState) -> FloatArray:
        """The next actions, [N, 4] in -1..1."""
        if not self._planned:
            self._plan(state)
        target, gripper = self._push(state) if self._task == "push" else self._pick(state)
        move = np.clip((target - state.tip_pos) / ACTION_SCALE, -1, 1)
        actions = np.concatenate([move, gripper[:, None]], axis=1)
        return np.clip(actions + self._rng.normal(0, 1, actions.shape) * self._noise, -1, 1).astype(np.float32)

    def _plan(self, state: TaskState) -> None:
        """Decide where each cube is brought, and where the fingers close."""
        self._planned, count = True, self._num_envs
        # Steps since the fingers began to close. Who takes over while the cube is grasped goes on with it.
        grasped = state.is_grasped & np.isin(self.outcome, SUCCESSES)
        self._close_steps = np.where(grasped, CLOSE_STEPS, 0)
        self._released = np.zeros(count, bool)
        self._offset, self._goal = np.zeros((count, 3)), state.goal_pos.copy()  # of the fingers from the cube
        angle = self._rng.uniform(-np.pi, np.pi, count)
        to_goal = state.goal_pos - state.cube_pos
        if self._task == "push":  # to one side of the direction to the goal
            angle = np.arctan2(to_goal[:, 1], to_goal[:, 0]) + np.where(angle > 0, np.pi / 2, -np.pi / 2)
        sideways = np.stack([np.cos(angle), np.sin(angle), np.zeros(count)], axis=1)
        miss_by = 0.06 if self._task == "push" else np.array([0.055, 0.085, 0])  # open fingers are wider in y
        self._shift("miss", self._offset, miss_by * sideways)
        if self._task == "lift":
            self._goal[:] = state.cube_pos + (0, 0, Lift.height + 0.04)
            # From half way up to just below the height of success, and just above it.
            self._shift_at_random("near_goal", 0.05, 0.09, np.tile((0, 0, -1), (count, 1)))
            self._shift_at_random("off_center", 0.015, 0.03, np.tile((0, 0, -1), (count, 1)))
            self._shift("wrong_place", self._goal, 0.1 * sideways - (0, 0, Lift.height + 0.02))
        elif self._task == "pick_place":
            self._shift_at_random("near_goal", 0.035, 0.07)
            self._shift_at_random("off_center", 0.008, 0.018)
            self._shift("wrong_place", self._goal, 0.12 * sideways)
            self._shift("drop", self._goal, 0.12 * sideways + (0, 0, 0.1))  # on a path that does not cross the goal
        else:
            self._shift("near_goal", self._goal, -0.06 * to_goal / np.linalg.norm(to_goal[:, :2], axis=1)[:, None])
            self._shift_at_random("off_center", 0.005, 0.015, sideways)
            self._shift("wrong_place", self._goal, 0.1 * sideways)

    def _shift(self, outcome: Outcome, positions: AnyArray, by: AnyArray) -> None:
        """Move the positions, [N, 3], of the environments with this outcome."""
        positions += np.where((self.outcome == outcome)[:, None], by, 0.0)

    def _shift_at_random(self, outcome: Outcome, least: float, most: float, direction: AnyArray | None = None) -> None:
        """Move the goals of this outcome by a random distance, in a random direction where none is given, [N, 3]."""
        if outcome not in self.outcome:
            return  # and draw nothing, so that other outcomes are as they would be without this one
        direction = self._random_direction(most) if direction is None else direction
        self._shift(outcome, self._goal, self._rng.uniform(least, most, (self._num_envs, 1)) * direction)

    def _random_direction(self, distance: float) -> AnyArray:
        """[N, 3] of length 1; upwards from a goal that is not so far above the table."""
        direction: AnyArray = self._rng.normal(size=self._goal.shape)
        direction /= np.linalg.norm(direction, axis=1, keepdims=True)
        below = self._goal[:, 2] + distance * direction[:, 2] < CUBE_HALF_SIZE
        direction[below, 2] = np.abs(direction[below, 2])
        return direction

    def _pick(self, state: TaskState) -> tuple[AnyArray, AnyArray]:
        """Targets of the fingertips, [N, 3], and the gripper, [N]: above the cube, down, close, carry to the goal."""
        grasp_pos = state.cube_pos + self._offset
        error = np.linalg.norm((state.tip_pos - grasp_pos)[:, :2], axis=1)
        approach = grasp_pos.copy()
        approach[:, 2] = np.where(error < ALIGNED, CUBE_HALF_SIZE, HOVER_HEIGHT)
        arrived = (error < ALIGNED) & (state.tip_pos[:, 2] < CUBE_HALF_SIZE + 0.008)
        self._close_steps += arrived | (self._close_steps > 0)
        carrying = self._close_steps > CLOSE_STEPS
        lost = carrying & ~state.is_grasped & (self.outcome != "miss") & ~self._released
        self._close_steps[lost] = 0  # try again
        carried = np.where(self._offset.any(1, keepdims=True), state.tip_pos, state.cube_pos)  # a miss carries nothing
        carry = state.tip_pos + self._goal - carried
        self._released |= (self.outcome == "drop") & carrying & (state.cube_pos[:, 2] > CUBE_HALF_SIZE + 0.03)
        closing = self._close_steps > 0
        target = np.where(carrying[:, None], carry, np.where(closing[:, None], state.tip_pos, approach))
        return target, np.where(closing & ~self._released, -1.0, 1.0)

    def _push(self, state: TaskState) -> tuple[AnyArray, AnyArray]:
        """The same for pushing: behind the cube, down, forward to the goal, away."""
        horizontal = np.array([1, 1, 0])
        to_goal = (self._goal - state.cube_pos) * horizontal
        distance = np.linalg.norm(to_goal, axis=1, keepdims=True)
        forward = to_goal / np.maximum(distance, 1e-6)
        behind = state.cube_pos - 0.05 * forward + self._offset
        error = np.linalg.norm((state.tip_pos - behind)[:, :2], axis=1)
        from_cube = state.tip_pos - state.cube_pos - self._offset
        along = (from_cube * forward).sum(axis=1, keepdims=True)
        lateral = np.linalg.norm((from_cube - along * forward)[:, :2], axis=1)
        low = state.tip_pos[:, 2] < 0.03
        pushing = low & (lateral < 0.015) & (along[:, 0] < 0)
        target = behind * horizontal + np.where(error < ALIGNED, CUBE_HALF_SIZE, HOVER_HEIGHT)[:, None] * (0, 0, 1)
        # Away from the cube before up: lifting would drag it along.
        retreat = state.tip_pos - ACTION_SCALE / 2 * forward + (0, 0, ACTION_SCALE)
        target = np.where((low & (error >= ALIGNED))[:, None], retreat, target)
        max_speed = np.where(self.outcome == "drop", 0.01, 0.02)[:, None]  # m per step: the cube must not slide
        speed = np.minimum(0.25 * distance + 0.004, max_speed)
        push = (state.cube_pos + self._offset + (along + speed) * forward) * horizontal + (0, 0, CUBE_HALF_SIZE)
        target = np.where(pushing[:, None], push, target)
        self._released |= (distance[:, 0] < 0.008) | ((self.outcome == "drop") & (distance[:, 0] < 0.075))
        leave = np.where((state.tip_pos[:, 2] < 2 * HOVER_HEIGHT)[:, None], retreat, state.tip_pos)  # up, then wait
        target = np.where(self._released[:, None], leave, target)
        return target, np.full(len(target), -1.0)


class ReplayConfig(Config):
    """Settings of a policy that repeats a recorded episode."""

    type: Literal["replay"] = "replay"
    store: Path  # the store of the recorded episode
    episode: NonNegativeInt = 0  # its id in the store
    horizon: SmallInt = 1  # actions of a chunk

    def build(self) -> "ReplayPolicy":
        """Read the episode."""
        return ReplayPolicy(Store.open(self.store).episode(self.episode).actions, self.horizon)


class ReplayPolicy(FixedPolicy):
    """Replays recorded actions [T, A], whatever it observes.

    It counts executed actions: a whole chunk after `predict`, and `executed` before `guided_inference`. At the end it
    repeats the last action, and the next `predict` starts again from the first.
    """

    no_weights = "recorded actions have no weights to load"

    def __init__(self, actions: FloatArray, horizon: int = 1):
        super().__init__()
        self._actions, self._horizon = np.array(actions, np.float32), horizon
        self._next = 0  # the action that the next predict begins with

    def predict(self, observation: Observation, normalizer: Normalizer) -> FloatArray:
        """The next recorded actions [H, A]."""
        start = self._next if self._next < len(self._actions) else 0
        return self._chunk(start)

    def guided_inference(
        self, observation: Observation, normalizer: Normalizer, previous: FloatArray, delay: int, executed: int
    ) -> FloatArray:
        """The same, blended with what is left of the previous chunk."""
        start = max(0, self._next - self._horizon) + executed
        return blend_with_previous(previous, self._chunk(start), delay, executed)

    def _chunk(self, start: int) -> FloatArray:
        self._next = start + self._horizon
        return self._actions[np.minimum(np.arange(start, self._next), len(self._actions) - 1)]


Script = Callable[[Observation], Any]
_NAMES = (*ARM_STATE, *SCENE_STATE)


class ScriptedConfig(Config):
    """Settings of a policy that is a function, or the expert of a built-in task."""

    type: Literal["scripted"] = "scripted"
    # my_package.my_module:my_function; where a file names it, --allow-code my_package
    function: Annotated[CodeName, Field(pattern=r"^[^\W\d][\w.]*:\w+$")] | None = None
    expert: Literal["lift", "pick_place", "push"] | None = None  # the expert of a built-in task
    horizon: SmallInt = 1  # actions of a chunk; one action is repeated
    noise: NonNegativeFloat = 0.0  # on the expert's actions, of which 1 is the most
    seed: Seed = 0  # of that noise

    @model_validator(mode="after")
    def _check_script(self) -> Self:
        if (self.function is None) == (self.expert is None):
            raise ValueError("a scripted policy needs a 'function' or an 'expert', and not both")
        return self

    def build(self) -> "ScriptedPolicy":
        """Import the function, or make the expert."""
        if self.expert is not None:
            return ScriptedPolicy(StateExpert(self.expert, self.noise, self.seed), self.horizon)
        module, _, name = str(self.function).partition(":")
        try:
            script = getattr(import_module(module), name)
        except (ImportError, AttributeError, SyntaxError) as error:
            raise PolicyError(f"the script '{self.function}' could not be loaded: {error}") from error
        return ScriptedPolicy(script, self.horizon)


class ScriptedPolicy(FixedPolicy):
    """A function of the observation, in the robot's units."""

    no_weights = "a script has no weights to load"

    def __init__(self, script: Script, horizon: int = 1):
        super().__init__()
        self._script, self._horizon = script, horizon

    def predict(self, observation: Observation, normalizer: Normalizer) -> FloatArray:
        """The script's actions [H, A]."""
        actions = np.array(self._script(observation), np.float32)
        chunk = np.repeat(actions[None], self._horizon, axis=0) if actions.ndim == 1 else actions
        if chunk.ndim != 2 or len(chunk) != self._horizon:
            raise PolicyError(f"the script returned {list(actions.shape)}; it is to return [A] or [{self._horizon}, A]")
        return chunk


class StateExpert:
    """The expert of a built-in task for one robot, from the privileged state in its observations."""

    def __init__(self, task: str, noise: float, seed: int):
        self._tip: AnyArray | None = None  # where the fingertips were
        self._expert = ScriptedExpert(task, noise=noise, seed=seed)

    def __call__(self, observation: Observation) -> FloatArray:
        if observation.state.shape != (len(_NAMES),):
            raise PolicyError(
                f"the expert needs the {len(_NAMES)} numbers of a built-in task with obs 'state' or 'both', "
                f"the observation has {list(observation.state.shape)}"
            )
        values = dict(zip(_NAMES, observation.state.astype(np.float64)[:, None]))
        tip, cube, goal, moved = (
            np.stack([values[f"{name}_{axis}"] for axis in "xyz"], axis=1) for name in ("tip", "cube", "goal", "moved")
        )
        # After a reset the arm has not moved in the last step and is somewhere else; while it acts, it always moves.
        if self._tip is not None and not moved.any() and not np.array_equal(self._tip, tip):
            self._expert.reset()
        self._tip = tip
        return self._expert.act(TaskState(tip, cube, np.zeros(1), goal, values["grasped"] > 0.5))[0]
