"""The workers of an online run, together: in this process here, as actors of a cluster in cluster/ray_workers.py.

In one process nothing happens at once: a call is made where it is started, one after the other. It is the same loop,
for a laptop, for a debugger, and to see what a cluster costs. And what it does is then a matter of counts alone: its
clock goes on with the turns of the loop and not with the time that they take, so that the same run on a busy machine
makes the same episodes, labels and updates.
"""

import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, wait
from pathlib import Path
from typing import Any

from plaudit.errors import PlauditError
from plaudit.training.handles import Handle, LocalHandle, Slot
from plaudit.training.online_config import OnlineConfig
from plaudit.training.replay_buffer import ReplayBuffer
from plaudit.training.state_manager import StateManager
from plaudit.training.workers.env import EnvWorker
from plaudit.training.workers.human import HumanLabelWorker
from plaudit.training.workers.judge import JudgeWorker
from plaudit.training.workers.learner import LearnerWorker

WEIGHTS = "weights"  # folder of a run
TURN = 1.0  # s that a turn counts in which something was done, where all is done in one process


class Workers:
    """Who works for a run. Subclasses make them."""

    serial: bool = False  # whether they work one after the other, so that nothing happens while the loop waits
    replay: Handle[ReplayBuffer]
    state: Handle[StateManager]
    env: Slot[EnvWorker]
    judge: Slot[JudgeWorker] | None  # None where a human labels
    labeler: Slot[HumanLabelWorker] | None  # a human who labels, or who audits the judge
    learner: Slot[LearnerWorker]

    def __init__(self) -> None:
        self.counted_restarts: dict[str, int] = {}  # of workers without a slot: whoever calls them hardly notices

    def clock(self) -> float:
        """Seconds, by which the loop and its workers pace themselves."""
        return time.monotonic()

    @property
    def slots(self) -> list[Slot[Any]]:
        every: list[Slot[Any] | None] = [self.judge, self.labeler, self.learner, self.env]
        return [slot for slot in every if slot is not None]

    @property
    def busy(self) -> bool:
        return any(slot.task is not None for slot in self.slots)

    @property
    def restarts(self) -> dict[str, int]:
        """How often each was brought back; those that never were are left out."""
        found = {slot.name: slot.handle.restarts for slot in self.slots if slot.handle.restarts}
        return {**found, **self.counted_restarts}

    def wait(self, seconds: float, failed: Callable[[Slot[Any], PlauditError], None]) -> None:
        """Run the callbacks of the calls that are over, in this thread; wait for one, but not longer than this."""
        tasks = [slot.task for slot in self.slots if slot.task is not None]
        if tasks:
            wait(tasks, seconds, return_when=FIRST_COMPLETED)
        else:
            time.sleep(seconds)
        for slot in self.slots:
            slot.finish(failed)

    def stop_rollout(self) -> None:
        """End the episode at hand. Where workers take turns there is none between two of them."""

    def close(self) -> None:
        """The robot holds; everything goes."""
        raise NotImplementedError


class LocalWorkers(Workers):
    """Everything in this process."""

    serial = True

    def __init__(self, config: OnlineConfig, folder: Path):
        super().__init__()
        self._clock = 0.0
        options: dict[str, Any] = {"demos": config.demos, "judged_demos": config.judges_demos}
        self.buffer = ReplayBuffer(folder, **options, capacity_gb=config.capacity_gb, since=time.time())
        self.replay = LocalHandle("replay buffer", self.buffer)
        self.state = LocalHandle("state manager", StateManager(folder / WEIGHTS))
        self.env = self._slot("env", EnvWorker(config, self.replay, self.state))
        self.judge = self.labeler = None
        if not config.by_hand:
            self.judge = self._slot("judge", JudgeWorker(self.replay, clock=self.clock))
        if config.by_hand or config.audited_by_hand:
            self.labeler = self._slot("labeler", HumanLabelWorker(self.replay, config.window))
        self.learner = self._slot("learner", LearnerWorker(config, folder, self.replay, self.state))

    def _slot(self, name: str, worker: Any) -> Slot[Any]:
        return Slot(LocalHandle(name, worker), self.clock)

    def clock(self) -> float:
        """Turns are counted."""
        return self._clock

    def wait(self, seconds: float, failed: Callable[[Slot[Any], PlauditError], None]) -> None:
        done = any(slot.task is not None and slot.task.done() for slot in self.slots)
        self._clock += TURN if done else seconds
        super().wait(seconds, failed)

    def close(self) -> None:
        for slot in self.slots:
            assert isinstance(slot.handle, LocalHandle)
            slot.handle.worker.close()
        self.buffer.close()
