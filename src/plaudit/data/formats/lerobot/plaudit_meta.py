"""`meta/plaudit.parquet`: what our exports store beside LeRobot's own files, validated like the rest."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from plaudit.data.formats.lerobot.episodes import entries_of
from plaudit.data.formats.lerobot.features import PLAUDIT_META
from plaudit.data.formats.lerobot.info import count, number
from plaudit.data.formats.lerobot.io_utils import read_table
from plaudit.errors import BadFile
from plaudit.files import Root
from plaudit.types import Padding

_FINAL = "final/"


@dataclass(frozen=True)
class PlauditMeta:
    """Of one episode; what it does not say is as in a data set of others."""

    padded: Padding = "last"
    terminated: bool | None = None
    reward_frame: str = "next"
    source: str = "dataset"
    start: float | None = None
    final_success: float | None = None
    final_state: list[float] | None = None
    images: Mapping[str, bytes] = field(default_factory=dict)  # camera -> what the last action led to


NO_META = PlauditMeta()


def read_plaudit_meta(root: Root) -> dict[int, PlauditMeta]:
    """By episode; {} for a data set of others."""
    path = root.path / PLAUDIT_META
    if not root.is_file(path):
        return {}
    found: dict[int, PlauditMeta] = {}
    for entry in entries_of(read_table(root, path), path):
        index = count(entry.get("episode_index"))
        if index is None:
            raise BadFile(path, "a row of this table does not say which episode it is of; export the data set again")
        found[index] = _extra(entry)
    return found


def _extra(entry: Mapping[str, Any]) -> PlauditMeta:
    declared, source = entry.get("repeated"), entry.get("source")
    state, terminated = entry.get("final_state"), entry.get("terminated")
    sound = isinstance(state, list) and all(number(value) is not None for value in state)
    images = {name.removeprefix(_FINAL): value for name, value in entry.items() if name.startswith(_FINAL)}
    return PlauditMeta(
        padded=next((known for known in get_args(Padding) if known == declared), "last"),
        terminated=terminated if isinstance(terminated, bool) else None,
        reward_frame=str(entry.get("reward_frame")),
        source=source[:100] if isinstance(source, str) else "dataset",
        start=number(entry.get("start")),
        final_success=number(entry.get("final_success")),
        final_state=state if sound else None,
        images={camera: value for camera, value in images.items() if isinstance(value, bytes)},
    )
