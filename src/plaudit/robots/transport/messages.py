"""ROS 2 messages as bytes: sensor_msgs/JointState, Image and CompressedImage, in CDR as ROS 2 Humble writes it.

`rosbags` does the encoding. It generates its code for a type when the type is first used (about 20 ms each; `warm_up`
does it before anything moves). Decoded messages are checked: stamps are integers in nanoseconds, pixels uint8 [H, W, 3]
RGB in memory of their own. A depth image becomes gray: from 255 at the near end of a range and closer to 1 at its far
end and beyond, 0 where nothing was measured.
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
BOOL = "std_msgs/msg/Bool"

CHANNELS = {"rgb8": 3, "bgr8": 3, "mono8": 1}  # of the encodings that are supported
CHANNEL_ORDER = {"bgr8": (2, 1, 0), "mono8": (0, 0, 0)}  # which of its channels are red, green and blue
DEPTH_ENCODINGS = {"16UC1": ("u2", 1e-3), "32FC1": ("f4", 1.0)}  # numpy's type, and the unit in meters
NS_PER_S = 1_000_000_000

Encoding = Literal["rgb8", "bgr8", "mono8"]
DepthEncoding = Literal["16UC1", "32FC1"]
Doubles = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class StampedMessage:
    """A message with the time at which it was made."""

    stamp: int  # ns, of the sender's clock


@dataclass(frozen=True, eq=False)
class JointState(StampedMessage):
    """J joints, in radians, radians per second and newton meters. Fields that the robot does not measure are empty."""

    names: tuple[str, ...]
    position: Doubles  # [J] or [0]
    velocity: Doubles = field(default_factory=lambda: np.zeros(0))
    effort: Doubles = field(default_factory=lambda: np.zeros(0))


@dataclass(frozen=True, eq=False)
class CameraImage(StampedMessage):
    """One camera image, decoded."""

    pixels: ByteArray  # [H, W, 3], RGB


def encode_joint_state(message: JointState) -> bytes:
    """A JointState as CDR."""
    columns = [np.ascontiguousarray(c, np.float64) for c in (message.position, message.velocity, message.effort)]
    return _encode(JOINT_STATE, _header(message.stamp), list(message.names), *columns)


def position_encoder(names: Sequence[str]) -> Callable[[int, AnyArray], bytes]:
    """An encoder of JointStates of these joints with positions only: (stamp, [J]) -> bytes.

    Only stamp and positions differ from one message to the next, so the rest is encoded once, and the command of a
    control step takes a few microseconds.
    """
    encoded = bytearray(encode_joint_state(JointState(0, tuple(names), np.zeros(len(names)))))
    end = len(encoded) - 8  # the lengths of velocity and effort, which are empty
    positions = np.frombuffer(encoded, np.float64, len(names), end - 8 * len(names))

    def encode(stamp: int, position: AnyArray) -> bytes:
        struct.pack_into("<iI", encoded, 4, *divmod(stamp, NS_PER_S))  # after CDR's own header of four bytes
        positions[:] = position
        return bytes(encoded)

    return encode


def decode_joint_state(data: bytes) -> JointState:
    """Decode a JointState; raises `BadMessage`."""
    read = _decode(data, JOINT_STATE)
    columns = {"position": read.position, "velocity": read.velocity, "effort": read.effort}
    for name, column in columns.items():
        if len(column) not in (0, len(read.name)):
            raise BadMessage(f"a JointState has {len(column)} values of {name} for {len(read.name)} names")
    copies = {name: np.array(column, np.float64) for name, column in columns.items()}
    return JointState(_stamp(read.header), tuple(read.name), **copies)


def encode_image(stamp: int, pixels: ByteArray, encoding: Encoding = "rgb8", padding: int = 0) -> bytes:
    """An Image as CDR.

    pixels: [H, W, 3], RGB; mono8 keeps the first channel
    padding: bytes after each row, as some cameras send them to align rows
    """
    height, width, _ = pixels.shape
    rows = pixels if encoding == "rgb8" else _reorder_channels(pixels, CHANNEL_ORDER[encoding][: CHANNELS[encoding]])
    rows = rows.reshape(height, -1)
    if padding:
        rows = np.pad(rows, ((0, 0), (0, padding)))
    row_bytes = width * CHANNELS[encoding] + padding
    flat = np.ascontiguousarray(rows).reshape(-1)
    return _encode(IMAGE, _header(stamp), height, width, encoding, 0, row_bytes, flat)


def encode_depth(stamp: int, meters: AnyArray, encoding: DepthEncoding = "16UC1") -> bytes:
    """A depth image [H, W] as CDR; NaN where nothing was measured."""
    dtype, unit = DEPTH_ENCODINGS[encoding]
    values = np.rint(np.nan_to_num(meters) / unit) if encoding == "16UC1" else meters
    rows = np.ascontiguousarray(values, f"<{dtype}").view(np.uint8)
    return _encode(IMAGE, _header(stamp), *meters.shape, encoding, 0, rows.shape[1], rows.reshape(-1))


def decode_image(data: bytes, depth_range: tuple[float, float] | None = None) -> CameraImage:
    """Decode an Image; raises `BadMessage`. depth_range: near and far in meters, of a camera that sends depth"""
    read = _decode(data, IMAGE)
    supported = CHANNELS if depth_range is None else DEPTH_ENCODINGS
    if read.encoding not in supported:
        hint = "; name the range of this depth camera in depth_ranges" if read.encoding in DEPTH_ENCODINGS else ""
        kind = "an Image" if depth_range is None else "an Image of a depth camera (depth_ranges)"
        raise BadMessage(f"{kind} is encoded as '{read.encoding}'; supported: {', '.join(supported)}{hint}")
    if depth_range is not None:
        return CameraImage(_stamp(read.header), _depth_pixels(read, depth_range))
    rows = _image_rows(read, CHANNELS[read.encoding]).reshape(read.height, read.width, -1)
    pixels = rows.copy() if read.encoding == "rgb8" else _reorder_channels(rows, CHANNEL_ORDER[read.encoding])
    return CameraImage(_stamp(read.header), pixels)


def _depth_pixels(read: Any, depth_range: tuple[float, float]) -> ByteArray:
    """Infinities are too far (+) and too close (-), as in REP 118; 0, NaN and what is negative was not measured."""
    (dtype, unit), (near, far) = DEPTH_ENCODINGS[read.encoding], depth_range
    order = ">" if read.is_bigendian else "<"
    rows = np.ascontiguousarray(_image_rows(read, np.dtype(dtype).itemsize)).view(f"{order}{dtype}")
    meters = rows.astype(np.float32) * np.float32(unit)
    measured = (meters > 0) | np.isneginf(meters)
    closeness = (far - np.clip(np.nan_to_num(meters, posinf=far, neginf=near), near, far)) / (far - near)
    gray = np.where(measured, np.rint(1 + 254 * closeness), 0).astype(np.uint8)
    return np.repeat(gray[..., None], 3, axis=2)


def _image_rows(read: Any, pixel_bytes: int) -> AnyArray:
    """The bytes [H, W x pixel_bytes] of an Image, without padding."""
    height, width, step = read.height, read.width, read.step
    if not height or not width or step < width * pixel_bytes or len(read.data) != height * step:
        size = f"{len(read.data)} bytes in rows of {step}"
        raise BadMessage(f"an Image of {height}x{width} {read.encoding} has {size}; these do not fit together")
    return read.data.reshape(height, step)[:, : width * pixel_bytes]


def encode_compressed(stamp: int, pixels: ByteArray, format: Literal["jpeg", "png"] = "jpeg") -> bytes:
    """A CompressedImage as CDR, from pixels [H, W, 3] in RGB."""
    buffer = io.BytesIO()
    Pil.fromarray(pixels).save(buffer, format, **({"quality": 90} if format == "jpeg" else {"compress_level": 1}))
    return _encode(COMPRESSED_IMAGE, _header(stamp), format, np.frombuffer(buffer.getvalue(), np.uint8))


def decode_compressed(data: bytes) -> CameraImage:
    """Decode a CompressedImage (JPEG or PNG); raises `BadMessage`."""
    read = _decode(data, COMPRESSED_IMAGE)
    try:
        with Pil.open(io.BytesIO(read.data.tobytes()), formats=("JPEG", "PNG")) as opened:
            pixels = np.array(opened.convert("RGB"))
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, Pil.DecompressionBombError) as error:
        raise BadMessage(f"a CompressedImage ('{read.format}') contains no valid JPEG or PNG: {error}") from error
    return CameraImage(_stamp(read.header), pixels)


def encode_string(text: str) -> bytes:
    """A String as CDR."""
    return _encode(STRING, text)


def decode_string(data: bytes) -> str:
    """Decode a String; raises `BadMessage`."""
    return _decode(data, STRING).data


def encode_bool(value: bool) -> bytes:
    """A Bool as CDR."""
    return _encode(BOOL, value)


def decode_bool(data: bytes) -> bool:
    """Decode a Bool; raises `BadMessage`."""
    return bool(_decode(data, BOOL).data)


def decode_camera_image(msg_type: str, data: bytes, depth_range: tuple[float, float] | None = None) -> CameraImage:
    """Decode an Image, of depth where there is a range, or a CompressedImage; raises `BadMessage`."""
    return decode_image(data, depth_range) if msg_type == IMAGE else decode_compressed(data)


def warm_up(msg_types: Sequence[str]) -> None:
    """Generate the code for these types, so that the first real message is not delayed by it."""
    pixel = np.zeros((1, 1, 3), np.uint8)
    round_trips = {
        JOINT_STATE: lambda: decode_joint_state(encode_joint_state(JointState(0, (), np.zeros(0)))),
        IMAGE: lambda: decode_image(encode_image(0, pixel)),
        COMPRESSED_IMAGE: lambda: decode_compressed(encode_compressed(0, pixel)),
    }
    for msg_type in msg_types:
        round_trips[msg_type]()


@cache
def _typestore() -> tuple[Any, tuple[type[Exception], ...]]:
    """The message types of rosbags, and the errors that decoding raises on invalid bytes."""
    try:
        from rosbags.serde import SerdeError
        from rosbags.typesys import Stores, get_typestore
    except ModuleNotFoundError as error:
        raise MissingExtra("rosbags", "ros") from error
    # rosbags does not check every length: a short message also ends in an IndexError or an unpacking error.
    return get_typestore(Stores.ROS2_HUMBLE), (SerdeError, struct.error, ValueError, IndexError, AssertionError)


def _encode(msg_type: str, *fields: Any) -> bytes:
    store, _ = _typestore()
    return bytes(store.serialize_cdr(store.types[msg_type](*fields), msg_type))


def _decode(data: bytes, msg_type: str) -> Any:
    store, errors = _typestore()
    try:
        return store.deserialize_cdr(data, msg_type)
    except errors as error:
        raise BadMessage(f"{len(data)} bytes are not a valid {msg_type.rsplit('/', 1)[1]}: {error}") from error


def _reorder_channels(pixels: ByteArray, order: Sequence[int]) -> ByteArray:
    """Copied channel by channel, which is five times faster than indexing numpy's last axis of three."""
    output = np.empty((*pixels.shape[:2], len(order)), np.uint8)
    for target, source in enumerate(order):
        output[..., target] = pixels[..., source]
    return output


def _header(stamp: int) -> Any:
    types = _typestore()[0].types
    return types["std_msgs/msg/Header"](types["builtin_interfaces/msg/Time"](*divmod(stamp, NS_PER_S)), "")


def _stamp(header: Any) -> int:
    return header.stamp.sec * NS_PER_S + header.stamp.nanosec
