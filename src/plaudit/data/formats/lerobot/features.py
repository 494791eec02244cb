"""What a LeRobot data set is made of: the names of its columns, and which of them our episodes fill."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from plaudit.data.formats.base import LabeledEpisode, WriteOptions
from plaudit.data.formats.images import LEROBOT_IMAGES, choose
from plaudit.errors import DataError
from plaudit.files import brief, file_name
from plaudit.types import AnyArray, Labels

STATE, ACTION, IMAGES = "observation.state", "action", LEROBOT_IMAGES
REWARD, DONE, SUCCESS = "next.reward", "next.done", "next.success"
INTERVENTION, PRIVILEGED = "complementary_info.is_intervention", "privileged."
INSTRUCTION = "language_instruction"  # a text in each row, of data sets converted from RLDS
BOOKKEEPING = ("timestamp", "frame_index", "episode_index", "index", "task_index")
LABELS = (REWARD, DONE, SUCCESS)
PLAUDIT_META = "meta/plaudit.parquet"
# Where v3.0 keeps the files of many episodes.
DATA_PATH = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEO_PATH = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"


@dataclass(frozen=True)
class Layout:
    """What every row of a data set we write holds; the first episode decides and the others must agree."""

    cameras: dict[str, tuple[int, int]]
    state_dim: int
    action_dim: int
    privileged: dict[str, tuple[str, tuple[int, ...]]]
    fps: float
    robot: str
    labeled: bool
    interventions: bool
    reward_frame: str
    names: dict[str, Any]

    @classmethod
    def of(cls, items: Sequence[LabeledEpisode], options: WriteOptions) -> "Layout":
        if not items:
            raise DataError("there are no episodes to export")
        first = items[0].episode
        fps = first.fps or options.fps
        if not fps:
            raise DataError(f"episode {items[0].id} does not know its frames per second; give --fps")
        cameras = choose(options.cameras, list(first.frames), f"episode {items[0].id}")
        for camera in cameras:
            if file_name(camera) != camera:
                problem = f"camera {brief(camera)} is not a valid folder name in a LeRobot data set"
                raise DataError(f"{problem}; take others with --camera")
        return cls(
            cameras={c: first.frames[c].shape[1:3] for c in cameras},
            state_dim=first.state.shape[1],
            action_dim=first.actions.shape[1],
            privileged={n: (v.dtype.name, v.shape[1:]) for n, v in first.privileged.items() if v.ndim <= 2},
            fps=fps,
            robot=first.robot,
            labeled=any(item.labels is not None for item in items),
            interventions=any(item.episode.control_mode.any() for item in items),
            reward_frame=options.reward_frame,
            names=dict(first.meta),
        )

    def check(self, item: LabeledEpisode) -> None:
        episode, apart = item.episode, "export them apart with --episodes"
        for camera, size in self.cameras.items():
            if camera not in episode.frames:
                raise DataError(f"episode {item.id} has no camera '{camera}', others do; {apart}, or give --camera")
            if episode.frames[camera].shape[1:3] != size:
                own = episode.frames[camera].shape[1:3]
                raise DataError(f"episode {item.id} has camera '{camera}' of {own}, others of {size}; {apart}")
        dims = (episode.state.shape[1], episode.actions.shape[1])
        if dims != (self.state_dim, self.action_dim):
            expected = (self.state_dim, self.action_dim)
            raise DataError(f"episode {item.id} has state and action of {dims}, others {expected}; {apart}")
        if episode.fps not in (0, self.fps):
            raise DataError(f"episode {item.id} runs at {episode.fps} frames per second, others at {self.fps}")

    def columns(self, item: LabeledEpisode, index: int, first_frame: int, task_index: int) -> dict[str, AnyArray]:
        """One episode's rows, column by column, without images."""
        episode, steps = item.episode, item.episode.steps
        columns: dict[str, AnyArray] = {}
        if self.state_dim:
            columns[STATE] = episode.state[:steps]
        if self.action_dim:
            columns[ACTION] = episode.actions
        if self.labeled:
            columns |= reward_columns(item.labels, steps, self.reward_frame)
        columns[DONE] = done_column(steps)
        if self.interventions:
            columns[INTERVENTION] = episode.control_mode.astype(bool)
        for name, (dtype, shape) in self.privileged.items():
            columns[f"{PRIVILEGED}{name}"] = episode.privileged.get(name, np.zeros((steps, *shape), dtype))
        columns["timestamp"] = (np.arange(steps) / self.fps).astype(np.float32)
        columns["frame_index"] = np.arange(steps)
        columns["episode_index"] = np.full(steps, index)
        columns["index"] = np.arange(first_frame, first_frame + steps)
        columns["task_index"] = np.full(steps, task_index)
        return columns

    def features(self, columns: dict[str, AnyArray], video: bool, codec: str) -> dict[str, Any]:
        """The `features` of info.json."""
        features: dict[str, Any] = {}
        for camera, (height, width) in self.cameras.items():
            feature: dict[str, Any] = {"dtype": "video" if video else "image", "shape": [height, width, 3]}
            feature["names"] = ["height", "width", "channels"]
            if video:
                feature["info"] = {
                    "video.height": height,
                    "video.width": width,
                    "video.codec": codec,
                    "video.pix_fmt": "yuv420p",
                    "video.is_depth_map": False,
                    "video.fps": whole(self.fps),
                    "video.channels": 3,
                    "has_audio": False,
                }
            features[f"{IMAGES}{camera}"] = feature
        names = {STATE: self.names.get("state_names"), ACTION: self.names.get("action_names")}
        for name, values in columns.items():
            features[name] = {"dtype": values.dtype.name, "shape": [values[0].size], "names": names.get(name)}
        return features


def reward_columns(labels: Labels | None, steps: int, reward_frame: str) -> dict[str, AnyArray]:
    """`next.reward` (NaN: not labeled) and `next.success` of each row, about the next frame or about the row's own."""
    if labels is None:
        return {REWARD: np.full(steps, np.nan, np.float32), SUCCESS: np.zeros(steps, bool)}
    rows = slice(0, steps) if reward_frame == "same" else slice(1, steps + 1)
    return {REWARD: labels.targets[rows], SUCCESS: labels.success[rows]}


def label_entry(labels: Labels | None, reward_frame: str) -> dict[str, Any]:
    """What `meta/plaudit.parquet` says about an episode's labels."""
    return {
        "reward_frame": reward_frame,
        "source": labels.judge.source if labels else None,
        "start": float(labels.success[0]) if labels and labels.labeled[0] else None,
        "final_success": float(labels.targets[-1]) if labels else None,
    }


def done_column(steps: int) -> AnyArray:
    """`next.done`: an episode ends with its last row."""
    return np.arange(steps) == steps - 1


def whole(fps: float) -> int | float:
    """30 rather than 30.0, as LeRobot writes it."""
    return int(fps) if float(fps).is_integer() else fps
