"""N environments of a built-in task, stepped together by MuJoCo's batch API on native threads.

Every environment draws its start and its appearance from its own seed, so an episode is the same, bit for bit, alone or
among a thousand others. Nothing here ends an episode: `step` reports success, and the caller decides.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np

from plaudit.envs.panda import scene
from plaudit.envs.panda.cameras import Appearance, Batch, GlCamera, Model, RayCamera, mujoco
from plaudit.envs.panda.scene import TASKS, TaskState
from plaudit.errors import EnvError, InvalidAction
from plaudit.types import AnyArray, BoolArray, ByteArray, FloatArray, Observation


@cache
def _scene_model() -> Model:
    """The compiled scene, shared by all environments: do not change it."""
    return mujoco.MjModel.from_xml_path(str(Path(__file__).with_name("scene.xml")))


class PandaVecEnv:
    """The vectorized environment of a built-in task."""

    action_dim = 4  # dx, dy, dz of the hand, gripper: 1 opens, -1 closes
    fps = 1 / (scene.SUBSTEPS * scene.TIMESTEP)

    def __init__(
        self,
        task: str,
        num_envs: int = 1,
        *,
        obs: Literal["state", "pixels", "both"] = "state",
        cameras: Sequence[str] = ("front",),
        image_size: tuple[int, int] = (64, 64),
        max_steps: int = 50,
        randomize: bool = False,
        render_backend: Literal["rays", "gl"] = "rays",
        num_threads: int = 0,
    ):
        """See `PandaConfig`, which checks these settings.

        obs: "state" (arm and scene), "pixels" (images and the arm's own state) or "both" (images, arm and scene)
        """
        if num_envs < 1:
            raise EnvError(f"num_envs is {num_envs}; it must be at least 1")
        self.num_envs, self.max_steps = num_envs, max_steps
        self._task, self.task_name, self.task = TASKS[task], task, TASKS[task].instruction
        self.state_names = scene.ARM_STATE + (scene.SCENE_STATE if obs != "pixels" else ())
        self.state_dim = len(self.state_names)
        self.cameras: Mapping[str, tuple[int, int]] = {} if obs == "state" else dict.fromkeys(cameras, image_size)
        self._model, self._backend, self._randomize = _scene_model(), render_backend, randomize
        self._batch = Batch(self._model, num_envs, nthread=num_threads, persistent=True)
        # Views of the batch's memory: reading them costs nothing, writing them changes the simulation.
        self._qpos, self._qvel = self._batch.bind("qpos"), self._batch.bind("qvel")
        self._mocap, self._ctrl = self._batch.bind("mocap_pos"), self._batch.bind("ctrl")
        self._touch, self._site = self._batch.bind("sensordata"), self._batch.bind("site_xpos")
        self._previous_tip = np.zeros((num_envs, 3))
        self._appearance = Appearance.default(self._model, num_envs)
        self._cameras = {camera: self._make_camera(camera, size) for camera, size in self.cameras.items()}
        self._images = {c: np.zeros((num_envs, *size, 3), np.uint8) for c, size in self.cameras.items()}
        self._render_cameras: dict[tuple[str, tuple[int, int]], RayCamera | GlCamera] = {}
        self._all_ids = np.arange(num_envs)
        self._started = False

    def reset(self, seeds: Sequence[int], ids: AnyArray | None = None) -> Observation:
        """Start episodes in these environments (all by default) from their seeds; returns the observation of all."""
        ids = self._check_reset(seeds, ids)
        self._batch.reset(ids, keyframe=0, stage=mujoco.mjtStage.mjSTAGE_NONE)
        for i, seed in zip(ids, seeds, strict=True):
            start = self._task.sample_start(np.random.default_rng(seed))
            x, y, yaw = start.cube
            self._qpos[i, 9:] = (x, y, scene.CUBE_HALF_SIZE, np.cos(yaw / 2), 0, 0, np.sin(yaw / 2))
            self._mocap[i, 1] = start.goal
            if self._randomize:
                self._appearance.randomize(i, seed, self._model)
        self._batch.forward(ids)
        self._previous_tip[ids] = self._site[ids, 0]
        if self._randomize or not self._started:  # otherwise the cached background is still right
            for camera in (*self._cameras.values(), *self._render_cameras.values()):
                camera.refresh(ids)
        self._started = True
        return self._observe(ids, self.task_state())

    def step(self, actions: AnyArray, active: BoolArray | None = None) -> tuple[Observation, Mapping[str, AnyArray]]:
        """Make one control step in the environments that are `active` (all by default); the others stay as they are.

        Returns the observation of all environments and an info of privileged values, [N] each: `success`, `grasp`,
        `reward` (dense, 1 on success) and `shaping` (the same reward without the bonus for success).
        """
        if not self._started:
            raise EnvError("nothing has started yet; call reset(seeds) before step(actions)")
        actions = self._check_actions(actions)
        ids = self._all_ids if active is None else np.flatnonzero(active)
        tip = self._site[ids, 0]
        self._previous_tip[ids] = tip
        target = np.clip(tip + scene.ACTION_SCALE * actions[ids, :3], scene.WORKSPACE_LOW, scene.WORKSPACE_HIGH)
        self._mocap[ids, 0] = target + (0, 0, scene.TIP_OFFSET)
        self._ctrl[ids, 0] = scene.FINGER_OPEN * (actions[ids, 3] + 1) / 2
        self._batch.step(ids, nstep=scene.SUBSTEPS, stage=mujoco.mjtStage.mjSTAGE_VEL)
        state = self.task_state()
        success = self._task.success(state)
        shaping = self._task.dense_reward(state)
        reward = np.where(success, np.float32(1), shaping)
        info = {"success": success, "grasp": state.is_grasped, "reward": reward, "shaping": shaping}
        return self._observe(ids, state), info

    def forward_kinematics(self, action: AnyArray) -> AnyArray:
        """[3] where an action [4] moves the finger tips of the first environment, in m."""
        return self._site[0, 0] + scene.ACTION_SCALE * action[:3]

    def task_state(self) -> TaskState:
        """The privileged state of all environments, as copies."""
        return TaskState(
            tip_pos=self._site[:, 0].copy(),
            cube_pos=self._qpos[:, 9:12].copy(),
            cube_speed=np.linalg.norm(self._qvel[:, 9:12], axis=1),
            goal_pos=self._mocap[:, 1].copy(),
            is_grasped=np.all(self._touch > 0, axis=1),
        )

    def render(self, camera: str, size: tuple[int, int]) -> ByteArray:
        """Images of all environments from any camera in any size, [N, H, W, 3], independent of the observations."""
        if not self._started:
            raise EnvError("there is nothing to render yet; call reset(seeds) first")
        scene.check_cameras([camera])
        if min(size) < 1 or max(size) > scene.MAX_IMAGE_SIZE:
            raise EnvError(f"image_size is {list(size)}; height and width must be from 1 to {scene.MAX_IMAGE_SIZE}")
        if (camera, size) not in self._render_cameras:
            self._render_cameras[camera, size] = self._make_camera(camera, size)
            self._render_cameras[camera, size].refresh(self._all_ids)
        return self._render_cameras[camera, size].render(self._all_ids)

    def close(self) -> None:
        """Close all cameras."""
        for camera in (*self._cameras.values(), *self._render_cameras.values()):
            camera.close()

    def _make_camera(self, camera: str, size: tuple[int, int]) -> RayCamera | GlCamera:
        cls = GlCamera if self._backend == "gl" else RayCamera
        return cls(self._model, camera, size, self._batch, self._appearance)

    def _check_reset(self, seeds: Sequence[int], ids: AnyArray | None) -> AnyArray:
        if ids is None:
            ids = self._all_ids
        elif not self._started:
            raise EnvError("the first reset starts all environments; leave out ids")
        if np.any(np.diff(ids) < 1) or not np.isin(ids, self._all_ids).all():
            numbers = np.asarray(ids).tolist()
            raise EnvError(f"ids are {numbers}; they must be ascending numbers from 0 to {self.num_envs - 1}")
        if len(seeds) != len(ids):
            raise EnvError(f"{len(seeds)} seeds for {len(ids)} environments; give one each")
        if min(seeds, default=0) < 0:
            raise EnvError(f"a seed is {min(seeds)}; it must be 0 or more")
        return ids

    def _check_actions(self, actions: AnyArray) -> AnyArray:
        actions = np.asarray(actions, np.float64)
        if actions.shape != (self.num_envs, self.action_dim):
            expected = f"[{self.num_envs}, {self.action_dim}] (dx, dy, dz, gripper)"
            raise InvalidAction(f"actions must be {expected}, got {list(actions.shape)}")
        if not np.isfinite(actions).all():
            bad = int(np.flatnonzero(~np.isfinite(actions).all(axis=1))[0])
            raise InvalidAction(f"the action of environment {bad} contains NaN or infinity: {actions[bad].tolist()}")
        return np.clip(actions, -1, 1)

    def _observe(self, ids: AnyArray, state: TaskState) -> Observation:
        """Render the environments that changed and return copies of all."""
        if len(ids):
            for name, camera in self._cameras.items():
                self._images[name][ids] = camera.render(ids)
        images = {name: images.copy() for name, images in self._images.items()}
        return Observation(images=images, state=self._state_vector(state))

    def _state_vector(self, state: TaskState) -> FloatArray:
        """The values named in ARM_STATE and SCENE_STATE, in that order."""
        parts = [
            self._qpos[:, :7],
            self._qpos[:, 7:8] / scene.FINGER_OPEN,
            state.tip_pos,
            (state.tip_pos - self._previous_tip) / scene.ACTION_SCALE,
            self._ctrl / scene.FINGER_OPEN,
            state.cube_pos,
            (state.cube_pos - state.tip_pos) / scene.DISTANCE_SCALE,
            state.goal_pos,
            (state.goal_pos - state.cube_pos) / scene.DISTANCE_SCALE,
            self._qpos[:, 12:16],
            state.is_grasped[:, None],
        ]
        vector = np.concatenate(parts, axis=1)[:, : self.state_dim]
        return np.clip(vector, -scene.STATE_LIMIT, scene.STATE_LIMIT).astype(np.float32)
