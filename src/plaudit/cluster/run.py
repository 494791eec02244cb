"""An online run from a config: on a cluster, or in this process."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from plaudit.cluster.config import Part, PlacementConfig
from plaudit.training.online_config import OnlineConfig
from plaudit.training.worker_group import LocalWorkers, Workers


class ClusterRunConfig(OnlineConfig):
    """An online run and where its parts go."""

    cluster: PlacementConfig = PlacementConfig()


@contextmanager
def workers_for(config: ClusterRunConfig, folder: Path, address: str | None) -> Iterator[Workers]:
    """
    address: of a cluster; "none" for this process
    """
    if address == "none":
        workers: Workers = LocalWorkers(config, folder)
        try:
            yield workers
        finally:
            workers.close()
        return
    from plaudit.cluster.connect import connected

    needs: list[Part] = ["labeler"] if not config.by_hand and config.judge.requires_gpu else []
    with connected(address, config.cluster, needs) as cluster:
        from plaudit.cluster.ray_workers import RayWorkers

        workers = RayWorkers(config, folder, cluster)
        try:
            yield workers
        finally:
            workers.close()
