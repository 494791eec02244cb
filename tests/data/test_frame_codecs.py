"""Encoded frames: their values, damage in every codec, replay, and copies of a store with other codecs."""

import json
import os
import shutil
import signal
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

from command import plaudit
from conftest import as_stored, counting_episode, same_episode
from plaudit.data.check import check
from plaudit.data.disk import Folder
from plaudit.data.episode_keys import episode_keys
from plaudit.data.frame_codecs import GROUP, Codec, StoreImages, encode_block
from plaudit.data.journal import Journal
from plaudit.data.ledger import Failures
from plaudit.data.replay import ReplaySampler
from plaudit.data.store import Store
from plaudit.data.transfer import repack
from plaudit.errors import DataError, InvalidEpisode, StoreDamaged, StoreError, TargetNotEmpty
from plaudit.types import Episode, Labels, LazyFrames

CODECS = ["lossless", "jpeg:90", "video:18"]
codecs = pytest.mark.parametrize("images", CODECS)


def smooth_episode(steps: int = 9, seed: int = 0) -> Episode:
    """Two cameras that look at gradients which move, with a little noise."""
    rng, t = np.random.default_rng(seed), np.arange(steps + 1)[:, None, None, None]
    y, x, color = np.ogrid[:32, :48, :3]
    waves = 128 + 90 * np.sin((x + 2 * t + seed) / 9 + color) * np.cos((y - t) / 7)
    frames = np.clip(waves + rng.normal(0, 2, (steps + 1, 32, 48, 3)), 0, 255).astype(np.uint8)
    return Episode.of(
        frames={"front": frames, "wrist": frames[:, ::-1, ::-1]},
        state=rng.normal(size=(steps + 1, 3)),
        actions=rng.normal(size=(steps, 2)),
    )


def make_store(folder: Path, images: str, episodes: int = 3) -> Store:
    store = Store.create(folder, images=images)
    for n in range(episodes):
        episode = smooth_episode(6 + n, seed=n)
        store.ledger.append(store.append(episode), Labels.from_cutoff(steps=episode.steps, cutoff=3, source="human"))
    return store


@pytest.mark.parametrize(("images", "decibels"), [("lossless", None), ("jpeg:90", 34), ("jpeg:50", 30), ("video", 34)])
def test_frames_come_back_equal_or_nearly_so(tmp_path, images, decibels):
    episode = smooth_episode()
    with make_store(tmp_path / "s", images) as store:
        store.append(episode)
    found = Store.open(tmp_path / "s").episode(3)
    assert same_episode(found, as_stored(episode, images))
    for camera, frames in episode.frames.items():
        error = np.square(found.frames[camera].astype(float) - frames).mean()
        assert error == 0 if decibels is None else 10 * np.log10(255**2 / error) > decibels


@pytest.mark.parametrize("images", ["raw", *CODECS])
def test_a_few_frames_are_read_without_the_whole_episode(tmp_path, images):
    with make_store(tmp_path / "s", images) as store:
        whole = np.asarray(store.episode(1).frames["wrist"])
        some = Store.open(tmp_path / "s").some_frames(1, "wrist", [7, 0, 7, 3])
        assert np.array_equal(some, whole[[7, 0, 7, 3]])
        for camera, frame in (("hand", 0), ("wrist", 8), ("wrist", -1)):
            with pytest.raises(DataError, match=r"it has: front, wrist|has frames 0 to 7"):
                store.some_frames(1, camera, [frame])


def test_each_camera_has_its_own_codec_and_info_shows_both_sizes(tmp_path):
    with make_store(tmp_path / "s", "video,wrist=lossless") as store:
        front, wrist = store.episode(0).frames["front"], store.episode(0).frames["wrist"]
        assert not np.array_equal(front, smooth_episode(6).frames["front"])
        assert np.array_equal(wrist, smooth_episode(6).frames["wrist"])
        assert store.nbytes == sum(path.stat().st_size for path in (tmp_path / "s").rglob("*.bin"))
        raw = sum(i + 7 for i in range(3)) * (2 * 32 * 48 * 3 + store.segments[0].schema.step_dtype.itemsize)
        assert store.raw_nbytes == raw
    told = plaudit("data", "info", "s", cwd=tmp_path)
    assert f"of {raw:,} raw" in told and "front 32x48 video:18" in told and "32x48 lossless" in told


ENCODE = """
import zlib
import numpy as np
from plaudit.data.frame_codecs import Codec, encode_block
small = np.random.default_rng(0).integers(0, 256, (12, 30, 40, 3), dtype=np.uint8)
print(zlib.crc32(encode_block(Codec.parse("video"), small.repeat(8, 1).repeat(8, 2))))
"""


def test_equal_frames_become_an_equal_video_whatever_is_in_the_memory():
    """glibc fills memory that is new or free with the given byte, or with its complement."""
    command = [sys.executable, "-c", ENCODE]
    said = [subprocess.check_output(command, env={**os.environ, "MALLOC_PERTURB_": str(byte)}) for byte in (0, 1)]
    assert said[0] == said[1]


@codecs
def test_odd_sizes_and_single_groups(tmp_path, images):
    episode = counting_episode(steps=GROUP - 1, size=(7, 9))
    with Store.create(tmp_path / "s", images=images) as store:
        if images.startswith("video"):
            with pytest.raises(InvalidEpisode, match=r"video:18 cannot store 7x9 frames .*even sizes; use jpeg"):
                store.append(episode)
            episode = counting_episode(steps=GROUP - 1, size=(8, 10))
        store.append(episode)
        assert same_episode(store.episode(0), as_stored(episode, images))
    assert check(tmp_path / "s").ok


@pytest.mark.parametrize("images", ["raw", *CODECS])
def test_replay_returns_what_the_store_decodes(tmp_path, images):
    store = make_store(tmp_path / "s", images)
    for history in (0, 2):
        batch = ReplaySampler(store, seed=0, history=history).sample(64)
        for camera in ("front", "wrist"):
            for i, (episode_id, step) in enumerate(zip(batch.episode.tolist(), batch.step.tolist())):
                frames = store.episode(episode_id).frames[camera]
                first = [max(0, step - back) for back in range(history + 1)] if history else step
                assert np.array_equal(batch.images[camera][i], frames[first])
                following = step + 1
                after = [max(0, following - back) for back in range(history + 1)] if history else following
                assert np.array_equal(batch.next_images[camera][i], frames[after])


@codecs
def test_a_flipped_bit_anywhere_in_the_frames_is_found(tmp_path, images):
    make_store(tmp_path / "s", images).close()
    path = tmp_path / "s/segments/000000/camera.front.bin"
    before, rng = path.read_bytes(), np.random.default_rng(0)
    ends = [sum(block) for block in Store.open(tmp_path / "s").segments[0].blocks["camera.front"].values()]
    for position in [0, 5, ends[0], len(before) - 1, *rng.integers(0, len(before), 8).tolist()]:
        data = bytearray(before)
        data[position] ^= 1 << int(rng.integers(8))
        path.write_bytes(data)
        hit = int(np.searchsorted(ends, position, side="right"))
        store = Store.open(tmp_path / "s")
        for episode_id in range(3):
            if episode_id == hit:
                with pytest.raises(StoreDamaged, match=r"camera.front.bin fails its checksum"):
                    store.episode(episode_id)
            else:
                assert same_episode(
                    store.episode(episode_id), as_stored(smooth_episode(6 + episode_id, episode_id), images)
                )
    with pytest.raises(StoreDamaged, match="fails its checksum"):
        ReplaySampler(Store.open(tmp_path / "s"), seed=0).sample(64)
    assert check(tmp_path / "s", repair=True).ok
    assert len(Store.open(tmp_path / "s")) == 2


@codecs
def test_a_truncated_file_costs_only_the_episodes_that_it_cuts(tmp_path, images):
    make_store(tmp_path / "s", images).close()
    path = tmp_path / "s/segments/000000/camera.wrist.bin"
    store = Store.open(tmp_path / "s")
    assert store.episode(2).frames["wrist"].shape == (9, 32, 48, 3)
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(StoreDamaged, match=r"camera.wrist.bin has .* run 'plaudit data check"):
        store.episode(2)
    assert same_episode(store.episode(1), as_stored(smooth_episode(7, 1), images))
    assert check(tmp_path / "s", repair=True).ok
    with Store.open(tmp_path / "s", write=True) as again:
        assert again.ids == [0, 1]
        assert same_episode(again.episode(again.append(smooth_episode(5))), as_stored(smooth_episode(5), images))
    assert check(tmp_path / "s").ok


def replace_block(folder: Path, block: bytes) -> None:
    """Put a block of somebody else in place of an episode's, with the right checksum."""
    store = Store.open(folder)
    line, header = store.entry(0).line, store._journal.header
    path = folder / "segments/000000/camera.front.bin"
    path.write_bytes(block)
    line["blocks"]["camera.front"] = [0, len(block)]
    line["crc"]["camera.front"] = zlib.crc32(block)
    segment = {"op": "segment", "segment": 0, "schema": store.segments[0].schema.to_json()}
    for name in ("journal", "journal.head"):
        (folder / name).unlink()
    Journal.create(folder / "journal", Folder(folder), header=header)
    journal = Journal(folder / "journal", lambda record, place: None, Folder(folder), header=header)
    journal.read()
    journal.append([segment, line], exclusive=True)


@codecs
@pytest.mark.parametrize("damage", ["noise", "empty", "other size", "table", "short", "fewer"])
def test_hostile_frames_with_the_right_checksum_are_refused(tmp_path, images, damage):
    make_store(tmp_path / "s", images, episodes=1).close()
    codec, frames = Codec.parse(images), smooth_episode(6).frames["front"]
    block = bytearray(encode_block(codec, frames))
    table = np.frombuffer(block, "<u4", 8).copy()
    match damage:
        case "noise":
            block[table[0] :] = np.random.default_rng(0).bytes(len(block) - int(table[0]))
        case "empty":
            block = bytearray()
        case "other size":
            block = bytearray(encode_block(codec, frames[:, :16, :16]))
        case "table":
            block[0:32] = np.full(8, 0xFFFFFFF0, "<u4").tobytes()
        case "short":
            block = block[: int(table[-2])]
        case "fewer":
            block = bytearray(encode_block(codec, frames[:4]))
    replace_block(tmp_path / "s", bytes(block))
    store = Store.open(tmp_path / "s")
    with pytest.raises(StoreDamaged, match=r"camera.front.bin: frames match their checksum and cannot be decoded"):
        _ = store.episode(0).frames["front"]
    if damage not in ("short", "fewer"):  # replay uses no step after the success
        with pytest.raises(StoreDamaged, match="cannot be decoded"):
            ReplaySampler(store, seed=0).sample(64)


@pytest.mark.parametrize(
    ("blocks", "sentence"),
    [
        ({}, "its blocks are"),
        ({"camera.front": [0, 5], "camera.wrist": [-1, 5]}, "its blocks is"),
        ({"camera.front": [0, 1 << 40], "camera.wrist": [0, 5]}, "its blocks is"),
        ({"camera.front": [0, 5], "camera.other": [0, 5]}, "its blocks are"),
    ],
)
def test_a_line_with_blocks_that_make_no_sense_is_refused(tmp_path, blocks, sentence):
    store = make_store(tmp_path / "s", "jpeg", episodes=1)
    line = store.entry(0).line | {"id": 1, "blocks": blocks}
    store.close()
    journal = Journal(tmp_path / "s/journal", lambda record, place: None)
    journal.read()
    journal.append([line])
    with pytest.raises(StoreDamaged, match=sentence):
        Store.open(tmp_path / "s")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("png", "'png' is not a codec of frames; write raw, lossless, jpeg:90"),
        ("jpeg:101", "codec 'jpeg' takes a quality of 1 to 100, not 101"),
        ("video:0", "codec 'video' takes a quality of 1 to 51, not 0"),
        ("lossless:5", "codec 'lossless' takes no quality"),
        ("jpeg,video", "does not say how to store frames"),
        ("a=jpeg,a=raw", "does not say how to store frames"),
        ("=jpeg", "does not say how to store frames"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(tmp_path, text, sentence):
    with pytest.raises(DataError, match=sentence):
        Store.create(tmp_path / "s", images=text)
    assert not (tmp_path / "s").exists()


def test_a_codec_for_a_camera_that_an_episode_lacks_is_refused(tmp_path):
    with (
        Store.create(tmp_path / "s", images="raw,hand=jpeg") as store,
        pytest.raises(InvalidEpisode, match=r"a codec for camera 'hand'; the episode has: front, wrist"),
    ):
        store.append(smooth_episode())
    assert not len(store) and check(tmp_path / "s").ok


def test_depth_images_are_refused_by_every_codec():
    depth = np.zeros((5, 8, 8, 1), np.uint16)
    for codec in CODECS:
        with pytest.raises(ValueError, match=r"stores 8-bit color images \[T, H, W, 3\], not uint16 \[5, 8, 8, 1\]"):
            encode_block(Codec.parse(codec), depth)
    with pytest.raises(InvalidEpisode, match="must be uint8"):
        Episode.of(frames={"depth": depth}, actions=np.zeros((4, 1)))


def test_an_existing_store_keeps_its_codec(tmp_path):
    make_store(tmp_path / "s", "jpeg").close()
    with Store.open_or_create(tmp_path / "s") as store:
        assert str(store.settings.images) == "jpeg:90"
    with Store.open_or_create(tmp_path / "s", images="jpeg:90") as store:
        assert len(store) == 3
    with pytest.raises(
        StoreError, match=r"stores frames as jpeg:90, not video; .*plaudit data repack .* --images video"
    ):
        Store.open_or_create(tmp_path / "s", images="video")
    Store.open(tmp_path / "s", write=True).close()


def test_raw_stores_are_written_as_before(tmp_path):
    make_store(tmp_path / "s", "raw").close()
    tree = json.loads((tmp_path / "s/store.json").read_text())
    assert tree["version"] == 2 and "images" not in tree
    assert b"blocks" not in (tmp_path / "s/journal").read_bytes()
    assert not isinstance(Store.open(tmp_path / "s").episode(0).frames, LazyFrames)


def fill(folder: Path) -> Store:
    """A raw store with gaps between its ids, several labels, a failure, a draft and a request."""
    store = make_store(folder, "raw", episodes=6)
    store.write_off([1, 4])
    store.ledger.append(0, Labels.from_cutoff(steps=6, cutoff=None, source="classifier", note="again"))
    store.ledger.restore(2, 1)
    Failures(store.ledger).append([(3, "no answer")], "vlm", "m")
    (folder / "drafts").mkdir()
    (folder / "drafts/somebody.json").write_text("{}")
    store.close()
    return Store.open(folder)


def same_content(copy: Store, store: Store, images: str) -> bool:
    return (
        copy.ids == store.ids
        and copy.next_id == store.next_id
        and all(same_episode(copy.episode(i), as_stored(store.episode(i), images)) for i in store.ids)
        and all(copy.entry(i).line["time"] == store.entry(i).line["time"] for i in store.ids)
        and [(v.episode, v.number, v.time, v.source) for v in copy.ledger.since(0)]
        == [(v.episode, v.number, v.time, v.source) for v in store.ledger.since(0)]
        and [f.reason for f in Failures(copy.ledger).all()] == ["no answer"]
    )


def test_a_repacked_store_has_the_same_episodes_and_labels(tmp_path):
    store = fill(tmp_path / "s")
    told = plaudit("data", "repack", "s", "new", "--images", "jpeg:95,wrist=lossless", cwd=tmp_path)
    assert "4 episodes copied to new" in told and f"of {store.raw_nbytes:,} raw" in told
    copy = Store.open(tmp_path / "new")
    assert same_content(copy, store, "jpeg:95,wrist=lossless")
    assert (tmp_path / "new/drafts/somebody.json").read_text() == "{}"
    assert copy.settings.id != store.settings.id and check(tmp_path / "new").ok
    again = repack(tmp_path / "new", tmp_path / "again", "video")
    keys, copied = episode_keys(store, store.ids), episode_keys(again, again.ids)
    assert all(len(keys[i] & copied[i]) == 3 for i in store.ids)  # two cameras and the state
    assert not list(tmp_path.glob(".*"))


def deadly(real, nth: int):
    """A function that kills this process when it is called after `nth` times."""
    calls = 0

    def call(*args, **kwargs):
        nonlocal calls
        calls += 1
        if calls > nth:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **kwargs)

    return call


@pytest.mark.parametrize("call", ["pwrite", "rename"])
def test_a_repack_that_is_killed_goes_on_with_the_same_command(tmp_path, call):
    """Each command dies a few calls later than the one before it; the last one completes."""
    store = fill(tmp_path / "s")
    for nth in (0, 5, 20, 21, 40):
        child = os.fork()
        if child == 0:
            try:
                setattr(os, call, deadly(getattr(os, call), nth if call == "pwrite" else 0))
                repack(tmp_path / "s", tmp_path / "new", "jpeg")
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert Store.open(tmp_path / "s").ids == store.ids
        if (tmp_path / "new").exists():
            break
    copy = (
        Store.open(tmp_path / "new") if (tmp_path / "new").exists() else repack(store.folder, tmp_path / "new", "jpeg")
    )
    assert same_content(copy, store, "jpeg") and check(tmp_path / "new").ok


def test_a_repack_refuses_what_it_would_overwrite_or_mix(tmp_path, monkeypatch):
    store = fill(tmp_path / "s")
    (tmp_path / "new").mkdir()
    (tmp_path / "new/thesis").write_text("precious")
    with pytest.raises(TargetNotEmpty):
        repack(tmp_path / "s", tmp_path / "new", "jpeg")
    shutil.rmtree(tmp_path / "new")

    def interrupted(ids):
        yield ids[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        repack(tmp_path / "s", tmp_path / "new", "jpeg", interrupted)
    with pytest.raises(
        StoreError, match=r"an unfinished copy with frames as jpeg:90; continue it with --images jpeg:90"
    ):
        repack(tmp_path / "s", tmp_path / "new", "video")
    assert not (tmp_path / "new").exists()
    assert same_content(repack(tmp_path / "s", tmp_path / "new", "jpeg"), store, "jpeg")


@codecs
def test_stores_of_each_codec_take_the_same_setting_again(images):
    assert str(StoreImages.parse(images)) == images
    assert str(StoreImages.parse(f"raw,b={images},a=raw")) == f"raw,a=raw,b={images}"


def test_an_import_stores_frames_as_asked_and_reports_both_sizes(tmp_path):
    make_store(tmp_path / "s", "raw").close()
    plaudit("data", "export", "s", "out", "--to", "npy", cwd=tmp_path)
    told = plaudit("data", "import", "out", "small", "--store-images", "jpeg:80", cwd=tmp_path)
    store = Store.open(tmp_path / "small")
    assert f"{store.nbytes:,} bytes" in told and f"of {store.raw_nbytes:,} raw" in " ".join(told.split())
    assert str(store.settings.images) == "jpeg:80" and len(store) == 3
    told = plaudit("data", "import", "out", "small", "--store-images", "video", cwd=tmp_path, ok=False)
    assert "stores frames as jpeg:80, not video" in " ".join(told.split())
