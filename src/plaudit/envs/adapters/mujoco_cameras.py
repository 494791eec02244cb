"""The cameras of simulators that render with Gymnasium's MuJoCo renderer.

That renderer is written for one simulator per process with one camera. OpenGL has one current context, which the
renderer takes when it is made and never again, and Python frees its buffers at any time, in whichever context is
current then: with two simulators in a process the first renders wrong images, and one that is garbage collected
destroys the images of the next. `MujocoCameras` makes its own context current before it renders and before it frees.
"""

from collections.abc import Mapping
from typing import Any

import gymnasium as gym

from plaudit.envs import gl
from plaudit.types import AnyArray

FREE_CAMERA = "free"  # the view that the simulator's authors chose


class MujocoCameras(gym.Wrapper[Any, Any, Any, Any]):
    """Renders several cameras of one simulator, next to other simulators in the same process."""

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
            with gl.explain_errors():
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
