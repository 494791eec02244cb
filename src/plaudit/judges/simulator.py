"""The simulator as a judge of stored episodes: its own success flag, which is stored with what it recorded.

For measuring others against it, and for stores whose labels are of somebody else. No robot has one.
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from plaudit.errors import DataError
from plaudit.judges.config import LabelerConfig
from plaudit.types import Episode, Labels


class SimulatorLabeler:
    source = "simulator"

    @property
    def facts(self) -> dict[str, Any]:
        return {"model": "", "threshold": None, "note": ""}

    def label(self, episodes: Sequence[Episode]) -> Sequence[Labels | Exception]:
        return [_verdict(episode) for episode in episodes]


def _verdict(episode: Episode) -> Labels | DataError:
    if episode.success is None:
        return DataError(
            "no simulator knows of this episode (it has no 'success' among what is privileged); label it with another "
            "judge"
        )
    verdict = np.concatenate([[0], episode.success]).astype(np.float32)  # before any action nothing has succeeded
    verdict[: episode.recorded.start] = np.nan
    if episode.repeated == "last":
        verdict[-1] = np.nan
    return Labels.from_frames(verdict, source=SimulatorLabeler.source)


class SimulatorConfig(LabelerConfig):
    type: Literal["simulator"] = "simulator"

    def build(self) -> SimulatorLabeler:
        return SimulatorLabeler()
