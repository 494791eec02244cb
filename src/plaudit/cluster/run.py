"""The workers of an online run: as actors of a cluster, or in this process."""

from collections.abc import Iterator
from contextlib import contextmanager

from plaudit.training.run_folder import RunFolder
from plaudit.training.settings import WorkerName
from plaudit.training.worker_group import LocalWorkerGroup, WorkerGroup


@contextmanager
def workers_for(folder: RunFolder, address: str | None, *, serial: bool = False) -> Iterator[WorkerGroup]:
    """
    address: of a cluster's head; "auto" for the cluster that this machine belongs to, or else one of its own; "local"
        for one of its own; None for this process
    serial: in this process, one call after the other
    """
    if address is None:
        workers: WorkerGroup = LocalWorkerGroup(folder, serial=serial)
        try:
            yield workers
        finally:
            workers.close()
        return
    from plaudit.cluster.connect import connected

    config = folder.config
    has_model = not config.judge.is_human and config.judge.config.requires_gpu
    requires_gpu: list[WorkerName] = ["labeler"] if has_model else []
    with connected(None if address == "auto" else address, config.cluster, requires_gpu) as cluster:
        from plaudit.cluster.ray_workers import RayWorkerGroup

        workers = RayWorkerGroup(folder, cluster)
        try:
            yield workers
        finally:
            workers.close()
