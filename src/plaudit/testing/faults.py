"""What goes wrong around a run: a disk that is full or killed in the middle of a write, a virtual clock, lost workers.

    with simulated_machine(world, disk):
        ...                               # no sync, no sleep; each change of the disk may be the last one

A kill is raised as `Kill` in place of a change to the disk, or halfway through a write. After it, nothing changes the
disk, because handlers and `finally` blocks of a killed process do not run. A power cut is a kill that also takes back
writes that were not synced.

Retraining has no network and no process of its own: candidates are drawn, and everything else is real. The copying of
labeled episodes, the comparison on held-out ones, the decision and its folder are those of training/retrain.py. A
candidate errs as often as the current judge, less often, or more often, elsewhere in each case.
"""

import errno
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from plaudit.data import disk as data_disk
from plaudit.data.disk import identity, read_at
from plaudit.data.store import Store
from plaudit.errors import PlauditError, WorkerFailed, WorkerLost
from plaudit.judges.labeling import LabelRunner
from plaudit.rollout.operator import Operator, OperatorCommand, OperatorStatus
from plaudit.testing.env import HONEST, SimulatedModel, write_model
from plaudit.testing.learner import watched_learners
from plaudit.testing.world import World, pick, uniform, world
from plaudit.training import retrain
from plaudit.training.run_folder import RunFolder
from plaudit.training.trackers import TensorBoard
from plaudit.training.workers.env import EnvWorker
from plaudit.training.workers.group import LocalWorkerGroup
from plaudit.training.workers.handles import SerialHandle, TurnClock

CHANGES = ("pwrite", "ftruncate", "fsync", "fdatasync", "mkdir", "replace", "rename", "link", "unlink", "rmdir")
REAL = {name: getattr(os, name) for name in CHANGES}
LABELED = 2  # episodes of a judge's batch: runs have tens of episodes here, and relabeling them should take many turns


class Kill(BaseException):
    """The process is killed here."""


class UnsyncedWrites:
    """What each file held when it was last synced."""

    def __init__(self) -> None:
        self._files: dict[tuple[int, int], tuple[int, bytes]] = {}  # device, inode -> own descriptor, content

    def note(self, descriptor: int) -> None:
        """A file is about to be written."""
        key = identity(os.fstat(descriptor))
        if key not in self._files:
            # A descriptor of its own: the writer's may be write-only, and may be closed before the power is cut.
            own = os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR)
            self._files[key] = own, read_at(own, 0, os.fstat(own).st_size)

    def forget(self, descriptor: int) -> None:
        """A file was synced."""
        own, _ = self._files.pop(identity(os.fstat(descriptor)), (-1, b""))
        if own >= 0:
            os.close(own)

    def take_back(self, seed: int) -> None:
        """Restore the synced content of about half of the files. The others reached the disk by chance."""
        for number, (own, content) in enumerate(self._files.values()):
            if uniform(seed, "power", number) < 0.5:
                REAL["ftruncate"](own, 0)
                REAL["pwrite"](own, content, 0)
            os.close(own)
        self._files.clear()


class SimulatedDisk:
    """Counts the changes to the disk. At some of them the disk is full, the process is killed, or the power is cut."""

    def __init__(self, world: World, kills: Mapping[int, str], full: Mapping[int, int]):
        """
        kills: number of a change -> "kill" or "power"
        full: number of the first change for which there is no room -> how many fail
        """
        self.world, self.changes, self.dead = world, 0, False
        self.was_full = False  # in this session
        self.on_rename: Callable[[Path, Path], None] = lambda old, new: None
        self._kills, self._full_until, self._full = dict(kills), 0, dict(full)
        self._unsynced = UnsyncedWrites() if "power" in self._kills.values() else None
        self.locks: list[ExitStack] = []

    def revive(self) -> None:
        """The process starts again: what it held is released."""
        for held in self.locks:
            held.close()
        self.locks.clear()
        self.dead = False

    def wrap(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        """A function of `os` that may fail."""
        syncs, writes = name in ("fsync", "fdatasync"), name in ("pwrite", "ftruncate")

        def change(*args: Any, **kwargs: Any) -> Any:
            self._count(name, real, args)
            if self._unsynced is not None and syncs:
                self._unsynced.forget(args[0])
            if self._unsynced is not None and writes:
                self._unsynced.note(args[0])
            if syncs:
                return None
            result = real(*args, **kwargs)
            if name == "rename":
                self.on_rename(Path(args[0]), Path(args[1]))
            return result

        return change

    def _count(self, name: str, real: Callable[..., Any], args: tuple[Any, ...]) -> None:
        if self.dead:
            raise Kill
        self.changes += 1
        if kind := self._kills.pop(self.changes, ""):
            self.dead = True
            if name == "pwrite" and self.changes % 2:
                if self._unsynced is not None:
                    self._unsynced.note(args[0])
                real(args[0], bytes(args[1])[: len(args[1]) // 2], args[2])
            self.world.counts["power cuts" if kind == "power" else "kills"] += 1
            self.world.note(f"{kind.upper()} at change {self.changes} of the disk ({name})")
            if kind == "power" and self._unsynced is not None:
                self._unsynced.take_back(self.world.seed)
            raise Kill
        if self.changes in self._full:
            self._full_until = self.changes + self._full.pop(self.changes)
            self.world.counts["full disks"] += 1
            self.world.note(f"the disk is full from change {self.changes} on")
        if self.changes < self._full_until and name in ("pwrite", "mkdir", "link"):
            self.was_full = True
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@contextmanager
def simulated_machine(world: World, disk: SimulatedDisk) -> Iterator[None]:
    """Replace disk, clock, retraining process and TensorBoard for as long as the block lasts."""
    real_lock = data_disk.lock

    def now() -> float:
        world.now += 1e-6  # so that no two moments are the same
        return world.now

    def sleep(seconds: float) -> None:
        world.now += seconds

    def lock(root: Any) -> ExitStack:
        held = real_lock(root)
        disk.locks.append(held)
        return held

    with ExitStack() as stack:
        for name in CHANGES:
            stack.enter_context(patch.object(os, name, disk.wrap(name, REAL[name])))
        for name, simulated in (("time", now), ("monotonic", now), ("sleep", sleep)):
            stack.enter_context(patch.object(time, name, simulated))
        stack.enter_context(patch("plaudit.data.store.lock", lock))
        stack.enter_context(patch.dict(LabelRunner.__init__.__kwdefaults__, batch_size=LABELED))
        stack.enter_context(patch.object(TensorBoard, "log", lambda *_: None))
        stack.enter_context(simulated_retraining())
        stack.enter_context(watched_learners())
        yield


def attending(gate: bool, listener: Callable[[OperatorStatus], None] = lambda _: None, countdown: int = 0) -> Operator:
    """An operator who opens the gate whenever the robot waits there."""
    answering = False  # `send` calls the listener again

    def listen(status: OperatorStatus) -> None:
        nonlocal answering
        listener(status)
        if status.phase == "gate" and not answering:
            answering = True
            operator.send(OperatorCommand.START)
            answering = False

    operator = Operator(gate, listen, countdown)
    return operator


class LateFuture(Future[Any]):
    """The result of a slow worker's call, which the loop gets some turns after the call was made."""

    def __init__(self, group: "SimulatedGroup", turns: int):
        super().__init__()
        self._group, self._due = group, group.turn + turns

    def done(self) -> bool:
        return super().done() and self._group.turn >= self._due


class FaultyHandle(SerialHandle[Any]):
    """A worker that may be slow, and that raises, hangs or is lost at some of its calls."""

    def __init__(self, name: str, group: "SimulatedGroup"):
        super().__init__(name, group.make(name))
        self._group, self._setup = group, ()

    def submit(self, method: Any, *args: Any, **kwargs: Any) -> Future[Any]:
        kind, future = self._group.next_fault(self.name), LateFuture(self._group, self._group.slow.get(self.name, 0))
        if kind == "answer lost":
            super().call(method, *args, **kwargs)
        if kind == "raise":
            future.set_exception(WorkerFailed(self.name, RuntimeError("simulated"), "simulated"))
        elif kind in ("lost", "answer lost"):
            future.set_exception(WorkerLost(self.name, "its process died"))
            self.restart()
        else:
            try:
                future.set_result(self.call(method, *args, **kwargs))
            except PlauditError as error:
                future.set_exception(error)
        return future

    def call(self, method: Any, *args: Any, **kwargs: Any) -> Any:
        """A call that waits reaches a lost worker again when it is back."""
        if method.__name__ == "setup":
            self._setup = args
        kind = self._group.next_fault(self.name) if self.name in ("replay buffer", "state manager") else None
        if kind == "answer lost":
            super().call(method, *args, **kwargs)
        if kind in ("lost", "answer lost"):
            self.restart()
        return super().call(method, *args, **kwargs)

    def restart(self) -> None:
        """A new process, which has no state."""
        self.restarts += 1
        self.worker.close()
        self.worker = self._group.make(self.name)
        if self.name == "learner":
            self.worker.setup(*self._setup)


class SimulatedGroup(LocalWorkerGroup):
    """Workers that take turns and fail as planned."""

    clock: TurnClock

    def __init__(self, folder: RunFolder, world: World, faults: dict[tuple[str, int], str], slow: Mapping[str, int]):
        """
        faults: (worker, number of its call) -> kind; those that have happened are removed
        slow: worker -> turns of the loop that each of its calls takes longer
        """
        self._world, self._faults, self.live, self.fired = world, faults, False, False
        self.slow, self.turn = slow, 0
        self._calls: Counter[str] = Counter()
        super().__init__(folder, serial=True)

    def next_fault(self, name: str) -> str | None:
        """The fault of a worker's next call."""
        if not self.live:
            return None
        self._calls[name] += 1
        kind = self._faults.pop((name, self._calls[name]), None)
        if kind is not None:
            self.fired = True
            self._world.counts["worker faults"] += 1
            self._world.note(f"worker '{name}', call {self._calls[name]}: {kind}")
        if kind == "hang":
            self.clock.turns += 20
            self._world.now += 20
        return kind

    def _handle(self, name: str) -> SerialHandle[Any]:
        return FaultyHandle(name, self)

    def make(self, name: str) -> Any:
        """A new worker; the operator of an env opens the gate whenever the robot waits there."""
        worker = self._make(name)
        if not isinstance(worker, EnvWorker) or worker._operator is None:
            return worker
        worker._operator = attending(self._folder.config.operator.gate)
        return worker

    def wait(self, seconds: float, failed: Any) -> None:
        before, self.turn = self.clock.turns, self.turn + 1
        super().wait(seconds, failed)
        self._world.now += self.clock.turns - before


FACTORS = {"equal": 1.0, "better": 0.2, "worse": 3.0}


def draw_candidate(errors: dict[str, Any], number: int) -> tuple[str, dict[str, Any]]:
    """What a candidate is compared with the current judge, and its errors."""
    drawn = pick(("equal", "equal", "better", "better", "worse"), world().seed, "candidate", number)
    kind = world().candidate or drawn
    rates = {name: min(1.0, FACTORS[kind] * errors[name]) for name in HONEST}
    return kind, {**errors, **rates, "name": f"candidate {number}", "drift": 0}


class InlineChild:
    """A process that has ended before it is looked at."""

    alive = False

    def __init__(self, name: str, target: str, *arguments: Any):
        connection: Any = self
        self.connection, self._sent = self, list[int]()
        world().counts["retrainings"] += 1
        retrain.retrain_main(connection, *arguments)

    def poll(self) -> bool:
        return bool(self._sent)

    def send(self, number: int) -> None:
        self._sent.append(number)

    def recv(self) -> int:
        if not self._sent:
            raise EOFError
        return self._sent.pop()

    def exit_reason(self) -> str:
        return "it ended"

    def hang_up(self) -> None: ...

    def end(self, *_: Any, **__: Any) -> bool:
        return True


def _train(data: Store, output: Path, settings: Any, *_: Any) -> Any:
    """Draw a candidate in place of training one."""
    current: SimulatedModel = settings
    number = len(retrain.decisions(output.parents[1])) + 1
    kind, errors = draw_candidate(current.errors, number)
    world().note(f"retraining {number}: the candidate is {kind}")
    world().counts[f"candidates {kind}"] += 1
    world().candidates[number] = kind
    write_model(output, errors)
    return SimpleNamespace(model=SimulatedModel(output))


@contextmanager
def simulated_retraining() -> Iterator[None]:
    """For as long as the block lasts."""
    with ExitStack() as stack:
        for name, simulated in (
            ("ChildProcess", InlineChild),
            ("exit_with_parent", lambda *_: None),
            ("send", lambda connection, number: connection.send(number)),
            ("load_reward_model", lambda path, *_, **__: SimulatedModel(path)),
            ("training_config", lambda model, *_: model),
            ("train_and_save", _train),
        ):
            stack.enter_context(patch.object(retrain, name, simulated))
        stack.enter_context(patch.object(os, "nice", lambda _: None))
        yield
