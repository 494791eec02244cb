"""The lines of a journal (data/journal.py): a checksum, numbers, and a record as JSON.

    1c291ca3 18 17 8d3f00a2 {"op":"episode",...}

Anyone can compute a checksum, so a line with a right one is still validated: its length, its nesting depth, and that it
is an object. Lines are parsed before they are written, so that nothing unreadable gets into a file.
"""

import json
import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plaudit.errors import DataError
from plaudit.files import parse_json

Record = dict[str, Any]

MAX_LINE_BYTES = 1 << 24  # bytes; a million steps of labels have 12 MB
MAX_REPAIR_BYTES = 1 << 15  # trying every bit takes time with the square of the length: 3 s for this one
HEADER_KEY = "journal"  # the one key of a line that says whose file this is
_NUMBERS = re.compile(rb"(\d{1,15}) (\d{1,15}) ([0-9a-f]{8}) ")  # before the record of a line


@dataclass(frozen=True)
class Line:
    """A line that fits its checksum."""

    record: Record
    number: int | None  # None: of an earlier version
    first: int  # the number of the first line of its append
    chain: int  # the checksum of all lines before it

    @property
    def is_header(self) -> bool:
        return (
            self.number is not None and list(self.record) == [HEADER_KEY] and isinstance(self.record[HEADER_KEY], dict)
        )


def encode(record: Record, number: int, first: int, chain: int) -> bytes:
    text = json.dumps(record, separators=(",", ":"), ensure_ascii=True).encode()
    rest = b"%d %d %08x %s" % (number, first, chain, text)
    return b"%08x %s\n" % (zlib.crc32(rest), rest)


def encode_lines(records: Iterable[Record], first: int, chain: int) -> list[bytes]:
    """The lines of one append."""
    lines: list[bytes] = []
    for number, record in enumerate(records, start=first):
        lines.append(encode(record, number, first, chain))
        chain = zlib.crc32(lines[-1][:-1], chain)
    return lines


def decode(text: bytes | bytearray) -> Line | None:
    """A parsed line, or None if its checksum is wrong."""
    if text[8:9] != b" " or text[:8] != b"%08x" % zlib.crc32(memoryview(text)[9:]):
        return None
    try:
        numbers = _NUMBERS.match(text, 9)
        record = parse_json(bytes(text[numbers.end() if numbers else 9 :]))
    except ValueError:  # a line that was made to fit its checksum, and is none of ours
        return None
    if not isinstance(record, dict):
        return None
    if numbers is None:
        return Line(record, None, 0, 0)
    return Line(record, int(numbers[1]), int(numbers[2]), int(numbers[3], 16))


def check_readable(path: Path, lines: Iterable[bytes]) -> None:
    """Before lines are written: that they can be read back."""
    for line in lines:
        if len(line) > MAX_LINE_BYTES:
            raise DataError(
                f"{path}: a line of {len(line):,} bytes where {MAX_LINE_BYTES:,} are read; nothing was written"
            )
        if decode(line[:-1]) is None:
            raise DataError(
                f"{path}: a text holds half a character, or a value nests too deeply, and could not be read back; "
                f"nothing was written ({line[:200].decode()})"
            )


def repair_lines(damaged: bytes) -> bytes | None:
    """The bytes with the one bit put right that makes every line fit its checksum, or None."""
    if len(damaged) > MAX_REPAIR_BYTES:
        return None
    candidate = bytearray(damaged)
    for position in range(len(candidate)):
        for bit in range(8):
            candidate[position] ^= 1 << bit
            if candidate.endswith(b"\n") and all(decode(line) is not None for line in candidate[:-1].split(b"\n")):
                return bytes(candidate)
            candidate[position] ^= 1 << bit
    return None


def order_problem(line: Line, count: int, chain: int, lines: int, numbered: bool) -> str:
    """What is wrong with a line that follows `lines` others, the last of which has number `count`; "" if nothing."""
    if line.number is None:
        return f"line {lines + 1} has no number among lines that have" if numbered else ""
    if lines == 0 and line.is_header:
        return ""
    if line.number > count + 1:
        return missing(count + 1, line.number - 1)
    if line.number != count + 1 or line.chain != chain:
        return f"line {lines + 1} does not follow the one before it: lines were swapped, doubled or changed"
    return ""


def missing(first: int, last: int) -> str:
    return f"line {first} is missing" if first == last else f"lines {first} to {last} are missing"
