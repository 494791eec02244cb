"""N scenes of a task, stepped together: MuJoCo's own batch over native threads, everything else vectorised numpy.

Every scene draws its start from its own seed, so a scene is the same, bit for bit, alone or among a thousand others and
with any number of threads. Nothing here ends an episode: success is reported, and whoever is in charge of the
reward decides what it means.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Literal

import mujoco
import numpy as np
from mujoco.batch import Batch

from plaudit.envs.panda.rays import Look, RayCamera
from plaudit.envs.panda.scene import CAMERAS, CUBE, HIGH, LOW, OPEN, SUBSTEPS, TIMESTEP, TIP, scene_model
from plaudit.envs.panda.tasks import TASKS, Facts
from plaudit.errors import EnvError, InvalidAction, nearest
from plaudit.types import AnyArray, BoolArray, FloatArray, Observation

STEP: Final = 0.04  # the way of the hand for an action of 1, m
NEAR: Final = 0.1  # m: ways between things are told in this unit
PROPRIO, FULL = 15, 32  # sizes of the state

Obs = Literal["state", "pixels", "both"]


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
        threads: int = 0,
    ):
        """
        obs: "state" (everything the simulation knows), "pixels" (cameras, and what the arm knows of itself), "both"
        threads: of physics and rays; 0 for one a core
        """
        if task not in TASKS:
            raise EnvError(f"there is no task '{task}'; {nearest(task, TASKS)}")
        if num_envs < 1:
            raise EnvError(f"num_envs is {num_envs}; it must be at least 1")
        for camera in cameras:
            if camera not in CAMERAS:
                raise EnvError(f"there is no camera '{camera}'; {nearest(camera, CAMERAS)}")
        if min(image_size) < 1:
            raise EnvError(f"image_size is {list(image_size)}; height and width must be at least 1")
        self.num_envs, self.max_steps = num_envs, max_steps
        self._task, self.task_name, self.task = TASKS[task], task, TASKS[task].words
        self._full = obs != "pixels"
        self.state_dim = FULL if self._full else PROPRIO
        self.cameras: Mapping[str, tuple[int, int]] = {} if obs == "state" else dict.fromkeys(cameras, image_size)
        model = scene_model()
        self._batch = Batch(model, num_envs, nthread=threads, persistent=True)
        self._qpos, self._qvel = self._batch.bind("qpos"), self._batch.bind("qvel")
        self._mocap, self._ctrl = self._batch.bind("mocap_pos"), self._batch.bind("ctrl")
        self._touch, self._site = self._batch.bind("sensordata"), self._batch.bind("site_xpos")
        self._tip_before = np.zeros((num_envs, 3))
        self._look = Look.plain(model, num_envs)
        self._eyes = {c: RayCamera(model, c, size, self._batch, self._look) for c, size in self.cameras.items()}
        self._everyone = np.arange(num_envs)
        self._shown = False

    def reset(self, seeds: Sequence[int], ids: AnyArray | None = None) -> Observation:
        """Start scenes `ids` (all when not given) from their seeds; returns what is seen of all of them."""
        ids = self._everyone if ids is None else np.asarray(ids)
        if len(seeds) != len(ids):
            raise EnvError(f"{len(seeds)} seeds for {len(ids)} scenes; give one each")
        self._batch.reset(ids, keyframe=0, stage=mujoco.mjtStage.mjSTAGE_NONE)
        for i, seed in zip(ids, seeds, strict=True):
            start = self._task.start(np.random.default_rng(seed))
            x, y, turn = start.cube
            self._qpos[i, 9:] = (x, y, CUBE, np.cos(turn / 2), 0, 0, np.sin(turn / 2))
            self._mocap[i, 1] = start.goal
        self._batch.forward(ids)
        self._tip_before[ids] = self._site[ids, 0]
        for eye in self._eyes.values():
            eye.look_again(ids if self._shown else self._everyone)
        self._shown = True
        return self._observe()

    def step(self, actions: AnyArray, active: BoolArray | None = None) -> tuple[Observation, Mapping[str, AnyArray]]:
        """One control step of the scenes that are `active` (all when not given).

        Returns what is seen of all of them, and what only a simulation knows: success, grasp, reward (dense), [N] each.
        """
        actions = self._checked(actions)
        ids = self._everyone if active is None else np.flatnonzero(active)
        tip = self._site[ids, 0]
        self._tip_before[ids] = tip
        self._mocap[ids, 0] = np.clip(tip + STEP * actions[ids, :3], LOW, HIGH) + (0, 0, TIP)
        self._ctrl[ids, 0] = OPEN * (actions[ids, 3] + 1) / 2
        self._batch.step(ids, nstep=SUBSTEPS, stage=mujoco.mjtStage.mjSTAGE_VEL)
        facts = self.facts()
        success = self._task.success(facts)
        reward = np.where(success, 1.0, self._task.dense(facts)).astype(np.float32)
        return self._observe(facts), {"success": success, "grasp": facts.grasped, "reward": reward}

    def facts(self) -> Facts:
        return Facts(
            tip=self._site[:, 0].copy(),
            cube=self._qpos[:, 9:12].copy(),
            speed=np.linalg.norm(self._qvel[:, 9:12], axis=1),
            goal=self._mocap[:, 1].copy(),
            grasped=(self._touch > 0).all(axis=1),
        )

    def close(self) -> None:
        """Nothing is open."""

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

    def _observe(self, facts: Facts | None = None) -> Observation:
        images = {camera: eye.render(self._everyone) for camera, eye in self._eyes.items()}
        return Observation(images=images, state=self._state(facts or self.facts()))

    def _state(self, facts: Facts) -> FloatArray:
        """What the arm knows of itself: joints, fingers, tips, their way in the last step, where they were sent; then
        the cube, its way from the tips and to the goal, how it is turned, whether it is held."""
        parts = [
            self._qpos[:, :7],
            self._qpos[:, 7:8] / OPEN,
            facts.tip,
            (facts.tip - self._tip_before) / STEP,
            self._ctrl / OPEN,
        ]
        if self._full:
            cube = facts.cube
            parts += [cube, (cube - facts.tip) / NEAR, facts.goal, (facts.goal - cube) / NEAR]
            parts += [self._qpos[:, 12:16], facts.grasped[:, None]]
        return np.concatenate(parts, axis=1).astype(np.float32)
