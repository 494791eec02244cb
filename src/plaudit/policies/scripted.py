"""Policies without networks: a function, the expert of a built-in task, or the actions of a recorded episode.

    policy: {type: scripted, function: "my_package.my_module:wave", horizon: 8}
    policy: {type: scripted, expert: pick_place}
    policy: {type: replay, store: demos, episode: 3}

A function takes an `Observation` and returns one action [A] or a chunk [H, A]. The expert needs privileged state, which
the observations of a task have with obs "state" or "both".
"""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from plaudit.config import CodeName, Config, NonNegativeFloat, NonNegativeInt, Seed, SmallInt
from plaudit.data.store import Store
from plaudit.envs.panda.scene import ARM_STATE, SCENE_STATE
from plaudit.envs.panda.vec_env import TaskState
from plaudit.errors import PolicyError
from plaudit.policies.expert import ScriptedExpert
from plaudit.policies.guidance import FixedPolicy, blend_with_previous
from plaudit.protocols import Normalizer
from plaudit.types import AnyArray, FloatArray, Observation


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
