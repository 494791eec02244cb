"""An online run from a config: on a cluster, or in this process."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from plaudit.cluster.config import Part, PlacementConfig
from plaudit.training.handles import Crew, LocalCrew
from plaudit.training.online_config import OnlineConfig


class ClusterRunConfig(OnlineConfig):
    """An online run and where its parts go."""

    cluster: PlacementConfig = PlacementConfig()


@contextmanager
def crew_for(config: ClusterRunConfig, folder: Path, address: str | None) -> Iterator[Crew]:
    """
    address: of a cluster; "none" for this process
    """
    if address == "none":
        crew: Crew = LocalCrew(config, folder)
        try:
            yield crew
        finally:
            crew.close()
        return
    from plaudit.cluster.connect import connected

    needs: list[Part] = ["labeler"] if not config.by_hand and config.judge.needs_gpu else []
    with connected(address, config.cluster, needs) as cluster:
        from plaudit.cluster.crew import RayCrew

        crew = RayCrew(config, folder, cluster)
        try:
            yield crew
        finally:
            crew.close()
