"""Any robot class of an installed lerobot (0.4 and later), by the name that lerobot gives it.

    {"type": "lerobot", "robot_type": "so101_follower", "fps": 30,
     "options": {"port": "/dev/ttyACM0", "id": "left",
                 "cameras": {"front": {"type": "opencv", "index_or_path": 0, "width": 640, "height": 480, "fps": 30}}}}

`options` is what stands under `--robot.` in lerobot's own commands. Of its observation the numbers become the state,
in lerobot's order, and the arrays [H, W, 3] the cameras; an action has one number for each of its action features.
Calibrate with lerobot's own command first: here a robot that is not calibrated is not driven.
"""

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, PositiveFloat

from plaudit.config import Config
from plaudit.errors import MissingPackage, RobotError, UnknownName, nearest
from plaudit.trust import CodeName

if TYPE_CHECKING:
    from plaudit.robots.lerobot.driver import LeRobotRobot


class LeRobotConfig(Config):
    type: Literal["lerobot"] = "lerobot"
    robot_type: str  # as lerobot has it: so101_follower, koch_follower, ...
    options: Mapping[str, Any] = Field(default_factory=dict)  # of that robot, as lerobot has them
    module: CodeName | None = None  # to import first, for a robot class of your own
    fps: PositiveFloat = 30.0  # control steps a second
    start_pose: Mapping[str, float] | None = None  # action feature -> where reset() goes; None: it stays where it is
    start_seconds: PositiveFloat = 3.0  # that it takes to get there
    realtime: bool = True  # observe() keeps the rate; False where whoever drives does

    def build(self) -> "LeRobotRobot":
        """Connected: motors hold, cameras run."""
        from plaudit.robots.lerobot.driver import LeRobotRobot

        robot = make_robot(self.robot_type, self.options, self.module)
        return LeRobotRobot(
            robot,
            fps=self.fps,
            start_pose=self.start_pose,
            start_seconds=self.start_seconds,
            realtime=self.realtime,
        )


def make_robot(robot_type: str, options: Mapping[str, Any], module: str | None) -> Any:
    """lerobot's robot, not connected yet."""
    try:
        draccus, robots, cameras = (import_module(name) for name in ("draccus", "lerobot.robots", "lerobot.cameras"))
    except ModuleNotFoundError as error:
        raise MissingPackage(str(error.name), "lerobot") from error
    if module is not None:
        import_module(module)
    _know(robots, robots.RobotConfig, robot_type, "robot")
    for camera in options.get("cameras", {}).values():
        _know(cameras, cameras.CameraConfig, camera["type"], "camera")
    try:
        config = draccus.decode(robots.RobotConfig, {"type": robot_type, **options})
        return robots.make_robot_from_config(config)
    except (ValueError, TypeError, draccus.ParsingError) as error:
        raise RobotError(f"lerobot cannot make a '{robot_type}' with these options: {error}") from error


def _know(package: Any, base: Any, name: str, kind: str) -> None:
    """Have lerobot register a class of this name: each subfolder registers its own when it is imported.

    One after the other until it is there, because some of them need packages that only their own robot needs.
    """
    for found in iter_modules(package.__path__):
        if name in base.get_known_choices():
            return
        if found.ispkg:
            try:
                import_module(f"{package.__name__}.{found.name}")
            except ImportError:
                continue  # somebody else's robot
    if name not in base.get_known_choices():
        raise UnknownName(f"lerobot has no {kind} '{name}'; {nearest(name, base.get_known_choices())}")
