"""Frames in and out of video files, through PyAV: exact in time, and loud when frames are missing."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.error import FFmpegError

from plaudit.data.lfs import unreadable
from plaudit.errors import BadFile, DataError
from plaudit.types import AnyArray, ByteArray

# name -> (encoder, default constant rate factor, other options). AV1 as LeRobot writes it: a key frame every second
# frame, so that any frame is one decode away.
CODECS: dict[str, tuple[str, int, dict[str, str]]] = {
    "av1": (
        "libsvtav1",
        30,
        {"preset": "8", "svtav1-params": "lp=1"},
    ),  # its threads were once seen to wait for each other
    "h264": ("libx264", 18, {"preset": "fast"}),
    "hevc": ("libx265", 20, {"preset": "fast", "x265-params": "log-level=none"}),
}


class FramesMissing(BadFile):
    """A video that can be read and does not show a frame at every time asked for."""


def read_frames(path: Path, times: AnyArray, tolerance: float, height: int, width: int) -> ByteArray:
    """The frames shown at `times` (ascending) as uint8 [N, H, W, 3], each within `tolerance`; both in seconds."""
    frames = np.empty((len(times), height, width, 3), np.uint8)
    found = 0
    try:
        with av.open(str(path)) as container:
            stream = container.streams.video[0]
            stream.thread_type = "AUTO"
            assert stream.time_base is not None
            if times[0] > tolerance:
                container.seek(int((times[0] - tolerance) / stream.time_base), stream=stream)
            for frame in container.decode(stream):
                if frame.pts is None:
                    continue
                time = float(frame.pts * stream.time_base)
                if time > times[found] + tolerance:
                    raise FramesMissing(
                        path, f"this video lacks frame {found}, at {times[found]:.3f} s; encode it again"
                    )
                if time < times[found] - tolerance:
                    continue
                if (frame.height, frame.width) != (height, width):
                    found_size, said_size = f"{frame.height}x{frame.width}", f"{height}x{width}"
                    raise BadFile(
                        path, f"frames are {found_size} where meta/info.json says {said_size}; correct either"
                    )
                frames[found] = frame.to_ndarray(format="rgb24")
                found += 1
                if found == len(times):
                    return frames
    except (FFmpegError, IndexError) as error:
        raise _broken(path, error) from error
    raise FramesMissing(
        path, f"this video ends after {found} of {len(times)} frames; copy it again from the data set's source"
    )


def frame_times(path: Path) -> AnyArray:
    """When each frame of a video is shown, in seconds and in order; nothing is decoded."""
    try:
        with av.open(str(path)) as container:
            stream = container.streams.video[0]
            packets = [packet for packet in container.demux(stream) if not packet.is_discard]
            shown = sorted(packet.pts for packet in packets if packet.pts is not None)
            assert stream.time_base is not None
            return np.array([float(pts * stream.time_base) for pts in shown])
    except (FFmpegError, IndexError) as error:
        raise _broken(path, error) from error


def _broken(path: Path, error: Exception) -> BadFile:
    if isinstance(error, FileNotFoundError):
        return BadFile(path, "this video is missing; copy it from the data set's source")
    return unreadable(path, f"this video cannot be read ({error}); copy it again from the data set's source")


class VideoWriter:
    """One file that frames of a single size are appended to."""

    def __init__(self, path: Path, fps: float, height: int, width: int, codec: str, quality: int | None):
        if codec not in CODECS:
            raise DataError(f"there is no codec '{codec}'; known: {', '.join(CODECS)}")
        if height % 2 or width % 2:
            raise DataError(f"{height}x{width} frames cannot be a video, which needs even sizes; write images instead")
        os.environ.setdefault("SVT_LOG", "1")  # the AV1 encoder prints its settings otherwise; 1 leaves errors
        encoder, default_quality, options = CODECS[codec]
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self.count, self.nbytes = path, 0, 0
        self._container = av.open(str(path), "w", options={"movflags": "faststart"})
        rate = Fraction(fps).limit_denominator(1_000_000)
        stream: Any = self._container.add_stream(
            encoder, rate=rate, options={"g": "2", "crf": str(quality or default_quality), **options}
        )
        stream.height, stream.width, stream.pix_fmt = height, width, "yuv420p"
        self._stream, self._tick = stream, 1 / rate

    def append(self, frames: ByteArray) -> None:
        for image in frames:
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
            frame.pts, frame.time_base = self.count, self._tick
            self._mux(frame)
            self.count += 1

    def close(self) -> None:
        self._mux(None)
        self._container.close()

    def _mux(self, frame: av.VideoFrame | None) -> None:
        """Encode a frame, or flush with None; an encoder gives its packets some frames later."""
        with _same_priorities() if self.count == 0 else nullcontext():  # the encoder starts its threads
            packets = self._stream.encode(frame)
        self.nbytes += sum(packet.size for packet in packets)
        self._container.mux(packets)


@contextmanager
def _same_priorities() -> Iterator[None]:
    """Keep the scheduling of this process's threads as it is, and new ones as the one that makes them.

    SVT-AV1, where it may, gives the highest real-time priority to all its threads and to the one that started it, for
    good: whatever else runs on the machine, a robot's control say, would wait for an export.
    """
    tasks = Path("/proc/self/task")
    if not tasks.exists():  # not Linux
        yield
        return
    own, before = _scheduling(0), {}
    for thread in _numbers(tasks):
        with suppress(ProcessLookupError):  # it has ended meanwhile
            before[thread] = _scheduling(thread)
    try:
        yield
    finally:
        for thread in _numbers(tasks):
            policy, priority = before.get(thread, own)
            with suppress(ProcessLookupError):
                if _scheduling(thread) != (policy, priority):
                    os.sched_setscheduler(thread, policy, os.sched_param(priority))


def _numbers(tasks: Path) -> list[int]:
    return [int(thread.name) for thread in tasks.iterdir()]


def _scheduling(thread: int) -> tuple[int, int]:
    """Policy and priority; of this thread for 0."""
    return os.sched_getscheduler(thread), os.sched_getparam(thread).sched_priority
