"""Files of torch and safetensors that say of themselves what they like."""

import io
import json
import os
import pickle
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import _utils

from attacks.hostile import Bait

LIES: dict[str, tuple[Any, ...]] = {
    "a shape beyond its numbers": (0, (1 << 30,), (1,)),
    "one number a billion times": (0, (1 << 30,), (0,)),
    "one number 2**80 times": (0, (1 << 40, 1 << 40), (0, 0)),
    "an offset beyond its numbers": (1 << 40, (5,), (1,)),
    "strides beyond its numbers": (0, (2, 5), (1 << 40, 1)),
    "a negative size": (0, (-1, 5), (1, 1)),
    "a negative stride": (9, (5,), (-1,)),
    "a negative offset": (-5, (5,), (1,)),
    "a size of floats": (0, (2.0,), (1.0,)),
    "a size of text": (0, ("x",), (1,)),
    "a hundred dimensions": (0, (1,) * 100, (1,) * 100),
    "nothing, very wide": (0, (0, 1 << 62), (1, 1)),
}


class Numbers:
    """Where a storage stands in the pickle."""


class Calls:
    """Calls what it is told to when it is loaded."""

    def __init__(self, call: Any, *arguments: Any):
        self.call, self.arguments = call, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call, self.arguments


class _Pickler(pickle.Pickler):
    def __init__(self, file: Any, count: int):
        super().__init__(file, protocol=2)
        self._count = count

    def persistent_id(self, obj: Any) -> Any:
        return ("storage", torch.FloatStorage, "0", "cpu", self._count) if isinstance(obj, Numbers) else None


def program(tree: Any, count: int = 10) -> bytes:
    """The pickle of an archive."""
    file = io.BytesIO()
    _Pickler(file, count).dump(tree)
    return file.getvalue()


def archive(entries: list[tuple[str, bytes]], how: int = zipfile.ZIP_STORED) -> bytes:
    """A zip with these, in this order and also where two have one name."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", how) as out:
        for name, data in entries:
            out.writestr(name, data)
    return file.getvalue()


def whole(tree: Any, count: int = 10, numbers: bytes = bytes(40)) -> bytes:
    """An archive as torch.save writes it."""
    return archive([("a/data.pkl", program(tree, count)), ("a/version", b"3"), ("a/data/0", numbers)])


def rebuilt(offset: Any, shape: Any, stride: Any) -> dict[str, Any]:
    return {"model_state_dict": {"w": Calls(_utils._rebuild_tensor_v2, Numbers(), offset, shape, stride, False, {})}}


def hostile_archives(bait: Bait) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """What each is called, and what makes it."""
    mark = f"touch '{bait.folder}/mark'"
    sound = rebuilt(0, (10,), (1,))
    for label, lie in LIES.items():
        yield label, lambda lie=lie: whole(rebuilt(*lie))
    calls = {
        "code": Calls(os.system, mark),
        "a meta tensor": Calls(_utils._rebuild_meta_tensor_no_storage, torch.float32, (1 << 40,), (1,), False),
        "a sparse tensor": Calls(_utils._rebuild_sparse_tensor, torch.sparse_coo, (1, 2, (1 << 40,), True)),
        "zeros": Calls(torch.zeros, 1 << 32),
        "a bytearray": Calls(bytearray, 1 << 32),
        "a list of ranges": Calls(list, range(1 << 30)),
        "a size": Calls(torch.Size, [1 << 62] * 100),
    }
    for label, call in calls.items():
        yield label, lambda call=call: whole({"model_state_dict": {"w": call}})
    yield "more numbers than there are", lambda: whole(sound, count=1 << 30)
    yield (
        "the same numbers ten thousand times",
        lambda: whole(
            {
                str(i): Calls(_utils._rebuild_tensor_v2, Numbers(), 0, (1 << 20,), (1,), False, {})
                for i in range(10_000)
            },
            count=1 << 20,
            numbers=bytes(4 << 20),
        ),
    )
    evil = program(Calls(os.system, mark))
    parts = [("a/data.pkl", program(sound)), ("a/version", b"3"), ("a/data/0", bytes(40))]
    yield "a second program", lambda: archive([*parts, ("b/data.pkl", evil)])
    yield "a program of the same name", lambda: archive([*parts, ("a/data.pkl", evil)])
    yield "numbers of the same name", lambda: archive([*parts, ("a/data/0", bytes(4000))])
    yield "no program", lambda: archive(parts[1:])
    yield "no numbers", lambda: archive(parts[:2])
    yield "compressed", lambda: archive([*parts[:2], ("a/data/0", bytes(400 << 20))], zipfile.ZIP_DEFLATED)
    yield "the byte order of others", lambda: archive([*parts, ("a/byteorder", b"big")])
    yield "words before it", lambda: b"\x80\x02" + archive(parts)
    yield "an archive after a file of old", lambda: _legacy(sound) + archive([("a/data.pkl", evil), *parts[1:]])
    yield "many entries", lambda: archive([*parts, *((f"a/{i}", b"") for i in range(70_000))])
    yield "a list of entries of 2 GB", lambda: _patched(archive(parts), b"PK\x05\x06", 12, b"\xff\xff\xff\x7f")
    yield "an entry of 4 GB", lambda: _patched(archive(parts), b"PK\x01\x02", 20, b"\xfe\xff\xff\xff" * 2)
    yield "an entry elsewhere", lambda: _patched(archive(parts), b"PK\x01\x02", 42, b"\xff\xff\xff\x7f")
    yield "nested", lambda: whole_program(b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".")
    yield "fourteen bytes for 4 GB", lambda: whole_program(b"\x80\x05\x96" + (1 << 32).to_bytes(8, "little") + b".")
    yield "a file of old", lambda: _legacy(sound)
    yield (
        "a file of old with more than it has",
        lambda: _legacy({"w": torch.zeros(10)}).replace(b"K\n", b"J\xff\xff\xff\x7f"),
    )
    yield "a tar of older still", lambda: b"./".ljust(257, b"\0") + b"ustar" + bytes(10_000)
    yield "nothing", lambda: b""
    yield "a pointer", lambda: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"


def whole_program(pickled: bytes) -> bytes:
    return archive([("a/data.pkl", pickled), ("a/version", b"3"), ("a/data/0", bytes(40))])


def _legacy(tree: Any) -> bytes:
    file = io.BytesIO()
    plain = {name: value for name, value in tree.items() if not isinstance(value, dict)} or {"w": torch.zeros(10)}
    torch.save(plain, file, _use_new_zipfile_serialization=False)
    return file.getvalue()


def _patched(data: bytes, sign: bytes, offset: int, value: bytes) -> bytes:
    at = data.rindex(sign) + offset
    return data[:at] + value + data[at + len(value) :]


EMPTY = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}


def _head(tree: Any, data: bytes = b"", length: int | None = None) -> bytes:
    text = tree if isinstance(tree, bytes) else json.dumps(tree).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


HEADS: dict[str, Callable[[], bytes]] = {
    "a head of 2**62": lambda: _head({}, length=1 << 62),
    "a head of 90 MB": lambda: _head(b"{" + b" " * (90 << 20) + b"}"),
    "a million tensors of nothing": lambda: _head({str(i): EMPTY for i in range(150_000)}),
    "brackets": lambda: _head(b"[" * 50_000),
    "a list": lambda: _head([1]),
    "a number": lambda: _head(b"17"),
    "no text": lambda: _head(b"\xff\xfe{}"),
    "half a character": lambda: _head(b'{"\\ud800": {"dtype":"F32","shape":[0],"data_offsets":[0,0]}}'),
    "a wide shape of nothing": lambda: _head({"w": {**EMPTY, "shape": [0, 1 << 62]}}),
    "a negative shape": lambda: _head({"w": {**EMPTY, "shape": [-1]}}),
    "a shape beyond the end": lambda: _head({"w": {**EMPTY, "shape": [1 << 30], "data_offsets": [0, 1 << 32]}}),
    "offsets that go back": lambda: _head({"w": {**EMPTY, "data_offsets": [8, 0]}}, bytes(8)),
    "offsets that overlap": lambda: _head({n: {**EMPTY, "shape": [2], "data_offsets": [0, 8]} for n in "ab"}, bytes(8)),
    "another type": lambda: _head({"w": {**EMPTY, "dtype": "F4096"}}),
    "a version that is none": lambda: _head({"__metadata__": {"version": "x" * 5000}}),
    "metadata of numbers": lambda: _head({"__metadata__": {"version": 10}}),
    "a large version": lambda: _head({"__metadata__": {"version": "9" * 4000}}),
    "nothing": lambda: b"",
    "eight bytes": lambda: bytes(8),
}
