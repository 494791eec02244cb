"""A simulated SO-101 follower and leader, as classes of lerobot: with lerobot itself, or with `write_stand_in`.

The follower's joints are where they were sent; its camera is as bright as its first joint is far. The leader moves in
the middle third of each 60 calls, and then rests.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

JOINTS = ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper")
NAMES = [f"{joint}.pos" for joint in JOINTS]

CHOICES = """
class {base}Config:
    choices = {{}}

    def __init__(self, **values):
        vars(self).update(values)

    @classmethod
    def register_subclass(cls, name):
        return lambda choice: cls.choices.setdefault(name, choice)

    @classmethod
    def get_known_choices(cls):
        return cls.choices

class {base}:
    def __init__(self, config):
        self.config = config

    def __str__(self):
        return f"{{self.name}}"

def make_{kind}_from_config(config):
    from importlib import import_module
    cls = type(config)
    return getattr(import_module(cls.__module__), cls.__name__.removesuffix("Config"))(config)
"""
STAND_IN = {
    "draccus.py": """
class ParsingError(Exception): ...

def decode(cls, values):
    values = dict(values)
    return cls.get_known_choices()[values.pop("type")](**values)
""",
    "lerobot/__init__.py": "",
    "lerobot/cameras/__init__.py": CHOICES.format(base="Camera", kind="camera"),
    "lerobot/robots/__init__.py": CHOICES.format(base="Robot", kind="robot"),
    "lerobot/teleoperators/__init__.py": CHOICES.format(base="Teleoperator", kind="teleoperator"),
}


def write_stand_in(folder: Path) -> None:
    """A package that stands in for lerobot: base classes, their registries, and draccus."""
    for name, text in STAND_IN.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


try:
    import numpy as np
    from lerobot.robots import Robot, RobotConfig
    from lerobot.teleoperators import Teleoperator, TeleoperatorConfig
except ModuleNotFoundError:  # imported for `write_stand_in`
    pass
else:

    @RobotConfig.register_subclass("so101_sim_follower")
    @dataclass
    class So101SimFollowerConfig(RobotConfig):
        port: str = ""
        id: str | None = None
        calibration_dir: Path | None = None
        cameras: dict = field(default_factory=dict)

    class So101SimFollower(Robot):
        config_class, name = So101SimFollowerConfig, "so101_sim_follower"
        observation_features: ClassVar[dict] = {**dict.fromkeys(NAMES, float), "front": (48, 64, 3)}
        action_features: ClassVar[dict] = dict.fromkeys(NAMES, float)
        is_connected, is_calibrated = False, True

        def __init__(self, config):
            super().__init__(config)
            self.joints = dict.fromkeys(NAMES, 0.0)

        def connect(self, calibrate=True):
            self.is_connected = True

        def calibrate(self): ...

        def configure(self): ...

        def get_observation(self):
            brightness = int(np.clip(128 + 2 * self.joints[NAMES[0]], 0, 255))
            return {**self.joints, "front": np.full((48, 64, 3), brightness, np.uint8)}

        def send_action(self, action):
            self.joints = dict(action)
            return action

        def disconnect(self):
            self.is_connected = False

    @TeleoperatorConfig.register_subclass("so101_sim_leader")
    @dataclass
    class So101SimLeaderConfig(TeleoperatorConfig):
        port: str = ""
        id: str | None = None
        calibration_dir: Path | None = None

    class So101SimLeader(Teleoperator):
        config_class, name = So101SimLeaderConfig, "so101_sim_leader"
        action_features: ClassVar[dict] = dict.fromkeys(NAMES, float)
        feedback_features: ClassVar[dict] = {}
        is_connected, is_calibrated, calls = False, True, 0

        def connect(self, calibrate=True):
            self.is_connected = True

        def calibrate(self): ...

        def configure(self): ...

        def send_feedback(self, feedback): ...

        def get_action(self):
            self.calls += 1
            amount = np.clip(self.calls % 60 - 20, 0, 20)
            return {name: float(amount * (1 + joint / 10)) for joint, name in enumerate(NAMES)}

        def disconnect(self):
            self.is_connected = False
