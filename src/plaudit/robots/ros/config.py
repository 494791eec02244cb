"""The config of a robot that speaks ROS 2, for its folder to derive from."""

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from plaudit.config import Config
from plaudit.robots.ros.params import RuntimeParams, RuntimeTopics, read_params, read_topics
from plaudit.robots.transport import AnyTransport, ZenohConfig

if TYPE_CHECKING:
    from plaudit.robots.ros.driver import RosRobot


class RosRobotConfig(Config):
    folder: ClassVar[Path]  # where the two JSON files of the robot are; it is called like the robot

    inference_runtime_params_config: Path | None = None  # a file whose keys replace those of the robot's own
    inference_runtime_topics_config: Path | None = None  # likewise
    transport: AnyTransport = ZenohConfig()
    realtime: bool = True  # observe() keeps the rate HZ; False where whoever drives does

    def params(self) -> RuntimeParams:
        return read_params(self.folder, self.inference_runtime_params_config)

    def topics(self) -> RuntimeTopics:
        topics = read_topics(self.folder, self.inference_runtime_topics_config)
        topics.check(self.params())
        return topics

    def build(self) -> "RosRobot":
        """Subscribed, and nothing sent yet."""
        from plaudit.robots.ros.driver import RosRobot

        params, topics = self.params(), self.topics()  # a mistake in them is told before anything is opened
        return RosRobot(self.folder.name, params, topics, self.transport.build(), realtime=self.realtime)
