"""What the attacks on readers of foreign files are made of: bait, strange values, paths, texts and columns."""

import io
import os
import pickle
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from attacks.tally import Breach
from plaudit.data.store import Store, is_store
from plaudit.errors import PlauditError

SECRET = 424_242.0
COLOR = (250, 5, 250)
SIZE = (16, 32)
WIDE = (32, 16)  # the same as Pillow says it


def video(
    codec: str, size: tuple[int, int], frames: int, container: str = "mp4", color: tuple[int, int, int] = (1, 2, 3)
) -> bytes:
    """A video of one color."""
    file = io.BytesIO()
    with av.open(file, "w", format=container) as out:
        stream: Any = out.add_stream(codec, rate=Fraction(10))
        stream.height, stream.width, stream.pix_fmt = *size, "yuv420p"
        picture = av.VideoFrame.from_ndarray(np.full((*size, 3), color, np.uint8), format="rgb24")
        for number in range(frames):
            picture.pts, picture.time_base = number, Fraction(1, 10)
            out.mux(stream.encode(picture))
        out.mux(stream.encode(None))
    return file.getvalue()


@dataclass
class Bait:
    """A file that must not be read, an address that must not be asked, a mark that only foreign code would make."""

    folder: Path
    listener: socket.socket
    requests: list[bytes] = field(default_factory=list)

    @classmethod
    def lay(cls, folder: Path) -> "Bait":
        (folder / "bin").mkdir(parents=True)
        for program in ("gs", "gswin64c", "ffmpeg", "xdg-open", "sh-bait"):
            path = folder / "bin" / program
            path.write_text(f"#!/bin/sh\ntouch '{folder}/mark'\n")
            path.chmod(0o755)
        os.environ["PATH"] = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        Image.new("RGB", WIDE, COLOR).save(folder / "secret.png")
        steps = [{"observation.state": [SECRET, SECRET], "action": [SECRET, SECRET], "episode_index": 1}] * 6
        pq.write_table(pa.Table.from_pylist(steps), folder / "secret.parquet")
        np.save(folder / "secret.npy", np.full(4, SECRET))
        (folder / "secret.pkl").write_bytes(pickle.dumps({"frames": [SECRET]}))
        (folder / "secret.mp4").write_bytes(video("libx264", SIZE, 18, color=COLOR))
        bait = cls(folder, socket.create_server(("127.0.0.1", 0)))
        threading.Thread(target=bait._listen, daemon=True).start()
        return bait

    def _listen(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(1)
                self.requests.append(connection.recv(1000))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.listener.getsockname()[1]}"

    def path(self, suffix: str) -> Path:
        return self.folder / f"secret.{suffix}"

    def paths(self, suffix: str) -> list[str]:
        return [
            str(self.path(suffix)),
            f"../../bait/secret.{suffix}",
            f"{self.url}/a.{suffix}",
            f"file://{self.path(suffix)}",
        ]

    def templates(self) -> list[str]:
        return [
            "{episode_index:>2000000000}",
            "{episode_index.__class__}",
            "{episode_index!r:>99999999}",
            "{0}",
            "{",
            "{}",
            "{video_key[0]}",
        ]

    def is_in(self, store: Path) -> bool:
        """Whether the secret came into a store."""
        if not is_store(store):
            return False
        try:
            opened = Store.open(store)
            episodes = [opened.episode(i) for i in opened.ids]
        except PlauditError:
            return False
        colors = [frames for episode in episodes for frames in episode.frames.values()]
        numbers = any((episode.state == SECRET).any() for episode in episodes)
        return numbers or any((np.abs(frames.astype(int) - COLOR).max(axis=(1, 2, 3)) < 8).any() for frames in colors)

    def is_copied(self, folder: Path) -> bool:
        """Whether a file of the secret, or one of the system, is among those of a folder."""
        hidden = {path.read_bytes() for path in (*self.folder.glob("secret.*"), Path("/etc/passwd"))}
        marks = [struct.pack(kind, SECRET) for kind in ("<d", "<f")]  # as a table has them in its footer
        contents = (path.read_bytes() for path in folder.rglob("*") if path.is_file())
        return any(data in hidden or any(mark in data for mark in marks) for data in contents)

    def taken(self) -> Iterator[Breach]:
        mark = self.folder / "mark"
        if mark.exists():
            mark.unlink()
            yield "code_run"
        if self.requests:
            self.requests.clear()
            yield "requests_sent"

    def close(self) -> None:
        self.listener.close()


_DEEP: Any = 0
for _ in range(50):
    _DEEP = [_DEEP]

VALUES: dict[str, Any] = {
    "missing": object(),
    "null": None,
    "text": "x",
    "empty text": "",
    "long text": "x" * 100_000,
    "half a character": "\ud800",
    "controls": "\x1b[31m\x00",
    "true": True,
    "minus one": -1,
    "zero": 0,
    "half": 0.5,
    "large": 2**63,
    "beyond all floats": 10**400,
    "very large": 10**400,
    "nan": float("nan"),
    "infinite": float("inf"),
    "list": [1, 2],
    "mapping": {"a": 1},
    "deep": _DEEP,
    "empty list": [],
    "empty mapping": {},
    "up": "../../../etc/passwd",
}

HOSTILE_PATHS = [
    "/etc/passwd",
    "/dev/zero",
    "/dev/stdin",
    "../../../../../../etc/passwd",
    "data/../../../../../etc/passwd",
    "/proc/self/environ",
    "meta",
    ".",
    "a\x00b",
    "x" * 5000,
    "ftp://127.0.0.1/x",
    "concat:/etc/passwd",
    "subfile,,start,0,end,9,,:/etc/passwd",
    "pipe:0",
    "~/.ssh/id_rsa",
    "\\\\host\\share",
]

BAD_JSON: dict[str, bytes] = {
    "empty": b"",
    "a list": b"[]",
    "a number": b"1",
    "null": b"null",
    "brackets": b"[" * 5_000,
    "braces": b'{"a":' * 50_000,
    "closed brackets": b"[" * 50_000 + b"]" * 50_000,
    "no text": b"\xff\xfe\x00",
    "zeros": b"\0" * 10_000,
    "digits": b"1" * 200_000,
    "half a character": b'{"a": "\\ud800"}',
    "twice": b'{"a": 1, "a": 2}',
    "many lists": b"[" + b"[]," * 30_000 + b"[]]",
    "nan": b'{"fps": NaN, "codebase_version": "v2.1", "features": {}}',
    "a long string": b'{"a": "' + b"x" * 2_000_000 + b'"}',
    "not closed": b'{"a": "' + b"\\" * 100_001,
    "a byte order mark": b"\xef\xbb\xbf{}",
}

_LAUGHS = b"a0: &a0 [x, x]\n" + b"".join(
    f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}, *a{i - 1}]\n".encode() for i in range(1, 40)
)
BAD_YAML: dict[str, bytes] = {
    "laughs": _LAUGHS,
    "references": b"a0: xxxxxxxxxx\n" + b"".join(f"a{i}: ${{a{i - 1}}}${{a{i - 1}}}\n".encode() for i in range(1, 40)),
    "referred lists": b"a0: [x, x]\n"
    + b"".join(f'a{i}: ["${{a{i - 1}}}", "${{a{i - 1}}}"]\n'.encode() for i in range(1, 40)),
    "a circle of references": b"a: ${b}\nb: ${a}\n",
    "a chain of references": b"a0: x\n" + b"".join(f"a{i}: ${{a{i - 1}}}\n".encode() for i in range(1, 1500)),
    "nested references": b"a: " + b"${" * 5000,
    "an alias of itself": b"a: &a [*a]\n",
    "merged into itself": b"a: &a\n  <<: *a\n",
    "brackets": b"[" * 5_000,
    "braces": b"{" * 5_000,
    "dashes": b"- " * 5_000,
    "questions": b"? " * 5_000,
    "python": b"!!python/object/apply:os.system ['touch mark']",
    "a number by sixties": b"a: " + b"1:" * 4_000 + b"1",
    "digits": b"a: " + b"1" * 10_000,
    "no bool": b"a: !!bool x",
    "no time": b"a: !!timestamp x",
    "no month": b"a: 2024-99-99",
    "no number": b"a: !!int ''",
    "binary": b"a: !!binary x",
    "a set": b"a: !!set {1, 2}",
    "strange keys": b"? [1, 2]\n: 3\n",
    "two documents": b"a: 1\n---\nb: 2\n",
    "long": b"- a\n" * 400_000,
}

LABEL_FILES: dict[str, bytes] = {
    "a long range": b"{0-4000000000: 3}",
    "a longer one": b"{0-99999999999999999999999: 3}",
    "many ranges": b"{" + b", ".join(b"%d-%d: 3" % (i * 10**6, (i + 1) * 10**6 - 1) for i in range(300)) + b"}",
    "other digits": "{²: 3}".encode(),
    "a large number": b"{" + b"1" * 5000 + b": 3}",
    "deep": b"{0: " + b"[" * 5000 + b"]" * 5000 + b"}",
}


def changed_columns() -> Iterator[tuple[str, Callable[[pa.Table, str], pa.Table]]]:
    """Ways to damage a column of a table."""

    def put(make: Callable[[pa.Table, str], Any]) -> Callable[[pa.Table, str], pa.Table]:
        def change(table: pa.Table, name: str) -> pa.Table:
            return table.set_column(table.schema.get_field_index(name), name, make(table, name))

        return change

    def nulls(table: pa.Table, name: str) -> pa.Array:
        return pa.array([None, *table[name].to_pylist()[1:]], table.schema.field(name).type)

    yield "missing", lambda table, name: table.drop_columns([name])
    yield "twice", lambda table, name: table.append_column(name, table[name])
    yield "no rows", lambda table, name: table.slice(0, 0)
    yield "fewer rows", lambda table, name: table.slice(0, table.num_rows - 1)
    yield "rows again", lambda table, name: pa.concat_tables([table, table])
    yield "rows reversed", lambda table, name: table.take(list(range(table.num_rows))[::-1])
    yield "a null", put(nulls)
    for label, value in (
        ("text", "x"),
        ("bytes", b"x"),
        ("nan", float("nan")),
        ("infinite", float("inf")),
        ("minus one", -1),
        ("large", 2**62),
        ("large float", 1e300),
        ("true", True),
        ("nulls", None),
        ("long lists", [1.0] * 1000),
        ("empty lists", []),
        ("lists of lists", [[1.0], [2.0]]),
        ("lists of text", ["x"]),
        ("structs", {"path": "/etc/passwd", "bytes": None}),
        ("empty structs", {"path": None, "bytes": None}),
        ("times", {"path": "x", "timestamp": 0.0}),
    ):
        yield label, put(lambda table, name, v=value: pa.array([v] * table.num_rows))
    yield "ragged", put(lambda table, name: pa.array([[1.0] * (i % 3) for i in range(table.num_rows)]))
    yield "dates", put(lambda table, name: pa.array([2**62] * table.num_rows, pa.timestamp("us")))
    yield "decimals", put(lambda table, name: pa.array([1] * table.num_rows, pa.decimal128(38, 2)))
    yield "a dictionary", put(lambda table, name: pa.array(["a"] * table.num_rows).dictionary_encode())
