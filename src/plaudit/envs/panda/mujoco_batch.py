"""The one place where this package imports MuJoCo, with its rendering backend chosen first.

The built-in tasks need `mujoco.batch`, which is new in MuJoCo 4; without it, or without MuJoCo, importing this module
fails with the command that installs it. MuJoCo reads MUJOCO_GL while it is imported, so the backend is chosen here. Ray
casting needs no OpenGL, so a machine without it only fails when a `GlCamera` is built.
"""

from importlib import import_module
from typing import Any, TypeAlias

from plaudit.envs import gl
from plaudit.errors import MissingExtra

Model: TypeAlias = Any  # mujoco.MjModel; MuJoCo ships no types

gl.choose_backend(needs_images=False)
try:
    mujoco: Any = import_module("mujoco")
except ModuleNotFoundError as error:
    raise MissingExtra("mujoco", "sim") from error
try:
    from mujoco.batch import Batch
except ModuleNotFoundError as error:
    raise MissingExtra(f"mujoco 4 or newer (there is {mujoco.__version__})", "sim") from error

__all__ = ["Batch", "Model", "mujoco"]
