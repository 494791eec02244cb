"""A robot of lerobot's as one of ours. It talks to lerobot's base class and to nothing else of it."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from plaudit.errors import InvalidCommand, RobotError, nearest
from plaudit.robots.rate import Pace
from plaudit.types import AnyArray, FloatArray, Observation


class LeRobotRobot:
    """A `Robot`."""

    def __init__(
        self,
        robot: Any,
        *,
        fps: float,
        start_pose: Mapping[str, float] | None = None,
        start_seconds: float = 3.0,
        realtime: bool = True,
    ):
        features, actions = robot.observation_features, robot.action_features
        self.cameras: Mapping[str, tuple[int, int]] = {
            name: (shape[0], shape[1]) for name, shape in features.items() if isinstance(shape, tuple)
        }
        self.state_names = [name for name in features if name not in self.cameras]
        self.action_names = list(actions)
        self.state_dim, self.action_dim, self.fps = len(self.state_names), len(self.action_names), fps
        for name in start_pose or {}:
            if name not in actions:
                raise RobotError(
                    f"start_pose names '{name}', which {robot.name} does not take; {nearest(name, actions)}"
                )
        self._robot, self._pace = robot, Pace(fps, realtime=realtime)
        self._start, self._start_seconds = start_pose, start_seconds
        self._measured: dict[str, float] = {}
        self._sent: dict[str, float] = {}
        self._connect()

    def _connect(self) -> None:
        self._call("connect", calibrate=False)
        if not self._robot.is_calibrated:
            self._robot.disconnect()
            raise RobotError(f"{self._robot} is not calibrated; run: lerobot-calibrate --robot.type={self._robot.name}")

    def reset(self, seed: int | None = None) -> Observation:
        observation = self._look()
        if self._start is not None:
            here = {name: self._sent.get(name, self._measured.get(name, goal)) for name, goal in self._start.items()}
            ticks, tick = max(1, math.ceil(self._start_seconds * self.fps)), Pace(self.fps)
            for n in range(1, ticks + 1):
                self._send(self._sent | {k: here[k] + (goal - here[k]) * n / ticks for k, goal in self._start.items()})
                tick.wait()
            observation = self._look()
        self._pace.restart()
        return observation

    def act(self, action: FloatArray) -> None:
        if np.shape(action) != (self.action_dim,) or not np.isfinite(action).all():
            raise InvalidCommand(f"{self._robot} takes {self.action_dim} finite numbers, got {np.asarray(action)}")
        self._send(dict(zip(self.action_names, np.asarray(action, float).tolist(), strict=True)))

    def observe(self) -> Observation:
        self._pace.wait()
        return self._look()

    def privileged(self) -> Mapping[str, AnyArray]:
        return {}

    def hold(self) -> None:
        """At what was measured last; where an action is nothing that is measured, at what was sent last."""
        here = {name: self._measured[name] for name in self.action_names if name in self._measured}
        target = {**self._sent, **here}
        if len(target) == self.action_dim:
            self._send(target)

    def close(self) -> None:
        self._robot.disconnect()

    def __enter__(self) -> "LeRobotRobot":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _look(self) -> Observation:
        seen = self._call("get_observation")
        missing = [name for name in (*self.state_names, *self.cameras) if name not in seen]
        if missing:
            raise RobotError(f"{self._robot} did not send {', '.join(missing)}")
        state = np.array([seen[name] for name in self.state_names], np.float32)
        if not np.isfinite(state).all():
            bad = self.state_names[int(np.flatnonzero(~np.isfinite(state))[0])]
            raise RobotError(f"{self._robot} measures NaN or infinity for '{bad}'")
        images = {}
        for camera, size in self.cameras.items():
            image = np.array(seen[camera], np.uint8)
            if image.shape != (*size, 3):
                raise RobotError(f"camera '{camera}' sent {image.shape} instead of {(*size, 3)}")
            images[camera] = image
        self._measured = {name: float(seen[name]) for name in self.state_names}
        return Observation(images, state)

    def _send(self, command: Mapping[str, float]) -> None:
        """lerobot returns what it really sent, after its own limits."""
        self._sent = dict(self._call("send_action", dict(command)))

    def _call(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Its devices fail with these: not connected, a bus or a camera that does not answer, a read that timed out."""
        try:
            return getattr(self._robot, method)(*arguments, **options)
        except (OSError, RuntimeError) as error:
            raise RobotError(f"{self._robot}: {method} failed: {error}") from error
