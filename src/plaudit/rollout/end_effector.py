"""Teleoperation of the end-effector of a robot whose commands are joint positions.

    teleop.end_effector.model=so101.urdf teleop.end_effector.frame=gripper_frame_link
    teleop.end_effector.workspace='{lower: [0.1, -0.2, 0.02], upper: [0.35, 0.2, 0.3]}'

A motion starts from the last command, so taking over from a policy does not make the robot jump. It ends within the
workspace, a box in the frame of the robot's base. An end-effector that is outside may only come back.
"""

from pathlib import Path

import numpy as np

from plaudit.config import Config, PositiveFloat
from plaudit.errors import RolloutError
from plaudit.protocols import Teleoperator
from plaudit.robots.config import Workspace
from plaudit.robots.kinematics import Arm
from plaudit.robots.limits import LimitedRobot, joint_position
from plaudit.types import FloatArray

NUM_DISPLACEMENTS = 7  # x, y, z, gripper, roll, pitch, yaw
GRIPPER = 3


class EndEffectorConfig(Config):
    """How the end-effector moves; speeds are those at full deflection."""

    model: Path  # a URDF or MJCF file of the robot
    frame: str  # the site, body or link that is moved
    workspace: Workspace  # of that frame, in the frame of the base
    # The file's name of the joint of each number of a command; None: the robot's own names.
    joints: tuple[str, ...] | None = None
    degrees: bool = False  # whether commands are in degrees
    linear_speed: PositiveFloat = 0.1  # m/s
    angular_speed: PositiveFloat = 0.5  # rad/s
    gripper_speed: PositiveFloat = 1.0  # units of the gripper per second


def check_gripper(gripper: int | None, action_dim: int) -> None:
    """Refuse a gripper that is not a number of an action, before a device is opened."""
    if gripper is not None and gripper >= action_dim:
        raise RolloutError(f"teleop.gripper is {gripper}, but the indices of an action are 0 to {action_dim - 1}")


class EndEffectorTeleop:
    """A `Teleoperator` around a device that gives displacements of the end-effector, -1 to 1."""

    relative = False  # commands are joint positions

    def __init__(self, device: Teleoperator, config: EndEffectorConfig, gripper: int | None, action_dim: int):
        self._device, self._config, self._gripper, self._action_dim = device, config, gripper, action_dim
        self._unit = np.pi / 180 if config.degrees else 1.0
        self._box = np.array([config.workspace.lower, config.workspace.upper])
        self._arm: Arm | None = None

    def begin_episode(self, robot: LimitedRobot) -> None:
        """Called after each reset of the robot."""
        self._device.begin_episode(robot)
        self._robot = robot
        if self._arm is None:
            names = self._joint_names(robot)
            self._arm = Arm.load(self._config.model, self._config.frame, names)
            self._joints = [names.index(name) for name in self._arm.joint_names]
            if self._gripper in self._joints:
                raise RolloutError(
                    f"teleop.gripper is {self._gripper}, but joint '{names[self._gripper]}' moves the end-effector"
                )

    def _joint_names(self, robot: LimitedRobot) -> list[str]:
        names = self._config.joints or [name.removesuffix(".pos") for name in robot.limiter.limits.names]
        if len(names) != self._action_dim:
            raise RolloutError(
                f"teleop.end_effector.joints must name the joints of {self._action_dim} numbers of a command, "
                f"it names {len(names)}"
            )
        return list(names)

    def command(self) -> FloatArray | None:
        """[A] joint positions, or None while nothing is pressed or moved."""
        displacement = self._device.command()
        if displacement is None:
            return None
        assert self._arm is not None, "begin_episode comes first"
        last = self._robot.last_command
        start = joint_position(self._robot) if last is None else last
        if start is None:
            raise RolloutError(
                "the robot does not measure its joints (joint_position), so its end-effector cannot be moved"
            )
        config, seconds = self._config, 1 / self._robot.limiter.hz
        command = np.array(start, np.float32)
        if self._gripper is not None:
            command[self._gripper] += displacement[GRIPPER] * config.gripper_speed * seconds
        linear = displacement[:GRIPPER] * config.linear_speed * seconds
        angular = displacement[GRIPPER + 1 :] * config.angular_speed * seconds
        if linear.any() or angular.any():
            joints = command[self._joints].astype(np.float64) * self._unit
            position = self._arm.position(joints)
            low, high = np.minimum(self._box[0], position), np.maximum(self._box[1], position)
            linear = np.clip(position + linear, low, high) - position
            command[self._joints] = self._arm.move(joints, linear, angular) / self._unit
        return command

    def close(self) -> None:
        """Close the device."""
        self._device.close()
