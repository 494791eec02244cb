"""Handles: one typed way to call a worker, whether it lives in this process or as an actor of a cluster.

    replay.call(ReplayBuffer.add, episode, key)                # waits for the result
    slot.start(self.on_episode, EnvWorker.rollout, seed)       # the loop's callback gets the result

The method is that of the worker's class, so an editor jumps to it, and pyright checks arguments, result and callback.
There are three kinds: `SerialHandle` makes a call at once and in order, `ThreadHandle` gives a worker its own thread,
and `RayHandle` is in cluster/ray_workers.py. An error that the worker did not expect arrives as `WorkerFailed`, and a
worker that does not answer as `WorkerLost`.

(Rejected: a proxy class for each worker, which writes every signature twice; a Protocol for each caller; asyncio, since
torch and the drivers of robots block.)
"""

import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from plaudit.errors import PlauditError, WorkerFailed, WorkerLost

W = TypeVar("W")
P = ParamSpec("P")
R = TypeVar("R")


class Handle(ABC, Generic[W]):
    """A worker, wherever it runs."""

    name: str  # for people: "replay buffer"
    restarts: int = 0  # how often its process was restarted

    @abstractmethod
    def submit(self, method: Callable[Concatenate[W, P], R], *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Begin a call; the future has its result, or a `PlauditError`."""

    @abstractmethod
    def call(self, method: Callable[Concatenate[W, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call and wait. A worker that was lost is waited for; the call may then reach it twice."""

    def recover(self, error: PlauditError) -> None:
        """After a call that failed: bring back what the worker needs to be called again. Does not wait for it."""


class SerialHandle(Handle[W]):
    """A worker of this process that is called in the caller's thread: a call is over when `submit` returns."""

    def __init__(self, name: str, worker: W):
        self.name, self.worker = name, worker

    def call(self, method: Callable[Concatenate[W, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return getattr(self.worker, method.__name__)(*args, **kwargs)  # by name: a subclass may override it
        except PlauditError:
            raise
        except Exception as error:  # of a plugin that the worker runs, which may raise anything
            raise WorkerFailed(self.name, error, traceback.format_exc()) from error

    def submit(self, method: Callable[Concatenate[W, P], R], *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        future: Future[R] = Future()
        try:
            future.set_result(self.call(method, *args, **kwargs))
        except PlauditError as error:
            future.set_exception(error)
        return future

    def close(self) -> None:
        """No call comes after this."""


class ThreadHandle(SerialHandle[W]):
    """A worker with a thread of its own, in which its calls are made one after the other."""

    def __init__(self, name: str, worker: W):
        super().__init__(name, worker)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)

    def submit(self, method: Callable[Concatenate[W, P], R], *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        return self._thread.submit(super().call, method, *args, **kwargs)

    def call(self, method: Callable[Concatenate[W, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        return self.submit(method, *args, **kwargs).result()

    def close(self) -> None:
        self._thread.shutdown()


class TurnClock:
    """Seconds by turns of the loop: where workers take turns, nothing may depend on how long a turn takes."""

    turns: float = 0.0

    def __call__(self) -> float:
        return self.turns


@dataclass
class Slot(Generic[W]):
    """A worker of the loop, and the one call that it is busy with."""

    handle: Handle[W]
    clock: Callable[[], float]
    ready: bool = False  # whether it has what its calls need; False again after it was lost
    retry_at: float = 0.0  # by the clock; it is left alone until then
    task: Future[Any] | None = field(default=None, repr=False)  # the current call
    _then: Callable[[Any], None] = field(default=lambda _: None, repr=False)

    @property
    def name(self) -> str:
        return self.handle.name

    @property
    def idle(self) -> bool:
        """Whether the worker can take a new call."""
        return self.task is None and self.clock() >= self.retry_at

    def start(
        self, then: Callable[[R], None], method: Callable[Concatenate[W, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> None:
        """Begin a call; `finish` hands its result to `then`."""
        assert self.task is None, f"the {self.name} is busy"
        self.task, self._then = self.handle.submit(method, *args, **kwargs), then

    def finish(self, failed: Callable[["Slot[Any]", PlauditError], None]) -> None:
        """If the current call is over, hand its result to its callback, or its error to `failed`."""
        if self.task is None or not self.task.done():
            return
        task, self.task = self.task, None
        try:
            result = task.result()
        except PlauditError as error:
            self.ready = self.ready and not isinstance(error, WorkerLost)
            self.handle.recover(error)
            failed(self, error)
        else:
            self._then(result)
