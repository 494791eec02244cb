"""Codecs of stored frames: `raw`, `lossless`, `jpeg:QUALITY`, `video:CRF`, for all cameras or for each.

    --store-images jpeg:90                  # all cameras
    --store-images video,wrist=lossless     # video, except for one camera

The frames of one camera and episode are a block: a table of n + 1 positions (uint32, little-endian, from the start of
the block) and n packets, one per frame. So any frame is read without the others, except that a video has a key frame
every `GROUP` frames and is decoded from there.

Measured on real frames (benchmarks/replay.py): JPEG is the fastest to decode, H.264 the smallest. Lossless is zstd over
differences of rows, which decodes 4 times as fast as PNG at the same size. Rejected: H.264 in lossless mode (a third
smaller, 5 times slower), AV1 (slow to encode on a robot), video files with containers (an index of their own), QOI and
LZ4 (a third and nearly twice as large), simplejpeg (the same pixels in three quarters of Pillow's time, another
dependency; with its fast settings, pixels differ by up to 26).
"""

import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import AfterValidator

from plaudit.errors import DataError
from plaudit.types import AnyArray, ByteArray

Kind = Literal["raw", "lossless", "jpeg", "video"]
GROUP = 4  # frames from one key frame of a video to the next; part of the format
MAX_BLOCK = (1 << 32) - 1  # bytes
_QUALITY = {"jpeg": (90, 100), "video": (18, 51)}  # default and highest; the lowest is 1
_HOW = "write raw, lossless, jpeg:90 or video:18, also for single cameras, like 'video,wrist=lossless'"


@dataclass(frozen=True)
class Codec:
    """How the frames of a camera are stored."""

    kind: Kind = "raw"
    quality: int = 0  # jpeg: 1 to 100; video: constant rate factor of H.264, 1 (best) to 51; others: 0

    def __str__(self) -> str:
        return f"{self.kind}:{self.quality}" if self.quality else self.kind

    @property
    def is_raw(self) -> bool:
        """Whether frames are stored as they are."""
        return self.kind == "raw"

    @property
    def group(self) -> int:
        """Frames from one that is decoded alone to the next."""
        return GROUP if self.kind == "video" else 1

    @classmethod
    def parse(cls, text: str) -> "Codec":
        """From text like 'jpeg:90'; DataError for anything else."""
        match = re.fullmatch(r"(raw|lossless|jpeg|video)(?::(\d{1,3}))?", text)
        if not match:
            raise DataError(f"'{text[:60]}' is not a codec of frames; {_HOW}")
        kind: Any = match[1]
        default, most = _QUALITY.get(kind, (0, 0))
        quality = default if match[2] is None else int(match[2])
        if match[2] is not None and not 1 <= quality <= most:
            takes = f"takes a quality of 1 to {most}, not {quality}" if most else "takes no quality"
            raise DataError(f"codec '{kind}' {takes}; {_HOW}")
        return cls(kind, quality)


RAW = Codec()


@dataclass(frozen=True)
class StoreImages:
    """The codec of each camera of a store."""

    default: Codec = RAW
    cameras: tuple[tuple[str, Codec], ...] = ()  # those with a codec of their own

    def __str__(self) -> str:
        return ",".join([str(self.default), *(f"{camera}={codec}" for camera, codec in self.cameras)])

    @property
    def is_raw(self) -> bool:
        """Whether no camera is encoded."""
        return self == RAW_IMAGES

    @classmethod
    def parse(cls, text: str) -> "StoreImages":
        """From text like 'jpeg:90,wrist=lossless'; DataError for anything else."""
        default, cameras = RAW, dict[str, Codec]()
        for number, part in enumerate(text.split(",")):
            camera, equals, codec = part.strip().rpartition("=")
            if camera in cameras or (not camera if equals else number):
                raise DataError(f"'{text[:100]}' does not say how to store frames; {_HOW}")
            if equals:
                cameras[camera] = Codec.parse(codec)
            else:
                default = Codec.parse(codec)
        return cls(default, tuple(sorted(cameras.items())))

    def of(self, cameras: Sequence[str]) -> tuple[tuple[str, str], ...]:
        """(camera, codec) of each of these cameras that is not raw; ValueError if a camera with a codec is missing."""
        own = dict(self.cameras)
        if missing := sorted(own.keys() - set(cameras)):
            raise ValueError(f"the store has a codec for camera '{missing[0]}'; the episode has: {', '.join(cameras)}")
        chosen = {camera: own.get(camera, self.default) for camera in sorted(cameras)}
        return tuple((camera, str(codec)) for camera, codec in chosen.items() if not codec.is_raw)


RAW_IMAGES = StoreImages()


def _check_text(text: str) -> str:
    StoreImages.parse(text)
    return text


CodecText = Annotated[str, AfterValidator(lambda text: str(Codec.parse(text)))]  # of a config: one for all cameras
ImagesText = Annotated[str, AfterValidator(_check_text)]  # of a config


def encode_block(codec: Codec, frames: AnyArray) -> bytes:
    """The block of uint8 [N, H, W, 3] frames. ValueError if the codec cannot store them."""
    if frames.dtype != np.uint8 or frames.ndim != 4 or frames.shape[3] != 3:
        shape = f"{frames.dtype} {list(frames.shape)}"
        raise ValueError(f"{codec} stores 8-bit color images [T, H, W, 3], not {shape}; store this camera raw")
    encode = {"lossless": _zstd, "jpeg": _jpeg, "video": _video}[codec.kind]
    try:
        packets = encode(frames, codec.quality)
    except Exception as error:  # encoders raise many types, some of them an OSError, which would mean the disk
        raise ValueError(f"{codec} cannot store {frames.shape[1]}x{frames.shape[2]} frames ({error})") from error
    ends = np.cumsum([4 * (len(packets) + 1), *map(len, packets)], dtype=np.int64)
    if ends[-1] > MAX_BLOCK:
        raise ValueError(f"{len(frames):,} encoded frames take {ends[-1]:,} bytes, more than {MAX_BLOCK:,}")
    return b"".join([ends.astype("<u4").tobytes(), *packets])


def packets_of(block: ByteArray, first: int, last: int) -> list[bytes]:
    """The packets of frames `first` to `last` of a block; ValueError if its table makes no sense."""
    table = block[4 * first : 4 * (last + 2)].view("<u4")
    if len(table) < last + 2 - first or int(table[0]) < 4 * (last + 2) or (np.diff(table.astype(np.int64)) < 0).any():
        raise ValueError("its table of frames makes no sense")
    if table[-1] > len(block):
        raise ValueError("a frame lies beyond its end")
    return [block[start:end].tobytes() for start, end in pairwise(table.tolist())]


def decode_packets(codec: Codec, packets: Sequence[bytes], height: int, width: int) -> Iterator[ByteArray]:
    """The frames of packets that begin with a key frame, each uint8 [H, W, 3]."""
    decode = {"lossless": _from_zstd, "jpeg": _from_jpeg, "video": _from_video}[codec.kind]
    for frame in decode(packets, height, width):
        if frame.shape != (height, width, 3):
            raise ValueError(f"a frame is {frame.shape[0]}x{frame.shape[1]}, not {height}x{width}")
        yield frame


def _zstd(frames: ByteArray, quality: int) -> list[bytes]:
    import pyarrow as pa

    compressor, packets = pa.Codec("zstd", 1), []
    for frame in frames:
        rows = frame.copy()
        rows[1:] -= frame[:-1]
        packets.append(compressor.compress(rows, asbytes=True))
    return packets


def _from_zstd(packets: Sequence[bytes], height: int, width: int) -> Iterator[ByteArray]:
    import pyarrow as pa

    decompressor = pa.Codec("zstd")
    for packet in packets:
        rows = np.frombuffer(decompressor.decompress(packet, height * width * 3), np.uint8)
        yield np.add.accumulate(rows.reshape(height, width * 3), axis=0, dtype=np.uint8).reshape(height, width, 3)


def _jpeg(frames: ByteArray, quality: int) -> list[bytes]:
    from PIL import Image

    packets = []
    for frame in frames:
        buffer = io.BytesIO()
        Image.fromarray(np.ascontiguousarray(frame)).save(buffer, "JPEG", quality=quality)
        packets.append(buffer.getvalue())
    return packets


def _from_jpeg(packets: Sequence[bytes], height: int, width: int) -> Iterator[ByteArray]:
    from PIL import Image

    for packet in packets:
        image = Image.open(io.BytesIO(packet), formats=("JPEG",))
        if image.size != (width, height) or image.mode != "RGB":  # compared before a pixel is decoded
            raise ValueError(f"a JPEG image is {image.mode} {image.height}x{image.width}, not RGB {height}x{width}")
        yield np.asarray(image)


def _video(frames: ByteArray, crf: int) -> list[bytes]:
    import av
    from av.video.frame import PictureType

    if "libx264" not in av.codecs_available:
        raise ValueError("this installation of PyAV has no H.264 encoder; install its wheel from PyPI")
    height, width = frames.shape[1:3]
    if height % 2 or width % 2:
        raise ValueError("H.264 needs even sizes; use jpeg or lossless")
    context: Any = av.CodecContext.create("libx264", "w")
    context.height, context.width, context.pix_fmt = height, width, "yuv420p"
    context.time_base, context.framerate, context.thread_count = Fraction(1, 30), 30, 1
    # Without cpu-independent, x264 depends on memory that it never wrote: equal frames become other packets at times.
    same = {"x264-params": "cpu-independent=1"}
    keys = {"g": str(GROUP), "keyint_min": str(GROUP), "sc_threshold": "0", "forced-idr": "1", "bf": "0"}
    context.options = {"crf": str(crf), "preset": "fast", "tune": "fastdecode", **same, **keys}
    packets = []
    for number, image in enumerate(frames):
        frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
        frame.pts = number
        frame.pict_type = PictureType.NONE if number % GROUP else PictureType.I
        packets += context.encode(frame)
    packets += context.encode(None)
    if [i for i, packet in enumerate(packets) if packet.is_keyframe] != list(range(0, len(frames), GROUP)):
        raise ValueError("the encoder placed its key frames elsewhere")
    return [bytes(packet) for packet in packets]


def _from_video(packets: Sequence[bytes], height: int, width: int) -> Iterator[ByteArray]:
    import av

    context: Any = av.CodecContext.create("h264", "r")
    context.thread_count = 1
    count = 0
    for packet in [*map(av.Packet, packets), None]:
        for frame in context.decode(packet):
            if (frame.height, frame.width) != (height, width):  # compared before it is converted
                raise ValueError(f"a frame is {frame.height}x{frame.width}, not {height}x{width}")
            yield frame.to_ndarray(format="rgb24")
            count += 1
    if count != len(packets):
        raise ValueError(f"{len(packets)} packets have {count} frames")
