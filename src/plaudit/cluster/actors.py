"""The actors: shells around classes that know nothing of Ray.

Each can be killed at any moment and is made again with the same arguments. What they need to go on is on disk (the
store, the weights, the checkpoint) or comes with the next call.
"""

import os
import time
from pathlib import Path
from typing import Any

from ray.util import get_node_ip_address

from plaudit.cluster.calls import Stub
from plaudit.errors import StoreLocked
from plaudit.online.config import OnlineConfig
from plaudit.online.crew import env_side
from plaudit.online.env import Played, look_at
from plaudit.online.group import ALONE, Workers, free_address
from plaudit.online.human import WindowConfig
from plaudit.online.judging import LabelSide
from plaudit.online.person import PersonSide
from plaudit.online.replay import ReplayService
from plaudit.online.trainer import Shift, Trainer
from plaudit.online.weights import StateManager
from plaudit.policies.loader import PolicySpec
from plaudit.policies.networks import Spaces
from plaudit.rollout.memory import Body

LOCKED = 30.0  # s to wait for a predecessor that has not quite gone


class Shell:
    """What all of them can be asked."""

    def pid(self) -> int:
        return os.getpid()


class StateManagerActor(Shell, StateManager):
    """Versioned weights."""


class ReplayBufferActor(Shell, ReplayService):
    """The store."""

    def __init__(self, folder: Path, **options: Any):
        until = time.monotonic() + LOCKED
        while True:
            try:
                super().__init__(folder, **options)
                return
            except StoreLocked:
                if time.monotonic() > until:
                    raise
                time.sleep(0.5)


class RewardLabelerActor(Shell, LabelSide):
    """A judge."""

    def __init__(self, replay: Stub):
        super().__init__(replay)  # type: ignore[arg-type]  # answers to the same methods


class PersonActor(Shell, PersonSide):
    """A person at a window; Ray's actor only opens it."""

    def __init__(self, replay: Stub, config: WindowConfig):
        super().__init__(replay, config)  # type: ignore[arg-type]


class EnvActor(Shell):
    """The robot."""

    def __init__(self, config: OnlineConfig, policy: PolicySpec, replay: Stub, state: Stub):
        self._side = env_side(config, policy, replay, state)

    def step(self, seed: int | None) -> Played:
        return self._side.step(seed)

    def stop(self) -> None:
        self._side.stop()

    def close(self) -> None:
        self._side.close()


class ProbeActor:
    """Looks at the robot where it is, before anything is made for it."""

    def body(self, config: OnlineConfig) -> Body:
        return look_at(config.robot, config.executor.name)


class TrainerActor(Shell):
    """One worker of a group."""

    def meeting_point(self) -> str:
        """Where the group can meet: an address of this machine."""
        return free_address(get_node_ip_address())

    def join(
        self,
        rank: int,
        size: int,
        address: str | None,
        config: OnlineConfig,
        spaces: Spaces,
        folder: Path,
        source: str,
        replay: Stub,
        state: Stub,
    ) -> int:
        """Returns the updates made so far."""
        group = ALONE if address is None else Workers(rank, size, address)
        self._trainer = Trainer(config, spaces, folder, source, replay, state, group)  # type: ignore[arg-type]
        return self._trainer.updates

    def step(self, updates: int) -> Shift:
        return self._trainer.step(updates)

    def publish(self) -> int:
        return self._trainer.publish()

    def checkpoint(self) -> None:
        self._trainer.checkpoint()

    def evaluate(self, episodes: int) -> float:
        return self._trainer.evaluate(episodes)
