"""Videos as they are written."""

import os
from pathlib import Path

import numpy as np
import pytest

from plaudit.data.formats.video import CODECS, VideoWriter

TASKS = Path("/proc/self/task")


@pytest.mark.skipif(not TASKS.exists(), reason="scheduling is looked at on Linux")
@pytest.mark.parametrize("codec", CODECS)
def test_an_encoder_takes_no_priority_over_what_else_runs(tmp_path, codec):
    """SVT-AV1 takes the highest real-time priority where it may: run this as root to see it."""
    before = os.sched_getscheduler(0)
    writer = VideoWriter(tmp_path / "video.mp4", 10, 64, 64, codec, None)
    writer.append(np.zeros((3, 64, 64, 3), np.uint8))
    threads = {os.sched_getscheduler(int(thread.name)) for thread in TASKS.iterdir()}
    writer.close()
    assert (threads, os.sched_getscheduler(0)) == ({before}, before)
