"""LeRobot's frame signals: what a judge said of each row, in a file that LeRobot's drafts read, and back as labels."""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.testing import assert_array_equal

from brightness import CUT, NAME
from command import plaudit
from conftest import counting_episode, labeled_store
from plaudit.data.formats import WriteOptions
from plaudit.data.store import Store
from plaudit.data.transfer import export_dataset, import_dataset
from plaudit.types import Labels

OLD, NEW = b"lerobot.reward_scoring.", b"lerobot.scores."
STEPS = (7, 5)
NO_IMAGES = WriteOptions(video=False)


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A LeRobot data set `set` of two episodes without labels, and the store `store` that it was imported into."""
    folder = tmp_path_factory.mktemp("imported")
    with Store.create(folder / "made") as made:
        for number, steps in enumerate(STEPS):
            made.append(counting_episode(steps, first=number))
        export_dataset(made, folder / "set", "lerobot", NO_IMAGES)
    (folder / "set/meta/plaudit.parquet").unlink()
    import_dataset(folder / "set", folder / "store")
    return folder


@pytest.fixture
def folder(imported: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(imported, tmp_path, dirs_exist_ok=True))


def written(folder: Path) -> Path:
    words = ("--decode", "per_frame", "--to-lerobot-signals", "out.parquet")
    plaudit("label", "store", "--judge", NAME, *words, cwd=folder)
    return folder / "out.parquet"


def rewritten(path: Path, metadata: dict[bytes, bytes] | None = None, **columns: object) -> None:
    """The same file with other columns or metadata."""
    table = pq.read_table(path)
    for name, values in columns.items():
        table = table.set_column(table.schema.get_field_index(name), name, pa.array(values))
    pq.write_table(table.replace_schema_metadata({**table.schema.metadata, **(metadata or {})}), path)


def test_a_judge_writes_a_row_for_every_row_of_the_data_set(folder):
    table = pq.read_table(written(folder))
    assert table["index"].to_pylist() == list(range(12))
    assert table["episode_index"].to_pylist() == [0] * 7 + [1] * 5
    assert table["frame_index"].to_pylist() == [*range(7), *range(5)]
    light = np.concatenate([np.arange(7), 1 + np.arange(5)])
    expected = 1 / (1 + np.exp(-2.0 * (light - CUT + 0.5)))
    np.testing.assert_allclose(table["reward.brightness.success_prob"], expected, atol=1e-3)
    success = [False] * 3 + [True] * 4 + [False] * 2 + [True] * 3  # of the frame after each; the last one is repeated
    assert table["next.success"].to_pylist() == success
    assert table["next.reward"].to_pylist() == [float(value) for value in success]


def test_both_drafts_of_the_format_find_their_metadata(folder):
    path = written(folder)
    metadata = pq.read_schema(path).metadata
    for prefix in (OLD, NEW):
        assert metadata[prefix + b"format"] == b"lerobot.frame_signals"
        assert metadata[prefix + b"schema_version"] == b"1"
        described = json.loads(metadata[prefix + b"descriptors"])
        assert {"index", "episode_index", "frame_index", *described} == set(pq.read_schema(path).names)
        provenance = json.loads(metadata[prefix + b"provenance"])
        assert provenance["dataset"]["total_episodes"] == 2
        assert provenance["scoring"]["judge"] == "brightness"
    assert json.loads(metadata[OLD + b"episode_indices"]) == [0, 1]
    name = "reward.brightness.success_prob"
    shared = {"bounds": [0.0, 1.0], "direction": "higher", "unit": "probability"}
    shared["description"] = "probability that the frame shows success"
    older = {**shared, "comparison_scope": "global", "missing_values": "forbidden"}
    assert json.loads(metadata[OLD + b"descriptors"])[name] == older
    assert json.loads(metadata[NEW + b"descriptors"])[name] == {**shared, "allow_nan": False}


def test_next_success_is_read_back_as_labels_of_the_file(folder):
    path = written(folder)
    import_dataset(folder / "set", folder / "other")
    said = plaudit("data", "label", "other", "out.parquet", cwd=folder)
    assert "2 episodes labeled" in said
    ledger = Store.open(folder / "other").ledger
    written_labels = Store.open(folder / "store").ledger.labels(0)
    labels = ledger.labels(0)
    assert_array_equal(labels.targets[1:7], written_labels.targets[1:7])
    assert np.isnan(labels.targets[0])  # the file says nothing about the first frame
    assert labels.judge.source == "signals"
    assert labels.note == f"{path.name}: next.success"


def test_labels_of_a_file_rank_below_those_of_a_person(folder):
    written(folder)
    store = Store.open(folder / "store")
    store.ledger.append(0, Labels.from_cutoff(steps=7, cutoff=None, source="human"))
    plaudit("data", "label", "store", "out.parquet", cwd=folder)
    assert not Store.open(folder / "store").ledger.labels(0).success_once


@pytest.mark.parametrize("name", ["reward.brightness.success_prob", "success_prob"])
def test_a_signal_and_a_threshold_give_labels(folder, name):
    written(folder)
    plaudit("data", "label", "store", "out.parquet", "--signal", name, "--threshold", 0.9, cwd=folder)
    labels = Store.open(folder / "store").ledger.newest(0, {"signals"}).labels()
    assert labels.first_success == 5  # log-odds of 2 (5 - 4 + 1/2) = 3: P = 0.95
    assert labels.success[-1]  # the last frame is a copy


def test_a_signal_of_which_lower_is_better_is_read_that_way(folder):
    rows = {"index": range(12), "episode_index": [0] * 7 + [1] * 5, "frame_index": [*range(7), *range(5)]}
    seconds = [6.0, 5, 4, 3, 2, 1, 0, 9, 9, 9, 9, np.nan]
    descriptors = {"reward.rynnvalue.remaining_time_s": {"description": "left", "direction": "lower", "bounds": None}}
    descriptors["reward.rynnvalue.remaining_time_s"] |= {"unit": "s", "allow_nan": True}
    metadata = {NEW + b"format": b"lerobot.frame_signals", NEW + b"schema_version": b"1"}
    metadata |= {NEW + b"provenance": b"{}", NEW + b"descriptors": json.dumps(descriptors).encode()}
    table = pa.table({**{k: pa.array(v, pa.int64()) for k, v in rows.items()}, next(iter(descriptors)): seconds})
    pq.write_table(table.replace_schema_metadata(metadata), folder / "foreign.parquet")
    plaudit("data", "label", "store", "foreign.parquet", "--signal", "remaining_time_s", "--threshold", 1, cwd=folder)
    ledger = Store.open(folder / "store").ledger
    assert ledger.labels(0).first_success == 5
    assert ledger.labels(1).labeled.tolist() == [True] * 4 + [False] * 2


def test_files_of_the_sarm_script_are_read_without_metadata(folder):
    columns = {"episode_index": [0, 0, 0], "frame_index": [0, 3, 6], "progress_sparse": [0.1, 0.5, 0.99]}
    pq.write_table(pa.table(columns), folder / "sarm_progress.parquet")
    words = ("sarm_progress.parquet", "--signal", "progress_sparse", "--threshold", 0.9)
    plaudit("data", "label", "store", *words, cwd=folder)
    labels = Store.open(folder / "store").ledger.labels(0)
    assert np.flatnonzero(labels.labeled).tolist() == [0, 3, 6, 7]
    assert np.flatnonzero(labels.success).tolist() == [6, 7]


def nan(path):
    values = pq.read_table(path)["reward.brightness.success_prob"].to_numpy().copy()
    values[3] = np.nan
    rewritten(path, **{"reward.brightness.success_prob": values})
    return "'reward.brightness.success_prob' is NaN in row 3, which its description rules out"


def only_nan(path):
    pq.write_table(pa.table({"episode_index": [0], "frame_index": [0], "progress": [np.nan]}), path)
    return "'progress' is NaN in every row"


def infinite(path):
    rewritten(path, **{"reward.brightness.success_prob": np.full(12, np.inf, np.float32)})
    return "'reward.brightness.success_prob' is infinite in row 0"


def outside(path):
    rewritten(path, **{"reward.brightness.success_prob": np.full(12, 1.5, np.float32)})
    return "'reward.brightness.success_prob' is 1.5 in row 0, outside of [0, 1]"


def other_recording(path):
    provenance = json.loads(pq.read_schema(path).metadata[OLD + b"provenance"])
    provenance["dataset"]["digests"]["1"] = "0" * 32
    rewritten(path, {OLD + b"provenance": json.dumps(provenance).encode()})
    return "episode 1 is another recording in"


def fewer_episodes(path):
    rewritten(path, {OLD + b"provenance": b'{"dataset": {"total_episodes": 1}}'})
    return "it is about a data set of 1 episode, and"


def more_episodes(path):
    pq.write_table(pa.table({"episode_index": [0, 5], "frame_index": [0, 0], "progress": [0.1, 0.2]}), path)
    return "it has episode 5, and"


def longer_episode(path):
    pq.write_table(pa.table({"episode_index": [0, 0], "frame_index": [0, 7], "progress": [0.1, 0.2]}), path)
    return "episode 0 has frame 7 here and 7 frames in"


def lost_rows(path):
    pq.write_table(pq.read_table(path).slice(0, 7), path)
    return "it lists 2 episodes and has rows of 1"


def twice(path):
    pq.write_table(pa.table({"episode_index": [0, 0], "frame_index": [3, 3], "progress": [0.1, 0.2]}), path)
    return "frame 3 of episode 0 occurs twice"


def next_version(path):
    rewritten(path, {OLD + b"schema_version": b"2"})
    return "this is 'lerobot.frame_signals 2', and lerobot.frame_signals 1 is read"


def deep_json(path):
    rewritten(path, {OLD + b"provenance": b"[" * 100_000 + b"]" * 100_000})
    return "its metadata 'provenance' is not valid JSON"


def no_descriptors(path):
    rewritten(path, {OLD + b"descriptors": b"[1]"})
    return "its metadata has no descriptors"


def no_table(path):
    path.write_bytes(b"PAR1 not really")
    return "out.parquet: this is no sound parquet file"


def no_signals(path):
    pq.write_table(pa.table({"text": ["a"]}), path)
    return "it has no columns episode_index and frame_index"


FAULTS = [nan, only_nan, infinite, outside, other_recording, fewer_episodes, more_episodes, longer_episode, lost_rows]
FAULTS += [twice, next_version, deep_json, no_descriptors, no_table, no_signals]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_file_is_one_error_and_labels_nothing(folder, fault):
    sentence = fault(written(folder))
    before = len(Store.open(folder / "store").ledger)
    words = ("--signal", "success_prob" if "brightness" in sentence else "progress", "--threshold", 0.5)
    words = () if fault in (other_recording, fewer_episodes, lost_rows) else words
    said = plaudit("data", "label", "store", "out.parquet", *words, cwd=folder, ok=False)
    assert sentence in " ".join(said.split())
    assert len(Store.open(folder / "store").ledger) == before


def test_an_existing_file_is_refused_before_the_judge_works(folder):
    (folder / "out.parquet").write_text("mine")
    words = ("label", "store", "--judge", NAME, "--to-lerobot-signals", "out.parquet")
    assert "out.parquet exists already; nothing was labeled" in plaudit(*words, cwd=folder, ok=False)
    assert (folder / "out.parquet").read_text() == "mine"
    assert len(Store.open(folder / "store").ledger) == 0


def test_a_store_of_own_recordings_has_no_data_set_to_write_signals_for(folder):
    labeled_store(folder / "own", counting_episode(3))
    words = ("label", "own", "--judge", NAME, "--to-lerobot-signals", "out.parquet")
    assert "was not imported from a LeRobot data set" in plaudit(*words, cwd=folder, ok=False)


def test_a_data_set_that_changed_since_its_import_gets_no_signals(folder):
    made = Store.create(folder / "longer")
    for steps in (9, 5):
        made.append(counting_episode(steps))
    export_dataset(made, folder / "changed", "lerobot", NO_IMAGES)
    words = ("--to-lerobot-signals", "out.parquet", "--source", "changed")
    said = plaudit("label", "store", "--judge", NAME, *words, cwd=folder, ok=False)
    assert "episode 0 has 9 rows here and 7 in the store; import it again" in " ".join(said.split())
    assert not (folder / "out.parquet").exists()


def test_signals_are_not_written_while_the_judge_fails_on_an_episode(folder):
    broken = ("label", "store", "--judge", NAME, "--to-lerobot-signals", "out.parquet")
    store = Store.open(folder / "store", write=True)
    store.append(counting_episode(3, task="", origin=store.episode(1).origin))
    store.close()
    said = plaudit(*broken, cwd=folder, ok=False)
    assert "out.parquet was not written; it needs the scores of all these episodes" in " ".join(said.split())
    assert not (folder / "out.parquet").exists()


def test_a_signal_needs_a_threshold_and_a_parquet_file(folder):
    written(folder)
    for words, sentence in (
        (("out.parquet", "--signal", "success_prob"), "--signal needs --threshold"),
        (("out.parquet", "--signal", "succes_prob", "--threshold", 1), "it has no single signal 'succes_prob'"),
        (("out.json", "--signal", "x"), "--signal and --threshold are about a .parquet file"),
        (("out.parquet", "--threshold", 0.5), "--threshold needs --signal"),
    ):
        assert sentence in " ".join(plaudit("data", "label", "store", *words, cwd=folder, ok=False).split())
