"""A camera that MuJoCo's own renderer draws: the images of `RayCamera` with smooth edges, one environment at a time.

It needs OpenGL, and on a CPU it is no faster than ray casting. It serves as the reference that ray casting is tested
against, and for large images on a machine with a GPU.
"""

import copy

import numpy as np

from plaudit.envs import gl
from plaudit.envs.panda.appearance import Appearance
from plaudit.envs.panda.mujoco_batch import Batch, Model, mujoco
from plaudit.types import AnyArray, ByteArray


class GlCamera:
    """One camera of a batch of environments, rendered with OpenGL."""

    def __init__(self, model: Model, name: str, size: tuple[int, int], batch: Batch, appearance: Appearance):
        gl.choose_backend()
        self.id, self.size = model.camera(name).id, size
        self._batch, self._appearance = batch, appearance
        self._model = copy.copy(model)  # takes on the appearance of one environment after the other
        self._data = mujoco.MjData(self._model)
        with gl.explain_errors():
            self._renderer = mujoco.Renderer(self._model, *size)

    def refresh(self, ids: AnyArray) -> None:
        """Do nothing: this camera caches nothing between images."""

    def render(self, ids: AnyArray) -> ByteArray:
        """The images of these environments, [n, H, W, 3]."""
        images = np.empty((len(ids), *self.size, 3), np.uint8)
        for image, i in zip(images, ids, strict=True):
            self._load_env(int(i))
            self._renderer.render(out=image)
        return images

    def close(self) -> None:
        """Free the OpenGL context."""
        self._renderer.close()

    def _load_env(self, env: int) -> None:
        """Copy the state and the appearance of one environment into the renderer's model."""
        model, appearance = self._model, self._appearance
        model.geom_rgba[:, :3] = appearance.color[env]
        model.light_dir[0] = -appearance.light[env]
        model.light_ambient[0], model.light_diffuse[0] = appearance.ambient[env], appearance.diffuse[env]
        model.cam_pos[:] = appearance.camera_pos[env]
        for quaternion, rotation in zip(model.cam_quat, appearance.camera_rot[env], strict=True):
            mujoco.mju_mat2Quat(quaternion, rotation.ravel())
        self._batch.get_data(env, self._data)
        mujoco.mj_kinematics(model, self._data)
        mujoco.mj_camlight(model, self._data)
        self._renderer.update_scene(self._data, self.id)
