"""RoboRewardBench's folders: a list of scored videos, every value, or one sentence about what is wrong."""

import json

import numpy as np
import pytest

from plaudit.data.formats import ReadOptions, layout_of, open_dataset
from plaudit.data.formats.video import VideoWriter
from plaudit.data.store import Store
from plaudit.data.transfer import import_dataset
from plaudit.errors import BadFile, UnknownFormat

ITEMS = [
    {"file_name": "bridge/1.mp4", "task": "close the drawer", "reward": 5},
    {"file_name": "roboarena/2.mp4", "task": "open the drawer", "reward": 2},
]


def video(path, frames=6, fps=10):
    """Gray frames that get brighter by 20 each."""
    images = np.repeat(np.arange(frames, dtype=np.uint8) * 20 + 60, 32 * 48 * 3).reshape(frames, 32, 48, 3)
    writer = VideoWriter(path, fps, 32, 48, "h264", 5)
    writer.append(images)
    writer.close()


@pytest.fixture
def bench(tmp_path):
    folder = tmp_path / "test"
    for item in ITEMS:
        video(folder / item["file_name"])
    write(folder, *map(json.dumps, ITEMS))
    return folder


def write(folder, *lines):
    (folder / "metadata.jsonl").write_text("\n".join(lines) + "\n")


def test_every_video_is_an_episode_whose_end_has_the_label(bench):
    dataset = open_dataset(bench, ReadOptions())
    assert dataset.format == "roboreward"
    for source, item, success in zip(dataset.sources, ITEMS, (1, 0), strict=True):
        episode, labels = source.load()
        assert (episode.task, episode.fps, episode.terminated) == (item["task"], 10, True)
        assert episode.meta["score"] == item["reward"]
        assert episode.meta["subset"] == item["file_name"].split("/")[0]
        frames = episode.frames["video"]
        assert frames.shape == (6, 32, 48, 3)
        assert np.allclose(frames.mean(axis=(1, 2, 3)), np.arange(6) * 20 + 60, atol=3)
        assert np.array_equal(labels.targets, [*[np.nan] * 5, success], equal_nan=True)


def test_an_import_keeps_scores_tasks_and_labels(bench, tmp_path):
    import_dataset(bench, tmp_path / "store")
    store = Store.open(tmp_path / "store")
    assert [episode.meta["score"] for _, episode in store] == [5, 2]
    assert [store.ledger.labels(i).targets[-1] for i in store.ids] == [1, 0]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"file_name": "../1.mp4", "task": "t", "reward": 1}, "lies outside of this folder"),
        ({"file_name": "/etc/passwd", "task": "t", "reward": 1}, "lies outside of this folder"),
        ({"file_name": "bridge/9.mp4", "task": "t", "reward": 1}, "this video is missing"),
        ({"file_name": "bridge/1.mp4", "task": "t", "reward": 6}, "'reward' is 6, and must be a whole number"),
        ({"file_name": "bridge/1.mp4", "task": "t", "reward": True}, "'reward' is True"),
        ({"file_name": "bridge/1.mp4", "task": " ", "reward": 1}, "must be the instruction in words"),
        (["bridge/1.mp4"], "this is a list of 1"),
    ],
)
def test_a_bad_item_is_named_and_the_others_are_read(bench, line, message):
    write(bench, json.dumps(ITEMS[0]), json.dumps(line))
    good, bad = open_dataset(bench, ReadOptions()).sources
    assert good.load()[0].meta["score"] == 5
    with pytest.raises(BadFile, match=message):
        bad.load()


def test_a_line_that_is_no_json_is_named(bench):
    write(bench, json.dumps(ITEMS[0]), "{nonsense")
    with pytest.raises(BadFile, match="line 2"):
        open_dataset(bench, ReadOptions())


def test_a_file_that_is_no_video_is_one_clear_error(bench):
    (bench / "bridge" / "1.mp4").write_bytes(b"GIF89a" + b"\0" * 100)
    bad, good = open_dataset(bench, ReadOptions()).sources
    with pytest.raises(BadFile, match="neither MP4 nor Matroska"):
        bad.load()
    assert good.load()[0].meta["score"] == 2


def test_a_list_without_scores_is_another_format(tmp_path):
    write(tmp_path, json.dumps({"file_name": "a.mp4", "text": "a caption"}))
    with pytest.raises(UnknownFormat):
        layout_of(tmp_path)
