"""What the environments look like (colors, light, camera poses) and how a seed randomizes it.

Randomization draws from a generator of its own that is derived from the environment's seed, so the physics of a seed
are the same with and without it. The cube keeps a hue that people call red and the marker one they call green, since
the instruction names these colors; everything else gets a muted color of about its own brightness, which cannot be
mistaken for either.
"""

import colorsys
from dataclasses import dataclass

import numpy as np

from plaudit.envs.panda.mujoco_batch import Model, mujoco
from plaudit.types import AnyArray

# Ranges of hue, saturation and value for the geoms that the instruction names.
_NAMED_COLORS = {
    "cube": ((-0.03, 0.03), (0.75, 0.95), (0.65, 0.95)),
    "goal": ((0.30, 0.42), (0.65, 0.90), (0.55, 0.85)),
}
_OTHER_HUE, _OTHER_SATURATION = (0.0, 1.0), (0.05, 0.22)
_OTHER_VALUE_DELTA = 0.15  # brighter or darker by at most this
_LIGHT_TILT = 0.5  # added to a unit vector
_AMBIENT, _DIFFUSE = (0.35, 0.55), (0.30, 0.45)  # together at most 1, so nothing is overexposed
_CAMERA_SHIFT, _CAMERA_TURN = 0.02, 0.04  # m, rad


@dataclass
class Appearance:
    """Colors, light and camera poses of N environments. All arrays may be written in place."""

    color: AnyArray  # [N, ngeom, 3] in 0..1
    light: AnyArray  # [N, 3] unit vector towards the light
    ambient: AnyArray  # [N] strength of the ambient light
    diffuse: AnyArray  # [N] strength of the directional light; with `ambient` at most 1
    camera_pos: AnyArray  # [N, ncam, 3] m, in the parent's frame
    camera_rot: AnyArray  # [N, ncam, 3, 3] in the parent's frame

    @classmethod
    def default(cls, model: Model, num_envs: int) -> "Appearance":
        """The appearance that the MJCF defines, for every environment."""

        def repeat(values: AnyArray) -> AnyArray:
            return np.repeat(np.array(values, np.float64)[None], num_envs, axis=0)

        rotations = np.zeros((model.ncam, 9))
        for rotation, quaternion in zip(rotations, model.cam_quat, strict=True):
            mujoco.mju_quat2Mat(rotation, quaternion)
        return cls(
            color=repeat(model.geom_rgba[:, :3]),
            light=repeat(-model.light_dir[0] / np.linalg.norm(model.light_dir[0])),
            ambient=repeat(model.light_ambient[0, 0]),
            diffuse=repeat(model.light_diffuse[0, 0]),
            camera_pos=repeat(model.cam_pos),
            camera_rot=repeat(rotations.reshape(-1, 3, 3)),
        )

    def randomize(self, env: int, seed: int, model: Model) -> None:
        """Give one environment the appearance of its seed."""
        rng = np.random.default_rng((seed, 1))
        default = Appearance.default(model, 1)
        self.color[env] = _sample_colors(rng, default.color[0], model)
        light = default.light[0] + _LIGHT_TILT * rng.uniform(-1, 1, 3) * (1, 1, 0.5)
        self.light[env] = light / np.linalg.norm(light)
        self.ambient[env], self.diffuse[env] = rng.uniform(*_AMBIENT), rng.uniform(*_DIFFUSE)
        self.camera_pos[env] = default.camera_pos[0] + rng.uniform(-_CAMERA_SHIFT, _CAMERA_SHIFT, (model.ncam, 3))
        for camera, (x, y, z) in enumerate(rng.uniform(-_CAMERA_TURN, _CAMERA_TURN, (model.ncam, 3))):
            turn, quaternion = np.zeros(9), np.zeros(4)
            mujoco.mju_euler2Quat(quaternion, (x, y, z), "xyz")
            mujoco.mju_quat2Mat(turn, quaternion)
            self.camera_rot[env, camera] = default.camera_rot[0, camera] @ turn.reshape(3, 3)


def _sample_colors(rng: np.random.Generator, default: AnyArray, model: Model) -> AnyArray:
    """[ngeom, 3]. Geoms that share a color keep sharing one: all white covers of the arm change together."""
    colors = default.copy()
    palette, palette_index = np.unique(default, axis=0, return_inverse=True)
    for index, color in enumerate(palette):
        value = float(np.clip(color.max() + rng.uniform(-_OTHER_VALUE_DELTA, _OTHER_VALUE_DELTA), 0.05, 1.0))
        hue, saturation = rng.uniform(*_OTHER_HUE), rng.uniform(*_OTHER_SATURATION)
        colors[palette_index.ravel() == index] = colorsys.hsv_to_rgb(hue, saturation, value)
    for name, ranges in _NAMED_COLORS.items():
        hue, saturation, value = (rng.uniform(*bounds) for bounds in ranges)
        colors[model.geom(name).id] = colorsys.hsv_to_rgb(hue % 1.0, saturation, value)
    return colors
