"""A message here is its stamp in ms as text, and nothing else; the clock is the test's own."""

import pytest

from plaudit.errors import BadMessage
from plaudit.robots.ros import driver
from plaudit.robots.ros.driver import Stream, UnusableMessage
from plaudit.robots.transport.messages import StampedMessage


def decode(data: bytes) -> StampedMessage:
    if data == b"?":
        raise BadMessage("it is not a number")
    if data == b"-":
        raise UnusableMessage("not finite", "it is NaN")
    return StampedMessage(int(data) * 1_000_000)


class FakeClock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = FakeClock()
    monkeypatch.setattr(driver, "time", clock)
    return clock


@pytest.fixture
def stream(clock):
    return Stream("camera 'head'", "/head", decode, late_after=0.1)


def receive(stream, clock, data, at):
    clock.now = 100.0 + at
    stream.receive(data)


def test_the_newest_valid_message_is_kept_and_the_others_are_counted(stream, clock):
    receive(stream, clock, b"10", 0.01)
    for data in (b"?", b"-", b"10", b"4"):
        receive(stream, clock, data, 0.02)
    assert stream.newest.stamp == 10_000_000
    assert stream.dropped == {"unreadable": 1, "not finite": 1, "out of order": 2}
    clock.now = 101.0
    assert stream.problem(2.0) is None
    assert stream.problem(0.5) == (
        "camera 'head' (/head) has sent no valid message for 0.99 s; dropped since: 1 unreadable, 1 not finite, "
        "2 out of order (the last: its stamp is 0.006 s behind the one before)"
    )


def test_a_message_is_late_by_the_quickest_one_whatever_the_clocks_say(stream, clock):
    receive(stream, clock, b"5000", 0.03)  # its clock is far ahead; this one took 30 ms
    receive(stream, clock, b"5010", 0.02)  # 10 ms: the quickest
    receive(stream, clock, b"5100", 0.20)  # 90 ms later than that
    receive(stream, clock, b"5200", 0.35)  # 140 ms
    assert stream.newest.stamp == 5100_000_000
    assert stream.dropped == {"late": 1}


def test_clocks_that_drift_apart_make_nothing_late(stream, clock):
    for second in range(0, 7200, 10):  # 100 millionths: 0.72 s in two hours
        receive(stream, clock, str(1000 * second).encode(), second * 1.0001)
    assert not stream.dropped


def test_after_a_restart_another_clock_is_as_good(stream, clock):
    receive(stream, clock, b"9000", 1.0)
    stream.restart()
    receive(stream, clock, b"1", 2.0)
    assert stream.newest.stamp == 1_000_000 and not stream.dropped


def test_a_topic_without_any_message_is_reported(stream):
    assert stream.problem(5.0) == "camera 'head' (/head) has sent no valid message yet; nothing arrived since"
