import collections
import contextlib
import pickle
import random
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plaudit.data.formats.decoder import load_npy, load_pickle
from plaudit.errors import BadFile, UnsafeFile

PLAIN = {
    "f": np.arange(6, dtype=np.float32).reshape(2, 3),
    "fortran": np.asfortranarray(np.arange(6).reshape(2, 3)),
    "bools": np.array([True, False]),
    "empty": np.zeros((0, 3), np.uint8),
    "scalars": [np.float64(3), np.bool_(True), True, None, "text", b"bytes", 1.5, (1, 2)],
}


class Bomb:
    def __init__(self, call, *args):
        self.call, self.args = call, args

    def __reduce__(self):
        return self.call, self.args


@pytest.mark.parametrize("protocol", range(6))
def test_arrays_and_plain_containers_of_every_protocol_are_read(tmp_path, protocol):
    path = tmp_path / "plain.pkl"
    path.write_bytes(pickle.dumps(PLAIN, protocol=protocol))
    found = load_pickle(path)
    assert list(found) == list(PLAIN)
    assert all(np.array_equal(found[k], PLAIN[k]) and found[k].dtype == PLAIN[k].dtype for k in list(PLAIN)[:4])
    assert found["scalars"] == PLAIN["scalars"]


@pytest.mark.parametrize("array", [np.arange(24.0).reshape(2, 3, 4), np.asfortranarray(np.ones((3, 2))), np.zeros(0)])
def test_a_plain_npy_is_read(tmp_path, array):
    np.save(tmp_path / "a.npy", array)
    assert np.array_equal(load_npy(tmp_path / "a.npy"), array)


def test_a_dictionary_in_an_npy_is_read(tmp_path):
    np.save(tmp_path / "a.npy", PLAIN, allow_pickle=True)  # pyright: ignore[reportArgumentType]
    assert np.array_equal(load_npy(tmp_path / "a.npy")["f"], PLAIN["f"])


BOMBS = [
    Bomb(exec, "open('pwned', 'w')"),
    Bomb(eval, "1"),
    Bomb(print, "hello"),
    Bomb(getattr, "x", "upper"),
    Bomb(np.load, "x"),
    Bomb(collections.Counter, "x"),
    {"deep": [1, (2, Bomb(exec, "open('pwned', 'w')"))]},
]


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_pickle_that_would_run_code_is_refused_and_nothing_is_run(tmp_path, monkeypatch, bomb):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bomb.pkl").write_bytes(pickle.dumps(bomb))
    np.save(tmp_path / "bomb.npy", np.array([bomb, 1], dtype=object), allow_pickle=True)
    for load, name in ((load_pickle, "bomb.pkl"), (load_npy, "bomb.npy")):
        with pytest.raises(UnsafeFile, match=f"{name}: this pickle asks for .*nothing was run"):
            load(tmp_path / name)
    assert not (tmp_path / "pwned").exists()


class Reduced:
    def __init__(self, *parts):
        self.parts = parts

    def __reduce__(self):
        return self.parts


def forged_array(dtype_state: tuple, data: bytes, shape: tuple = (1,)) -> bytes:
    """A pickle that tells numpy things about an array that numpy itself would believe."""
    reconstruct = np.zeros(1).__reduce__()[0]
    dtype = Reduced(np.dtype, ("f8", False, True), dtype_state)
    return pickle.dumps(Reduced(reconstruct, (np.ndarray, (0,), b"b"), (1, shape, dtype, False, data)))


def test_numbers_that_are_said_to_be_object_pointers_stay_numbers(tmp_path):
    """With the flags of an object type, numpy's own loader would follow these bytes as an address."""
    pointer = (0x4141414141414141).to_bytes(8, "little")
    (tmp_path / "a.pkl").write_bytes(forged_array((3, "<", None, None, None, -1, -1, 63), pointer))
    assert load_pickle(tmp_path / "a.pkl").tobytes() == pointer


@pytest.mark.parametrize(
    ("state", "data", "shape"),
    [
        ((3, "<", ("f8", (1 << 40,)), None, None, -1, -1, 0), bytes(8), (1,)),  # a sub-array larger than its bytes
        ((3, "<", None, ("a",), {"a": 1}, 8, 1, 0), bytes(8), (1,)),  # fields that lie outside
        ((3, "<", None, None, None, -1, -1, 0), bytes(8), (1 << 40,)),  # a shape larger than its bytes
        ((3, "<", None, None, None, -1, -1, 0), bytes(8), (-1,)),
        ((3, "?", None, None, None, -1, -1, 0), bytes(8), (1,)),
    ],
)
def test_what_no_numpy_writes_is_refused(tmp_path, state, data, shape):
    (tmp_path / "a.pkl").write_bytes(forged_array(state, data, shape))
    with pytest.raises(BadFile, match="cut short or damaged"):
        load_pickle(tmp_path / "a.pkl")


def test_state_for_anything_but_an_array_is_refused(tmp_path):
    (tmp_path / "a.pkl").write_bytes(b"cnumpy\ndtype\n}X\x04\x00\x00\x00realK\x01sb.")  # would patch our own class
    with pytest.raises(BadFile, match="cut short or damaged"):
        load_pickle(tmp_path / "a.pkl")


def test_a_table_of_gigabytes_is_not_made(tmp_path):
    (tmp_path / "a.pkl").write_bytes(b"\x80\x04]r\xff\xff\xff\xff.")  # LONG_BINPUT into slot 4,294,967,295
    with pytest.raises(BadFile, match="cut short or damaged"):
        load_pickle(tmp_path / "a.pkl")


def test_an_array_of_objects_is_refused(tmp_path):
    np.save(tmp_path / "o.npy", np.array([1, "a", None], dtype=object), allow_pickle=True)
    with pytest.raises(UnsafeFile, match="array of objects"):
        load_npy(tmp_path / "o.npy")
    (tmp_path / "o.pkl").write_bytes(pickle.dumps({"deep": [np.array([{}], dtype=object)]}))
    with pytest.raises(UnsafeFile, match="array of objects"):
        load_pickle(tmp_path / "o.pkl")


@pytest.mark.parametrize("cuts", [20, pytest.param(60, marks=pytest.mark.slow)])
def test_a_file_cut_short_anywhere_is_named(tmp_path, cuts):
    whole = pickle.dumps(PLAIN)
    np.save(tmp_path / "a.npy", np.arange(40.0))
    array = (tmp_path / "a.npy").read_bytes()
    for cut in random.Random(0).sample(range(len(whole)), cuts):
        (tmp_path / "a.pkl").write_bytes(whole[:cut])
        with pytest.raises(BadFile, match=r"a.pkl: this pickle is cut short or damaged"):
            load_pickle(tmp_path / "a.pkl")
    for cut in range(0, len(array), 540 // cuts):
        (tmp_path / "a.npy").write_bytes(array[:cut])
        with pytest.raises(BadFile, match=r"a.npy: this .npy file"):
            load_npy(tmp_path / "a.npy")


def test_a_missing_file_is_named(tmp_path):
    for load in (load_pickle, load_npy):
        with pytest.raises(BadFile, match=r"nothing: there is no such file"):
            load(tmp_path / "nothing")


@settings(deadline=None, derandomize=True)
@given(st.data())
def test_bytes_changed_at_random_are_read_or_refused_and_never_run(data):
    whole = bytearray(pickle.dumps(PLAIN))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.pkl"
        path.write_bytes(whole)
        with contextlib.suppress(BadFile):
            load_pickle(path)
