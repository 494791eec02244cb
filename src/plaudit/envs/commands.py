"""What `plaudit env` needs: the list of environments, a config from a name and settings, and throughput."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

import numpy as np

from plaudit.config import load
from plaudit.envs.adapters import AdapterConfig
from plaudit.envs.panda.scene import ARM_STATE, CAMERAS, SCENE_STATE, TASKS
from plaudit.protocols import VecEnv
from plaudit.registry import ENV_REGISTRY

# name -> the module that an adapter imports, the extra that installs it
_SIMULATORS = {
    "gym_hil": ("gym_hil", "gym-hil"),
    "fetch": ("gymnasium_robotics", "fetch"),
    "metaworld": ("metaworld", "metaworld"),
    "maniskill": ("mani_skill", "maniskill"),
}


@dataclass(frozen=True)
class EnvInfo:
    """One row of `plaudit env list`."""

    name: str
    about: str  # the instruction of a built-in task, or what an adapter leads to
    cameras: str  # here and below "-" where it depends on the id
    state: str  # dimensions with privileged state / of the arm alone
    actions: str
    install: str  # the command that installs what is missing; empty where nothing is


def list_envs() -> list[EnvInfo]:
    """All registered environments, the built-in ones first."""
    return [_env_info(name) for name in sorted(ENV_REGISTRY.names(), key=lambda name: (name not in TASKS, name))]


def _env_info(name: str) -> EnvInfo:
    if name in TASKS:
        try:  # by its version, because an import would fix MuJoCo's rendering backend
            installed = int(version("mujoco").split(".")[0]) >= 4
        except PackageNotFoundError:
            installed = False
        state = f"{len(ARM_STATE + SCENE_STATE)} / {len(ARM_STATE)}"
        missing = "" if installed else "pip install 'plaudit[sim]'"
        return EnvInfo(name, TASKS[name].instruction, ", ".join(CAMERAS), state, "4", missing)
    cls: Any = ENV_REGISTRY.get(name)
    about = (cls.__doc__ or "").strip().split("\n")[0].split(". ")[0].rstrip(".")
    cameras = ", ".join(cls.available_cameras) if issubclass(cls, AdapterConfig) else ""
    module, extra = _SIMULATORS.get(name, ("gymnasium", ""))
    missing = "" if find_spec(module) else f"pip install 'plaudit[{extra}]'"
    return EnvInfo(name, about, cameras or "-", "-", "-", missing)


def env_config(name: str, settings: Sequence[str] = ()) -> Any:
    """The config of an environment from its name or dotted path, and settings like "id=Pusher-v5"."""
    cls = ENV_REGISTRY.get(name)
    named = ":" not in name and "type" in cls.model_fields
    return load(cls, overrides=[*([f"type={name}"] if named else []), *settings])


@dataclass(frozen=True)
class Throughput:
    """Of all environments of a vectorized environment together."""

    steps_per_s: float  # control steps
    frames_per_s: float  # images of all cameras


def measure_throughput(config: Any, num_envs: int, seconds: float) -> Throughput:
    """Run episodes of random actions for about that long; resets count as well."""
    env: VecEnv = config.build(num_envs)
    rng, active = np.random.default_rng(0), np.ones(num_envs, bool)
    env.reset(range(num_envs))
    env.step(np.zeros((num_envs, env.action_dim)), active)  # warm-up: what is slow only once does not count
    steps, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < seconds:
        if steps % env.max_steps == 0:
            env.reset(range(num_envs))
        env.step(rng.uniform(-1, 1, (num_envs, env.action_dim)), active)
        steps += 1
    steps_per_s = steps * num_envs / (time.perf_counter() - begin)
    env.close()
    return Throughput(steps_per_s, steps_per_s * len(env.cameras))
