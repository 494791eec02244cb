"""A robot to copy: a lamp that can be dimmed, with a driver of its own (docs/add_a_robot.md)."""

from typing import Literal

import numpy as np

from plaudit.robots.config import RobotConfig
from plaudit.robots.limits import Rate
from plaudit.types import Observation


class LampConfig(RobotConfig):
    type: Literal["lamp"] = "lamp"

    def build(self):
        return Lamp(self.realtime)


class Lamp:
    """A `plaudit.protocols.Robot`: its state and its picture are its brightness, an action changes it."""

    state_dim, action_dim, fps = 1, 1, 20.0

    def __init__(self, realtime):
        self.cameras = {"front": (8, 8)}  # name -> (H, W)
        self.rate = Rate(self.fps, realtime=realtime)
        self.brightness, self.last_command = 0.0, None

    def reset(self, seed=None):
        self.brightness = 0.0
        self.rate.reset()
        return self.read()

    def act(self, action):
        self.brightness = float(np.clip(self.brightness + action[0], 0, 1))
        self.last_command = action  # what was really sent: this is recorded

    def observe(self):
        self.rate.wait()
        return self.read()

    def read(self):
        image = np.full((8, 8, 3), 255 * self.brightness, np.uint8)
        return Observation({"front": image}, np.array([self.brightness], np.float32))

    def privileged(self):
        return {}

    def hold(self): ...
