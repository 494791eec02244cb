"""A built-in task behind a twin's topics: the robot's joints move a simulated Panda arm at a table.

    plaudit robot twin igris_b --task lift

The first four joints whose names begin with `right_` are the handles; without such names, the first four of all. The
first three move the Panda's fingertips forward, left and up from the middle of the workspace. The fourth closes the
gripper as it falls. At the start pose the arm is at home with an open gripper. Keyboard and gamepad can therefore drive
it. (Rejected: the Panda's own joints, because no device without kinematics can lead them to the cube.)

A new scene begins when the robot is commanded back to its start pose, as `reset()` of its driver does. The cameras show
front, side and wrist, in the order of `camera_names`. Success has a topic of its own and is for evaluation only.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from plaudit.envs.panda import PandaConfig, scene
from plaudit.envs.panda.scene import TASKS
from plaudit.errors import RobotError, did_you_mean
from plaudit.robots.ros.params import RuntimeParams
from plaudit.types import AnyArray, ByteArray, FloatArray

TIP_PER_RAD = 0.5  # m that the fingertips move per radian of a joint
CLOSED_AT = -0.25  # rad from the start pose, where the gripper is closed
LEFT_START = 0.05  # rad: a command this far from the start pose belongs to an episode
AT_START = 1e-4  # rad: commands this close to the start pose are to it


class TwinTask:
    """One scene, moved by the joints of a twin."""

    def __init__(self, name: str, params: RuntimeParams, seed: int = 0):
        """seed: of the first episode's scene; the next ones follow"""
        if name not in TASKS:
            raise RobotError(f"'{name}' is not a task for a twin; {did_you_mean(name, TASKS)}")
        if params.start_pose is None:
            raise RobotError("a twin with a task needs a start pose; set start_pose in the params")
        if not params.camera_names:
            raise RobotError("a twin with a task needs cameras; set camera_names in the params")
        if max(params.camera_size) > scene.MAX_IMAGE_SIZE:
            size = "x".join(map(str, reversed(params.camera_size)))
            raise RobotError(f"the images of a twin's task have {size} pixels; the limit is {scene.MAX_IMAGE_SIZE}")
        self.fps = params.HZ
        self._start = np.array(params.start_pose)
        self._handles = handles(params.joint_names)
        views = [scene.CAMERAS[n % len(scene.CAMERAS)] for n in range(len(params.camera_names))]
        self._views = dict(zip(params.camera_names, views, strict=True))
        cameras = tuple(dict.fromkeys(views))
        settings = {"obs": "pixels", "cameras": cameras, "image_size": params.camera_size, "num_threads": 1}
        self.env = PandaConfig.model_validate({"type": name, **settings}).build()
        self.num_scenes = 0  # so far
        self._seed = seed
        self._reset(seed)
        self._home = self.env.task_state().tip_pos[0]  # of the fingertips, when the joints are at the start pose

    def step(self, position: AnyArray) -> None:
        """Move the arm to where these joints [J] are, for one tick."""
        offset = (position - self._start)[self._handles]
        state = self.env.task_state()
        move = (self._home + TIP_PER_RAD * offset[:3] - state.tip_pos[0]) / scene.ACTION_SCALE
        opened = 1 - np.clip(offset[3] / CLOSED_AT, 0, 1)
        observation, info = self.env.step(np.append(move, 2 * opened - 1)[None])
        self._images, self._info = observation[0].images, {name: values[0] for name, values in info.items()}

    def watch(self, target: AnyArray) -> None:
        """A command [J] has arrived: whether it is the one that returns to the start pose. From any thread."""
        distance = np.abs(target - self._start).max()
        self._is_due |= self._has_left and bool(distance <= AT_START)
        self._has_left |= bool(distance > LEFT_START)

    def reset_if_due(self) -> None:
        """Start a new scene if the robot was commanded back to its start pose."""
        if self._is_due:
            self._reset(self._seed + self.num_scenes)
            self.num_scenes += 1

    def image(self, camera: str) -> ByteArray:
        """[H, W, 3] what a camera of the robot sees."""
        return self._images[self._views[camera]]

    def privileged(self) -> Mapping[str, AnyArray]:
        """What the simulator reports about the last tick: success, reward, ..."""
        return self._info

    def joints_for(self, action: FloatArray, speed: float = 1.0) -> AnyArray:
        """[J] joint targets that have the effect of an action [4] of the task. speed: fraction of its displacement"""
        tip = self.env.task_state().tip_pos[0] + speed * scene.ACTION_SCALE * action[:3]
        offset = (np.clip(tip, scene.WORKSPACE_LOW, scene.WORKSPACE_HIGH) - self._home) / TIP_PER_RAD
        target = self._start.copy()
        target[self._handles] += np.append(offset, CLOSED_AT * (1 - action[3]) / 2)
        return target

    def close(self) -> None:
        """Close the simulation."""
        self.env.close()

    def _reset(self, seed: int) -> None:
        self.seed = seed  # of the current scene
        self._has_left = self._is_due = False  # the start pose; a new scene
        self._images = self.env.reset([seed])[0].images
        self._info: Mapping[str, AnyArray] = {"success": np.array(False)}


def handles(joint_names: Sequence[str]) -> list[int]:
    """The numbers of the joints that move the arm forward, left and up, and close the gripper."""
    right = [number for number, name in enumerate(joint_names) if name.startswith("right_")]
    chosen = (right if len(right) >= 4 else list(range(len(joint_names))))[:4]
    if len(chosen) < 4:
        raise RobotError(f"a twin with a task needs four joints, but the robot has {len(joint_names)}")
    return chosen
