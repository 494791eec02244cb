"""The workers of an online run as actors of a cluster.

The actors are the worker classes, under the names that `plaudit cluster status` shows. Each can be killed at any time
and is created again with the same arguments: what it needs to continue is on disk, or is sent again. Callers repeat a
call that did not get through, so a call may reach an actor twice, which the workers allow for.

Ray restarts the env, the judge, the replay and the state actor on the same nodes. Learners are restarted here. When one
of a group dies, the others wait for it in the middle of an update. So all of them are created again and continue from
the newest checkpoint. The loop does not wait while they start: their next call does.
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

from plaudit.cluster.placement import Placement
from plaudit.errors import PlauditError, StoreLocked, WorkerFailed, WorkerLost
from plaudit.rollout.operator import OperatorCommand, OperatorStatus
from plaudit.training.replay_buffer import ReplayBuffer, StateManager
from plaudit.training.run_folder import RunFolder
from plaudit.training.workers.env import EnvWorker
from plaudit.training.workers.group import WorkerGroup, replay_options
from plaudit.training.workers.handles import Handle, Slot
from plaudit.training.workers.labelers import HumanLabelWorker, JudgeWorker
from plaudit.training.workers.learner import SINGLE, DistributedGroup, LearnerInfo, LearnerWorker, rendezvous_address
from plaudit.types import EnvSpec

RESTART_FOREVER = {"max_restarts": -1, "max_task_retries": 0}  # callers repeat what they want repeated
STATS_TIMEOUT_S = 2.0  # for the loop's calls of replay and state
STARTUP_TIMEOUT_S = 180.0  # for the first answer of an actor
RETRY_S = 0.2  # before a call is repeated
LOCK_TIMEOUT_S = 30.0  # for the store's lock, which a killed process may still hold
LOST = (RayActorError, ObjectLostError, GetTimeoutError)

W = TypeVar("W")
P = ParamSpec("P")
R = TypeVar("R")


class Actor:
    """Base of all actors."""

    def pid(self) -> int:
        """Of its process."""
        return os.getpid()


class EnvActor(Actor, EnvWorker):
    """The robot."""


class AutoRewardLabelerActor(Actor, JudgeWorker):
    """A judge: a vision-language model, a classifier, the simulator."""


class ManualRewardLabelerActor(Actor, HumanLabelWorker):
    """Opens the window in which a human labels."""


class StateManagerActor(Actor, StateManager):
    """Versioned weights."""


class ReplayBufferActor(Actor, ReplayBuffer):
    """The store."""

    def __init__(self, folder: Path, **options: Any):
        deadline = time.monotonic() + LOCK_TIMEOUT_S
        while True:
            try:
                super().__init__(folder, **options)
                return
            except StoreLocked:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)


class LearnerActor(Actor, LearnerWorker):
    """One rank of a group of learners."""

    def rendezvous_address(self) -> str:
        """Where the process group can be initialized: a free port of this machine."""
        return rendezvous_address(get_node_ip_address())

    def join(self, env_spec: EnvSpec, source: str, rank: int, size: int, address: str | None) -> LearnerInfo:
        """Join the process group, if there are several, and set up."""
        group = SINGLE if address is None else DistributedGroup.init_process_group(rank, size, address)
        return self.setup(env_spec, source, group)


class RayHandle(Handle[W]):
    """An actor by its name, so that it can be an argument of another actor.

    Ray keeps its own handles in the memory of a node, and an actor whose arguments are lost cannot be restarted.
    """

    def __init__(self, name: str, actor: str, timeout_s: float):
        """
        name: of the worker, for messages
        actor: its name in Ray
        timeout_s: that `call` waits for an answer, or for the actor to be back
        """
        self.name, self.actor, self._timeout_s = name, actor, timeout_s
        self._ray_handle: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return RayHandle, (self.name, self.actor, self._timeout_s)

    def submit(self, method: Callable[Concatenate[W, P], R], *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Start a call."""
        try:
            return to_future(self._remote(method, *args, **kwargs), self.name)
        except WorkerLost as error:
            failed: Future[R] = Future()
            failed.set_exception(error)
            return failed

    def call(self, method: Callable[Concatenate[W, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call, and repeat while the actor is lost."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                timeout = max(deadline - time.monotonic(), RETRY_S)
                return ray.get(self._remote(method, *args, **kwargs), timeout=timeout)
            except (RayError, WorkerLost) as error:
                failure = translate_error(error, self.name)
                if not isinstance(failure, WorkerLost) or failure.worker != self.name or time.monotonic() > deadline:
                    raise failure from error
                time.sleep(RETRY_S)

    def _remote(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> ObjectRef[Any]:
        if self._ray_handle is None:
            try:
                self._ray_handle = ray.get_actor(self.actor)
            except ValueError as error:
                raise WorkerLost(self.name, "there is none") from error
        return getattr(self._ray_handle, method.__name__).remote(*args, **kwargs)

    def recover(self, error: PlauditError) -> None:
        """Count the restart, which is Ray's."""
        self.restarts += isinstance(error, WorkerLost) and error.worker == self.name


def translate_error(error: BaseException, name: str) -> BaseException:
    """Our error for Ray's: what the worker raised, or that the worker is lost."""
    if isinstance(error, RayTaskError):
        cause = error.cause
        return cause if isinstance(cause, PlauditError) else WorkerFailed(name, cause, str(error))
    if isinstance(error, GetTimeoutError):
        return WorkerLost(name, "it took too long")
    if isinstance(error, LOST):
        return WorkerLost(name, "its process or its machine is gone")
    return error


def to_future(call: ObjectRef[Any], name: str) -> Future[Any]:
    """The result of a call, with our errors."""
    result: Future[Any] = Future()

    def on_done(source: Future[Any]) -> None:
        error = source.exception()
        with suppress(InvalidStateError):  # it was canceled
            if error is None:
                result.set_result(source.result())
            else:
                result.set_exception(translate_error(error, name))

    call.future().add_done_callback(on_done)
    return result


class LearnerGroup(Handle[LearnerWorker]):
    """N data-parallel learners, called as one: `update` goes to all of them, everything else to the first.

    Not Ray Train: its workers run one function to its end, while the loop calls ours whenever there are updates to
    make, and it would be a second way to restart.
    """

    name = "learner"

    def __init__(self, make: Callable[[int], Any], size: int):
        """make: creates the actor of a rank"""
        self._make, self._size = make, size
        self._actors = [make(rank) for rank in range(size)]  # at once: they start while the others do
        self._setup: tuple[Any, ...] = ()
        self._joining: list[Future[Any]] = []  # of learners that were restarted and are not set up yet
        self._others_wait = False  # whether a failure in the current call leaves other learners waiting

    def submit(
        self, method: Callable[Concatenate[LearnerWorker, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> Future[R]:
        """Start a call of all learners, or of the first."""
        if method is LearnerWorker.setup:
            self._setup = args
            return first_of_all(self._join())
        self._joining = [call for call in self._joining if not call.done() or call.exception() is not None]
        to_all = method is LearnerWorker.update
        self._others_wait = bool(self._joining) or (to_all and self._size > 1)
        actors = self._actors if to_all else self._actors[:1]
        calls = [to_future(getattr(actor, method.__name__).remote(*args, **kwargs), self.name) for actor in actors]
        return first_of_all(calls, after=self._joining)

    def call(self, method: Callable[Concatenate[LearnerWorker, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call and wait."""
        try:
            return self.submit(method, *args, **kwargs).result(STARTUP_TIMEOUT_S)
        except TimeoutError as error:
            raise WorkerLost(self.name, "it took too long") from error

    def _join(self) -> list[Future[Any]]:
        """Set them up as a group. An actor executes calls in order, so its next call waits for this one."""
        address = self._actors[0].rendezvous_address.remote() if self._size > 1 else None
        calls = [a.join.remote(*self._setup, rank, self._size, address) for rank, a in enumerate(self._actors)]
        return [to_future(call, self.name) for call in calls]

    def recover(self, error: PlauditError) -> None:
        """Restart all learners, without waiting, if one was lost or failed while others wait for it."""
        lost = isinstance(error, WorkerLost) and error.worker == self.name
        if lost or (self._others_wait and isinstance(error, WorkerLost | WorkerFailed)):
            self.restarts += 1
            self.close()
            self._actors = [self._make(rank) for rank in range(self._size)]
            self._joining = self._join()

    def pids(self) -> list[int]:
        """Of the learners' processes."""
        return ray.get([actor.pid.remote() for actor in self._actors])

    def close(self) -> None:
        """End them."""
        for actor in self._actors:
            ray.kill(actor)


def first_of_all(calls: Sequence[Future[Any]], after: Sequence[Future[Any]] = ()) -> Future[Any]:
    """The result of the first call, once all are done; or the first error, since the other calls may wait forever.

    after: calls that must be done before, within the time for an actor to start
    """
    result: Future[Any] = Future()
    all_calls = [*after, *calls]

    def on_done(call: Future[Any]) -> None:
        with suppress(InvalidStateError):
            error = call.exception()
            if error is not None:
                result.set_exception(error)
            elif all(each.done() for each in all_calls):
                result.set_result(calls[0].result())

    def on_timeout() -> None:
        if not all(each.done() for each in after):
            with suppress(InvalidStateError):
                result.set_exception(WorkerLost("learner", "it took too long to come back"))

    if after:
        timer = threading.Timer(STARTUP_TIMEOUT_S, on_timeout)
        timer.daemon = True
        timer.start()
        result.add_done_callback(lambda _: timer.cancel())
    for call in all_calls:
        call.add_done_callback(on_done)
    return result


class RayWorkerGroup(WorkerGroup):
    """The workers of a run as actors, all created at once, so that they start in parallel."""

    def __init__(self, run: RunFolder, placement: Placement):
        super().__init__()
        config, folder = run.config, run.path.absolute()
        self._placement, self._timeout_s = placement, config.run.worker_timeout_s
        self._run = uuid.uuid4().hex[:8]  # in the names of the actors, which are the cluster's
        self._actors: dict[str, Any] = {}
        self._create("replay", "replay", ReplayBufferActor, folder, **replay_options(run))
        self._create("state", "state", StateManagerActor, run.policy.absolute())
        self.replay = RayHandle("replay buffer", self._name("replay"), STATS_TIMEOUT_S)
        self.state = RayHandle("state manager", self._name("state"), STATS_TIMEOUT_S)
        # Workers wait longer for these two than the loop does.
        replay: Any = RayHandle("replay buffer", self._name("replay"), self._timeout_s)
        state: Any = RayHandle("state manager", self._name("state"), self._timeout_s)
        self.env = self._slot("env", "env", EnvActor, config, replay, state, outbox_on_disk=True)
        self._attended = config.operator.attended
        self._status: OperatorStatus | None = None
        self._asked: Future[OperatorStatus | None] | None = None  # for the next status
        self.judge = self.labeler = None
        if not config.judge.is_human:
            self.judge = self._slot("judge", "labeler", AutoRewardLabelerActor, replay)
        if config.asks_human:
            self.labeler = self._slot("labeler", "labeler", ManualRewardLabelerActor, replay, config.judge.window)

        def make(rank: int) -> Any:
            where = placement.options("learner", rank)
            return ray.remote(LearnerActor).options(**where, max_restarts=0).remote(config, folder, replay, state)

        self._learners = LearnerGroup(make, config.cluster.num_learners)
        self.learner = Slot(self._learners, self.clock)

    def _name(self, worker: str) -> str:
        return f"plaudit-{self._run}-{worker}"

    def _create(self, worker: str, key: Any, cls: type, *args: Any, **kwargs: Any) -> None:
        """
        worker: its name
        key: of its placement, in `cluster.workers`
        """
        where = self._placement.options(key)
        # An env is stopped, operated and asked for its status in the middle of an episode.
        threads = {"max_concurrency": 4} if cls is EnvActor else {}
        options = {**where, **RESTART_FOREVER, **threads, "name": self._name(worker)}
        self._actors[worker] = ray.remote(cls).options(**options).remote(*args, **kwargs)

    def _slot(self, worker: str, key: str, cls: type, *args: Any, **kwargs: Any) -> Slot[Any]:
        self._create(worker, key, cls, *args, **kwargs)
        return Slot(RayHandle(worker, self._name(worker), STARTUP_TIMEOUT_S), self.clock)

    def pids(self) -> dict[str, list[int]]:
        """The processes of the workers, for tests that kill them."""
        pids: dict[str, Any] = {worker: ray.get([actor.pid.remote()]) for worker, actor in self._actors.items()}
        return {**pids, "learner": self._learners.pids()}

    def stop_rollout(self) -> None:
        """End the current episode."""
        self._actors["env"].stop.remote()

    def operate(self, command: OperatorCommand) -> None:
        """Tell the robot's worker what an operator says."""
        self.env.handle.submit(EnvWorker.operate, command)

    def operator_status(self) -> OperatorStatus | None:
        """The newest answer; the next is asked for."""
        if self._asked is None or self._asked.done():
            if self._asked is not None and self._asked.exception() is None:
                self._status = self._asked.result()
            self._asked = self.env.handle.submit(EnvWorker.operator_status) if self._attended else None
        return self._status

    def close(self) -> None:
        """Close the workers, so that the robot holds and files are complete, and end the actors."""
        calls = [actor.close.remote() for worker, actor in self._actors.items() if worker not in ("replay", "state")]
        ray.wait(calls, num_returns=len(calls), timeout=10)
        self._learners.close()
        for actor in self._actors.values():
            ray.kill(actor)
