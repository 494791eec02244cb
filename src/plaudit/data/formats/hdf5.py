"""HDF5 files: robomimic's (`data/demo_0`, `data/demo_1`, ...), and one episode a file as ALOHA records it.

Every array with a row for each step is a column, under its path. Images may be rows of JPEG or PNG bytes, padded or of
any length. Links and arrays that are stored in other files are refused, so no file but the named one is opened.

An export is robomimic's layout in `demos.hdf5`, with the observation after the last action in `final_obs`, which other
readers ignore. An import takes it from there or from `next_obs`.
"""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from plaudit.data.formats.base import TEXT, LabeledEpisode, ReadOptions, WriteOptions
from plaudit.data.formats.columns import MAX_COLUMNS, TASKS, Column, ColumnLayout, Content, Recording, image_column
from plaudit.data.formats.images import choose
from plaudit.errors import BadFile, import_extra
from plaudit.files import MAX_DEPTH, Root, parse_json, readable
from plaudit.types import AnyArray, ProgressFn

SUFFIXES = (".hdf5", ".h5")
FINAL = ("next_obs", "final_obs")  # groups with the observation after the last action
DAMAGED = "this is not a whole HDF5 file ({}); copy it again from its source"
MAX_ATTRIBUTE = 1 << 20  # characters of a text that belongs to an episode
OURS = "plaudit"  # attribute of an exported episode: what robomimic has no name for
_OURS_KINDS = {"task": str, "fps": float, "robot": str, "terminated": bool, "meta": dict}


def find(path: Path) -> list[Path]:
    """The HDF5 files that a path stands for, in the order of their numbers."""
    if path.is_file():
        return [path] if path.suffix in SUFFIXES else []
    files = (file for suffix in SUFFIXES for file in path.glob(f"*{suffix}"))
    return sorted(files, key=lambda file: _natural(file.name))


def recordings(root: Root, files: Sequence[Path], options: ReadOptions) -> list[Recording]:
    """The episodes of these files: each group of `data`, or the whole file."""
    opened = _OpenFile(root)
    listed: list[Recording] = []
    for file in files:
        try:
            tree = opened.get(file)
            groups = _demos(tree, file) or [""]
            steps = [_steps(tree[group] if group else tree, file) for group in groups]
        except BadFile:
            groups, steps = [""], [0]  # opening it says why
        for group, count in zip(groups, steps):
            where = f"{file}/{group}" if group else str(file)
            listed.append(Recording(where, partial(_content, opened, file, group), count))
    return listed


class _OpenFile:
    """Keeps the last file open: it may hold all episodes."""

    def __init__(self, root: Root):
        self._root = root
        self._path: Path | None = None
        self._file: Any = None

    def get(self, path: Path) -> Any:
        """The file as h5py opens it, by its descriptor: no name reaches the library."""
        if path != self._path:
            import h5py

            if self._file is not None:
                self._file.close()
            self._path = None
            with readable(path, DAMAGED), self._root.open(path) as file:
                self._file = h5py.File(f"/dev/fd/{file.fileno()}", "r", locking=False)
            self._path = path
        return self._file


def _demos(tree: Any, file: Path) -> list[str]:
    """The groups below `data`, in the order of their numbers; [] if the file is a single episode."""
    import h5py

    with readable(file, DAMAGED):
        data = _member(tree, "data", file) if "data" in list(tree) else None
        if not isinstance(data, h5py.Group):
            return []
        groups = {name: _member(data, name, file) for name in sorted(data, key=_natural) if _is_hard(data, name)}
        return [f"data/{name}" for name, group in groups.items() if isinstance(group, h5py.Group)]


def _steps(group: Any, file: Path) -> int:
    """Rows of the actions where they have their usual name; 0 where opening the episode tells."""
    name = next((name for name in ("actions", "action") if name in list(group)), "")
    try:
        return int(_member(group, name, file).shape[0]) if name else 0
    except (BadFile, AttributeError, LookupError):
        return 0


def _content(opened: _OpenFile, file: Path, name: str) -> Content:
    tree = opened.get(file)
    with readable(file, DAMAGED):
        group = tree[name] if name else tree
        arrays: dict[str, Any] = {}
        _collect(group, "", file, arrays, 0)
        columns: dict[str, Column] = {}
        finals: dict[str, Any] = {}
        ignored = []
        for key, array in arrays.items():
            if key.split("/")[0] in FINAL:
                continue
            column = _describe(array)
            if column is None:
                ignored.append(key)
                continue
            final = _final(key, array, arrays)
            if final is not None:
                finals[key] = final
                column = replace(column, rows=column.rows + 1)
            columns[key] = column

        def read(key: str, start: int, stop: int) -> Any:
            array = arrays[key]
            rows = array[start:stop]
            if stop > len(array):
                rows = np.concatenate([rows, finals[key][-1:]])
            kind = columns[key]
            if kind.dtype == TEXT:
                return [_text(value) for value in rows]
            return [bytes(row) for row in rows] if kind.encoded else rows

        return Content(columns, read, ignored=ignored, **_facts(tree, group))


def _collect(group: Any, prefix: str, file: Path, arrays: dict[str, Any], depth: int) -> None:
    """Every array below a group, under its path."""
    import h5py

    for name in group:
        key = f"{prefix}{name}"
        entry = _member(group, name, file, key)
        if isinstance(entry, h5py.Group) and depth < MAX_DEPTH // 8:
            _collect(entry, f"{key}/", file, arrays, depth + 1)
        elif isinstance(entry, h5py.Dataset) and entry.shape:
            arrays[key] = entry
        if len(arrays) > MAX_COLUMNS:
            raise BadFile(file, f"it has more than {MAX_COLUMNS:,} arrays an episode; no recording has so many")


def _is_hard(group: Any, name: str) -> bool:
    """Whether a name is no link to elsewhere. h5py's `in` and `get` would open what a link leads to."""
    links: Any = import_module("h5py.h5l")
    return group.id.links.get_info(name.encode("utf-8", "surrogateescape")).type == links.TYPE_HARD


def _member(group: Any, name: str, file: Path, key: str = "") -> Any:
    """A group or an array; nothing that leads out of the file."""
    import h5py

    if not _is_hard(group, name):
        raise BadFile(file, f"'{key or name}' is a link, which was not followed; copy its content to this place")
    entry = group[name]
    if isinstance(entry, h5py.Dataset) and (entry.is_virtual or entry.external):  # before its shape: that opens them
        stored = "is stored in other files, which were not opened"
        raise BadFile(file, f"'{key or name}' {stored}; copy its values into this one")
    return entry


def _describe(array: Any) -> Column | None:
    """What an array holds; None for references, structures and whatever else is neither numbers, text nor images."""
    import h5py

    rows, stored, kind = array.shape[0], array.id.get_storage_size(), array.dtype
    variable = h5py.check_vlen_dtype(kind)
    is_bytes = kind == np.uint8 and array.ndim == 2 and array.shape[1] > 64
    if rows and array.ndim <= 2 and (kind.kind == "S" or variable == np.uint8 or is_bytes):
        images = image_column(rows, bytes(array[0]), stored)
        if images is not None:
            return images
    if array.ndim == 1 and (kind.kind == "S" or h5py.check_string_dtype(kind) is not None):
        return Column(rows, (), TEXT, stored)
    if kind.kind not in "biuf":
        return None
    return Column(rows, tuple(array.shape[1:]), kind.name, stored)


def _final(key: str, array: Any, arrays: Mapping[str, Any]) -> Any:
    """The array whose last row is the observation after the last one of `array`."""
    group, _, name = key.partition("/")
    for final in FINAL if group == "obs" else ():
        other = arrays.get(f"{final}/{name}")
        rows = 1 if final == "final_obs" else len(array)
        if other is not None and other.shape == (rows, *array.shape[1:]) and other.dtype == array.dtype and rows:
            return other
    return None


def _facts(tree: Any, group: Any) -> dict[str, Any]:
    """Task, rate and robot, by the attributes of the episode, of `data` and of the file."""
    attributes: dict[str, Any] = {}
    data = _member(tree, "data", Path()) if "data" in list(tree) and _is_hard(tree, "data") else None
    for owner in (tree, data, group):
        for name in ("env_args", "problem_info", OURS, *(task for (task,) in TASKS)):
            value = None if owner is None else owner.attrs.get(name)
            if isinstance(value, str | bytes) and len(value) < MAX_ATTRIBUTE:
                attributes[name] = _text(value)
    facts = _json_object(attributes.get(OURS))
    if facts:
        known = {name: facts[name] for name, kind in _OURS_KINDS.items() if isinstance(facts.get(name), kind)}
        return {"labeled": True, **known}
    env, problem = _json_object(attributes.get("env_args")), _json_object(attributes.get("problem_info"))
    settings = env.get("env_kwargs")
    settings = settings if isinstance(settings, dict) else {}
    robots, rate = settings.get("robots", ""), settings.get("control_freq", 0)
    task = next((attributes[name] for (name,) in TASKS if name in attributes), problem.get("language_instruction", ""))
    return {
        "task": task if isinstance(task, str) else "",
        "fps": float(rate) if isinstance(rate, int | float) and 0 < rate < 1e4 else 0.0,
        "robot": robots if isinstance(robots, str) else "+".join(map(str, robots))[:100],
        "meta": {"env_name": str(env["env_name"])[:200]} if "env_name" in env else {},
    }


def _json_object(text: str | None) -> dict[str, Any]:
    with suppress(ValueError):
        tree = parse_json((text or "").encode())
        return tree if isinstance(tree, dict) else {}
    return {}


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _natural(name: str) -> list[Any]:
    """Sorts demo_2 before demo_10."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def write(folder: Path, items: Sequence[LabeledEpisode], options: WriteOptions, progress: ProgressFn) -> list[str]:
    """Fill an empty folder with `demos.hdf5`, in robomimic's layout; see `Writer`.

    `rewards` are the labels of the frames that the actions led to, NaN where a frame is not labeled.
    """
    h5py = import_extra("h5py", "hdf5")
    with h5py.File(folder / "demos.hdf5", "w") as file:
        data = file.create_group("data")
        for number, item in enumerate(progress(items)):
            _write_episode(data.create_group(f"demo_{number}"), item, options)
        data.attrs["total"] = sum(int(demo.attrs["num_samples"]) for demo in data.values())
        data.attrs["env_args"] = json.dumps({"env_name": items[0].episode.robot, "type": 2, "env_kwargs": {}})
    return []


def _write_episode(demo: Any, item: LabeledEpisode, options: WriteOptions) -> None:
    from plaudit.data.formats.lerobot.features import done_column, reward_columns

    episode = item.episode
    cameras = choose(options.cameras, list(episode.frames), f"episode {item.id}")
    observed: dict[str, AnyArray] = {f"{camera}_image": episode.frames[camera] for camera in cameras}
    if episode.state.shape[1]:
        observed["state"] = episode.state
    for name, values in observed.items():
        demo[f"obs/{name}"] = values[: episode.steps]
        if episode.padded != "last":
            demo[f"final_obs/{name}"] = values[episode.steps :]
    demo["actions"] = episode.actions
    demo["rewards"] = next(iter(reward_columns(item.labels, episode.steps, options.reward_frame).values()))
    demo["dones"] = done_column(episode.steps).astype(np.int64)
    demo.attrs["num_samples"] = episode.steps
    facts = {
        "task": episode.task,
        "fps": float(episode.fps or options.fps),
        "terminated": episode.terminated,
        "robot": episode.robot,
        "meta": dict(episode.meta),
    }
    demo.attrs[OURS] = json.dumps(facts)


LAYOUT = ColumnLayout("hdf5", "h5py", "hdf5", find, recordings)
