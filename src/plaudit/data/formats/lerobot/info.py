"""`meta/info.json` of a LeRobot data set, validated."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Formatter
from typing import Any

from plaudit.data.formats.lerobot.columns import Features, image_size
from plaudit.data.formats.lerobot.features import IMAGES
from plaudit.data.formats.limits import MAX_EDGE, MAX_PIXELS, MAX_WIDTH
from plaudit.errors import BadFile
from plaudit.files import Root, brief

MAX_FEATURES = 10_000
MIN_FPS, MAX_FPS = 1e-3, 1e5
MAX_INDEX = 1 << 40  # of an episode, a file, a frame
MAX_NAME = 100  # characters of a camera, which becomes the name of a file

FIELDS = ("episode_chunk", "episode_index", "chunk_index", "file_index", "video_key")
_SPEC = re.compile(r"0?(\d|1[0-2])?d?")  # 06d, 3d, d: never wider than 12


@dataclass(frozen=True)
class DatasetInfo:
    """The validated content of `meta/info.json`."""

    version: str
    fps: float
    robot: str
    features: Features
    sizes: Mapping[str, tuple[int, int]]  # feature of color images -> height, width
    data_path: str | None
    video_path: str | None
    chunks_size: int


def parse_info(info: Any, path: Path) -> DatasetInfo:
    """Refuses a description that no data set has, with what is wrong in it."""
    if not isinstance(info, dict):
        raise BadFile(path, f"this does not describe a LeRobot data set: it is {brief(info)} and no mapping")
    for key in ("codebase_version", "fps", "features"):
        if key not in info:
            raise BadFile(path, f"this does not describe a LeRobot data set: it lacks '{key}'")
    version = info["codebase_version"]
    if not isinstance(version, str) or not version.startswith(("v2", "v3")) or len(version) > 20:
        raise BadFile(path, f"LeRobot {brief(version).strip(chr(39))} is not read; v2.0, v2.1 and v3.0 are")
    fps = number(info["fps"])
    if fps is None or not MIN_FPS <= fps <= MAX_FPS:
        raise BadFile(path, f"'fps' is {brief(info['fps'])}, which is no rate of frames; correct it")
    features = _features(info["features"], path)
    images = {key: feature for key, feature in features.items() if feature["dtype"] in ("video", "image")}
    sizes = {key: size for key, feature in images.items() if (size := image_size(feature)) is not None}
    for key, size in sizes.items():
        _check_camera(key, size, path)
    robot = info.get("robot_type")
    return DatasetInfo(
        version=version,
        fps=fps,
        robot=robot[:MAX_NAME] if isinstance(robot, str) else "",
        features=features,
        sizes=sizes,
        data_path=_template(info, "data_path", path),
        video_path=_template(info, "video_path", path),
        chunks_size=_chunks(info, path),
    )


def _features(features: Any, path: Path) -> dict[str, dict[str, Any]]:
    if not isinstance(features, dict) or len(features) > MAX_FEATURES:
        raise BadFile(path, f"'features' is {brief(features)} where it maps names of columns to what they are")
    for name, feature in features.items():
        if not isinstance(feature, dict) or not isinstance(feature.get("dtype"), str):
            raise BadFile(path, f"feature {brief(name)} has no 'dtype'; correct it")
        shape = feature.get("shape")
        shape = [] if shape is None else shape
        sound = isinstance(shape, list) and len(shape) <= 8 and all(type(n) is int and n >= 0 for n in shape)
        image = feature["dtype"] in ("video", "image")  # whose size is looked at by itself
        if not sound or not (image or math.prod(shape) <= MAX_WIDTH):
            raise BadFile(path, f"feature {brief(name)} has a 'shape' that no column has: {_shape(shape)}; correct it")
        feature["shape"] = shape
    return features


def _shape(shape: Any) -> str:
    return f"[{', '.join(brief(n) for n in shape[:8])}]" if isinstance(shape, list) else brief(shape)


def _check_camera(key: str, size: tuple[int, int], path: Path) -> None:
    height, width = size
    if not (0 < height <= MAX_EDGE and 0 < width <= MAX_EDGE and height * width <= MAX_PIXELS):
        raise BadFile(
            path,
            f"camera {brief(key)} has frames of {brief(height)}x{brief(width)}; at most {MAX_PIXELS:,} pixels are read",
        )
    name = key.removeprefix(IMAGES)
    if not name or len(name.encode()) > MAX_NAME or "\0" in name:
        raise BadFile(path, f"camera {brief(key)} has no name that a file can have; rename it")


def _template(info: Mapping[str, Any], key: str, path: Path) -> str | None:
    template = info.get(key)
    if template is None or template == "":
        return None
    if not isinstance(template, str) or len(template) > 1000:
        raise BadFile(path, f"'{key}' is {brief(template)} and no path; correct it")
    return template


def _chunks(info: Mapping[str, Any], path: Path) -> int:
    size = info.get("chunks_size") or 1000
    if type(size) is not int or not 0 < size <= MAX_INDEX:
        raise BadFile(path, f"'chunks_size' is {brief(size)}; it counts the episodes in a folder, correct it")
    return size


def fill(root: Root, template: str, fields: Mapping[str, Any]) -> Path:
    """The path that a template stands for, within the data set. Only plain fields are filled in.

    `str.format` on a stranger's template reads attributes and pads to any width; each part is looked at first.
    """
    info = root.path / "meta/info.json"
    try:
        parts = list(Formatter().parse(template))
    except ValueError as error:
        raise BadFile(info, f"{brief(template)} is no template of a path ({error}); correct it") from error
    for _, name, spec, conversion in parts:
        if name is None:
            continue
        if name not in fields:
            raise BadFile(
                info,
                f"the path '{template[:200]}' asks for {brief(name)}, which meta/ does not say; correct the path",
            )
        plain = name in FIELDS and not conversion
        if not plain or (spec and (name == "video_key" or not _SPEC.fullmatch(spec))):
            raise BadFile(info, f"the path {brief(template)} does more than name its fields; correct the path")
    return root.inside(template.format(**{name: fields[name] for name in FIELDS if name in fields}))


def number(value: Any) -> float | None:
    """A finite number, or None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def count(value: Any) -> int | None:
    """A whole number from 0 on, also where a table keeps it as a float; None for anything else."""
    found = number(value)
    return int(found) if found is not None and 0 <= found <= MAX_INDEX and found == int(found) else None
