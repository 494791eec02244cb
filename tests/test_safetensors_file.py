"""Heads of safetensors files that lie."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from plaudit.errors import BadFile
from plaudit.policies.loader import read_weights
from plaudit.safetensors_file import check_safetensors


def written(path: Path, head: Any, data: bytes = b"", length: int | None = None) -> Path:
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)
    return path


def test_shapes_are_told_by_the_head_alone(tmp_path):
    save_file({"w": np.zeros((2, 3), np.float32), "b": np.zeros(0, np.int8)}, tmp_path / "a.safetensors")
    assert check_safetensors(tmp_path / "a.safetensors") == {"w": (2, 3), "b": (0,)}


EMPTY = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}


@pytest.mark.parametrize(
    ("head", "length", "sentence"),
    [
        ({}, 1 << 62, "its head has 4,611,686,018,427,387,904 bytes, the file 10"),
        (b" " * (17 << 20), None, "its head has 17,825,792 bytes"),
        (b"[" * 50_000, None, "its head is no JSON .it nests"),
        ([1], None, "its head is a list of 1"),
        ({str(i): EMPTY for i in range(11)}, None, "its head is a dict of 11"),
        ({"w": {**EMPTY, "shape": [1 << 60, 0]}}, None, "tensor 'w' has a shape that none has"),
        ({"w": {**EMPTY, "shape": [-1]}}, None, "tensor 'w' has a shape that none has"),
        ({"w": 3}, None, "tensor 'w' has a shape that none has"),
    ],
    ids=["length", "size", "nested", "list", "tensors", "dimensions", "negative", "no tensor"],
)
def test_a_head_that_lies_is_refused(tmp_path, monkeypatch, head, length, sentence):
    monkeypatch.setattr("plaudit.safetensors_file.MAX_TENSORS", 10)
    path = written(tmp_path / "a.safetensors", head, length=length)
    with pytest.raises(BadFile, match=sentence):
        check_safetensors(path)
    with pytest.raises(BadFile):
        read_weights(path)


def test_a_pipe_is_no_file_of_weights(tmp_path):
    os.mkfifo(tmp_path / "a.safetensors")
    with pytest.raises(BadFile, match="this is a pipe"):
        check_safetensors(tmp_path / "a.safetensors")
