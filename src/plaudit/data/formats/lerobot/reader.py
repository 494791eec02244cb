"""LeRobot data sets, v2.0, v2.1 and v3.0, read from their parquet, JSON and video files.

Not through the lerobot package, whose loader may download over a local folder. A row holds an observation, the action
taken on it and what the action led to (`next.reward`); the last observation is not recorded, so T rows become T steps
with `padded="last"`. By its name `next.reward` judges the next frame (the default); data sets labeled by hand often
mean the row's own (`reward_frame = "same"`). A data set that we wrote says which, in `meta/plaudit.parquet`.
"""

import hashlib
from collections.abc import Mapping, Sequence
from functools import cache, cached_property, partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from plaudit.data.formats import base
from plaudit.data.formats.base import FREE, GB, MAX_TEXT, Dataset, ReadOptions, RewardFrame, Source, check_decoded_size
from plaudit.data.formats.images import MAX_IMAGE, BadImage, choose, decode_image
from plaudit.data.formats.lerobot import meta, tables
from plaudit.data.formats.lerobot.features import (
    ACTION,
    BOOKKEEPING,
    DONE,
    IMAGES,
    INSTRUCTION,
    INTERVENTION,
    LABELS,
    PLAUDIT_META,
    PRIVILEGED,
    REWARD,
    STATE,
    SUCCESS,
)
from plaudit.data.formats.video import FramesMissing, announced_frames, codec_name, coded_frames, read_frames
from plaudit.errors import BadFile, DataError, InvalidEpisode
from plaudit.files import Root, brief, unreadable
from plaudit.types import AnyArray, ByteArray, Episode, Labels, Origin


class Videos:
    """The videos of one data set."""

    def __init__(self, root: Root, fps: float, counts: Mapping[Path, int], max_bytes: float, notes: dict[str, str]):
        """
        counts: how many rows of the data set each file belongs to
        max_bytes: what an episode may take in memory
        notes: filled in where the videos leave something open, the first time for each kind
        """
        self._root, self._fps, self._counts, self._max_bytes, self._notes = root, fps, counts, max_bytes, notes
        self._coded = cache(partial(coded_frames, root))

    def frames(self, row: meta.Row, video: meta.Video, times: AnyArray | None, height: int, width: int) -> ByteArray:
        """The frames of an episode, one for each row, and a last one that is left for the caller to fill.

        A row's frame is the one shown at its timestamp; by number where the two clocks differ and the video has as many
        frames as rows. times: the rows' timestamps
        """
        nbytes, rows = row.length * height * width * 3, self._counts[video.path]
        if nbytes > FREE:  # a file may be large because it was padded: padding holds no frames
            coded, what = self._coded(video.path)[1], f"episode {row.index}"
            check_decoded_size(nbytes, coded, video.path, what, self._max_bytes, source="bytes of coded frames")
        if "surplus" not in self._notes and (count := announced_frames(self._root, video.path)) > rows:
            self._notes["surplus"] = (
                f"some videos have more frames than rows (first {video.path.name}, episode {row.index}: {count:,} for "
                f"{rows:,}) and may belong to another episode; frames are taken by timestamp, look at some of them"
            )
        tolerance = 0.5 / self._fps
        steady = times is not None and bool((np.abs(times - np.arange(len(times)) / self._fps) <= tolerance).all())
        if not steady and (frames := self._by_number(row, video, height, width)) is not None:
            return frames
        if times is None:
            problem = f"there is no 'timestamp' in this table, and {video.path} has not one frame a row"
            raise BadFile(row.data, f"{problem}; correct one of them")
        try:
            return read_frames(self._root, video.path, video.start + times, tolerance, height, width, spare=1)
        except FramesMissing as error:
            if not steady:
                span = f"the rows' timestamps ({times[0]:.3f} to {times[-1]:.3f} s) do not follow its clock"
                problem = f"this video has {len(self._coded(video.path)[0])} frames for {rows} rows, and {span}"
                raise BadFile(video.path, f"{problem}; write one of them again") from error
            if (frames := self._by_number(row, video, height, width)) is not None:
                return frames
            raise

    def _by_number(self, row: meta.Row, video: meta.Video, height: int, width: int) -> ByteArray | None:
        """None where neither the file nor the episode's part of it has exactly one frame for each row."""
        times, _ = self._coded(video.path)
        if len(times) == self._counts[video.path]:
            times = times[video.first : video.first + row.length]
        elif video.end is None:
            return None
        else:
            half = 0.5 / self._fps
            times = times[(times >= video.start - half) & (times < video.end - half)]
        if len(times) != row.length:
            return None
        frames = read_frames(self._root, video.path, times, 1e-6, height, width, spare=1)
        self._notes.setdefault(
            "by number",
            f"timestamps do not follow the clock of the videos (first in episode {row.index}); where a video has "
            "one frame a row, its frames are taken by number",
        )
        return frames


def detect(path: Path) -> bool:
    return (path / "meta/info.json").is_file()


def read(root: Root, options: ReadOptions) -> Dataset:
    folder = _Folder(root, options)
    rows = folder.listing.rows
    sources = [
        Source(
            r.index,
            str(r.data),
            partial(folder.digest, r),
            partial(folder.load, r),
            partial(folder.nbytes, r),
            r.length,
            lambda row=r: {key: codec_name(root, video.path) for key, video in row.videos.items()},
            partial(folder.has_labels, r),
        )
        for r in rows
    ]
    metadata = {
        "version": folder.info.version,
        "robot": folder.info.robot or None,
        "fps": folder.info.fps,
        "episodes": len(rows),
        "frames": sum(r.length for r in rows),
        "tasks": sorted({task for r in rows for task in r.tasks}),
        "cameras": {c: "x".join(map(str, folder.sizes[key])) for c, key in folder.cameras.items()},
        "state": ", ".join(folder.state_keys) or "-",
        "action": ", ".join(folder.action_keys) or "-",
        "labels": [name for name in LABELS if name in folder.features],
    }
    sizes = {camera: folder.sizes[key] for camera, key in folder.cameras.items()}
    notes = folder.notes.values()
    return Dataset("lerobot", root.path, sources, metadata, folder.ignored, folder.problems, notes, sizes)


class _Folder:
    """One data set on disk."""

    def __init__(self, root: Root, options: ReadOptions):
        self.root, self.path, self.options = root, root.path, options
        info = root.path / "meta/info.json"
        self.info = meta.read_info(root)
        self.fps, self.features, self.sizes = self.info.fps, self.info.features, self.info.sizes
        available = {key.removeprefix(IMAGES): key for key in self.sizes}
        wanted = [camera.removeprefix(IMAGES) for camera in options.cameras]
        self.cameras = {camera: available[camera] for camera in choose(wanted, list(available), str(root.path))}

        self.problems: list[str] = []
        self.notes: dict[str, str] = {}  # by kind: each is reported once
        self.state_keys = tables.chosen_columns(self.features, STATE, options.state, info)
        self.action_keys = tables.chosen_columns(self.features, ACTION, options.action, info)
        self._ask_for_columns(info)
        self._tell_of_shapes(info)
        self._kept = {
            *self.state_keys,
            *self.action_keys,
            *self.cameras.values(),
            INTERVENTION,
            INSTRUCTION,
            *LABELS,
            *BOOKKEEPING,
        }
        self.ignored = [name for name in self.features if not self._is_kept(name)]

        self._video_keys = [key for key in self.cameras.values() if self.features[key]["dtype"] == "video"]
        self.listing = meta.list_episodes(root, self.info, self._video_keys, self.notes)
        self._look_for_videos(info)
        self._table: tuple[Path, pa.Table] | None = None
        self._videos = Videos(root, self.fps, self.listing.counts, options.max_episode_gb * GB, self.notes)

    def _ask_for_columns(self, info: Path) -> None:
        """States and actions go by many names; which column is which is for the user to say."""
        roles = {"state": (STATE, self.state_keys), "action": (ACTION, self.action_keys)}
        asked = {"state": self.options.state, "action": self.options.action}
        missing = {role: name for role, (name, keys) in roles.items() if not keys and not asked[role]}
        free = tables.candidates(self.features, {*self.state_keys, *self.action_keys})
        if missing and free:
            self.problems.append(base.which_columns(info, missing, free))
        elif missing and not (self.path / PLAUDIT_META).is_file():
            self.notes["columns"] = f"this data set has no {' and no '.join(missing)}; its episodes come without"

    def _tell_of_shapes(self, info: Path) -> None:
        """A camera that is no color image is not imported: a depth camera with a note, any other with an error."""
        for key, feature in self.features.items():
            camera, shape = key.removeprefix(IMAGES), feature["shape"]
            if feature["dtype"] not in ("video", "image") or key in self.sizes or self.options.cameras:
                continue
            what = f"camera '{camera}' has the shape {shape}, and a color image has [height, width, 3]"
            if tables.is_depth(feature):
                what = what if 3 not in shape else f"camera '{camera}' holds depth"
                self.notes[f"shape {key}"] = f"{what}; it is not imported (name the cameras with --camera)"
            else:
                self.problems.append(f"{info}: {what}; correct 'shape' of '{key}'{self._without([camera])}")

    def _look_for_videos(self, info: Path) -> None:
        """One message for a camera without any video, with the option that excludes it."""
        rows = [row for row in self.listing.rows if not row.problem]
        lost = [
            camera
            for camera, key in self.cameras.items()
            if key in self._video_keys
            and rows
            and not any(key in row.videos and self.root.is_file(row.videos[key].path) for row in rows)
        ]
        if lost:
            names = ("camera " if len(lost) == 1 else "cameras ") + ", ".join(f"'{name}'" for name in lost)
            self.problems.append(
                f"{info}: no episode has a video of {names}; copy the videos from the data set's source"
                f"{self._without(lost)}"
            )

    def _without(self, lost: Sequence[str]) -> str:
        others = [camera for camera in self.cameras if camera not in lost]
        return f", or take the other cameras: {' '.join(f'--camera {c}' for c in others)}" if others else ""

    @cached_property
    def _sidecar(self) -> Mapping[int, meta.PlauditMeta]:
        """What we wrote in addition to the format, by episode; {} for a data set of others."""
        return meta.read_plaudit_meta(self.root)

    def nbytes(self, row: meta.Row) -> int:
        """What reading it takes in memory, with a copy to spare; refused where that cannot be a recording."""
        if row.problem:
            raise BadFile(row.data, row.problem)
        frame = sum(height * width * 3 for height, width in (self.sizes[key] for key in self.cameras.values()))
        paths = {row.data, *(video.path for video in row.videos.values())}
        on_disk = sum(self.root.size(path) for path in paths)
        nbytes = (row.length + 1) * frame
        check_decoded_size(nbytes, on_disk, row.data, f"episode {row.index}", self.options.max_episode_gb * GB)
        return 2 * nbytes + 4 * self.root.size(row.data)

    def _rows_of(self, row: meta.Row) -> pa.Table:
        """The rows of one episode. Tables are kept while the next episode comes from the same file."""
        if self.problems:
            raise DataError(self.problems[0])
        self.nbytes(row)
        if row.length == 0:
            raise BadFile(row.data, f"episode {row.index} has no rows; leave it out of meta/")
        if self._table is None or self._table[0] != row.data:
            self._table = None  # which may be large: before the next is read, not after
            self._table = (row.data, tables.read_table(self.root, row.data, self._is_kept))
        table = self._table[1]
        owner = tables.column(table, "episode_index", row.data, np.int64)
        place = meta.rows_in_table(row, owner, table.num_rows, self.listing.counts[row.data])
        return table.slice(place.start, row.length)

    def _is_kept(self, name: str) -> bool:
        return name in self._kept or name.startswith(PRIVILEGED)

    def digest(self, row: meta.Row) -> str:
        """Digest of the recorded data without labels, so a relabeled data set has the same digest."""
        digest, table = hashlib.blake2b(digest_size=16), self._rows_of(row)
        for keys in (self.state_keys, self.action_keys):
            digest.update(tables.concat_columns(table, keys, row.data).tobytes())
        times = tables.column(table, "timestamp", row.data, "f4")
        digest.update(b"" if times is None else times.tobytes())
        for key in sorted(set(self.cameras.values()) & set(table.column_names)):
            for entry in tables.stored_images(table, key, row.data):
                digest.update(entry if isinstance(entry, bytes) else entry.encode())
        for key, video in sorted(row.videos.items()):
            size = self.root.size(video.path)
            digest.update(f"{key} {video.path.name} {size} {video.start:.6f}".encode())
        return digest.hexdigest()

    def load(self, row: meta.Row) -> tuple[Episode, Labels | None]:
        table = self._rows_of(row)
        extra = self._sidecar.get(row.index, meta.NO_META)
        state = tables.concat_columns(table, self.state_keys, row.data)
        has_last = self.state_keys == [STATE] and extra.final_state is not None
        last_state = np.asarray([extra.final_state], state.dtype) if has_last else state[-1:]
        mode = tables.column(table, INTERVENTION, row.data, np.int64)
        names = {"state_names": self.state_keys, "action_names": self.action_keys}
        named = {role: tables.column_names(self.features, keys) for role, keys in names.items()}
        reward, success = self._reward_and_success(table, row.data)
        done, terminated = tables.column(table, DONE, row.data, np.bool_), extra.terminated
        if terminated is None:  # `next.done` also marks a time limit; only an end in success is the task's own
            ended = done is not None and bool(done[-1])
            terminated = ended and reward is not None and success is not None and bool(success[-1])
        try:
            episode = Episode.of(
                frames={c: self._frames(row, table, c, key, extra) for c, key in self.cameras.items()},
                state=np.concatenate([state, last_state]),
                actions=tables.concat_columns(table, self.action_keys, row.data),
                control_mode=None if mode is None else np.clip(mode, 0, 255).astype(np.uint8),
                privileged=self._privileged(table, row.data),
                task=self._task(row, table),
                fps=self.fps,
                robot=self.info.robot,
                terminated=terminated,
                padded=extra.padded,
                origin=Origin("lerobot", str(self.path), row.index, self.digest(row)),
                meta={role: values for role, values in named.items() if values is not None},
            )
        except InvalidEpisode as error:
            raise BadFile(row.data, f"episode {row.index}: {error}") from error
        if reward is None or success is None or np.isnan(reward).all():
            return episode, None
        if self._reward_frame == "same":
            targets = np.append(reward, reward[-1] if extra.final_success is None else extra.final_success)
        else:
            start = np.nan if extra.start is None else extra.start
            targets = np.append(start, np.where(np.isnan(reward), np.nan, success))
        return episode, Labels.from_targets(targets, extra.source)

    def _reward_and_success(self, table: pa.Table, where: Path) -> tuple[AnyArray | None, AnyArray | None]:
        """`next.reward`; and `next.success`, or success by a sparse reward of 0 and 1: a dense one is not used."""
        reward = tables.column(table, REWARD, where, np.float32)
        success = tables.column(table, SUCCESS, where, np.bool_)
        if reward is not None and success is None:
            success = (reward == 1) & base.is_sparse(reward)
        return reward, success

    def _task(self, row: meta.Row, table: pa.Table) -> str:
        """By the list of episodes; else by the number or the instruction in the first row; else what the user said."""
        if row.tasks and row.tasks[0]:
            return row.tasks[0]
        indices = tables.column(table, "task_index", row.data, np.int64)
        task = "" if indices is None else self._task_names.get(int(indices[0]), "")
        if not task and INSTRUCTION in table.column_names:
            text = table[INSTRUCTION][0].as_py()
            task = text[:MAX_TEXT] if isinstance(text, str) else ""
        return task or self.options.task

    @cached_property
    def _task_names(self) -> Mapping[int | None, str]:
        return meta.task_names(self.root)

    def _frames(self, row: meta.Row, table: pa.Table, camera: str, key: str, extra: meta.PlauditMeta) -> ByteArray:
        height, width = self.sizes[key]
        if key in row.videos:
            times = tables.column(table, "timestamp", row.data, np.float64)
            frames = self._videos.frames(row, row.videos[key], times, height, width)
        elif key in table.column_names:
            times = tables.column(table, "timestamp", row.data, np.float64)
            if times is not None and not (np.isfinite(times).all() and (np.diff(times) >= 0).all()):
                self.notes.setdefault(
                    "times",
                    f"timestamps are NaN or go back (first in episode {row.index}); images are taken row by row",
                )
            frames = np.empty((row.length + 1, height, width, 3), np.uint8)
            where, seen = f"{row.data}, episode {row.index}", 0
            for seen, entry in enumerate(tables.stored_images(table, key, row.data), start=1):
                frames[seen - 1] = self._image(where, camera, height, width, entry)
            if seen != row.length:
                raise BadFile(where, f"camera '{camera}' has {seen} images for {row.length} rows; copy it again")
        else:
            raise BadFile(
                row.data,
                f"camera '{camera}' is listed in meta/info.json but missing here; correct one of them"
                f"{self._without([camera])}",
            )
        last = extra.images.get(camera)
        frames[-1] = frames[-2] if last is None else self._image(PLAUDIT_META, camera, height, width, last)
        return frames

    def _image(self, where: str | Path, camera: str, height: int, width: int, entry: bytes | str) -> ByteArray:
        """Of its bytes, or of the file that holds them."""
        try:
            if isinstance(entry, bytes):
                return decode_image(entry, camera, height, width)
            path = self.root.inside(entry)
            return decode_image(self.root.read(path, MAX_IMAGE), camera, height, width)
        except FileNotFoundError:
            raise BadFile(where, f"an image of camera '{camera}' cannot be read: there is no {brief(entry)}") from None
        except BadImage as error:
            if isinstance(entry, bytes):
                raise BadFile(where, str(error)) from error
            raise unreadable(self.path / entry, str(error)) from error

    def _privileged(self, table: pa.Table, where: Path) -> dict[str, AnyArray]:
        values: dict[str, AnyArray] = {}
        for name in table.column_names:
            if name.startswith(PRIVILEGED):
                dtype = self.features[name]["dtype"] if name in self.features else None
                if dtype not in tables.NUMBERS:
                    raise BadFile(where, f"'{name}' has a non-numeric dtype in meta/info.json; correct it")
                values[name.removeprefix(PRIVILEGED)] = tables.numbers(table, name, where, dtype)
        reward = tables.column(table, REWARD, where, np.float32)
        if reward is not None and not base.is_sparse(reward):
            values.setdefault("reward", np.nan_to_num(reward))  # a dense one says more than success does
        return values

    def has_labels(self, row: meta.Row) -> bool:
        """Whether the table has labels for the episode."""
        reward = tables.column(self._rows_of(row), REWARD, row.data, np.float32)
        return reward is not None and not np.isnan(reward).all()

    @cached_property
    def _reward_frame(self) -> RewardFrame:
        if self.options.reward_frame is not None:
            return self.options.reward_frame
        declared = {extra.reward_frame for extra in self._sidecar.values()}
        return "same" if declared == {"same"} else "next"
