"""Episodes of robots and policies that exist already, run by `Sequential`, which takes their configs."""

from typing import Any

from plaudit.config import Config
from plaudit.errors import RolloutError
from plaudit.rollout.engine import InferenceConfig, Sequential
from plaudit.types import Episode


class Lent:
    """Everything that a robot is, except that an engine does not close it."""

    def __init__(self, robot: Any):
        self._robot = robot

    def __getattr__(self, name: str) -> Any:
        return getattr(self._robot, name)


class Existing(Config):
    """The config of something that is built already."""

    thing: Any

    def build(self) -> Any:
        return self.thing


def drive(
    robot: Any, policy: Any, *, max_steps: int, task: str = "", seed: int | None = None, stop_on: str = ""
) -> tuple[Episode | None, str]:
    """Run one episode as fast as the robot goes; returns it, and what failed, if anything did."""
    config = InferenceConfig(max_episode_steps=max_steps, realtime=False, stop_on=stop_on)
    episode = None
    with Sequential(Existing(thing=Lent(robot)), Existing(thing=policy), config) as engine:
        try:
            for episode in engine.episodes(1, task=task, seed=seed):  # noqa: B007 - it is returned
                pass
        except RolloutError as error:
            return episode, str(error)
    return episode, ""
