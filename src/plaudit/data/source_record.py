"""What a store next to a data set was decoded from: `source.json` in `FOLDER.store`.

It has the options of the import and a fingerprint of the data set's files: their names, sizes and times of change.
While both are the same, a command opens the store and reads nothing of the data set. The fingerprint is written last,
so an import that was interrupted is resumed.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from plaudit.data.disk import write_atomic
from plaudit.data.formats.base import ReadOptions
from plaudit.errors import BadFile
from plaudit.files import Root, parse_json, readable

NAME = "source.json"
MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class SourceRecord:
    """The last import of a data set into the store next to it."""

    options: ReadOptions
    fingerprint: str = ""  # of the data set's files; "" until all of its episodes were imported

    @classmethod
    def load(cls, store: Path) -> Self | None:
        """None if there is none; BadFile if it is not one."""
        path = store / NAME
        if not path.exists():
            return None
        with readable(path, "this is no record of a decoded data set ({}); remove it, then the data set is read again"):
            try:
                return TypeAdapter(cls).validate_python(parse_json(Root(store).read(path, MAX_BYTES)))
            except ValidationError as error:
                problem = f"{error.errors()[0]['msg']}; remove this file, then the data set is read again"
                raise BadFile(path, problem) from error

    def save(self, store: Path) -> None:
        """Replace the record."""
        write_atomic(store / NAME, json.dumps(asdict(self)).encode())


def fingerprint_files(path: Path) -> str:
    """A digest of names, sizes and times of change of all files below a folder, or of one file; no file is read."""
    digest = hashlib.blake2b(digest_size=16)
    for line in sorted(_lines(path, "") if path.is_dir() else [_line(path.stat(), "")]):
        digest.update(line.encode(errors="surrogateescape"))
    return digest.hexdigest()


def _lines(folder: Path, above: str) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):  # of git, or of a download
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from _lines(Path(entry), f"{above}{entry.name}/")
            elif entry.is_file():
                yield _line(entry.stat(), above + entry.name)


def _line(status: os.stat_result, name: str) -> str:
    return f"{name}\0{status.st_size}\0{status.st_mtime_ns}\n"


def plain_options(options: ReadOptions) -> dict[str, Any]:
    """By name, as they are in the record; equal options compare equal."""
    return json.loads(json.dumps(asdict(options)))


def describe_options(options: ReadOptions) -> str:
    """Those that are set, like `cameras=front`."""
    usual = plain_options(ReadOptions())
    changed = {name: value for name, value in plain_options(options).items() if value != usual[name]}
    texts = [f"{n}={','.join(map(str, v)) if isinstance(v, list) else v}" for n, v in changed.items()]
    return " ".join(texts) or "no options"
