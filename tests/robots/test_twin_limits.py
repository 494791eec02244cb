"""The twin's own look at the commands that it receives."""

import numpy as np
import pytest

from driving import drive
from plaudit.robots.config import SafetyConfig, SafetyLimits
from plaudit.robots.transport.messages import JOINT_STATE, position_encoder
from plaudit.robots.twin.twin import CommandMonitor
from twins import Waves, robot_config, twin_thread
from waiting import wait_until

LIMITS = {"joint_max_velocity": 1.5, "joint_max_acceleration": 10.0}


class FakeClock:
    """Of the twin; a command a tick unless a test says otherwise."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def new_monitor(clock):
    limits = SafetyLimits.of(SafetyConfig(lower=-2.0, upper=2.0, max_velocity=1.0, max_acceleration=5.0), 1)
    return CommandMonitor(limits, ("elbow",), 10.0, clock)


def receive(commands, sent=1.0, arrived=1.0, measured=0.0):
    """What is wrong with each of a sequence of commands of one joint: at most 1 rad/s and 5 rad/s^2 at 10 Hz.

    sent, arrived: ticks from one to the next, by the sender's clock and by the twin's
    """
    clock = FakeClock()
    monitor = new_monitor(clock)
    monitor.measured(np.array([measured]))
    found = []
    for number, command in enumerate(commands):
        clock.now += arrived / 10
        monitor.receive(np.array([command], np.float32), int(1e9 * (1000 + number * sent / 10)))
        found.append(monitor.take())
    return found


def test_commands_within_the_limits_are_right_however_the_network_delays_them():
    for arrived in (0.1, 1.0, 1.5):
        assert not any(receive([0.05, 0.15, 0.25, 0.35, 0.4, 0.4], 1.3, arrived))


def test_one_that_was_lost_is_no_jump():
    assert not any(receive([0.05, 0.25], sent=2.0))  # 0.15 was lost
    assert any(receive([0.05, 0.25], sent=1.0))


def test_ticks_without_a_command_are_counted_and_pauses_are_not():
    monitor = new_monitor(FakeClock())
    for at in (0, 1, 2, 4.1, 5, 8, 30, 31):  # ticks; after 8 the robot waited for an operator
        monitor.receive(np.zeros(1, np.float32), int(1e9 * (1000 + at / 10)))
    assert monitor.skipped == 1 + 2


def test_a_command_that_is_late_within_its_tick_leaves_none_out():
    monitor = new_monitor(FakeClock())
    for at in (0, 1, 2.7, 3, 4, 4.9, 6.6, 7.1, 8, 10.1):  # the one of 9 is missing
        monitor.receive(np.zeros(1, np.float32), int(1e9 * (1000 + at / 10)))
    assert monitor.skipped == 1


@pytest.mark.parametrize(
    ("commands", "said"),
    [
        ([0.05, 0.5], "speed: elbow by 0.4500 after 1 ticks"),
        ([0.05, 0.15, 0.25, 0.25, 0.15], "acceleration: elbow by -0.1000"),
        ([1.0], "speed: elbow by 1.0000"),
        ([0.09], "acceleration: elbow by 0.0900"),
    ],
)
def test_jumps_are_told(commands, said):
    assert any(said in message for message in receive(commands)[-1])


def test_a_command_beyond_a_joints_limit_is_told():
    assert receive([2.1], measured=2.05)[0][0] == "position: elbow to 2.1000, outside -2 to 2"


def test_staying_where_it_is_is_always_right():
    assert not any(receive([0.05, 0.15, 0.25, 0.0]))  # a robot that holds: it was measured at 0
    assert not any(receive([1.2], measured=1.2))


def test_a_start_from_any_position_that_was_just_measured_is_right():
    monitor = new_monitor(FakeClock())
    for position in (0.0, -0.04):  # it has moved back and holds there
        monitor.measured(np.array([position]))
    for number, command in enumerate((0.0, 0.08)):  # by 0.04, then by 0.08: within 0.05 more
        monitor.receive(np.array([command], np.float32), int(1e9 * (1000 + number / 10)))
    assert not monitor.take()


def test_too_many_commands_are_told():
    found = receive([0.0] * 70, arrived=0.1)
    assert not any(found[:35]) and "rate: 36 commands in 2 s at 10 Hz" in found[35]


def test_a_policy_that_jumps_about_is_driven_within_the_limits(tmp_path):
    config = robot_config(tmp_path, **LIMITS)
    start = config.params().start_pose
    wild = Waves(start, slowness=0.3)  # from one end of its wave to the other within a few steps
    with twin_thread(config) as twin, config.build() as robot:
        episode, failure = drive(robot, wild, max_steps=60)
        again, _ = drive(robot, wild, max_steps=20)
        assert twin.joints.num_commands > 80 and not twin.joints.monitor.count, twin.joints.monitor.take()
    assert episode is not None and again is not None and not failure
    assert "velocity" in episode.meta["limited"] or "acceleration" in episode.meta["limited"]


def test_a_program_that_ignores_the_limits_is_found_out(tmp_path):
    config = robot_config(tmp_path, **LIMITS)
    params, transport = config.params(), config.transport.build()
    encode = position_encoder(params.joint_names)
    far = np.array(params.start_pose, np.float32) + 0.6
    with twin_thread(config) as twin:
        transport.publish(config.topics().joint_commands, JOINT_STATE, encode(0, far))
        wait_until(lambda: twin.joints.num_commands == 1)
        assert twin.joints.monitor.count == 1
    transport.close()
