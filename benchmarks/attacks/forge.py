"""Stores made by hand: one thing in a good store is changed, and every checksum, number and count made to fit again."""

import json
import math
import os
import socket
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from plaudit.data.disk import Folder, decode_checked, encode_checked
from plaudit.data.journal import HEADER_KEY, SLOT, Snapshot, decode, encode_lines, replace_head

Record = dict[str, Any]
Change = Callable[[Path], object]
Named = tuple[str, Change]  # what was done, in words

SNAPSHOTS = ("journal.snapshot", "labels.snapshot")
FILES = (
    *("store.json", "journal", "journal.head", "labels", "labels.head", "writer.lock", "labels.failures"),
    *SNAPSHOTS,
)
FOLDERS = ("segments", "segments/000000", "segments/000001", "quarantine")
INSIDE = ("segments/000000/steps.bin", "segments/000000/camera.front.bin", "segments/000000/schema.json")
TO_COME = (  # names that a writer or a repair would make next
    "store.json.tmp",
    "journal.tmp",
    "journal.head.tmp",
    "labels.head.tmp",
    "segments/000002",
    "segments/000000.gone",
    "segments/000000/schema.json.tmp",
    "segments/000000/camera.new.bin",
)

_deep: Any = 0
for _ in range(90):
    _deep = [_deep]

VALUES: dict[str, Any] = {
    "null": None,
    "true": True,
    "-1": -1,
    "0": 0,
    "0.5": 0.5,
    "NaN": math.nan,
    "infinity": math.inf,
    "2^31": 1 << 31,
    "2^53": 1 << 53,
    "2^63": 1 << 63,
    "10^300": 10**300,
    "10^400": 10**400,  # beyond all floats
    "a float beyond all dates": 1e18,
    "an empty text": "",
    "a path": "../../beside/notes",
    "an absolute path": "/etc/passwd",
    "a NUL": "a\0b",
    "control characters": "\x1b]0;mine\x07\x1b[2J",
    "half a character": "\ud800",
    "a long text": "x" * 300_000,
    "an empty list": [],
    "a list": [1, "a", None],
    "a long list": list(range(100_000)),
    "nested lists": _deep,
    "an object": {"a": 1},
}


def records_of(path: Path) -> list[Record]:
    return [line.record for line in map(decode, path.read_bytes().splitlines()) if line is not None]


def reseal(path: Path, records: list[Record]) -> None:
    """Write a journal that says this."""
    lines, chain = encode_lines(records, 1, 0), 0
    for line in lines:
        chain = zlib.crc32(line[:-1], chain)
    path.write_bytes(b"".join(lines))
    replace_head(Folder(path.parent), path.name, len(lines), chain)


def changed(name: str, change: Callable[[list[Record]], Any]) -> Change:
    """Change the records of a journal, in place."""

    def apply(store: Path) -> None:
        records = records_of(store / name)
        change(records)
        reseal(store / name, records)

    return apply


def resealed(name: str, key: str, value: Any) -> Change:
    """One key of a sealed file."""

    def apply(store: Path) -> None:
        tree = decode_checked((store / name).read_bytes())
        (store / name).write_bytes(encode_checked({**tree, key: value}))

    return apply


def every_value(tree: Record, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to each value of a record, those of lists and objects within too."""
    for key, value in tree.items():
        yield (*above, key)
        if isinstance(value, dict):
            yield from every_value(value, (*above, key))
        elif isinstance(value, list) and value:
            yield (*above, key, 0)
            if isinstance(value[0], list):
                yield from ((*above, key, 0, i) for i in range(len(value[0])))


def put(record: Any, way: tuple[Any, ...], value: Any) -> None:
    for key in way[:-1]:
        record = record[key]
    record[way[-1]] = value


def remove(record: Any, way: tuple[Any, ...]) -> None:
    for key in way[:-1]:
        record = record[key]
    del record[way[-1]]


def line_changes(store: Path, name: str) -> Iterator[Named]:
    """Every value of the last line of each kind, changed to everything that it is not."""
    last = {kind_of(record): number for number, record in enumerate(records_of(store / name))}
    for kind, number in last.items():
        ways = list(every_value(records_of(store / name)[number]))
        for way in ways:
            where = f"{name}, {kind}, {'.'.join(map(str, way))}"
            yield f"{where} missing", changed(name, lambda rs, n=number, w=way: remove(rs[n], w))
            for what, value in VALUES.items():
                yield f"{where} is {what}", changed(name, lambda rs, n=number, w=way, v=value: put(rs[n], w, v))


def snapshot_changes(store: Path) -> Iterator[Named]:
    """Every value of a snapshot, changed to everything that it is not."""
    for name in SNAPSHOTS:
        for way in every_value(vars(Snapshot.decode((store / name).read_bytes()))):
            for what, value in VALUES.items():
                yield f"{name}, {'.'.join(map(str, way))} is {what}", snapshot(name, way, value)


def snapshot(name: str, way: tuple[Any, ...], value: Any) -> Change:
    def apply(store: Path) -> None:
        tree = vars(Snapshot.decode((store / name).read_bytes()))
        put(tree, way, value)
        text = json.dumps(tree).encode()
        (store / name).write_bytes(b"%08x %s" % (zlib.crc32(text), text))

    return apply


def kind_of(record: Record) -> str:
    return "facts" if list(record) == [HEADER_KEY] else record.get("op", "line")


def whole_changes(name: str) -> Iterator[Named]:
    """Lines that are right by themselves, and wrong where they stand."""
    episode = {"op": "episode"}
    yield f"{name}: nothing", changed(name, list.clear)
    yield f"{name}: the first line alone", changed(name, lambda rs: rs.__delitem__(slice(1, None)))
    yield f"{name}: without its first line", changed(name, lambda rs: rs.pop(0))
    yield f"{name}: the first line twice", changed(name, lambda rs: rs.append(rs[0]))
    yield f"{name}: the last line twice", changed(name, lambda rs: rs.append(rs[-1]))
    yield f"{name}: all lines twice", changed(name, lambda rs: rs.extend(rs[1:]))
    yield f"{name}: backwards", changed(name, lambda rs: rs.reverse())
    yield f"{name}: an empty object", changed(name, lambda rs: rs.append({}))
    yield f"{name}: half an episode", changed(name, lambda rs: rs.append(episode))
    yield (
        f"{name}: 100,000 empty evictions",
        changed(name, lambda rs: rs.extend([{"op": "evict", "ids": []}] * 100_000)),
    )
    yield f"{name}: 20,000 objects", changed(name, lambda rs: rs.append({"op": "evict", "ids": [{}] * 20_000}))
    for number, chain in ((0, 0), (1, 7), (5, 0), (10**14, 0)):
        yield f"{name}: numbered from {number}, {chain}", numbered(name, number, chain)


def numbered(name: str, first: int, chain: int) -> Change:
    def apply(store: Path) -> None:
        lines = encode_lines(records_of(store / name), first, chain)
        (store / name).write_bytes(b"".join(lines))
        (store / f"{name}.head").unlink(missing_ok=True)

    return apply


def heads(name: str) -> Iterator[Named]:
    for text in (b"5", b"-5 00000000", b"5 0 0", b"9" * 40, b"1e3 00000000", b"5 ffffffffffff", b"\xff", b""):
        line = (b"%08x %s" % (zlib.crc32(text), text)).ljust(SLOT - 1) + b"\n"
        yield f"{name}: a count of {text!r}", lambda store, line=line: write(store / name, line[:SLOT] * 2)


def write(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def set_aside(store: Path, name: str) -> Path:
    """Move what has this name out of the store; returns where it is now. Something, where there was nothing."""
    away = store.parent / "away" / name.replace("/", "-")
    away.parent.mkdir(exist_ok=True)
    path = store / name
    if path.exists():
        path.rename(away)
    elif name in FOLDERS or name == "segments/000002":
        away.mkdir()
    else:
        away.write_bytes(b"somebody's own")
    return away


def links() -> Iterator[Named]:
    """Where a name of the store is, or will be looked for, another way to something outside."""
    for name in (*FILES, *INSIDE, *FOLDERS, *TO_COME):
        yield f"{name} is a link to what it was", lambda store, n=name: (store / n).symlink_to(set_aside(store, n))
        yield f"{name} is a link to notes", lambda store, n=name: link(store, n, store.parent / "beside/notes")
        yield f"{name} is a link to a folder", lambda store, n=name: link(store, n, store.parent / "beside")
        yield f"{name} is a link to nothing", lambda store, n=name: link(store, n, store.parent / "beside/not-there")
        yield f"{name} is a link to itself", lambda store, n=name: link(store, n, Path(n).name)
        yield f"{name} is a link to /dev/zero", lambda store, n=name: link(store, n, Path("/dev/zero"))
        if name not in FOLDERS:
            yield f"{name} is a second name of notes", lambda store, n=name: hard_link(store, n)
        if name in (*FILES, *INSIDE):
            yield f"{name} has a second name", lambda store, n=name: os.link(store / n, store.parent / "beside/second")


def link(store: Path, name: str, target: Path | str) -> None:
    set_aside(store, name)
    (store / name).symlink_to(target)


def hard_link(store: Path, name: str) -> None:
    set_aside(store, name)
    os.link(store.parent / "beside/notes", store / name)


def odd_files() -> Iterator[Named]:
    """A pipe, a socket, a folder, in place of a file; a file in place of a folder."""
    for name in (*FILES, *INSIDE, *FOLDERS, *TO_COME):
        yield f"{name} is a pipe", lambda store, n=name: replaced(store, n, os.mkfifo)
        yield f"{name} is a socket", lambda store, n=name: replaced(store, n, bind)
        kind: Callable[[Path], Any] = (lambda path: path.write_bytes(b"text")) if name in FOLDERS else Path.mkdir
        yield f"{name} is of the other kind", lambda store, n=name, kind=kind: replaced(store, n, kind)


def replaced(store: Path, name: str, make: Callable[[Path], Any]) -> None:
    set_aside(store, name)
    make(store / name)


def bind(path: Path) -> None:
    before = Path.cwd()
    os.chdir(path.parent)  # the path of a socket may have a hundred bytes
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(path.name)
    finally:
        os.chdir(before)
