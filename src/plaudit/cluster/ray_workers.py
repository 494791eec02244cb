"""The workers of an online run as actors of a cluster.

The actors are the worker classes under the names that a cluster's user reads in `plaudit cluster status`. Each can be
killed at any moment and is made again with the same arguments: what it needs to go on is on disk, or is sent again.
Callers repeat a call that did not get through, so each may reach an actor twice, which the workers allow for.

Ray brings back the robot's, the judge's, the replay and the state actor by itself, in their places. Learners are
brought back here: when one of a group dies, the others wait for it in the middle of an update, so all of them are made
anew and go on from the newest checkpoint. Nobody waits while they get ready: what they are asked next does.
"""

import os
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import ray
from ray import ObjectRef
from ray.exceptions import GetTimeoutError, ObjectLostError, RayActorError, RayError, RayTaskError
from ray.util import get_node_ip_address

from plaudit.cluster.connect import Cluster
from plaudit.errors import PlauditError, StoreLocked, WorkerFailed, WorkerLost
from plaudit.training.distributed import SINGLE, DistributedGroup, rendezvous_address
from plaudit.training.handles import Handle, Slot
from plaudit.training.replay_buffer import ReplayBuffer
from plaudit.training.run_folder import RunFolder
from plaudit.training.state_manager import StateManager
from plaudit.training.worker_group import Workers, replay_options
from plaudit.training.workers.env import EnvWorker
from plaudit.training.workers.human import HumanLabelWorker
from plaudit.training.workers.judge import JudgeWorker
from plaudit.training.workers.learner import LearnerInfo, LearnerWorker
from plaudit.types import EnvSpec

RESTART_FOREVER = {"max_restarts": -1, "max_task_retries": 0}  # callers repeat what they want repeated
STATS_TIMEOUT_S = 2.0  # that the loop waits for counters, before it does something else
STARTUP_TIMEOUT_S = 180.0  # for an actor to be there for the first time
RETRY_S = 0.2  # before a call is made again
LOCK_TIMEOUT_S = 30.0  # to wait for a predecessor that has not quite gone
LOST = (RayActorError, ObjectLostError, GetTimeoutError)

W = TypeVar("W")
P = ParamSpec("P")
R = TypeVar("R")


class Actor:
    """What all actors can be asked."""

    def pid(self) -> int:
        return os.getpid()


class EnvActor(Actor, EnvWorker):
    """The robot."""


class AutoRewardLabelerActor(Actor, JudgeWorker):
    """A judge that labels by itself: a vision-language model, a classifier, the simulator."""


class ManualRewardLabelerActor(Actor, HumanLabelWorker):
    """A human who labels in a window; the actor only opens it."""


class StateManagerActor(Actor, StateManager):
    """Versioned weights."""


class ReplayBufferActor(Actor, ReplayBuffer):
    """The store."""

    def __init__(self, folder: Path, **options: Any):
        until = time.monotonic() + LOCK_TIMEOUT_S
        while True:
            try:
                super().__init__(folder, **options)
                return
            except StoreLocked:
                if time.monotonic() > until:
                    raise
                time.sleep(0.5)


class LearnerActor(Actor, LearnerWorker):
    """One rank of a group."""

    def rendezvous_address(self) -> str:
        """Where the group can meet: an address of this machine."""
        return rendezvous_address(get_node_ip_address())

    def join(self, env_spec: EnvSpec, source: str, rank: int, size: int, address: str | None) -> LearnerInfo:
        """`setup`, as one of so many."""
        alone = address is None
        return self.setup(
            env_spec, source, SINGLE if alone else DistributedGroup.init_process_group(rank, size, address)
        )


class RayHandle(Handle[W]):
    """An actor by its name, so that it can be an argument of another actor: a handle of Ray's would lie in the memory
    of some node, and an actor whose arguments are lost cannot be started again."""

    def __init__(self, name: str, actor: str, timeout_s: float):
        """
        name: as people know it
        actor: as Ray knows it
        timeout_s: for which `call` waits for an answer, or for the actor to be back
        """
        self.name, self.actor, self._timeout_s = name, actor, timeout_s
        self._found: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return RayHandle, (self.name, self.actor, self._timeout_s)

    def submit(self, method: Callable[Concatenate[W, P], R], *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        try:
            return translated(self._begin(method, *args, **kwargs), self.name)
        except WorkerLost as error:
            failed: Future[R] = Future()
            failed.set_exception(error)
            return failed

    def call(self, method: Callable[Concatenate[W, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        until = time.monotonic() + self._timeout_s
        while True:
            try:
                return ray.get(self._begin(method, *args, **kwargs), timeout=max(until - time.monotonic(), RETRY_S))
            except (RayError, WorkerLost) as error:
                failure = translate(error, self.name)
                if not isinstance(failure, WorkerLost) or failure.worker != self.name or time.monotonic() > until:
                    raise failure from error
                time.sleep(RETRY_S)

    def _begin(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> ObjectRef[Any]:
        if self._found is None:
            try:
                self._found = ray.get_actor(self.actor)
            except ValueError as error:
                raise WorkerLost(self.name, "there is none") from error
        return getattr(self._found, method.__name__).remote(*args, **kwargs)

    def recover(self, error: PlauditError) -> None:
        """Ray does; it is counted."""
        self.restarts += isinstance(error, WorkerLost) and error.worker == self.name


def translate(error: BaseException, name: str) -> BaseException:
    """What Ray says of a call that failed, in our errors: what the worker raised, or that it did not get to it."""
    if isinstance(error, RayTaskError):
        cause = error.cause
        return cause if isinstance(cause, PlauditError) else WorkerFailed(name, cause, str(error))
    if isinstance(error, GetTimeoutError):
        return WorkerLost(name, "it took too long")
    if isinstance(error, LOST):
        return WorkerLost(name, "its process or its machine is gone")
    return error


def translated(call: ObjectRef[Any], name: str) -> Future[Any]:
    """Of a call that was begun; it ends with our errors."""
    answer: Future[Any] = Future()

    def done(source: Future[Any]) -> None:
        error = source.exception()
        with suppress(InvalidStateError):  # it was given up meanwhile
            if error is None:
                answer.set_result(source.result())
            else:
                answer.set_exception(translate(error, name))

    call.future().add_done_callback(done)
    return answer


class LearnerGroup(Handle[LearnerWorker]):
    """N data-parallel learners, called as one: `update` goes to all of them, everything else to the first.

    Not Ray Train: its workers run one function to its end, while ours are told by the loop how many updates are due,
    and it would be a second way to restart.
    """

    name = "learner"

    def __init__(self, make: Callable[[int], Any], size: int):
        """make: the actor of a rank"""
        self._make, self._size = make, size
        self._actors = self._made()  # at once: they get ready while others do
        self._setup: tuple[Any, ...] = ()
        self._joining: list[Future[Any]] = []  # of learners that were brought back and are not ready yet
        self._others_wait = False  # whether a learner that fails in the call at hand leaves others waiting

    def _made(self) -> list[Any]:
        return [self._make(rank) for rank in range(self._size)]

    def submit(
        self, method: Callable[Concatenate[LearnerWorker, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> Future[R]:
        if method is LearnerWorker.setup:
            self._setup = args
            return all_of(self._join())
        self._joining = [call for call in self._joining if not _succeeded(call)]
        everyone = method is LearnerWorker.update
        self._others_wait = bool(self._joining) or (everyone and self._size > 1)
        actors = self._actors if everyone else self._actors[:1]
        calls = [translated(getattr(actor, method.__name__).remote(*args, **kwargs), self.name) for actor in actors]
        return all_of(calls, after=self._joining)

    def call(self, method: Callable[Concatenate[LearnerWorker, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return self.submit(method, *args, **kwargs).result(STARTUP_TIMEOUT_S)
        except TimeoutError as error:
            raise WorkerLost(self.name, "it took too long") from error

    def _join(self) -> list[Future[Any]]:
        """Make a group of them. An actor does one thing after the other, so whatever it is asked next waits for it."""
        address = self._actors[0].rendezvous_address.remote() if self._size > 1 else None
        calls = [a.join.remote(*self._setup, rank, self._size, address) for rank, a in enumerate(self._actors)]
        return [translated(call, self.name) for call in calls]

    def recover(self, error: PlauditError) -> None:
        """After one was lost, or failed while others wait for it: all of them are made anew, which nobody waits for."""
        lost = isinstance(error, WorkerLost) and error.worker == self.name
        if lost or (self._others_wait and isinstance(error, WorkerLost | WorkerFailed)):
            self.restarts += 1
            self.close()
            self._actors = self._made()
            self._joining = self._join()

    def pids(self) -> list[int]:
        return ray.get([actor.pid.remote() for actor in self._actors])

    def close(self) -> None:
        for actor in self._actors:
            ray.kill(actor)


def all_of(calls: Sequence[Future[Any]], after: Sequence[Future[Any]] = ()) -> Future[Any]:
    """What the first call returned, once all are over; the error of whichever fails first, since others wait for it.

    after: calls that must be over before, within the time for an actor to start
    """
    answer: Future[Any] = Future()
    every = [*after, *calls]

    def done(call: Future[Any]) -> None:
        with suppress(InvalidStateError):
            error = call.exception()
            if error is not None:
                answer.set_exception(error)
            elif all(one.done() for one in every):
                answer.set_result(calls[0].result())

    def late() -> None:
        if not all(one.done() for one in after):
            with suppress(InvalidStateError):
                answer.set_exception(WorkerLost("learner", "it took too long to come back"))

    if after:
        timer = threading.Timer(STARTUP_TIMEOUT_S, late)
        timer.daemon = True
        timer.start()
        answer.add_done_callback(lambda _: timer.cancel())
    for call in every:
        call.add_done_callback(done)
    return answer


def _succeeded(call: Future[Any]) -> bool:
    """Whether a call has ended well; False while it goes on."""
    return call.done() and call.exception() is None


class RayWorkers(Workers):
    """All actors are made at once, so that they get ready side by side."""

    def __init__(self, run: RunFolder, cluster: Cluster):
        super().__init__()
        config, folder = run.config, run.path.absolute()
        self._cluster, self._timeout_s = cluster, config.run.worker_timeout_s
        self._run = uuid.uuid4().hex[:8]  # in the names of the actors, which others of the cluster can see
        self._actors: dict[str, Any] = {}
        self._make("replay", "replay", ReplayBufferActor, folder, **replay_options(run))
        self._make("state", "state", StateManagerActor, run.policy.absolute())
        self.replay = RayHandle("replay buffer", self._name("replay"), STATS_TIMEOUT_S)
        self.state = RayHandle("state manager", self._name("state"), STATS_TIMEOUT_S)
        # Workers wait longer for the two than the loop does.
        replay: Any = RayHandle("replay buffer", self._name("replay"), self._timeout_s)
        state: Any = RayHandle("state manager", self._name("state"), self._timeout_s)
        self.env = self._slot("env", "env", EnvActor, config, replay, state)
        self.judge = self.labeler = None
        if not config.human_labels:
            self.judge = self._slot("judge", "labeler", AutoRewardLabelerActor, replay)
        if config.human_labels or config.human_audits:
            self.labeler = self._slot("labeler", "labeler", ManualRewardLabelerActor, replay, config.judge.window)

        def make(rank: int) -> Any:
            where = cluster.placement.options("learner", rank)
            return ray.remote(LearnerActor).options(**where, max_restarts=0).remote(config, folder, replay, state)

        self._learners = LearnerGroup(make, config.cluster.num_learners)
        self.learner = Slot(self._learners, self.clock)

    def _name(self, worker: str) -> str:
        return f"plaudit-{self._run}-{worker}"

    def _make(self, worker: str, part: Any, cls: type, *args: Any, **kwargs: Any) -> None:
        """
        worker: its name
        part: where it goes, see `cluster.workers`
        """
        where = self._cluster.placement.options(part)
        threads = {"max_concurrency": 2} if cls is EnvActor else {}  # to be stopped in the middle of an episode
        made = ray.remote(cls).options(**where, **RESTART_FOREVER, **threads, name=self._name(worker))
        self._actors[worker] = made.remote(*args, **kwargs)

    def _slot(self, worker: str, part: str, cls: type, *args: Any) -> Slot[Any]:
        self._make(worker, part, cls, *args)
        return Slot(RayHandle(worker, self._name(worker), STARTUP_TIMEOUT_S), self.clock)

    def pids(self) -> dict[str, list[int]]:
        """The processes of the workers; for whoever wants to know what happens without one."""
        found: dict[str, Any] = {worker: ray.get([actor.pid.remote()]) for worker, actor in self._actors.items()}
        return {**found, "learner": self._learners.pids()}

    def stop_rollout(self) -> None:
        self._actors["env"].stop.remote()

    def close(self) -> None:
        """The robot holds, judges put away their files; then everything goes."""
        calls = [actor.close.remote() for worker, actor in self._actors.items() if worker not in ("replay", "state")]
        ray.wait(calls, num_returns=len(calls), timeout=10)
        self._learners.close()
        for actor in self._actors.values():
            ray.kill(actor)
