"""Scripted policies: a function of the observation, or the expert of a built-in task.

    policy: {type: scripted, function: "my_package.my_module:wave", horizon: 8}
    policy: {type: scripted, expert: pick_place}

A function takes an `Observation` and returns one action [A] or a chunk [H, A]. The expert needs privileged state, which
the observations of a task have with obs "state" or "both".
"""

from collections.abc import Callable
from importlib import import_module
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from plaudit.config import CodeName, Config, NonNegativeFloat, Seed, SmallInt
from plaudit.envs.panda.scene import ARM_STATE, SCENE_STATE
from plaudit.envs.panda.tasks import TaskState
from plaudit.errors import PolicyError
from plaudit.policies.expert import ScriptedExpert
from plaudit.policies.fixed import FixedPolicy
from plaudit.protocols import Normalizer
from plaudit.types import FloatArray, Observation

Script = Callable[[Observation], Any]
_NAMES = (*ARM_STATE, *SCENE_STATE)


class ScriptedConfig(Config):
    """Settings of a policy that is a function, or the expert of a built-in task."""

    type: Literal["scripted"] = "scripted"
    # my_package.my_module:my_function; where a file names it, --allow-code my_package
    function: Annotated[CodeName, Field(pattern=r"^[^\W\d][\w.]*:\w+$")] | None = None
    expert: Literal["lift", "pick_place", "push"] | None = None
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
        return ScriptedPolicy(_import_script(str(self.function)), self.horizon)


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
        self._previous: TaskState | None = None
        self._expert = ScriptedExpert(task, noise=noise, seed=seed)

    def __call__(self, observation: Observation) -> FloatArray:
        state = _task_state(observation)
        if self._previous is not None and _was_reset(self._previous, state, observation):
            self._expert.reset()
        self._previous = state
        return self._expert.act(state)[0]


def _task_state(observation: Observation) -> TaskState:
    if observation.state.shape != (len(_NAMES),):
        raise PolicyError(
            f"the expert needs the {len(_NAMES)} numbers of a built-in task with obs 'state' or 'both', "
            f"the observation has {list(observation.state.shape)}"
        )
    values = dict(zip(_NAMES, observation.state.astype(np.float64)[:, None]))

    def position(name: str) -> Any:
        return np.stack([values[f"{name}_{axis}"] for axis in "xyz"], axis=1)

    return TaskState(position("tip"), position("cube"), np.zeros(1), position("goal"), values["grasped"] > 0.5)


def _was_reset(before: TaskState, now: TaskState, observation: Observation) -> bool:
    """After a reset the arm has not moved in the last step, and yet is elsewhere; while it acts, it always moves."""
    first = _NAMES.index("moved_x")
    return not observation.state[first : first + 3].any() and not np.array_equal(before.tip_pos, now.tip_pos)


def _import_script(path: str) -> Script:
    module, _, name = path.partition(":")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, SyntaxError) as error:
        raise PolicyError(f"the script '{path}' could not be loaded: {error}") from error
