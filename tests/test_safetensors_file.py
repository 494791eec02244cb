"""Heads of safetensors files that lie."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from plaudit.errors import BadFile
from plaudit.files import safetensors_shapes
from plaudit.policies.loader import read_weights


def written(path: Path, head: Any, data: bytes = b"", length: int | None = None) -> Path:
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)
    return path


def test_shapes_are_told_by_the_head_alone(tmp_path):
    save_file({"w": np.zeros((2, 3), np.float32), "b": np.zeros(0, np.int8)}, tmp_path / "a.safetensors")
    assert safetensors_shapes(tmp_path / "a.safetensors") == {"w": (2, 3), "b": (0,)}


EMPTY = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}


@pytest.mark.parametrize(
    ("head", "length"),
    [
        ({}, 1 << 62),
        (b" " * (17 << 20), None),
        (b"[" * 50_000, None),
        ([1], None),
        ({"w": {**EMPTY, "shape": [-1]}}, None),
        ({"w": {**EMPTY, "shape": [1 << 60, 8]}}, None),
        ({"w": 3}, None),
    ],
    ids=["length", "size", "nested", "list", "negative", "more than the file", "no tensor"],
)
def test_a_head_that_lies_is_refused(tmp_path, head, length):
    path = written(tmp_path / "a.safetensors", head, length=length)
    for read in (safetensors_shapes, read_weights):
        with pytest.raises(BadFile):
            read(path)


def test_a_pipe_is_no_file_of_weights(tmp_path):
    os.mkfifo(tmp_path / "a.safetensors")
    with pytest.raises(BadFile, match="this is a pipe"):
        safetensors_shapes(tmp_path / "a.safetensors")
