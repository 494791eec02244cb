"""Which OpenGL draws MuJoCo's images, decided before MuJoCo is imported.

MuJoCo reads the variable MUJOCO_GL once, while it is imported, and takes a window library where it is unset; on a
machine without a display that fails much later, at the first image, with a message about a missing context. So whoever
is about to import MuJoCo calls `choose` first. A user's own MUJOCO_GL always wins; where it is unset and there is no
display, the first headless library that this machine has is written into MUJOCO_GL, for this process and its children,
and logged. (Rejected: setting it on `import plaudit`, which would reach programs that never asked for an image.)
"""

import ctypes
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

from plaudit.errors import EnvError

Backend = Literal["egl", "osmesa", "glfw"]

# backend -> the library that it opens, and what brings it on Debian and Ubuntu; in the order of preference: EGL uses a
# GPU where there is one and the processor where there is none, OSMesa the processor only.
HEADLESS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "egl": (("libEGL.so.1",), "libegl1 libgl1"),
    "osmesa": (("libOSMesa.so.8", "libOSMesa.so.6"), "libosmesa6"),
}

_log = logging.getLogger(__name__)


def choose(wanted: Backend | None = None, *, images: bool = True) -> None:
    """Settle MUJOCO_GL for this process; call before `import mujoco`.

    With `images=False` a machine that has no OpenGL at all is fine: nothing will be drawn.
    """
    current = os.environ.get("MUJOCO_GL", "").strip().lower() or None
    if current is not None and current in HEADLESS and not _there(current):
        raise EnvError(f"MUJOCO_GL is '{current}', {_absent(current)}")  # MuJoCo would not even import
    if wanted is not None and wanted != current:
        if current is not None or "mujoco" in sys.modules:
            raise EnvError(
                f"render_backend is '{wanted}', but this process already draws with '{current or 'glfw'}'; "
                f"start it with MUJOCO_GL={wanted}"
            )
        _settle(wanted, needed=images)
    elif current is None and sys.platform == "linux" and not _display():
        found = next((name for name in HEADLESS if _there(name)), None)
        if "mujoco" in sys.modules:
            if images:
                raise EnvError(
                    "MuJoCo was imported before a renderer was chosen and there is no display; "
                    f"start the program with MUJOCO_GL={found or 'egl'}"
                )
        else:
            _settle(found or "egl", needed=images)


def _settle(backend: str, *, needed: bool) -> None:
    if backend in HEADLESS and not _there(backend):
        if needed:
            raise EnvError(f"images are drawn with '{backend}', {_absent(backend)}")
        return
    os.environ["MUJOCO_GL"] = backend
    _log.info("MUJOCO_GL was unset; it is now '%s' for this process and its children", backend)


@contextmanager
def explained() -> Iterator[None]:
    """Around the first image: what OpenGL says when it cannot start, in a sentence that helps."""
    try:
        yield
    except Exception as error:  # each backend fails with a class of its own, some of them private
        if not _about_gl(error):
            raise
        backend = os.environ.get("MUJOCO_GL", "glfw")
        hint = f"run: apt-get install {HEADLESS[backend][1]}" if backend in HEADLESS else "set MUJOCO_GL=egl"
        raise EnvError(f"the renderer '{backend}' did not start ({type(error).__name__}: {error}); {hint}") from error


def _about_gl(error: Exception) -> bool:
    """Whether the innermost lines of the traceback are in OpenGL or in MuJoCo's use of it."""
    modules = []
    trace = error.__traceback__
    while trace is not None:
        modules.append(trace.tb_frame.f_globals.get("__name__", ""))
        trace = trace.tb_next
    return modules[-1].startswith(("OpenGL", "mujoco.egl", "mujoco.osmesa", "mujoco.glfw", "mujoco.render"))


def _absent(backend: str) -> str:
    return f"which is not on this machine; run: apt-get install {HEADLESS[backend][1]}"


def _display() -> bool:
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _there(backend: str) -> bool:
    for library in HEADLESS[backend][0]:
        try:
            ctypes.CDLL(library)
        except OSError:
            continue
        return True
    return False
