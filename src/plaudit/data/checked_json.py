"""Small JSON files that carry a checksum of their own content, so that no flipped bit is believed.

    {"format": "plaudit store", "version": 2, ..., "crc": "1c291ca3"}

The checksum is that of the other values, written without spaces and with sorted keys: whoever edits such a file by hand
is told, and how it is indented does not matter. One flipped bit can be put right, as in a journal's line.
"""

import json
import zlib
from typing import Any

from plaudit.data.disk import MAX_SMALL_FILE
from plaudit.untrusted import parse_json

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
