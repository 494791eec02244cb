"""The cameras of simulators that draw with Gymnasium's MuJoCo renderer.

That renderer is written for one simulator a process, with one camera. OpenGL has one current context, which the
renderer takes when it is made and never again, and its buffers are freed whenever Python gets to it, in whatever
context is current then: with two simulators in a process the first draws wrong pictures, and one that is gone takes the
pictures of the next with it. `MujocoViews` makes its own context current before it draws and before it lets go.
"""

from collections.abc import Mapping
from typing import Any

import gymnasium as gym

from plaudit.envs import gl
from plaudit.types import AnyArray

FREE = "free"  # the view that the simulator's authors chose


class MujocoViews(gym.Wrapper[Any, Any, Any, Any]):
    def __init__(self, env: gym.Env[Any, Any], cameras: Mapping[str, str]):
        """`cameras` maps our name to the model's, or to FREE."""
        super().__init__(env)
        self._open = True
        self._inner: Any = env.unwrapped
        model = self._inner.model
        self._numbers = {ours: -1 if name == FREE else model.camera(name).id for ours, name in cameras.items()}
        if cameras:
            env.reset()  # unseeded, so that episodes without a seed differ from process to process
            with gl.explained():
                self.draw()

    def draw(self) -> dict[str, AnyArray]:
        """One image a camera, by the simulator's own `render()`: it also moves goal markers to where they belong."""
        renderer = self._inner.mujoco_renderer
        if renderer.viewer is not None:
            renderer.viewer.make_context_current()
        images: dict[str, AnyArray] = {}
        for camera, number in self._numbers.items():
            renderer.camera_id = number
            images[camera] = self._inner.render()
        return images

    def close(self) -> None:
        if not self._open:
            return
        self._open = False
        viewer = self._inner.mujoco_renderer.viewer
        if viewer is not None:
            viewer.make_context_current()
            viewer.con.free()
        super().close()
