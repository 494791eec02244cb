"""LeRobot data sets as they are found: files in other places, clocks that drift, names and sizes of one's own."""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lerobot_v21 import CAMERA, FPS, SIZE, moving_square, write_v21

from command import plaudit
from conftest import counting_episode, labeled_store
from plaudit.data import transfer
from plaudit.data.formats import ReadOptions
from plaudit.data.formats.video import VideoWriter
from plaudit.data.lerobot_labels import labels_of_file, write_labeled_copy
from plaudit.data.store import Store
from plaudit.data.transfer import export_dataset, import_dataset
from plaudit.errors import DataError


def change_info(folder: Path, change) -> None:
    path = folder / "meta/info.json"
    info = json.loads(path.read_text())
    change(info)
    path.write_text(json.dumps(info))


def expected_frames(tmp_path: Path) -> list[np.ndarray]:
    import_dataset(write_v21(tmp_path / "plain"), tmp_path / "plain-store")
    return [episode.frames["cam_high"] for _, episode in Store.open(tmp_path / "plain-store")]


def renamed_folder(folder: Path) -> None:
    (folder / "videos").rename(folder / "videos_h264")


def without_chunks(folder: Path) -> None:
    (folder / "videos/chunk-000" / CAMERA).rename(folder / "videos/cam_high")
    (folder / "videos/chunk-000").rmdir()


def matroska(folder: Path) -> None:
    for i, length in enumerate((12, 9, 15)):
        path = folder / f"videos/chunk-000/{CAMERA}/episode_{i:06d}.mp4"
        video = VideoWriter(path.with_suffix(".mkv"), FPS, *SIZE, "h264", None)
        video.append(moving_square(length, i))
        video.close()
        path.unlink()


def tables_elsewhere(folder: Path) -> None:
    (folder / "data").rename(folder / "parquet")


@pytest.mark.parametrize("move", [renamed_folder, without_chunks, matroska, tables_elsewhere])
def test_files_that_are_not_where_info_says_are_found_by_their_names_and_it_is_told(tmp_path, move):
    expected = expected_frames(tmp_path)
    folder = write_v21(tmp_path / "in")
    move(folder)
    report = import_dataset(folder, tmp_path / "s")
    assert report.failed == [] and len(report.notes) == 1
    assert "which is not there" in report.notes[0] and "is read in its place" in report.notes[0]
    found = [episode.frames["cam_high"] for _, episode in Store.open(tmp_path / "s")]
    assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


def test_a_codec_that_the_videos_do_not_have_does_not_matter(tmp_path):
    folder = write_v21(tmp_path / "in")
    change_info(folder, lambda info: info["features"][CAMERA].update(info={"video.codec": "av1"}))
    assert import_dataset(folder, tmp_path / "s").failed == []


@pytest.mark.parametrize("block", ["info", "video_info"])
def test_a_copy_names_the_codec_that_the_videos_have(tmp_path, block):
    folder = write_v21(tmp_path / "in")
    change_info(folder, lambda info: info["features"][CAMERA].update({block: {"video.codec": "av1", "video.fps": 10}}))
    (folder / f"videos/chunk-000/{CAMERA}/episode_000000.mp4").write_bytes(b"damaged")
    report = write_labeled_copy(folder, tmp_path / "out", labels_of_file(folder, {0: 3}))
    feature = json.loads((tmp_path / "out/meta/info.json").read_text())["features"][CAMERA]
    assert feature[block] == {"video.codec": "h264", "video.fps": 10}
    assert report.notes == [f"meta/info.json says that videos of {CAMERA} are 'av1'; they are h264, as the copy says"]


def test_a_missing_video_is_not_taken_from_a_backup(tmp_path):
    folder = write_v21(tmp_path / "in")
    lost = folder / f"videos/chunk-000/{CAMERA}/episode_000001.mp4"
    (folder / "backup").mkdir()
    lost.rename(folder / "backup/episode_000001.mp4")
    report = import_dataset(folder, tmp_path / "s")
    assert len(report.ids) == 2
    assert len(report.failed) == 1 and "episode 1 was left out" in report.failed[0]
    assert "episode_000001.mp4: this video is missing" in report.failed[0]


def test_two_places_for_the_same_videos_are_no_answer(tmp_path):
    folder = write_v21(tmp_path / "in")
    shutil.copytree(folder / "videos", folder / "one")
    (folder / "videos").rename(folder / "two")
    with pytest.raises(DataError, match="no episode has a video of camera 'cam_high'"):
        import_dataset(folder, tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_the_videos_of_one_camera_are_never_taken_for_another(tmp_path):
    folder = write_v21(tmp_path / "in")
    change_info(folder, lambda info: info["features"].update({f"{CAMERA}_2": info["features"][CAMERA]}))
    with pytest.raises(DataError, match=r"no episode has a video of camera 'cam_high_2'; .* --camera cam_high"):
        import_dataset(folder, tmp_path / "s")


def test_a_copy_with_labels_finds_the_tables_too(tmp_path):
    folder = write_v21(tmp_path / "in")
    tables_elsewhere(folder)
    write_labeled_copy(folder, tmp_path / "out", labels_of_file(folder, {0: 3}), reward_frame="same")
    table = pq.read_table(tmp_path / "out/parquet/chunk-000/episode_000000.parquet")
    assert table["next.reward"].to_pylist() == [0.0] * 3 + [1.0] * 9


def test_frames_of_a_shared_video_are_taken_by_number_within_the_part_of_their_episode(tmp_path):
    """Timestamps follow the wall clock, and the file has frames of a recording that was taken out of the list."""
    episodes = [counting_episode(12, first=60 * i, size=(16, 16), padded="last") for i in range(3)]
    export_dataset(labeled_store(tmp_path / "made", *episodes), tmp_path / "in", "lerobot")
    for path in (tmp_path / "in/meta/episodes/chunk-000/file-000.parquet", tmp_path / "in/meta/plaudit.parquet"):
        table = pq.read_table(path)
        pq.write_table(table.filter(pa.array([True, False, True])), path)
    path = tmp_path / "in/data/chunk-000/file-000.parquet"
    table = pq.read_table(path)
    drifting = pa.array(1.3 * np.tile(np.arange(12) / 10, 3), pa.float32())
    pq.write_table(table.set_column(table.schema.get_field_index("timestamp"), "timestamp", drifting), path)
    report = import_dataset(tmp_path / "in", tmp_path / "s")
    assert report.failed == []
    assert len([note for note in report.notes if "by number" in note]) == 1
    for (_, found), first in zip(Store.open(tmp_path / "s"), (0, 120), strict=True):
        shown = found.frames["front"][:-1].mean(axis=(1, 2, 3))
        assert np.abs(shown - (first + np.arange(12))).max() < 3


def test_cameras_get_other_names_and_frames_another_size(tmp_path):
    expected = expected_frames(tmp_path)
    write_v21(tmp_path / "in")
    told = plaudit(*("data", "import", "in", "s", "--camera", "cam_high=front", "--resize", "24x32"), cwd=tmp_path)
    assert "the frames of 3 episodes take 0.1 MB in s if stored raw" in told
    assert "next: Label them, or import labels from a file (plaudit data label): plaudit label s --judge human" in told
    for (_, episode), frames in zip(Store.open(tmp_path / "s"), expected, strict=True):
        assert list(episode.frames) == ["front"] and episode.frames["front"].shape[1:] == (24, 32, 3)
        halved = frames.reshape(len(frames), 24, 2, 32, 2, 3).mean(axis=(2, 4))
        assert np.abs(episode.frames["front"] - halved).mean() < 4


def test_a_camera_of_a_pickled_or_plain_trajectory_is_renamed_too(tmp_path):
    export_dataset(labeled_store(tmp_path / "made", counting_episode(4), cutoff=2), tmp_path / "in", "npy")
    import_dataset(tmp_path / "in", tmp_path / "s", ReadOptions(cameras=["front"], rename={"front": "main"}))
    assert list(Store.open(tmp_path / "s").episode(0).frames) == ["main"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--resize", "24"], "--resize takes height and width, like 240x320, not '24'"),
        (["--resize", "0x32"], "--resize takes height and width"),
        (["--resize", "99999x2"], "frames of 99999x2 are not possible"),
        (["--camera", "cam_high="], "--camera takes NAME or OLD=NEW, each camera once, not 'cam_high='"),
        (["--camera", "cam_high", "--camera", "cam_high"], "each camera once"),
        (["--camera", CAMERA, "--camera", "cam_high=front"], "each camera once, not 'cam_high=front'"),
        (["--camera", "cam_high=../x"], "'../x' is not a camera name; use letters, digits"),
        (["--camera", "top=front"], "camera 'top' is not in in; it has: cam_high"),
        (["--resize", "16000x16000", "--max-episode-gb", "1"], "would take 9.3 GB in memory"),
    ],
)
def test_a_mistaken_name_or_size_is_a_sentence_and_makes_no_store(tmp_path, words, sentence):
    write_v21(tmp_path / "in")
    told = plaudit("data", "import", "in", "s", *words, cwd=tmp_path, ok=False)
    assert sentence in " ".join(told.split())
    assert not (tmp_path / "s").exists()


def test_a_store_within_the_data_set_is_refused(tmp_path):
    write_v21(tmp_path / "in")
    told = plaudit("data", "import", "in", "in/s", cwd=tmp_path, ok=False)
    assert "in/s is inside in, which an import must not change; name a store elsewhere" in told
    assert not (tmp_path / "in/s").exists()


def test_episodes_that_are_there_keep_their_size(tmp_path):
    import_dataset(write_v21(tmp_path / "in"), tmp_path / "s")
    told = plaudit("data", "import", "in", "s", "--resize", "24x32", cwd=tmp_path)
    assert "--camera and --resize do not change episodes that were already imported" in " ".join(told.split())


def test_two_cameras_cannot_have_one_name(tmp_path):
    folder = write_v21(tmp_path / "in")
    change_info(folder, lambda info: info["features"].update({f"{CAMERA}_2": info["features"][CAMERA]}))
    options = ReadOptions(cameras=["cam_high", "cam_high_2"], rename={"cam_high_2": "cam_high"})
    with pytest.raises(DataError, match="two cameras would be called 'cam_high'"):
        import_dataset(folder, tmp_path / "s", options)


def test_a_data_set_tells_what_it_takes_as_a_store(tmp_path):
    write_v21(tmp_path / "in")
    assert ["as", "a", "store", "0.4", "MB"] in [
        line.split() for line in plaudit("data", "info", "in", cwd=tmp_path).splitlines()
    ]


def test_a_store_that_the_disk_has_no_room_for_is_not_begun(tmp_path, monkeypatch):
    write_v21(tmp_path / "in")
    monkeypatch.setattr(transfer.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**6, 10**6, 1000))
    with pytest.raises(DataError, match=r"3 episodes take 0\.4 MB .* and 0\.0 MB are free there; nothing was written"):
        import_dataset(tmp_path / "in", tmp_path / "s")
    assert not (tmp_path / "s").exists()
