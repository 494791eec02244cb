"""A camera that needs no GL: MuJoCo casts the rays, numpy colours what they hit.

Most of a picture does not move. What stands still is cast once and kept, as colours and as distances; a new frame
casts only the rays that could meet something that moves, against what moves alone, and lays the hits over the kept
picture where they are nearer. Which rays those are is decided on blocks of pixels: every moving geom is wrapped in a
few spheres, and a block counts when the cone around it touches one. A camera on the hand sees everything move, so its
still part is cast anew each time.

All environments go through together: one call to the batch, one shading of all hits. Colours are flat, ambient plus
Lambert from one distant light, no shadows.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from plaudit.envs.panda.engine import Batch, Model, mujoco
from plaudit.envs.panda.look import Look
from plaudit.envs.panda.scene import FIXED, MOVING, SKY
from plaudit.types import AnyArray, ByteArray

_GROUPS = {group: np.arange(mujoco.mjNGROUP) == group for group in (FIXED, MOVING)}


class RayCamera:
    """One camera of a batch of scenes."""

    def __init__(self, model: Model, name: str, size: tuple[int, int], batch: Batch, look: Look):
        self.id, self.size = model.camera(name).id, size
        self._batch, self._look = batch, look
        self._body = int(model.cam_bodyid[self.id])
        self._rides = self._body != 0
        self._body_pos, self._body_mat = batch.bind("xpos"), batch.bind("xmat")
        self._geom_pos, self._geom_mat = batch.bind("geom_xpos"), batch.bind("geom_xmat")
        self._flat = np.isin(model.geom_type, (mujoco.mjtGeom.mjGEOM_BOX, mujoco.mjtGeom.mjGEOM_PLANE))
        self._moving, self._corners = _spheres(model, MOVING, _wrap), _spheres(model, FIXED, _interrupt)
        self._rays = _pixel_rays(size, float(model.cam_fovy[self.id]))
        self._blocks = _Blocks.of(self._rays, size, max(2, min(size) // 24))  # small enough to hug a finger
        self._faces = _Blocks.of(self._rays, size, max(2, min(size) // 8))
        pixels, count = size[0] * size[1], batch.nsim
        self._still = np.zeros((count, pixels, 3), np.uint8)
        self._depth = np.full((count, pixels), np.inf, np.float32)
        self._plane = np.zeros((count, len(self._faces.pixels), 3))  # dot a ray: 1 / distance; 0 where no one face is

    def look_again(self, ids: AnyArray) -> None:
        """The still part of these scenes has changed: cast it anew."""
        if not self._rides:
            pixels = np.arange(len(self._rays))
            scene, pixel = np.repeat(np.arange(len(ids)), len(pixels)), np.tile(pixels, len(ids))
            self._keep_still(_View(ids, *self._pose(ids)), scene, pixel)

    def render(self, ids: AnyArray) -> ByteArray:
        """What the camera sees in these scenes, [n, H, W, 3]."""
        view = _View(ids, *self._pose(ids))
        if self._rides:
            self._keep_still(view, *self._keep_faces(view))
        picture = self._still[ids]
        scene, pixel = self._blocks.expand(self._touched(view, self._blocks, self._moving))
        distance, geom, normal = self._cast(view, scene, pixel, MOVING)
        seen = (geom >= 0) & (distance < self._depth_at(ids[scene], pixel))
        scene = scene[seen]
        picture[scene, pixel[seen]] = self._shade(ids[scene], geom[seen], normal[seen])
        return picture.reshape(len(ids), *self.size, 3)

    def close(self) -> None:
        """Nothing is open."""

    def _pose(self, ids: AnyArray) -> tuple[AnyArray, AnyArray]:
        """Where the camera is, [n, 3], and how it is turned, [n, 3, 3], in the world."""
        pos, rot = self._look.camera_pos[ids, self.id], self._look.camera_rot[ids, self.id]
        if not self._rides:
            return pos, rot
        parent = self._body_mat[ids, self._body].reshape(-1, 3, 3)
        return self._body_pos[ids, self._body] + (parent @ pos[:, :, None])[:, :, 0], parent @ rot

    def _touched(self, view: "_View", blocks: "_Blocks", spheres: "_Spheres") -> AnyArray:
        """[n, K] whether a block's cone touches a sphere: whether the angle between their middles is at most the sum of
        half their openings, told by its cosine."""
        turned = self._geom_mat[view.ids][:, spheres.geom].reshape(len(view.ids), -1, 3, 3)
        centers = self._geom_pos[view.ids][:, spheres.geom] + (turned @ spheres.center[:, :, None])[..., 0]
        towards = (centers - view.origin[:, None]) @ view.rotation  # in the camera's frame
        far = np.maximum(np.linalg.norm(towards, axis=2, keepdims=True), 1e-9)
        sine = np.minimum(spheres.radius[:, None] / far, 1.0)  # of half the opening of the cone around a sphere
        cosine = np.where(sine < 1.0, np.sqrt(1.0 - sine**2), -2.0)  # from inside a sphere, it is all around
        cones = np.concatenate([towards / far, cosine, sine], axis=2).astype(np.float32)
        return (cones @ blocks.cones).max(axis=1) >= 0

    def _cast(self, view: "_View", scene: AnyArray, pixel: AnyArray, group: int) -> tuple[AnyArray, AnyArray, AnyArray]:
        """Distance, geom (-1 for none) and normal for rays given by place in `view.ids`, in order, and pixel."""
        distance, geom, normal = np.empty(len(scene)), np.empty(len(scene), np.int32), np.empty((len(scene), 3))
        edges = np.searchsorted(scene, np.arange(len(view.ids) + 1))
        counts = np.diff(edges)
        for places in _alike(counts):
            most = counts[places].max()
            rays = np.empty((len(places), most, 3))
            for row, i in zip(rays, places, strict=True):
                np.matmul(self._rays[pixel[edges[i] : edges[i + 1]]], view.rotation[i].T, out=row[: counts[i]])
                row[counts[i] :] = view.rotation[i, :, 2]  # to fill up: these look backwards
            origin = view.origin[places, None]
            found = self._batch.ray(origin, rays, _GROUPS[group], ids=view.ids[places], normal=True)
            for i, *values in zip(places, *found, strict=True):
                for into, value in zip((distance, geom, normal), values, strict=True):
                    into[edges[i] : edges[i + 1]] = value[: counts[i]]
        return distance, geom, normal

    def _keep_still(self, view: "_View", scene: AnyArray, pixel: AnyArray) -> None:
        """Cast these rays at what stands still, and keep what they saw."""
        distance, geom, normal = self._cast(view, scene, pixel, FIXED)
        ids, missed = view.ids[scene], geom < 0
        colour = self._shade(ids, geom, normal)
        colour[missed] = np.rint(SKY * 255)
        distance[missed] = np.inf
        self._still[ids, pixel], self._depth[ids, pixel] = colour, distance

    def _keep_faces(self, view: "_View") -> tuple[AnyArray, AnyArray]:
        """Keep the blocks whose four corners see one flat face, and so does the rest of them. Returns the other rays.

        For a straight edge to enter between the corners of a block, it takes the corner of a box; round things may.
        """
        blocks, count = self._faces, len(view.ids)
        scene = np.repeat(np.arange(count), blocks.corners.size)
        distance, geom, normal = self._cast(view, scene, np.tile(blocks.corners.ravel(), count), FIXED)
        geom, normal = geom.reshape(count, -1, 4), normal.reshape(count, -1, 4, 3)
        first, facing = geom[..., 0], normal[:, :, 0]
        one_face = (geom == first[..., None]).all(2) & (np.abs(normal - facing[:, :, None]) < 1e-6).all((2, 3))
        one_face &= (first >= 0) & self._flat[first] & blocks.whole & ~self._touched(view, blocks, self._corners)
        ids = np.repeat(view.ids, first.shape[1])
        colour = self._shade(ids, first.ravel(), facing.reshape(-1, 3)).reshape(count, -1, 3)
        self._still[view.ids] = np.take(colour, blocks.block_of, axis=1)
        toward = facing @ view.rotation  # the normal, as the camera has it
        slope = np.einsum("nkj,kj->nk", toward, self._rays[blocks.corners[:, 0]])
        away = distance.reshape(count, -1, 4)[..., 0] * slope
        scale = np.divide(1.0, away, where=one_face, out=np.zeros_like(away))
        self._plane[view.ids] = toward * scale[..., None]
        return blocks.expand(~one_face)

    def _depth_at(self, ids: AnyArray, pixel: AnyArray) -> AnyArray:
        """How far away what stands still is, along these rays."""
        depth = self._depth[ids, pixel]
        if self._rides:
            nearness = np.einsum("nk,nk->n", self._rays[pixel], self._plane[ids, self._faces.block_of[pixel]])
            np.divide(1.0, nearness, out=depth, where=nearness > 0, casting="same_kind")
        return depth

    def _shade(self, ids: AnyArray, geom: AnyArray, normal: AnyArray) -> ByteArray:
        facing = np.maximum(np.einsum("nk,nk->n", normal, self._look.light[ids]), 0.0)
        light = (self._look.ambient[ids] + self._look.diffuse[ids] * facing) * 255
        return (self._look.colour[ids, geom] * light[:, None] + 0.5).astype(np.uint8)


def _alike(counts: AnyArray) -> list[AnyArray]:
    """Put scenes with about as many rays together, since a call to the batch casts as many in each of its scenes."""
    busy = np.argsort(counts, kind="stable")[np.count_nonzero(counts == 0) :]
    even = len(busy) * counts.max(initial=0) < 1.2 * counts.sum()
    groups = 1 if even else -(-len(busy) // 4)
    return [np.sort(places) for places in np.array_split(busy, groups)] if len(busy) else []


@dataclass(frozen=True)
class _View:
    """From where n scenes are seen."""

    ids: AnyArray  # [n] their numbers in the batch
    origin: AnyArray  # [n, 3]
    rotation: AnyArray  # [n, 3, 3]


@dataclass(frozen=True)
class _Blocks:
    """The picture cut into K squares."""

    pixels: AnyArray  # [K, edge^2], -1 past the picture's edge
    block_of: AnyArray  # [H * W] the block that a pixel is in
    corners: AnyArray  # [K, 4] pixels; of a block that is cut off, any of its own
    whole: AnyArray  # [K] not cut off by the picture's edge
    cones: AnyArray  # [5, K] float32: unit vector to the middle, in the camera's frame; -cos, sin of half the opening

    @classmethod
    def of(cls, rays: AnyArray, size: tuple[int, int], edge: int) -> "_Blocks":
        height, width = size
        numbers = np.full((-(-height // edge) * edge, -(-width // edge) * edge), -1)
        numbers[:height, :width] = np.arange(height * width).reshape(height, width)
        down, across = numbers.shape[0] // edge, numbers.shape[1] // edge
        pixels = numbers.reshape(down, edge, across, edge).transpose(0, 2, 1, 3).reshape(down * across, -1)
        inside = pixels >= 0
        middle = (rays[pixels] * inside[..., None]).sum(axis=1)
        middle /= np.linalg.norm(middle, axis=1, keepdims=True)
        cosine = np.where(inside, (rays[pixels] @ middle[:, :, None])[..., 0], 1.0).min(axis=1)
        opening = np.arccos(np.minimum(cosine, 1.0)) + 1e-3  # float32 cosines of small angles are that coarse
        block_of = np.empty(height * width, int)
        block_of[pixels[inside]] = np.nonzero(inside)[0]
        corners = pixels[:, [0, edge - 1, edge * (edge - 1), edge * edge - 1]]
        return cls(
            pixels=pixels,
            block_of=block_of,
            corners=np.where(corners < 0, pixels[:, :1], corners),
            whole=np.all(inside, axis=1),
            cones=np.vstack([middle.T, -np.cos(opening), np.sin(opening)]).astype(np.float32),
        )

    def expand(self, chosen: AnyArray) -> tuple[AnyArray, AnyArray]:
        """Scene (its place) and pixel of every ray in the chosen blocks, [n, K], scene by scene."""
        scene, block = np.nonzero(chosen)
        pixel = self.pixels[block].ravel()
        scene = np.repeat(scene, self.pixels.shape[1])
        if self.whole.all():
            return scene, pixel
        return scene[pixel >= 0], pixel[pixel >= 0]


@dataclass(frozen=True)
class _Spheres:
    """Spheres around geoms, or around parts of them."""

    geom: AnyArray  # [S]
    center: AnyArray  # [S, 3] in the geom's frame
    radius: AnyArray  # [S]


def _pixel_rays(size: tuple[int, int], fovy: float) -> AnyArray:
    """Unit vectors through the pixels' middles in the camera's frame, [H * W, 3]: x right, y up, looking along -z."""
    height, width = size
    focal = height / 2 / np.tan(np.radians(fovy) / 2)  # in pixels
    x, y = np.meshgrid(np.arange(width) + 0.5 - width / 2, height / 2 - 0.5 - np.arange(height))
    rays = np.stack([x, y, np.full_like(x, -focal)], axis=-1).reshape(-1, 3)
    return rays / np.linalg.norm(rays, axis=1, keepdims=True)


def _spheres(model: Model, group: int, wrap: Callable[[int, AnyArray], tuple[AnyArray, float]]) -> _Spheres:
    """What `wrap` draws around each geom of a group."""
    geoms: list[int] = []
    centers: list[AnyArray] = []
    radii: list[float] = []
    for geom in np.flatnonzero(model.geom_group == group).tolist():
        found, radius = wrap(int(model.geom_type[geom]), np.array(model.geom_size[geom]))
        geoms += [geom] * len(found)
        centers += list(found)
        radii += [radius] * len(found)
    return _Spheres(np.array(geoms), np.array(centers), np.array(radii))


def _wrap(kind: int, size: AnyArray) -> tuple[AnyArray, float]:
    """Centers [n, 3], in the geom's frame, and the radius of spheres that hold all of a geom: a chain of them for a
    round one; a box is cut into near-cubes, and a sphere drawn around each."""
    shapes = mujoco.mjtGeom
    if kind in (shapes.mjGEOM_SPHERE, shapes.mjGEOM_CAPSULE):
        radius, half = size[0], size[1] if kind == shapes.mjGEOM_CAPSULE else 0.0
        gaps = int(np.ceil(2 * half / radius))  # each at most a radius long
        centers = np.zeros((gaps + 1, 3))
        centers[:, 2] = np.linspace(-half, half, gaps + 1)
        return centers, float(np.hypot(radius, half / max(gaps, 1)))
    if kind == shapes.mjGEOM_CYLINDER:
        size = np.array([size[0], size[0], size[1]])
    else:
        assert kind == shapes.mjGEOM_BOX, f"no spheres for geoms of type {kind}"
    parts = np.ceil(size / size.min() - 1e-6).astype(int)
    centers = [size * ((2 * np.array(index) + 1) / parts - 1) for index in np.ndindex(*parts)]
    return np.array(centers), float(np.linalg.norm(size / parts))


def _interrupt(kind: int, size: AnyArray) -> tuple[AnyArray, float]:
    """Spheres where a geom could show between the corners of a block: those of a flat geom, or all of a round one."""
    if kind == mujoco.mjtGeom.mjGEOM_PLANE:
        size = size * (1, 1, 0)
    elif kind != mujoco.mjtGeom.mjGEOM_BOX:
        return _wrap(kind, size)
    return size * (np.array(list(np.ndindex(2, 2, 2))) * 2 - 1), 0.0
