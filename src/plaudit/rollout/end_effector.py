"""Teleoperation of the end-effector of a robot whose commands are joint positions.

    teleop.end_effector.model=so101.urdf teleop.end_effector.frame=gripper_frame_link
    teleop.end_effector.workspace='{lower: [0.1, -0.2, 0.02], upper: [0.35, 0.2, 0.3]}'

A motion starts from the last command, so taking over from a policy does not make the robot jump. It ends within the
workspace, a box in the frame of the robot's base. An end-effector that is outside may only come back.

Inverse kinematics of an arm from its URDF or MJCF file, by mink on MuJoCo's kinematics.

    arm = Arm.load(Path("so101.urdf"), "gripper_frame_link", ["shoulder_pan", "shoulder_lift", ...])
    arm.position(joints)                                   # [3], m
    arm.move(joints, linear=[0.01, 0, 0], angular=[0, 0, 0])

Such a file may come from others, and MuJoCo opens every file that it names. So only links, joints and sites are read:
MuJoCo gets a new text that names no file. (Rejected: pink and placo, whose Pinocchio and meshes are several hundred MB;
ikpy, which reads chains only and takes milliseconds per step.)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from xml.etree import ElementTree

import numpy as np

from plaudit.config import Config, PositiveFloat
from plaudit.errors import BadFile, RobotError, RolloutError, did_you_mean, import_extra
from plaudit.files import MAX_DEPTH, read_own, readable
from plaudit.protocols import Teleoperator
from plaudit.robots.config import Workspace
from plaudit.robots.limits import Limited
from plaudit.types import AnyArray, FloatArray

MAX_BYTES = 16 << 20  # of a file; humanoids have 1 MB
ITERATIONS = 5  # Newton steps per motion
POSITION_COST, ORIENTATION_COST = 1.0, 0.02  # an arm of five joints keeps its orientation as far as it can
TOLERANCE = 0.002  # m from where a motion should end; a motion that ends farther away is out of reach

MJCF: Mapping[str, tuple[str, ...]] = {  # tag -> attributes that are read
    "mujoco": (),
    "compiler": ("angle", "eulerseq", "autolimits"),
    "default": ("class",),
    "worldbody": (),
    "frame": ("pos", "quat", "axisangle", "xyaxes", "zaxis", "euler", "childclass"),
    "body": ("name", "pos", "quat", "axisangle", "xyaxes", "zaxis", "euler", "childclass"),
    "site": ("name", "class", "pos", "quat", "axisangle", "xyaxes", "zaxis", "euler"),
    "joint": ("name", "class", "type", "pos", "axis", "ref", "range", "limited"),
}
URDF: Mapping[str, tuple[str, ...]] = {
    "robot": ("name",),
    "link": ("name",),
    "joint": ("name", "type"),
    "origin": ("xyz", "rpy"),
    "axis": ("xyz",),
    "parent": ("link",),
    "child": ("link",),
    "limit": ("lower", "upper", "effort", "velocity"),
}
# Masses and inertias are not read, and do not matter.
COMPILER = {"boundmass": "1", "boundinertia": "1"}


@dataclass(frozen=True, eq=False)
class Arm:
    """The kinematics of the joints that a robot commands; all other joints of the file stay at 0."""

    joint_names: tuple[str, ...]
    _mink: Any
    _configuration: Any
    _task: Any
    _limits: Any
    _addresses: AnyArray  # [J] of the joints in MuJoCo's vector

    @classmethod
    def load(cls, path: Path, frame: str, joints: Sequence[str]) -> Self:
        """Read a file. frame: a site, body or link. joints: in the order of the numbers of a command; others are fixed

        Joints that do not move the frame are left out of `joint_names`.
        """
        mujoco, mink = import_extra("mujoco", "ik"), import_extra("mink", "ik")
        with readable(path, "MuJoCo cannot read the joints of this URDF or MJCF file ({})"):
            text = kinematic_text(path, read_own(path, MAX_BYTES), set(joints))
            model = mujoco.MjModel.from_xml_string(text)
        kind = "site" if frame in [model.site(i).name for i in range(model.nsite)] else "body"
        bodies = {model.body(i).name: i for i in range(model.nbody)}
        if kind == "body" and frame not in bodies:
            names = [*bodies, *(model.site(i).name for i in range(model.nsite))]
            raise RobotError(f"{path} has no site, body or link '{frame}'; {did_you_mean(frame, names)}")
        body = int(model.site(frame).bodyid[0]) if kind == "site" else bodies[frame]
        chain = set()
        while body:
            chain.add(body)
            body = int(model.body(body).parentid[0])
        own = {model.joint(i).name: model.joint(i) for i in range(model.njnt)}
        moving = tuple(name for name in joints if name in own and int(own[name].bodyid[0]) in chain)
        if not moving:
            raise RobotError(
                f"no joint of the robot ({', '.join(joints)}) moves '{frame}' in {path}; set "
                "teleop.end_effector.joints to the file's names of the joints"
            )
        task = mink.FrameTask(frame, kind, POSITION_COST, ORIENTATION_COST, lm_damping=1e-6)
        limits, addresses = [mink.ConfigurationLimit(model)], [int(own[name].qposadr[0]) for name in moving]
        return cls(moving, mink, mink.Configuration(model), task, limits, np.array(addresses))

    def position(self, joints: AnyArray) -> AnyArray:
        """[3] where the frame is, in m in the frame of the base. joints: [J] in rad or m"""
        return self._pose(joints).translation()

    def move(self, joints: AnyArray, linear: AnyArray, angular: AnyArray) -> AnyArray:
        """[J] the joints after a small motion of the frame; unchanged where that is out of reach.

        linear: [3] m, angular: [3] rad, both along the axes of the base
        """
        mink, pose = self._mink, self._pose(joints)
        rotation = mink.SO3.exp(np.asarray(angular, float)) @ pose.rotation()
        goal = pose.translation() + linear
        self._task.set_target(mink.SE3.from_rotation_and_translation(rotation, goal))
        try:
            for _ in range(ITERATIONS):
                velocity = mink.solve_ik(
                    self._configuration, [self._task], 1.0, "daqp", damping=1e-9, limits=self._limits
                )
                self._configuration.integrate_inplace(velocity, 1.0)
        except mink.MinkError:  # no solution within the limits of the joints
            return joints
        moved = self._configuration.q[self._addresses]
        reached = self._configuration.get_transform_frame_to_world(self._task.frame_name, self._task.frame_type)
        if not np.linalg.norm(reached.translation() - goal) <= TOLERANCE:
            return joints
        return moved

    def _pose(self, joints: AnyArray) -> Any:
        q = np.zeros_like(self._configuration.q)
        q[self._addresses] = joints
        limit = self._limits[0]
        q = np.clip(q, limit.lower, limit.upper)  # a joint may be measured a little outside of its range
        self._configuration.update(q)
        return self._configuration.get_transform_frame_to_world(self._task.frame_name, self._task.frame_type)


def kinematic_text(path: Path, data: bytes, joints: set[str]) -> str:
    """An XML text for MuJoCo with the links, joints and sites of a file, and nothing that names other files."""
    if b"<!DOCTYPE" in data or b"<!ENTITY" in data:
        raise BadFile(path, "it defines XML entities, which are refused; remove them")
    root = ElementTree.fromstring(data)
    if root.tag not in ("mujoco", "robot"):
        raise BadFile(path, f"this is not a URDF or MJCF file: it begins with <{root.tag[:40]}>")
    if root.find(".//include") is not None:
        raise BadFile(path, "it includes other files, which are refused; name the file that contains the joints")
    urdf = root.tag == "robot"
    bare = _bare(path, root, URDF if urdf else MJCF, joints, 0)
    compiler = ElementTree.SubElement(ElementTree.SubElement(bare, "mujoco") if urdf else bare, "compiler", COMPILER)
    if urdf:
        compiler.set("fusestatic", "false")
    return ElementTree.tostring(bare, encoding="unicode")


def _bare(
    path: Path, element: ElementTree.Element, tags: Mapping[str, tuple[str, ...]], joints: set[str], depth: int
) -> ElementTree.Element:
    """A copy with these tags and attributes alone; joints with other names are fixed."""
    if depth > MAX_DEPTH:
        raise BadFile(path, f"it nests more than {MAX_DEPTH} levels")
    bare = ElementTree.Element(
        element.tag, {key: value for key, value in element.attrib.items() if key in tags[element.tag]}
    )
    for child in element:
        fixed = child.tag == "joint" and "name" in child.attrib and child.attrib["name"] not in joints
        if child.tag not in tags or (fixed and tags is MJCF):
            continue
        copy = _bare(path, child, tags, joints, depth + 1)
        if fixed:
            copy.set("type", "fixed")
        bare.append(copy)
    return bare


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

    def begin_episode(self, robot: Limited) -> None:
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

    def _joint_names(self, robot: Limited) -> list[str]:
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
        start = self._robot.joint_position() if last is None else last
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
