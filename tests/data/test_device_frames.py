"""Frames of replay in a device's memory: batches are those that are read from the disk."""

import numpy as np
import pytest
import torch

from plaudit.data.batch import FeatureCache
from plaudit.data.device_frames import DeviceFrames, FramesDoNotFit
from plaudit.data.replay import ReplaySampler
from plaudit.data.store import Store
from plaudit.types import Episode, Labels

SIZE = 6
EPISODE_BYTES = 2 * SIZE * SIZE * 3 * 11


def add_episode(store: Store, seed: int, steps: int = 10) -> int:
    rng = np.random.default_rng(seed)
    frames = {camera: rng.integers(0, 256, (steps + 1, SIZE, SIZE, 3), np.uint8) for camera in ("front", "wrist")}
    episode = Episode.of(frames=frames, state=rng.normal(size=(steps + 1, 2)), actions=rng.normal(size=(steps, 3)))
    episode_id = store.append(episode)
    store.ledger.append(episode_id, Labels.from_cutoff(steps=steps, cutoff=steps - 1, source="human"))
    return episode_id


@pytest.fixture
def stores(tmp_path):
    with Store.create(tmp_path / "demos") as demos, Store.create(tmp_path / "own", capacity_episodes=4) as own:
        for seed in range(3):
            add_episode(demos, seed)
            add_episode(own, 10 + seed, steps=7 + seed)
        yield demos, own


def assert_same_batches(one: ReplaySampler, other: ReplaySampler) -> None:
    first, second = (sampler.sample_torch(64, "cpu") for sampler in (one, other))
    assert torch.equal(first.episode, second.episode) and torch.equal(first.step, second.step)
    for images, expected in ((first.images, second.images), (first.next_images, second.next_images)):
        assert images.keys() == expected.keys() == {"front", "wrist"}
        assert all(torch.equal(images[camera], expected[camera]) for camera in images)


@pytest.mark.parametrize("n_step", [1, 3])
def test_batches_are_those_from_the_disk_also_after_episodes_were_evicted(stores, n_step):
    own = stores[1]
    frames = DeviceFrames("cpu", max_bytes=30 * EPISODE_BYTES)
    fast, plain = (ReplaySampler.mix(*stores, n_step=n_step, frames=each, seed=1) for each in (frames, None))
    for seed in range(20):  # the second store evicts, so slots are used again
        assert_same_batches(fast, plain)
        add_episode(own, 100 + seed, steps=5 + seed % 7)
        fast.refresh()
        plain.refresh()
    assert own.ids[0] > 10


def test_features_are_kept_in_the_same_way(stores):
    encode = lambda frames: {camera: each.mean(axis=(1, 2), dtype=np.float32) for camera, each in frames.items()}  # noqa: E731
    cache = FeatureCache(encode, {"front": (3,), "wrist": (3,)}, "fingerprint")
    frames = DeviceFrames("cpu", max_bytes=1 << 20)
    fast, plain = (ReplaySampler.mix(*stores, features=cache, frames=each, seed=1) for each in (frames, None))
    assert_same_batches(fast, plain)


def test_frames_that_do_not_fit_are_an_error_or_read_from_the_disk(stores):
    with pytest.raises(FramesDoNotFit, match=r"run\.replay_on_gpu=false"):
        ReplaySampler.mix(*stores, frames=DeviceFrames("cpu", max_bytes=4 * EPISODE_BYTES))
    optional = DeviceFrames("cpu", max_bytes=4 * EPISODE_BYTES, required=False)
    fast, plain = (ReplaySampler.mix(*stores, frames=each, seed=1) for each in (optional, None))
    assert_same_batches(fast, plain)
