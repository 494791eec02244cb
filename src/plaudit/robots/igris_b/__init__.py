"""IGRIS-B: two arms of six joints, two hands of six; its state is the joint positions, its cameras send raw images.

Joint names, limits, start pose and topics are in the two JSON files of this folder. They describe the twin; put those
of your robot there, or into files of your own (`--inference_runtime_params_config`,
`--inference_runtime_topics_config`).
"""

from pathlib import Path
from typing import ClassVar, Literal

from plaudit.robots.ros import RosRobotConfig


class IgrisBConfig(RosRobotConfig):
    """The config of an IGRIS-B."""

    folder: ClassVar[Path] = Path(__file__).parent

    type: Literal["igris_b"] = "igris_b"
