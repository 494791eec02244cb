"""What benchmarks/structure.py counts, on a small package and on ours."""

from importlib import import_module
from pathlib import Path

import pytest


@pytest.fixture
def read(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    return import_module("structure").Structure.read


def package(folder: Path, **files: str) -> Path:
    """A package `small` with these modules."""
    small = folder / "small"
    small.mkdir()
    for name, text in {"__init__": "", **files}.items():
        (small / f"{name}.py").write_text(text)
    return small


@pytest.mark.parametrize(
    "back",
    [
        "from small.a import x",
        "from small import a",
        "import small.a",
        "from . import a",
        "from .a import x",
        "def later():\n    from small.a import x",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from small.a import x",
    ],
)
def test_a_cycle_is_found_however_the_import_is_written(tmp_path, read, back):
    found = read(package(tmp_path, a="from small.b import y\nx = 1", b=f"{back}\ny = 1", c="import small.a"))
    assert found.cycles() == [["small.a", "small.b"]]
    assert found.reachable("small.c") == {"small.a", "small.b", "small.c"}


def test_only_public_protocols_count(tmp_path, read):
    text = "from typing import Protocol\nclass A(Protocol): ...\nclass _B(Protocol): ...\nclass C(A): ..."
    assert read(package(tmp_path, a=text)).protocols() == ["small.a.A"]


def test_sizes_are_longest_first(tmp_path, read):
    found = read(
        package(tmp_path, a="def f():\n    return 1\n\n\nclass C:\n    def g(self):\n        x = 1\n        return x")
    )
    assert found.file_sizes()[0] == (8, "small.a")
    assert found.function_sizes() == [(3, "small.a.g"), (2, "small.a.f")]


def test_our_own_files_have_no_import_cycle(read):
    cycles = read().cycles()
    assert not cycles, "these files import each other:\n" + "\n".join(map(", ".join, cycles))
