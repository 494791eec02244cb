"""Label files written by hand: the frames of each episode that show success.

    {"0": 53, "1": [[36, 50], [60, 99]], "2": null, "3-7": 40, "8": [[53, 120], [121, null, "unknown"]], "9": "unknown"}

A number is the first frame that shows success, and all later ones do; pairs are ranges of frames that do, both ends
included, where null for the second means the last frame; null is an episode that fails. A range with "unknown" is not
judged: nothing learns from these frames and nothing is measured on them, as after an object was let go. "unknown" for
an episode leaves all of it out. Where ranges overlap the later one holds. Keys are episodes, or ranges of them. JSON or
YAML, so `{0: 53, 1: 36}` is fine too.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from plaudit.data.store import Store
from plaudit.errors import BadFile, DataError
from plaudit.files import MAX_JSON, brief, parse_json, read_own, readable
from plaudit.types import Episode, FloatArray, Labels

Numbering = Literal["id", "source"]
After = Literal["failure", "unknown"]
UNKNOWN = "unknown"
MAX_EPISODES = 1_000_000  # in a label file


def read_cutoffs(path: str | Path) -> dict[int, Any]:
    """Episode number -> cutoff, ranges or None, as in the file."""
    path = Path(path)
    tree = _tree(path)
    if not isinstance(tree, dict):
        raise BadFile(path, "a label file maps episodes to frames, like {0: 53, 1: null}")
    found: dict[int, Any] = {}
    for key, value in tree.items():
        for episode in _episodes(key, path):
            if episode in found:
                raise BadFile(path, f"episode {episode} is labeled twice, the second time under '{key}'")
            found[episode] = value
        if len(found) > MAX_EPISODES:
            raise BadFile(path, f"more than {MAX_EPISODES:,} episodes are labeled here; no store has so many")
    return found


def _tree(path: Path) -> Any:
    """JSON where it is JSON, which is read a hundred times faster than as YAML."""
    with readable(path, "a label file is JSON or YAML, this is neither ({})", "there is no such label file"):
        data = read_own(path, MAX_JSON)
        try:
            return parse_json(data)
        except ValueError:
            from plaudit.config import parse_yaml

            return parse_yaml(data.decode())


def _episodes(key: Any, path: Path) -> range:
    match = re.fullmatch(r"\s*([0-9]{1,18})\s*(?:-\s*([0-9]{1,18})\s*)?", brief(key).strip("'"))
    if not match:
        raise BadFile(path, f"{brief(key)} is not an episode number or a range of them like '3-7'")
    first = int(match[1])
    episodes = range(first, int(match[2] or first) + 1)
    if len(episodes) > MAX_EPISODES:
        raise BadFile(path, f"{brief(key)} is a range of {len(episodes):,} episodes; no store has so many")
    return episodes


def label_store(
    store: Store,
    cutoffs: Mapping[int, Any],
    *,
    by: Numbering | None = None,
    note: str = "",
    after: After = "failure",
) -> list[int]:
    """Append labels of each episode to the ledger, all or none; returns the ids of the episodes labeled.

    after: what frames after the last range of an episode are
    """
    numbers = _numbering(store, by)
    labeled: list[tuple[int, Labels]] = []
    for number, value in cutoffs.items():
        if number not in numbers:
            raise DataError(f"{store.folder} has no episode {number}; it has {_span(numbers)}. Nothing was labeled")
        episode_id = numbers[number]
        try:
            targets = _targets(store.episode(episode_id), value, after)
        except DataError as error:
            raise DataError(f"episode {number}: {error}. Nothing was labeled") from error
        labeled.append((episode_id, Labels.from_targets(targets, "cutoff", note=note)))
    store.ledger.extend(labeled)
    return [episode_id for episode_id, _ in labeled]


def _numbering(store: Store, by: Numbering | None) -> dict[int, int]:
    """From the numbers a person writes to ids. Where they could mean two things, they must say which."""
    ids = {i: i for i in store.ids}
    origins = {i: store.entry(i).line["origin"] for i in store.ids}
    source = {origin["index"]: i for i, origin in origins.items() if origin}
    if by == "source" or (by is None and source == ids):
        if len(source) < len([o for o in origins.values() if o]):
            raise DataError(f"{store.folder} has episodes of several data sets under one number; label by id (--by id)")
        return source
    if by is None and source:
        number, episode_id = next(((n, i) for n, i in source.items() if n != i), (None, None))
        if number is not None:
            raise DataError(
                f"episode {number} of the imported data is episode {episode_id} of {store.folder}: "
                "say which numbers the file means, --by source or --by id"
            )
    return ids


def over_all_frames(episode: Episode, recorded: FloatArray) -> FloatArray:
    """[T+1] labels from those of the recorded frames; a padded frame gets the label of the frame it repeats."""
    targets = np.full(episode.steps + 1, np.nan, np.float32)
    targets[episode.observed] = recorded
    if episode.padded == "last":
        targets[-1] = targets[-2]
    return targets


def frame_labels(frames: int, value: Any, after: After) -> Labels:
    """Labels of recorded frames that have an action each, by an entry of a label file; the last one is repeated."""
    recorded = _recorded_targets(frames, value, after)
    return Labels.from_targets(np.append(recorded, recorded[-1:]), "cutoff")


def _targets(episode: Episode, value: Any, after: After) -> FloatArray:
    """0, 1 or NaN for each of the T+1 frames."""
    frames = len(range(episode.steps + 1)[episode.observed])  # people count these, from 0
    return over_all_frames(episode, _recorded_targets(frames, value, after))


def _recorded_targets(frames: int, value: Any, after: After) -> FloatArray:
    """0, 1 or NaN for each recorded frame."""
    recorded = np.zeros(frames, np.float32)
    end = frames - 1
    ranges = _ranges(value, end)
    for first, last, kind in ranges:
        if first < 0 or last > end or first > last:
            raise DataError(f"frames {first} to {last} are not in it: its frames are 0 to {end}; null means failure")
        recorded[first : last + 1] = kind
    if after == UNKNOWN and ranges:
        recorded[max(last for _, last, _ in ranges) + 1 :] = np.nan
    return recorded


def _ranges(value: Any, end: int) -> list[tuple[int, int, float]]:
    """First and last frame, and what they are: 1, or NaN where unknown."""
    if value is None:
        return []
    if value == UNKNOWN:
        return [(0, end, np.nan)]
    if _is_frame(value):
        return [(value, max(value, end), 1.0)]
    ranges = [value] if _is_range(value) else value
    if isinstance(ranges, list) and all(_is_range(one) for one in ranges):
        return [
            (one[0], max(one[0], end) if one[1] is None else one[1], 1.0 if len(one) == 2 else np.nan) for one in ranges
        ]
    raise DataError(
        f'{brief(value)} is not a frame, a list of [first, last] or [first, last, "unknown"] ranges, "unknown", or null'
    )


def _is_frame(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_range(value: Any) -> bool:
    """[first, last], where null is the last frame there is, and perhaps "unknown" after it."""
    if not isinstance(value, list) or len(value) not in (2, 3) or not _is_frame(value[0]):
        return False
    return (value[1] is None or _is_frame(value[1])) and value[2:] in ([], [UNKNOWN])


def _span(numbers: Mapping[int, int]) -> str:
    return f"{min(numbers)} to {max(numbers)} ({len(numbers)} in all)" if numbers else "none"
