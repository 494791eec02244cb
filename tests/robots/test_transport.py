import subprocess
import sys
from pathlib import Path

import pytest

from plaudit.config import parse
from plaudit.errors import ConfigError, MissingExtra, RobotError
from plaudit.robots.transport import CycloneConfig, MemoryConfig, ZenohConfig
from plaudit.robots.transport.cyclone import dds_name
from plaudit.robots.transport.zenoh import key_of
from twins import free_endpoint
from waiting import wait_until


def test_everybody_on_a_bus_hears_its_topics_until_closed():
    heard: list[bytes] = []
    one, other, elsewhere = (MemoryConfig(bus=bus).build() for bus in ("x", "x", "y"))
    other.subscribe("/a", "kind", heard.append)
    one.publish("/a", "kind", b"1")
    one.publish("/b", "kind", b"2")
    elsewhere.publish("/a", "kind", b"3")
    other.close()
    one.publish("/a", "kind", b"4")
    assert heard == [b"1"]


ECHO = """
import sys, time
from plaudit.robots.transport import ZenohConfig
transport = ZenohConfig(connect=(), listen=(sys.argv[1],)).build()
transport.subscribe("/ask", "kind", lambda data: transport.publish("/answer", "kind", data[::-1]))
time.sleep(60)
"""


def test_two_processes_talk_over_zenoh_also_after_one_was_started_anew():
    heard: list[bytes] = []
    place = free_endpoint()
    transport = ZenohConfig(connect=(place,)).build()
    transport.subscribe("/answer", "kind", heard.append)
    for words in (b"live", b"stop"):
        with subprocess.Popen([sys.executable, "-c", ECHO, place]) as process:

            def answered(words: bytes = words) -> bool:
                transport.publish("/ask", "kind", words)
                return words[::-1] in heard

            wait_until(answered)
            process.kill()
    transport.close()


def sockets_of_this_process() -> set[str]:
    mine = {str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()}
    lines = [line.split() for kind in ("tcp", "udp") for line in Path(f"/proc/net/{kind}").read_text().splitlines()[1:]]
    return {line[1] for line in lines if f"socket:[{line[9]}]" in mine and line[3] in ("0A", "07")}


def test_nothing_listens_but_where_it_is_told_to():
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


def test_topics_have_the_names_of_the_bridge_and_of_dds():
    assert key_of("/igris_b/head/image_raw") == "igris_b/head/image_raw"
    assert dds_name("/igris_b/head/image_raw") == "rt/igris_b/head/image_raw"


def test_the_robots_end_listens_where_ours_connects():
    ours, theirs = ZenohConfig(connect=("tcp/a:1",)), ZenohConfig(connect=(), listen=("tcp/a:1",))
    assert ours.other_side() == theirs


def test_what_is_no_endpoint_is_told():
    with pytest.raises(ConfigError, match="'localhost' is no endpoint; write it like tcp/"):
        parse(ZenohConfig, {"connect": ["localhost"]})


def test_without_cyclone_dds_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cyclonedds", None)
    with pytest.raises(MissingExtra, match=r"cyclonedds is not installed; run: pip install 'plaudit\[dds\]'"):
        CycloneConfig().build()
