"""Data sets from somebody who means no good: the rest of their episodes come in, and nothing else happens."""

import json
import os
import shutil
import socket
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from av.error import FFmpegError
from lerobot_v21 import CAMERA, SIZE, write_v21

from conftest import counting_episode, labeled_store
from plaudit.cli.data import chosen_ids
from plaudit.data.formats import ReadOptions, WriteOptions, lerobot
from plaudit.data.formats.decoder import load_npy, load_pickle, open_in_worker
from plaudit.data.formats.images import BadImage, decode_image
from plaudit.data.store import Store
from plaudit.data.transfer import export_dataset, import_dataset
from plaudit.errors import BadFile, DataError, EpisodeNotFound
from plaudit.files import Root
from plaudit.report.video import visualize_positives

EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 64 48\n%%EndComments\nshowpage\n%%EOF\n"


def with_images(folder):
    store = labeled_store(folder.parent / "a", *(counting_episode(4, first=9 * i) for i in range(3)), cutoff=3)
    export_dataset(store, folder, "lerobot", WriteOptions(video=False))
    return folder


def change_image(folder, entry):
    path = folder / "data/chunk-000/file-000.parquet"
    rows = pq.read_table(path).to_pylist()
    rows[6]["observation.images.front"] = entry
    pq.write_table(pa.Table.from_pylist(rows), path)


def change_info(folder, **keys):
    path = folder / "meta/info.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))


def test_an_eps_is_no_image_and_starts_no_program(tmp_path, monkeypatch):
    program = tmp_path / "bin/gs"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    with pytest.raises(BadImage, match="it is no PNG, JPEG, WEBP or BMP"):
        decode_image(EPS, "front", 48, 64)
    assert not (tmp_path / "started").exists()


def test_an_image_of_another_size_is_refused_before_it_is_decoded():
    header = struct.pack("!IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n" + struct.pack("!I", 13) + b"IHDR" + header + b"\0" * 4
    with pytest.raises(BadImage):
        decode_image(png, "front", 48, 64)


@pytest.mark.parametrize("path", ["/etc/passwd", "../../secret.png", "http://127.0.0.1:9/a.png", "/dev/zero"])
def test_an_image_elsewhere_costs_its_episode_alone(tmp_path, path):
    change_image(with_images(tmp_path / "in"), {"bytes": None, "path": path})
    report = import_dataset(tmp_path / "in", tmp_path / "s")
    assert len(report.ids) == 2
    assert "lies outside of this folder; it was not opened" in report.failed[0]


@pytest.mark.parametrize(
    "template", ["/etc/passwd", "../{episode_index}", "{episode_index:>2000000000}", "{episode_index.__class__}", "{"]
)
def test_a_template_does_no_more_than_name_a_file_of_the_data_set(tmp_path, template):
    change_info(write_v21(tmp_path / "in", (3,)), data_path=template)
    with pytest.raises(BadFile):
        import_dataset(tmp_path / "in", tmp_path / "s")


@pytest.mark.parametrize(
    "content",
    [
        b"#EXTM3U\n#EXTINF:1,\nhttp://127.0.0.1:9/a.ts\n#EXT-X-ENDLIST\n",
        b"ffconcat version 1.0\nfile '/etc/passwd'\n",
        b"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nm=video 5004 RTP/AVP 96\n",
    ],
)
def test_a_playlist_is_no_video(tmp_path, content):
    write_v21(tmp_path / "in", (3, 3))
    (tmp_path / f"in/videos/chunk-000/{CAMERA}/episode_000001.mp4").write_bytes(content)
    report = import_dataset(tmp_path / "in", tmp_path / "s")
    assert len(report.ids) == 1
    assert "neither MP4 nor Matroska" in report.failed[0]


def test_a_playlist_connects_to_nobody(tmp_path):
    """ffmpeg with its own settings asks the listener for the playlist's file, so silence means that nobody asked."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/a.ts"
        playlist = f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{url}\n#EXT-X-ENDLIST\n"
        write_v21(tmp_path / "in", (3, 3))
        (tmp_path / f"in/videos/chunk-000/{CAMERA}/episode_000001.mp4").write_text(playlist)
        assert len(import_dataset(tmp_path / "in", tmp_path / "s").failed) == 1
        listener.settimeout(0)
        with pytest.raises(BlockingIOError):
            listener.accept()
        (tmp_path / "a.m3u8").write_text(playlist)
        listener.settimeout(60)
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(lambda: listener.accept()[0].close())
            with pytest.raises(FFmpegError):
                av.open(str(tmp_path / "a.m3u8"), options={"protocol_whitelist": "file,http,tcp"}, timeout=60)
            asked.result()


def test_a_pipe_in_place_of_a_table_does_not_hang_the_import(tmp_path):
    write_v21(tmp_path / "in", (3, 3))
    path = tmp_path / "in/data/chunk-000/episode_000001.parquet"
    path.unlink()
    os.mkfifo(path)
    report = import_dataset(tmp_path / "in", tmp_path / "s")
    assert (len(report.ids), len(report.failed)) == (1, 1)
    assert "this is a pipe and not a file" in report.failed[0]


def test_linked_data_comes_in_where_the_user_says_so(tmp_path):
    write_v21(tmp_path / "in", (3, 3))
    path = tmp_path / "in/data/chunk-000/episode_000001.parquet"
    path.rename(tmp_path / "blob")
    path.symlink_to(tmp_path / "blob")
    assert len(import_dataset(tmp_path / "in", tmp_path / "s").failed) == 1
    assert import_dataset(tmp_path / "in", tmp_path / "s", ReadOptions(follow_links=True)).failed == []


def test_a_line_of_the_list_that_is_none_costs_one_episode(tmp_path):
    write_v21(tmp_path / "in", (3, 3, 3))
    path = tmp_path / "in/meta/episodes.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], '{"episode_index": 1, "length": NaN}', lines[2][:-4]]))
    report = import_dataset(tmp_path / "in", tmp_path / "s")
    assert (len(report.ids), len(report.failed)) == (1, 2)


def test_an_episode_that_claims_a_billion_rows_is_refused_by_its_size(tmp_path):
    write_v21(tmp_path / "in", (3, 3))
    path = tmp_path / "in/meta/episodes.jsonl"
    path.write_text(path.read_text().replace('"length": 3', '"length": 1000000000', 1))
    report = import_dataset(tmp_path / "in", tmp_path / "s")
    assert "would take 8,583.1 GB in memory" in report.failed[0] and len(report.ids) == 1


def test_a_small_table_of_equal_rows_without_end_is_not_unfolded(tmp_path):
    write_v21(tmp_path / "in", (3, 3))
    path = tmp_path / "in/data/chunk-000/episode_000001.parquet"
    rows = pa.concat_tables([pq.read_table(path).slice(0, 1)] * 4096).combine_chunks()
    with pq.ParquetWriter(path, rows.schema, compression="zstd") as writer:
        for _ in range(40):
            writer.write_table(pa.concat_tables([rows] * 32))
    report = import_dataset(tmp_path / "in", tmp_path / "s")
    assert "more than any recording does" in report.failed[0] and len(report.ids) == 1


def test_an_episode_is_measured_by_the_frames_of_its_video_and_not_by_its_padding(tmp_path):
    write_v21(tmp_path / "in", (3, 3))
    rows = 30_000  # 276 MB of frames
    path = tmp_path / "in/data/chunk-000/episode_000001.parquet"
    row = pq.read_table(path).slice(0, 1).drop_columns(["timestamp"])
    times = pa.array(np.arange(rows) / 10, pa.float32())
    pq.write_table(pa.concat_tables([row] * rows).combine_chunks().append_column("timestamp", times), path)
    lines = tmp_path / "in/meta/episodes.jsonl"
    first, second = lines.read_text().splitlines()
    lines.write_text("\n".join([first, second.replace('"length": 3', f'"length": {rows}')]))
    with (tmp_path / f"in/videos/chunk-000/{CAMERA}/episode_000001.mp4").open("ab") as video:
        video.write(struct.pack("!I", 1 << 20) + b"free" + bytes((1 << 20) - 8))
    report = import_dataset(tmp_path / "in", tmp_path / "s")
    assert len(report.ids) == 1
    assert "bytes of coded frames, more than any recording does" in report.failed[0]


def test_a_video_with_more_frames_than_rows_is_told(tmp_path):
    videos = write_v21(tmp_path / "in", (5, 3)) / f"videos/chunk-000/{CAMERA}"
    assert not import_dataset(tmp_path / "in", tmp_path / "sound").notes
    shutil.copy(videos / "episode_000000.mp4", videos / "episode_000001.mp4")
    report = import_dataset(tmp_path / "in", tmp_path / "s")
    assert len(report.ids) == 2
    assert "(first episode_000001.mp4, episode 1: 5 for 3) and may belong to another episode" in report.notes[0]


def test_timestamps_that_are_nan_are_told(tmp_path):
    write_v21(tmp_path / "in", (3, 3))
    path = tmp_path / "in/data/chunk-000/episode_000001.parquet"
    table = pq.read_table(path)
    nan = pa.array([float("nan")] * 3, pa.float32())
    pq.write_table(table.set_column(table.schema.get_field_index("timestamp"), "timestamp", nan), path)
    report = import_dataset(tmp_path / "in", tmp_path / "s")
    assert len(report.ids) == 2 and "frames are taken by number" in report.notes[0]


def test_a_process_that_dies_over_an_episode_costs_that_episode_alone(tmp_path):
    """The reader process is ended from outside before its second episode, as a crash of a decoder would end it."""
    write_v21(tmp_path / "in", (3, 3, 3))
    with open_in_worker(tmp_path / "in") as dataset:
        first, _ = dataset.sources[0].load()
        os.kill(dataset.sources[0].load.func.__self__.process._pid, 11)  # pyright: ignore
        with pytest.raises(BadFile, match=r"the process that read this was lost .*SIGSEGV"):
            dataset.sources[1].load()
        again, _ = dataset.sources[0].load()
    assert np.array_equal(first.actions, again.actions)


@pytest.mark.parametrize(
    "answer", [b"[1]", b"{", b"[{}, []]", b'[{"array": ["O", [1], 0]}, [0]]', b"[1, [-1]]", b"[" * 99999, None]
)
def test_an_answer_that_makes_no_sense_ends_the_process_that_gave_it(tmp_path, answer):
    """A process that a hostile file has taken over may say anything, and need not end by itself."""
    write_v21(tmp_path / "in", (3, 3))
    with open_in_worker(tmp_path / "in") as dataset:
        reader = dataset.sources[0].load.func.__self__  # pyright: ignore
        reader.process._connection, theirs = socket.socketpair()
        theirs.sendall(struct.pack("!q", 1 << 60) if answer is None else struct.pack("!q", len(answer)) + answer)
        with pytest.raises(BadFile, match=r"the process that read this was lost \(its answer makes no sense\)"):
            dataset.sources[0].load()
        assert dataset.sources[0].load()[0].steps == 3


def test_what_the_reader_process_hands_over_is_what_the_reader_reads(tmp_path):
    with_images(tmp_path / "in")
    here = [source.load() for source in lerobot_sources(tmp_path / "in")]
    with open_in_worker(tmp_path / "in") as dataset:
        there = [source.load() for source in dataset.sources]
    for (one, said), (other, heard) in zip(here, there, strict=True):
        assert np.array_equal(one.frames["front"], other.frames["front"]) and one.meta == other.meta
        assert (one.task, one.fps, vars(one.origin)) == (other.task, other.fps, vars(other.origin))
        assert np.array_equal(said.targets, heard.targets, equal_nan=True) and said.judge == heard.judge


def lerobot_sources(folder):
    return lerobot.read(Root(folder), ReadOptions()).sources


BOMBS = {
    "14 bytes": b"\x80\x05\x96" + struct.pack("<Q", 4_200_000_000) + b".",
    "bytes": b"\x80\x04B" + struct.pack("<I", 4_200_000_000) + b".",
    "number": b"\x80\x04\x8b" + struct.pack("<i", 2**31 - 1) + b".",
    "frame": b"\x80\x04\x95" + struct.pack("<Q", 2**60) + b".",
    "tuples as a key": b"\x80\x04})" + b"\x85" * 200_000 + b"Ns.",
    "lists": b"\x80\x04" + b"]" * 10_000 + b"a" * 9_999 + b".",
    "doubled": b"\x80\x04]\x94" + b"".join(bytes([104, i, 104, i]) + b"\x86\x94" for i in range(60)) + b".",
    "copies": b"\x80\x04c_codecs\nencode\nq\x00(X"
    + struct.pack("<I", 1 << 18)
    + b"x" * (1 << 18)
    + b"X\x06\0\0\0latin1tq\x01]("
    + b"h\x00h\x01R" * 2000
    + b"e.",
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_pickle_that_asks_for_more_than_it_is_is_refused(tmp_path, bomb):
    (tmp_path / "a.pkl").write_bytes(BOMBS[bomb])
    with pytest.raises(BadFile, match=r"cut short or damaged|process that read this was lost"):
        load_pickle(tmp_path / "a.pkl")


@pytest.mark.parametrize(
    "data",
    [
        b"\x93NUMPY\x01\0" + struct.pack("<H", 50_000) + b"[" * 50_000,
        b"\x93NUMPY\x02\0" + struct.pack("<I", 4_200_000_000),
        b"\x93NUMPY\x01\0" + struct.pack("<H", 1000) + b"(" * 1000,
    ],
)
def test_an_npy_header_without_end_is_refused(tmp_path, data):
    (tmp_path / "a.npy").write_bytes(data)
    with pytest.raises(BadFile, match="cut short or damaged"):
        load_npy(tmp_path / "a.npy")


def test_a_range_of_ids_is_looked_up_and_not_written_out(tmp_path):
    store = labeled_store(tmp_path / "a", counting_episode(4), counting_episode(4), cutoff=3)
    assert chosen_ids(store, "0-1") == [0, 1]
    with pytest.raises(EpisodeNotFound):
        chosen_ids(store, "0-4000000000")
    with pytest.raises(DataError, match="takes ids like"):
        chosen_ids(store, "²")


def test_frames_that_are_larger_than_any_camera_are_refused(tmp_path):
    write_v21(tmp_path / "in", (3,))
    info = json.loads((tmp_path / "in/meta/info.json").read_text())
    info["features"][CAMERA]["shape"] = [100_000, SIZE[1], 3]
    (tmp_path / "in/meta/info.json").write_text(json.dumps(info))
    with pytest.raises(BadFile, match="frames of 100000x64"):
        import_dataset(tmp_path / "in", tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_the_decoder_fits_its_memory_whatever_the_limit_on_stacks_is(tmp_path):
    """Clusters set it to gigabytes; each of the decoder's threads maps a stack of that size."""
    write_v21(tmp_path / "in")
    command = f"ulimit -S -s 1048576 && exec {sys.executable} -m plaudit data import in out"
    done = subprocess.run(["/bin/sh", "-c", command], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert Store.open(tmp_path / "out").ids


def test_a_list_of_episodes_that_is_a_link_out_is_not_walked_through(tmp_path):
    with_images(tmp_path / "in")
    shutil.rmtree(tmp_path / "in/meta/episodes")
    (tmp_path / "in/meta/episodes").symlink_to("/")
    with pytest.raises(DataError, match=r"reached through .episodes., which is a link or no folder"):
        import_dataset(tmp_path / "in", tmp_path / "s")


@pytest.mark.parametrize("camera", ["../../../escaped", "/tmp/escaped", "a/b", "\x1b[2J", "..", "x" * 60 + "/"])
def test_a_camera_whose_name_is_a_path_leads_nowhere(tmp_path, camera):
    episode = counting_episode(4)
    store = labeled_store(tmp_path / "s", replace(episode, frames={camera: episode.frames["front"]}), cutoff=2)
    with pytest.raises(DataError, match="is not a valid folder name in a LeRobot data set"):
        export_dataset(store, tmp_path / "out/set", "lerobot", WriteOptions(codec="h264"))
    assert not list(tmp_path.rglob("*escaped*.mp4")) and not (tmp_path / "out/set").exists()


def test_a_name_of_somebody_else_is_part_of_a_file_name_and_no_path(tmp_path):
    episode = counting_episode(4)
    meta = {"folder": "../../x", "file": "../../../etc/passwd"}
    frames = dict.fromkeys(("../a", "/b"), episode.frames["front"])
    store = labeled_store(tmp_path / "s", replace(episode, frames=frames, meta=meta), cutoff=2)
    count = visualize_positives(store, tmp_path / "shown", list(frames), {"human", "cutoff"})
    assert count and len(list((tmp_path / "shown").iterdir())) == count


def test_an_empty_line_in_the_list_of_episodes_is_an_episode_that_is_named(tmp_path):
    folder = write_v21(tmp_path / "in")
    lines = (folder / "meta/episodes.jsonl").read_text().splitlines()
    (folder / "meta/episodes.jsonl").write_text("\n".join([lines[0], "", lines[2], ""]))
    report = import_dataset(folder, tmp_path / "out")
    assert len(report.ids) == 2
    assert "episode 1 was left out" in report.failed[0] and "in line 2" in report.failed[0]


def set_owner(table, rows, episode):
    found = pq.read_table(table)
    owner = found["episode_index"].to_numpy().copy()
    owner[rows] = episode
    pq.write_table(found.set_column(found.column_names.index("episode_index"), "episode_index", pa.array(owner)), table)


def test_a_table_of_another_episode_than_meta_says_is_refused_with_its_row(tmp_path):
    folder = write_v21(tmp_path / "in")
    set_owner(folder / "data/chunk-000/episode_000001.parquet", slice(None), 0)
    report = import_dataset(folder, tmp_path / "out")
    assert len(report.ids) == 2
    assert (
        "episode_000001.parquet: row 0 belongs to episode 0 by its 'episode_index' and to episode 1" in report.failed[0]
    )


@pytest.mark.parametrize(
    ("rows", "episodes", "wrong"), [([1, 4], [1, 0], (1, 1)), (range(8), [1] * 4 + [0] * 4, (0, 1))], ids=["two", "all"]
)
def test_rows_that_two_episodes_exchanged_are_refused(tmp_path, rows, episodes, wrong):
    folder = with_images(tmp_path / "in")
    set_owner(folder / "data/chunk-000/file-000.parquet", [*rows], episodes)
    report = import_dataset(folder, tmp_path / "out")
    assert len(report.ids) == 1
    assert f"row {wrong[0]} belongs to episode {wrong[1]} by its 'episode_index' and to episode 0" in report.failed[0]


@pytest.mark.parametrize("shape", [[*SIZE], [*SIZE, 4], [1, *SIZE, 3]])
def test_a_camera_of_an_odd_shape_is_an_error_that_says_what_to_do(tmp_path, shape):
    folder = write_v21(tmp_path / "in")
    path = folder / "meta/info.json"
    info = json.loads(path.read_text())
    info["features"]["observation.images.odd"] = {**info["features"][CAMERA], "shape": shape}
    path.write_text(json.dumps(info))
    with pytest.raises(DataError, match=r"camera 'odd' has the shape .*; correct 'shape' .*--camera cam_high"):
        import_dataset(folder, tmp_path / "out")
    assert len(import_dataset(folder, tmp_path / "out", ReadOptions(cameras=["cam_high"])).ids) == 3


def test_a_depth_camera_is_left_out_with_a_note(tmp_path):
    folder = write_v21(tmp_path / "in")
    path = folder / "meta/info.json"
    info = json.loads(path.read_text())
    info["features"]["observation.images.depth"] = {"dtype": "video", "shape": [*SIZE, 1]}
    path.write_text(json.dumps(info))
    report = import_dataset(folder, tmp_path / "out")
    assert len(report.ids) == 3 and "camera 'depth' has the shape [48, 64, 1]" in report.notes[0]


def test_episodes_of_one_data_set_that_are_alike_are_all_imported_once(tmp_path):
    folder = write_v21(tmp_path / "in", lengths=(9, 9))
    for table in ("data/chunk-000/episode_{}.parquet", f"videos/chunk-000/{CAMERA}/episode_{{}}.mp4"):
        (folder / table.format("000001")).write_bytes((folder / table.format("000000")).read_bytes())
    set_owner(folder / "data/chunk-000/episode_000001.parquet", slice(None), 1)
    assert len(import_dataset(folder, tmp_path / "out").ids) == 2
    again = import_dataset(folder, tmp_path / "out")
    assert not again.ids and again.already_imported == 2


def test_frames_of_a_camera_that_an_episode_does_not_have_are_a_sentence(tmp_path):
    store = labeled_store(tmp_path / "s", counting_episode(4), cutoff=2)
    with pytest.raises(DataError, match="episode 0 has no camera 'top'; known: front"):
        visualize_positives(store, tmp_path / "show", ["top"], {"human", "cutoff"})
