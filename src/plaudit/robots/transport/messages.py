"""ROS 2 messages as bytes: sensor_msgs/JointState, Image and CompressedImage, in CDR as ROS 2 Humble writes it.

The encoding is by `rosbags`, which generates its code for a type when the type is first used (about 20 ms each;
`warm_up` does it before anything moves). It reads the pixels of an Image as a view of the bytes and writes them with
one copy: 240x320 takes about 0.03 ms each way, a JointState of 24 joints 0.05 ms. What comes out is checked and in our
own terms: stamps as integers in nanoseconds, pixels as uint8 [H, W, 3] RGB of their own memory, whatever the encoding,
padding and byte order were.
"""

import io
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pil
from PIL import UnidentifiedImageError

from plaudit.errors import BadMessage, MissingExtra
from plaudit.types import AnyArray, ByteArray

JOINT_STATE = "sensor_msgs/msg/JointState"
IMAGE = "sensor_msgs/msg/Image"
COMPRESSED_IMAGE = "sensor_msgs/msg/CompressedImage"
STRING = "std_msgs/msg/String"

CHANNELS = {"rgb8": 3, "bgr8": 3, "mono8": 1}  # the encodings of an Image that we take
CHANNEL_ORDER = {"bgr8": (2, 1, 0), "mono8": (0, 0, 0)}  # which of its channels are red, green and blue
SECOND = 1_000_000_000

Encoding = Literal["rgb8", "bgr8", "mono8"]
Doubles = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class JointState:
    """Of J joints, in radians, radians a second and newton metres. What a robot does not measure is empty."""

    stamp: int  # ns, of the sender's clock
    names: tuple[str, ...]
    position: Doubles  # [J] or [0]
    velocity: Doubles = field(default_factory=lambda: np.zeros(0))
    effort: Doubles = field(default_factory=lambda: np.zeros(0))


@dataclass(frozen=True, eq=False)
class Picture:
    """One camera image, raw or compressed."""

    stamp: int  # ns, of the sender's clock
    pixels: ByteArray  # [H, W, 3], RGB


def encode_joint_state(message: JointState) -> bytes:
    types = _types()
    columns = [np.ascontiguousarray(c, np.float64) for c in (message.position, message.velocity, message.effort)]
    made = types.joint_state(_header(message.stamp), list(message.names), *columns)
    return bytes(types.store.serialize_cdr(made, JOINT_STATE))


def position_encoder(names: Sequence[str]) -> Callable[[int, AnyArray], bytes]:
    """Encodes JointStates of these joints with nothing but positions: (stamp, [J]) -> bytes.

    Only stamp and positions differ from one to the next, so the rest is encoded once: what is sent in every control
    step takes a few microseconds.
    """
    encoded = bytearray(encode_joint_state(JointState(0, tuple(names), np.zeros(len(names)))))
    end = len(encoded) - 8  # the lengths of velocity and effort, which are empty
    positions = np.frombuffer(encoded, np.float64, len(names), end - 8 * len(names))

    def encode(stamp: int, position: AnyArray) -> bytes:
        struct.pack_into("<iI", encoded, 4, *divmod(stamp, SECOND))  # after the four bytes of CDR's own header
        positions[:] = position
        return bytes(encoded)

    return encode


def decode_joint_state(data: bytes) -> JointState:
    read = _decode(data, JOINT_STATE)
    columns = {"position": read.position, "velocity": read.velocity, "effort": read.effort}
    for name, column in columns.items():
        if len(column) not in (0, len(read.name)):
            raise BadMessage(f"a JointState has {len(column)} values of {name} for {len(read.name)} names")
    copies = {name: np.array(column, np.float64) for name, column in columns.items()}
    return JointState(_stamp(read.header), tuple(read.name), **copies)


def encode_image(stamp: int, pixels: ByteArray, encoding: Encoding = "rgb8", padding: int = 0) -> bytes:
    """
    pixels: [H, W, 3], RGB; what mono8 keeps is the first channel
    padding: bytes after each row, as cameras that align their rows have them
    """
    height, width, _ = pixels.shape
    rows = pixels if encoding == "rgb8" else _reordered(pixels, CHANNEL_ORDER[encoding][: CHANNELS[encoding]])
    rows = rows.reshape(height, -1)
    if padding:
        rows = np.pad(rows, ((0, 0), (0, padding)))
    types = _types()
    flat = np.ascontiguousarray(rows).reshape(-1)
    made = types.image(_header(stamp), height, width, encoding, 0, width * CHANNELS[encoding] + padding, flat)
    return bytes(types.store.serialize_cdr(made, IMAGE))


def decode_image(data: bytes) -> Picture:
    read = _decode(data, IMAGE)
    if read.encoding not in CHANNELS:
        raise BadMessage(f"an Image is encoded as '{read.encoding}'; known: {', '.join(CHANNELS)}")
    channels = CHANNELS[read.encoding]
    height, width, step = read.height, read.width, read.step
    if not height or not width or step < width * channels or len(read.data) != height * step:
        raise BadMessage(
            f"an Image of {height}x{width} {read.encoding} has {len(read.data)} bytes in rows of {step}; these do not "
            "fit together"
        )
    rows = read.data.reshape(height, step)[:, : width * channels].reshape(height, width, channels)
    pixels = rows.copy() if read.encoding == "rgb8" else _reordered(rows, CHANNEL_ORDER[read.encoding])
    return Picture(_stamp(read.header), pixels)


def encode_compressed(
    stamp: int, pixels: ByteArray, format: Literal["jpeg", "png"] = "jpeg", quality: int = 90
) -> bytes:
    buffer = io.BytesIO()
    Pil.fromarray(pixels).save(buffer, format, **({"quality": quality} if format == "jpeg" else {"compress_level": 1}))
    types = _types()
    made = types.compressed(_header(stamp), format, np.frombuffer(buffer.getvalue(), np.uint8))
    return bytes(types.store.serialize_cdr(made, COMPRESSED_IMAGE))


def decode_compressed(data: bytes) -> Picture:
    read = _decode(data, COMPRESSED_IMAGE)
    try:
        with Pil.open(io.BytesIO(read.data.tobytes()), formats=("JPEG", "PNG")) as opened:
            pixels = np.array(opened.convert("RGB"))
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, Pil.DecompressionBombError) as error:
        raise BadMessage(
            f"a CompressedImage ('{read.format}') holds no JPEG or PNG that can be read: {error}"
        ) from error
    return Picture(_stamp(read.header), pixels)


def encode_text(text: str) -> bytes:
    types = _types()
    return bytes(types.store.serialize_cdr(types.string(text), STRING))


def decode_text(data: bytes) -> str:
    return _decode(data, STRING).data


def decode_picture(kind: str, data: bytes) -> Picture:
    return decode_image(data) if kind == IMAGE else decode_compressed(data)


def warm_up(kinds: Sequence[str]) -> None:
    """Have the code for these types generated."""
    dot = np.zeros((1, 1, 3), np.uint8)
    empty = {
        JOINT_STATE: lambda: decode_joint_state(encode_joint_state(JointState(0, (), np.zeros(0)))),
        IMAGE: lambda: decode_image(encode_image(0, dot)),
        COMPRESSED_IMAGE: lambda: decode_compressed(encode_compressed(0, dot)),
    }
    for kind in kinds:
        empty[kind]()


@dataclass(frozen=True)
class _Types:
    store: Any
    joint_state: Any
    image: Any
    compressed: Any
    string: Any
    header: Any
    time: Any
    broken: tuple[type[Exception], ...]  # what decoding raises on bytes that are no such message


@cache
def _types() -> _Types:
    try:
        from rosbags.serde import SerdeError
        from rosbags.typesys import Stores, get_typestore
    except ModuleNotFoundError as error:
        raise MissingExtra("rosbags", "ros") from error
    store = get_typestore(Stores.ROS2_HUMBLE)
    names = (JOINT_STATE, IMAGE, COMPRESSED_IMAGE, STRING, "std_msgs/msg/Header", "builtin_interfaces/msg/Time")
    # rosbags checks lengths but not all of them: a short message also ends in an IndexError or an unpacking error
    broken = (SerdeError, struct.error, ValueError, IndexError, AssertionError)
    return _Types(store, *(store.types[name] for name in names), broken=broken)


def _decode(data: bytes, kind: str) -> Any:
    types = _types()
    try:
        return types.store.deserialize_cdr(data, kind)
    except types.broken as error:
        raise BadMessage(f"{len(data)} bytes are no {kind.rsplit('/', 1)[1]}: {error}") from error


def _reordered(pixels: ByteArray, order: Sequence[int]) -> ByteArray:
    """Channel by channel: five times faster than numpy copies along a last axis of three."""
    out = np.empty((*pixels.shape[:2], len(order)), np.uint8)
    for to, source in enumerate(order):
        out[..., to] = pixels[..., source]
    return out


def _header(stamp: int) -> Any:
    types = _types()
    return types.header(types.time(*divmod(stamp, SECOND)), "")


def _stamp(header: Any) -> int:
    return header.stamp.sec * SECOND + header.stamp.nanosec
