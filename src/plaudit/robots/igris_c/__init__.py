"""IGRIS-C: a waist, two arms of seven joints with grippers; positions and velocities, cameras send JPEG.

Its layout is a setting like that of IGRIS-B, in the two JSON files beside this one: what differs between the two
robots is in these files and nowhere else.
"""

from pathlib import Path
from typing import ClassVar, Literal

from plaudit.robots.ros import RosRobotConfig


class IgrisCConfig(RosRobotConfig):
    folder: ClassVar[Path] = Path(__file__).parent

    type: Literal["igris_c"] = "igris_c"
