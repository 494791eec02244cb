"""The scene: a Panda arm made of primitives at a table, with a cube and a goal marker.

Link lengths and joint axes are those of the real arm; its covers are capsules and boxes, so there is nothing to
download and a ray meets a surface in closed form. A weld to a mocap body holds the hand, which always points down: an
action moves that body, and the solver moves the joints. (Rejected: inverse kinematics and joint servos in Python, which
cost more than the physics.) Gravity acts on the cube alone. Only pairs that can meet have contacts.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from plaudit.errors import EnvError, did_you_mean

# ruff: noqa: E501 -- one MJCF element per line

CUBE_HALF_SIZE: Final = 0.02  # m
MARKER_RADIUS: Final = 0.025  # m: large enough to show through every face of a cube at the goal
FINGER_OPEN: Final = 0.04  # a finger's travel from the middle, m
TIP_OFFSET: Final = 0.1034  # from the hand's frame to between the fingertips, m
TABLE_CENTER: Final = np.array([0.5, 0.0, 0.0])  # middle of the workspace, m
WORKSPACE_LOW: Final = np.array([0.3, -0.25, 0.012])  # limits of the fingertips, m
WORKSPACE_HIGH: Final = np.array([0.7, 0.25, 0.35])
TIMESTEP: Final = 0.00625  # of physics, s
SUBSTEPS: Final = 8  # of physics per control step: 20 Hz
ACTION_SCALE: Final = 0.04  # how far an action of 1 moves the hand in a step, m
TIP_START: Final = (0.5, 0.0, 0.2)  # m
HOME_JOINTS: Final = (0.0, 0.0459, 0.0, -2.3763, 0.0, 2.4222, 0.7854)  # with the fingertips at TIP_START, rad
HAND_DOWN: Final = "0 1 0 0"  # quaternion
MOVING_GROUP, FIXED_GROUP = 1, 0  # geom groups
CAMERAS: Final = ("front", "side", "wrist")
MAX_IMAGE_SIZE: Final = 1280  # edge of an image, pixels
SKY: Final = np.array([0.80, 0.85, 0.90])

# The names of `Observation.state`, in order.
DISTANCE_SCALE: Final = 0.1  # m: offsets between things are given in this unit
STATE_LIMIT: Final = 50.0  # every value is clipped to this; only a cube that fell off the table reaches it
# Proprioception, part of every kind of observation:
ARM_STATE: Final = (
    *(f"joint{number}" for number in range(1, 8)),  # rad
    "finger",  # 0 closed, 1 open
    *("tip_x", "tip_y", "tip_z"),  # between the fingertips, m from the arm's base
    *("moved_x", "moved_y", "moved_z"),  # by the tip in the last step; 1 is as far as an action can send it
    "finger_sent",  # the last gripper command: 0 closed, 1 open
)
# Privileged state, with obs "state" and "both":
SCENE_STATE: Final = (
    *("cube_x", "cube_y", "cube_z"),  # m
    *("tip_to_cube_x", "tip_to_cube_y", "tip_to_cube_z"),  # in units of DISTANCE_SCALE
    *("goal_x", "goal_y", "goal_z"),  # m
    *("cube_to_goal_x", "cube_to_goal_y", "cube_to_goal_z"),  # in units of DISTANCE_SCALE
    *("cube_qw", "cube_qx", "cube_qy", "cube_qz"),  # orientation of the cube
    "grasped",  # 1 while both fingers touch the cube
)

_WHITE, _GRAY, _DARK = "0.92 0.93 0.94 1", "0.55 0.57 0.60 1", "0.16 0.17 0.19 1"

# Per link: name, pose in its parent, its covers as (type, size, pos or fromto; color).
_LINKS: Final = (
    ("link1", 'pos="0 0 0.333"', ('capsule" size="0.055" fromto="0 0 -0.16 0 0 0', _WHITE)),
    ("link2", 'quat="1 -1 0 0"', ('capsule" size="0.055" fromto="0 0 -0.06 0 0 0.06', _WHITE), ('capsule" size="0.052" fromto="0 0 0 0 -0.14 0', _WHITE)),
    ("link3", 'pos="0 -0.316 0" quat="1 1 0 0"', ('capsule" size="0.05" fromto="0 0 -0.14 0 0 0', _WHITE), ('capsule" size="0.048" fromto="0.0825 -0.04 0 0.0825 0.04 0', _GRAY)),
    ("link4", 'pos="0.0825 0 0" quat="1 1 0 0"', ('capsule" size="0.05" fromto="-0.0825 0.08 0 -0.0825 0.25 0', _WHITE)),
    ("link5", 'pos="-0.0825 0.384 0" quat="1 -1 0 0"', ('capsule" size="0.048" fromto="0 0.03 -0.12 0 0.06 -0.05', _WHITE), ('capsule" size="0.05" fromto="0 0 -0.02 0 0 0', _GRAY)),
    ("link6", 'quat="1 1 0 0"', ('capsule" size="0.046" fromto="0 0 -0.03 0 0 0.03', _WHITE), ('capsule" size="0.043" fromto="0.03 0 0 0.088 0 0', _WHITE)),
    ("link7", 'pos="0.088 0 0" quat="1 1 0 0"', ('cylinder" size="0.045 0.03" pos="0 0 0.075', _GRAY)),
)  # fmt: skip

_SETTINGS_XML: Final = f"""<compiler angle="radian" autolimits="true"/>
  <option timestep="{TIMESTEP}" integrator="implicitfast" cone="elliptic" impratio="10" iterations="20" ls_iterations="50"/>
  <visual><global offwidth="{MAX_IMAGE_SIZE}" offheight="{MAX_IMAGE_SIZE}"/><headlight ambient="0 0 0" diffuse="0 0 0" specular="0 0 0"/><map znear="0.005" zfar="20"/></visual>
  <statistic extent="1" center="0.5 0 0.1"/>
  <asset><texture type="skybox" builtin="flat" rgb1="{" ".join(map(str, SKY))}" width="8" height="48"/></asset>
  <default>
    <geom contype="0" conaffinity="0" group="{MOVING_GROUP}"/>
    <default class="arm"><joint axis="0 0 1" damping="4" armature="0.1" limited="false"/></default>
    <default class="cover"><geom mass="0"/></default>
    <default class="finger"><joint type="slide" axis="0 1 0" range="0 {FINGER_OPEN}" damping="10" armature="0.1" solreflimit="0.01 1"/></default>
    <default class="pad"><geom mass="0" contype="1" conaffinity="2" condim="4" friction="1.5 0.005 0.0001" solref="0.01 1" solimp="0.95 0.99 0.001"/></default>
  </default>"""

_SURROUNDINGS_XML: Final = f"""<light name="key" directional="true" pos="0.2 -0.6 1.5" dir="-0.6 0.45 -1" diffuse="0.55 0.55 0.55" ambient="0.45 0.45 0.45" specular="0 0 0" castshadow="false"/>
    <geom name="floor" type="plane" size="3 3 0.1" pos="0 0 -0.4" group="{FIXED_GROUP}" rgba="0.30 0.33 0.37 1"/>
    <geom name="wall" type="box" size="0.02 3 2" pos="-0.6 0 0.6" group="{FIXED_GROUP}" rgba="0.62 0.68 0.74 1"/>
    <geom name="table" type="box" size="0.45 0.55 0.2" pos="0.4 0 -0.2" group="{FIXED_GROUP}" rgba="0.72 0.60 0.45 1" contype="2" conaffinity="5" condim="4" friction="1 0.02 0.0001" solref="0.01 1"/>
    <camera name="front" pos="1.12 0 0.42" xyaxes="0 1 0 -0.42 0 0.907" fovy="38"/>
    <camera name="side" pos="0.5 -0.8 0.38" xyaxes="1 0 0 0 0.342 0.940" fovy="34"/>"""

# The weld that lets the target move the hand, contacts between fingers and cube, the gripper, and the start.
_MECHANICS_XML: Final = f"""<equality>
    <weld name="hold" body1="target" body2="hand" relpose="0 0 0 1 0 0 0" solref="0.02 1" solimp="0.95 0.99 0.001"/>
    <joint joint1="left_finger" joint2="right_finger" solref="0.01 1"/>
  </equality>
  <sensor>
    <contact name="left_touch" geom1="left_pad" geom2="cube" num="1" data="found"/>
    <contact name="right_touch" geom1="right_pad" geom2="cube" num="1" data="found"/>
  </sensor>
  <actuator>
    <position name="grip" joint="left_finger" kp="800" kv="40" ctrlrange="0 {FINGER_OPEN}" forcerange="-20 20"/>
  </actuator>
  <keyframe>
    <key name="home" qpos="{" ".join(map(str, HOME_JOINTS))} {FINGER_OPEN} {FINGER_OPEN} {TABLE_CENTER[0]} {TABLE_CENTER[1]} {CUBE_HALF_SIZE} 1 0 0 0" ctrl="{FINGER_OPEN}"/>
  </keyframe>"""


def scene_xml() -> str:
    """The MJCF of the scene."""
    return f"""
<mujoco model="plaudit panda">
  {_SETTINGS_XML}
  <worldbody>
    {_SURROUNDINGS_XML}
    {_arm_xml()}
    <body name="target" mocap="true" pos="{TIP_START[0]} {TIP_START[1]} {TIP_START[2] + TIP_OFFSET}" quat="{HAND_DOWN}"/>
    <body name="goal" mocap="true"><geom name="goal" type="sphere" size="{MARKER_RADIUS}" rgba="0.20 0.75 0.35 1"/></body>
    <body name="cube" pos="0.5 0 {CUBE_HALF_SIZE}"><freejoint name="cube"/>
      <geom name="cube" type="box" size="{CUBE_HALF_SIZE} {CUBE_HALF_SIZE} {CUBE_HALF_SIZE}" mass="0.06" rgba="0.85 0.16 0.12 1" contype="4" conaffinity="3" condim="4" friction="1 0.02 0.0001" solref="0.01 1"/>
    </body>
  </worldbody>
  {_MECHANICS_XML}
</mujoco>"""


def _arm_xml() -> str:
    """The arm's links, each inside the one before, with the hand inside the last."""
    links, closing = "", ""
    for number, (name, pose, *covers) in enumerate(_LINKS, start=1):
        geoms = "".join(f'<geom class="cover" type="{shape}" rgba="{color}"/>' for shape, color in covers)
        links += (
            f'<body name="{name}" gravcomp="1" {pose}><inertial pos="0 0 0" mass="1" diaginertia="0.02 0.02 0.02"/>'
        )
        links += f'<joint name="joint{number}" class="arm"/>{geoms}'
        closing += "</body>"
    return f"""<body name="base"><geom name="base" type="capsule" size="0.07" fromto="0 0 0 0 0 0.14" group="{FIXED_GROUP}" rgba="{_WHITE}"/>
    {links}
      <body name="hand" gravcomp="1" pos="0 0 0.107" quat="0.9238795 0 0 -0.3826834">
        <inertial pos="0 0 0.03" mass="0.5" diaginertia="0.002 0.002 0.002"/>
        <geom class="cover" type="box" size="0.03 0.1 0.028" pos="0 0 0.03" rgba="{_WHITE}"/>
        <camera name="wrist" pos="0.1 0 0" xyaxes="0 1 0 0.978 0 0.208" fovy="80"/>
        <site name="tip" pos="0 0 {TIP_OFFSET}" rgba="0 0 0 0"/>
        {_fingers_xml()}
      </body>
    {closing}
    </body>"""


def _fingers_xml() -> str:
    return "".join(
        f"""
        <body name="{side}_finger" gravcomp="1" pos="0 0 0.0584" {turn}>
          <inertial pos="0 0 0.02" mass="0.05" diaginertia="2e-5 2e-5 2e-5"/>
          <joint name="{side}_finger" class="finger"/>
          <geom class="cover" type="box" size="0.009 0.006 0.012" pos="0 0.016 0.012" rgba="{_GRAY}"/>
          <geom name="{side}_pad" class="pad" type="box" size="0.010 0.005 0.014" pos="0 0.005 0.036" rgba="{_DARK}"/>
        </body>"""
        for side, turn in (("left", ""), ("right", 'quat="0 0 0 1"'))
    )


def check_cameras(cameras: Sequence[str]) -> None:
    """Raise `EnvError` unless all of these are cameras of the scene."""
    if not cameras:
        raise EnvError(f"name at least one camera of {', '.join(CAMERAS)}; to have no images, set obs to 'state'")
    for camera in cameras:
        if camera not in CAMERAS:
            raise EnvError(f"there is no camera '{camera}'; {did_you_mean(camera, CAMERAS)}")
        if list(cameras).count(camera) > 1:
            raise EnvError(f"camera '{camera}' is named twice")


def check_size(size: tuple[int, int]) -> None:
    """Raise `EnvError` unless an image may have this height and width."""
    if min(size) < 1 or max(size) > MAX_IMAGE_SIZE:
        raise EnvError(f"image_size is {list(size)}; height and width must be from 1 to {MAX_IMAGE_SIZE}")
