"""Frames in and out of video files, through PyAV: exact in time, and loud when frames are missing."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from fractions import Fraction
from pathlib import Path
from typing import IO, Any, NoReturn

import av
import numpy as np

from plaudit.errors import BadFile, DataError
from plaudit.files import Root, readable, unreadable
from plaudit.types import AnyArray, ByteArray

# name -> (encoder, default constant rate factor, other options). AV1 as LeRobot writes it: a key frame every second
# frame, so that any frame is one decode away.
CODECS: dict[str, tuple[str, int, dict[str, str]]] = {
    "av1": ("libsvtav1", 30, {"preset": "8", "svtav1-params": "lp=1"}),  # lp: its threads waited for each other once
    "h264": ("libx264", 18, {"preset": "fast"}),
    "hevc": ("libx265", 20, {"preset": "fast", "x265-params": "log-level=none"}),
}
MIN_FPS, MAX_FPS = 1e-3, {"av1": 240, "h264": 1000, "hevc": 1000}  # beyond it encoders fail, or lose frames

# What is decoded of others. ffmpeg itself opens playlists and addresses and knows hundreds of decoders, few of which
# were ever written for hostile files: containers and codecs are those that robots' cameras are recorded in.
_CONTAINERS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm"
_DECODERS = "h264,hevc,av1,libdav1d,vp9,libvpx-vp9,vp8,libvpx,mpeg4,mjpeg"
_CANONICAL = ("h264", "hevc", "av1", "vp9", "vp8", "mpeg4", "mjpeg")
_EBML = b"\x1a\x45\xdf\xa3"  # how Matroska begins
_BOXES = (b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide")  # and MP4, after four bytes
# ffmpeg would start a thread for every core, and every thread maps a stack and its own frames: on a machine with many
# cores that alone went beyond the memory that `plaudit.data.formats.worker` allows a decoder.
MAX_THREADS = min(4, os.cpu_count() or 1)


class FramesMissing(BadFile):
    """A video that can be read and does not show a frame at every time asked for."""


def read_frames(
    root: Root, path: Path, times: AnyArray, tolerance: float, height: int, width: int, spare: int = 0
) -> ByteArray:
    """The frames shown at `times` (ascending) as uint8 [N + spare, H, W, 3], each within `tolerance`; both in seconds.

    spare: frames after them that are left for the caller to fill
    """
    if not np.isfinite(times).all() or (np.diff(times) < 0).any():
        raise FramesMissing(path, "the times of its frames are not in order, or no numbers; write them again")
    with _opened(root, path) as (container, stream):
        context = stream.codec_context
        if context.height * context.width > (height + 128) * (width + 128):  # codecs round sizes up
            _check_size(path, context.height, context.width, height, width)
        frames = np.empty((len(times) + spare, height, width, 3), np.uint8)
        count = 0
        if times[0] > tolerance:
            container.seek(int((times[0] - tolerance) / stream.time_base), stream=stream)
        for frame in container.decode(stream):
            if frame.pts is None:
                continue
            time = float(frame.pts * stream.time_base)
            if time > times[count] + tolerance:
                raise FramesMissing(path, f"this video lacks frame {count}, at {times[count]:.3f} s; encode it again")
            if time < times[count] - tolerance:
                continue
            _check_size(path, frame.height, frame.width, height, width)
            frames[count] = frame.to_ndarray(format="rgb24")
            count += 1
            if count == len(times):
                return frames
    ended = f"this video ends after {count} of {len(times)} frames"
    raise FramesMissing(path, f"{ended}; copy it again from the data set's source")


def coded_frames(root: Root, path: Path) -> tuple[AnyArray, int]:
    """When each frame is shown, in s and in order, and the bytes of all without padding; nothing is decoded."""
    shown: list[int] = []
    size = 0
    with _opened(root, path) as (container, stream):
        for packet in container.demux(stream):
            size += packet.size
            if packet.pts is not None and not packet.is_discard:
                shown.append(packet.pts)
        return np.array([float(pts * stream.time_base) for pts in sorted(shown)]), size


def announced_frames(root: Root, path: Path) -> int:
    """The number of frames in a video's header, 0 if it has none; nothing is decoded."""
    with _opened(root, path) as (_, stream):
        return max(int(stream.frames), 0)


def frame_size(root: Root, path: Path) -> tuple[int, int]:
    """Height and width of a video's frames by its header; nothing is decoded."""
    with _opened(root, path) as (_, stream):
        return stream.codec_context.height, stream.codec_context.width


def codec_name(root: Root, path: Path) -> str:
    """What a video is coded in, like h264; nothing is decoded."""
    with _opened(root, path) as (_, stream):
        return stream.codec_context.codec.canonical_name


@contextmanager
def _opened(root: Root, path: Path) -> Iterator[tuple[Any, Any]]:
    """The container and its video, read from an open file: no name of any kind reaches ffmpeg."""

    def refuse(url: str, flags: int, options: Any) -> NoReturn:
        raise ValueError("it refers to another file, which was not opened")

    message = "this video cannot be read ({}); copy it again from the data set's source"
    missing = "this video is missing; copy it from the data set's source"
    with (
        readable(path, message, missing),
        root.open(path) as file,
        av.open(
            file,
            format=_container(file, path),
            options={"codec_whitelist": _DECODERS, "format_whitelist": _CONTAINERS, "protocol_whitelist": "none"},
            metadata_errors="replace",
            buffer_size=1 << 18,
            io_open=refuse,
        ) as container,
    ):
        if not container.streams.video:
            raise BadFile(path, "there is no video in this file; copy it again from the data set's source")
        stream: Any = container.streams.video[0]
        codec = stream.codec_context.codec.canonical_name
        if codec not in _CANONICAL or not stream.time_base:
            raise BadFile(path, f"videos of codec '{codec}' are not read; {', '.join(_CANONICAL)} are")
        stream.thread_type = "AUTO"
        stream.codec_context.thread_count = MAX_THREADS
        yield container, stream


def _container(file: IO[bytes], path: Path) -> str:
    """By its first bytes, so that no other reader of ffmpeg's is ever tried."""
    start = file.read(8)
    file.seek(0)
    if start[4:] in _BOXES:
        return "mp4"
    if start.startswith(_EBML):
        return "matroska"
    raise unreadable(path, "this video cannot be read (neither MP4 nor Matroska); copy it again from its source")


def _check_size(path: Path, height: int, width: int, said_height: int, said_width: int) -> None:
    if (height, width) != (said_height, said_width):
        size, declared = f"{height}x{width}", f"{said_height}x{said_width}"
        raise BadFile(path, f"frames are {size} but meta/info.json says {declared}; correct one of them")


class VideoWriter:
    """One file that frames of a single size are appended to."""

    def __init__(self, path: Path, fps: float, height: int, width: int, codec: str, quality: int | None):
        if codec not in CODECS:
            raise DataError(f"there is no codec '{codec}'; known: {', '.join(CODECS)}")
        if not MIN_FPS <= fps <= MAX_FPS[codec]:
            raise DataError(
                f"a video of codec {codec} has {MIN_FPS:g} to {MAX_FPS[codec]} frames per second, not {fps:g}; "
                "correct the rate, or write images instead"
            )
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
    """Keep the scheduling of this process's threads as it is.

    SVT-AV1, where it may, gives the highest real-time priority to its threads and to the one that started it, for good.
    """
    if not Path("/proc/self/task").exists():  # not Linux
        yield
        return
    before = _scheduling()
    own = os.sched_getscheduler(0), os.sched_getparam(0).sched_priority
    try:
        yield
    finally:
        for thread, scheduling in _scheduling().items():
            policy, priority = before.get(thread, own)
            with suppress(ProcessLookupError):
                if scheduling != (policy, priority):
                    os.sched_setscheduler(thread, policy, os.sched_param(priority))


def _scheduling() -> dict[int, tuple[int, int]]:
    """Thread -> its policy and priority."""
    threads: dict[int, tuple[int, int]] = {}
    for task in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):  # it has ended meanwhile
            thread = int(task.name)
            threads[thread] = os.sched_getscheduler(thread), os.sched_getparam(thread).sched_priority
    return threads
