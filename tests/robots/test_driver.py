"""The driver of the IGRIS robots, against a twin in the same process."""

import time

import numpy as np
import pytest

from plaudit.contracts import check_robot
from plaudit.errors import InvalidCommand, RobotError, RobotSilent
from plaudit.robots.check import check_topics
from plaudit.robots.transport import MemoryConfig
from plaudit.robots.transport.messages import JOINT_STATE, JointState, decode_joint_state, encode_joint_state
from plaudit.rollout.teleop import TopicTeleop
from twins import inject, robot_config, twin_thread
from waiting import wait_until


@pytest.fixture
def commands(tmp_path):
    """What is sent to the robot, in order."""
    received: list[JointState] = []
    listener = MemoryConfig(bus=str(tmp_path)).build()
    listener.subscribe("/igris_b/joint_commands", JOINT_STATE, lambda data: received.append(decode_joint_state(data)))
    yield received
    listener.close()


@pytest.mark.parametrize("name", ["igris_b", "igris_c"])
def test_it_keeps_the_robots_contract(tmp_path, name):
    config = robot_config(tmp_path, name)
    with twin_thread(config), config.build() as robot:
        check_robot(robot)


def test_nothing_is_sent_before_it_is_driven(tmp_path, commands):
    config = robot_config(tmp_path)
    with twin_thread(config), config.build() as robot:
        robot.observe()
        assert not commands


def test_a_command_is_clipped_to_the_joints_limits_and_names_them(tmp_path, commands):
    config = robot_config(tmp_path, start_pose=None)
    with twin_thread(config), config.build() as robot:
        robot.observe()
        robot.act(np.full(24, 100, np.float32))
    assert commands[-1].names == config.params().joint_names
    assert commands[-1].position.tolist() == np.float32(config.params().joint_upper).tolist()


def test_a_command_changes_no_faster_than_max_delta_deg(tmp_path, commands):
    config = robot_config(tmp_path, start_pose=None, max_delta_deg=1.0)
    with twin_thread(config), config.build() as robot:
        position = robot.observe().state
        robot.act(position)
        for _ in range(3):
            robot.act(position - 1)
    steps = np.diff([command.position[1] for command in commands])
    assert np.degrees(steps) == pytest.approx([-1, -1, -1], abs=1e-3)


def test_after_a_pause_commands_start_from_where_the_joints_are(tmp_path, commands):
    config = robot_config(tmp_path, start_pose=None, joint_max_velocity=1.0, joint_max_acceleration=5.0)
    with twin_thread(config) as twin, config.build() as robot:
        inject(twin, "deaf")  # the joints stay where they are
        position = robot.observe().state
        for _ in range(20):
            robot.act(position - 1)
        assert np.abs(commands[-1].position - position).max() > 0.1
        time.sleep(0.3)
        robot.act(position - 1)
    assert np.abs(commands[-1].position - position).max() == pytest.approx(5.0 / 50**2, rel=1e-3)


def test_what_is_no_command_is_refused_and_not_sent(tmp_path, commands):
    config = robot_config(tmp_path, max_delta_deg=5.0)
    with config.build() as robot:
        with pytest.raises(InvalidCommand, match="the joint positions of igris_b are unknown"):
            robot.act(np.zeros(24, np.float32))
        for wrong in (np.zeros(3), np.full(24, np.nan)):
            with pytest.raises(InvalidCommand, match="igris_b takes 24 finite numbers"):
                robot.act(wrong)
    assert not commands


def test_it_goes_to_its_start_pose_slowly(tmp_path, commands):
    config = robot_config(tmp_path, start_speed=2.0)
    with twin_thread(config), config.build() as robot:
        state = robot.reset().state
    assert np.abs(state - config.params().start_pose).max() <= config.params().start_tolerance
    steps = np.abs(np.diff([command.position for command in commands], axis=0))
    assert steps.max() <= 2.0 / 50 + 1e-6


def test_a_robot_that_does_not_come_to_its_start_pose_is_named_by_its_joint(tmp_path, monkeypatch):
    monkeypatch.setattr("plaudit.robots.ros.driver.SETTLE_S", 0.1)
    config = robot_config(tmp_path)
    with twin_thread(config) as twin, config.build() as robot:
        robot.observe()
        inject(twin, "deaf")
        with pytest.raises(
            RobotError,
            match=r"joint 'right_\w+' is still 0\.\d+ rad off start_pose after .* not receive",  # some were received
        ):
            robot.reset()


def test_it_holds_the_measured_position_or_the_last_command_when_that_is_too_old(tmp_path, commands, monkeypatch):
    config = robot_config(tmp_path, start_pose=None)
    with config.build() as robot:
        robot.hold()
        assert not commands  # nothing is measured, and nothing was sent
        with twin_thread(config):
            position = robot.observe().state
            robot.hold()
            assert commands[-1].position == pytest.approx(position, abs=1e-6)
        robot.sensors.silent_after = 0.05
        wait_until(lambda: min(stream.age() for stream in robot.sensors._streams) > robot.sensors.silent_after)
        robot.act(position + 0.01)
        robot.hold()
        assert commands[-1].position == pytest.approx(robot.last_command)
        monkeypatch.setattr("plaudit.robots.ros.driver.HOLD_S", 0.0)
        sent = len(commands)
        robot.hold()
        assert len(commands) == sent  # a robot that was restarted meanwhile would jump there
        with pytest.raises(
            RobotSilent, match=r"igris_b: the joint stream \(/igris_b/joint_states\) has sent no valid message for"
        ):
            robot.observe()


def test_a_robot_that_is_not_heard_brakes_within_its_limits(tmp_path, commands):
    config = robot_config(tmp_path, start_pose=None, joint_max_velocity=2.0, joint_max_acceleration=20.0)
    with config.build() as robot:
        with twin_thread(config):
            position = robot.observe().state
        for _ in range(20):
            robot.act(position - 1)
        robot.sensors.silent_after = 0.0
        robot.hold()
    steps = np.diff([command.position[1] for command in commands], n=1)
    assert steps.min() == pytest.approx(-2.0 / 50, rel=1e-3) and steps[-1] == 0
    assert np.abs(np.diff(steps)).max() <= 20.0 / 50**2 + 1e-6


def test_after_a_pause_joints_that_follow_go_on_from_the_last_command(tmp_path, commands):
    """What was measured may be older than that command, and it would be a step back to begin there."""
    config = robot_config(tmp_path, start_pose=None, joint_max_velocity=1.0, joint_max_acceleration=5.0)
    with twin_thread(config), config.build() as robot:
        position = robot.observe().state
        for _ in range(8):
            robot.act(position - 1)
        last = robot.last_command
        robot.sensors.joint_position = lambda: last + 0.03  # on the way there when the machine stood still
        time.sleep(0.3)
        robot.act(position - 1)
    assert np.abs(commands[-1].position - last).max() == pytest.approx(5.0 / 50**2, rel=1e-3)


def test_a_robot_that_is_not_there_is_waited_for_and_then_told_of_topic_by_topic(tmp_path):
    with robot_config(tmp_path, first_message_s=0.05).build() as robot, pytest.raises(RobotSilent) as raised:
        robot.reset()
    assert str(raised.value).count("has sent no valid message yet; nothing arrived since") == 4


def test_history_is_laid_end_to_end_the_newest_last(tmp_path):
    config = robot_config(tmp_path, proprio_history_size=3, num_img_obs=2, img_obs_every=2, start_pose=None)
    with twin_thread(config), config.build() as robot:
        first = robot.reset()
        assert robot.state_dim == 72 and set(robot.cameras) == {
            c + n for c in ("head", "left", "right") for n in ("", "_1")
        }
        assert np.array_equal(first.state, np.tile(first.state[-24:], 3))
        seen = [first]
        for _ in range(4):
            robot.act(robot.last_command if robot.last_command is not None else first.state[-24:])
            seen.append(robot.observe())
        parts = [one.state.reshape(3, 24) for one in seen]
        assert np.array_equal(parts[4][1], parts[3][2]) and np.array_equal(parts[4][0], parts[2][2])
        assert np.array_equal(seen[4].images["head_1"], seen[2].images["head"])


def test_images_of_another_size_are_resized(tmp_path):
    size = {"width": 128, "height": 96}
    config = robot_config(tmp_path, camera_image_size=size)
    with twin_thread(config), config.build() as robot:
        assert robot.observe().images["left"].shape == (48, 64, 3)


def test_a_persons_command_counts_while_it_is_given(tmp_path):
    config = robot_config(tmp_path)
    bus, names = MemoryConfig(bus=str(tmp_path)), config.params().joint_names
    listener, person = bus.build(), bus.build()
    teleop = TopicTeleop(listener, config.topics().teleop, names, timeout_s=0.2)
    assert teleop.command() is None
    for stamp in (2_000_000_000, 1_000_000_000):  # the second has another clock
        wanted = JointState(stamp, names[::-1], np.arange(24.0)[::-1])
        person.publish(config.topics().teleop, JOINT_STATE, encode_joint_state(wanted))
        assert teleop.command().tolist() == list(range(24))
        wait_until(lambda: teleop.command() is None)
    person.publish(config.topics().teleop, JOINT_STATE, b"?")
    assert teleop.command() is None and teleop._stream.dropped == {"unreadable": 1}


def test_a_depth_camera_is_observed_in_gray_beside_the_others(tmp_path):
    ranges = {"head": {"near": 0.2, "far": 2.2}}
    sizes = {"camera_image_size": {"width": 128, "height": 96}, "mono_image_resize": {"width": 64, "height": 48}}
    config = robot_config(tmp_path, depth_ranges=ranges, start_pose=None, **sizes)
    with twin_thread(config), config.build() as robot:
        images = robot.reset().images
        results = {result.name: result for result in check_topics(config, 0.2)}
    depth, color = images["head"], images["left"]
    assert depth.shape == color.shape == (48, 64, 3) and depth.dtype == np.uint8
    assert (depth == depth[..., :1]).all() and not (color == color[..., :1]).all()
    assert set(np.unique(depth[:4])) == {1, 255}  # the twin's stamp, black and white: nothing is mixed by resizing
    assert (results["head"].expected, results["head"].received) == ("96x128, depth", "96x128, depth")
