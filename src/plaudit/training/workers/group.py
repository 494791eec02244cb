"""The workers of an online run, together: in this process here, as actors of a cluster in cluster/ray_workers.py.

In one process each worker has a thread of its own. With `serial`, each call is made at once and in order: for a
debugger, and for a run that can be repeated. A serial run depends on counts alone: its clock counts turns of the loop
instead of seconds, so the same run on a busy machine makes the same episodes, labels and updates.
"""

import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, wait
from typing import Any

from plaudit.errors import PlauditError
from plaudit.rollout.operator import OperatorCommand, OperatorStatus
from plaudit.training.replay_buffer import ReplayBuffer, StateManager
from plaudit.training.run_folder import RunFolder
from plaudit.training.workers.env import EnvWorker
from plaudit.training.workers.handles import Handle, SerialHandle, Slot, ThreadHandle, TurnClock
from plaudit.training.workers.labelers import HumanLabelWorker, JudgeWorker
from plaudit.training.workers.learner import LearnerWorker

TURN_S = 1.0  # that a turn counts in which something was done, where calls are made one after the other


class WorkerGroup:
    """The workers of a run. Subclasses make them."""

    serial: bool = False  # whether they work one after the other, so that nothing happens while the loop waits
    replay: Handle[ReplayBuffer]
    state: Handle[StateManager]
    env: Slot[EnvWorker]
    judge: Slot[JudgeWorker] | None  # None where a human labels
    labeler: Slot[HumanLabelWorker] | None  # a human who labels, or who audits the judge
    learner: Slot[LearnerWorker]

    def __init__(self) -> None:
        self.counted_restarts: dict[str, int] = {}  # of workers without a slot, by the times at which they started
        self.clock: Callable[[], float] = time.monotonic  # seconds, by which the loop and its workers pace themselves

    @property
    def slots(self) -> list[Slot[Any]]:
        every: list[Slot[Any] | None] = [self.judge, self.labeler, self.learner, self.env]
        return [slot for slot in every if slot is not None]

    @property
    def busy(self) -> list[str]:
        """Names of the workers in the middle of a call."""
        return [slot.name for slot in self.slots if slot.task is not None]

    @property
    def restarts(self) -> dict[str, int]:
        """Number of restarts of each worker that was restarted."""
        counts = {slot.name: slot.handle.restarts for slot in self.slots if slot.handle.restarts}
        return {**counts, **self.counted_restarts}

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
        """End the current episode. Where workers take turns there is none between two of them."""

    def operate(self, command: OperatorCommand) -> None:
        """Send an operator's command to the robot's worker, without waiting."""
        raise NotImplementedError

    def operator_status(self) -> OperatorStatus | None:
        """The last reported status; None where no operator attends."""
        raise NotImplementedError

    def close(self) -> None:
        """Make the robot hold and end all workers."""
        raise NotImplementedError


def replay_options(folder: RunFolder) -> dict[str, Any]:
    """Arguments of a run's replay buffer."""
    config, demos = folder.config, folder.demo_store
    return {
        "demos": None if demos is None else demos.absolute(),
        "relabel_demos": config.relabels_demos,
        "capacity_gb": config.run.capacity_gb,
        "store_images": config.run.store_images,
        "compress_old": config.run.compress_old,
        "since": time.time(),
    }


class LocalWorkerGroup(WorkerGroup):
    """Everything in this process: in threads, or one call after the other."""

    def __init__(self, folder: RunFolder, *, serial: bool = False):
        super().__init__()
        self.serial, self._folder, config = serial, folder, folder.config
        self.clock = TurnClock() if serial else time.monotonic
        self.replay = self._handle("replay buffer")
        try:
            self.state = self._handle("state manager")
            self.env = Slot(self._handle("env"), self.clock)
            self.judge = None if config.judge.is_human else Slot(self._handle("judge"), self.clock)
            self.labeler = Slot(self._handle("labeler"), self.clock) if config.asks_human else None
            self.learner = Slot(self._handle("learner"), self.clock)
        except BaseException:
            self.replay.worker.close()  # so that this process can open the store again
            raise

    def _handle(self, name: str) -> SerialHandle[Any]:
        return (SerialHandle if self.serial else ThreadHandle)(name, self._make(name))

    def _make(self, name: str) -> Any:
        """A new worker by its name."""
        folder, config = self._folder, self._folder.config
        if name == "replay buffer":
            return ReplayBuffer(folder.path, **replay_options(folder))
        if name == "state manager":
            return StateManager(folder.policy)
        if name == "env":
            self._env = EnvWorker(config, self.replay, self.state)
            return self._env
        if name == "judge":
            return JudgeWorker(self.replay, clock=self.clock)
        if name == "labeler":
            return HumanLabelWorker(self.replay, config.judge.window)
        return LearnerWorker(config, folder.path, self.replay, self.state)

    def wait(self, seconds: float, failed: Callable[[Slot[Any], PlauditError], None]) -> None:
        if isinstance(self.clock, TurnClock):
            done = any(slot.task is not None and slot.task.done() for slot in self.slots)
            self.clock.turns += TURN_S if done else seconds
        super().wait(seconds, failed)

    def stop_rollout(self) -> None:
        if not self.serial:  # else no episode is running between two calls
            self._env.stop()

    def operate(self, command: OperatorCommand) -> None:
        self._env.operate(command)

    def operator_status(self) -> OperatorStatus | None:
        return self._env.operator_status()

    def close(self) -> None:
        self.stop_rollout()
        for handle in (*(slot.handle for slot in self.slots), self.state, self.replay):
            assert isinstance(handle, SerialHandle)
            handle.close()
            handle.worker.close()
