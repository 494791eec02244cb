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
    with readable(path, "a label file is JSON or YAML, this is neither ({})", "there is no such label file"):
        data = read_own(path, MAX_JSON)
        try:
            tree = parse_json(data)  # a hundred times faster than as YAML
        except ValueError:
            from plaudit.yaml_text import parse_yaml

            tree = parse_yaml(data.decode())
    if not isinstance(tree, dict):
        raise BadFile(path, "a label file maps episodes to frames, like {0: 53, 1: null}")
    cutoffs: dict[int, Any] = {}
    for key, value in tree.items():
        episodes = parse_range(brief(key).strip("'"))
        if episodes is None:
            raise BadFile(path, f"{brief(key)} is not an episode number or a range of them like '3-7'")
        if len(episodes) + len(cutoffs) > MAX_EPISODES:
            raise BadFile(path, f"more than {MAX_EPISODES:,} episodes are labeled here; no store has so many")
        for episode in episodes:
            if episode in cutoffs:
                raise BadFile(path, f"episode {episode} is labeled twice, the second time under '{key}'")
            cutoffs[episode] = value
    return cutoffs


def parse_range(text: str) -> range | None:
    """The episodes of '3' or '3-7'; None for other text."""
    match = re.fullmatch(r"\s*([0-9]{1,18})\s*(?:-\s*([0-9]{1,18})\s*)?", text)
    return range(int(match[1]), int(match[2] or match[1]) + 1) if match else None


def label_store(
    store: Store,
    cutoffs: Mapping[int, Any],
    *,
    by: Numbering | None = None,
    note: str = "",
    after: After = "failure",
) -> list[int]:
    """Append labels of each episode to the ledger, all or none; returns the ids of the episodes labeled.

    after: the label of frames after the last range of an episode
    """
    ids = numbering(store, by)
    labeled: list[tuple[int, Labels]] = []
    for number, value in cutoffs.items():
        if number not in ids:
            has = f"{min(ids)} to {max(ids)} ({len(ids)} in all)" if ids else "none"
            raise DataError(f"{store.folder} has no episode {number}; it has {has}. Nothing was labeled")
        episode_id = ids[number]
        episode = store.episode(episode_id)
        frames = len(range(episode.steps + 1)[episode.observed])  # people count these, from 0
        try:
            targets = over_all_frames(episode, _recorded_targets(frames, value, after))
        except DataError as error:
            raise DataError(f"episode {number}: {error}. Nothing was labeled") from error
        labeled.append((episode_id, Labels.from_targets(targets, "cutoff", note=note)))
    store.ledger.extend(labeled)
    return [episode_id for episode_id, _ in labeled]


def numbering(store: Store, by: Numbering | None) -> dict[int, int]:
    """The number that a person writes -> id; DataError if the numbers are ambiguous."""
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
    """Labels of recorded frames that have an action each, from an entry of a label file; the last one is repeated."""
    recorded = _recorded_targets(frames, value, after)
    return Labels.from_targets(np.append(recorded, recorded[-1:]), "cutoff")


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
    """First and last frame, and their label: 1, or NaN where unknown."""
    if value is None:
        return []
    if value == UNKNOWN:
        return [(0, end, np.nan)]
    if _is_frame(value):
        value = [value, None]
    ranges = [value] if _is_range(value) else value
    if not isinstance(ranges, list) or not all(map(_is_range, ranges)):
        raise DataError(
            f'{brief(value)} is not a frame, a list of [first, last] or [first, last, "unknown"] ranges, '
            '"unknown", or null'
        )
    return [
        (first, max(first, end) if last is None else last, np.nan if unknown else 1.0)
        for first, last, *unknown in ranges
    ]


def _is_frame(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_range(value: Any) -> bool:
    """[first, last], where null is the last frame there is, and perhaps "unknown" after it."""
    if not isinstance(value, list) or len(value) not in (2, 3) or not _is_frame(value[0]):
        return False
    return (value[1] is None or _is_frame(value[1])) and value[2:] in ([], [UNKNOWN])
