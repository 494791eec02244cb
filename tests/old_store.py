"""A store as version 1 wrote it: lines without numbers, descriptions without checksums."""

import base64
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from plaudit.data.schema import Schema
from plaudit.types import Episode, Labels


def write_old_store(
    folder: Path, episodes: list[Episode], labels: Labels, *, rewards: list[float] | None = None, **capacity: int
) -> Path:
    """All of one shape, each with the same labels.

    rewards: of each step; 1 for success when not given
    """
    segment = folder / "segments/000000"
    segment.mkdir(parents=True)
    limits = {"capacity_episodes": None, "capacity_bytes": None, **capacity}
    (folder / "store.json").write_text(json.dumps({"format": "plaudit store", "version": 1, **limits}, indent=1))
    schema = Schema.of(episodes[0])
    (segment / "schema.json").write_text(json.dumps(schema.to_json(), indent=1))
    row = 0
    with (segment / "steps.bin").open("ab") as steps_file, (segment / "camera.front.bin").open("ab") as frames_file:
        for number, episode in enumerate(episodes):
            steps = np.zeros(episode.steps + 1, schema.step_dtype)
            steps["state"], steps["action"][:-1] = episode.state, episode.actions
            frames = np.ascontiguousarray(episode.frames["front"])
            columns = {"steps": steps.tobytes(), "camera.front": frames.tobytes()}
            steps_file.write(columns["steps"])
            frames_file.write(columns["camera.front"])
            checksums = {name: zlib.crc32(data) for name, data in columns.items()}
            _add(folder / "journal", _episode_line(number, row, episode, checksums))
            _add(folder / "labels", _label_line(number, labels, rewards))
            row += episode.steps + 1
    return folder


def _episode_line(number: int, row: int, episode: Episode, checksums: dict[str, int]) -> dict[str, Any]:
    place = {"op": "episode", "id": number, "segment": 0, "row": row, "steps": episode.steps, "crc": checksums}
    facts = {"task": episode.task, "fps": episode.fps, "robot": episode.robot, "terminated": episode.terminated}
    return {**place, "time": 1.0, **facts, "repeated": episode.padded, "origin": None, "meta": dict(episode.meta)}


def _label_line(number: int, labels: Labels, rewards: list[float] | None) -> dict[str, Any]:
    reward = labels.targets[1:] if rewards is None else np.array(rewards)
    data = reward.astype("<f4").tobytes() + labels.success[1:].astype("u1").tobytes()
    return {
        "episode": number,
        "source": labels.judge.source,
        "model": "",
        "threshold": None,
        "time": 2.0,
        "start": None,
        "note": "",
        "restored": None,
        "steps": labels.steps,
        "probability": False,
        "data": base64.b64encode(zlib.compress(data)).decode(),
    }


def _add(path: Path, record: dict[str, Any]) -> None:
    text = json.dumps(record, separators=(",", ":")).encode()
    with path.open("ab") as file:
        file.write(b"%08x %s\n" % (zlib.crc32(text), text))
