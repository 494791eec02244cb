"""A data set may take more memory than its decoder has: no episode is lost."""

import gc
import os
import resource
import subprocess
import sys
import weakref
from functools import partial

import numpy as np
import pytest
import small_decoders

from conftest import labeled_store
from plaudit.data.formats import WriteOptions, decoder
from plaudit.data.formats.decoder import encode, open_in_worker
from plaudit.data.store import Store
from plaudit.data.transfer import export_dataset
from plaudit.processes import ForkServer
from plaudit.types import Episode
from processes import PATHS

STEPS, HEIGHT, WIDTH, TIMES = 8, 480, 640, 14


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """LeRobot, with images in its tables: one episode whose frames are all alike."""
    folder = tmp_path_factory.mktemp("large")
    frames = {"front": np.full((STEPS + 1, HEIGHT, WIDTH, 3), 7, np.uint8)}
    assert TIMES * frames["front"].nbytes > small_decoders.SPARE + 2 * frames["front"].nbytes
    store = labeled_store(folder / "store", Episode.of(frames=frames, actions=np.zeros((STEPS, 1)), fps=10.0), cutoff=3)
    export_dataset(store, folder / "dataset", "lerobot", WriteOptions(video=False))
    return folder / "dataset"


def test_no_episode_is_lost_if_a_decoder_keeps_its_memory(dataset, monkeypatch):
    server = ForkServer("decoder", "small_decoders:serve", decoder._ENVIRONMENT)
    monkeypatch.setattr(decoder, "_SERVER", server)
    with open_in_worker(dataset) as opened:
        for _ in range(TIMES):
            episode, labels = opened.sources[0].load()
            assert (episode.frames["front"] == 7).all() and labels.success.any()
    server._close()


def test_a_message_that_was_sent_is_freed_at_once():
    gc.disable()
    try:
        array = np.zeros(8)
        freed = weakref.ref(array)
        encode({"frames": [(array, {"a": b"b"})]})
        del array
        assert freed() is None
    finally:
        gc.enable()


READ = """
import sys
from plaudit.data.store import Store
from plaudit.errors import PlauditError
try:
    Store.open(sys.argv[1]).episode(0).frames["front"][:]
except PlauditError as error:
    print(error)
"""


def test_a_limit_on_the_size_of_files_is_named(tmp_path):
    frames = {"front": np.full((STEPS + 1, 16, 16, 3), 7, np.uint8)}
    with Store.create(tmp_path / "store", images="lossless") as store:
        store.append(Episode.of(frames=frames, actions=np.zeros((STEPS, 1))))
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (1000, 1000))
    command = [sys.executable, "-c", READ, str(tmp_path / "store")]
    env = {**os.environ, "PYTHONPATH": PATHS}
    done = subprocess.run(command, preexec_fn=limit, capture_output=True, text=True, env=env)
    assert "bytes of memory for decoded frames cannot be reserved (File too large); raise the limit" in done.stdout
