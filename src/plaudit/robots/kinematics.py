"""Inverse kinematics of an arm from its URDF or MJCF file, by mink on MuJoCo's kinematics.

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

from plaudit.errors import BadFile, RobotError, did_you_mean, import_extra
from plaudit.files import MAX_DEPTH, read_own, readable
from plaudit.types import AnyArray

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
