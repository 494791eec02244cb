"""The number of lines of a journal, stored a second time: `journal.head` beside `journal`.

A journal that lost its last lines at a line boundary looks like a shorter journal. So each append also writes the
number of the last line and the checksum of all lines so far, after the line itself is synced: a head may lag behind
its journal and never leads it. It is not synced by itself, which would double the cost of a label; a killed process
leaves it exact, and a power cut may set it back to what the machine had written. Lines that it does not cover are
synced all the same.

Two slots are written in turn, each with a checksum, so that one torn write leaves the other.
"""

import os
import re
import zlib
from contextlib import suppress
from dataclasses import dataclass

from plaudit.data.disk import Folder, write_at

SLOT = 64  # bytes
_NOTE = re.compile(rb"(\d{1,15}) ([0-9a-f]{8})")


@dataclass(frozen=True)
class Head:
    count: int  # of the last line
    chain: int  # the checksum of all lines up to it
    slot: int = 1  # where this was read


def head_name(journal: str) -> str:
    return f"{journal}.head"


def read_head(folder: Folder, journal: str) -> Head | None:
    """What was noted last; None where there is nothing that can be read."""
    try:
        with folder.opened(head_name(journal), os.O_RDONLY) as file:
            return read_open_head(file)
    except FileNotFoundError:
        return None


def read_open_head(file: int) -> Head | None:
    data = os.pread(file, 2 * SLOT, 0)
    found = [_decode(data[slot * SLOT : (slot + 1) * SLOT], slot) for slot in (0, 1)]
    return max((head for head in found if head is not None), key=lambda head: head.count, default=None)


def write_head(file: int, count: int, chain: int, last: Head | None) -> Head:
    """Note it in the slot that does not hold the newest note.

    A disk that fails here fails nobody: the lines are safe, and a head may lag.
    """
    slot = 1 - last.slot if last is not None else 0
    with suppress(OSError):
        write_at(file, memoryview(_encode(count, chain)), slot * SLOT)
    return Head(count, chain, slot)


def replace_head(folder: Folder, journal: str, count: int, chain: int) -> None:
    """A new file, synced: with a new journal, and after a repair, which may count fewer lines."""
    folder.write(head_name(journal), _encode(count, chain) + b" " * (SLOT - 1) + b"\n")


def _encode(count: int, chain: int) -> bytes:
    text = b"%d %08x" % (count, chain)
    return (b"%08x %s" % (zlib.crc32(text), text)).ljust(SLOT - 1) + b"\n"


def _decode(data: bytes, slot: int) -> Head | None:
    line = data.rstrip(b" \n")
    note = _NOTE.fullmatch(line[9:])
    if note is None or line[:9] != b"%08x " % zlib.crc32(line[9:]):
        return None
    return Head(int(note[1]), int(note[2], 16), slot)
