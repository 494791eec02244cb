"""Columns of newer LeRobot data sets: language, and depth that is stored as a color video."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
from lerobot_v21 import CAMERA, write_v21

from plaudit.data.store import Store
from plaudit.data.transfer import import_dataset

ATOM = {"role": "assistant", "content": "reach", "style": "subtask", "timestamp": 0.0, "camera": None}


def add(folder, name, values, **feature):
    """Add a column to every table, and its feature."""
    path = folder / "meta/info.json"
    info = json.loads(path.read_text())
    info["features"][name] = {"shape": [1], "names": None, **feature}
    path.write_text(json.dumps(info))
    if values is not None:
        for table in (folder / "data").rglob("*.parquet"):
            rows = pq.read_table(table)
            pq.write_table(rows.append_column(name, pa.array([values] * rows.num_rows)), table)


def test_language_columns_are_listed_and_the_rest_is_imported(tmp_path):
    folder = write_v21(tmp_path / "in", lengths=(6,))
    add(folder, "language_persistent", [ATOM, ATOM], dtype="language")
    add(folder, "language_events", [ATOM], dtype="language")
    report = import_dataset(folder, tmp_path / "s")
    episode = Store.open(tmp_path / "s").episode(0)
    assert episode.task == "push" and episode.state[:6, 1].tolist() == list(range(6))
    assert {"language_persistent", "language_events"} <= set(report.ignored) and not report.failed


def test_an_instruction_in_the_rows_is_the_task_of_an_episode_without_one(tmp_path):
    folder = write_v21(tmp_path / "in", lengths=(6,))
    add(folder, "language_instruction", "open the drawer", dtype="string")
    (folder / "meta/tasks.jsonl").write_text(json.dumps({"task_index": 0, "task": ""}) + "\n")
    (folder / "meta/episodes.jsonl").write_text(json.dumps({"episode_index": 0, "tasks": [], "length": 6}) + "\n")
    import_dataset(folder, tmp_path / "s")
    assert Store.open(tmp_path / "s").episode(0).task == "open the drawer"


def test_depth_in_a_color_video_is_left_out_with_a_note(tmp_path):
    folder = write_v21(tmp_path / "in", lengths=(6,))
    add(folder, "observation.images.depth", None, dtype="video", shape=[48, 64, 3], info={"video.is_depth_map": True})
    report = import_dataset(folder, tmp_path / "s")
    assert list(Store.open(tmp_path / "s").episode(0).frames) == [CAMERA.removeprefix("observation.images.")]
    assert "camera 'depth' holds depth; it is not imported" in report.notes[0]
