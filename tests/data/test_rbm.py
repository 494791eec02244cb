"""RBM-EVAL's folders in the three forms that are published: every value, or one sentence about what is wrong."""

import io
import json
import math
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_roboreward import video

from plaudit.data.formats import ReadOptions, layout_of, open_dataset
from plaudit.data.formats.decoder import open_in_worker
from plaudit.data.store import Store
from plaudit.data.transfer import import_dataset
from plaudit.errors import BadFile, UnknownFormat

COLUMNS = {
    "id": pa.string(),
    "task": pa.string(),
    "lang_vector": pa.list_(pa.float32()),
    "data_source": pa.string(),
    "frames": pa.string(),
    "is_robot": pa.bool_(),
    "quality_label": pa.string(),
    "partial_success": pa.float32(),
}
PROCESSED = {"frames_shape": pa.list_(pa.int64()), "num_frames": pa.int64(), "frames_processed": pa.bool_()}
QUALITY, SUCCESS = ("successful", "suboptimal", "failure"), (1, math.nan, 0)


def row(number, **values):
    """The columns that every form has."""
    return {
        "id": f"3f2a-{number}",
        "task": "stack the cups",
        "lang_vector": [0.5] * 384,
        "data_source": "usc_koch",
        "is_robot": number != 2,
        "quality_label": QUALITY[number],
        "partial_success": None if number else 0.75,
        **values,
    }


def images(number, frames=5):
    """Frame t is gray, 20 t + number."""
    return np.repeat(np.arange(frames, dtype=np.uint8) * 20 + number, 24 * 32 * 3).reshape(frames, 24, 32, 3)


def save_processed(folder, rows=None):
    """What `Dataset.save_to_disk` and `np.savez_compressed` of the published preprocessing write."""
    rows = [processed_row(number) for number in range(3)] if rows is None else rows
    (folder / "frames").mkdir(parents=True, exist_ok=True)
    for number in range(3):
        frames = images(number)
        np.savez_compressed(
            folder / f"frames/trajectory_3f2a-{number}.npz", frames=frames, shape=frames.shape, num_frames=len(frames)
        )
    table = folder / "processed_dataset"
    table.mkdir(exist_ok=True)
    schema = pa.schema({**COLUMNS, **PROCESSED})
    with pa.ipc.new_stream(table / "data-00000-of-00001.arrow", schema) as stream:
        stream.write_table(pa.Table.from_pylist(rows, schema))
    (table / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))
    (table / "dataset_info.json").write_text("{}")
    (folder / "index_mappings.json").write_text("{}")
    return folder


def processed_row(number, **values):
    """`frames` is a path on the machine that wrote it."""
    name = f"/home/somebody/processed_datasets/set/frames/trajectory_3f2a-{number}.npz"
    shape = {"frames_shape": [5, 24, 32, 3], "num_frames": 5, "frames_processed": True}
    return row(number, **{"frames": name, **shape, **values})


def save_source(folder, **values):
    """What `Dataset.push_to_hub(config_name=...)` and the upload of the videos leave."""
    names = [f"usc_koch/batch_0000/trajectory_{number:04d}.mp4" for number in range(3)]
    for name in names:
        video(folder / name)
    rows = [row(number, **{"frames": name, **values}) for number, name in enumerate(names)]
    pq.write_table(pa.Table.from_pylist(rows, pa.schema(COLUMNS)), folder / "usc_koch/train-00000-of-00001.parquet")
    return folder


def save_collection(folder):
    """`robometer/rbm-1m-ood`: all columns are texts, and videos lie next to the table."""
    (folder / "meta").mkdir(parents=True)
    info = {"video_path": "{split}/{file_name}", "metadata_path": "train/metadata.parquet", "splits": {"train": "0:3"}}
    (folder / "meta/info.json").write_text(json.dumps(info))
    rows = []
    for number in range(3):
        video(folder / f"train/{number}.mp4")
        texts = {
            "is_robot": str(number != 2),
            "partial_success": "" if number else "0.75",
            "file_name": f"{number}.mp4",
        }
        rows.append({**row(number, **texts), "quality_label": ("success", *QUALITY[1:])[number]})
        del rows[-1]["lang_vector"]
    pq.write_table(pa.Table.from_pylist(rows), folder / "train/metadata.parquet")
    return folder


def check_values(dataset):
    assert dataset.format == "rbm" and len(dataset.sources) == 3
    for number, (source, success) in enumerate(zip(dataset.sources, SUCCESS, strict=True)):
        episode, labels = source.load()
        assert episode.task == "stack the cups" and episode.terminated
        meta = {"id": f"3f2a-{number}", "quality_label": QUALITY[number], "data_source": "usc_koch"}
        meta |= {"is_robot": number != 2, **({} if number else {"partial_success": 0.75})}
        assert episode.meta == meta
        targets = [math.nan] * episode.steps + [success]
        assert labels is None if math.isnan(success) else np.array_equal(labels.targets, targets, equal_nan=True)
        yield episode.frames["video"]


def test_processed_sets_value_by_value(tmp_path):
    dataset = open_dataset(save_processed(tmp_path / "set"), ReadOptions())
    for number, frames in enumerate(check_values(dataset)):
        assert np.array_equal(frames, images(number))


def test_a_source_set_value_by_value(tmp_path):
    for frames in check_values(open_dataset(save_source(tmp_path), ReadOptions())):
        assert np.allclose(frames.mean(axis=(1, 2, 3)), np.arange(6) * 20 + 60, atol=3)


def test_the_published_collection_value_by_value(tmp_path):
    for frames in check_values(open_dataset(save_collection(tmp_path / "rbm"), ReadOptions())):
        assert np.allclose(frames.mean(axis=(1, 2, 3)), np.arange(6) * 20 + 60, atol=3)


def test_several_processed_sets_are_one_data_set(tmp_path):
    for name in ("koch", "franka"):
        save_processed(tmp_path / name)
    assert len(open_dataset(tmp_path, ReadOptions()).sources) == 6


def test_an_import_keeps_labels_and_quality(tmp_path):
    import_dataset(save_processed(tmp_path / "set"), tmp_path / "store")
    store = Store.open(tmp_path / "store")
    assert [episode.meta["quality_label"] for _, episode in store] == list(QUALITY)
    labels = [store.ledger.labels(i) for i in store.ids]
    assert [one and one.targets[-1] for one in labels] == [1, None, 0]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"quality_label": "great"}, "'quality_label' is 'great', and must be successful, suboptimal or failure"),
        ({"task": " "}, "'task' is ' ', and must be a text"),
        ({"id": None}, "'id' is None"),
        ({"partial_success": math.nan}, "'partial_success' is nan, and must be a number from 0 to 1"),
        ({"partial_success": 1.5}, "'partial_success' is 1.5"),
        ({"frames_shape": [9, 24, 32, 3]}, r"its frames are \[5, 24, 32, 3\], and the list says '\[9, 24, 32, 3\]'"),
        ({"frames": "set/frames/trajectory_9.npz"}, "this file of frames is missing"),
        ({"frames": "set/frames/.."}, "must name an .npz file"),
        ({"frames": None}, "'frames' is None"),
    ],
)
def test_a_bad_row_is_named_and_the_others_are_read(tmp_path, values, message):
    save_processed(tmp_path, [processed_row(0), processed_row(1, **values)])
    good, bad = open_dataset(tmp_path, ReadOptions()).sources
    assert good.load()[0].steps == 4
    with pytest.raises(BadFile, match=message):
        bad.load()


@pytest.mark.parametrize("name", ["../1.mp4", "/etc/passwd", "usc_koch/../../1.mp4", "https://example.com/1.mp4"])
def test_no_video_outside_of_the_folder_is_opened(tmp_path, name):
    for source in open_dataset(save_source(tmp_path / "source", frames=name), ReadOptions()).sources:
        with pytest.raises(BadFile, match="lies outside of this folder"):
            source.load()


def npz(**arrays):
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def header_only(shape):
    """An array that claims a shape and has no data."""
    array, file = io.BytesIO(), io.BytesIO()
    np.lib.format.write_array_header_1_0(array, {"descr": "|u1", "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("frames.npy", array.getvalue())
    return file.getvalue()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"PK\3\4 nonsense", "this cannot be read"),
        (npz(pixels=images(0)), "has no array 'frames'"),
        (npz(frames=images(0).astype(np.float32)), r"its frames are float32 \[5, 24, 32, 3\], and must be uint8"),
        (npz(frames=images(0)[..., 0]), r"its frames are uint8 \[5, 24, 32\]"),
        (npz(frames=images(0)[:1]), "an episode has at least 2"),
        (npz(frames=np.array([print, {}], object)), "its frames are object"),
        (header_only((1 << 25, 1024, 1024, 3)), "its frames claim to be"),
        (header_only((2, 1 << 20, 1 << 20, 3)), "an episode has at least 2, of at most"),
    ],
)
def test_a_bad_file_of_frames_is_one_clear_error(tmp_path, data, message):
    save_processed(tmp_path, [processed_row(number, frames_shape=None) for number in (0, 1)])
    (tmp_path / "frames/trajectory_3f2a-1.npz").write_bytes(data)
    good, bad = open_dataset(tmp_path, ReadOptions()).sources
    assert good.load()[0].steps == 4
    with pytest.raises(BadFile, match=message):
        bad.load()


def test_black_frames_of_any_size_are_not_decoded(tmp_path):
    frames = np.zeros((300, 1024, 1024, 3), np.uint8)
    save_processed(tmp_path, [processed_row(0, frames_shape=None)])
    (tmp_path / "frames/trajectory_3f2a-0.npz").write_bytes(npz(frames=frames))
    (source,) = open_dataset(tmp_path, ReadOptions(max_episode_gb=0.5)).sources
    with pytest.raises(BadFile, match=r"would take 0\.9 GB in memory, and 0\.5 GB is the limit"):
        source.load()


@pytest.mark.parametrize("name", ["frames/trajectory_3f2a-0.npz", "processed_dataset/data-00000-of-00001.arrow"])
def test_links_are_not_followed(tmp_path, name):
    file = save_processed(tmp_path / "set") / name
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BadFile, match="link"):
        open_dataset(tmp_path / "set", ReadOptions()).sources[0].load()


def test_a_list_of_files_stays_in_its_folder(tmp_path):
    save_processed(tmp_path)
    (tmp_path / "processed_dataset/state.json").write_text('{"_data_files": [{"filename": "../../x.arrow"}]}')
    with pytest.raises(BadFile, match=r"'../../x.arrow' is not the name of an .arrow file next to it"):
        open_dataset(tmp_path, ReadOptions())


@pytest.mark.parametrize("keep", [0, 100, 2000])
def test_a_cut_off_table_is_one_clear_error(tmp_path, keep):
    file = save_processed(tmp_path) / "processed_dataset/data-00000-of-00001.arrow"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(BadFile, match="this is not a whole Arrow file"):
        open_dataset(tmp_path, ReadOptions())


def test_a_table_without_a_quality_label_is_named(tmp_path):
    schema = pa.schema({"id": pa.string(), "task": pa.string(), "frames": pa.string()})
    folder = save_processed(tmp_path)
    with pa.ipc.new_stream(folder / "processed_dataset/data-00000-of-00001.arrow", schema):
        pass
    with pytest.raises(BadFile, match="this table has no column quality_label; it has: id, task, frames"):
        open_dataset(folder, ReadOptions())


def test_offsets_beyond_the_texts_of_a_table_are_an_error(tmp_path):
    """Arrow itself would read memory behind the column."""
    file = save_processed(tmp_path, [processed_row(0)]) / "processed_dataset/data-00000-of-00001.arrow"
    data = file.read_bytes()
    written, place = np.array([0, 14], "<i4").tobytes(), data.index(b"stack the cups")
    assert data[place - 8 : place] == written
    file.write_bytes(data[: place - 8] + np.array([0, 1 << 30], "<i4").tobytes() + data[place:])
    with pytest.raises(BadFile, match="this is not a whole Arrow file"):
        open_dataset(tmp_path, ReadOptions())


def test_the_process_with_limits_reads_the_same(tmp_path):
    with open_in_worker(save_processed(tmp_path / "set"), ReadOptions()) as dataset:
        for number, frames in enumerate(check_values(dataset)):
            assert np.array_equal(frames, images(number))


def test_other_tables_are_other_formats(tmp_path):
    (tmp_path / "data").mkdir()
    pq.write_table(pa.table({"text": ["a caption"]}), tmp_path / "data/train-00000-of-00001.parquet")
    with pytest.raises(UnknownFormat):
        layout_of(tmp_path)
