"""Small JSON files with a checksum of their own content.

    {"format": "plaudit store", "version": 2, ..., "crc": "1c291ca3"}

The checksum covers the other values, encoded without spaces and with sorted keys: an edit by hand is detected, and
indentation does not matter. A single flipped bit can be repaired, as in a journal.
"""

import json
import zlib
from typing import Any

from plaudit.data.disk import MAX_SMALL_FILE
from plaudit.files import parse_json

Tree = dict[str, Any]


def encode_checked(tree: Tree) -> bytes:
    return json.dumps({**tree, "crc": _checksum(tree)}, indent=1).encode()


def parse(data: bytes) -> Tree:
    """The content, checksum included; a ValueError where it is no object at all."""
    if len(data) > MAX_SMALL_FILE:
        raise ValueError(f"{len(data):,} bytes are too many")
    tree = parse_json(data)
    if not isinstance(tree, dict):
        raise ValueError("no JSON object")
    return tree


def decode_checked(data: bytes) -> Tree:
    """The content without its checksum; a ValueError where they do not fit."""
    tree = parse(data)
    checksum = tree.pop("crc", None)
    if checksum is None:
        raise ValueError("its checksum is missing")
    if checksum != _checksum(tree):
        raise ValueError("it fails its checksum")
    return tree


def repair_json(data: bytes) -> bytes | None:
    """The bytes with the one bit put right that makes them fit their checksum, or None."""
    if len(data) > 1 << 14:
        return None
    candidate = bytearray(data)
    for position in range(len(candidate)):
        for bit in range(8):
            candidate[position] ^= 1 << bit
            try:
                decode_checked(bytes(candidate))
                return bytes(candidate)
            except ValueError:
                candidate[position] ^= 1 << bit
    return None


def _checksum(tree: Tree) -> str:
    return f"{zlib.crc32(json.dumps(tree, separators=(',', ':'), sort_keys=True).encode()):08x}"
