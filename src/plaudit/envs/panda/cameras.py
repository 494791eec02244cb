"""Cameras of the built-in tasks, without OpenGL (`RayCamera`) or with it (`GlCamera`), and what they show.

This is the only module of the package that imports MuJoCo, which reads MUJOCO_GL while it is imported, so the backend
is chosen first. The built-in tasks need `mujoco.batch`, which is new in MuJoCo 4.
"""

import colorsys
import copy
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeAlias

import numpy as np

from plaudit.envs import gl
from plaudit.envs.panda.scene import FIXED_GROUP, MOVING_GROUP, SKY
from plaudit.errors import MissingExtra
from plaudit.types import AnyArray, ByteArray

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
    """Colors, light and camera poses of N environments. All arrays may be written in place.

    Randomization uses a generator of its own, so the physics of a seed are the same with and without it. The cube stays
    red and the marker green, because the instruction names these colors.
    """

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


_GROUPS = {group: np.arange(mujoco.mjNGROUP) == group for group in (FIXED_GROUP, MOVING_GROUP)}


class RayCamera:
    """One camera of a batch of environments, rendered by ray casting.

    The background (everything that cannot move) is cast once and cached, as colors and as depths. A new image casts
    only the rays that could hit a moving geom, and draws the hits over the background where they are nearer. Which rays
    those are is decided per block of pixels: every moving geom is covered by a few spheres, and a block is cast if the
    cone around it touches one. A camera on the hand moves, so its background is cast again for each image. Shading is
    ambient plus Lambert from one distant light, without textures or shadows.
    """

    def __init__(self, model: Model, name: str, size: tuple[int, int], batch: Batch, appearance: Appearance):
        self.id, self.size = model.camera(name).id, size
        self._batch, self._appearance = batch, appearance
        self._body = int(model.cam_bodyid[self.id])
        self._on_hand = self._body != 0
        self._body_pos, self._body_mat = batch.bind("xpos"), batch.bind("xmat")
        self._geom_pos, self._geom_mat = batch.bind("geom_xpos"), batch.bind("geom_xmat")
        self._is_flat = np.isin(model.geom_type, (mujoco.mjtGeom.mjGEOM_BOX, mujoco.mjtGeom.mjGEOM_PLANE))
        self._moving = _make_spheres(model, MOVING_GROUP, _cover)
        self._corners = _make_spheres(model, FIXED_GROUP, _cover_corners)
        self._rays = _pixel_rays(size, float(model.cam_fovy[self.id]))
        self._blocks = _Blocks.cut(self._rays, size, max(2, min(size) // 24))  # small enough to fit a finger closely
        self._face_blocks = _Blocks.cut(self._rays, size, max(2, min(size) // 8))
        pixels, num_envs = size[0] * size[1], batch.nsim
        self._background = np.zeros((num_envs, pixels, 3), np.uint8)
        self._depth = np.full((num_envs, pixels), np.inf, np.float32)
        # The plane of the single face that a block shows: its dot product with a ray is 1 / depth; else 0.
        self._plane = np.zeros((num_envs, len(self._face_blocks.pixels), 3))

    def refresh(self, ids: AnyArray) -> None:
        """Cast the background of these environments again, after their appearance changed."""
        if not self._on_hand:
            pixels = np.arange(len(self._rays))
            row, pixel = np.repeat(np.arange(len(ids)), len(pixels)), np.tile(pixels, len(ids))
            self._cast_background(_View(ids, *self._pose(ids)), row, pixel)

    def render(self, ids: AnyArray) -> ByteArray:
        """The images of these environments, [n, H, W, 3]."""
        view = _View(ids, *self._pose(ids))
        if self._on_hand:
            self._cast_background(view, *self._fill_faces(view))
        image = self._background[ids]
        row, pixel = self._blocks.expand(self._touches(view, self._blocks, self._moving))
        distance, geom, normal = self._cast(view, row, pixel, MOVING_GROUP)
        visible = (geom >= 0) & (distance < self._background_depth(ids[row], pixel))
        row = row[visible]
        image[row, pixel[visible]] = self._shade(ids[row], geom[visible], normal[visible])
        return image.reshape(len(ids), *self.size, 3)

    def close(self) -> None:
        """Do nothing: there is nothing to close."""

    def _pose(self, ids: AnyArray) -> tuple[AnyArray, AnyArray]:
        """Position [n, 3] and rotation [n, 3, 3] of the camera in the world frame."""
        pos, rot = self._appearance.camera_pos[ids, self.id], self._appearance.camera_rot[ids, self.id]
        if not self._on_hand:
            return pos, rot
        parent = self._body_mat[ids, self._body].reshape(-1, 3, 3)
        return self._body_pos[ids, self._body] + (parent @ pos[:, :, None])[:, :, 0], parent @ rot

    def _touches(self, view: "_View", blocks: "_Blocks", spheres: "_Spheres") -> AnyArray:
        """[n, K] whether a block's cone touches any sphere.

        It does if the angle between their axes is at most the sum of their half angles; compared by cosines.
        """
        rotation = self._geom_mat[view.ids][:, spheres.geom].reshape(len(view.ids), -1, 3, 3)
        centers = self._geom_pos[view.ids][:, spheres.geom] + (rotation @ spheres.center[:, :, None])[..., 0]
        offset = (centers - view.origin[:, None]) @ view.rotation  # in the camera's frame
        distance = np.maximum(np.linalg.norm(offset, axis=2, keepdims=True), 1e-9)
        sine = np.minimum(spheres.radius[:, None] / distance, 1.0)  # of the half angle of the cone around a sphere
        cosine = np.where(sine < 1.0, np.sqrt(1.0 - sine**2), -2.0)  # from inside a sphere, every block touches it
        cones = np.concatenate([offset / distance, cosine, sine], axis=2).astype(np.float32)
        return (cones @ blocks.cones).max(axis=1) >= 0

    def _cast(self, view: "_View", row: AnyArray, pixel: AnyArray, group: int) -> tuple[AnyArray, AnyArray, AnyArray]:
        """Distance, geom (-1 for none) and normal of rays given by index in `view.ids`, ascending, and pixel."""
        distance, geom, normal = np.empty(len(row)), np.empty(len(row), np.int32), np.empty((len(row), 3))
        edges = np.searchsorted(row, np.arange(len(view.ids) + 1))
        counts = np.diff(edges)
        for rows in _group_by_count(counts):
            rays = np.empty((len(rows), counts[rows].max(), 3))
            for env_rays, i in zip(rays, rows, strict=True):
                np.matmul(self._rays[pixel[edges[i] : edges[i + 1]]], view.rotation[i].T, out=env_rays[: counts[i]])
                env_rays[counts[i] :] = view.rotation[i, :, 2]  # padding: these point backwards
            origin = view.origin[rows, None]
            hits = self._batch.ray(origin, rays, _GROUPS[group], ids=view.ids[rows], normal=True)
            for i, *values in zip(rows, *hits, strict=True):
                for output, value in zip((distance, geom, normal), values, strict=True):
                    output[edges[i] : edges[i + 1]] = value[: counts[i]]
        return distance, geom, normal

    def _cast_background(self, view: "_View", row: AnyArray, pixel: AnyArray) -> None:
        """Cast these rays at the fixed geoms and cache their colors and depths."""
        distance, geom, normal = self._cast(view, row, pixel, FIXED_GROUP)
        ids, missed = view.ids[row], geom < 0
        color = self._shade(ids, geom, normal)
        color[missed] = np.rint(SKY * 255)
        distance[missed] = np.inf
        self._background[ids, pixel], self._depth[ids, pixel] = color, distance

    def _fill_faces(self, view: "_View") -> tuple[AnyArray, AnyArray]:
        """Fill the blocks that show a single flat face from their four corners alone. Returns the rays of the others.

        If all corners show one face, the whole block does, unless the corner of a box or a round geom is in between.
        """
        blocks, count = self._face_blocks, len(view.ids)
        row = np.repeat(np.arange(count), blocks.corners.size)
        distance, geom, normal = self._cast(view, row, np.tile(blocks.corners.ravel(), count), FIXED_GROUP)
        geom, normal = geom.reshape(count, -1, 4), normal.reshape(count, -1, 4, 3)
        first, facing = geom[..., 0], normal[:, :, 0]
        one_face = (geom == first[..., None]).all(2) & (np.abs(normal - facing[:, :, None]) < 1e-6).all((2, 3))
        one_face &= (first >= 0) & self._is_flat[first] & blocks.whole & ~self._touches(view, blocks, self._corners)
        ids = np.repeat(view.ids, first.shape[1])
        color = self._shade(ids, first.ravel(), facing.reshape(-1, 3)).reshape(count, -1, 3)
        self._background[view.ids] = np.take(color, blocks.block_of, axis=1)
        face_normal = facing @ view.rotation  # in the camera's frame
        slope = np.einsum("nkj,kj->nk", face_normal, self._rays[blocks.corners[:, 0]])
        plane_distance = distance.reshape(count, -1, 4)[..., 0] * slope
        scale = np.divide(1.0, plane_distance, where=one_face, out=np.zeros_like(plane_distance))
        self._plane[view.ids] = face_normal * scale[..., None]
        return blocks.expand(~one_face)

    def _background_depth(self, ids: AnyArray, pixel: AnyArray) -> AnyArray:
        """The distance of the background along these rays."""
        depth = self._depth[ids, pixel]
        if self._on_hand:
            inverse = np.einsum("nk,nk->n", self._rays[pixel], self._plane[ids, self._face_blocks.block_of[pixel]])
            np.divide(1.0, inverse, out=depth, where=inverse > 0, casting="same_kind")
        return depth

    def _shade(self, ids: AnyArray, geom: AnyArray, normal: AnyArray) -> ByteArray:
        facing = np.maximum(np.einsum("nk,nk->n", normal, self._appearance.light[ids]), 0.0)
        light = (self._appearance.ambient[ids] + self._appearance.diffuse[ids] * facing) * 255
        return (self._appearance.color[ids, geom] * light[:, None] + 0.5).astype(np.uint8)


def _group_by_count(counts: AnyArray) -> list[AnyArray]:
    """Group environments with similar numbers of rays: one call to the batch casts equally many in each of its own."""
    nonempty = np.argsort(counts, kind="stable")[np.count_nonzero(counts == 0) :]
    even = len(nonempty) * counts.max(initial=0) < 1.2 * counts.sum()
    num_groups = 1 if even else -(-len(nonempty) // 4)
    return [np.sort(rows) for rows in np.array_split(nonempty, num_groups)] if len(nonempty) else []


@dataclass(frozen=True)
class _View:
    """The camera poses of n environments."""

    ids: AnyArray  # [n] their indices in the batch
    origin: AnyArray  # [n, 3]
    rotation: AnyArray  # [n, 3, 3]


@dataclass(frozen=True)
class _Blocks:
    """The image divided into K square blocks."""

    pixels: AnyArray  # [K, edge^2], -1 past the image's border
    block_of: AnyArray  # [H * W] the block that a pixel is in
    corners: AnyArray  # [K, 4] pixels; for a block that is cut off, any of its pixels
    whole: AnyArray  # [K] not cut off by the image's border
    cones: AnyArray  # [5, K] float32: axis (unit vector in the camera's frame), -cos and sin of the half angle

    @classmethod
    def cut(cls, rays: AnyArray, size: tuple[int, int], edge: int) -> "_Blocks":
        """Divide an image of this size into blocks of `edge` x `edge` pixels."""
        height, width = size
        numbers = np.full((-(-height // edge) * edge, -(-width // edge) * edge), -1)
        numbers[:height, :width] = np.arange(height * width).reshape(height, width)
        down, across = numbers.shape[0] // edge, numbers.shape[1] // edge
        pixels = numbers.reshape(down, edge, across, edge).transpose(0, 2, 1, 3).reshape(down * across, -1)
        inside = pixels >= 0
        axis = (rays[pixels] * inside[..., None]).sum(axis=1)
        axis /= np.linalg.norm(axis, axis=1, keepdims=True)
        cosine = np.where(inside, (rays[pixels] @ axis[:, :, None])[..., 0], 1.0).min(axis=1)
        half_angle = np.arccos(np.minimum(cosine, 1.0)) + 1e-3  # float32 cosines of small angles are that coarse
        block_of = np.empty(height * width, int)
        block_of[pixels[inside]] = np.nonzero(inside)[0]
        corners = pixels[:, [0, edge - 1, edge * (edge - 1), edge * edge - 1]]
        return cls(
            pixels=pixels,
            block_of=block_of,
            corners=np.where(corners < 0, pixels[:, :1], corners),
            whole=np.all(inside, axis=1),
            cones=np.vstack([axis.T, -np.cos(half_angle), np.sin(half_angle)]).astype(np.float32),
        )

    def expand(self, chosen: AnyArray) -> tuple[AnyArray, AnyArray]:
        """Environment (its row) and pixel of every ray in the chosen blocks, [n, K], in the order of the rows."""
        row, block = np.nonzero(chosen)
        pixel = self.pixels[block].ravel()
        row = np.repeat(row, self.pixels.shape[1])
        if self.whole.all():
            return row, pixel
        return row[pixel >= 0], pixel[pixel >= 0]


@dataclass(frozen=True)
class _Spheres:
    """Spheres that cover geoms, or parts of them."""

    geom: AnyArray  # [S]
    center: AnyArray  # [S, 3] in the geom's frame
    radius: AnyArray  # [S]


def _pixel_rays(size: tuple[int, int], fovy: float) -> AnyArray:
    """Unit vectors through the pixel centers in the camera's frame, [H * W, 3]: x right, y up, looking along -z."""
    height, width = size
    focal = height / 2 / np.tan(np.radians(fovy) / 2)  # in pixels
    x, y = np.meshgrid(np.arange(width) + 0.5 - width / 2, height / 2 - 0.5 - np.arange(height))
    rays = np.stack([x, y, np.full_like(x, -focal)], axis=-1).reshape(-1, 3)
    return rays / np.linalg.norm(rays, axis=1, keepdims=True)


def _make_spheres(model: Model, group: int, cover: Callable[[int, AnyArray], tuple[AnyArray, float]]) -> _Spheres:
    """The spheres that `cover` makes for each geom of a group."""
    geoms = np.flatnonzero(model.geom_group == group)
    covers = [cover(int(model.geom_type[geom]), np.array(model.geom_size[geom])) for geom in geoms]
    counts = [len(centers) for centers, _ in covers]
    radii = np.repeat([radius for _, radius in covers], counts)
    return _Spheres(np.repeat(geoms, counts), np.concatenate([centers for centers, _ in covers]), radii)


def _cover(geom_type: int, size: AnyArray) -> tuple[AnyArray, float]:
    """Centers [n, 3], in the geom's frame, and the radius of spheres that together contain a geom."""
    types = mujoco.mjtGeom
    if geom_type in (types.mjGEOM_SPHERE, types.mjGEOM_CAPSULE):
        radius, half = size[0], size[1] if geom_type == types.mjGEOM_CAPSULE else 0.0
        gaps = int(np.ceil(2 * half / radius))  # each at most a radius long
        centers = np.zeros((gaps + 1, 3))
        centers[:, 2] = np.linspace(-half, half, gaps + 1)
        return centers, float(np.hypot(radius, half / max(gaps, 1)))
    if geom_type == types.mjGEOM_CYLINDER:
        size = np.array([size[0], size[0], size[1]])
    else:
        assert geom_type == types.mjGEOM_BOX, f"no spheres for geoms of type {geom_type}"
    parts = np.ceil(size / size.min() - 1e-6).astype(int)
    centers = [size * ((2 * np.array(index) + 1) / parts - 1) for index in np.ndindex(*parts)]
    return np.array(centers), float(np.linalg.norm(size / parts))


def _cover_corners(geom_type: int, size: AnyArray) -> tuple[AnyArray, float]:
    """Spheres where a geom could show between the corners of a block: the corners of a flat one, all of a round one."""
    if geom_type == mujoco.mjtGeom.mjGEOM_PLANE:
        size = size * (1, 1, 0)
    elif geom_type != mujoco.mjtGeom.mjGEOM_BOX:
        return _cover(geom_type, size)
    return size * (np.array(list(np.ndindex(2, 2, 2))) * 2 - 1), 0.0


class GlCamera:
    """One camera of a batch of environments, rendered with OpenGL: smooth edges, one environment at a time.

    Ray casting is tested against it. It is useful for large images on a machine with a GPU.
    """

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
