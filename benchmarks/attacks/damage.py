"""Ways to damage a tiny data set: what each is called, of which layout, and the function that does it to a copy."""

import io
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from attacks.hostile import BAD_JSON, HOSTILE_PATHS, VALUES, Bait, changed_columns
from attacks.media import HOSTILE_IMAGES, HOSTILE_VIDEOS, NPY, PICKLES
from attacks.sets import CAMERA, LENGTH

Damage = Callable[[Path], Any]


def json_damage(sound: dict[str, Path]) -> Iterator[tuple[str, str, Damage]]:
    """Each key of each JSON file and list, and each column of the tables of meta/: missing, and each strange value."""
    for kind in ("v2.0", "v2.1", "v3 video", "v3 images"):
        for where in _keys(json.loads((sound[kind] / "meta/info.json").read_text())):
            for label, value in VALUES.items():
                yield kind, f"info.json {'.'.join(where)} = {label}", _set_json("meta/info.json", where, value, None)
        if kind.startswith("v2"):
            for file, keys in (("episodes", ("episode_index", "tasks", "length")), ("tasks", ("task_index", "task"))):
                for key in keys:
                    for label, value in VALUES.items():
                        path = f"meta/{file}.jsonl"
                        yield kind, f"{file}.jsonl {key} = {label}", _set_json(path, (key,), value, 1)
        else:
            for file in ("meta/episodes/chunk-000/file-000.parquet", "meta/tasks.parquet", "meta/plaudit.parquet"):
                for column in pq.read_schema(sound[kind] / file).names:
                    if not column.startswith("stats/"):
                        for label, change in changed_columns():
                            yield kind, f"{file} {column}: {label}", _set_column(file, column, change)
    for label, text in BAD_JSON.items():
        for file in ("meta/info.json", "meta/episodes.jsonl", "meta/tasks.jsonl"):
            yield "v2.1", f"{file}: {label}", _write(file, text)


def _keys(tree: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in tree.items():
        yield (*above, key)
        if isinstance(value, dict):
            yield from _keys(value, (*above, key))


def _set_json(file: str, where: tuple[str, ...], value: Any, line: int | None) -> Damage:
    def damage(folder: Path) -> None:
        path = folder / file
        lines = [json.loads(text) for text in path.read_text().splitlines()] if line is not None else []
        tree = lines[line] if line is not None else json.loads(path.read_text())
        inner = tree
        for key in where[:-1]:
            inner = inner[key]
        if value is VALUES["missing"]:
            del inner[where[-1]]
        else:
            inner[where[-1]] = value
        whole = "\n".join(map(json.dumps, lines)) if line is not None else json.dumps(tree)
        path.write_text(whole)

    return damage


def _set_column(file: str, column: str, change: Callable[[pa.Table, str], pa.Table]) -> Damage:
    def damage(folder: Path) -> None:
        path = folder / file
        pq.write_table(change(pq.read_table(path), column), path)

    return damage


def _write(file: str, data: bytes) -> Damage:
    def damage(folder: Path) -> None:
        (folder / file).write_bytes(data)

    return damage


def column_damage(sound: dict[str, Path]) -> Iterator[tuple[str, str, Damage]]:
    for kind in ("v2.0", "v2.1", "v3 video", "v3 images"):
        file = next((sound[kind] / "data").rglob("*1.parquet" if kind.startswith("v2") else "*.parquet"))
        for column in pq.read_schema(file).names:
            for label, change in changed_columns():
                name = str(file.relative_to(sound[kind]))
                yield kind, f"{column}: {label}", _set_column(name, column, change)


def file_damage(sound: dict[str, Path], rng: np.random.Generator) -> Iterator[tuple[str, str, Damage]]:
    for kind, root in sound.items():
        files = sorted(path.relative_to(root) for path in root.rglob("*") if path.is_file())
        for file in files[:40]:
            size = (root / file).stat().st_size
            for cut in sorted({0, 1, size // 2, size - 1, int(rng.integers(0, size))}):
                yield kind, f"{file} cut to {cut}", _change(file, lambda data, n=cut: data[:n])
            for _ in range(4):
                at, value = int(rng.integers(0, size)), int(rng.integers(1, 256))
                yield kind, f"{file} byte {at} ^ {value}", _change(file, lambda data, a=at, v=value: _flip(data, a, v))
            other = (root / files[int(rng.integers(0, len(files)))]).read_bytes()
            yield kind, f"{file} exchanged", _change(file, lambda data, o=other: o)
            yield kind, f"{file} a folder", lambda folder, f=file: ((folder / f).unlink(), (folder / f).mkdir())[1]
            yield kind, f"{file} missing", lambda folder, f=file: (folder / f).unlink()
            yield kind, f"{file} a fifo", lambda folder, f=file: ((folder / f).unlink(), os.mkfifo(folder / f))[1]
            yield kind, f"{file} not text", _change(file, lambda data: b"\xff\xfe" + data)


def _change(file: Path, change: Callable[[bytes], bytes]) -> Damage:
    def damage(folder: Path) -> None:
        (folder / file).write_bytes(change((folder / file).read_bytes()))

    return damage


def _flip(data: bytes, at: int, value: int) -> bytes:
    return data[:at] + bytes([data[at] ^ value]) + data[at + 1 :]


def path_damage(sound: dict[str, Path], bait: Bait) -> Iterator[tuple[str, str, Damage]]:
    for path in [*HOSTILE_PATHS, *bait.paths("parquet"), *bait.templates()]:
        for kind in ("v2.1", "v3 video"):
            for key in ("data_path", "video_path"):
                yield kind, f"{key} = {path[:60]}", _set_json("meta/info.json", (key,), path, None)
    for path in [*HOSTILE_PATHS, *bait.paths("png")]:

        def name_it(table: pa.Table, column: str, path: str = path) -> pa.Table:
            rows = table.to_pylist()
            rows[2][column] = {"bytes": None, "path": path}
            return pa.Table.from_pylist(rows)

        file = "data/chunk-000/episode_000001.parquet"
        yield "v2.1", f"an image at {path[:60]}", _set_column(file, CAMERA, name_it)
    for kind, root in sound.items():
        files = sorted(path for path in root.rglob("*") if path.is_file())
        for file in files[:12]:
            inner = file.relative_to(root)
            for target in ("/dev/zero", "/etc/passwd", bait.path(file.suffix[1:])):

                def link(folder: Path, file: Path = inner, target: str = f"{target}") -> None:
                    (folder / file).unlink()
                    (folder / file).symlink_to(target)

                yield kind, f"{file.name} a link to {target}", link


def image_damage(bait: Bait) -> Iterator[tuple[str, str, Damage]]:
    for label, make in HOSTILE_IMAGES.items():

        def put(table: pa.Table, column: str, make: Callable[[Bait], bytes] = make) -> pa.Table:
            rows = table.to_pylist()
            rows[2][column] = {"bytes": make(bait), "path": "a.png"}
            return pa.Table.from_pylist(rows)

        for kind, file in (("v2.1", "data/chunk-000/episode_000001.parquet"), ("v3 images", _V3_TABLE)):
            yield kind, f"an image: {label}", _set_column(file, CAMERA, put)


_V3_TABLE = "data/chunk-000/file-000.parquet"
_V3_VIDEO = "videos/observation.images.front/chunk-000/file-000.mp4"


def video_damage(bait: Bait) -> Iterator[tuple[str, str, Damage]]:
    for label, make in HOSTILE_VIDEOS.items():
        yield "v3 video", f"a video: {label}", lambda folder, m=make: (folder / _V3_VIDEO).write_bytes(m(bait, folder))


def bombs() -> Iterator[tuple[str, str, Damage]]:
    def long_table(folder: Path) -> None:
        """Sixty million equal rows in a few kilobytes."""
        path = folder / "data/chunk-000/episode_000001.parquet"
        rows = pq.read_table(path).slice(0, 1).drop_columns([CAMERA])
        with pq.ParquetWriter(path, rows.schema, compression="zstd") as writer:
            column = pa.concat_tables([rows] * 2**12).combine_chunks()
            for _ in range(8):
                writer.write_table(pa.concat_tables([column] * 2**4))

    def large_frames(folder: Path) -> None:
        _set_json("meta/info.json", ("features", CAMERA, "shape"), [8000, 8000, 3], None)(folder)

    def large_episode(folder: Path) -> None:
        _set_json("meta/episodes.jsonl", ("length",), 1_000_000_000, 1)(folder)

    def same_bytes(folder: Path) -> None:
        """One large string in a dictionary, and a hundred thousand rows that name it."""
        path = folder / "data/chunk-000/episode_000001.parquet"
        table = pq.read_table(path)
        entry = {"bytes": b"x" * (1 << 20), "path": ""}
        images = pa.array([entry] * LENGTH, table.schema.field(CAMERA).type)
        table = table.set_column(table.schema.get_field_index(CAMERA), CAMERA, images)
        whole = pa.concat_tables([table] * 200)
        pq.write_table(whole, path, compression="zstd", use_dictionary=True, dictionary_pagesize_limit=1 << 26)

    for label, damage in (
        ("a table of equal rows", long_table),
        ("frames of 8000x8000 that are none", large_frames),
        ("an episode of a billion rows", large_episode),
        ("rows that share a large string", same_bytes),
    ):
        yield "v2.1", label, damage
    yield "v3 images", "frames of 8000x8000 that are none", large_frames


def pickle_damage(bait: Bait) -> Iterator[tuple[str, str, Damage]]:
    for label, make in PICKLES.items():
        yield "pkl", label, lambda folder, m=make: (folder / "success/episode_000001.pkl").write_bytes(m(bait))
        yield (
            "npy",
            f"in .npy: {label}",
            lambda folder, m=make: (folder / "positive/000001.npy").write_bytes(_object_npy(m(bait))),
        )
    for label, data in NPY.items():
        yield "npy", label, lambda folder, d=data: (folder / "positive/000001.npy").write_bytes(d)


def _object_npy(pickled: bytes) -> bytes:
    """A .npy file of an object, which is a pickle behind a header."""
    file = io.BytesIO()
    np.save(file, np.array(None, dtype=object), allow_pickle=True)
    return file.getvalue()[:128] + pickled
