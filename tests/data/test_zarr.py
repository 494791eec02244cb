"""Replay buffers of diffusion policy and UMI, written by the zarr package: every value arrives, or one sentence."""

import json
import re
import shutil
import sys
import zipfile
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec, BytesCodec, GzipCodec
from zarr.storage import ZipStore

from plaudit.data.formats import open_dataset
from plaudit.data.store import Store
from plaudit.data.transfer import import_dataset
from plaudit.errors import DataError, MissingPackage

ENDS = [3, 8, 12]


def write_buffer(store, arrays, **options):
    """As diffusion policy's ReplayBuffer: `data/*` of all episodes and `meta/episode_ends`."""
    root = zarr.open_group(store, mode="w", zarr_format=2)
    data, meta = root.create_group("data"), root.create_group("meta")
    for name, values in arrays.items():
        chunks = (5, *values.shape[1:])  # which cross the ends of episodes
        data.create_array(name, data=values, chunks=chunks, **({"compressors": numcodecs.Blosc("zstd")} | options))
    meta.create_array("episode_ends", data=np.array(ENDS), compressors=None)


def pusht():
    """Its images are floats of 0 to 255."""
    rng = np.random.default_rng(0)
    return {
        "img": rng.integers(0, 256, (12, 16, 16, 3)).astype(np.float32),
        "state": rng.normal(size=(12, 5)).astype(np.float32),
        "action": rng.normal(size=(12, 2)).astype(np.float32),
        "keypoint": rng.normal(size=(12, 9, 2)).astype(np.float32),
        "n_contacts": np.ones((12, 1), np.float32),
    }


@pytest.mark.parametrize("kind", ["folder", "zip"])
def test_a_replay_buffer_of_diffusion_policy_arrives_value_by_value(tmp_path, kind):
    arrays, path = pusht(), tmp_path / ("pusht.zarr" if kind == "folder" else "pusht.zarr.zip")
    store = ZipStore(path, mode="w") if kind == "zip" else path
    write_buffer(store, arrays)
    if kind == "zip":
        store.close()
    report = import_dataset(path, tmp_path / "s")
    store = Store.open(tmp_path / "s")
    assert (report.ids, report.failed) == ([0, 1, 2], [])
    for i, (start, end) in enumerate(zip([0, *ENDS], ENDS)):
        episode, steps = store.episode(i), end - start
        assert episode.steps == steps and episode.padded == "last"
        assert np.array_equal(episode.state[:steps], arrays["state"][start:end])
        assert np.array_equal(episode.actions, arrays["action"][start:end])
        assert np.array_equal(episode.frames["img"][:steps], arrays["img"][start:end])


def test_umi_takes_the_next_pose_as_its_action(tmp_path):
    rng = np.random.default_rng(0)
    poses = {"robot0_eef_pos": 3, "robot0_eef_rot_axis_angle": 3, "robot0_gripper_width": 1}
    arrays = {name: rng.normal(size=(12, width)).astype(np.float32) for name, width in poses.items()}
    images = rng.integers(0, 256, (12, 6, 8, 3), dtype=np.uint8)
    others = {"robot0_demo_start_pose": np.zeros((12, 6)), "robot0_demo_end_pose": np.zeros((12, 6))}
    write_buffer(tmp_path / "umi.zarr", {**arrays, **others, "camera0_rgb": images})
    dataset = open_dataset(tmp_path / "umi.zarr")
    episode, labels = dataset.sources[1].load()
    state = np.concatenate(list(arrays.values()), axis=1)
    assert np.array_equal(episode.state, state[3:8]) and np.array_equal(episode.actions, state[4:8])
    assert np.array_equal(episode.frames["camera0"], images[3:8]) and episode.padded == "none" and labels is None
    assert any("the action is the pose that follows" in note for note in dataset.notes)


@pytest.mark.parametrize("name", ["gzip", "zlib", "bz2", "lzma", "lz4", "none", "shuffle", "fortran", "cells"])
def test_every_codec_and_order_gives_the_same_values(tmp_path, name):
    options = {
        "none": {"compressors": None},
        "shuffle": {"compressors": numcodecs.Zstd(), "filters": [numcodecs.Shuffle(4)]},
        "fortran": {"order": "F"},
        "cells": {"chunk_key_encoding": {"name": "v2", "separator": "/"}, "fill_value": 7},
    }.get(name) or {"compressors": numcodecs.get_codec({"id": name})}
    arrays = pusht()
    arrays["state"][3:8] = 7  # of fill_value: the chunk has no file
    write_buffer(tmp_path / "a.zarr", arrays, **options)
    episode, _ = open_dataset(tmp_path / "a.zarr").sources[1].load()
    assert np.array_equal(episode.state[:5], arrays["state"][3:8])
    assert np.array_equal(episode.frames["img"][:5], arrays["img"][3:8])


def test_chunks_may_split_rows_too(tmp_path):
    arrays = pusht()
    write_buffer(tmp_path / "a.zarr", {"img": arrays["img"], "state": arrays["state"]})
    data: Any = zarr.open_group(tmp_path / "a.zarr", mode="a", zarr_format=2)["data"]
    data.create_array("action", data=arrays["action"], chunks=(4, 1))
    data.create_array("image", data=arrays["img"].astype(np.uint8), chunks=(4, 10, 7, 2))
    episode, _ = open_dataset(tmp_path / "a.zarr").sources[2].load()
    assert np.array_equal(episode.actions, arrays["action"][8:12])
    assert np.array_equal(episode.frames["image"], episode.frames["img"])


def change(path, array, **header):
    file = path / array / ".zarray"
    file.write_text(json.dumps(json.loads(file.read_text()) | header))


def truncated(path):
    chunk = path / "data/state/1.0"
    chunk.write_bytes(chunk.read_bytes()[:20])


def linked(path):
    (path / "data/state/1.0").rename(path / "elsewhere")
    (path / "data/state/1.0").symlink_to(path / "elsewhere")


def garbage(path):
    (path / "data/state/1.0").write_bytes(b"\0" * 100)


@pytest.mark.parametrize(
    ("spoil", "sentence", "lost"),
    [
        (truncated, "'data/state' is damaged", 2),
        (garbage, "'data/state' is damaged", 2),
        (linked, "this is a link and was not opened", 2),
        (lambda path: change(path, "data/img", shape=[12, 1 << 20, 1 << 20, 3]), "more than", 3),
        (lambda path: change(path, "data/img", chunks=[1 << 20, 1 << 20, 1, 3]), "chunks of more than", 3),
        (lambda path: change(path, "data/state", dtype="|O"), "'data/state' holds '|O', not numbers", 3),
        (lambda path: change(path, "data/state", compressor={"id": "pickle"}), "stored as 'pickle'", 3),
        (lambda path: change(path, "data/state", filters=[{"id": "json2"}]), "stored as 'json2'", 3),
        (lambda path: change(path, "data/state", shape=[10, 5]), "'state' has 2 rows and", 1),
        (lambda path: change(path, "data/state", zarr_format=3), "not of Zarr version 2", 3),
        (lambda path: shutil.rmtree(path / "data"), "no column is a camera or a state", 3),
        (lambda path: change(path, "meta/episode_ends", shape=[1 << 40]), "is no list of episode ends", 3),
        (lambda path: (path / "meta/episode_ends/0").write_bytes(np.array([3, 3, 12]).tobytes()), "must increase", 3),
        (lambda path: (path / "meta/episode_ends/0").write_bytes(b"\x03"), "is damaged", 3),
    ],
)
def test_what_is_hostile_or_damaged_gives_one_sentence(tmp_path, spoil, sentence, lost):
    write_buffer(tmp_path / "a.zarr", pusht())
    spoil(tmp_path / "a.zarr")
    if lost < len(ENDS):
        report = import_dataset(tmp_path / "a.zarr", tmp_path / "s")
        assert len(report.failed) == lost and all(sentence in failure for failure in report.failed)
    else:
        with pytest.raises(DataError) as error:
            import_dataset(tmp_path / "a.zarr", tmp_path / "s")
        assert sentence in str(error.value) and not (tmp_path / "s").exists()


def test_a_nan_costs_its_episode_alone(tmp_path):
    arrays = pusht()
    arrays["action"][4] = np.nan
    write_buffer(tmp_path / "a.zarr", arrays)
    report = import_dataset(tmp_path / "a.zarr", tmp_path / "s")
    assert report.ids == [0, 1] and "actions hold NaN or infinity at step 1" in report.failed[0]


def test_a_bomb_in_a_zip_is_not_unpacked(tmp_path):
    write_buffer(tmp_path / "a.zarr", pusht())
    with zipfile.ZipFile(tmp_path / "a.zarr.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for file in (tmp_path / "a.zarr").rglob("*"):
            if file.is_file():
                archive.write(file, file.relative_to(tmp_path / "a.zarr"))
        archive.getinfo("data/state/0.0").file_size = 1 << 31
    report = import_dataset(tmp_path / "a.zarr.zip", tmp_path / "s")
    assert report.ids == [0] and len(report.failed) == 2
    assert all("'data/state/0.0' claims 2,147,483,648 bytes; the limit is" in failure for failure in report.failed)


def test_a_truncated_zip_is_no_zip(tmp_path):
    (tmp_path / "a.zarr.zip").write_bytes(b"PK\x03\x04" + bytes(50))
    with pytest.raises(DataError, match="this is not a whole zip file"):
        import_dataset(tmp_path / "a.zarr.zip", tmp_path / "s")


def test_images_of_umi_ask_for_the_package_that_decodes_them(tmp_path, monkeypatch):
    write_buffer(tmp_path / "a.zarr", pusht())
    change(tmp_path / "a.zarr", "data/img", compressor={"id": "imagecodecs_jpegxl", "level": 99})
    monkeypatch.setitem(sys.modules, "imagecodecs", None)
    with pytest.raises(MissingPackage, match="imagecodecs is not installed; run: pip install imagecodecs"):
        open_dataset(tmp_path / "a.zarr")


def write_version_3(store, arrays, **options):
    data = zarr.open_group(store, mode="w", zarr_format=3)
    data.create_array("meta/episode_ends", data=np.array(ENDS))
    for name, values in arrays.items():
        data.create_array(f"data/{name}", data=values, **({"chunks": (5, *values.shape[1:])} | options))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"compressors": None, "fill_value": 7},
        {"compressors": BloscCodec(cname="lz4")},
        {"compressors": GzipCodec()},
        {"serializer": BytesCodec(endian="big")},
        {"chunk_key_encoding": {"name": "v2", "separator": "."}},
        {"chunk_key_encoding": {"name": "default", "separator": "."}},
    ],
)
def test_version_3_of_the_format_arrives_value_by_value(tmp_path, options):
    arrays = pusht()
    arrays["state"][3:8] = 7
    write_version_3(tmp_path / "a.zarr", arrays, **options)
    episode, _ = open_dataset(tmp_path / "a.zarr").sources[1].load()
    assert np.array_equal(episode.state[:5], arrays["state"][3:8])
    assert np.array_equal(episode.actions, arrays["action"][3:8])
    assert np.array_equal(episode.frames["img"][:5], arrays["img"][3:8])


def test_version_3_in_a_zip_is_read_too(tmp_path):
    store = ZipStore(tmp_path / "a.zarr.zip", mode="w")
    write_version_3(store, pusht())
    store.close()
    assert len(import_dataset(tmp_path / "a.zarr.zip", tmp_path / "s").ids) == 3


@pytest.mark.parametrize(
    ("header", "sentence"),
    [
        ({"codecs": [{"name": "sharding_indexed", "configuration": {}}]}, "is stored as 'sharding_indexed', which"),
        ({"codecs": [{"name": "bytes"}, {"name": "pickle"}]}, "is stored as 'pickle', which is not read"),
        ({"codecs": []}, "the header of 'data/state' is damaged"),
        ({"chunk_grid": {"name": "rectilinear"}}, "is stored as 'rectilinear', which is not read"),
        ({"data_type": "complex64"}, "holds 'complex64', not numbers"),
        ({"data_type": {"name": "numpy.datetime64"}}, "not numbers"),
        ({"zarr_format": 4}, "which is not read"),
    ],
)
def test_what_version_3_has_and_is_not_read_is_named(tmp_path, header, sentence):
    write_version_3(tmp_path / "a.zarr", pusht())
    file = tmp_path / "a.zarr/data/state/zarr.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | header))
    with pytest.raises(DataError, match=re.escape(sentence)):
        import_dataset(tmp_path / "a.zarr", tmp_path / "s")
