"""IGRIS-B: two arms of six joints, two hands of six; joint positions are its state, cameras send raw pictures.

Joint names, limits, start pose and topics are settings, in the two JSON files beside this one. They describe the twin;
put those of your robot there, or into files of your own (`--inference_runtime_params_config`,
`--inference_runtime_topics_config`).
"""

from pathlib import Path
from typing import ClassVar, Literal

from plaudit.robots.ros import RosRobotConfig


class IgrisBConfig(RosRobotConfig):
    folder: ClassVar[Path] = Path(__file__).parent

    type: Literal["igris_b"] = "igris_b"
