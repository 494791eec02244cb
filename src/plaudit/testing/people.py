"""People who answer what they are asked, late, out of order, twice or never, and who correct what they see.

They label as the labeling window does: through a reader of the run's store, into its ledger. Who corrects the robot
takes over for a few steps at a time, and pushes the slider forward or back.
"""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import PositiveInt

from plaudit.config import Fraction
from plaudit.data.store import Store
from plaudit.judges.human.queue import REQUESTS
from plaudit.robots.limits import Limited
from plaudit.rollout.teleop import TeleopConfig
from plaudit.testing.world import World, uniform
from plaudit.types import FloatArray, Labels

TELEOP = "plaudit.testing.people:SimulatedTeleopConfig"


@dataclass(frozen=True)
class Habits:
    """How people answer."""

    order: str = "in order"  # or "random", "errors first"
    delay: int = 0  # turns, at most
    twice: float = 0.0  # fraction of the answers that are given again
    never: float = 0.0  # fraction that is never given
    excludes: float = 0.0  # fraction that excludes the episode


class People:
    """The people of one run; they continue when it is resumed."""

    def __init__(self, habits: Habits, world: World):
        self.habits, self._world = habits, world
        self._due: dict[int, int] = {}  # episode -> turn
        self._asked: set[int] = set()

    def act(self, store: Store, turn: int, source: str) -> None:
        """Answer what has waited long enough. source: of the judge's labels"""
        habits, seed = self.habits, self._world.seed
        requests = store.folder / REQUESTS
        wanted: list[int] = json.loads(requests.read_text()) if requests.exists() else []
        for episode in [i for i in wanted if i not in self._asked and i in store.ids]:
            self._asked.add(episode)
            if uniform(seed, "never", episode) >= habits.never:
                self._due[episode] = turn + self._delay(store, episode, source)
        for episode in [i for i, due in self._due.items() if due <= turn]:
            del self._due[episode]
            if episode in store.ids:
                excludes = uniform(seed, "excludes", episode) < habits.excludes
                self.label(store, episode, "exclude" if excludes else "answer")
                if uniform(seed, "twice", episode) < habits.twice:
                    self.label(store, episode, "answer")

    def _delay(self, store: Store, episode: int, source: str) -> int:
        habits = self.habits
        if habits.order == "random":
            return int(uniform(self._world.seed, "delay", episode) * (habits.delay + 1))
        if habits.order == "errors first":
            labels, truth = store.ledger.labels(episode, {source}), store.episode(episode).success
            wrong = labels is not None and truth is not None and labels.success_once != bool(truth.any())
            return 0 if wrong else habits.delay
        return habits.delay

    def label(self, store: Store, episode_id: int, kind: str) -> None:
        """answer: what is true; relabel: the opposite; exclude: nothing counts."""
        episode = store.episode(episode_id)
        truth = np.zeros(episode.steps, bool) if episode.success is None else episode.success
        targets = np.concatenate([[False], truth]).astype(np.float32)
        if kind == "relabel":
            targets = np.zeros_like(targets) if truth.any() else np.append(targets[:-1], 1.0)
        if kind == "exclude":
            targets = np.full(len(targets), np.nan)
        store.ledger.append(episode_id, Labels.from_targets(targets, "human"))
        self._world.counts["answers"] += 1
        label = "excluded" if kind == "exclude" else "success" if (targets == 1).any() else "failure"
        self._world.note(f"a person labels episode {episode_id}: {label} ({kind})")


class SimulatedTeleopConfig(TeleopConfig):
    """A person who corrects the robot."""

    helps: Fraction = 0.3  # of the stretches of an episode, those in which they act
    stretch: PositiveInt = 2  # steps of each
    skill: Fraction = 0.8  # of these stretches, those in which they push towards the goal

    def build(self, action_dim: int) -> "SimulatedTeleop":
        return SimulatedTeleop(self)


class SimulatedTeleop:
    """A `Teleoperator`; what it does in a step depends on the episode's seed alone."""

    relative = False

    def __init__(self, config: SimulatedTeleopConfig):
        self._config = config
        self._env: Any = None

    def begin_episode(self, robot: Any) -> None:
        """Watch the task of a robot."""
        own: Any = robot.robot if isinstance(robot, Limited) else robot
        self._env = own.env

    def command(self) -> FloatArray | None:
        config, (seed,) = self._config, self._env.seeds
        stretch = int(self._env.frame[0]) // config.stretch
        if uniform(seed, "helps", stretch) >= config.helps:
            return None
        return np.array([0.8 if uniform(seed, "skill", stretch) < config.skill else -0.5, 0], np.float32)

    def close(self) -> None: ...
