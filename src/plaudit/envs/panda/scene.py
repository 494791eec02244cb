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

# Also in scene.xml:
TIMESTEP: Final = 0.00625  # of physics, s
CUBE_HALF_SIZE: Final = 0.02  # m
FINGER_OPEN: Final = 0.04  # a finger's travel from the middle, m
TIP_OFFSET: Final = 0.1034  # from the hand's frame to between the fingertips, m
MOVING_GROUP, FIXED_GROUP = 1, 0  # geom groups
CAMERAS: Final = ("front", "side", "wrist")
MAX_IMAGE_SIZE: Final = 1280  # edge of an image, pixels
SKY: Final = np.array([0.80, 0.85, 0.90])

TABLE_CENTER: Final = np.array([0.5, 0.0, 0.0])  # middle of the workspace, m
WORKSPACE_LOW: Final = np.array([0.3, -0.25, 0.012])  # limits of the fingertips, m
WORKSPACE_HIGH: Final = np.array([0.7, 0.25, 0.35])
SUBSTEPS: Final = 8  # of physics per control step: 20 Hz
ACTION_SCALE: Final = 0.04  # how far an action of 1 moves the hand in a step, m

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


def check_cameras(cameras: Sequence[str]) -> None:
    """Raise `EnvError` unless all of these are cameras of the scene."""
    if not cameras:
        raise EnvError(f"name at least one camera of {', '.join(CAMERAS)}; to have no images, set obs to 'state'")
    for camera in cameras:
        if camera not in CAMERAS:
            raise EnvError(f"there is no camera '{camera}'; {did_you_mean(camera, CAMERAS)}")
        if list(cameras).count(camera) > 1:
            raise EnvError(f"camera '{camera}' is named twice")
