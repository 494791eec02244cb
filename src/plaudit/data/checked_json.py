"""Small JSON files with a checksum of their own content.

    {"format": "plaudit store", "version": 2, ..., "crc": "1c291ca3"}

The checksum covers the other values, encoded without spaces and with sorted keys: an edit by hand is detected, and
indentation does not matter.
"""

import json
import zlib
from typing import Any

from plaudit.data.disk import MAX_SMALL_FILE
from plaudit.files import parse_json

Tree = dict[str, Any]


def encode_checked(tree: Tree) -> bytes:
    """The content of a file, with its checksum."""
    return json.dumps({**tree, "crc": _checksum(tree)}, indent=1).encode()


def decode_checked(data: bytes) -> Tree:
    """The content without its checksum; ValueError if they do not fit."""
    if len(data) > MAX_SMALL_FILE:
        raise ValueError(f"{len(data):,} bytes are too many")
    tree = parse_json(data)
    if not isinstance(tree, dict):
        raise ValueError("no JSON object")
    checksum = tree.pop("crc", None)
    if checksum is None:
        raise ValueError("its checksum is missing")
    if checksum != _checksum(tree):
        raise ValueError("it fails its checksum")
    return tree


def _checksum(tree: Tree) -> str:
    return f"{zlib.crc32(json.dumps(tree, separators=(',', ':'), sort_keys=True).encode()):08x}"
