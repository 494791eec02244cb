"""A copy of somebody else's LeRobot data set with labels: what is made up to break it, and disks that do."""

import json
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_labeled_copy import file_bytes, without_images

from plaudit.data.formats import decoder
from plaudit.data.formats.lerobot.relabel import EpisodeLabels
from plaudit.data.lerobot_labels import labels_of_file, write_labeled_copy
from plaudit.errors import DataError
from plaudit.processes import ForkServer
from plaudit.types import Labels

TABLE = "data/chunk-000/episode_000001.parquet"
LABELS = {0: EpisodeLabels(Labels.from_cutoff(steps=4, cutoff=2, source="human"))}

Fault = Callable[[Path], str]  # does it to a data set; returns the sentence


def shared_text(folder: Path) -> str:
    """Two gigabytes of text in a table of a few kilobytes that no episode is listed in: one text, named by each row."""
    text = pa.DictionaryArray.from_arrays(pa.array([0] * 256, pa.int32()), pa.array([b"x" * (8 << 20)]))
    table = pa.table({"text": text})
    options = {"compression": "zstd", "store_schema": False, "dictionary_pagesize_limit": 1 << 26}
    pq.write_table(table, folder / "data/extra.parquet", **options)
    return "extra.parquet: this table takes more memory than its size promised"


def claimed_rows(folder: Path) -> str:
    """A footer that says 2^40 where 12,345 rows are."""
    path = folder / "data/extra.parquet"
    pq.write_table(pa.table({"x": pa.nulls(12345, pa.int8())}), path)
    data = path.read_bytes()
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    footer = data[start:-8].replace(varint(12345), varint(1 << 40))
    path.write_bytes(data[:start] + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    return "extra.parquet: this table claims 1,099,511,627,776 rows"


def varint(number: int) -> bytes:
    """As Thrift's compact protocol has a whole number."""
    left, out = 2 * number, []
    while left > 127:
        out.append(left % 128 + 128)
        left //= 128
    return bytes([*out, left])


def claimed_text(folder: Path) -> str:
    path = folder / "data/extra.parquet"
    pq.write_table(pa.table({"x": ["hello"]}), path, compression="none", use_dictionary=False, write_statistics=False)
    path.write_bytes(path.read_bytes().replace(b"\x05\0\0\0hello", b"\xff\xff\xff\x7fhello"))
    return "extra.parquet: this is not a whole parquet file"


def claimed_length(folder: Path) -> str:
    path = folder / "meta/episodes.jsonl"
    path.write_text(path.read_text().replace('"length": 5', '"length": 1000000000000'))
    return "episode 1 has 1,000,000,000,000 rows according to meta/"


def large_info(folder: Path) -> str:
    os.truncate(folder / "meta/info.json", 1 << 30)
    return "info.json: this file has 1,073,741,824 bytes"


def path_out(folder: Path) -> str:
    path = folder / "meta/info.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"data_path": "../{episode_index}.parquet"}))
    return "its files name '../0.parquet', which lies outside of this folder"


def replaced(name: str, make: Callable[[Path], object], sentence: str) -> Fault:
    def fault(folder: Path) -> str:
        (folder / name).unlink(missing_ok=True)
        make(folder / name)
        return sentence

    return fault


def link(target: str) -> Callable[[Path], object]:
    return lambda path: path.symlink_to(target)


LINK = "this is a link and was not opened"
FAULTS: dict[str, Fault] = {
    "a text that rows share": shared_text,
    "a footer of 2^40 rows": claimed_rows,
    "a text of 2 GB that is not there": claimed_text,
    "an episode of 10^12 rows": claimed_length,
    "an info.json of 1 GB": large_info,
    "a template that leads out": path_out,
    "a table that is a pipe": replaced(TABLE, os.mkfifo, "this is a pipe and not a file"),
    "a table that is a folder": replaced(TABLE, Path.mkdir, "this is a folder and not a file"),
    "a table that is a link out": replaced(TABLE, link("/etc/passwd"), LINK),
    "a table that is a link to itself": replaced(TABLE, link("episode_000001.parquet"), LINK),
    "a list of episodes that is a link out": replaced("meta/episodes.jsonl", link("/etc/passwd"), LINK),
    "statistics that are a pipe": replaced("meta/stats.json", os.mkfifo, "this is a pipe and not a file"),
    "a video that is a link out": replaced("videos/chunk-000/a.mp4", link("/etc/passwd"), LINK),
    "a video without an end": replaced("videos/chunk-000/a.mp4", link("/dev/zero"), LINK),
    "a link to nothing": replaced("a.txt", link("b.txt"), LINK),
    "a folder that is a link to itself": replaced("a", link("a"), LINK),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("hard_links", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["copied", "linked"])
def test_what_is_made_up_to_break_a_copy_is_named_and_nothing_is_left_behind(tmp_path, fault, hard_links):
    folder = without_images(tmp_path / "in", lengths=(4, 5))
    (folder / "videos/chunk-000").mkdir(parents=True, exist_ok=True)
    sentence = fault(folder)
    with pytest.raises(DataError) as said:
        write_labeled_copy(folder, tmp_path / "new/out", LABELS, hard_links=hard_links)
    assert sentence in str(said.value) and "\n" not in str(said.value)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_labels_of_a_file_are_not_made_for_rows_that_are_only_claimed(tmp_path):
    folder = without_images(tmp_path / "in", lengths=(4, 5))
    claimed_length(folder)
    with pytest.raises(DataError, match="its meta/ lists 1,000,000,000,000 rows of these"):
        labels_of_file(folder, {1: 2})


@contextmanager
def small_disk(most: int) -> Iterator[None]:
    """No file may have more bytes than this; for a new process that reads data sets and writes copies."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with pytest.MonkeyPatch.context() as patch:
        server = ForkServer("decoder", "plaudit.data.formats.worker:serve", decoder._ENVIRONMENT)
        patch.setattr(decoder, "_SERVER", server)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("film", [True, False])
def test_a_disk_that_fails_in_the_middle_is_named_and_nothing_is_left_behind(tmp_path, film):
    folder = without_images(tmp_path / "in", lengths=(4, 5 if film else 5000))  # 3 kB, or 200 kB
    if film:
        (folder / "film.mp4").write_bytes(bytes(50_000))
    with small_disk(20_000), pytest.raises(DataError, match=f"{tmp_path}: the copy was not written: .*file too large"):
        write_labeled_copy(folder, tmp_path / "out", LABELS)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


@pytest.mark.parametrize("way", ["a file/out", "a loop", "a loop/out"])
def test_a_target_that_cannot_be_made_is_named_and_nothing_is_touched(tmp_path, way):
    folder = without_images(tmp_path / "in", lengths=(4, 5))
    (tmp_path / "a file").write_text("mine")
    (tmp_path / "a loop").symlink_to("a loop")
    before = file_bytes(tmp_path)
    with pytest.raises(
        DataError, match=r"the copy was not written|cannot be made, since a file is a file; nothing was written"
    ):
        write_labeled_copy(folder, tmp_path / way, LABELS)
    assert file_bytes(tmp_path) == before and len(list(tmp_path.iterdir())) == 3


def test_hard_links_to_another_disk_are_refused(tmp_path):
    elsewhere = Path("/dev/shm")
    if not elsewhere.is_dir() or elsewhere.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is one disk only")
    folder, target = without_images(tmp_path / "in", lengths=(4, 5)), elsewhere / f"plaudit-{os.getpid()}-copy"
    (folder / "a.txt").write_text("a")
    with pytest.raises(DataError, match=r"the copy cannot have a hard link to this \(.*cross-device.*--hard-links"):
        write_labeled_copy(folder, target, LABELS, hard_links=True)
    assert not target.exists() and not target.with_name(f".{target.name}.partial").exists()


@pytest.mark.slow
def test_a_large_table_of_images_has_the_room_that_it_needs(tmp_path):
    """300 MB that no compression makes smaller, in one row group."""
    folder = without_images(tmp_path / "in", lengths=(4, 3000))
    table = pq.read_table(folder / TABLE).append_column("image", pa.array(os.urandom(100_000) for _ in range(3000)))
    pq.write_table(table, folder / TABLE, row_group_size=3000)
    write_labeled_copy(folder, tmp_path / "out", LABELS)
    assert pq.read_table(tmp_path / "out" / TABLE, columns=["image"]).equals(table.select(["image"]))
