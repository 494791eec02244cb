"""MuJoCo, as this folder imports it: once, in one place, with its renderer settled before.

The built-in tasks need `mujoco.batch`, which is new in MuJoCo 4; who has none, or an older one, reads what to install.
MuJoCo decides while it is imported how it will draw, so the choice is made here, before. Rays need none of it, and a
machine without OpenGL is fine until somebody asks for a `GlCamera`.
"""

from importlib import import_module
from typing import Any, TypeAlias

from plaudit.envs import gl
from plaudit.errors import MissingExtra

Model: TypeAlias = Any  # mujoco.MjModel; MuJoCo comes without types

gl.choose(images=False)
try:
    mujoco: Any = import_module("mujoco")
except ModuleNotFoundError as error:
    raise MissingExtra("mujoco", "sim") from error
try:
    from mujoco.batch import Batch
except ModuleNotFoundError as error:
    raise MissingExtra(f"mujoco 4 or newer (there is {mujoco.__version__})", "sim") from error

__all__ = ["Batch", "Model", "mujoco"]
