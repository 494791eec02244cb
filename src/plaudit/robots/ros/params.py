"""The description of a ROS 2 robot: `inference_runtime_params.json` and `inference_runtime_topics.json`.

Each robot's folder has both. Files of a user's own (`--inference_runtime_params_config`,
`--inference_runtime_topics_config`) replace them key by key. An error names the key and the file.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from plaudit.config import (
    Config,
    Edge,
    Hertz,
    ModelT,
    NonNegativeFloat,
    Number,
    PositiveFloat,
    PositiveInt,
    SmallInt,
    Width,
    parse,
    read_values,
)
from plaudit.errors import ConfigError, did_you_mean
from plaudit.robots.config import UNLIMITED, Positive, SafetyLimits, per_joint
from plaudit.robots.transport.messages import COMPRESSED_IMAGE, IMAGE
from plaudit.trust import from_file
from plaudit.types import FloatArray

PARAMS_FILE, TOPICS_FILE = "inference_runtime_params.json", "inference_runtime_topics.json"

Topic = Annotated[str, Field(pattern=r"^(/[A-Za-z_][A-Za-z0-9_]*)+$")]
JointField = Literal["position", "velocity", "effort"]


class ImageSize(Config):
    """Width and height of an image, in pixels."""

    width: Edge
    height: Edge

    @property
    def shape(self) -> tuple[int, int]:
        """H, W."""
        return self.height, self.width


class DepthRange(Config):
    """What a depth camera's gray values mean, in meters: 255 is `near` and closer, 1 is `far` and beyond."""

    near: NonNegativeFloat
    far: PositiveFloat

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.near >= self.far:
            raise ValueError(f"a depth range goes from near to far, not from {self.near:g} to {self.far:g} m")
        return self


class RuntimeParams(Config):
    """The robot's joints, cameras and rates. Angles are in radians, except where a key says degrees."""

    HZ: Hertz  # control steps per second
    # Control steps from one inference to the next, with chunks of action_chunk_size; at most half of a shorter chunk.
    policy_update_period: PositiveInt
    max_delta_deg: PositiveFloat | None = None  # largest change of a joint's command in a step; None: no limit
    joint_names: tuple[str, ...]  # as in JointState, in the order of state and action
    joint_lower: tuple[Number, ...]  # limits of commands, one per joint
    joint_upper: tuple[Number, ...]
    joint_max_velocity: Positive = 1.5  # of commands, rad/s: for all joints, each, or some by name; None: no limit
    joint_max_acceleration: Positive = 10.0  # rad/s^2
    start_pose: tuple[Number, ...] | None = None  # where reset() moves to; None: it stays
    start_speed: PositiveFloat = 0.5  # of the joint with the longest way to the start pose, rad/s
    start_tolerance: PositiveFloat = 0.05  # a joint this close to its start has arrived
    proprio_fields: tuple[JointField, ...] = ("position",)  # the fields of a JointState that form the state, in order
    proprio_state_dim: Width  # joints x fields
    proprio_history_size: SmallInt = 1  # the state is that many steps, concatenated, the newest last
    camera_names: tuple[str, ...]
    camera_image_size: ImageSize | None = None  # what the cameras send; None: mono_image_resize
    mono_image_resize: ImageSize  # of one camera in the observation; images of another size are resized to it
    depth_ranges: Mapping[str, DepthRange] = {}  # cameras that send depth (16UC1, 32FC1), and how it becomes gray
    num_img_obs: SmallInt = 1  # images of each camera: `head` is the newest, `head_1` the one before, ...
    img_obs_every: PositiveInt = 1  # steps between these
    action_dim: Width  # one per joint
    action_chunk_size: SmallInt  # actions that a policy returns at a time
    norm_stats_file_path: Path | None = None  # statistics that a policy normalizes with, JSON or pickle
    first_message_s: PositiveFloat = 5.0  # how long to wait for every topic at the start
    silent_after_ms: PositiveFloat = 500.0  # a topic without a valid message for this long ends the episode
    late_after_ms: NonNegativeFloat = 250.0  # a message this much slower than the fastest of its topic is dropped

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        joints = len(self.joint_names)
        for key in ("joint_lower", "joint_upper", "start_pose"):
            values = getattr(self, key)
            if values is not None and len(values) != joints:
                raise ValueError(f"key '{key}' has {len(values)} values for {joints} joint_names")
        if self.action_dim != joints:
            raise ValueError(f"key 'action_dim' is {self.action_dim}, there are {joints} joint_names")
        if self.proprio_state_dim != joints * len(self.proprio_fields):
            raise ValueError(
                f"key 'proprio_state_dim' is {self.proprio_state_dim}; {joints} joint_names with "
                f"{', '.join(self.proprio_fields)} make {joints * len(self.proprio_fields)}"
            )
        for key in ("joint_names", "camera_names"):
            names = getattr(self, key)
            if len(set(names)) != len(names):
                raise ValueError(f"key '{key}' has a name twice")
        for name, lower, upper in zip(self.joint_names, self.joint_lower, self.joint_upper, strict=True):
            if not lower < upper:
                raise ValueError(f"joint '{name}' may move from {lower} to {upper} (joint_lower, joint_upper)")
        for camera in self.depth_ranges:
            if camera not in self.camera_names:
                hint = did_you_mean(camera, self.camera_names)
                raise ValueError(f"key 'depth_ranges' has camera '{camera}', which is not in camera_names; {hint}")
        bounds = zip(self.joint_names, self.start_pose or (), self.joint_lower, self.joint_upper, strict=False)
        for name, start, lower, upper in bounds:
            if not lower <= start <= upper:
                raise ValueError(f"key 'start_pose' has joint '{name}' at {start}, outside of {lower} to {upper}")
        self.safety_limits()
        if self.policy_update_period > self.action_chunk_size:
            raise ValueError(
                f"key 'policy_update_period' is {self.policy_update_period}, longer than a chunk of "
                f"{self.action_chunk_size} actions lasts (action_chunk_size)"
            )
        return self

    def safety_limits(self) -> SafetyLimits:
        """What commands are kept within; `max_delta_deg` is a speed as well."""
        joints, names = len(self.joint_names), self.joint_names
        velocity = per_joint("joint_max_velocity", self.joint_max_velocity, joints, names, UNLIMITED)
        if self.max_delta_deg is not None:
            velocity = np.minimum(velocity, math.radians(self.max_delta_deg) * self.HZ)
        return SafetyLimits(
            np.array(self.joint_lower),
            np.array(self.joint_upper),
            velocity,
            per_joint("joint_max_acceleration", self.joint_max_acceleration, joints, names, UNLIMITED),
            stale_observation_s=1e-3 * self.silent_after_ms,
            names=names,
        )

    def executed_steps(self, horizon: int | None) -> int:
        """Of a policy's chunk of `horizon` actions, those that run before the next inference begins."""
        if horizon is None or horizon >= self.action_chunk_size:
            return self.policy_update_period
        return min(self.policy_update_period, max(1, horizon // 2))

    @property
    def limits(self) -> tuple[FloatArray, FloatArray]:
        """Lower and upper limits of commands, [J] each."""
        return np.array(self.joint_lower, np.float32), np.array(self.joint_upper, np.float32)

    def depth_range(self, camera: str) -> tuple[float, float] | None:
        """Near and far in meters; None for a camera that sends colors."""
        depth = self.depth_ranges.get(camera)
        return None if depth is None else (depth.near, depth.far)

    @property
    def camera_size(self) -> tuple[int, int]:
        """H, W of the images that the cameras send."""
        return (self.camera_image_size or self.mono_image_resize).shape


class RuntimeTopics(Config):
    """The robot's topics. A camera's topic that ends in /compressed carries CompressedImage, any other Image."""

    joint_states: Topic  # JointState, measured
    joint_commands: Topic  # JointState, position targets
    cameras: Mapping[str, Topic]  # by the camera's name; those that are not in camera_names are ignored
    teleop: Topic | None = None  # JointState, the commands of a human
    operator: Topic | None = None  # String, what an operator says: start, success, stop, ...
    emergency_stop: Topic | None = None  # Bool: true stops the robot, false releases what this topic stopped
    success: Topic | None = None  # Bool, of a simulation: whether the task is done; recorded as privileged

    def image_type(self, camera: str) -> str:
        """The message type of a camera's topic."""
        return COMPRESSED_IMAGE if self.cameras[camera].endswith("/compressed") else IMAGE

    def check(self, params: RuntimeParams) -> None:
        """Raise `ConfigError` unless every camera of the params has a topic."""
        for camera in params.camera_names:
            if camera not in self.cameras:
                hint = did_you_mean(camera, self.cameras)
                raise ConfigError([(("cameras",), f"camera '{camera}' of camera_names has no topic; {hint}")])
            compressed = self.cameras[camera].rsplit("/", 1)[-1] in ("compressed", "compressedDepth")
            if compressed and camera in params.depth_ranges:
                problem = f"camera '{camera}' sends depth, which is not read from {self.cameras[camera]}"
                raise ConfigError([(("cameras", camera), f"{problem}; name its topic of plain Images, 16UC1 or 32FC1")])


def load_file(cls: type[ModelT], robot_file: Path, user: Path | Mapping[str, Any] | None) -> ModelT:
    """Read a robot's file, with the keys of the user (or of the user's file) in place of its own."""
    travelled = isinstance(user, Mapping) and not robot_file.is_file()  # with all keys, to where the robot has no files
    values: Mapping[str, Any] = {} if travelled else read_values(robot_file, ())[0]
    user_file = user if isinstance(user, Path) else None
    user_values: Mapping[str, Any] = read_values(user, ())[0] if isinstance(user, Path) else user or {}
    try:
        with from_file(user_file or robot_file):
            return parse(cls, {**values, **user_values})
    except ConfigError as error:
        # A contradiction between keys has no key: it came with the user's keys, if there are any.
        def source(key: tuple[Any, ...]) -> Path | str:
            is_robots = not user_values or (key and key[0] not in user_values)
            return robot_file if is_robots else user_file or f"the user's {robot_file.stem}"

        raise ConfigError((key, f"{source(key)}: {message}") for key, message in error.problems) from None
