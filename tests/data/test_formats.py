"""Each layout both ways: what comes out equals what went in, and what is broken is named."""

import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lerobot_v21 import CAMERA, SIZE, moving_square, write_v21

from conftest import counting_episode, labeled_store, same_episode
from plaudit.data.cutoffs import label_store
from plaudit.data.formats import ReadOptions, WriteOptions, open_dataset
from plaudit.data.formats.lerobot.features import PLAUDIT_META
from plaudit.data.formats.video import VideoWriter
from plaudit.data.store import Store
from plaudit.data.transfer import export_dataset, import_dataset
from plaudit.errors import BadFile, DataError, TargetNotEmpty, UnknownFormat
from plaudit.types import Episode, Labels


def snapshot(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(p.relative_to(folder)): (p.read_bytes(), p.stat().st_mtime_ns) for p in folder.rglob("*") if p.is_file()
    }


def random_episode(seed: int, steps: int = 7, size: tuple[int, int] = (16, 24), **facts) -> Episode:
    rng = np.random.default_rng(seed)
    return Episode.of(
        frames={c: rng.integers(0, 256, (steps + 1, *size, 3), dtype=np.uint8) for c in ("front", "wrist")},
        state=rng.normal(size=(steps + 1, 3)),
        actions=rng.normal(size=(steps, 2)),
        **{"fps": 20.0, "task": f"task {seed % 2}", "robot": "panda", **facts},
    )


def round_trip(tmp_path: Path, store: Store, to, options: WriteOptions | None = None, **read) -> Store:
    export_dataset(store, tmp_path / "out", to, options)
    import_dataset(tmp_path / "out", tmp_path / "back", ReadOptions(**read))
    return Store.open(tmp_path / "back")


# --- .npy trajectories ---


def write_npy(path: Path, images: np.ndarray, labels: list[float], camera: str = "base_camera") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    tree = np.array({"images": {camera: images}, "labels": np.array(labels, "f4")}, dtype=object)
    np.save(path, tree, allow_pickle=True)


def test_npy_trajectories_become_episodes_with_a_label_on_each_frame(tmp_path):
    images = np.random.default_rng(0).random((4, 3, 8, 12), dtype=np.float32)
    write_npy(tmp_path / "in/positive/000000.npy", images, [0, 0, 1, 1])
    write_npy(tmp_path / "in/negative/000000.npy", images[:3], [0, 0, 0])
    report = import_dataset(tmp_path / "in", tmp_path / "s")
    store = Store.open(tmp_path / "s")
    assert (report.ids, report.labeled) == ([0, 1], 2)
    assert np.array_equal(store.episode(0).frames["base_camera"], np.rint(images * 255).transpose(0, 2, 3, 1))
    assert store.ledger.labels(0).targets.tolist() == [0, 0, 1, 1]
    assert store.episode(1).meta["folder"] == "negative"


def test_npy_comes_back_with_the_same_frames_and_labels_in_the_same_folders(tmp_path):
    store = labeled_store(tmp_path / "a", random_episode(0), random_episode(1), cutoff=3)
    store.ledger.append(1, Labels.from_cutoff(steps=7, cutoff=None, source="human"))
    back = round_trip(tmp_path, store, "npy")
    assert sorted(p.relative_to(tmp_path / "out").as_posix() for p in (tmp_path / "out").rglob("*.npy")) == [
        "negative/000000.npy",
        "positive/000000.npy",
    ]
    for i in (0, 1):
        assert all(np.array_equal(back.episode(i).frames[c], store.episode(i).frames[c]) for c in ("front", "wrist"))
        assert np.array_equal(back.ledger.labels(i).targets, store.ledger.labels(i).targets)
    tree = np.load(tmp_path / "out/positive/000000.npy", allow_pickle=True).item()
    assert tree["images"]["front"].dtype == np.float32 and tree["images"]["front"].shape == (8, 3, 16, 24)
    assert tree["labels"].dtype == np.float32 and tree["images"]["front"].max() <= 1


@pytest.mark.parametrize(
    ("tree", "sentence"),
    [
        ("text", "a dictionary of 'images' and 'labels'"),
        ({"images": {}, "labels": np.zeros(3)}, "no camera"),
        ({"images": {"c": np.zeros((3, 3, 8, 8))}, "labels": np.zeros(4)}, "camera 'c' has 3 frames for 4 labels"),
        (
            {"images": {"c": np.full((3, 3, 8, 8), 200.0)}, "labels": np.zeros(3)},
            r"floats from 200 to 200; .* \[0, 1\]",
        ),
        ({"images": {"c": np.zeros((3, 4, 8, 8))}, "labels": np.zeros(3)}, r"must be \[T, 3, H, W\]"),
        ({"images": {"c": np.full((3, 3, 8, 8), np.nan)}, "labels": np.zeros(3)}, "floats from nan"),
        ({"images": {"c": np.zeros((3, 3, 8, 8))}, "labels": np.full(3, 7)}, r"labels must lie within \[0, 1\]"),
        ({"images": {"c": np.zeros((1, 3, 8, 8))}, "labels": np.zeros(1)}, "at least one action"),
    ],
)
def test_a_broken_trajectory_is_named_and_the_others_come_in(tmp_path, tree, sentence):
    write_npy(tmp_path / "in/positive/000000.npy", np.zeros((3, 3, 8, 8), "f4"), [0, 0, 1])
    np.save(tmp_path / "in/positive/000001.npy", np.array(tree, dtype=object), allow_pickle=True)
    report = import_dataset(tmp_path / "in", tmp_path / "s")
    assert report.ids == [0]
    assert len(report.failed) == 1
    with pytest.raises(AssertionError, match=sentence):
        raise AssertionError(report.failed[0])
    assert "000001.npy" in report.failed[0]


# --- .pkl episodes ---


def pkl_episode(steps: int = 5, seed: int = 0) -> dict:
    rng = np.random.default_rng(seed)
    frames = [
        {
            "obs": {
                "main_images": rng.integers(0, 256, (8, 12, 3), dtype=np.uint8),
                "states": rng.normal(size=4).astype("f4"),
            },
            "action": rng.normal(size=3).astype("f4"),
            "reward": float(t) / 10,
            "done": t == steps - 1,
            "grasp": t > 1,
            "success": t >= 3,
        }
        for t in range(steps)
    ]
    return {"frames": frames, "success": True, "label": 1}


def write_pkl(path: Path, tree: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(tree))
    return path


def test_a_pkl_frame_is_what_its_action_led_to(tmp_path):
    tree = pkl_episode()
    write_pkl(tmp_path / "in/success/episode_000000.pkl", tree)
    import_dataset(tmp_path / "in", tmp_path / "s")
    store = Store.open(tmp_path / "s")
    episode, labels = store.episode(0), store.ledger.labels(0)
    assert episode.padded == "first"
    for t, frame in enumerate(tree["frames"]):
        assert np.array_equal(episode.frames["main"][t + 1], frame["obs"]["main_images"])
        assert np.array_equal(episode.state[t + 1], frame["obs"]["states"])
        assert np.array_equal(episode.actions[t], frame["action"])
        assert labels.success[t + 1] == frame["success"]
        assert episode.privileged["reward"][t] == np.float32(frame["reward"])
        assert episode.privileged["grasp"][t] == frame["grasp"]


def test_pkl_comes_back_equal(tmp_path):
    originals = {"success/episode_000000.pkl": pkl_episode(5, 0), "failure/episode_000001.pkl": pkl_episode(3, 1)}
    for name, tree in originals.items():
        write_pkl(tmp_path / "in" / name, tree)
    import_dataset(tmp_path / "in", tmp_path / "s")
    export_dataset(Store.open(tmp_path / "s"), tmp_path / "out", "pkl")
    for name, tree in originals.items():
        found = pickle.loads((tmp_path / "out" / name).read_bytes())
        assert len(found["frames"]) == len(tree["frames"])
        for one, other in zip(found["frames"], tree["frames"], strict=True):
            assert np.array_equal(one["obs"]["main_images"], other["obs"]["main_images"])
            assert np.array_equal(one["obs"]["states"], other["obs"]["states"])
            assert np.array_equal(one["action"], other["action"])
            assert [one[k] for k in ("done", "grasp", "success")] == [other[k] for k in ("done", "grasp", "success")]
            assert one["reward"] == pytest.approx(other["reward"])


def test_batches_of_one_and_channels_first_are_understood(tmp_path):
    tree = pkl_episode()
    for frame in tree["frames"]:
        frame["obs"]["main_images"] = frame["obs"]["main_images"].transpose(2, 0, 1)[None]
        frame["obs"]["states"], frame["action"] = frame["obs"]["states"][None], frame["action"][None]
    write_pkl(tmp_path / "in/success/episode_000000.pkl", tree)
    import_dataset(tmp_path / "in", tmp_path / "s")
    expected = pkl_episode()["frames"][2]["obs"]["main_images"]
    assert np.array_equal(Store.open(tmp_path / "s").episode(0).frames["main"][3], expected)


def broken(change) -> dict:
    tree = pkl_episode()
    change(tree)
    return tree


@pytest.mark.parametrize(
    ("tree", "sentence"),
    [
        ({"frames": []}, "not an episode of frames"),
        ([1], "not an episode of frames"),
        (broken(lambda t: t["frames"][2].pop("action")), "it lacks 'action'"),
        (broken(lambda t: t["frames"][2]["action"].fill(np.nan)), "actions hold NaN or infinity at step 2"),
        (broken(lambda t: t["frames"][2]["obs"].update(main_images=np.zeros((9, 12, 3), "u1"))), "not an episode"),
        (
            broken(lambda t: t["frames"][0]["obs"].pop("main_images")),
            "no camera in its observations; they have: states",
        ),
    ],
)
def test_a_broken_pkl_is_named_and_the_others_come_in(tmp_path, tree, sentence):
    write_pkl(tmp_path / "in/success/episode_000000.pkl", pkl_episode())
    write_pkl(tmp_path / "in/success/episode_000001.pkl", tree)
    report = import_dataset(tmp_path / "in", tmp_path / "s")
    assert report.ids == [0]
    assert "episode_000001.pkl" in report.failed[0] and sentence in report.failed[0]


# --- LeRobot ---


def test_a_v21_data_set_is_read_as_it_was_written(tmp_path):
    write_v21(tmp_path / "in", rewards=True)
    before = snapshot(tmp_path / "in")
    report = import_dataset(tmp_path / "in", tmp_path / "s")
    assert snapshot(tmp_path / "in") == before  # importing never changes its source
    store = Store.open(tmp_path / "s")
    assert (len(report.ids), report.labeled) == (3, 3)
    episode = store.episode(1)
    assert (episode.steps, episode.padded, episode.task, episode.fps, episode.robot) == (
        9,
        "last",
        "pull",
        10,
        "tester",
    )
    assert episode.state[:, 0].tolist() == [*(100.0 + t for t in range(9)), 108.0]
    assert episode.actions[:, 0].tolist() == [-t for t in range(9)]
    assert np.abs(episode.frames["cam_high"][:-1].astype(int) - moving_square(9, 1)).mean() < 4
    assert np.array_equal(episode.frames["cam_high"][-1], episode.frames["cam_high"][-2])
    assert store.ledger.labels(1).targets[1:].tolist() == [0] * 6 + [1] * 3
    assert episode.terminated  # next.done in success
    assert episode.meta["state_names"] == ["joint_a", "joint_b"]


@pytest.mark.parametrize("video", [True, False])
@pytest.mark.parametrize("padded", ["none", "first", "last"])
def test_v3_comes_back_with_everything_but_the_codecs_loss(tmp_path, video, padded):
    facts = {"padded": padded, "control_mode": [0, 1, 1, 0, 0, 0, 0]}
    facts["privileged"] = {
        "success": np.arange(7) > 4,
        "force": np.random.default_rng(0).normal(size=(7, 3)).astype("f4"),
    }
    episodes = [random_episode(seed, terminated=seed == 1, **facts) for seed in range(3)]
    if padded == "last":
        for episode in episodes:
            for array in (*episode.frames.values(), episode.state):
                array[-1] = array[-2]
    store = labeled_store(tmp_path / "a", *episodes, cutoff=5)
    back = round_trip(tmp_path, store, "lerobot", WriteOptions(video=video))
    for i, episode in enumerate(episodes):
        found = back.episode(i)
        if video:  # noise is the worst a codec can meet; its error is looked at on real images elsewhere
            found = Episode(**{**vars(found), "frames": episode.frames})
        assert same_episode(found, episode)
        assert np.array_equal(back.ledger.labels(i).targets, store.ledger.labels(i).targets, equal_nan=True)


def test_v3_metadata_adds_up(tmp_path):
    store = labeled_store(tmp_path / "a", random_episode(0, steps=5), random_episode(1, steps=9), cutoff=3)
    export_dataset(store, tmp_path / "out", "lerobot")
    info = json.loads((tmp_path / "out/meta/info.json").read_text())
    assert (info["codebase_version"], info["total_episodes"], info["total_frames"], info["total_tasks"]) == (
        "v3.0",
        2,
        14,
        2,
    )
    data = pq.read_table(tmp_path / "out/data/chunk-000/file-000.parquet")
    assert data["index"].to_pylist() == list(range(14))
    assert data["episode_index"].to_pylist() == [0] * 5 + [1] * 9
    assert data["next.done"].to_pylist() == [False] * 4 + [True] + [False] * 8 + [True]
    rows = pq.read_table(tmp_path / "out/meta/episodes/chunk-000/file-000.parquet").to_pylist()
    assert [(r["dataset_from_index"], r["dataset_to_index"], r["length"]) for r in rows] == [(0, 5, 5), (5, 14, 9)]
    assert rows[1]["videos/observation.images.front/from_timestamp"] == pytest.approx(5 / 20)
    tasks = pq.read_table(tmp_path / "out/meta/tasks.parquet").to_pylist()
    assert [row["__index_level_0__"] for row in tasks] == ["task 0", "task 1"]
    stats = json.loads((tmp_path / "out/meta/stats.json").read_text())
    states = np.concatenate([store.episode(i).state[:-1] for i in (0, 1)])
    assert stats["observation.state"]["mean"] == pytest.approx(states.mean(axis=0), rel=1e-5)
    assert stats["observation.state"]["q90"] == pytest.approx(np.quantile(states, 0.9, axis=0), rel=1e-5)
    pixels = np.concatenate([store.episode(i).frames["front"][:-1] for i in (0, 1)]) / 255
    assert np.squeeze(stats["observation.images.front"]["mean"]) == pytest.approx(pixels.mean(axis=(0, 1, 2)))
    assert np.squeeze(stats["observation.images.front"]["std"]) == pytest.approx(pixels.std(axis=(0, 1, 2)))
    assert np.squeeze(stats["observation.images.front"]["q50"]) == pytest.approx(
        np.median(pixels, axis=(0, 1, 2)), abs=0.004
    )


def test_files_roll_over_when_they_grow_large(tmp_path, monkeypatch):
    monkeypatch.setattr("plaudit.data.formats.lerobot.writer.DATA_MB", 0)
    monkeypatch.setattr("plaudit.data.formats.lerobot.writer.VIDEO_MB", 0)
    store = labeled_store(
        tmp_path / "a", *(counting_episode(90, first=9 * i, size=(32, 32)) for i in range(3)), cutoff=3
    )
    back = round_trip(tmp_path, store, "lerobot")
    assert (
        len(list((tmp_path / "out/data").rglob("*.parquet")))
        == len(list((tmp_path / "out/videos").rglob("*.mp4")))
        == 3
    )
    for i in range(3):
        assert np.array_equal(back.episode(i).state, store.episode(i).state)
        assert np.abs(back.episode(i).frames["front"][0].astype(int) - 9 * i).mean() < 3


def test_labels_of_the_rows_own_frame_give_the_counts_of_the_published_example(tmp_path):
    """Ten episodes of 100 frames with these cutoffs have 584 success frames and 416 failure frames."""
    cutoffs = {0: 53, 1: 36, 2: 43, 3: 40, 4: 40, 5: 44, 6: 44, 7: 39, 8: 43, 9: 34}
    with Store.create(tmp_path / "s") as store:
        for _ in cutoffs:
            store.append(counting_episode(steps=100, size=(2, 2), padded="last"))
        label_store(store, cutoffs)
        export_dataset(store, tmp_path / "same", "lerobot", WriteOptions(video=False, reward_frame="same"))
        export_dataset(store, tmp_path / "next", "lerobot", WriteOptions(video=False))
    same = pq.read_table(tmp_path / "same/data/chunk-000/file-000.parquet")["next.reward"].to_numpy()
    assert (same.sum(), len(same) - same.sum()) == (584, 416)
    assert same[:100].argmax() == 53
    then = pq.read_table(tmp_path / "next/data/chunk-000/file-000.parquet")["next.reward"].to_numpy()
    assert then[:100].argmax() == 52  # the action that led to frame 53
    for name in ("same", "next"):  # our own export says which it is
        import_dataset(tmp_path / name, tmp_path / f"back-{name}")
        assert Store.open(tmp_path / f"back-{name}").ledger.labels(0).targets.argmax() == 53
    (tmp_path / "same/meta/plaudit.parquet").unlink()
    import_dataset(tmp_path / "same", tmp_path / "told", ReadOptions(reward_frame="same"))
    assert Store.open(tmp_path / "told").ledger.labels(0).targets.argmax() == 53


def test_a_data_set_of_others_with_a_dense_reward_has_neither_success_nor_an_end(tmp_path):
    folder = write_v21(tmp_path / "in", rewards=True)
    change_column(folder, "next.reward", lambda rows: [0.1 * i for i in range(len(rows))])
    import_dataset(folder, tmp_path / "s")
    store = Store.open(tmp_path / "s")
    assert not store.ledger.labels(1).success_once and not store.episode(1).terminated
    assert store.episode(1).privileged["reward"].tolist() == pytest.approx(
        [0.1 * i for i in range(store.episode(1).steps)]
    )
    assert store.ledger.labels(0).success_once and store.episode(0).terminated


def test_a_store_without_labels_exports_none(tmp_path):
    store = Store.create(tmp_path / "a")
    store.append(counting_episode(4))
    back = round_trip(tmp_path, store, "lerobot", WriteOptions(video=False))
    assert back.ledger.labels(0) is None


def damage_parquet(folder: Path) -> str:
    path = folder / "data/chunk-000/episode_000001.parquet"
    path.write_bytes(path.read_bytes()[:-40])
    return "episode_000001.parquet: this is not a whole parquet file"


def damage_video(folder: Path) -> str:
    path = folder / f"videos/chunk-000/{CAMERA}/episode_000001.mp4"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return "episode_000001.mp4: this video"


def remove_video(folder: Path) -> str:
    (folder / f"videos/chunk-000/{CAMERA}/episode_000001.mp4").unlink()
    return "episode_000001.mp4: this video is missing"


def shorten_video(folder: Path) -> str:
    shutil.copy(
        folder / f"videos/chunk-000/{CAMERA}/episode_000001.mp4",
        folder / f"videos/chunk-000/{CAMERA}/episode_000002.mp4",
    )
    return "episode_000002.mp4: this video ends after 9 of 15 frames"


def change_column(folder: Path, name: str, change) -> None:
    path = folder / "data/chunk-000/episode_000001.parquet"
    table = pq.read_table(path)
    columns = {c: table[c].to_pylist() for c in table.column_names}
    columns[name] = change(columns[name])
    pq.write_table(pa.table(columns), path)


def nan_action(folder: Path) -> str:
    change_column(folder, "action", lambda rows: [*rows[:4], [float("nan"), 0.0], *rows[5:]])
    return "episode 1: actions hold NaN or infinity at step 4"


def ragged_state(folder: Path) -> str:
    change_column(folder, "observation.state", lambda rows: [[1.0], *rows[1:]])
    return "'observation.state' has rows of different length"


def other_size(folder: Path) -> str:
    video = VideoWriter(folder / f"videos/chunk-000/{CAMERA}/episode_000001.mp4", 10, 32, 32, "h264", None)
    video.append(np.zeros((9, 32, 32, 3), np.uint8))
    video.close()
    return "frames are 32x32 but meta/info.json says 48x64"


@pytest.mark.parametrize(
    "damage", [damage_parquet, damage_video, remove_video, shorten_video, nan_action, ragged_state, other_size]
)
def test_a_damaged_episode_is_named_and_the_others_come_in(tmp_path, damage):
    sentence = damage(write_v21(tmp_path / "in"))
    report = import_dataset(tmp_path / "in", tmp_path / "s")
    assert len(report.ids) == 2
    assert len(report.failed) == 1 and sentence in report.failed[0]
    assert len(Store.open(tmp_path / "s")) == 2


def test_a_damaged_v3_video_costs_only_the_episodes_it_cannot_show(tmp_path):
    store = labeled_store(
        tmp_path / "a", *(counting_episode(40, first=9 * i, size=(32, 32)) for i in range(3)), cutoff=3
    )
    export_dataset(store, tmp_path / "in", "lerobot")
    path = tmp_path / "in/videos/observation.images.front/chunk-000/file-000.mp4"
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
    report = import_dataset(tmp_path / "in", tmp_path / "s")
    assert 1 <= len(report.ids) < 3
    assert all("file-000.mp4: this video" in sentence for sentence in report.failed)


def test_a_damaged_v3_table_leaves_no_store_behind(tmp_path):
    store = labeled_store(tmp_path / "a", counting_episode(4), cutoff=3)
    export_dataset(store, tmp_path / "in", "lerobot", WriteOptions(video=False))
    path = tmp_path / "in/data/chunk-000/file-000.parquet"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(DataError, match=r"no store was made: .*file-000.parquet: this is not a whole parquet file"):
        import_dataset(tmp_path / "in", tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_an_image_that_is_none_is_named(tmp_path):
    store = labeled_store(tmp_path / "a", counting_episode(4), counting_episode(4), cutoff=3)
    export_dataset(store, tmp_path / "in", "lerobot", WriteOptions(video=False))
    path = tmp_path / "in/data/chunk-000/file-000.parquet"
    table = pq.read_table(path).to_pylist()
    table[6]["observation.images.front"]["bytes"] = b"not a picture"
    pq.write_table(pa.Table.from_pylist(table), path)
    report = import_dataset(tmp_path / "in", tmp_path / "s")
    assert report.ids == [0]
    assert "an image of camera 'front' cannot be read" in report.failed[0]


def missing_camera(folder: Path) -> None:
    path = folder / "meta/info.json"
    info = json.loads(path.read_text())
    info["features"]["observation.images.wrist"] = info["features"][CAMERA]
    path.write_text(json.dumps(info))


def test_a_camera_that_no_episode_has_is_refused_and_can_be_left_out(tmp_path):
    missing_camera(write_v21(tmp_path / "in"))
    with pytest.raises(DataError, match=r"no episode has a video of camera 'wrist'; .* cameras: --camera cam_high"):
        import_dataset(tmp_path / "in", tmp_path / "s")
    assert not (tmp_path / "s").exists()
    report = import_dataset(tmp_path / "in", tmp_path / "s", ReadOptions(cameras=["cam_high"]))
    assert len(report.ids) == 3 and report.ignored == ["observation.images.wrist"]


def test_a_camera_that_the_episodes_of_v3_do_not_list_can_be_left_out(tmp_path):
    folder = write_v3(tmp_path / "in")
    change_info(
        folder, lambda info: info["features"].update({"observation.images.top": {**video_feature(), "names": None}})
    )
    with pytest.raises(DataError, match=r"no episode has a video of camera 'top'; .* cameras: --camera front"):
        import_dataset(folder, tmp_path / "s")
    assert len(import_dataset(folder, tmp_path / "s", ReadOptions(cameras=["front"])).ids) == 3


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("info.json", "{", "info.json: this is not valid JSON"),
        ("info.json", "{}", "info.json: this does not describe a LeRobot data set: it lacks 'codebase_version'"),
        ("info.json", '{"codebase_version": "v1.6", "fps": 10, "features": {}}', "LeRobot v1.6 is not read"),
        ("episodes.jsonl", "{", "episodes.jsonl: this is not valid JSON"),
    ],
)
def test_broken_metadata_stops_the_import_before_anything_is_written(tmp_path, name, text, sentence):
    (write_v21(tmp_path / "in") / "meta" / name).write_text(text)
    with pytest.raises(BadFile, match=sentence):
        import_dataset(tmp_path / "in", tmp_path / "s")
    assert not (tmp_path / "s").exists()


# --- LeRobot, as people write it ---


def change_info(folder: Path, change) -> None:
    path = folder / "meta/info.json"
    info = json.loads(path.read_text())
    change(info)
    path.write_text(json.dumps(info))


def change_tables(folder: Path, pattern: str, change) -> None:
    """`change` takes a table's columns as lists, and returns them."""
    for path in folder.glob(pattern):
        table = pq.read_table(path)
        pq.write_table(pa.table(change({name: table[name].to_pylist() for name in table.column_names})), path)


def rename_columns(folder: Path, names: dict[str, str]) -> None:
    def features(info: dict) -> None:
        info["features"] = {names.get(name, name): feature for name, feature in info["features"].items()}

    change_info(folder, features)
    change_tables(folder, "data/**/*.parquet", lambda columns: {names.get(n, n): c for n, c in columns.items()})


def without(*names: str):
    return lambda columns: {name: values for name, values in columns.items() if name not in names}


def video_feature() -> dict:
    return {"dtype": "video", "shape": [*SIZE, 3], "names": ["height", "width", "channels"]}


def write_v3(folder: Path, lengths: tuple[int, ...] = (6, 9, 7)) -> Path:
    """Three episodes in one table and one video; state = row + 100 i, action = -row, no word of us beside them."""
    with Store.create(folder.with_name(f"{folder.name}.store")) as store:
        for i, length in enumerate(lengths):
            rows = np.arange(length + 1.0)
            frames = moving_square(length + 1, 7 * i)
            state, actions = np.stack([100 * i + rows, rows], 1), np.stack([-rows[:-1], rows[:-1]], 1)
            store.append(Episode.of(frames={"front": frames}, state=state, actions=actions, fps=10.0, task="push"))
        export_dataset(store, folder, "lerobot", WriteOptions(codec="h264"))
    (folder / PLAUDIT_META).unlink()
    return folder


@pytest.fixture(params=["v2.1", "v3.0"])
def found(request, tmp_path) -> Path:
    """A data set of either version, of three episodes with one camera."""
    return write_v21(tmp_path / "in") if request.param == "v2.1" else write_v3(tmp_path / "in")


def imported(folder: Path, target: Path, **read) -> list[Episode]:
    report = import_dataset(folder, target, ReadOptions(**read))
    assert report.failed == []
    return [episode for _, episode in Store.open(target)]


def all_equal(found: list[Episode], expected: list[Episode]) -> bool:
    camera = next(iter(expected[0].frames))
    return len(found) == len(expected) and all(
        np.array_equal(one.frames[camera], other.frames[camera])
        and np.array_equal(one.state, other.state)
        and np.array_equal(one.actions, other.actions)
        for one, other in zip(found, expected, strict=True)
    )


def test_states_and_actions_of_other_names_are_asked_for(tmp_path, found):
    expected = imported(found, tmp_path / "as-usual")
    rename_columns(found, {"observation.state": "state", "action": "actions"})
    with pytest.raises(
        DataError,
        match=r"no 'observation.state' and no 'action'; say with --state KEY and --action KEY .*: state \[2\], actions",
    ):
        import_dataset(found, tmp_path / "s")
    assert not (tmp_path / "s").exists()
    with pytest.raises(DataError, match=r"'stat' is not a numeric column here; did you mean 'state'\?"):
        import_dataset(found, tmp_path / "s", ReadOptions(state=["stat"], action=["actions"]))
    assert all_equal(imported(found, tmp_path / "s", state=["state"], action=["actions"]), expected)
    assert open_dataset(found).metadata["episodes"] == 3  # looking at it needs no answer


def test_columns_are_joined_in_the_order_in_which_they_are_named(tmp_path, found):
    usual = imported(found, tmp_path / "as-usual")[1]
    rename_columns(found, {"observation.state": "observation.joints"})
    change_info(
        found,
        lambda info: info["features"].update({"observation.grip": {"dtype": "float64", "shape": [1], "names": None}}),
    )

    def grip(columns):
        return {**columns, "observation.grip": [0.25] * len(columns["timestamp"])}

    change_tables(found, "data/**/*.parquet", grip)
    with pytest.raises(DataError, match=r"no 'observation.state'; say with --state KEY which columns"):
        import_dataset(found, tmp_path / "s")
    episode = imported(found, tmp_path / "s", state=["observation.grip", "observation.joints"])[1]
    assert np.array_equal(episode.state[:, 1:], usual.state) and (episode.state[:, 0] == 0.25).all()
    bare = imported(found, tmp_path / "bare", state=["none"])[1]
    assert bare.state.shape[1] == 0 and np.array_equal(bare.actions, usual.actions)


def test_names_of_joined_columns_stay_beside_their_numbers(tmp_path):
    folder = write_v21(tmp_path / "in")
    change_info(folder, lambda info: info["features"]["action"].update(names={"motors": ["left", "right"]}))
    episode = imported(folder, tmp_path / "s", state=["action", "observation.state"])[0]
    assert episode.meta["state_names"] == ["left", "right", "joint_a", "joint_b"]
    assert episode.meta["action_names"] == ["left", "right"]


def move_files(folder: Path, where: str, name) -> None:
    for path in sorted(folder.glob(where)):
        target = folder / name(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)


def test_path_templates_may_leave_chunks_out(tmp_path, found):
    expected = imported(found, tmp_path / "as-usual")
    v3 = (found / "meta/episodes").is_dir()
    number = "file-{file_index:03d}" if v3 else "episode_{episode_index:06d}"
    paths = {"data_path": f"data/{number}.parquet", "video_path": f"videos/{{video_key}}_{number}.mp4"}
    move_files(found, "data/chunk-000/*", lambda path: f"data/{path.name}")
    key = "observation.images.front" if v3 else CAMERA
    move_files(found, "videos/**/*.mp4", lambda path: f"videos/{key}_{path.name}")
    change_info(found, lambda info: info.update(paths))
    if v3:
        change_tables(found, "meta/episodes/**/*.parquet", without("data/chunk_index", f"videos/{key}/chunk_index"))
    assert all_equal(imported(found, tmp_path / "s"), expected)


def test_the_templates_of_v2_may_stand_in_v3_and_the_reverse(tmp_path):
    folder = write_v21(tmp_path / "in")
    expected = imported(folder, tmp_path / "as-usual")

    def swap(info):
        return info.update(data_path=info["data_path"].replace("episode_chunk", "chunk_index"))

    change_info(folder, swap)
    assert all_equal(imported(folder, tmp_path / "s"), expected)

    def as_v3(info: dict) -> None:
        info["codebase_version"] = "v3.0"

    change_info(folder, as_v3)
    lines = [json.loads(line) for line in (folder / "meta/episodes.jsonl").read_text().splitlines()]
    (folder / "meta/episodes.jsonl").unlink()
    (folder / "meta/episodes").mkdir()
    pq.write_table(pa.Table.from_pylist(lines), folder / "meta/episodes/all.parquet")
    assert all_equal(imported(folder, tmp_path / "t"), expected)


def test_a_template_that_asks_for_what_is_not_said_is_named(tmp_path):
    folder = write_v21(tmp_path / "in")
    change_info(folder, lambda info: info.update(data_path="data/{shard}/{episode_index}.parquet"))
    with pytest.raises(
        BadFile, match=r"info.json: the path 'data/\{shard\}/.* asks for 'shard', which meta/ does not say"
    ):
        import_dataset(folder, tmp_path / "s")


def test_episodes_without_a_number_are_counted(tmp_path, found):
    expected = imported(found, tmp_path / "as-usual")
    change_tables(found, "data/**/*.parquet", without("episode_index"))
    change_tables(found, "meta/episodes/**/*.parquet", without("episode_index", "length", "tasks"))
    lines = found / "meta/episodes.jsonl"
    if lines.is_file():
        rows = [json.loads(line) for line in lines.read_text().splitlines()]
        lines.write_text("".join(json.dumps({"tasks": row["tasks"]}) + "\n" for row in rows))
    episodes = imported(found, tmp_path / "s")
    assert all_equal(episodes, expected)
    assert [(e.task, e.origin.index) for e in episodes] == [(e.task, e.origin.index) for e in expected]


def test_rows_that_do_not_say_whose_they_are_must_add_up(tmp_path):
    folder = write_v3(tmp_path / "in")
    change_tables(
        folder, "data/**/*.parquet", lambda columns: {n: v[:-1] for n, v in without("episode_index")(columns).items()}
    )
    with pytest.raises(DataError, match=r"file-000.parquet: this table has 21 rows where meta/ says 22"):
        import_dataset(folder, tmp_path / "s")


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize 12345\n" % (b"0" * 64)


@pytest.mark.parametrize(
    "pattern", ["meta/info.json", "meta/episodes/**/*.parquet", "data/**/*.parquet", "videos/**/*.mp4"]
)
def test_a_git_lfs_pointer_is_called_by_its_name(tmp_path, pattern):
    folder = write_v3(tmp_path / "in")
    (path,) = folder.glob(pattern)
    path.write_bytes(POINTER)
    with pytest.raises(DataError, match=rf"{path.name}: this is a Git LFS pointer .*; run 'git lfs pull'"):
        import_dataset(folder, tmp_path / "s")


def test_a_git_lfs_pointer_among_trajectories_is_called_by_its_name(tmp_path):
    for path in ("n/positive/000000.npy", "p/success/episode_000000.pkl"):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_bytes(POINTER)
    for folder in "np":
        with pytest.raises(DataError, match="this is a Git LFS pointer"):
            import_dataset(tmp_path / folder, tmp_path / "s")


def starting_late(times: list[float]) -> list[float]:
    return [time + 0.15 for time in times]


def by_wall_clock(times: list[float]) -> list[float]:
    return [1.76e9 + 1.4 * time for time in times]


def slow(times: list[float]) -> list[float]:
    return [0.8 * time for time in times]


@pytest.mark.parametrize("clock", [starting_late, by_wall_clock, slow])
def test_timestamps_of_another_clock_do_not_matter_where_rows_and_frames_are_one_to_one(tmp_path, found, clock):
    expected = imported(found, tmp_path / "as-usual")

    def change(columns):
        return {**columns, "timestamp": clock(columns["timestamp"])}

    change_tables(found, "data/**/*.parquet", change)
    report = import_dataset(found, tmp_path / "s")
    assert report.failed == []
    assert all_equal([episode for _, episode in Store.open(tmp_path / "s")], expected)
    assert len(report.notes) == 1 and "its frames are taken by number" in report.notes[0]


def test_rows_without_timestamps_take_their_frames_by_number(tmp_path, found):
    expected = imported(found, tmp_path / "as-usual")
    change_tables(found, "data/**/*.parquet", without("timestamp"))
    assert all_equal(imported(found, tmp_path / "s"), expected)


def test_a_video_of_another_rate_is_read_by_number_too(tmp_path):
    folder = write_v21(tmp_path / "in")
    path = folder / f"videos/chunk-000/{CAMERA}/episode_000001.mp4"
    video = VideoWriter(path, 24, *SIZE, "h264", None)
    video.append(moving_square(9, 1))
    video.close()
    report = import_dataset(folder, tmp_path / "s")
    assert report.failed == [] and "first in episode 1" in report.notes[0]
    frames = Store.open(tmp_path / "s").episode(1).frames["cam_high"]
    assert np.abs(frames[:-1].astype(int) - moving_square(9, 1)).mean() < 4


def test_a_video_that_fits_its_rows_neither_by_time_nor_by_number_is_named_with_both_counts(tmp_path):
    folder = write_v21(tmp_path / "in")
    change_column(folder, "timestamp", by_wall_clock)
    videos = folder / f"videos/chunk-000/{CAMERA}"
    shutil.copy(videos / "episode_000000.mp4", videos / "episode_000001.mp4")
    report = import_dataset(folder, tmp_path / "s")
    assert len(report.ids) == 2
    assert "episode_000001.mp4: this video has 12 frames for 9 rows, and the rows' timestamps" in report.failed[0]


@pytest.mark.parametrize(
    ("shape", "names"),
    [
        ([3, *SIZE], ["channels", "height", "width"]),
        ([3, *SIZE], None),
        ([SIZE[1], SIZE[0], 3], ["width", "height", "rgb"]),
    ],
)
def test_the_axes_of_an_image_may_come_in_any_order(tmp_path, found, shape, names):
    expected = imported(found, tmp_path / "as-usual")

    def turned(info: dict) -> None:
        (feature,) = (f for f in info["features"].values() if f["dtype"] == "video")
        feature.update(shape=shape, names=names)

    change_info(found, turned)
    assert all_equal(imported(found, tmp_path / "s"), expected)


# --- whichever ---


def test_a_folder_says_what_it_is(tmp_path):
    write_v21(tmp_path / "l")
    write_npy(tmp_path / "n/positive/000000.npy", np.zeros((3, 3, 8, 8), "f4"), [0, 0, 1])
    write_pkl(tmp_path / "p/success/episode_000000.pkl", pkl_episode())
    assert [open_dataset(tmp_path / x).format for x in "lnp"] == ["lerobot", "npy", "pkl"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(UnknownFormat, match="nor one of the layouts that we read"):
        open_dataset(tmp_path / "empty")
    with pytest.raises(UnknownFormat, match="does not exist"):
        open_dataset(tmp_path / "nowhere")


def test_an_import_that_was_interrupted_goes_on_where_it_stopped(tmp_path):
    write_v21(tmp_path / "in", lengths=(5, 6, 7, 8), rewards=True)

    def interrupted(sources):
        for i, source in enumerate(sources):
            if i == 2:
                raise KeyboardInterrupt
            yield source

    with pytest.raises(KeyboardInterrupt):
        import_dataset(tmp_path / "in", tmp_path / "s", progress=interrupted)
    assert len(Store.open(tmp_path / "s")) == 2
    report = import_dataset(tmp_path / "in", tmp_path / "s")
    assert (report.already_imported, len(report.ids)) == (2, 2)
    assert [e.steps for _, e in Store.open(tmp_path / "s")] == [5, 6, 7, 8]


def test_labels_that_a_crash_kept_from_an_episode_come_with_the_next_import(tmp_path):
    write_v21(tmp_path / "in", rewards=True)
    import_dataset(tmp_path / "in", tmp_path / "s")
    (tmp_path / "s/labels").write_bytes(b"")
    (tmp_path / "s/labels.head").unlink()
    import_dataset(tmp_path / "in", tmp_path / "s")
    assert all(Store.open(tmp_path / "s").ledger.labels(i) is not None for i in range(3))


@pytest.mark.parametrize("to", ["npy", "pkl", "lerobot"])
def test_an_export_never_writes_into_a_folder_that_holds_something(tmp_path, to):
    store = labeled_store(tmp_path / "a", counting_episode(4))
    (tmp_path / "out").mkdir()
    (tmp_path / "out/precious.txt").write_text("data")
    with pytest.raises(TargetNotEmpty, match="holds something already; nothing was written"):
        export_dataset(store, tmp_path / "out", to)
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["precious.txt"]


def test_an_export_that_fails_leaves_nothing_behind(tmp_path):
    store = labeled_store(tmp_path / "a", counting_episode(4), counting_episode(4, size=(4, 4)))
    with pytest.raises(DataError, match=r"episode 1 has camera 'front' of \(4, 4\), others of \(8, 10\)"):
        export_dataset(store, tmp_path / "out", "lerobot")
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_episodes_that_a_layout_has_no_place_for_are_named(tmp_path):
    store = labeled_store(tmp_path / "a", counting_episode(4), cutoff=2)
    store.append(counting_episode(4))
    said = export_dataset(store, tmp_path / "out", "npy")
    assert said == ["episode 1 was left out: not every frame of it is labeled"]
    with pytest.raises(DataError, match="does not know its frames per second"):
        bare = Store.create(tmp_path / "b")
        bare.append(counting_episode(4, fps=0.0))
        export_dataset(bare, tmp_path / "out2", "lerobot")


def test_an_unknown_camera_is_named_with_the_known_ones(tmp_path):
    store = labeled_store(tmp_path / "a", random_episode(0))
    with pytest.raises(DataError, match=r"camera 'wirst' is not in episode 0; it has: front, wrist$"):
        export_dataset(store, tmp_path / "out", "lerobot", WriteOptions(cameras=["wirst"]))


def test_odd_sizes_cannot_be_a_video_and_can_be_images(tmp_path):
    store = labeled_store(tmp_path / "a", counting_episode(4, size=(7, 9)))
    with pytest.raises(DataError, match="7x9 frames cannot be a video, which needs even sizes; write images instead"):
        export_dataset(store, tmp_path / "out", "lerobot")
    back = round_trip(tmp_path, store, "lerobot", WriteOptions(video=False))
    assert np.array_equal(back.episode(0).frames["front"], store.episode(0).frames["front"])
