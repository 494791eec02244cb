"""LeRobot data sets, v2.0, v2.1 and v3.0, read straight from their parquet, JSON and video files.

Not through the lerobot package: given a name, its loader may download over a local folder, and it installs on few
machines. A row holds an observation, the action taken on it and what the action led to (`next.reward`); what the
last action led to is not recorded, so T rows become T steps with `repeated="last"`. Which frame `next.reward`
judges is a matter of dispute in the wild: by its name the next one (the default), while data sets labelled by hand
often mean the row's own (`reward_frame = "same"`). A data set that we wrote says which, and keeps in
`meta/plaudit.parquet` what the format has no place for.
"""

import hashlib
import io
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from PIL import Image, UnidentifiedImageError

from plaudit.data.formats import Dataset, ReadOptions, RewardFrame, Source
from plaudit.data.formats.images import choose
from plaudit.data.formats.lerobot.columns import candidates, chosen_columns, column_names, image_size, joined
from plaudit.data.formats.lerobot.episodes import Listing, Row, Video, list_episodes, task_names
from plaudit.data.formats.lerobot.files import read_json, read_table
from plaudit.data.formats.lerobot.layout import (
    ACTION,
    BOOKKEEPING,
    DONE,
    IMAGES,
    INTERVENTION,
    LABELS,
    PRIVILEGED,
    REWARD,
    SIDECAR,
    STATE,
    SUCCESS,
)
from plaudit.data.formats.video import FramesMissing, frame_times, read_frames
from plaudit.data.lfs import unreadable
from plaudit.errors import BadFile, DataError, InvalidEpisode
from plaudit.types import AnyArray, ByteArray, Episode, Labels, Origin


def detect(path: Path) -> bool:
    return (path / "meta/info.json").is_file()


def read(path: Path, options: ReadOptions) -> Dataset:
    folder = _Folder(path, options)
    rows = folder.listing.rows
    sources = [Source(r.index, str(r.data), partial(folder.digest, r), partial(folder.load, r)) for r in rows]
    facts = {
        "version": folder.version,
        "robot": folder.info.get("robot_type"),
        "fps": folder.fps,
        "episodes": len(rows),
        "frames": sum(r.length for r in rows),
        "tasks": sorted({task for r in rows for task in r.tasks}),
        "cameras": {c: "x".join(map(str, folder.sizes[key])) for c, key in folder.cameras.items()},
        "state": ", ".join(folder.state_keys) or "-",
        "action": ", ".join(folder.action_keys) or "-",
        "labels": [name for name in LABELS if name in folder.features],
    }
    return Dataset("lerobot", path, sources, facts, folder.ignored, folder.problems, folder.notes)


class _Folder:
    """One data set on disk."""

    def __init__(self, path: Path, options: ReadOptions):
        self.path, self.options = path, options
        info = path / "meta/info.json"
        self.info = read_json(info)
        try:
            self.version = str(self.info["codebase_version"])
            self.fps = float(self.info["fps"])
            self.features: dict[str, dict[str, Any]] = self.info["features"]
            images = {k: f for k, f in self.features.items() if f["dtype"] in ("video", "image")}
            sizes = {key: image_size(feature) for key, feature in images.items()}
        except (KeyError, TypeError, ValueError) as error:
            raise BadFile(info, f"this does not describe a LeRobot data set: it lacks {error}") from error
        if not self.version.startswith(("v2", "v3")):
            raise BadFile(info, f"LeRobot {self.version} is not read; v2.0, v2.1 and v3.0 are")
        self.sizes = {key: size for key, size in sizes.items() if size is not None}  # (height, width)
        known = {key.removeprefix(IMAGES): key for key in self.sizes}
        wanted = [camera.removeprefix(IMAGES) for camera in options.cameras]
        self.cameras = {camera: known[camera] for camera in choose(wanted, list(known), str(path))}

        self.problems: list[str] = []
        self.notes: list[str] = []
        self.state_keys = chosen_columns(self.features, STATE, options.state, info)
        self.action_keys = chosen_columns(self.features, ACTION, options.action, info)
        self._ask_for_columns(info)
        kept = {*self.state_keys, *self.action_keys, INTERVENTION, *LABELS, *BOOKKEEPING, *self.cameras.values()}
        self.ignored = [k for k in self.features if k not in kept and not k.startswith(PRIVILEGED)]

        self._video_keys = [key for key in self.cameras.values() if self.features[key]["dtype"] == "video"]
        self.listing = list_episodes(path, self.info, self.version, self._video_keys)
        self._look_for_videos(info, self.listing)
        self._table: tuple[Path, pa.Table] | None = None
        self._times: dict[Path, AnyArray] = {}  # when each frame of a video is shown
        self._read_by_number = False

    def _ask_for_columns(self, info: Path) -> None:
        """States and actions go by many names; which column is which is for the user to say."""
        missing = {
            role: name
            for role, name, keys, asked in (
                ("state", STATE, self.state_keys, self.options.state),
                ("action", ACTION, self.action_keys, self.options.action),
            )
            if not keys and not asked
        }
        free = candidates(self.features, {*self.state_keys, *self.action_keys})
        if missing and free:
            lacking = " and no ".join(f"'{name}'" for name in missing.values())
            flags = " and ".join(f"--{role} KEY" for role in missing)
            self.problems.append(
                f"{info}: this data set has no {lacking}; say with {flags} which columns to take (repeat the flag to "
                f"join several, or give 'none'), out of: {', '.join(free)}"
            )
        elif missing and not (self.path / SIDECAR).is_file():
            self.notes.append(f"this data set has no {' and no '.join(missing)}; its episodes come without")

    def _look_for_videos(self, info: Path, listing: Listing) -> None:
        """A camera that no episode has a video of is told once, with how to leave it out."""
        lost = [
            camera
            for camera, key in self.cameras.items()
            if key in self._video_keys
            and listing.rows
            and not any(key in row.videos and row.videos[key].path.is_file() for row in listing.rows)
        ]
        if lost:
            self.problems.append(
                f"{info}: no episode has a video of {_cameras(lost)}; copy the videos from the data set's source"
                f"{self._without(lost)}"
            )

    def _without(self, lost: Sequence[str]) -> str:
        others = [camera for camera in self.cameras if camera not in lost]
        return f", or take the other cameras: {' '.join(f'--camera {c}' for c in others)}" if others else ""

    @cached_property
    def _sidecar(self) -> dict[int, dict[str, Any]]:
        """What we wrote beside the format, by episode; {} for a data set of others."""
        path = self.path / SIDECAR
        return {entry["episode_index"]: entry for entry in read_table(path).to_pylist()} if path.is_file() else {}

    def _rows_of(self, row: Row) -> pa.Table:
        """The rows of one episode. Tables are kept while the next episode comes from the same file."""
        if self.problems:
            raise DataError(self.problems[0])
        if row.length == 0:
            raise BadFile(row.data, f"episode {row.index} has no rows; leave it out of meta/")
        if self._table is None or self._table[0] != row.data:
            self._table = (row.data, read_table(row.data))
        table = self._table[1]
        rows = self.listing.counts[row.data]
        if rows == row.length == table.num_rows or "episode_index" not in table.column_names:
            # A table of its own, or one whose rows do not say whose they are: then they must add up.
            if table.num_rows != rows:
                raise BadFile(row.data, f"this table has {table.num_rows} rows where meta/ says {rows}; copy it again")
            return table.slice(row.first, row.length)
        table = table.filter(pc.field("episode_index") == row.index)
        if table.num_rows != row.length:
            raise BadFile(
                row.data, f"episode {row.index} has {table.num_rows} rows where meta/ says {row.length}; copy it again"
            )
        return table

    def digest(self, row: Row) -> str:
        """Of what was recorded, not of its labels: a relabelled data set is the same data."""
        found = hashlib.blake2b(digest_size=16)
        table = self._rows_of(row)
        for values in (
            joined(table, self.state_keys, row.data),
            joined(table, self.action_keys, row.data),
            _column(table, "timestamp", "f4"),
        ):
            found.update(b"" if values is None else values.tobytes())
        for key in sorted(set(self.cameras.values()) & set(table.column_names)):
            for entry in table[key].to_pylist():
                found.update(_stored(entry) or str(entry["path"]).encode())
        for key, video in sorted(row.videos.items()):
            size = video.path.stat().st_size if video.path.is_file() else 0
            found.update(f"{key} {video.path.name} {size} {video.start:.6f}".encode())
        return found.hexdigest()

    def load(self, row: Row) -> tuple[Episode, Labels | None]:
        table = self._rows_of(row)
        extra = self._sidecar.get(row.index, {})
        final_state = extra.get("final_state") if self.state_keys == [STATE] else None
        try:
            episode = Episode.of(
                frames={c: self._frames(row, table, c, key, extra) for c, key in self.cameras.items()},
                state=_with_last(joined(table, self.state_keys, row.data), final_state),
                actions=joined(table, self.action_keys, row.data),
                control_mode=_column(table, INTERVENTION, np.uint8),
                privileged=self._privileged(table),
                task=self._task(row, table),
                fps=self.fps,
                robot=str(self.info.get("robot_type") or ""),
                terminated=extra.get("terminated", _terminated(table)),
                repeated=extra.get("repeated", "last"),
                origin=Origin("lerobot", str(self.path), row.index, self.digest(row)),
                meta=self._names(),
            )
        except InvalidEpisode as error:
            raise BadFile(row.data, f"episode {row.index}: {error}") from error
        return episode, self._labels(table, row, extra)

    def _task(self, row: Row, table: pa.Table) -> str:
        """By the list of episodes; else by the number in the first row; else what the user said."""
        numbers = _column(table, "task_index", np.int64)
        if row.tasks or numbers is None:
            return row.tasks[0] if row.tasks else self.options.task
        return self._task_names.get(int(numbers[0]), self.options.task)

    @cached_property
    def _task_names(self) -> Mapping[int, str]:
        return task_names(self.path)

    def _frames(self, row: Row, table: pa.Table, camera: str, key: str, extra: dict[str, Any]) -> ByteArray:
        height, width = self.sizes[key]
        if key in row.videos:
            frames = self._video_frames(row, table, row.videos[key], height, width)
        elif key in table.column_names:
            where = f"{row.data}, episode {row.index}"
            read_image = partial(_image, self.path, where, camera, height, width)
            frames = np.stack([read_image(entry) for entry in table[key].to_pylist()])
        else:
            raise BadFile(
                row.data,
                f"camera '{camera}' is named in meta/info.json and missing here; correct either"
                f"{self._without([camera])}",
            )
        last = extra.get(f"final/{camera}")
        last = frames[-1] if last is None else _image(self.path, SIDECAR, camera, height, width, {"bytes": last})
        return np.concatenate([frames, last[None]])

    def _video_frames(self, row: Row, table: pa.Table, video: Video, height: int, width: int) -> ByteArray:
        """A row's frame is the one shown at its timestamp; by number where the two clocks differ.

        Timestamps that begin late or follow the wall clock lead to a neighbour's frame, or beyond the end. A video of
        as many frames as rows leaves no doubt which belongs to which.
        """
        tolerance = 0.5 / self.fps
        times = _column(table, "timestamp", np.float64)
        steady = times is not None and bool((np.abs(times - np.arange(len(times)) / self.fps) <= tolerance).all())
        if not steady and (frames := self._frames_by_number(row, video, height, width)) is not None:
            return frames
        if times is None:
            raise BadFile(
                row.data,
                f"there is no 'timestamp' in this table, and {video.path} has not one frame a row; correct either",
            )
        try:
            return read_frames(video.path, video.start + times, tolerance, height, width)
        except FramesMissing as error:
            if not steady:
                raise BadFile(
                    video.path,
                    f"this video has {len(self._shown(video.path))} frames for {self.listing.counts[video.path]} rows, "
                    f"and the rows' timestamps ({times[0]:.3f} to {times[-1]:.3f} s) do not follow its clock; write "
                    "either again",
                ) from error
            if (frames := self._frames_by_number(row, video, height, width)) is not None:
                return frames
            raise

    def _frames_by_number(self, row: Row, video: Video, height: int, width: int) -> ByteArray | None:
        """None where the file does not have exactly one frame for each row of its episodes."""
        shown = self._shown(video.path)
        if len(shown) != self.listing.counts[video.path]:
            return None
        frames = read_frames(video.path, shown[video.first : video.first + row.length], 1e-6, height, width)
        if not self._read_by_number:
            self._read_by_number = True
            self.notes.append(
                f"timestamps do not follow the clock of the videos (first in episode {row.index}); where a video has "
                "one frame a row, its frames are taken by number"
            )
        return frames

    def _shown(self, path: Path) -> AnyArray:
        if path not in self._times:
            self._times[path] = frame_times(path)
        return self._times[path]

    def _privileged(self, table: pa.Table) -> dict[str, AnyArray]:
        names = [name for name in table.column_names if name.startswith(PRIVILEGED)]
        dtypes = {name: self.features[name]["dtype"] for name in names}
        return {n.removeprefix(PRIVILEGED): np.asarray(table[n].to_pylist(), dtypes[n]) for n in names}

    def _names(self) -> dict[str, Any]:
        """Joint names, where the data set has them, flat."""
        roles = (("state_names", self.state_keys), ("action_names", self.action_keys))
        found = {role: column_names(self.features, keys) for role, keys in roles}
        return {role: names for role, names in found.items() if names is not None}

    def _labels(self, table: pa.Table, row: Row, extra: dict[str, Any]) -> Labels | None:
        reward = _column(table, REWARD, np.float32)
        if reward is None or np.isnan(reward).all():
            return None
        source = extra.get("source", "dataset")
        if self._reward_frame == "same":
            last = extra.get("final_verdict")
            verdict = np.append(reward, reward[-1] if last is None else last)
            return Labels.from_frames(verdict, source=source)
        success = _success(table, reward)
        start = extra.get("start")
        return Labels(reward=reward, success=success, start=np.nan if start is None else start, source=source)

    @cached_property
    def _reward_frame(self) -> RewardFrame:
        if self.options.reward_frame is not None:
            return self.options.reward_frame
        said = {entry["reward_frame"] for entry in self._sidecar.values()}
        return "same" if said == {"same"} else "next"


def _success(table: pa.Table, reward: AnyArray) -> AnyArray:
    """`next.success`, or a sparse reward of 0 and 1, which says the same; a dense reward says nothing of it."""
    said = _column(table, SUCCESS, np.bool_)
    if said is not None:
        return said
    sparse = np.isin(reward[~np.isnan(reward)], (0, 1)).all()
    return (reward == 1) & sparse


def _terminated(table: pa.Table) -> bool:
    """`next.done` also marks a time limit; only an end in success is taken as the task's own."""
    done, reward = _column(table, DONE, np.bool_), _column(table, REWARD, np.float32)
    return bool(done is not None and reward is not None and done[-1] and _success(table, reward)[-1])


def _with_last(rows: AnyArray, last: list[float] | None) -> AnyArray:
    return np.concatenate([rows, rows[-1:] if last is None else np.asarray([last], rows.dtype)])


def _column(table: pa.Table, name: str, dtype: Any) -> AnyArray | None:
    if name not in table.column_names:
        return None
    return np.asarray(table[name].to_pylist(), dtype=dtype).reshape(table.num_rows)


def _cameras(names: Sequence[str]) -> str:
    return ("camera " if len(names) == 1 else "cameras ") + ", ".join(f"'{name}'" for name in names)


def _stored(entry: Any) -> bytes | None:
    """The bytes of an image that stands in the table itself, bare or beside its path."""
    return entry if isinstance(entry, bytes) else entry["bytes"]


def _image(root: Path, where: str | Path, camera: str, height: int, width: int, entry: Any) -> ByteArray:
    try:
        data = _stored(entry)
        data = (root / entry["path"]).read_bytes() if data is None else data
        image = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    except UnidentifiedImageError as error:
        lies = root / entry["path"] if isinstance(entry, dict) and entry["bytes"] is None else Path(where)
        raise unreadable(lies, f"an image of camera '{camera}' cannot be read ({error})") from error
    except (OSError, KeyError, TypeError) as error:
        raise BadFile(where, f"an image of camera '{camera}' cannot be read ({error})") from error
    if image.shape != (height, width, 3):
        raise BadFile(
            where,
            f"camera '{camera}' has {image.shape[0]}x{image.shape[1]} frames, not {height}x{width}; correct either",
        )
    return image
