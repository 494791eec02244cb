"""The numbers of the state, by name and unit: what `Observation.state` of the built-in tasks holds, in this order."""

from typing import Final

NEAR: Final = 0.1  # m: ways between things are told in this unit
LIMIT: Final = 50.0  # of any number in the state; only what fell off the table gets there

# The numbers of the state, by name. What the arm knows of itself comes with every kind of observation:
ARM_STATE: Final = (
    *(f"joint{number}" for number in range(1, 8)),  # rad
    "finger",  # 0 closed, 1 open
    *("tip_x", "tip_y", "tip_z"),  # between the finger tips, m from the arm's foot
    *("moved_x", "moved_y", "moved_z"),  # the tip in the last step; 1 is as far as an action can send it
    "finger_sent",  # where the last action sent the fingers: 0 closed, 1 open
)
# and what only a simulation knows, with obs "state" and "both":
SCENE_STATE: Final = (
    *("cube_x", "cube_y", "cube_z"),  # m
    *("tip_to_cube_x", "tip_to_cube_y", "tip_to_cube_z"),  # in units of NEAR
    *("goal_x", "goal_y", "goal_z"),  # m
    *("cube_to_goal_x", "cube_to_goal_y", "cube_to_goal_z"),  # in units of NEAR
    *("cube_qw", "cube_qx", "cube_qy", "cube_qz"),  # how the cube is turned
    "grasped",  # 1 while both fingers touch the cube
)
