"""RoboReward and RoboRewardBench: `metadata.jsonl` with a task and a score from 1 to 5 for each video next to it.

A score is about the end of a video. The last frame is labeled, as a success if the score is 5, and no other frame. The
score itself is in `meta["score"]`, and the data set that the video comes from in `meta["subset"]`.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from plaudit.data.formats.base import UNREADABLE, ReadOptions
from plaudit.data.formats.columns import Column, ColumnLayout, Content, Recording
from plaudit.errors import BadFile
from plaudit.files import MAX_LINES_BYTES, Root, brief, parse_json, readable

METADATA = "metadata.jsonl"
SCORES = range(1, 6)
_HEAD = 1 << 16  # bytes of the file in which the first item is looked for
_VIDEO, _SUCCESS = "video", "success"


def find(path: Path) -> list[Path]:
    """The list of videos in a folder whose items have a score."""
    file = path / METADATA
    if not path.is_dir() or not file.is_file():
        return []
    with Root(path).open(file) as opened:
        first = opened.read(_HEAD).split(b"\n", 1)[0]
    return [file] if b'"file_name"' in first and b'"reward"' in first else []


def recordings(root: Root, files: Sequence[Path], options: ReadOptions) -> list[Recording]:
    """One for each line; no video is opened."""
    (file,) = files
    listed = []
    for number, line in enumerate(root.read(file, MAX_LINES_BYTES).splitlines(), start=1):
        if line.strip():
            where = f"{file}, line {number}"
            with readable(Path(where), UNREADABLE):
                item = parse_json(line)
            listed.append(Recording(where, partial(_content, root, where, item)))
    return listed


def _content(root: Root, where: str, item: Any) -> Content:
    from plaudit.data.formats.video import coded_frames, frame_size, read_frames

    if not isinstance(item, dict):
        raise BadFile(where, f"this is {brief(item)} and not an object with file_name, task and reward")
    score, task = item.get("reward"), item.get("task")
    if type(score) is not int or score not in SCORES:
        raise BadFile(where, f"'reward' is {brief(score)}, and must be a whole number from 1 to 5")
    if not isinstance(task, str) or not task.strip():
        raise BadFile(where, f"'task' is {brief(task)}, and must be the instruction in words")
    path = root.inside(item.get("file_name"))
    times, stored = coded_frames(root, path)
    if len(times) < 2:
        raise BadFile(path, f"this video has {len(times)} frames, and an episode at least 2")
    rows, (height, width) = len(times), frame_size(root, path)
    seconds = float(times[-1] - times[0])
    success = np.full((rows, 1), np.nan, np.float32)
    success[-1] = score == SCORES[-1]

    def read(name: str, start: int, stop: int) -> Any:
        if name == _SUCCESS:
            return success[start:stop]
        return read_frames(root, path, times[start:stop], seconds / rows / 2, height, width)

    columns = {
        _VIDEO: Column(rows, (height, width, 3), "uint8", stored),
        _SUCCESS: Column(rows, (1,), "float32", success.nbytes),
    }
    meta = {"score": score, "subset": str(item["file_name"]).split("/")[0]}
    fps = (rows - 1) / seconds if seconds > 0 else 0.0
    return Content(columns, read, task=task, fps=round(fps, 3), terminated=True, meta=meta, labeled=True)


LAYOUT = ColumnLayout("roboreward", "av", "", find, recordings)
