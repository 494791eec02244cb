"""The actors that work: robot, judge, person, trainer. Shells around classes that know nothing of Ray.

Each can be killed at any moment and is made again with the same arguments. What they need to go on is on disk or comes
with the next call.
"""

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray.util import get_node_ip_address

from plaudit.cluster.calls import Stub
from plaudit.cluster.keepers import Shell
from plaudit.errors import PartLost, PlauditError
from plaudit.online.config import OnlineConfig
from plaudit.online.crew import env_side
from plaudit.online.env import EnvSide, Played, look_at
from plaudit.online.group import ALONE, Group, Workers, free_address
from plaudit.online.human import WindowConfig
from plaudit.online.judging import LabelSide
from plaudit.online.person import PersonSide
from plaudit.online.trainer import Shift, Trainer
from plaudit.policies.loader import PolicySpec
from plaudit.policies.networks import Spaces
from plaudit.rollout.memory import Body


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


class Mailbox:
    """Orders to workers that cannot be called: those of Ray Train run one function for as long as they live."""

    def __init__(self) -> None:
        self._orders: list[tuple[str, tuple[Any, ...]]] = []
        self._answers: list[asyncio.Future[Any]] = []
        self._more = asyncio.Condition()
        self._pids: dict[int, int] = {}

    async def order(self, method: str, *arguments: Any) -> Any:
        """What came of it."""
        future = asyncio.get_running_loop().create_future()
        async with self._more:
            self._orders.append((method, arguments))
            self._answers.append(future)
            self._more.notify_all()
        return await future

    async def begin(self, rank: int, pid: int) -> int:
        """A worker is there; the number of its first order. What its predecessors were told is lost."""
        self._pids[rank] = pid
        waiting = [i for i, future in enumerate(self._answers) if not future.done()]
        if rank == 0:
            for i in waiting:
                if self._orders[i][0] != "count":
                    self._answers[i].set_exception(PartLost("a worker of the trainers is gone"))
        return next((i for i in waiting if self._orders[i][0] == "count"), len(self._orders))

    async def next(self, number: int) -> tuple[str, tuple[Any, ...]]:
        async with self._more:
            await self._more.wait_for(lambda: len(self._orders) > number)
        return self._orders[number]

    async def done(self, number: int, result: Any, error: PlauditError | None) -> None:
        if not self._answers[number].done():
            if error is None:
                self._answers[number].set_result(result)
            else:
                self._answers[number].set_exception(error)

    async def pids(self) -> list[int]:
        return list(self._pids.values())


def train_loop(told: dict[str, Any]) -> None:
    """What a worker of Ray Train runs."""
    import ray as typed
    from ray.train import get_context

    ray: Any = typed
    job: Job = told["job"]
    context, mailbox = get_context(), ray.get_actor(told["mailbox"])
    rank, size = context.get_world_rank(), context.get_world_size()
    group: Group = Workers(rank, size) if size > 1 else ALONE
    trainer = job.trainer(group)
    number = ray.get(mailbox.begin.remote(rank, os.getpid()))
    if size > 1:
        number = int(group.from_first(str(number).encode() if rank == 0 else None))
    while True:
        method, arguments = ray.get(mailbox.next.remote(number))
        if method == "leave":
            return
        result, error = None, None
        try:
            if method == "count":
                result = trainer.updates
            elif method == "step" or rank == 0:
                result = getattr(trainer, method)(*arguments)
        except PlauditError as failed:
            error = failed
        if rank == 0:
            ray.get(mailbox.done.remote(number, result, error))
        number += 1
