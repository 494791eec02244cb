"""A copy of a LeRobot data set with labels: the labels are new, everything else is what it was."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lerobot_v21 import CAMERA, write_v21

from command import plaudit
from conftest import counting_episode, labeled_store
from plaudit.data.cutoffs import label_store
from plaudit.data.formats import ReadOptions, WriteOptions
from plaudit.data.lerobot_labels import labels_of_file, labels_of_store, source_of_store, write_labeled_copy
from plaudit.data.store import Store
from plaudit.data.transfer import export_dataset, import_dataset
from plaudit.errors import BadFile, DataError
from plaudit.judges.classifier.train_job import load_reward_train_job

LABELS = ("next.reward", "next.done", "next.success")
PUBLISHED = {0: 53, 1: 36, 2: 43, 3: 40, 4: 40, 5: 44, 6: 44, 7: 39, 8: 43, 9: 34}


def tables(folder: Path) -> pa.Table:
    return pa.concat_tables(pq.read_table(path) for path in sorted(folder.glob("data/**/*.parquet")))


def file_bytes(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def without_images(folder: Path, lengths: tuple[int, ...]) -> Path:
    """A data set of tables alone, which takes no time to write."""
    write_v21(folder, lengths=(2,))
    (folder / f"videos/chunk-000/{CAMERA}/episode_000000.mp4").unlink()
    info = json.loads((folder / "meta/info.json").read_text())
    del info["features"][CAMERA]
    (folder / "meta/info.json").write_text(json.dumps(info))
    lines = ""
    for episode, length in enumerate(lengths):
        rows = np.arange(length)
        columns = {"action": pa.array([[float(r), 1.0] for r in rows]), "frame_index": rows, "timestamp": rows / 10}
        columns |= {
            "observation.state": pa.array([[10.0 * r, r] for r in rows]),
            "episode_index": np.full(length, episode),
        }
        pq.write_table(pa.table(columns), folder / f"data/chunk-000/episode_{episode:06d}.parquet")
        lines += json.dumps({"episode_index": episode, "tasks": ["push"], "length": length}) + "\n"
    (folder / "meta/episodes.jsonl").write_text(lines)
    return folder


def v21(folder: Path) -> Path:
    write_v21(folder, rewards=True)
    stats = {name: {"min": [0.0], "max": [1.0], "mean": [0.5], "std": [0.5], "count": [9]} for name in ("action",)}
    lines = (json.dumps({"episode_index": i, "stats": stats}) + "\n" for i in range(3))
    (folder / "meta/episodes_stats.jsonl").write_text("".join(lines))
    (folder / "README.md").write_text("what this is")
    return folder


def v20(folder: Path) -> Path:
    write_v21(folder)
    (folder / "meta/stats.json").write_text(json.dumps({"action": {"min": [0], "max": [1], "mean": [0.5], "std": [1]}}))
    return folder


def v3(folder: Path, video: bool = True) -> Path:
    episodes = [counting_episode(n, first=40 * i, size=(16, 16), padded="last") for i, n in enumerate((12, 9, 15))]
    export_dataset(
        labeled_store(folder.with_name("made"), *episodes, cutoff=2), folder, "lerobot", WriteOptions(video=video)
    )
    (folder / "meta/plaudit.parquet").unlink()
    return folder


def v3_images(folder: Path) -> Path:
    return v3(folder, video=False)


@pytest.fixture(params=[v20, v21, v3, v3_images])
def dataset(tmp_path, request) -> Path:
    return request.param(tmp_path / "in")


@pytest.mark.parametrize("reward_frame", ["same", "next"])
def test_a_copy_has_the_labels_of_the_ledger_and_otherwise_what_was_there(tmp_path, dataset, reward_frame):
    before = file_bytes(dataset)
    import_dataset(dataset, tmp_path / "s")
    store = Store.open(tmp_path / "s")
    label_store(store, {0: 5, 1: None, 2: [[4, 7]]})
    labels = labels_of_store(store, source_of_store(store))
    write_labeled_copy(dataset, tmp_path / "out", labels, reward_frame=reward_frame)

    assert file_bytes(dataset) == before
    after = file_bytes(tmp_path / "out")
    assert set(after) == {*before, "meta/plaudit.parquet"}
    same = {name for name in before if after[name] == before[name]}
    assert {name for name in before if name.endswith((".mp4", "README.md", "tasks.jsonl", "tasks.parquet"))} <= same

    old, new = tables(dataset), tables(tmp_path / "out")
    assert all(new[name].equals(old[name]) for name in old.column_names if name not in LABELS)
    own = np.concatenate([np.arange(12) >= 5, np.zeros(9), (np.arange(15) >= 4) & (np.arange(15) <= 7)])
    shown = (
        own if reward_frame == "same" else np.concatenate([np.append(e[1:], e[-1:]) for e in np.split(own, [12, 21])])
    )
    assert new["next.reward"].to_numpy().tolist() == shown.tolist()
    assert new["next.success"].to_pylist() == shown.astype(bool).tolist()
    assert np.flatnonzero(new["next.done"].to_numpy()).tolist() == [11, 20, 35]

    import_dataset(tmp_path / "out", tmp_path / "back")  # the copy says which frame its rewards are about
    back = Store.open(tmp_path / "back")
    for i in range(3):
        assert back.ledger.labels(i).success.tolist() == store.ledger.labels(i).success.tolist()
        assert back.ledger.labels(i).judge.source == "cutoff"
        assert np.array_equal(back.episode(i).frames[next(iter(back.episode(i).frames))][0],
                              store.episode(i).frames[next(iter(store.episode(i).frames))][0])  # fmt: skip


def test_labels_are_not_written_to_rows_of_another_episode(tmp_path):
    folder = without_images(tmp_path / "in", lengths=(4, 4))
    labels = labels_of_file(folder, {0: 1, 1: None})
    path = folder / "data/chunk-000/episode_000000.parquet"
    table = pq.read_table(path)
    at = table.column_names.index("episode_index")
    pq.write_table(table.set_column(at, "episode_index", pa.array([0, 0, 1, 1])), path)
    with pytest.raises(BadFile, match=r"episode_000000.parquet: row 2 belongs to episode 1 by its 'episode_index'"):
        write_labeled_copy(folder, tmp_path / "out", labels, reward_frame="same")


def test_metadata_of_a_copy_is_about_its_own_labels(tmp_path, dataset):
    write_labeled_copy(dataset, tmp_path / "out", labels_of_file(dataset, {0: 6, 1: 0, 2: None}), reward_frame="same")
    out = tmp_path / "out/meta"
    before = json.loads((dataset / "meta/info.json").read_text())
    info = json.loads((out / "info.json").read_text())
    assert [info["features"][name]["dtype"] for name in LABELS] == ["float32", "bool", "bool"]
    assert {k: v for k, v in info["features"].items() if k not in LABELS} == {
        k: v for k, v in before["features"].items() if k not in LABELS
    }
    assert {k: v for k, v in info.items() if k != "features"} == {k: v for k, v in before.items() if k != "features"}
    if (out / "stats.json").is_file():
        stats, others = (json.loads((folder / "stats.json").read_text()) for folder in (out, dataset / "meta"))
        assert stats["next.reward"]["mean"] == [pytest.approx(15 / 36)]
        assert set(stats["next.reward"]) == set(others["action"]) and stats["action"] == others["action"]


def test_statistics_of_episodes_are_about_the_labels_of_the_copy(tmp_path):
    labels = {0: 6, 1: 0, 2: None}
    folder = v21(tmp_path / "v21")
    write_labeled_copy(folder, tmp_path / "a", labels_of_file(folder, labels), reward_frame="same")
    lines = (tmp_path / "a/meta/episodes_stats.jsonl").read_text().splitlines()
    stats = [json.loads(line)["stats"] for line in lines]
    assert [line["next.reward"]["mean"] for line in stats] == [[0.5], [1.0], [0.0]]
    assert set(stats[0]["next.reward"]) == {"min", "max", "mean", "std", "count"}
    assert stats[1]["action"] == {"min": [0.0], "max": [1.0], "mean": [0.5], "std": [0.5], "count": [9]}

    folder = v3(tmp_path / "v3")
    write_labeled_copy(folder, tmp_path / "b", labels_of_file(folder, labels), reward_frame="same")
    before, after = (pq.read_table(x / "meta/episodes/chunk-000/file-000.parquet") for x in (folder, tmp_path / "b"))
    assert after["stats/next.reward/mean"].to_pylist() == [[0.5], [1.0], [0.0]]
    assert after.schema.equals(before.schema)
    assert all(after[n].equals(before[n]) for n in before.column_names if not n.startswith("stats/next."))


def test_the_datasets_package_is_told_the_types_of_new_columns(tmp_path):
    folder = v3(tmp_path / "in")
    path = folder / "data/chunk-000/file-000.parquet"
    table = pq.read_table(path).drop_columns(LABELS)
    described = json.loads(table.schema.metadata[b"huggingface"])
    for name in LABELS:
        del described["info"]["features"][name]
    pq.write_table(table.replace_schema_metadata({"huggingface": json.dumps(described)}), path)
    write_labeled_copy(folder, tmp_path / "out", labels_of_file(folder, {0: 6}))
    after = pq.read_schema(tmp_path / "out/data/chunk-000/file-000.parquet")
    features = json.loads(after.metadata[b"huggingface"])["info"]["features"]
    assert set(features) == set(after.names) and features["next.reward"] == {"dtype": "float32", "_type": "Value"}


def test_the_published_cutoffs_give_the_published_counts_from_a_folder_and_from_a_store(tmp_path):
    folder = without_images(tmp_path / "in", lengths=(100,) * 10)
    (tmp_path / "cutoffs.json").write_text(str(PUBLISHED))
    told = plaudit("data", "label", "in", "cutoffs.json", "--to-lerobot", "a", "--reward-frame", "same", cwd=tmp_path)
    assert "584 rows of success, 416 of failure" in told and "about the row's own frame" in told
    plaudit("data", "import", folder, "s", cwd=tmp_path)
    told = plaudit(*("data", "label", "s", "cutoffs.json", "--to-lerobot", "b", "--reward-frame", "same"), cwd=tmp_path)
    assert "584 success frames, 416 failure frames (1000 total)" in told
    for out in ("a", "b"):
        reward = tables(tmp_path / out)["next.reward"].to_numpy()
        assert ((reward == 1).sum(), (reward == 0).sum()) == (584, 416)
        assert reward[:100].argmax() == 53


def test_a_lerobot_config_learns_from_the_published_counts(tmp_path):
    folder = without_images(tmp_path / "in", lengths=(100,) * 10)
    write_labeled_copy(folder, tmp_path / "out", labels_of_file(folder, PUBLISHED), reward_frame="same")
    (tmp_path / "out/meta/plaudit.parquet").unlink()  # as another program would have written it
    config = {"policy": {"type": "reward_classifier"}, "dataset": {"root": str(tmp_path / "out")}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    job, _ = load_reward_train_job(tmp_path / "config.json", {})
    import_dataset(tmp_path / "out", tmp_path / "s", ReadOptions(job.reward_frame))
    store = Store.open(tmp_path / "s")
    frames = np.concatenate([store.ledger.labels(i).targets[store.episode(i).observed] for i in store.ids])
    assert ((frames == 1).sum(), (frames == 0).sum()) == (584, 416)


def test_rows_without_a_label_are_nan_and_counted(tmp_path):
    folder = without_images(tmp_path / "in", lengths=(4, 5))
    labels = labels_of_file(folder, {1: [[1, 2], [3, None, "unknown"]]})
    report = write_labeled_copy(folder, tmp_path / "out", labels, reward_frame="same")
    assert (report.success, report.failure, report.unlabeled) == (2, 1, 6)
    reward = tables(tmp_path / "out")["next.reward"].to_numpy()
    assert np.isnan(reward).tolist() == [True] * 4 + [False] * 3 + [True] * 2


def test_hard_links_share_the_videos_and_never_what_is_written_anew(tmp_path, dataset):
    write_labeled_copy(dataset, tmp_path / "out", labels_of_file(dataset, {0: 1}), hard_links=True)
    for path in dataset.rglob("*"):
        copy = tmp_path / "out" / path.relative_to(dataset)
        if path.suffix == ".mp4":
            assert path.samefile(copy)
        elif path.suffix == ".parquet" and "data" in path.parts:
            assert not path.samefile(copy)


def occupied(folder: Path) -> str:
    (folder / "out").mkdir()
    (folder / "out/mine.txt").write_text("mine")
    return "holds something already"


def torn_table(folder: Path) -> str:
    path = folder / "in/data/chunk-000/episode_000001.parquet"
    path.write_bytes(path.read_bytes()[:-30])
    return "episode_000001.parquet: this is not a whole parquet file"


def other_recording(folder: Path) -> str:
    path = folder / "in/data/chunk-000/episode_000001.parquet"
    table = pq.read_table(path)
    at = table.schema.get_field_index("action")
    pq.write_table(table.set_column(at, "action", pa.array([[7.0, 7.0]] * table.num_rows)), path)
    return "episode 1 has other actions here than in the store"


def longer(folder: Path) -> str:
    without_images(folder / "longer", lengths=(4, 6))
    for name in ("meta/episodes.jsonl", "data/chunk-000/episode_000001.parquet"):
        (folder / "longer" / name).replace(folder / "in" / name)
    return "episode 1 has 6 rows here and labels of 5"


def linked_out(folder: Path) -> str:
    (folder / "secret.txt").write_text("secret")
    (folder / "in/notes.txt").symlink_to(folder / "secret.txt")
    return "this is a link and was not opened"


def linked_folder(folder: Path) -> str:
    (folder / "elsewhere").mkdir()
    (folder / "in/extra").symlink_to(folder / "elsewhere")
    return "this is a link to a folder"


@pytest.mark.parametrize("fault", [occupied, torn_table, other_recording, longer, linked_out, linked_folder])
def test_what_cannot_be_copied_is_named_and_nothing_is_left_behind(tmp_path, fault):
    without_images(tmp_path / "in", lengths=(4, 5))
    import_dataset(tmp_path / "in", tmp_path / "s")
    store = Store.open(tmp_path / "s")
    label_store(store, {0: 1, 1: 2})
    sentence = fault(tmp_path)
    before = file_bytes(tmp_path)
    with pytest.raises(DataError, match=sentence):
        write_labeled_copy(tmp_path / "in", tmp_path / "out", labels_of_store(store, tmp_path / "in"))
    assert file_bytes(tmp_path) == before
    assert not (tmp_path / ".out.partial").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["in"], "in holds something already; nothing was written"),
        (["in/out"], "in/out and in lie within each other; nothing was written"),
        (["s/out"], "s/out and s lie within each other; nothing was written"),
        (["cutoffs.json/out"], "cutoffs.json/out cannot be made, since cutoffs.json is a file; nothing was written"),
        (["out", "--source", "s"], "s is no LeRobot data set (it has no meta/info.json); name the folder of one"),
    ],
)
def test_a_copy_that_cannot_be_made_is_refused_before_anything_is_labeled(tmp_path, monkeypatch, words, sentence):
    without_images(tmp_path / "in", lengths=(4,))
    (tmp_path / "cutoffs.json").write_text("{0: 1}")
    monkeypatch.chdir(tmp_path)
    import_dataset("in", "s")
    told = plaudit("data", "label", "s", "cutoffs.json", "--to-lerobot", *words, cwd=tmp_path, ok=False)
    assert sentence in " ".join(told.split())
    assert Store.open(tmp_path / "s").ledger.labels(0) is None


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["in", "--to-lerobot", "out"], "in is not a store; name a label file too"),
        (["in", "cutoffs.json", "--to-lerobot", "out", "--note", "x"], "in is not a store; leave out --by, --note"),
        (["nowhere", "cutoffs.json", "--to-lerobot", "out"], "nowhere does not exist"),
        (["in", "cutoffs.json", "--hard-links"], "--source and --hard-links need --to-lerobot OUT"),
    ],
)
def test_options_that_do_not_belong_together_are_a_sentence(tmp_path, words, sentence):
    without_images(tmp_path / "in", lengths=(4,))
    (tmp_path / "cutoffs.json").write_text("{0: 1}")
    assert sentence in " ".join(plaudit("data", "label", *words, cwd=tmp_path, ok=False).split())
    assert not (tmp_path / "out").exists()


def test_a_copy_within_its_source_is_refused(tmp_path):
    folder = without_images(tmp_path / "in", lengths=(4,))
    with pytest.raises(DataError, match="lie within each other"):
        write_labeled_copy(folder, folder / "labeled", labels_of_file(folder, {0: 1}))
    assert not (folder / "labeled").exists()


def test_a_store_says_which_data_set_it_needs(tmp_path):
    made = labeled_store(tmp_path / "made", counting_episode(4), cutoff=2)
    with pytest.raises(DataError, match="was not imported from a LeRobot data set"):
        source_of_store(made)
    for name in ("a", "b"):
        without_images(tmp_path / name, lengths=(4, 5) if name == "a" else (6,))
        import_dataset(tmp_path / name, tmp_path / "s", ReadOptions())
    store = Store.open(tmp_path / "s")
    with pytest.raises(DataError, match=r"several data sets; say with --source which to copy: .*a, .*b"):
        source_of_store(store)
    with pytest.raises(DataError, match=r"no episode of .*b has labels"):
        labels_of_store(store, tmp_path / "b")
    label_store(store, {2: 3}, by="id")
    write_labeled_copy(tmp_path / "b", tmp_path / "out", labels_of_store(store, tmp_path / "b"))
    assert tables(tmp_path / "out")["next.reward"].to_numpy().tolist() == [0, 0, 1, 1, 1, 1]


def test_a_label_file_must_fit_its_data_set(tmp_path):
    folder = without_images(tmp_path / "in", lengths=(4,))
    with pytest.raises(DataError, match="has no episode 3; it has 1"):
        labels_of_file(folder, {3: 1})
    with pytest.raises(DataError, match="episode 0: frames 9 to 9 are not in it: its frames are 0 to 3"):
        labels_of_file(folder, {0: 9})
