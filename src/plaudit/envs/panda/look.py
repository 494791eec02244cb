"""How scenes look: colours, light and camera poses, and how a seed may change them.

Randomised looks are drawn from the scene's seed, by a generator of their own: the physics of a seed are the same with
and without. Things stay what their names say. A cube keeps its hue within what people call red and a marker within
green, since the instruction names them so; everything else may take on any muted colour of about its own brightness, in
which nothing is mistaken for either.
"""

import colorsys
from dataclasses import dataclass

import numpy as np

from plaudit.envs.panda.engine import Model, mujoco
from plaudit.types import AnyArray

# hue, saturation and value are drawn from within these ranges
_NAMED = {
    "cube": ((-0.03, 0.03), (0.75, 0.95), (0.65, 0.95)),
    "goal": ((0.30, 0.42), (0.65, 0.90), (0.55, 0.85)),
}
_MUTED = ((0.0, 1.0), (0.05, 0.22))  # hue and saturation of the rest
_BRIGHTER = 0.15  # or darker by as much, of the rest
_TILT = 0.5  # of the direction of the light, its length being 1
_AMBIENT, _DIFFUSE = (0.35, 0.55), (0.30, 0.45)  # together at most 1: nothing is overexposed
_MOVED, _TURNED = 0.02, 0.04  # a camera, m and rad


@dataclass
class Look:
    """How N scenes look. All arrays may be written in place."""

    colour: AnyArray  # [N, ngeom, 3] in 0..1
    light: AnyArray  # [N, 3] unit vector towards the light
    ambient: AnyArray  # [N] strength of the light that comes from everywhere
    diffuse: AnyArray  # [N] strength of the light that comes from one side; with `ambient` at most 1
    camera_pos: AnyArray  # [N, ncam, 3] m, in the parent's frame
    camera_rot: AnyArray  # [N, ncam, 3, 3] in the parent's frame

    @classmethod
    def plain(cls, model: Model, count: int) -> "Look":
        """As the scene has it."""

        def repeat(values: AnyArray) -> AnyArray:
            return np.repeat(np.array(values, np.float64)[None], count, axis=0)

        rotations = np.zeros((model.ncam, 9))
        for rotation, quaternion in zip(rotations, model.cam_quat, strict=True):
            mujoco.mju_quat2Mat(rotation, quaternion)
        return cls(
            colour=repeat(model.geom_rgba[:, :3]),
            light=repeat(-model.light_dir[0] / np.linalg.norm(model.light_dir[0])),
            ambient=repeat(model.light_ambient[0, 0]),
            diffuse=repeat(model.light_diffuse[0, 0]),
            camera_pos=repeat(model.cam_pos),
            camera_rot=repeat(rotations.reshape(-1, 3, 3)),
        )

    def randomize(self, scene: int, seed: int, model: Model) -> None:
        """Give one scene the looks of its seed."""
        rng = np.random.default_rng((seed, 1))
        plain = Look.plain(model, 1)
        self.colour[scene] = _colours(rng, plain.colour[0], model)
        light = plain.light[0] + _TILT * rng.uniform(-1, 1, 3) * (1, 1, 0.5)
        self.light[scene] = light / np.linalg.norm(light)
        self.ambient[scene], self.diffuse[scene] = rng.uniform(*_AMBIENT), rng.uniform(*_DIFFUSE)
        self.camera_pos[scene] = plain.camera_pos[0] + rng.uniform(-_MOVED, _MOVED, (model.ncam, 3))
        for camera, (x, y, z) in enumerate(rng.uniform(-_TURNED, _TURNED, (model.ncam, 3))):
            turn, quaternion = np.zeros(9), np.zeros(4)
            mujoco.mju_euler2Quat(quaternion, (x, y, z), "xyz")
            mujoco.mju_quat2Mat(turn, quaternion)
            self.camera_rot[scene, camera] = plain.camera_rot[0, camera] @ turn.reshape(3, 3)


def _colours(rng: np.random.Generator, plain: AnyArray, model: Model) -> AnyArray:
    """[ngeom, 3]. What has one colour keeps one: all white covers of the arm change together."""
    drawn = plain.copy()
    kinds, kind_of = np.unique(plain, axis=0, return_inverse=True)
    for kind, colour in enumerate(kinds):
        value = float(np.clip(colour.max() + rng.uniform(-_BRIGHTER, _BRIGHTER), 0.05, 1.0))
        hue, saturation = (rng.uniform(*within) for within in _MUTED)
        drawn[kind_of.ravel() == kind] = colorsys.hsv_to_rgb(hue, saturation, value)
    for name, ranges in _NAMED.items():
        hue, saturation, value = (rng.uniform(*within) for within in ranges)
        drawn[model.geom(name).id] = colorsys.hsv_to_rgb(hue % 1.0, saturation, value)
    return drawn
