"""Any robot class of an installed lerobot (0.4 and later), by lerobot's own name for it.

    {"type": "lerobot", "robot_type": "so101_follower", "fps": 30,
     "options": {"port": "/dev/ttyACM0", "id": "left",
                 "cameras": {"front": {"type": "opencv", "index_or_path": 0, "width": 640, "height": 480, "fps": 30}}}}

`options` are the settings under `--robot.` in lerobot's own commands. The numbers of its observation become the state,
in lerobot's order, and the arrays [H, W, 3] the cameras; an action has one number for each of its action features.
Calibrate with lerobot's own command first: a robot that is not calibrated is refused.
"""

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Literal

from pydantic import Field

from plaudit.config import CodeName, Hertz, Number, PositiveFloat
from plaudit.errors import MissingPackage, RobotError, UnknownName, did_you_mean
from plaudit.robots.config import RobotConfig
from plaudit.robots.lerobot.driver import LeRobotRobot
from plaudit.robots.safety import Positive, SafetyConfig


class LeRobotSafety(SafetyConfig):
    """Defaults that are slow for the degrees, or the range of -100 to 100, that lerobot's arms count in."""

    max_velocity: Positive = 120.0
    max_acceleration: Positive = 600.0


class LeRobotConfig(RobotConfig):
    """The config of a robot that lerobot drives."""

    type: Literal["lerobot"] = "lerobot"
    robot_type: str  # lerobot's name: so101_follower, koch_follower, ...
    options: Mapping[str, Any] = Field(default_factory=dict)  # of that robot, in lerobot's own keys
    module: CodeName | None = None  # to import first, for a robot class of your own
    fps: Hertz = 30.0  # control steps per second
    start_pose: Mapping[str, Number] | None = None  # action feature -> where reset() moves to; None: it stays
    start_seconds: PositiveFloat = 3.0  # how long that motion takes, or longer where the limits say so
    # Limits of commands: for all, each, or by the names of action features.
    safety: LeRobotSafety = LeRobotSafety()  # pyright: ignore[reportIncompatibleVariableOverride]

    def build(self) -> LeRobotRobot:
        """Connect to the robot: its motors hold, its cameras run."""
        return LeRobotRobot(
            make_robot(self.robot_type, self.options, self.module),
            fps=self.fps,
            start_pose=self.start_pose,
            start_seconds=self.start_seconds,
            realtime=self.realtime,
            safety=self.safety,
        )


def make_robot(robot_type: str, options: Mapping[str, Any], module: str | None) -> Any:
    """Make lerobot's robot object, not connected yet."""
    try:
        draccus, robots, cameras = (import_module(name) for name in ("draccus", "lerobot.robots", "lerobot.cameras"))
    except ModuleNotFoundError as error:
        raise MissingPackage(str(error.name), "lerobot") from error
    if module is not None:
        import_module(module)
    import_choice(robots, robots.RobotConfig, robot_type, "robot")
    for camera in options.get("cameras", {}).values():
        import_choice(cameras, cameras.CameraConfig, camera["type"], "camera")
    try:
        config = draccus.decode(robots.RobotConfig, {"type": robot_type, **options})
        return robots.make_robot_from_config(config)
    except (ValueError, TypeError, draccus.ParsingError) as error:
        raise RobotError(f"lerobot cannot make a '{robot_type}' with these options: {error}") from error


def import_choice(package: Any, base: Any, name: str, kind: str) -> None:
    """Import subpackages of lerobot until one has registered this name: each registers its own class on import.

    One after the other, because some of them need packages that only their own robot needs.
    """
    for module in iter_modules(package.__path__):
        if name in base.get_known_choices():
            return
        if module.ispkg:
            try:
                import_module(f"{package.__name__}.{module.name}")
            except ImportError:
                continue  # another robot, whose packages are not installed
    if name not in base.get_known_choices():
        raise UnknownName(f"lerobot has no {kind} '{name}'; {did_you_mean(name, base.get_known_choices())}")
