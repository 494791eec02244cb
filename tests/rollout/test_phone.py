"""A phone of lerobot's, played back from a recorded stream, moves the end-effector of an arm."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

import plaudit.envs.panda
from plaudit.errors import RolloutError
from plaudit.robots.config import SafetyConfig, SafetyLimits, Workspace
from plaudit.robots.limits import CommandLimiter
from plaudit.rollout.end_effector import GRIPPER, NUM_DISPLACEMENTS, Arm, EndEffectorConfig, EndEffectorTeleop
from plaudit.rollout.lerobot_teleop import PHONE, LeRobotTeleop, LeRobotTeleopConfig

PANDA = Path(plaudit.envs.panda.__file__).with_name("scene.xml")
JOINTS = tuple(f"joint{number}" for number in range(1, 8))
HOME = np.array([0, -0.5, 0, -2.0, 0, 1.6, 0.8, 0.0])  # and a gripper
HZ = 20.0


class Phone:
    """lerobot's, with a recorded stream in place of the app on the phone."""

    action_features: ClassVar[dict[str, Any]] = dict.fromkeys(PHONE)
    is_connected, is_calibrated = True, True

    def __init__(self) -> None:
        lines = Path(__file__).with_name("device_streams").joinpath("phone.txt").read_text().splitlines()
        self.stream = [line for line in lines if not line.startswith("#")]

    def connect(self) -> None: ...

    def disconnect(self) -> None: ...

    def get_action(self) -> dict[str, Any]:
        line = self.stream.pop(0)
        if line == "-":
            return {}
        numbers = [float(word) for word in line.split()]
        rotation = Rotation.from_rotvec(numbers[4:7])
        inputs = {"a3": numbers[7], "b1": int(numbers[0])}
        return dict(zip(PHONE, (np.array(numbers[1:4]), rotation, inputs, bool(numbers[0])), strict=True))


def make_config(**keys: Any) -> LeRobotTeleopConfig:
    box = Workspace(lower=(-1, -1, -1), upper=(1, 1, 1))
    speeds = {"linear_speed": 0.2, "angular_speed": 1.5, "gripper_speed": 2.0}
    hand = EndEffectorConfig(model=PANDA, frame="tip", workspace=box, joints=(*JOINTS, "gripper"), **speeds)
    return LeRobotTeleopConfig(teleop_type="phone", end_effector=hand, gripper=7, **keys)


def arm_robot() -> SimpleNamespace:
    robot = SimpleNamespace(limiter=CommandLimiter(SafetyLimits.of(SafetyConfig(), 8), HZ), last_command=HOME)
    robot.joint_position = lambda: HOME
    return robot


def play(ticks: int, **keys: Any) -> tuple[list[np.ndarray | None], SimpleNamespace]:
    """The commands of the first ticks, which the robot follows."""
    config, robot = make_config(**keys), arm_robot()
    hand = EndEffectorTeleop(LeRobotTeleop(Phone(), NUM_DISPLACEMENTS, config), config.end_effector, 7, 8)
    hand.begin_episode(robot)
    commands: list[np.ndarray | None] = []
    for _ in range(ticks):
        commands.append(hand.command())
        robot.last_command = robot.last_command if commands[-1] is None else commands[-1]
    return commands, robot


def test_the_end_effector_moves_like_the_phone_while_its_button_is_held():
    pytest.importorskip("mink")
    commands, robot = play(29)
    human = [tick for tick, command in enumerate(commands) if command is not None]
    assert human == list(range(5, 26))  # the button is held
    assert np.allclose(commands[5], HOME, atol=1e-3)  # no jump to the phone's position or orientation
    arm = Arm.load(PANDA, "tip", list(JOINTS))
    moved = arm.position(robot.last_command[:7]) - arm.position(HOME[:7])
    assert np.allclose(moved, [0.05, 0, 0.02], atol=1e-3)  # the phone's -y is the robot's x


def test_a_turn_a_slider_a_lost_pose_and_a_fast_hand():
    device = LeRobotTeleop(Phone(), NUM_DISPLACEMENTS, make_config())
    device.begin_episode(arm_robot())
    commands = [device.command() for _ in range(46)]
    assert [command[GRIPPER] for command in commands[29:34]] == [0.5] * 5
    turned = np.sum([command[GRIPPER + 1 :] for command in commands[29:34]], axis=0) * 1.5 / HZ
    assert np.allclose(turned, [0, 0, 0.2], atol=1e-6)
    assert commands[34] is None and not commands[35].any()  # it begins anew where the phone is then
    steps = np.array([command[:GRIPPER] for command in commands[36:46]]) * 0.2 / HZ
    assert np.allclose(steps.sum(0), [0.02, 0, 0], atol=1e-6)  # a jump of the phone is made up for
    assert np.abs(steps).max() <= 0.2 / HZ + 1e-9 and np.count_nonzero(np.abs(steps[:, 0]) > 1e-9) == 2


def test_without_a_policy_the_robot_stays_while_the_button_is_up_and_the_gripper_moves():
    pytest.importorskip("mink")
    commands, _ = play(29, always=True)
    assert all(command is not None for command in commands)
    assert np.allclose(commands[:5], HOME) and np.allclose(commands[28][:7], commands[25][:7])
    assert np.isclose(commands[28][7], -3 * 0.5 * 2.0 / HZ)


def test_a_phone_without_end_effector_is_refused():
    with pytest.raises(RolloutError, match=r"moves an end-effector; set teleop\.end_effector"):
        LeRobotTeleop(Phone(), 4, LeRobotTeleopConfig(teleop_type="phone"))
