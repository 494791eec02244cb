"""A camera that MuJoCo's own renderer draws: the same pictures as the rays', with smooth edges, one scene at a time.

It takes an OpenGL, and on a processor it is no faster than the rays. It is here to check them by, and for large
pictures on a machine with a GPU.
"""

import copy

import numpy as np

from plaudit.envs import gl
from plaudit.envs.panda.engine import Batch, Model, mujoco
from plaudit.envs.panda.look import Look
from plaudit.types import AnyArray, ByteArray


class GlCamera:
    """One camera of a batch of scenes."""

    def __init__(self, model: Model, name: str, size: tuple[int, int], batch: Batch, look: Look):
        gl.choose()
        self.id, self.size = model.camera(name).id, size
        self._batch, self._look = batch, look
        self._model = copy.copy(model)  # takes on the looks of one scene after the other
        self._data = mujoco.MjData(self._model)
        with gl.explained():
            self._renderer = mujoco.Renderer(self._model, *size)

    def look_again(self, ids: AnyArray) -> None:
        """Nothing is kept from one picture to the next."""

    def render(self, ids: AnyArray) -> ByteArray:
        """What the camera sees in these scenes, [n, H, W, 3]."""
        pictures = np.empty((len(ids), *self.size, 3), np.uint8)
        for picture, i in zip(pictures, ids, strict=True):
            self._show(int(i))
            self._renderer.render(out=picture)
        return pictures

    def geoms(self, ids: AnyArray) -> AnyArray:
        """Which geom each pixel shows, [n, H, W], -1 for none."""
        self._renderer.enable_segmentation_rendering()
        seen = np.empty((len(ids), *self.size), int)
        for picture, i in zip(seen, ids, strict=True):
            self._show(int(i))
            picture[:] = self._renderer.render()[..., 0]
        self._renderer.disable_segmentation_rendering()
        return seen

    def close(self) -> None:
        self._renderer.close()

    def _show(self, scene: int) -> None:
        """Bring a scene, as it is and as it looks, before the renderer."""
        model, look = self._model, self._look
        model.geom_rgba[:, :3] = look.colour[scene]
        model.light_dir[0] = -look.light[scene]
        model.light_ambient[0], model.light_diffuse[0] = look.ambient[scene], look.diffuse[scene]
        model.cam_pos[:] = look.camera_pos[scene]
        for quaternion, rotation in zip(model.cam_quat, look.camera_rot[scene], strict=True):
            mujoco.mju_mat2Quat(quaternion, rotation.ravel())
        self._batch.get_data(scene, self._data)
        mujoco.mj_kinematics(model, self._data)
        mujoco.mj_camlight(model, self._data)
        self._renderer.update_scene(self._data, self.id)
