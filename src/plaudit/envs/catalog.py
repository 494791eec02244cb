"""What environments there are, what each is, and what it takes: for tables and for commands that are given a name."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

from plaudit.config import load
from plaudit.envs.adapters.common import AdapterConfig
from plaudit.envs.panda.scene import CAMERAS
from plaudit.envs.panda.state import ARM_STATE, SCENE_STATE
from plaudit.envs.panda.tasks import TASKS
from plaudit.registry import ENV_REGISTRY

# name -> the module that an adapter imports, the extra that brings it
_SIMULATORS = {
    "gym_hil": ("gym_hil", "gym-hil"),
    "fetch": ("gymnasium_robotics", "fetch"),
    "metaworld": ("metaworld", "metaworld"),
    "maniskill": ("mani_skill", "maniskill"),
}


@dataclass(frozen=True)
class Card:
    """One environment in a few words."""

    name: str
    about: str  # the instruction of a built-in task, or what an adapter leads to
    cameras: str  # here and below "-" where it depends on the id
    state: str  # how many numbers, with everything and with the arm's own alone
    actions: str
    install: str  # what is missing; empty where nothing is


def cards() -> list[Card]:
    """All that the registry knows, the built-in ones first."""
    names = sorted(ENV_REGISTRY.names(), key=lambda name: (name not in TASKS, name))
    return [_built_in(name) if name in TASKS else _adapter(name) for name in names]


def env_config(name: str, settings: Sequence[str] = ()) -> Any:
    """The config of an environment from its name and settings like "id=Pusher-v5"."""
    return load(ENV_REGISTRY.get(name), overrides=[f"type={name}", *settings])


def _built_in(name: str) -> Card:
    full, arm = len(ARM_STATE + SCENE_STATE), len(ARM_STATE)
    missing = "" if _mujoco() >= 4 else "pip install 'plaudit[sim]'"
    return Card(name, TASKS[name].words, ", ".join(CAMERAS), f"{full} / {arm}", "4", missing)


def _adapter(name: str) -> Card:
    cls: Any = ENV_REGISTRY.get(name)
    about = (import_module(cls.__module__).__doc__ or "").strip().split("\n")[0].rstrip(".")
    cameras = ", ".join(cls.cameras_known) if issubclass(cls, AdapterConfig) else ""
    module, extra = _SIMULATORS.get(name, ("gymnasium", ""))
    missing = "" if find_spec(module) else f"pip install 'plaudit[{extra}]'"
    return Card(name, about, cameras or "-", "-", "-", missing)


def _mujoco() -> int:
    """The major version that is installed, 0 for none; without importing it, which would settle its renderer."""
    try:
        return int(version("mujoco").split(".")[0])
    except PackageNotFoundError:
        return 0
