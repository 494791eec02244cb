"""An arm's kinematics from its file, and its end-effector moved by a person within a box."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import plaudit.envs.panda
from plaudit.errors import BadFile, RobotError, RolloutError
from plaudit.robots.config import SafetyConfig, SafetyLimits
from plaudit.robots.limits import CommandLimiter
from plaudit.rollout.end_effector import Arm, EndEffectorConfig, EndEffectorTeleop, kinematic_text

pytest.importorskip("mink")
PANDA = Path(plaudit.envs.panda.__file__).with_name("scene.xml")
JOINTS = [f"joint{number}" for number in range(1, 8)]
HOME = np.array([0, -0.5, 0, -2.0, 0, 1.6, 0.8])
STILL = np.zeros(3)

# A planar arm of two links of 0.2 m and a gripper, as URDF files describe arms, with a mesh that does not exist.
URDF = """<?xml version="1.0"?>
<robot name="planar">
  <mujoco><compiler meshdir="/etc"/></mujoco>
  <link name="base"><visual><geometry><mesh filename="/etc/passwd"/></geometry></visual></link>
  <link name="upper"/><link name="lower"/><link name="jaw"/><link name="hand"/>
  <joint name="shoulder" type="revolute"><parent link="base"/><child link="upper"/><axis xyz="0 0 1"/>
    <limit lower="-3" upper="3" effort="1" velocity="1"/></joint>
  <joint name="elbow" type="revolute"><parent link="upper"/><child link="lower"/><origin xyz="0.2 0 0"/>
    <axis xyz="0 0 1"/><limit lower="-3" upper="3" effort="1" velocity="1"/></joint>
  <joint name="tip" type="fixed"><parent link="lower"/><child link="hand"/><origin xyz="0.2 0 0"/></joint>
  <joint name="gripper" type="revolute"><parent link="lower"/><child link="jaw"/><axis xyz="0 0 1"/>
    <limit lower="0" upper="1" effort="1" velocity="1"/></joint>
</robot>"""
NAMES = ["shoulder", "elbow", "gripper"]


@pytest.fixture
def urdf(tmp_path):
    (tmp_path / "planar.urdf").write_text(URDF)
    return tmp_path / "planar.urdf"


def test_a_motion_goes_where_it_should_and_nowhere_else():
    arm = Arm.load(PANDA, "tip", JOINTS)
    start = arm.position(HOME)
    joints = HOME
    for _ in range(20):
        joints = arm.move(joints, np.array([0, 0.005, -0.005]), STILL)
    assert np.allclose(arm.position(joints), start + [0, 0.1, -0.1], atol=1e-4)
    assert np.abs(joints - HOME).max() < 1


def test_what_is_out_of_reach_moves_nothing():
    arm = Arm.load(PANDA, "tip", JOINTS)
    joints, far = HOME, np.array([0.02, 0, 0])
    for _ in range(60):
        joints = arm.move(joints, far, STILL)
    assert (arm.move(joints, far, STILL) == joints).all()
    assert not (arm.move(joints, -far, STILL) == joints).all()  # and it can come back


def test_a_urdf_is_read_without_its_meshes_and_a_gripper_is_no_joint_of_the_arm(urdf):
    arm = Arm.load(urdf, "hand", NAMES)
    assert arm.joint_names == ("shoulder", "elbow")
    assert np.allclose(arm.position(np.array([0.0, np.pi / 2])), [0.2, 0.2, 0])
    assert "passwd" not in kinematic_text(urdf, URDF.encode(), set(NAMES))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('<!DOCTYPE a [<!ENTITY x SYSTEM "/etc/passwd">]><robot name="a">&x;</robot>', "it defines XML entities"),
        ('<mujoco><include file="/etc/passwd"/></mujoco>', "it includes other files, which are refused"),
        ("<html/>", "this is not a URDF or MJCF file: it begins with <html>"),
        ("<robot", "cannot read the joints of this URDF or MJCF file"),
        ("<mujoco><worldbody>" + "<body>" * 100 + "</body>" * 100 + "</worldbody></mujoco>", "nests more than 64"),
    ],
)
def test_a_file_from_others_is_refused(text, sentence, tmp_path):
    (tmp_path / "arm.xml").write_text(text)
    with pytest.raises(BadFile, match=sentence):
        Arm.load(tmp_path / "arm.xml", "tip", JOINTS)


def test_names_that_the_file_does_not_have_are_reported(urdf, tmp_path):
    with pytest.raises(RobotError, match=r"has no site, body or link 'hande'; did you mean 'hand'"):
        Arm.load(urdf, "hande", NAMES)
    with pytest.raises(RobotError, match=r"no joint of the robot \(a, b\) moves 'hand'"):
        Arm.load(urdf, "hand", ["a", "b"])
    with pytest.raises(BadFile, match="there is no such file"):
        Arm.load(tmp_path / "none.urdf", "hand", NAMES)


class Sticks:
    """A device that gives the same displacement at every tick."""

    relative = False

    def __init__(self, *displacement: float):
        self.displacement: np.ndarray | None = np.array(displacement, np.float32)

    def begin_episode(self, robot): ...

    def command(self):
        return self.displacement

    def close(self) -> None: ...


def simulated(start) -> SimpleNamespace:
    """A robot that moves to its commands, in degrees."""
    limits = SafetyLimits.of(SafetyConfig(), 3, names=[f"{name}.pos" for name in NAMES])
    robot = SimpleNamespace(limiter=CommandLimiter(limits, 20.0), last_command=None)
    robot.joint_position = lambda: np.array(start, np.float32)
    return robot


def planar(urdf, device, gripper=2) -> EndEffectorTeleop:
    config = EndEffectorConfig(
        model=urdf,
        frame="hand",
        workspace={"lower": (0.0, 0.0, -1.0), "upper": (0.3, 0.25, 1.0)},
        degrees=True,
        linear_speed=0.2,
        gripper_speed=50.0,
    )
    return EndEffectorTeleop(device, config, gripper, action_dim=3)


def test_the_hand_stays_within_its_box_and_the_gripper_moves_at_its_speed(urdf):
    sticks = Sticks(0, 1, 0, -1, 0, 0, 0)
    robot, hand = simulated([0.0, 90.0, 80.0]), planar(urdf, sticks)
    hand.begin_episode(robot)
    arm = Arm.load(urdf, "hand", NAMES)
    steps, before = [], np.array([0.2, 0.2, 0])
    for _ in range(15):
        robot.last_command = hand.command()
        position = arm.position(np.radians(robot.last_command[:2]))
        steps.append(position - before)
        before = position
    assert np.allclose(steps[:5], [0, 0.01, 0], atol=1e-4)  # 0.2 m/s at 20 Hz
    assert np.allclose(before, [0.2, 0.25, 0], atol=1e-3)  # the end of the box
    assert robot.last_command[2] == pytest.approx(80 - 15 * 2.5)
    sticks.displacement = None
    assert hand.command() is None


def test_a_hand_outside_of_the_box_may_only_come_back(urdf):
    robot = simulated([0.0, 10.0, 0.0])  # stretched, x is 0.4
    for forward, moves in ((1.0, False), (-1.0, True)):
        hand = planar(urdf, Sticks(forward, 0, 0, 0, 0, 0, 0))
        hand.begin_episode(robot)
        assert (not np.allclose(hand.command(), robot.joint_position(), atol=1e-3)) == moves


def test_a_gripper_that_moves_the_hand_is_refused(urdf):
    with pytest.raises(RolloutError, match=r"teleop\.gripper is 1, but joint 'elbow' moves the end-effector"):
        planar(urdf, Sticks(0, 0, 0, 0, 0, 0, 0), gripper=1).begin_episode(simulated([0, 0, 0]))
