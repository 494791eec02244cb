import os
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from plaudit.config import parse
from plaudit.errors import ConfigError, MissingExtra, RobotError
from plaudit.robots.transport import CycloneConfig, MemoryConfig, ZenohConfig, zenoh_key
from plaudit.robots.transport.cyclone import dds_name
from plaudit.robots.transport.messages import (
    COMPRESSED_IMAGE,
    IMAGE,
    JOINT_STATE,
    STRING,
    JointState,
    decode_compressed,
    decode_image,
    decode_joint_state,
    decode_string,
    encode_compressed,
    encode_image,
    encode_joint_state,
    encode_string,
)
from processes import Forked
from twins import free_endpoint
from waiting import wait_until


def test_all_transports_on_a_bus_receive_its_topics_until_closed():
    received: list[bytes] = []
    one, other, elsewhere = (MemoryConfig(bus=bus).build() for bus in ("x", "x", "y"))
    other.subscribe("/a", "kind", received.append)
    one.publish("/a", "kind", b"1")
    one.publish("/b", "kind", b"2")
    elsewhere.publish("/a", "kind", b"3")
    other.close()
    one.publish("/a", "kind", b"4")
    assert received == [b"1"]


def echo(place: str) -> None:
    """In a child process, until it is killed."""
    transport = ZenohConfig(connect=(), listen=(place,)).build()
    transport.subscribe("/ask", "kind", lambda data: transport.publish("/answer", "kind", data[::-1]))
    time.sleep(60)


def test_two_processes_talk_over_zenoh_also_after_one_was_restarted():
    received: list[bytes] = []
    place = free_endpoint()
    transport = ZenohConfig(connect=(place,)).build()
    transport.subscribe("/answer", "kind", received.append)
    for words in (b"live", b"stop"):
        with Forked(echo, place):

            def answered(words: bytes = words) -> bool:
                transport.publish("/ask", "kind", words)
                return words[::-1] in received

            wait_until(answered)
    transport.close()


def reflect(config: CycloneConfig | ZenohConfig, *kinds: str) -> None:
    """In a child process, until it is killed."""
    transport = config.build()
    for kind in kinds:
        name = kind.rsplit("/", 1)[1]
        transport.subscribe(
            f"/ask/{name}", kind, lambda data, kind=kind, name=name: transport.publish(f"/answer/{name}", kind, data)
        )
    time.sleep(60)


def config_of(transport: str) -> CycloneConfig | ZenohConfig:
    if transport == "zenoh":
        return ZenohConfig(connect=(free_endpoint(),))
    pytest.importorskip("cyclonedds", reason="cyclonedds is not installed; it has no wheel for aarch64")
    return CycloneConfig(domain=os.getpid() % 200 + 1)  # of its own: other tests may run on this machine


@pytest.mark.parametrize("transport", ["zenoh", "cyclone"])
def test_messages_of_each_type_come_back_whole_from_another_process(transport):
    pixels = np.random.default_rng(0).integers(0, 256, (480, 640, 3), np.uint8)
    joints = JointState(5, ("a", "b"), np.array([0.5, -1.5]))
    sent = {
        STRING: encode_string("pick up the cube"),
        JOINT_STATE: encode_joint_state(joints),
        IMAGE: encode_image(7, pixels),
        COMPRESSED_IMAGE: encode_compressed(9, pixels[:48, :64], "png"),
    }
    config = config_of(transport)
    received: dict[str, bytes] = {}
    ours = config.build()
    for kind in sent:
        ours.subscribe(f"/answer/{kind.rsplit('/', 1)[1]}", kind, partial(received.__setitem__, kind))
    with Forked(reflect, config.peer(), *sent):

        def answered() -> bool:
            waiting = [kind for kind in sent if kind not in received]
            for kind in waiting:  # again and again: nobody listens at first, and some may be lost
                ours.publish(f"/ask/{kind.rsplit('/', 1)[1]}", kind, sent[kind])
            return not waiting

        try:
            wait_until(answered)
        finally:
            ours.close()
    assert decode_string(received[STRING]) == "pick up the cube"
    assert decode_joint_state(received[JOINT_STATE]).names == ("a", "b")
    assert decode_joint_state(received[JOINT_STATE]).position.tolist() == [0.5, -1.5]
    assert np.array_equal(decode_image(received[IMAGE]).pixels, pixels) and decode_image(received[IMAGE]).stamp == 7
    assert np.array_equal(decode_compressed(received[COMPRESSED_IMAGE]).pixels, pixels[:48, :64])


def sockets_of_this_process() -> set[str]:
    own = {str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()}
    lines = [line.split() for kind in ("tcp", "udp") for line in Path(f"/proc/net/{kind}").read_text().splitlines()[1:]]
    return {line[1] for line in lines if f"socket:[{line[9]}]" in own and line[3] in ("0A", "07")}


def test_nothing_listens_but_the_configured_endpoints():
    before, place = sockets_of_this_process(), free_endpoint()
    quiet = ZenohConfig(connect=(place,)).build()
    assert sockets_of_this_process() == before
    listening = ZenohConfig(connect=(), listen=(place,)).build()
    port = int(place.rsplit(":", 1)[1])
    assert sockets_of_this_process() - before == {f"0100007F:{port:04X}"}  # of 127.0.0.1
    with pytest.raises(RobotError, match=f"cannot open a session at {place}: .*in use"):
        ZenohConfig(connect=(), listen=(place,)).build()
    quiet.close()
    listening.close()


def test_nothing_is_left_in_shared_memory_and_a_socket_in_ones_own_folder_will_do(tmp_path):
    endpoint = f"unixsock-stream/{tmp_path}/s"
    received: list[bytes] = []
    robot, driver = ZenohConfig(connect=(), listen=(endpoint,)).build(), ZenohConfig(connect=(endpoint,)).build()
    robot.subscribe("/a", STRING, received.append)

    def arrived() -> bool:
        driver.publish("/a", STRING, b"1")
        return bool(received)

    wait_until(arrived)
    assert ".zenoh" not in Path("/proc/self/maps").read_text()
    driver.close()
    robot.close()


def test_topics_have_the_names_of_the_bridge_and_of_dds():
    assert zenoh_key("/igris_b/head/image_raw") == "igris_b/head/image_raw"
    assert dds_name("/igris_b/head/image_raw") == "rt/igris_b/head/image_raw"


def test_the_robots_end_listens_where_ours_connects():
    ours, theirs = ZenohConfig(connect=("tcp/a:1",)), ZenohConfig(connect=(), listen=("tcp/a:1",))
    assert ours.peer() == theirs


def test_an_invalid_endpoint_is_refused():
    with pytest.raises(ConfigError, match="'localhost' is not an endpoint; write it like tcp/"):
        parse(ZenohConfig, {"connect": ["localhost"]})


def test_without_cyclone_dds_it_says_what_to_install(monkeypatch):
    for module in {"cyclonedds", *(name for name in sys.modules if name.startswith("cyclonedds."))}:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=r"cyclonedds is not installed; run: pip install 'plaudit\[dds\]'"):
        CycloneConfig().build()
