"""Robots with ROS 2 topics: JointState and Image in, JointState out. Such a robot is two JSON files and a class:

class MyRobotConfig(RosRobotConfig):
    type: Literal["my_robot"] = "my_robot"
    folder: ClassVar[Path] = Path(__file__).parent     # inference_runtime_params.json, inference_runtime_topics.json
"""

from plaudit.robots.ros.config import RosRobotConfig
from plaudit.robots.ros.driver import RosRobot
from plaudit.robots.ros.params import RuntimeParams, RuntimeTopics

__all__ = ["RosRobot", "RosRobotConfig", "RuntimeParams", "RuntimeTopics"]
