"""Rendering with MuJoCo: which OpenGL library is used, and several cameras in one process.

MuJoCo reads the variable MUJOCO_GL once, while it is imported, and uses a windowing library where it is unset, which
fails without a display. So every module that imports MuJoCo calls `choose_backend` first: where MUJOCO_GL is unset and
there is no display, it is set to the first headless library of this machine, for this process and its children.
"""

import ctypes
import logging
import os
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import gymnasium as gym

from plaudit.errors import EnvError
from plaudit.types import AnyArray

Backend = Literal["egl", "osmesa", "glfw"]

# backend -> the libraries that it may load, and the Debian and Ubuntu packages that install it; in order of preference:
# EGL uses a GPU where there is one and the CPU where there is none, OSMesa always the CPU.
HEADLESS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "egl": (("libEGL.so.1",), "libegl1 libgl1"),
    "osmesa": (("libOSMesa.so.8", "libOSMesa.so.6"), "libosmesa6"),
}

_GL_MODULES = ("OpenGL", "mujoco.egl", "mujoco.osmesa", "mujoco.glfw", "mujoco.render")
_log = logging.getLogger(__name__)


def choose_backend(wanted: Backend | None = None, *, needs_images: bool = True) -> None:
    """Set MUJOCO_GL for this process if it is unset; call before `import mujoco`.

    With `needs_images=False` a machine without any OpenGL is accepted: nothing will be rendered.
    """
    current = os.environ.get("MUJOCO_GL", "").strip().lower() or None
    if current is not None and current in HEADLESS and not _is_installed(current):
        raise EnvError(f"MUJOCO_GL is '{current}', {_install_hint(current)}")  # MuJoCo would not even import
    if wanted is not None and wanted != current:
        if current is not None or "mujoco" in sys.modules:
            raise EnvError(
                f"render_backend is '{wanted}', but this process already renders with '{current or 'glfw'}'; "
                f"start it with MUJOCO_GL={wanted}"
            )
        _set_backend(wanted, needs_images=needs_images)
    elif current is None and sys.platform == "linux" and not _has_display():
        headless = next((name for name in HEADLESS if _is_installed(name)), "egl")
        if "mujoco" not in sys.modules:
            _set_backend(headless, needs_images=needs_images)
        elif needs_images:
            raise EnvError(
                "MuJoCo was imported before a renderer was chosen and there is no display; "
                f"start the program with MUJOCO_GL={headless}"
            )


@contextmanager
def explain_errors() -> Iterator[None]:
    """Around the first image: turn the error of an OpenGL that cannot start into one that says what to install."""
    try:
        yield
    except Exception as error:  # each backend fails with a class of its own, some of them private
        innermost = list(traceback.walk_tb(error.__traceback__))[-1][0]
        if not innermost.f_globals.get("__name__", "").startswith(_GL_MODULES):
            raise
        backend = os.environ.get("MUJOCO_GL", "glfw")
        hint = f"run: apt-get install {HEADLESS[backend][1]}" if backend in HEADLESS else "set MUJOCO_GL=egl"
        raise EnvError(f"the renderer '{backend}' did not start ({type(error).__name__}: {error}); {hint}") from error


def _set_backend(backend: str, *, needs_images: bool) -> None:
    if backend in HEADLESS and not _is_installed(backend):
        if needs_images:
            raise EnvError(f"images are rendered with '{backend}', {_install_hint(backend)}")
        return
    os.environ["MUJOCO_GL"] = backend
    _log.info("MUJOCO_GL was unset; it is now '%s' for this process and its children", backend)


def _install_hint(backend: str) -> str:
    return f"which is not installed on this machine; run: apt-get install {HEADLESS[backend][1]}"


def _has_display() -> bool:
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _is_installed(backend: str) -> bool:
    for library in HEADLESS[backend][0]:
        try:
            ctypes.CDLL(library)
        except OSError:
            continue
        return True
    return False


FREE_CAMERA = "free"  # the view that the simulator's authors chose


class MujocoCameras(gym.Wrapper[Any, Any, Any, Any]):
    """Renders several cameras of one simulator, next to other simulators in the same process.

    Gymnasium's MuJoCo renderer supports one simulator per process: two would render into each other's images. This
    class makes its own OpenGL context current before it renders and frees.
    """

    def __init__(self, env: gym.Env[Any, Any], cameras: Mapping[str, str]):
        """`cameras` maps our name to the model's, or to FREE_CAMERA."""
        super().__init__(env)
        self._open = True
        self._inner: Any = env.unwrapped
        model = self._inner.model
        self._camera_ids = {
            ours: -1 if name == FREE_CAMERA else model.camera(name).id for ours, name in cameras.items()
        }
        if cameras:
            env.reset()  # unseeded, so that episodes without a seed differ from process to process
            with explain_errors():
                self.render_cameras()

    def render_cameras(self) -> dict[str, AnyArray]:
        """One image per camera, by the simulator's own `render()`, which also updates its goal markers."""
        renderer = self._inner.mujoco_renderer
        if renderer.viewer is not None:
            renderer.viewer.make_context_current()
        images: dict[str, AnyArray] = {}
        for camera, camera_id in self._camera_ids.items():
            renderer.camera_id = camera_id
            images[camera] = self._inner.render()
        return images

    def close(self) -> None:
        """Free the renderer in its own context, then close the simulator."""
        if not self._open:
            return
        self._open = False
        viewer = self._inner.mujoco_renderer.viewer
        if viewer is not None:
            viewer.make_context_current()
            viewer.con.free()
        super().close()
