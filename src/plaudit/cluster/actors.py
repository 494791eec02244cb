"""The actors that work: robot, judge, person, trainer. Shells around classes that know nothing of Ray.

Each can be killed at any moment and is made again with the same arguments. What they need to go on is on disk or comes
with the next call.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray.util import get_node_ip_address

from plaudit.cluster.calls import Stub
from plaudit.cluster.keepers import Shell
from plaudit.policies.loader import PolicySpec
from plaudit.policies.networks import Spaces
from plaudit.rollout.memory import Body
from plaudit.training.distributed import ALONE, Group, Workers, free_address
from plaudit.training.handles import env_side
from plaudit.training.labeling_window import WindowConfig
from plaudit.training.online_config import OnlineConfig
from plaudit.training.workers.env import EnvSide, Played, look_at
from plaudit.training.workers.human import PersonSide
from plaudit.training.workers.judge import LabelSide
from plaudit.training.workers.learner import Shift, Trainer


class AutoRewardLabelerActor(Shell, LabelSide):
    """A judge that labels by itself: a vision-language model, a classifier, the simulator."""

    def __init__(self, replay: Stub):
        super().__init__(replay)  # type: ignore[arg-type]  # answers to the same methods


class ManualRewardLabelerActor(Shell, PersonSide):
    """A human who labels in a window; the actor only opens it."""

    def __init__(self, replay: Stub, config: WindowConfig):
        super().__init__(replay, config)  # type: ignore[arg-type]


class EnvActor(Shell):
    """The robot."""

    def __init__(self, config: OnlineConfig, replay: Stub, state: Stub):
        self._config, self._replay, self._state = config, replay, state
        self._side: EnvSide | None = None

    def body(self) -> Body:
        """What the robot sees and does, before anything is made for it."""
        return look_at(self._config.robot, self._config.executor.name)

    def step(self, policy: PolicySpec, seed: int | None) -> Played | None:
        if self._side is None:
            self._side = env_side(self._config, policy, self._replay, self._state)
        return self._side.step(seed)

    def stop(self) -> None:
        if self._side is not None:
            self._side.stop()

    def close(self) -> None:
        if self._side is not None:
            self._side.close()


@dataclass(frozen=True)
class Job:
    """What a trainer is made of."""

    config: OnlineConfig
    spaces: Spaces
    folder: Path
    source: str  # whose labels count
    replay: Stub
    state: Stub

    def trainer(self, group: Group) -> Trainer:
        replay: Any = self.replay  # stubs answer to the same methods
        state: Any = self.state
        return Trainer(self.config, self.spaces, self.folder, self.source, replay, state, group)


class TrainerActor(Shell):
    """One worker of a group."""

    def meeting_point(self) -> str:
        """Where the group can meet: an address of this machine."""
        return free_address(get_node_ip_address())

    def join(self, job: Job, rank: int, size: int, address: str | None) -> int:
        """Returns the updates made so far."""
        self._trainer = job.trainer(ALONE if address is None else Workers.met(rank, size, address))
        return self._trainer.updates

    def step(self, updates: int) -> Shift:
        return self._trainer.step(updates)

    def publish(self) -> int:
        return self._trainer.publish()

    def checkpoint(self) -> None:
        self._trainer.checkpoint()

    def evaluate(self, episodes: int) -> float:
        return self._trainer.evaluate(episodes)
