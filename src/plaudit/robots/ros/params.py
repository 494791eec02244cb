"""What a ROS 2 robot is like, in two JSON files: `inference_runtime_params.json` and `inference_runtime_topics.json`.

Each robot's folder has both. Files of a user's own (`--inference_runtime_params_config`,
`--inference_runtime_topics_config`) replace them key by key, so they may hold all keys or only those that differ; a
key that does not exist, a value of the wrong type and numbers that contradict each other are each answered with a
sentence that names the key and the file.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from plaudit.config import Config, ModelT, parse, read_tree
from plaudit.errors import ConfigError, nearest
from plaudit.robots.transport.messages import COMPRESSED_IMAGE, IMAGE
from plaudit.trust import from_file
from plaudit.types import FloatArray

PARAMS_FILE, TOPICS_FILE = "inference_runtime_params.json", "inference_runtime_topics.json"

Topic = Annotated[str, Field(pattern=r"^(/[A-Za-z_][A-Za-z0-9_]*)+$")]
Measured = Literal["position", "velocity", "effort"]


class ImageSize(Config):
    width: PositiveInt
    height: PositiveInt

    @property
    def shape(self) -> tuple[int, int]:
        return self.height, self.width


class RuntimeParams(Config):
    """Angles are in radians, except where a key says degrees."""

    HZ: PositiveFloat  # control steps a second
    policy_update_period: PositiveInt  # control steps from one inference to the next
    max_delta_deg: PositiveFloat | None = None  # the most that a joint's command changes in a step; None: any
    joint_names: tuple[str, ...]  # as JointState has them, in the order of state and action
    joint_lower: tuple[float, ...]  # of commands, one a joint
    joint_upper: tuple[float, ...]
    start_pose: tuple[float, ...] | None = None  # where reset() goes to; None: it stays where it is
    start_speed: PositiveFloat = 0.5  # of the joint that has the longest way there, a second
    start_tolerance: PositiveFloat = 0.05  # a joint this near to its start is there
    proprio_fields: tuple[Measured, ...] = ("position",)  # what of a JointState makes the state, one after the other
    proprio_state_dim: PositiveInt  # joints x fields
    proprio_history_size: PositiveInt = 1  # the state is that many steps, end to end, the newest last
    camera_names: tuple[str, ...]
    camera_image_size: ImageSize | None = None  # what the cameras send; None: what is wanted
    mono_image_resize: ImageSize  # what is wanted of one camera; other sizes are shrunk to it
    num_img_obs: PositiveInt = 1  # images of each camera: `head` is the newest, `head_1` the one before, ...
    img_obs_every: PositiveInt = 1  # steps between these
    action_dim: PositiveInt  # one a joint
    action_chunk_size: PositiveInt  # actions that a policy puts out at once
    norm_stats_file_path: Path | None = None  # statistics that a policy normalises with, JSON or pickle
    first_message_s: PositiveFloat = 5.0  # to wait for every topic at the start
    silent_after_ms: PositiveFloat = 500.0  # without a good message on a topic, and the robot is given up
    late_after_ms: NonNegativeFloat = 250.0  # behind the quickest message of a topic so far, and one is dropped

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
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
                raise ValueError(f"key '{key}' names one twice")
        for name, lower, upper in zip(self.joint_names, self.joint_lower, self.joint_upper, strict=True):
            if not lower < upper:
                raise ValueError(f"joint '{name}' may move from {lower} to {upper} (joint_lower, joint_upper)")
        self._start_is_within_limits()
        if self.policy_update_period > self.action_chunk_size:
            raise ValueError(
                f"key 'policy_update_period' is {self.policy_update_period}, longer than a chunk of "
                f"{self.action_chunk_size} actions lasts (action_chunk_size)"
            )
        return self

    def _start_is_within_limits(self) -> None:
        limits = zip(self.joint_names, self.start_pose or (), self.joint_lower, self.joint_upper, strict=False)
        for name, start, lower, upper in limits:
            if not lower <= start <= upper:
                raise ValueError(f"key 'start_pose' has joint '{name}' at {start}, outside of {lower} to {upper}")

    @property
    def limits(self) -> tuple[FloatArray, FloatArray]:
        return np.array(self.joint_lower, np.float32), np.array(self.joint_upper, np.float32)

    @property
    def sent_size(self) -> tuple[int, int]:
        """H, W of what the cameras send."""
        return (self.camera_image_size or self.mono_image_resize).shape


class RuntimeTopics(Config):
    """ROS names. A camera's topic that ends in /compressed carries CompressedImage, as ROS has it, others Image."""

    joint_states: Topic  # JointState, what the robot measures
    joint_commands: Topic  # JointState, positions to go to
    cameras: Mapping[str, Topic]  # by the camera's name; those that are not in camera_names are left alone
    takeover: Topic | None = None  # JointState, a person's command

    def kind_of(self, camera: str) -> str:
        return COMPRESSED_IMAGE if self.cameras[camera].endswith("/compressed") else IMAGE

    def check(self, params: RuntimeParams) -> None:
        for camera in params.camera_names:
            if camera not in self.cameras:
                raise ConfigError(
                    [(("cameras",), f"camera '{camera}' of camera_names has no topic; {nearest(camera, self.cameras)}")]
                )


def read_params(folder: Path, own: Path | None) -> RuntimeParams:
    return _read(RuntimeParams, folder / PARAMS_FILE, own)


def read_topics(folder: Path, own: Path | None) -> RuntimeTopics:
    return _read(RuntimeTopics, folder / TOPICS_FILE, own)


def _read(cls: type[ModelT], base: Path, own: Path | None) -> ModelT:
    """The robot's file, with the keys of the user's own in place of its own."""
    values, _ = read_tree(base, ())
    given: dict[str, Any] = read_tree(own, ())[0] if own is not None else {}
    try:
        with from_file(own or base):
            return parse(cls, values | given)
    except ConfigError as error:
        raise ConfigError(
            # a contradiction between keys has no key: it came with the user's file, if there is one
            (where, f"{base if own is None or (where and where[0] not in given) else own}: {sentence}")
            for where, sentence in error.problems
        ) from None
