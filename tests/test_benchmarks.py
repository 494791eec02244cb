"""The claims of the benchmarks: which of them end a script with an error, and that all are told in one way."""

import runpy
from importlib import import_module
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
Bars = runpy.run_path(str(BENCHMARKS / "bars.py"))["Bars"]


def test_a_figure_that_misses_its_goal_is_told_and_is_no_error(capsys):
    bars = Bars()
    bars.at_least("speedup", 12.345678, 10)
    bars.at_most("seconds", float("inf"), 180)
    bars.exactly("lost", 0, 0)
    bars.report()
    told = ["BAR speedup 12.35 >=10 pass", "BAR seconds inf <=180 miss", "BAR lost 0 0 pass"]
    assert capsys.readouterr().out.splitlines() == told


def test_a_count_that_is_wrong_ends_the_script_with_an_error_after_all_lines(capsys):
    bars = Bars()
    bars.exactly("lost", 2, 0)
    bars.at_least("speedup", 20, 10)
    with pytest.raises(SystemExit, match="broken: lost"):
        bars.report()
    assert capsys.readouterr().out.splitlines() == ["BAR lost 2 0 miss", "BAR speedup 20 >=10 pass"]


def test_a_name_that_is_lost_is_told_apart_from_one_that_changed(capsys, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    compare = import_module("surface").compare
    before = ["flag plaudit run --steps: int = 1", "key run.seed: int = 0", "registry env lift"]
    now = ["flag plaudit run --steps: int = 2", "registry env lift", "registry env push"]
    assert compare(before, now) == 1
    assert capsys.readouterr().out.splitlines()[:3] == [
        "lost: key run.seed: int = 0",
        "new: registry env push",
        "changed: flag plaudit run --steps: int = 1 -> int = 2",
    ]


@pytest.mark.parametrize("script", sorted(BENCHMARKS.glob("*.py")), ids=lambda path: path.name)
def test_every_benchmark_tells_its_bars_in_the_same_way(script):
    assert script.name == "bars.py" or "BAR " not in script.read_text()


def test_the_bugs_that_are_put_back_are_still_in_the_code(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    source = BENCHMARKS.parent / "src/plaudit"
    for mutation in import_module("mutations").MUTATIONS:
        for file, fixed, broken in mutation.edits:
            text = (source / file).read_text()
            assert text.count(fixed) == 1, f"{mutation.name}: its lines are not in {file} once"
            compile(text.replace(fixed, broken), file, "exec")
