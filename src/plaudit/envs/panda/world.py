"""N scenes of a task, stepped together: MuJoCo's own batch over native threads, everything else vectorised numpy.

Every scene draws its start and its looks from its own seed, so a scene is the same, bit for bit, alone or among a
thousand others and with any number of threads. Nothing here ends an episode: success is reported, and whoever is in
charge of the reward decides what it means.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

import numpy as np

from plaudit.envs.panda.engine import Batch, mujoco
from plaudit.envs.panda.gl_camera import GlCamera
from plaudit.envs.panda.look import Look
from plaudit.envs.panda.rays import RayCamera
from plaudit.envs.panda.scene import (
    CUBE,
    HIGH,
    LOW,
    OPEN,
    STEP,
    SUBSTEPS,
    TIMESTEP,
    TIP,
    check_cameras,
    check_size,
    scene_model,
)
from plaudit.envs.panda.state import ARM_STATE, LIMIT, NEAR, SCENE_STATE
from plaudit.envs.panda.tasks import TASKS, Facts
from plaudit.errors import EnvError, InvalidAction, nearest
from plaudit.types import AnyArray, BoolArray, ByteArray, FloatArray, Observation

Obs = Literal["state", "pixels", "both"]
RenderBackend = Literal["rays", "gl"]


class World:
    """A `Simulation` of one of the built-in tasks."""

    action_dim = 4  # dx, dy, dz of the hand, gripper: 1 opens, -1 closes
    fps = 1 / (SUBSTEPS * TIMESTEP)

    def __init__(
        self,
        task: str,
        num_envs: int = 1,
        *,
        obs: Obs = "state",
        cameras: Sequence[str] = ("front",),
        image_size: tuple[int, int] = (64, 64),
        max_steps: int = 50,
        randomize: bool = False,
        render_backend: RenderBackend = "rays",
        threads: int = 0,
    ):
        """
        obs: "state" (everything the simulation knows), "pixels" (cameras, and what the arm knows of itself), "both"
        randomize: whether a seed also decides colours, light and where exactly cameras stand
        render_backend: "rays" (needs no OpenGL) or "gl" (MuJoCo's own renderer)
        threads: of physics and rays; 0 for one a core
        """
        _check_choice("task", task, TASKS)
        _check_choice("obs", obs, get_args(Obs))
        _check_choice("render_backend", render_backend, get_args(RenderBackend))
        for name, value, least in (("num_envs", num_envs, 1), ("max_steps", max_steps, 1), ("threads", threads, 0)):
            if value < least:
                raise EnvError(f"{name} is {value}; it must be at least {least}")
        check_cameras(cameras)
        check_size(image_size)
        self.num_envs, self.max_steps = num_envs, max_steps
        self._task, self.task_name, self.task = TASKS[task], task, TASKS[task].words
        self.state_names = ARM_STATE + (SCENE_STATE if obs != "pixels" else ())
        self.state_dim = len(self.state_names)
        self.cameras: Mapping[str, tuple[int, int]] = {} if obs == "state" else dict.fromkeys(cameras, image_size)
        self._model, self._backend, self._randomize = scene_model(), render_backend, randomize
        self._batch = Batch(self._model, num_envs, nthread=threads, persistent=True)
        self._qpos, self._qvel = self._batch.bind("qpos"), self._batch.bind("qvel")
        self._mocap, self._ctrl = self._batch.bind("mocap_pos"), self._batch.bind("ctrl")
        self._touch, self._site = self._batch.bind("sensordata"), self._batch.bind("site_xpos")
        self._tip_before = np.zeros((num_envs, 3))
        self._look = Look.plain(self._model, num_envs)
        self._eyes = {camera: self._eye(camera, size) for camera, size in self.cameras.items()}
        self._pictures = {c: np.zeros((num_envs, *size, 3), np.uint8) for c, size in self.cameras.items()}
        self._views: dict[tuple[str, tuple[int, int]], RayCamera | GlCamera] = {}
        self._everyone = np.arange(num_envs)
        self._started = False

    def reset(self, seeds: Sequence[int], ids: AnyArray | None = None) -> Observation:
        """Start scenes `ids` (all when not given) from their seeds; returns what is seen of all of them."""
        if ids is None:
            ids = self._everyone
        elif not self._started:
            raise EnvError("the first reset starts all scenes; leave out ids")
        if np.any(np.diff(ids) < 1) or not np.isin(ids, self._everyone).all():
            raise EnvError(
                f"ids are {np.asarray(ids).tolist()}; they must be ascending numbers from 0 to {self.num_envs - 1}"
            )
        if len(seeds) != len(ids):
            raise EnvError(f"{len(seeds)} seeds for {len(ids)} scenes; give one each")
        if min(seeds, default=0) < 0:
            raise EnvError(f"a seed is {min(seeds)}; it must be 0 or more")
        self._batch.reset(ids, keyframe=0, stage=mujoco.mjtStage.mjSTAGE_NONE)
        for i, seed in zip(ids, seeds, strict=True):
            start = self._task.start(np.random.default_rng(seed))
            x, y, turn = start.cube
            self._qpos[i, 9:] = (x, y, CUBE, np.cos(turn / 2), 0, 0, np.sin(turn / 2))
            self._mocap[i, 1] = start.goal
            if self._randomize:
                self._look.randomize(i, seed, self._model)
        self._batch.forward(ids)
        self._tip_before[ids] = self._site[ids, 0]
        if self._randomize or not self._started:  # else what stands still looks as it did
            for eye in (*self._eyes.values(), *self._views.values()):
                eye.look_again(ids)
        self._started = True
        return self._observe(ids, self.facts())

    def step(self, actions: AnyArray, active: BoolArray | None = None) -> tuple[Observation, Mapping[str, AnyArray]]:
        """One control step of the scenes that are `active` (all when not given); the others stay as they are.

        Returns what is seen of all of them, and what only a simulation knows, [N] each: success, grasp, reward (dense),
        and shaping, which is that reward without what it pays for success.
        """
        if not self._started:
            raise EnvError("nothing has started yet; call reset(seeds) before step(actions)")
        actions = self._checked(actions)
        ids = self._everyone if active is None else np.flatnonzero(active)
        tip = self._site[ids, 0]
        self._tip_before[ids] = tip
        self._mocap[ids, 0] = np.clip(tip + STEP * actions[ids, :3], LOW, HIGH) + (0, 0, TIP)
        self._ctrl[ids, 0] = OPEN * (actions[ids, 3] + 1) / 2
        self._batch.step(ids, nstep=SUBSTEPS, stage=mujoco.mjtStage.mjSTAGE_VEL)
        facts = self.facts()
        success = self._task.success(facts)
        shaping = self._task.dense(facts)
        reward = np.where(success, np.float32(1), shaping)
        known = {"success": success, "grasp": facts.grasped, "reward": reward, "shaping": shaping}
        return self._observe(ids, facts), known

    def facts(self) -> Facts:
        """What is where now, in copies."""
        return Facts(
            tip=self._site[:, 0].copy(),
            cube=self._qpos[:, 9:12].copy(),
            speed=np.linalg.norm(self._qvel[:, 9:12], axis=1),
            goal=self._mocap[:, 1].copy(),
            grasped=np.all(self._touch > 0, axis=1),
        )

    def view(self, camera: str, size: tuple[int, int]) -> ByteArray:
        """All scenes through any camera in any size, [N, H, W, 3]: for people, beside the observations."""
        if not self._started:
            raise EnvError("there is nothing to see yet; call reset(seeds) first")
        check_cameras([camera])
        check_size(size)
        if (camera, size) not in self._views:
            self._views[camera, size] = self._eye(camera, size)
            self._views[camera, size].look_again(self._everyone)
        return self._views[camera, size].render(self._everyone)

    def close(self) -> None:
        for eye in (*self._eyes.values(), *self._views.values()):
            eye.close()

    def _eye(self, camera: str, size: tuple[int, int]) -> RayCamera | GlCamera:
        kind = GlCamera if self._backend == "gl" else RayCamera
        return kind(self._model, camera, size, self._batch, self._look)

    def _checked(self, actions: AnyArray) -> AnyArray:
        actions = np.asarray(actions, np.float64)
        if actions.shape != (self.num_envs, self.action_dim):
            raise InvalidAction(
                f"actions must be [{self.num_envs}, {self.action_dim}] (dx, dy, dz, gripper), got {list(actions.shape)}"
            )
        if not np.isfinite(actions).all():
            bad = int(np.flatnonzero(~np.isfinite(actions).all(axis=1))[0])
            raise InvalidAction(f"the action of scene {bad} holds NaN or infinity: {actions[bad].tolist()}")
        return np.clip(actions, -1, 1)

    def _observe(self, ids: AnyArray, facts: Facts) -> Observation:
        """Draw the scenes that changed; hand out copies of all."""
        if len(ids):
            for camera, eye in self._eyes.items():
                self._pictures[camera][ids] = eye.render(ids)
        images = {camera: pictures.copy() for camera, pictures in self._pictures.items()}
        return Observation(images=images, state=self._state(facts))

    def _state(self, facts: Facts) -> FloatArray:
        """The numbers named in ARM_STATE and SCENE_STATE, in their order."""
        parts = [
            self._qpos[:, :7],
            self._qpos[:, 7:8] / OPEN,
            facts.tip,
            (facts.tip - self._tip_before) / STEP,
            self._ctrl / OPEN,
            facts.cube,
            (facts.cube - facts.tip) / NEAR,
            facts.goal,
            (facts.goal - facts.cube) / NEAR,
            self._qpos[:, 12:16],
            facts.grasped[:, None],
        ]
        numbers = np.concatenate(parts, axis=1)[:, : self.state_dim]
        return np.clip(numbers, -LIMIT, LIMIT).astype(np.float32)


def _check_choice(what: str, value: str, known: Sequence[str] | Mapping[str, object]) -> None:
    if value not in known:
        raise EnvError(f"there is no {what} '{value}'; {nearest(value, known)}")
