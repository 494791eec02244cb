"""The robot's side: act with the newest weights, and do not begin another episode before the last one is safe.

An episode that could not be handed over stays here and is tried again first, and so does the reason why a robot that
failed in it cannot be driven any further. Weights are asked for between episodes,
and by a thread during one where a robot's episodes are long (`weights_during`): the executor then takes them with the
next chunk.
"""

import threading
import time
import uuid
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Protocol
from zlib import crc32

import numpy as np

from plaudit.errors import PartLost, RolloutError
from plaudit.policies.loader import PolicySpec
from plaudit.rollout.executor import RobotConfig, opened
from plaudit.rollout.memory import Body
from plaudit.rollout.run import RunConfig
from plaudit.types import Episode, Weights

LOOK = 0.2  # s between two looks for new weights during an episode


class Shelf(Protocol):
    """The part of the replay service that a robot needs."""

    def append(self, episode: Episode, key: str) -> int: ...


class Publisher(Protocol):
    """The part of the state manager that a robot needs."""

    def count_start(self, reader: str) -> int: ...

    def newer_than(self, version: int, reader: str) -> Weights | None: ...


@dataclass(frozen=True)
class Played:
    """An episode that is safe."""

    id: int
    steps: int
    version: int  # of the weights that it began with
    success: bool | None  # as only a simulation knows
    began: float  # s since 1970
    seconds: float  # that it took
    handed_over: float  # s more until it was safe
    ended: str  # by what


@dataclass(frozen=True, eq=False)
class _Recorded:
    """An episode that is not safe yet."""

    episode: Episode
    key: str
    began: float
    seconds: float


class EnvSide:
    """Drives one robot.

    with EnvSide(run, policy, replay, state) as env:
        played = env.step(seed)
    """

    def __init__(
        self,
        run: RunConfig,
        policy: PolicySpec,
        replay: Shelf,
        state: Publisher,
        *,
        task: str = "",
        reader: str = "robot",
        follows: bool = True,
        weights_during: bool = False,
    ):
        """follows: whether it takes the weights that are published; False for a policy that acts as it is"""
        self._replay, self._state, self._task = replay, state, task
        self._reader, self._follows, self._during = reader, follows, weights_during
        self._executor = run.start(_explores_anew(policy, reader, state.count_start(reader)) if follows else policy)
        self._version = 0
        self._unsent: _Recorded | None = None
        self._failure: RolloutError | None = None  # of the robot, told once its last episode is safe

    def __enter__(self) -> "EnvSide":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """The robot holds."""
        self._executor.close()

    def stop(self) -> None:
        """End the episode at hand, from another thread."""
        self._executor.stop()

    def step(self, seed: int | None = None) -> Played | None:
        """Play one episode and hand it over; one that could not be handed over before comes first.

        None for an episode that was stopped before anything was sent to the robot. When the robot fails, what there is
        of the episode is handed over before that is told.
        """
        if self._unsent is None:
            if self._follows:
                self._take_weights()
            began, clock = time.time(), time.monotonic()
            episode, self._failure = self._play(seed)
            if episode is None:
                return None
            self._unsent = _Recorded(episode, uuid.uuid4().hex, began, time.monotonic() - clock)
        recorded, clock = self._unsent, time.monotonic()
        episode = recorded.episode
        episode_id = self._replay.append(episode, recorded.key)
        self._unsent = None
        if self._failure is not None:
            raise self._failure
        return Played(
            id=episode_id,
            steps=episode.steps,
            version=int(episode.meta["weights"]),
            success=None if episode.success is None else bool(episode.success.any()),
            began=recorded.began,
            seconds=recorded.seconds,
            handed_over=time.monotonic() - clock,
            ended=str(episode.meta["ended"]),
        )

    def _play(self, seed: int | None) -> tuple[Episode | None, RolloutError | None]:
        """What was recorded, and what the robot failed of in the end."""
        done = threading.Event()
        follower = threading.Thread(target=self._follow, args=(done,), daemon=True)
        if self._follows and self._during:
            follower.start()
        try:
            episodes = self._executor.episodes(1, task=self._task, seed=seed)
            episode = next(episodes, None)
            try:
                next(episodes, None)
            except RolloutError as error:
                if episode is None:
                    raise
                return episode, error
            return episode, None
        finally:
            done.set()
            if follower.ident is not None:
                follower.join()

    def _follow(self, done: threading.Event) -> None:
        while not done.wait(LOOK):
            with suppress(PartLost):  # it is looked for again
                self._take_weights(now=True)

    def _take_weights(self, now: bool = False) -> None:
        weights = self._state.newer_than(self._version, self._reader)
        if weights is not None:
            self._executor.push(weights, now)
            self._version = weights.version


def _explores_anew(policy: PolicySpec, reader: str, start: int) -> PolicySpec:
    """With noise of its own for every start of a robot's process, by the run's seed: the same again would explore the
    same again. A policy without a seed draws nothing that we know of."""
    if "seed" not in policy.policy:
        return policy
    mixed = np.random.SeedSequence([policy.policy["seed"], crc32(reader.encode()), start])
    return policy.model_copy(update={"policy": {**policy.policy, "seed": int(mixed.generate_state(1)[0])}})


def look_at(robot: RobotConfig, name: str = "") -> Body:
    """What a robot sees and how it is driven; it is built for that and closed again."""
    with ExitStack() as stack:
        built = opened(robot.build(), stack)
        stack.callback(built.hold)
        return Body.of(built, name)
