"""The base class for the config of a ROS 2 robot."""

from pathlib import Path
from typing import ClassVar

from plaudit.config import Config
from plaudit.robots.ros.driver import RosRobot
from plaudit.robots.ros.params import RuntimeParams, RuntimeTopics, load_params, load_topics
from plaudit.robots.transport import AnyTransport, ZenohConfig


class RosRobotConfig(Config):
    """A robot's folder derives its config class from this one and sets `folder` and `type`."""

    folder: ClassVar[Path]  # of the robot's two JSON files; its name is the robot's

    inference_runtime_params_config: Path | None = None  # a file whose keys replace those of the robot's own
    inference_runtime_topics_config: Path | None = None  # likewise
    transport: AnyTransport = ZenohConfig()
    realtime: bool = True  # observe() keeps the rate HZ; False where the caller does

    def params(self) -> RuntimeParams:
        """Read the robot's params and the user's own."""
        return load_params(self.folder, self.inference_runtime_params_config)

    def topics(self) -> RuntimeTopics:
        """Read the robot's topics and the user's own, and check that every camera has one."""
        topics = load_topics(self.folder, self.inference_runtime_topics_config)
        topics.check(self.params())
        return topics

    def build(self) -> RosRobot:
        """Subscribe to the robot's topics; nothing is sent yet."""
        params, topics = self.params(), self.topics()  # a mistake in them is reported before anything is opened
        return RosRobot(self.folder.name, params, topics, self.transport.build(), realtime=self.realtime)
