"""The trainers: one or several workers that make the same updates.

`ActorGroup` are plain actors that meet through torch.distributed: there in seconds. `RayTrainGroup` leave that to
Ray Train, for whoever wants its placement and its restarts; it takes half a minute to gather them. Both are asked in
the same way, and after a worker was lost both go on from the newest checkpoint.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import ray
from ray.exceptions import RayError

from plaudit.cluster.actors import Job, Mailbox, TrainerActor, train_loop
from plaudit.cluster.calls import answer
from plaudit.cluster.connect import Cluster
from plaudit.errors import MissingExtra, PartLost

START = 180.0  # s for an actor to be there for the first time

Make = Callable[..., Any]  # (part, class, *arguments, rank=0) -> handle


class TrainerGroup(Protocol):
    """N data-parallel workers, asked as one."""

    def start(self, job: Job) -> int:
        """Returns how many updates were made in earlier sittings."""
        ...

    def begin(self, method: str, *arguments: Any) -> tuple[Any, ...]:
        """Calls, one of each worker that takes part."""
        ...

    @property
    def joining(self) -> tuple[Any, ...]:
        """Calls of workers that were brought back and are not ready yet, or could not be; what is begun waits."""
        ...

    def revive(self) -> None:
        """After one was lost; does not wait until they are back."""
        ...

    def pids(self) -> list[int]: ...

    def close(self) -> None: ...


class ActorGroup:
    """Plain actors."""

    def __init__(self, make: Make, size: int):
        self._make, self._size = make, size
        self._workers = self._made()  # at once: they get ready while others do
        self._joining: list[Any] = []

    def _made(self) -> list[Any]:
        return [self._make("trainer", TrainerActor, rank=rank) for rank in range(self._size)]

    def start(self, job: Job) -> int:
        self._job = job
        updates, *_ = [answer(call, "trainer", START) for call in self._join()]
        return updates

    def _join(self) -> list[Any]:
        """Make a group of them. A worker does one thing after the other, so whatever it is asked next waits for it."""
        address = self._workers[0].meeting_point.remote() if self._size > 1 else None
        return [worker.join.remote(self._job, rank, self._size, address) for rank, worker in enumerate(self._workers)]

    def begin(self, method: str, *arguments: Any) -> tuple[Any, ...]:
        workers = self._workers if method == "step" else self._workers[:1]
        return tuple(getattr(worker, method).remote(*arguments) for worker in workers)

    @property
    def joining(self) -> tuple[Any, ...]:
        self._joining = [call for call in self._joining if not _succeeded(call)]
        return tuple(self._joining)

    def revive(self) -> None:
        """All of them: the others wait for the lost one in the middle of an update."""
        self.close()
        self._workers = self._made()
        self._joining = self._join()

    def pids(self) -> list[int]:
        return ray.get([worker.pid.remote() for worker in self._workers])

    def close(self) -> None:
        for worker in self._workers:
            ray.kill(worker)


@dataclass
class RayTrainGroup:
    """Workers of Ray Train, told what to do through a mailbox."""

    make: Make
    cluster: Cluster
    folder: Path  # for what Ray Train itself writes

    def start(self, job: Job) -> int:
        trainer = _torch_trainer(job, self.cluster, self.folder, mailbox := f"{job.replay.actor}-orders")
        self._mailbox = self.make("state", Mailbox, name=mailbox)
        self._failure: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, args=(trainer,), daemon=True)
        self._thread.start()
        return self._wait(self._mailbox.order.remote("count"))

    def _run(self, trainer: Any) -> None:
        try:
            trainer.fit()
        except (RayError, RuntimeError) as error:
            self._failure.append(error)

    def _wait(self, call: Any) -> int:
        """The first answer; whatever ends Ray Train before it is told."""
        for _ in range(int(START)):
            ready, _ = ray.wait([call], timeout=1)
            if ready:
                return answer(call, "trainer")
            if self._failure:
                raise PartLost(f"Ray Train ended: {self._failure[0]}") from self._failure[0]
        raise PartLost(f"Ray Train had not gathered its workers after {START:g} s")

    def begin(self, method: str, *arguments: Any) -> tuple[Any, ...]:
        return (self._mailbox.order.remote(method, *arguments),)

    @property
    def joining(self) -> tuple[Any, ...]:
        return ()

    def revive(self) -> None:
        """Ray Train does."""

    def pids(self) -> list[int]:
        return ray.get(self._mailbox.pids.remote())

    def close(self) -> None:
        self._mailbox.order.remote("leave")
        self._thread.join(timeout=20)
        ray.kill(self._mailbox)


def _succeeded(call: Any) -> bool:
    """Whether a call has ended well; False while it goes on."""
    ready, _ = ray.wait([call], timeout=0)
    try:
        return bool(ready) and ray.get(call) is not None
    except RayError:
        return False


def _torch_trainer(job: Job, cluster: Cluster, folder: Path, mailbox: str) -> Any:
    try:
        from ray.train import FailureConfig, RunConfig, ScalingConfig
        from ray.train.torch import TorchTrainer
    except ImportError as error:
        raise MissingExtra("ray[train]", "ray-train") from error
    placement = cluster.placement
    pinned = {**placement.options("trainer")["resources"], "CPU": 0.01}
    return TorchTrainer(
        train_loop,
        train_loop_config={"job": job, "mailbox": mailbox},
        scaling_config=ScalingConfig(
            num_workers=placement.trainer_workers,
            use_gpu=placement.gpu("trainer") is not None,
            resources_per_worker=pinned,
        ),
        run_config=RunConfig(name="ray_train", storage_path=str(folder), failure_config=FailureConfig(max_failures=-1)),
    )
