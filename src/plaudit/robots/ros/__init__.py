"""Robots with ROS 2 topics: JointState and Image in, JointState out. Such a robot is two JSON files and a class:

class MyRobotConfig(RosRobotConfig):
    type: Literal["my_robot"] = "my_robot"
    folder: ClassVar[Path] = Path(__file__).parent     # inference_runtime_params.json, inference_runtime_topics.json
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from pydantic import field_serializer

from plaudit.config import read_values
from plaudit.robots.config import RobotConfig, SafetyLimits
from plaudit.robots.ros.driver import RosRobot
from plaudit.robots.ros.params import PARAMS_FILE, TOPICS_FILE, RuntimeParams, RuntimeTopics, load_file
from plaudit.robots.transport import AnyTransport, ZenohConfig

_FILES = {"inference_runtime_params_config": PARAMS_FILE, "inference_runtime_topics_config": TOPICS_FILE}


class RosRobotConfig(RobotConfig):
    """A robot's folder derives its config class from this one and sets `folder` and `type`.

    A config that is saved contains the keys of the user's files instead of their paths; one that is sent to another
    process has all keys, the robot's own too, because another machine may not have these files.
    """

    folder: ClassVar[Path]  # of the robot's two JSON files; its name is the robot's

    # A file whose keys replace those of the robot's own, or these keys.
    inference_runtime_params_config: Path | Mapping[str, Any] | None = None
    # File or mapping; its keys replace those of the robot's topics.
    inference_runtime_topics_config: Path | Mapping[str, Any] | None = None
    transport: AnyTransport = ZenohConfig()  # how ROS 2 messages travel: zenoh, cyclone or memory

    def params(self) -> RuntimeParams:
        """Read the robot's params and the user's own."""
        return load_file(RuntimeParams, self.folder / PARAMS_FILE, self.inference_runtime_params_config)

    def topics(self) -> RuntimeTopics:
        """Read the robot's topics and the user's own, and check that every camera has one."""
        topics = load_file(RuntimeTopics, self.folder / TOPICS_FILE, self.inference_runtime_topics_config)
        topics.check(self.params())
        return topics

    def inference_defaults(self, horizon: int | None) -> Mapping[str, Any]:
        """What the params say about policies."""
        params = self.params()
        return {"execution_horizon": params.executed_steps(horizon), "normalizer": params.norm_stats_file_path}

    def build(self) -> RosRobot:
        """Subscribe to the robot's topics; nothing is sent yet."""
        params, topics = self.params(), self.topics()  # a mistake in them is reported before anything is opened
        limits = self.limits(params.action_dim)
        return RosRobot(self.folder.name, params, topics, self.transport.build(), limits, realtime=self.realtime)

    def limits(self, action_dim: int) -> SafetyLimits:
        """Those of the params, and those of the block `safety` where they are stricter."""
        params = self.params()
        block = SafetyLimits.of(self.safety, action_dim, names=params.joint_names)
        limits = block.within(own := params.safety_limits())
        limits.check()
        return replace(limits, stale_observation_s=own.stale_observation_s)

    @field_serializer(*_FILES)
    def _embed_file(self, value: Path | Mapping[str, Any] | None) -> Any:
        return str(embedded) if isinstance(embedded := _embed(value), Path) else embedded

    def __getstate__(self) -> dict[Any, Any]:
        """With all keys; a file that does not exist stays a path, which is reported later."""
        state = super().__getstate__()
        files: dict[str, Any] = {}
        for name, own in _FILES.items():
            keys, robot_file = _embed(getattr(self, name)) or {}, self.folder / own
            if isinstance(keys, Mapping) and robot_file.is_file():
                files[name] = {**read_values(robot_file, ())[0], **keys}
        return {**state, "__dict__": {**state["__dict__"], **files}}


def _embed(file: Path | Mapping[str, Any] | None) -> Path | Mapping[str, Any] | None:
    """The keys of a file; a path that does not exist stays, so that the robot can report it."""
    return read_values(file, ())[0] if isinstance(file, Path) and file.is_file() else file
