"""Files of torch from somebody else: read as torch reads them, and believed no further than their bytes go."""

import io
import os
import pickle
import zipfile
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, _utils, nn

from plaudit.data.weights import read_torch
from plaudit.devices import Adam
from plaudit.errors import BadFile, UnsafeFile


def saved(tmp_path: Path, tree: Any, zipped: bool = True) -> Path:
    torch.save(tree, tmp_path / "a.pt", _use_new_zipfile_serialization=zipped)
    return tmp_path / "a.pt"


def assert_same(ours: Any, theirs: Any) -> None:
    if isinstance(theirs, Tensor):
        assert ours.dtype == theirs.dtype and torch.equal(ours, theirs)
    elif isinstance(theirs, dict):
        assert list(ours) == list(theirs)
        for name in theirs:
            assert_same(ours[name], theirs[name])
    else:
        assert ours == theirs


@pytest.mark.parametrize("zipped", [True, False])
def test_what_torch_saves_is_read_as_torch_reads_it(tmp_path, zipped):
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    optimizer = Adam(net.parameters())
    net(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    grid = torch.arange(24.0).reshape(4, 6)
    tree = {
        "model_state_dict": net.state_dict(),
        "optimizer_state_dict": optimizer.state_dict(),
        "views": {"transposed": grid.t(), "strided": grid[1:3, ::2], "tied": grid, "parameter": nn.Parameter(grid)},
        "types": {str(t): torch.tensor([0, 1, 2]).to(t) for t in (torch.float16, torch.bfloat16, torch.bool)},
        "small": {"scalar": torch.tensor(3.0), "empty": torch.zeros(0, 5)},
        "plain": [1, 2.5, "text", None, (1, 2), torch.float16],
    }
    path = saved(tmp_path, tree, zipped)
    assert_same(read_torch(path), torch.load(path, weights_only=True))


class Rebuilt:
    """A tensor that says of itself what it likes."""

    def __init__(self, shape: tuple, stride: tuple, offset: int = 0, call: Any = _utils._rebuild_tensor_v2):
        self.arguments, self.call = (Numbers(), offset, shape, stride, False, {}), call

    def __reduce__(self):
        return self.call, self.arguments


class Numbers:
    """Where a storage of ten numbers stands."""


class Calls:
    def __init__(self, call: Any, *arguments: Any):
        self.call, self.arguments = call, arguments

    def __reduce__(self):
        return self.call, self.arguments


class Pickler(pickle.Pickler):
    def persistent_id(self, obj):
        return ("storage", torch.FloatStorage, "0", "cpu", 10) if isinstance(obj, Numbers) else None


def archive(
    path: Path, tree: Any, numbers: bytes = bytes(40), entries: Any = (), how: int = zipfile.ZIP_STORED
) -> Path:
    """As torch.save writes one, with whatever `tree` calls."""
    program = io.BytesIO()
    Pickler(program, protocol=2).dump(tree)
    with zipfile.ZipFile(path, "w", how) as file:
        for name, data in (("a/data.pkl", program.getvalue()), ("a/version", "3"), ("a/data/0", numbers), *entries):
            file.writestr(name, data)
    return path


def test_an_archive_of_the_test_is_what_torch_reads(tmp_path):
    path = archive(tmp_path / "a.pt", {"w": Rebuilt((2, 5), (5, 1))})
    assert torch.equal(read_torch(path)["w"], torch.load(path, weights_only=True)["w"])


HUGE = {
    "a shape beyond its numbers": Rebuilt((1 << 30,), (1,)),
    "one number a billion times": Rebuilt((1 << 30,), (0,)),
    "an offset beyond its numbers": Rebuilt((5,), (1,), offset=6),
    "strides beyond its numbers": Rebuilt((2, 5), (50, 1)),
    "a negative size": Rebuilt((-1, 5), (1, 1)),
    "a product that overflows": Rebuilt((1 << 40, 1 << 40), (0, 0)),
    "a size of floats": Rebuilt((2.0,), (1,)),
}


@pytest.mark.parametrize("what", HUGE)
def test_a_tensor_has_no_more_numbers_than_the_file(tmp_path, what):
    with pytest.raises(BadFile, match="no sound file of torch"):
        read_torch(archive(tmp_path / "a.pt", {"w": HUGE[what]}))


@pytest.mark.parametrize("call", [Calls(os.system, "touch sprung"), Calls(torch.zeros, 1 << 33)])
def test_calls_are_refused_by_name(tmp_path, monkeypatch, call):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnsafeFile, match=r"could run code; nothing was run \(asks for"):
        read_torch(archive(tmp_path / "a.pt", {"w": call}))
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    "call",
    [
        Calls(_utils._rebuild_meta_tensor_no_storage, torch.float32, (1 << 40,), (1,), False),
        Calls(_utils._rebuild_sparse_tensor, torch.sparse_coo, (1, 2, (1 << 40,), True)),
        Calls(_utils._rebuild_device_tensor_from_numpy, np.zeros(3), torch.float32, "cpu", False),
        Calls(bytearray, 1 << 33),
    ],
)
def test_tensors_that_are_not_dense_are_refused(tmp_path, call):
    with pytest.raises(BadFile, match="no sound file of torch"):
        read_torch(archive(tmp_path / "a.pt", {"w": call}))


@pytest.mark.parametrize("name", ["b/data.pkl", "a/data.pkl"])
def test_a_second_program_in_an_archive_is_not_run(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    other = pickle.dumps(Calls(os.system, "touch sprung"), protocol=2)
    with pytest.warns(UserWarning) if name.startswith("a/") else nullcontext():
        path = archive(tmp_path / "a.pt", {"w": Rebuilt((10,), (1,))}, entries=[(name, other)])
    with suppress(BadFile):
        assert read_torch(path)["w"].numel() == 10
    assert not (tmp_path / "sprung").exists()


def test_an_archive_that_unfolds_is_refused(tmp_path):
    path = archive(tmp_path / "a.pt", {"w": Rebuilt((10,), (1,))}, bytes(100 << 20), how=zipfile.ZIP_DEFLATED)
    with pytest.raises(BadFile, match="no sound file of torch"):
        read_torch(path)


def test_a_tensor_that_two_networks_share_is_one_tensor(tmp_path):
    shared = torch.arange(300_000.0)
    path = saved(tmp_path, {f"member{i}": {"encoder": shared} for i in range(10)})
    tree = read_torch(path)
    tree["member0"]["encoder"][0] = 7
    assert tree["member9"]["encoder"][0] == 7 and torch.equal(tree["member9"]["encoder"][1:], shared[1:])


def test_numpy_values_beside_the_tensors_are_read(tmp_path):
    tree = {"w": torch.ones(2), "accuracy": np.float64(0.5), "confusion": np.arange(4).reshape(2, 2)}
    found = read_torch(saved(tmp_path, tree))
    assert found["accuracy"] == 0.5 and np.array_equal(found["confusion"], tree["confusion"])


def test_a_list_of_entries_that_takes_gigabytes_is_not_read(tmp_path):
    path = archive(tmp_path / "a.pt", {"w": Rebuilt((10,), (1,))})
    data = bytearray(path.read_bytes())
    end = data.rindex(b"PK\x05\x06")
    data[end + 12 : end + 16] = (0x7FFFFFFF).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(BadFile, match="no sound file of torch"):
        read_torch(path)


@pytest.mark.parametrize("files", [60, pytest.param(260, marks=pytest.mark.slow)])
@pytest.mark.parametrize("zipped", [True, False])
def test_a_file_cut_anywhere_or_with_a_byte_changed_is_read_or_refused(tmp_path, zipped, files):
    path = saved(tmp_path, {"w": torch.arange(10.0), "n": 3}, zipped)
    whole, rng = path.read_bytes(), np.random.default_rng(0)
    for cut in rng.integers(0, len(whole), files // 4):
        path.write_bytes(whole[:cut])
        with pytest.raises(BadFile):
            read_torch(path)
    for at in rng.integers(0, len(whole), files - files // 4):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ int(rng.integers(1, 256))]) + whole[at + 1 :])
        try:
            found = read_torch(path)
        except BadFile:
            continue
        assert all(t.numel() <= 10 for t in found.values() if isinstance(t, Tensor))


def test_legacy_numbers_are_no_more_than_the_file_has(tmp_path):
    path = saved(tmp_path, {"w": torch.arange(10.0)}, zipped=False)
    whole = path.read_bytes()
    assert whole.count(b"K\nK\x00K\n\x85") == 0 and whole.count(b"K\n") >= 1  # the ten, as pickles write it
    path.write_bytes(whole.replace(b"K\n", b"J\xff\xff\xff\x7f"))
    with pytest.raises(BadFile, match="no sound file of torch"):
        read_torch(path)


def test_pipes_folders_and_pointers_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe.pt")
    with pytest.raises(BadFile, match="this is a pipe"):
        read_torch(tmp_path / "pipe.pt")
    with pytest.raises(BadFile, match="this is a folder"):
        read_torch(tmp_path)
    (tmp_path / "p.pt").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(BadFile, match="git lfs pull"):
        read_torch(tmp_path / "p.pt")
