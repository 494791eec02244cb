"""Any robot class of an installed lerobot (0.4 and later), by lerobot's own name for it.

    {"type": "lerobot", "robot_type": "so101_follower", "fps": 30,
     "options": {"port": "/dev/ttyACM0", "id": "left",
                 "cameras": {"front": {"type": "opencv", "index_or_path": 0, "width": 640, "height": 480, "fps": 30}}}}

`options` are the settings under `--robot.` in lerobot's own commands. The numbers of its observation become the state,
in lerobot's order, and the arrays [H, W, 3] the cameras. A robot that is not calibrated is refused.
"""

import math
from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Literal

import numpy as np
from pydantic import Field

from plaudit.config import CodeName, Hertz, Number, PositiveFloat
from plaudit.errors import MissingPackage, RobotError, RobotSilent, RolloutError, UnknownName, did_you_mean
from plaudit.robots.config import Positive, RobotConfig, SafetyConfig, SafetyLimits
from plaudit.robots.limits import ClosableRobot, CommandLimiter, Rate
from plaudit.types import AnyArray, FloatArray, Observation


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

    def build(self) -> "LeRobotRobot":
        """Connect to the robot: its motors hold, its cameras run."""
        return LeRobotRobot(make_device("robot", self.robot_type, self.options, self.module), self)


def make_device(kind: str, name: str, options: Mapping[str, Any], module: str | None) -> Any:
    """Make lerobot's "robot" or "teleoperator" of this name, not connected yet. module: imported first"""
    try:
        draccus, devices, cameras = (import_module(part) for part in ("draccus", f"lerobot.{kind}s", "lerobot.cameras"))
    except ModuleNotFoundError as error:
        raise MissingPackage(str(error.name), "lerobot") from error
    if module is not None:
        import_module(module)
    base = getattr(devices, f"{kind.capitalize()}Config")
    import_choice(devices, base, name, kind)
    for camera in options.get("cameras", {}).values():
        import_choice(cameras, cameras.CameraConfig, camera["type"], "camera")
    try:
        return getattr(devices, f"make_{kind}_from_config")(draccus.decode(base, {"type": name, **options}))
    except (ValueError, TypeError, draccus.ParsingError) as error:
        failure = RobotError if kind == "robot" else RolloutError
        raise failure(f"lerobot cannot make a '{name}' with these options: {error}") from error


def import_choice(package: Any, base: Any, name: str, kind: str) -> None:
    """Import subpackages of lerobot until one has registered this name: each registers its own class on import."""
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


SETTLE_S = 3.0  # more than `start_seconds` that a motion to the start pose may take


class LeRobotRobot(ClosableRobot):
    """A `Robot` that lerobot drives; connected from the start."""

    def __init__(self, robot: Any, config: LeRobotConfig):
        """robot: lerobot's object"""
        features, actions = robot.observation_features, robot.action_features
        self.cameras: Mapping[str, tuple[int, int]] = {
            name: (shape[0], shape[1]) for name, shape in features.items() if isinstance(shape, tuple)
        }
        self.state_names = [name for name in features if name not in self.cameras]
        self.action_names = list(actions)
        self.state_dim, self.action_dim, self.fps = len(self.state_names), len(self.action_names), config.fps
        for name in config.start_pose or {}:
            if name not in actions:
                hint = did_you_mean(name, actions)
                raise RobotError(f"start_pose names '{name}', which {robot.name} does not take; {hint}")
        limits = SafetyLimits.of(config.safety, self.action_dim, names=self.action_names)
        self.limiter = CommandLimiter(limits, config.fps)
        self._robot, self._rate = robot, Rate(config.fps, realtime=config.realtime)
        self._start_pose, self._start_seconds = config.start_pose, config.start_seconds
        self._measured: dict[str, float] = {}
        self._sent: dict[str, float] = {}
        self._call("connect", calibrate=False)
        if not robot.is_calibrated:
            robot.disconnect()
            raise RobotError(f"{robot} is not calibrated; run: lerobot-calibrate --robot.type={robot.name}")

    def reset(self, seed: int | None = None) -> Observation:
        """Move to the start pose, if there is one, in a straight line of the joints."""
        observation = self._get_observation()
        self.limiter.restart(self.joint_position())
        if self._start_pose is not None:
            self._move_to(self._start_pose)
            observation = self._get_observation()
        self._rate.reset()
        return observation

    def act(self, action: FloatArray) -> None:
        """Send one command [A]."""
        self.check_command(action, self._robot)
        self._send_limited(action)

    def observe(self) -> Observation:
        """Wait for the next tick and read the robot."""
        self._rate.wait()
        return self._get_observation()

    @property
    def last_command(self) -> FloatArray | None:
        """[A] as lerobot sent it, after its own limits; None before the first command."""
        return np.array([self._sent[name] for name in self.action_names], np.float32) if self._sent else None

    def hold(self) -> None:
        """Command the last measured position; for actions that are not measured, the last command."""
        measured = {name: self._measured[name] for name in self.action_names if name in self._measured}
        target = {**self._sent, **measured}
        if len(target) == self.action_dim:
            self._send(target)
            self.limiter.restart(self.last_command)

    def close(self) -> None:
        """Disconnect."""
        self._robot.disconnect()

    def joint_position(self) -> FloatArray | None:
        """[A] where the joints are: measured, or last commanded where that is not measured; None: not known."""
        values = {**self._sent, **self._measured}
        return np.array([values[n] for n in self.action_names]) if values.keys() >= set(self.action_names) else None

    def _move_to(self, goal: Mapping[str, float]) -> None:
        """Move in a straight line of the joints, within `start_seconds` or as fast as the limits allow."""
        values = {**goal, **self._sent, **self._measured}
        start = np.array([values.get(name, 0.0) for name in self.action_names])
        end = np.array([goal.get(name, value) for name, value in zip(self.action_names, start, strict=True)])
        ticks, rate = max(1, math.ceil(self._start_seconds * self.fps)), Rate(self.fps)
        for n in range(1, ticks + math.ceil(SETTLE_S * self.fps) + 1):
            self._send_limited(start + (end - start) * min(1.0, n / ticks))
            rate.wait()
            if n >= ticks and not self.limiter.limited:
                return

    def _send_limited(self, action: AnyArray) -> None:
        command = self.limiter.limit(action)
        self._send(dict(zip(self.action_names, command.tolist(), strict=True)))
        sent = self.last_command
        assert sent is not None
        self.limiter.sent(sent)

    def _get_observation(self) -> Observation:
        values = self._call("get_observation")
        missing = [name for name in (*self.state_names, *self.cameras) if name not in values]
        if missing:
            raise RobotError(f"{self._robot} did not send {', '.join(missing)}")
        state = np.array([values[name] for name in self.state_names], np.float32)
        if not np.isfinite(state).all():
            bad = self.state_names[int(np.flatnonzero(~np.isfinite(state))[0])]
            raise RobotError(f"{self._robot} reports NaN or infinity for '{bad}'")
        images = {}
        for camera, size in self.cameras.items():
            image = np.array(values[camera], np.uint8)
            if image.shape != (*size, 3):
                raise RobotError(f"camera '{camera}' sent {image.shape} instead of {(*size, 3)}")
            images[camera] = image
        self._measured = {name: float(values[name]) for name in self.state_names}
        return Observation(images, state)

    def _send(self, command: Mapping[str, float]) -> None:
        """Send a command and keep what lerobot returns: the command after its own limits."""
        self._sent = dict(self._call("send_action", dict(command)))

    def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call lerobot and turn the errors of its devices into ours: not connected, no answer, timed out."""
        try:
            return getattr(self._robot, method)(*args, **kwargs)
        except OSError as error:  # a wire that came off, which may be put back
            raise RobotSilent(f"{self._robot}: {method} failed: {error}") from error
        except RuntimeError as error:
            raise RobotError(f"{self._robot}: {method} failed: {error}") from error
