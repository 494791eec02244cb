"""Episodes as arrays with names, and the choice of those that make up an episode: HDF5, Zarr, RLDS and bags share it.

These formats prescribe no names. A `Recording` lists the columns of one episode; `ColumnMap` chooses the cameras, the
state, the action and the success among them, by the names that published data sets use, or by the user's flags. Where
neither decides, the import stops and lists the columns. A row is an observation, the action taken on it and what that
led to, so T rows become T steps with the last observation repeated, as in LeRobot. A format that has the observation
after the last action gives T+1 rows of it.
"""

import hashlib
import io
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from plaudit.data.formats import base
from plaudit.data.formats.images import FORMATS, BadImage, check_names_differ, choose, decode_image, to_frames
from plaudit.errors import BadFile, InvalidEpisode, did_you_mean, import_extra
from plaudit.files import Root, readable
from plaudit.types import AnyArray, ByteArray, Episode, Labels, Origin

NONE, NEXT = "none", "next"  # given in place of a column: leave it out; the state that follows
MIN_IMAGE_EDGE = 16  # pixels: smaller arrays of floats are poses, for example
MAX_COLUMNS = 10_000  # of one episode
MAX_TRIES = 100  # episodes that are opened until one can be read

# The last part of a column's name, for one or several robots (robot0_eef_pos). The first row whose names are all there
# is taken: robomimic's low-dimensional observations, UMI's, LIBERO's.
STATES = (
    ("state",),
    ("qpos",),
    ("proprio",),
    ("eef_pos", "eef_quat", "gripper_qpos"),
    ("eef_pos", "eef_rot_axis_angle", "gripper_width"),
    ("gripper_states", "joint_states"),
    ("joint_states",),
)
UMI = STATES[4]  # it has no actions: the pose that follows is the command
ACTIONS = (("action",), ("actions",))
REWARDS = (("reward",), ("rewards",))
SUCCESSES = (("success",), ("is_success",), *REWARDS)
TASKS = (("language_instruction",), ("task",), ("instruction",))
_UNSPECIFIC = {"rgb", "color", "image", "images", "image_raw", "image_rect_color", "image_color", "compressed", "data"}
_GROUPS = {"obs", "observation", "observations"}  # of all cameras: their names name none
_MAGIC = (b"\xff\xd8\xff", b"\x89PNG\r\n", b"RIFF", b"BM")  # of FORMATS


@dataclass(frozen=True)
class Column:
    """An array of an episode, before it is read."""

    rows: int
    shape: tuple[int, ...]  # of one row; of encoded images when they are decoded
    dtype: str  # of numpy, or TEXT
    stored: int  # bytes on disk
    encoded: bool = False  # its rows are PNG, JPEG, WEBP or BMP files

    @property
    def is_image(self) -> bool:
        """Whether its rows are color images."""
        if len(self.shape) != 3 or 3 not in (self.shape[0], self.shape[2]) or self.dtype[0] not in "uf":
            return False
        return self.encoded or self.dtype == "uint8" or sorted(self.shape)[1] >= MIN_IMAGE_EDGE

    @property
    def is_depth(self) -> bool:
        """Whether its rows are images without color."""
        edges = [edge for edge in self.shape if edge != 1]
        return len(edges) == 2 and min(edges) >= MIN_IMAGE_EDGE

    @property
    def is_numbers(self) -> bool:
        return self.dtype[0] in "biuf" and len(self.shape) <= 2 and not self.is_image and not self.is_depth

    @property
    def width(self) -> int:
        """Numbers in a row."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        """Memory that it takes when it is read."""
        return 0 if self.dtype == base.TEXT else self.rows * self.width * np.dtype(self.dtype).itemsize

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of an image."""
        height, width = self.shape[:2] if self.shape[2] == 3 else self.shape[1:]
        return height, width


@dataclass(frozen=True)
class Content:
    """One episode, opened."""

    columns: Mapping[str, Column]
    # The rows from one number up to another; of encoded images a list of bytes, of text a list of str.
    read: Callable[[str, int, int], Any]
    task: str = ""
    fps: float = 0.0
    robot: str = ""
    terminated: bool | None = None  # None: where the last row is a success
    meta: Mapping[str, Any] = field(default_factory=dict)
    labeled: bool = False  # its reward tells success from failure, also where it is 0 everywhere
    ignored: Sequence[str] = ()  # what it has and an episode has no place for
    problem: str = ""  # what has to be settled before it can be read
    # Chosen columns -> the episode with these in step, of a format whose columns have rates of their own.
    align: Callable[[Sequence[str]], "Content"] | None = None


@dataclass(frozen=True)
class Recording:
    """One episode of a data set, not opened yet."""

    where: str
    open: Callable[[], Content]
    steps: int = 0  # 0 where only opening it tells


@dataclass(frozen=True)
class ColumnLayout:
    """A format that is read as columns. Its package is imported in the process that decodes files, nowhere else."""

    format: base.FormatName
    imports: str  # modules of its package, separated by spaces
    extra: str
    find: Callable[[Path], list[Path]]  # the files that a path of the user stands for; [] where it is another format
    recordings: Callable[[Root, Sequence[Path], base.ReadOptions], list[Recording]]

    @property
    def package(self) -> str:
        return re.split(r"[. ]", self.imports)[0]

    def read(self, path: Path, options: base.ReadOptions) -> base.Dataset:
        """List the episodes of a file or folder, and choose their columns by the first that can be read."""
        import_extra(self.package, self.extra)
        root = Root.of_named_file(path) if path.is_file() else Root(path, options.follow_links)
        recordings = self.recordings(root, self.find(path), options)
        columns = self._choose(recordings, options, path)
        reader = _Reader(self, columns, options, str(path))
        if not (options.success or columns.problems) and (_stem(columns.success),) in REWARDS:
            reader.check_rewards(recordings)
        sources = [reader.source(index, recording) for index, recording in enumerate(recordings)]
        return base.Dataset(
            self.format,
            path,
            sources,
            metadata={"episodes": len(sources), **columns.describe()},
            ignored=columns.ignored,
            problems=columns.problems,
            notes=columns.notes,
            sizes=columns.sizes,
            cameras_chosen=True,
        )

    def _choose(self, recordings: Sequence[Recording], options: base.ReadOptions, path: Path) -> "ColumnMap":
        content = None
        for recording in recordings[:MAX_TRIES]:
            with suppress(BadFile), readable(Path(recording.where), "{}"):
                content = recording.open()
                if content.columns:
                    break
        return ColumnMap.choose(content, options, path) if content else ColumnMap()  # loading each tells why


@dataclass
class ColumnMap:
    """Which columns become what; see `choose`."""

    cameras: dict[str, str] = field(default_factory=dict)  # name in an episode -> column
    state: list[str] = field(default_factory=list)
    action: list[str] = field(default_factory=list)
    next_state: bool = False  # the action is the state that follows
    success: str = ""
    task: str = ""
    sizes: dict[str, tuple[int, int]] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @classmethod
    def choose(cls, content: Content, options: base.ReadOptions, path: Path) -> "ColumnMap":
        """By the user's flags, else by the usual names."""
        chosen, columns = cls(problems=[content.problem] if content.problem else []), content.columns
        numbers = [name for name, column in columns.items() if column.is_numbers]
        chosen.success = _one(options.success, numbers, SUCCESSES, path)
        chosen.task = _one("", [name for name, column in columns.items() if column.dtype == base.TEXT], TASKS, path)
        numbers = [name for name in numbers if name != chosen.success]
        chosen._choose_cameras(columns, options, path)
        chosen.state = _several(options.state, numbers, STATES, path)
        if list(options.action) == [NEXT]:
            chosen.next_state = True
        else:
            chosen.action = _several(options.action, numbers, ACTIONS, path)
            names = {_stem(name) for name in chosen.state}
            if not (options.action or chosen.action) and names == set(UMI):
                chosen.next_state = True
                chosen.notes.append("this data set has no actions; the action is the pose that follows (--action next)")
        chosen._ask(columns, numbers, options, path)
        used = {*chosen.names, chosen.task}
        chosen.ignored = [name for name in columns if name not in used] + list(content.ignored)
        return chosen

    @property
    def names(self) -> list[str]:
        """The columns of numbers and images that an episode is made of."""
        names = [*self.state, *self.action, *self.cameras.values(), *([self.success] if self.success else [])]
        return list(dict.fromkeys(names))

    def describe(self) -> dict[str, str]:
        """What was chosen, for `plaudit data info`."""
        action = ["the state that follows"] if self.next_state else self.action
        roles = {"state": self.state, "action": action, "success": [self.success] if self.success else []}
        cameras = [f"{key} -> {name}" if key != name else name for name, key in self.cameras.items()]
        return {role: ", ".join(names) for role, names in {**roles, "cameras": cameras}.items() if names}

    def _choose_cameras(self, columns: Mapping[str, Column], options: base.ReadOptions, path: Path) -> None:
        keys = [name for name, column in columns.items() if column.is_image]
        short = [camera_name(key) for key in keys]
        names = {
            key: name if short.count(name) == 1 else key.strip("/").replace("/", "_") for key, name in zip(keys, short)
        }
        by_name = {name: key for key, name in names.items()}
        asked = [names.get(camera, camera) for camera in options.cameras]
        for name, given in zip(choose(asked, list(by_name), str(path)), options.cameras or by_name, strict=True):
            self.cameras[options.rename.get(given, name)] = by_name[name]
        check_names_differ([options.rename.get(given, name) for name, given in zip(asked, options.cameras)])
        self.sizes = {name: columns[key].size for name, key in self.cameras.items()}
        depth = [name for name, column in columns.items() if column.is_depth]
        if depth:
            self.notes.append(f"images without color are not imported: {', '.join(depth)}")

    def _ask(
        self, columns: Mapping[str, Column], numbers: Sequence[str], options: base.ReadOptions, path: Path
    ) -> None:
        """States and actions go by many names; which column is which is for the user to say."""
        taken = {"state": bool(self.state), "action": bool(self.action) or self.next_state}
        missing = {role: role for role in taken if not taken[role] and not getattr(options, role)}
        free = [f"{name} [{columns[name].width}]" for name in numbers if name not in (*self.state, *self.action)]
        if missing and free:
            self.problems.append(base.which_columns(path, missing, free))
        elif missing:
            self.notes.append(f"this data set has no {' and no '.join(missing)}; its episodes come without")
        if self.next_state and not self.state:
            self.problems.append(f"{path}: --action next needs a state; choose its columns with --state KEY")
        if not self.cameras and not self.state:
            self.problems.append(f"{path}: no column is a camera or a state; it has: {', '.join(columns) or 'nothing'}")


def camera_name(key: str) -> str:
    """A short name for a column of images.

    >>> [camera_name(key) for key in ("obs/agentview_image", "/wrist/image_raw/compressed", "observation/top/rgb")]
    ['agentview', 'wrist', 'top']
    """
    parts = [part for part in re.split(r"[/.]", key) if part]
    while len(parts) > 1 and parts[-1] in _UNSPECIFIC and parts[-2] not in _GROUPS:
        parts.pop()
    return re.sub(r"_(image|images|rgb|color)$", "", parts[-1])


def _stem(name: str) -> str:
    """The last part of a name, without the number of a robot."""
    return re.sub(r"^robot\d+_", "", re.split(r"[/.]", name)[-1])


def _usual(names: Sequence[str], presets: Sequence[tuple[str, ...]]) -> list[str]:
    """The names that the first complete preset asks for."""
    stems = {name: _stem(name) for name in names}
    for preset in presets:
        if set(preset) <= set(stems.values()):
            return [name for name in names if stems[name] in preset]
    return []


def _several(asked: Sequence[str], names: Sequence[str], presets: Sequence[tuple[str, ...]], path: Path) -> list[str]:
    """The columns that were asked for, or the usual ones where they are unambiguous."""
    if list(asked) == [NONE]:
        return []
    for name in asked:
        if name not in names:
            raise BadFile(path, f"'{name}' is not a column of numbers here; {did_you_mean(name, names)}")
    if asked:
        return list(asked)
    usual = _usual(names, presets)
    stems = [re.split(r"[/.]", name)[-1] for name in usual]
    return usual if len(set(stems)) == len(stems) else []


def _one(asked: str, names: Sequence[str], presets: Sequence[tuple[str, ...]], path: Path) -> str:
    return next(iter(_several([asked] if asked else [], names, presets, path)), "")


class _Reader:
    """Reads the recordings of one data set by a column map."""

    def __init__(self, layout: ColumnLayout, chosen: ColumnMap, options: base.ReadOptions, path: str):
        self._layout, self._map, self._options, self._path = layout, chosen, options, path
        self._last: tuple[int, Content] | None = None

    def source(self, index: int, recording: Recording) -> base.Source:
        return base.Source(
            index,
            recording.where,
            partial(self._digest, index, recording),
            partial(self._load, index, recording),
            partial(self._nbytes, index, recording),
            steps=recording.steps,
            has_labels=partial(self._has_labels, index, recording),
        )

    def check_rewards(self, recordings: Sequence[Recording]) -> None:
        """Leave out a reward that is 0 everywhere: data sets without rewards have zeros in their place."""
        reward, zeros = self._map.success, 0
        for index, recording in enumerate(recordings[:MAX_TRIES]):
            with suppress(BadFile), readable(Path(recording.where), "{}"):
                self._nbytes(index, recording)
                content = self._open(index, recording)
                if content.labeled or self._numbers(content, [reward], recording.where).any():
                    return
                zeros += 1
        if zeros:
            self._map.success = ""
            self._map.ignored.append(reward)
            seen = f"all of the first {zeros} episodes" if zeros < len(recordings) else "all episodes"
            self._map.notes.append(
                f"'{reward}' is 0 in {seen} and was left out; if these are failures, give --success {reward}"
            )

    def _open(self, index: int, recording: Recording) -> Content:
        """The content of a recording with the chosen columns in step; the last one stays open."""
        if self._last is None or self._last[0] != index:
            self._last = None  # before the next is opened, which may be large
            with readable(Path(recording.where), base.UNREADABLE):
                content = recording.open()
                missing = [name for name in self._map.names if name not in content.columns]
                if missing:
                    have = ", ".join(content.columns) or "nothing"
                    raise BadFile(
                        recording.where, f"this episode has no '{missing[0]}', others do; it has: {have[:500]}"
                    )
                self._last = (index, content if content.align is None else content.align(self._map.names))
        return self._last[1]

    def _nbytes(self, index: int, recording: Recording) -> int:
        content = self._open(index, recording)
        columns = [content.columns[name] for name in self._map.names]
        nbytes, stored = sum(column.nbytes for column in columns), sum(column.stored for column in columns)
        most = self._options.max_episode_gb * base.GB
        base.check_decoded_size(nbytes, stored, Path(recording.where), f"episode {index}", most)
        return 3 * nbytes + 2 * stored  # as stored, as an array, with the last row repeated

    def _numbers(self, content: Content, names: Sequence[str], where: str) -> AnyArray:
        """[rows, D] of columns side by side."""
        rows = {name: content.columns[name].rows for name in names}
        if len(set(rows.values())) > 1:
            raise BadFile(where, f"{_lengths(rows)}; write them again")
        parts = [np.asarray(content.read(name, 0, rows[name]), np.float32).reshape(rows[name], -1) for name in names]
        return np.concatenate(parts, axis=1)

    def _digest(self, index: int, recording: Recording) -> str:
        """Of the states and actions, and of the first and last image of each camera."""
        self._nbytes(index, recording)
        content, digest = self._open(index, recording), hashlib.blake2b(digest_size=16)
        for names in (self._map.state, self._map.action):
            if names:
                digest.update(self._numbers(content, names, recording.where).tobytes())
        for name in self._map.cameras.values():
            column = content.columns[name]
            digest.update(f"{name} {column.rows} {column.shape} {column.stored}".encode())
            for row in {0, column.rows - 1} if column.rows else ():
                entry = content.read(name, row, row + 1)[0]
                digest.update(entry if isinstance(entry, bytes) else np.ascontiguousarray(entry).tobytes())
        return digest.hexdigest()

    def _load(self, index: int, recording: Recording) -> tuple[Episode, Labels | None]:
        with readable(Path(recording.where), base.UNREADABLE):
            origin = Origin(self._layout.format, self._path, index, self._digest(index, recording))
            return self._convert(self._open(index, recording), origin, recording.where)

    def _convert(self, content: Content, origin: Origin, where: str) -> tuple[Episode, Labels | None]:
        chosen = self._map
        steps = self._steps(content, where)
        state = self._numbers(content, chosen.state, where) if chosen.state else None
        actions = np.zeros((steps, 0), np.float32)
        if chosen.next_state and state is not None:
            actions = state[1:]
        elif chosen.action:
            actions = self._numbers(content, chosen.action, where)
        frames = {name: self._frames(content, name, key, where) for name, key in chosen.cameras.items()}
        complete = all(len(values) == steps + 1 for values in (*frames.values(), state) if values is not None)
        reward, success = self._outcome(content, steps, where)
        ended = success is not None and bool(success[-1] == 1)
        try:
            episode = Episode.of(
                frames=frames if complete else {name: _repeat_last(values[:steps]) for name, values in frames.items()},
                state=state if complete or state is None else _repeat_last(state[:steps]),
                actions=actions,
                privileged={} if reward is None else {"reward": reward},
                task=self._task(content),
                fps=content.fps or self._options.fps,
                robot=content.robot,
                terminated=ended if content.terminated is None else content.terminated,
                padded="none" if complete else "last",
                origin=origin,
                meta=content.meta,
            )
        except InvalidEpisode as error:
            raise BadFile(where, str(error)) from error
        return episode, self._labels(success)

    def _steps(self, content: Content, where: str) -> int:
        """Actions of the episode, once every column has a row for each, or one more where it is an observation."""
        chosen = self._map
        observed = {name: content.columns[name].rows for name in (*chosen.state, *chosen.cameras.values())}
        acted = {name: content.columns[name].rows for name in chosen.action}
        steps = next(iter(acted.values())) if acted else max(observed.values()) - 1
        rewarded = {chosen.success: content.columns[chosen.success].rows} if chosen.success else {}
        for name, rows in {**observed, **acted, **rewarded}.items():
            if rows != steps and (rows != steps + 1 or name in acted):
                raise BadFile(where, f"{_lengths({**observed, **acted, **rewarded})}; write them again")
        return steps

    def _frames(self, content: Content, camera: str, key: str, where: str) -> ByteArray:
        column = content.columns[key]
        images = content.read(key, 0, column.rows)
        if not column.encoded:
            images = np.asarray(images)
            if images.dtype.kind == "f" and images.size and images.max() > 1 and _is_bytes(images):
                images = images.astype(np.uint8)
            return to_frames(images, where, camera)
        frames = np.empty((column.rows, *column.size, 3), np.uint8)
        for row, data in enumerate(images):
            try:
                frames[row] = decode_image(data, camera, *column.size)
            except BadImage as error:
                raise BadFile(where, f"{error}, in row {row}") from error
        return frames

    def _task(self, content: Content) -> str:
        if content.task or not self._map.task or self._map.task not in content.columns:
            return content.task or self._options.task
        return str(next(iter(content.read(self._map.task, 0, 1)), "")) or self._options.task

    def _outcome(self, content: Content, steps: int, where: str) -> tuple[AnyArray | None, AnyArray | None]:
        """A dense reward; and success by a column of 0 and 1, NaN where a row is not labeled."""
        if not self._map.success:
            return None, None
        values = self._numbers(content, [self._map.success], where)
        if values.shape[1] != 1:
            raise BadFile(where, f"'{self._map.success}' has {values.shape[1]} numbers a row where it should have one")
        values = values[-steps:, 0]
        return (None, values) if base.is_sparse(values) else (np.nan_to_num(values), None)

    def _labels(self, success: AnyArray | None) -> Labels | None:
        if success is None or np.isnan(success).all():
            return None
        same = self._options.reward_frame == "same"
        return Labels.from_targets(np.append(success, success[-1]) if same else np.append(np.nan, success), "dataset")

    def _has_labels(self, index: int, recording: Recording) -> bool:
        content = self._open(index, recording)
        _, success = self._outcome(content, self._steps(content, recording.where), recording.where)
        return self._labels(success) is not None


def image_column(rows: int, first: bytes, stored: int) -> Column | None:
    """A column of image files, by the header of the first; None where that is no image."""
    if not first.startswith(_MAGIC):
        return None
    try:
        width, height = Image.open(io.BytesIO(first), formats=FORMATS).size
    except Exception:  # noqa: BLE001 - Pillow's readers raise whatever a damaged file leads them to
        return None
    return Column(rows, (height, width, 3), "uint8", stored, encoded=True)


def _is_bytes(images: AnyArray) -> bool:
    """Whether floats are whole numbers of 0 to 255, as diffusion policy stores images."""
    return bool(images.min() >= 0 and images.max() <= 255 and (images == np.rint(images)).all())


def _repeat_last(values: AnyArray) -> AnyArray:
    return np.concatenate([values, values[-1:]])


def _lengths(rows: Mapping[str, int]) -> str:
    """Names of columns by their number of rows, of the first two that differ."""
    (first, count), *others = rows.items()
    name, other = next((name, n) for name, n in others if n != count) if others else (first, count)
    return f"'{first}' has {count} rows and '{name}' has {other}"
