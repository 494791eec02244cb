import io
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pil
from rosbags.typesys import Stores, get_typestore

from plaudit.errors import BadMessage
from plaudit.robots.transport.messages import (
    COMPRESSED_IMAGE,
    IMAGE,
    JOINT_STATE,
    JointState,
    decode_compressed,
    decode_image,
    decode_joint_state,
    decode_string,
    encode_compressed,
    encode_depth,
    encode_image,
    encode_joint_state,
    encode_string,
    position_encoder,
)

ROS: Any = get_typestore(Stores.ROS2_HUMBLE)
STAMP = 12_000_000_034
PIXELS = np.random.default_rng(0).integers(0, 256, (6, 5, 3), np.uint8)  # rows of 15 bytes: nothing is aligned


def header():
    time = ROS.types["builtin_interfaces/msg/Time"](sec=12, nanosec=34)
    return ROS.types["std_msgs/msg/Header"](stamp=time, frame_id="somewhere")


def ros_joint_state(**changes):
    columns = {"position": np.array([0.5, -1.0]), "velocity": np.array([1.0, 2.0]), "effort": np.zeros(0)}
    return ROS.types[JOINT_STATE](header=header(), name=["elbow", "wrist"], **(columns | changes))


def ros_image(encoding, rows, step):
    data = np.ascontiguousarray(rows, np.uint8).reshape(-1)
    height, width = PIXELS.shape[:2]
    return ROS.types[IMAGE](
        header(), height=height, width=width, encoding=encoding, is_bigendian=0, step=step, data=data
    )


@pytest.mark.parametrize("little_endian", [True, False])
def test_a_joint_state_of_ros_is_read(little_endian):
    read = decode_joint_state(bytes(ROS.serialize_cdr(ros_joint_state(), JOINT_STATE, little_endian=little_endian)))
    assert (read.stamp, read.names) == (STAMP, ("elbow", "wrist"))
    assert read.position.tolist() == [0.5, -1.0] and read.velocity.tolist() == [1.0, 2.0] and not len(read.effort)


def test_ros_reads_our_joint_state():
    written = encode_joint_state(JointState(STAMP, ("elbow", "wrist"), np.array([0.5, -1.0])))
    read = ROS.deserialize_cdr(written, JOINT_STATE)
    assert (read.header.stamp.sec, read.header.stamp.nanosec) == (12, 34)
    assert read.name == ["elbow", "wrist"] and read.position.tolist() == [0.5, -1.0] and len(read.velocity) == 0


@pytest.mark.parametrize("names", [("a",), ("elbow", "wrist"), tuple(f"joint_{n}" for n in range(24))])
def test_commands_are_joint_states_byte_by_byte(names):
    encode = position_encoder(names)
    for stamp in (STAMP, 7):
        position = np.random.default_rng(stamp).normal(size=len(names)).astype(np.float32)
        assert encode(stamp, position) == encode_joint_state(JointState(stamp, names, position.astype(np.float64)))


def test_joint_states_with_too_few_numbers_are_no_joint_states():
    short = ros_joint_state(position=np.array([0.5]))
    with pytest.raises(BadMessage, match="1 values of position for 2 names"):
        decode_joint_state(bytes(ROS.serialize_cdr(short, JOINT_STATE)))


@pytest.mark.parametrize("padding", [0, 1, 17])
@pytest.mark.parametrize(
    ("encoding", "sent", "seen"),
    [
        ("rgb8", PIXELS, PIXELS),
        ("bgr8", PIXELS[..., ::-1], PIXELS),
        ("mono8", PIXELS[..., :1], np.repeat(PIXELS[..., :1], 3, axis=2)),
    ],
)
def test_an_image_of_ros_is_read_and_ros_reads_ours(encoding, sent, seen, padding):
    rows = np.pad(sent.reshape(6, -1), ((0, 0), (0, padding)))
    theirs = bytes(ROS.serialize_cdr(ros_image(encoding, rows, rows.shape[1]), IMAGE))
    read = decode_image(theirs)
    assert read.stamp == STAMP and read.pixels.tolist() == seen.tolist() and read.pixels.flags.writeable
    ours = ROS.deserialize_cdr(encode_image(STAMP, PIXELS, encoding, padding), IMAGE)
    assert (ours.encoding, ours.height, ours.width, ours.step) == (encoding, 6, 5, rows.shape[1])
    assert ours.data.tolist() == rows.reshape(-1).tolist()


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (ros_image("16SC1", np.zeros(60), 10), "encoded as '16SC1'; supported: rgb8, bgr8, mono8$"),
        (ros_image("16UC1", np.zeros(60), 10), "'16UC1'; supported: .*; name the range of this depth camera in depth_"),
        (ros_image("rgb8", np.zeros(90), 14), "6x5 rgb8 has 90 bytes in rows of 14"),
        (ros_image("rgb8", np.zeros(89), 15), "6x5 rgb8 has 89 bytes in rows of 15"),
    ],
)
def test_an_image_that_contradicts_itself_is_no_image(message, error):
    with pytest.raises(BadMessage, match=error):
        decode_image(bytes(ROS.serialize_cdr(message, IMAGE)))


METERS = np.array([[0.5, 0.1, 1.5, 2.5, 9.0], [0.0, -1.0, np.nan, np.inf, -np.inf]])  # in a range from 0.5 to 2.5 m
GRAY = [[255, 255, 128, 1, 1], [0, 0, 0, 1, 255]]  # as in docs/add_a_robot.md


def depth_image(encoding: str, values: Any, big: bool = False, padding: int = 0) -> bytes:
    rows = np.pad(values.view(np.uint8).reshape(2, -1), ((0, 0), (0, padding)))
    image = ROS.types[IMAGE](header(), 2, 5, encoding, int(big), rows.shape[1], rows.reshape(-1))
    return bytes(ROS.serialize_cdr(image, IMAGE))


@pytest.mark.parametrize("padding", [0, 6])
@pytest.mark.parametrize("order", ["<", ">"])
def test_a_depth_image_becomes_gray_within_its_range(order, padding):
    meters = depth_image("32FC1", METERS.astype(f"{order}f4"), order == ">", padding)
    assert decode_image(meters, (0.5, 2.5)).pixels[..., 0].tolist() == GRAY
    millimeters = np.array([[500, 100, 1500, 2500, 9000], [0, 0, 0, 65535, 1]], f"{order}u2")
    read = decode_image(depth_image("16UC1", millimeters, order == ">", padding), (0.5, 2.5)).pixels
    assert read.shape == (2, 5, 3) and (read[..., 0] == read[..., 2]).all() and read.dtype == np.uint8
    assert read[..., 1].tolist() == GRAY


@pytest.mark.parametrize("encoding", ["16UC1", "32FC1"])
def test_ros_reads_our_depth_images(encoding):
    values = np.array([[0.5, 1.25], [np.nan, 2.0]])
    data = encode_depth(STAMP, values, encoding)
    assert ROS.deserialize_cdr(data, IMAGE).encoding == encoding
    assert decode_image(data, (0.5, 2.5)).pixels[..., 0].tolist() == [[255, 160], [0, 64]]


def test_a_depth_camera_that_sends_colors_is_told_so():
    with pytest.raises(
        BadMessage, match=r"of a depth camera \(depth_ranges\) is encoded as 'rgb8'; supported: 16UC1, 32"
    ):
        decode_image(encode_image(STAMP, PIXELS), (0.5, 2.5))


def test_a_compressed_image_of_ros_is_read_and_ros_reads_ours():
    file = io.BytesIO()
    Pil.fromarray(PIXELS).save(file, "png")
    theirs = ROS.types[COMPRESSED_IMAGE](header(), format="rgb8; png", data=np.frombuffer(file.getvalue(), np.uint8))
    assert decode_compressed(bytes(ROS.serialize_cdr(theirs, COMPRESSED_IMAGE))).pixels.tolist() == PIXELS.tolist()
    smooth = np.full((16, 16, 3), 90, np.uint8)
    ours = ROS.deserialize_cdr(encode_compressed(STAMP, smooth, "jpeg"), COMPRESSED_IMAGE)
    assert ours.format == "jpeg" and np.abs(np.array(Pil.open(io.BytesIO(ours.data.tobytes()))) - 90.0).max() < 3


def test_noise_and_halves_of_messages_are_refused_in_words():
    noise = np.random.default_rng(0)
    whole = {
        decode_joint_state: encode_joint_state(JointState(STAMP, ("a", "b"), np.zeros(2))),
        decode_image: encode_image(STAMP, PIXELS),
        decode_compressed: encode_compressed(STAMP, PIXELS, "png"),
        decode_string: encode_string("hello"),
    }
    for decode, data in whole.items():
        for cut in (0, 1, 4, 11, len(data) // 2):
            with pytest.raises(BadMessage):
                decode(data[:cut])
        with pytest.raises(BadMessage):
            decode(noise.bytes(60))
