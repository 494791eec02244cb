"""The trainers: one or several workers that make the same updates.

They are plain actors that meet through torch.distributed, and after one was lost all go on from the newest checkpoint.
Not Ray Train: its workers run one function to its end, while ours are told by the loop how many updates are due, and it
would be a second way to restart.
"""

from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import RayError

from plaudit.cluster.actors import Job, TrainerActor
from plaudit.cluster.calls import answer

START = 180.0  # s for an actor to be there for the first time

Make = Callable[..., Any]  # (part, class, *arguments, rank=0) -> handle


class TrainerGroup:
    """N data-parallel workers, asked as one."""

    def __init__(self, make: Make, size: int):
        self._make, self._size = make, size
        self._workers = self._made()  # at once: they get ready while others do
        self._joining: list[Any] = []

    def _made(self) -> list[Any]:
        return [self._make("trainer", TrainerActor, rank=rank) for rank in range(self._size)]

    def start(self, job: Job) -> int:
        """Returns how many updates were made in earlier sittings."""
        self._job = job
        updates, *_ = [answer(call, "trainer", START) for call in self._join()]
        return updates

    def _join(self) -> list[Any]:
        """Make a group of them. A worker does one thing after the other, so whatever it is asked next waits for it."""
        address = self._workers[0].meeting_point.remote() if self._size > 1 else None
        return [worker.join.remote(self._job, rank, self._size, address) for rank, worker in enumerate(self._workers)]

    def begin(self, method: str, *arguments: Any) -> tuple[Any, ...]:
        """Calls, one of each worker that takes part."""
        workers = self._workers if method == "step" else self._workers[:1]
        return tuple(getattr(worker, method).remote(*arguments) for worker in workers)

    @property
    def joining(self) -> tuple[Any, ...]:
        """Calls of workers that were brought back and are not ready yet, or could not be; what is begun waits."""
        self._joining = [call for call in self._joining if not _succeeded(call)]
        return tuple(self._joining)

    def revive(self) -> None:
        """After one was lost: all of them, since the others wait for it in the middle of an update."""
        self.close()
        self._workers = self._made()
        self._joining = self._join()

    def pids(self) -> list[int]:
        return ray.get([worker.pid.remote() for worker in self._workers])

    def close(self) -> None:
        for worker in self._workers:
            ray.kill(worker)


def _succeeded(call: Any) -> bool:
    """Whether a call has ended well; False while it goes on."""
    ready, _ = ray.wait([call], timeout=0)
    try:
        return bool(ready) and ray.get(call) is not None
    except RayError:
        return False
