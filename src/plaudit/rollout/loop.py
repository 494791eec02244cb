"""The episode loop: observe, predict, act, and keep everything, also of an episode that the robot cut short."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from plaudit.errors import RobotError
from plaudit.protocols import Normalizer, Policy, Robot
from plaudit.types import AnyArray, Episode, Observation

FAULT = "fault"  # in the meta of an episode that the robot cut short: what happened, in words


class Recorder:
    """Collects one episode, an observation first and then action, observation, action, observation."""

    def __init__(self) -> None:
        self._observations: list[Observation] = []
        self._actions: list[AnyArray] = []
        self._privileged: list[Mapping[str, AnyArray]] = []

    @property
    def steps(self) -> int:
        return len(self._actions)

    def start(self, observation: Observation) -> None:
        self._observations, self._actions, self._privileged = [observation], [], []

    def add(self, action: AnyArray, observation: Observation, privileged: Mapping[str, AnyArray]) -> None:
        self._actions.append(np.asarray(action, np.float32))
        self._observations.append(observation)
        self._privileged.append(privileged)

    def finish(self, **facts: Any) -> Episode:
        """The episode; `facts` are its other fields: task, fps, robot, terminated, meta."""
        seen = self._observations
        return Episode.of(
            frames={camera: np.stack([o.images[camera] for o in seen]) for camera in seen[0].images},
            state=np.stack([o.state for o in seen]),
            actions=np.stack(self._actions),
            privileged={n: np.stack([p[n] for p in self._privileged]) for n in self._privileged[0]},
            **facts,
        )


def run_episode(
    robot: Robot,
    policy: Policy,
    normalizer: Normalizer,
    *,
    steps: int,
    task: str,
    seed: int | None = None,
    stop: Callable[[Mapping[str, AnyArray]], bool] = lambda _: False,
) -> Episode:
    """Let a policy drive for at most `steps` actions; `stop` looks at what the simulation knows after each.

    A robot that fails (`RobotError`) is told to hold, and what was recorded so far is the episode, with the reason in
    its meta; where nothing was, the error goes on to the caller.
    """
    recorder = Recorder()
    meta: dict[str, Any] = {} if seed is None else {"seed": seed}
    ended = False
    try:
        observation = robot.reset(seed)
        recorder.start(observation)
        while not ended:
            for action in policy.predict(observation, normalizer):
                robot.act(action)
                observation = robot.observe()
                known = robot.privileged()
                recorder.add(action, observation, known)
                ended = recorder.steps == steps or stop(known)
                if ended:
                    break
    except RobotError as error:
        if not recorder.steps:
            raise
        meta[FAULT] = str(error)
    finally:
        robot.hold()
    terminated = FAULT not in meta and stop(robot.privileged())
    return recorder.finish(task=task, fps=robot.fps, robot=type(robot).__name__, terminated=terminated, meta=meta)
