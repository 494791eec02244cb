"""Data sets with one bad episode, as people have them: it is named and left out, and all others come in as they were.

The table of the second episode and its line in the list are damaged as copies, converters and recorders damage them:
cut short, a pointer of Git LFS, another episode's file, columns of another type, NaN, fewer rows, another length.
Nothing of it may change what is read of the first and the third.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from attacks.hostile import SIZE, changed_columns, video
from attacks.sets import EPISODES, LENGTH
from attacks.tally import Tally
from plaudit.data.store import Store
from plaudit.data.transfer import import_dataset
from plaudit.errors import PlauditError

BAD = 1  # the episode that is damaged
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 12345\n"
TABLE = f"data/chunk-000/episode_{BAD:06d}.parquet"
V3_TABLE = "data/chunk-000/file-000.parquet"

Damage = Callable[[Path], Any]


def one_bad_episode(sound: dict[str, Path], work: Path, chosen: Callable[[list[Any]], list[Any]]) -> Tally:
    """Import each, and look at what came of the others.

    chosen: as many of all tries as this form makes
    """
    tally = Tally("data sets: one bad episode, the others as they were")
    wanted = {kind: _imported(path, work)[0] for kind, path in sound.items() if kind in ("v2.0", "v2.1", "v3 images")}
    for kind, label, damage in chosen([*_files(), *_columns(sound), *_lines()]):
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(sound[kind], work / "set")
        damage(work / "set")
        tally.tried += 1
        try:
            found, failed = _imported(work / "set", work)
        except PlauditError as error:
            tally.breach("unnamed_losses", f"{kind}, {label}: all of it was refused: {str(error)[:200]}")
            continue
        tally.named += bool(failed)
        for number in range(EPISODES):
            same = number in found and found[number] == wanted[kind][number]
            if number == BAD and not same and number not in found and not any(f"episode {BAD} " in s for s in failed):
                tally.breach("unnamed_losses", f"{kind}, {label}: episode {BAD} is gone without a word")
            if number != BAD and not same:
                tally.breach("unnamed_losses", f"{kind}, {label}: episode {number} is not as it was: {failed[:1]}")
    shutil.rmtree(work, ignore_errors=True)
    return tally


def _imported(folder: Path, work: Path) -> tuple[dict[int, bytes], list[str]]:
    """What each episode holds, by its number in the data set, and what was said of those that were left out."""
    shutil.rmtree(work / "store", ignore_errors=True)
    report = import_dataset(folder, work / "store")
    store = Store.open(work / "store")
    found: dict[int, bytes] = {}
    for episode_id in store.ids:
        episode = store.episode(episode_id)
        assert episode.origin is not None
        arrays = (*episode.frames.values(), episode.state, episode.actions)
        found[episode.origin.index] = b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)
    return found, list(report.failed)


def _files() -> Iterator[tuple[str, str, Damage]]:
    """The table of an episode, where it has one of its own."""
    contents: dict[str, Callable[[bytes], bytes]] = {
        "empty": lambda data: b"",
        "half": lambda data: data[: len(data) // 2],
        "without its end": lambda data: data[:-4],
        "a pointer": lambda data: POINTER,
        "a web page": lambda data: b"<!DOCTYPE html><html>404</html>",
        "zeros": lambda data: bytes(len(data)),
        "a video": lambda data: video("libx264", SIZE, LENGTH),
    }
    for kind in ("v2.0", "v2.1"):
        for label, change in contents.items():
            yield kind, f"its table {label}", lambda folder, c=change: _rewrite(folder / TABLE, c)
        yield kind, "its table missing", lambda folder: (folder / TABLE).unlink()
        yield kind, "its table a folder", lambda folder: ((folder / TABLE).unlink(), (folder / TABLE).mkdir())
        other = TABLE.replace(f"{BAD:06d}", "000002")
        yield kind, "another's table", lambda folder, o=other: shutil.copy(folder / o, folder / TABLE)


def _rewrite(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


def _columns(sound: dict[str, Path]) -> Iterator[tuple[str, str, Damage]]:
    for kind in ("v2.0", "v2.1"):
        for column in pq.read_schema(sound[kind] / TABLE).names:
            for label, change in changed_columns():
                yield kind, f"{column}: {label}", lambda folder, c=column, f=change: _set(folder / TABLE, c, f)
    values = {"NaN": float("nan"), "infinite": float("inf"), "null": None}
    for column in ("observation.state", "action", "timestamp", "frame_index", "next.reward"):
        for label in values if column != "frame_index" else ("null",):  # whole numbers have no NaN
            yield (
                "v3 images",
                f"{column} {label} in one of its rows",
                lambda folder, c=column, v=values[label]: _set_row(folder, c, v),
            )
    for label, value in (("no image", None), ("half an image", b"\x89PNG\r\n\x1a\n"), ("a pointer", POINTER)):
        entry = {"bytes": value, "path": "x.png"}
        camera = "observation.images.front"
        yield "v3 images", f"{label} in one of its rows", lambda folder, c=camera, v=entry: _set_row(folder, c, v)


def _set(path: Path, column: str, change: Callable[[pa.Table, str], pa.Table]) -> None:
    pq.write_table(change(pq.read_table(path), column), path)


def _set_row(folder: Path, column: str, value: Any) -> None:
    """In the table of all episodes, the first row of the bad one."""
    table = pq.read_table(folder / V3_TABLE)
    rows = table.to_pylist()
    row = next(row for row in rows if row["episode_index"] == BAD)
    before = row[column]
    row[column] = [value] * len(before) if isinstance(before, list) else value
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), folder / V3_TABLE)


def _lines() -> Iterator[tuple[str, str, Damage]]:
    """Its line in the list of episodes."""
    values = (0, -1, LENGTH - 1, LENGTH + 1, 10**9, 0.5, "x", None, [1], float("nan"))
    for kind in ("v2.0", "v2.1"):
        for value in values:
            yield kind, f"its length is {value}", lambda folder, v=value: _set_line(folder, {"length": v})
        for text in ("", "{", "[]", "null", "\x00", '{"episode_index": 1}'):
            yield kind, f"its line is {text!r}", lambda folder, t=text: _set_line(folder, t)


def _set_line(folder: Path, change: Any) -> None:
    path = folder / "meta/episodes.jsonl"
    lines = path.read_text().splitlines()
    lines[BAD] = change if isinstance(change, str) else json.dumps({**json.loads(lines[BAD]), **change})
    path.write_text("\n".join(lines) + "\n")
