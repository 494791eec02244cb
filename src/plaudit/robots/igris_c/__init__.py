"""IGRIS-C: a waist, two arms of seven joints with grippers; its state has velocities too, its cameras send JPEG.

As for IGRIS-B, the two JSON files of this folder describe the robot: they are all that differs between the two.
"""

from pathlib import Path
from typing import ClassVar, Literal

from plaudit.robots.ros import RosRobotConfig


class IgrisCConfig(RosRobotConfig):
    """The config of an IGRIS-C."""

    folder: ClassVar[Path] = Path(__file__).parent

    type: Literal["igris_c"] = "igris_c"
