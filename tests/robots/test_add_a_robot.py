"""docs/add_a_robot.md, step by step: its files are written as shown, its commands are run."""

import json
import re
import sys
from pathlib import Path

import pytest

from plaudit.registry import ROBOT_REGISTRY
from plaudit.robots.ros.params import RuntimeParams
from plaudit.robots.twin.twin import FAULTS
from processes import start_plaudit
from twins import free_endpoint

PAGE = (Path(__file__).parents[2] / "docs/add_a_robot.md").read_text()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name, text in re.findall(r"^`(my_robots/[\w./]+)`\n\n```\w+\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    for cache in ("_registered", "_loaded"):  # restored after the test
        monkeypatch.setattr(ROBOT_REGISTRY, cache, {})
    yield tmp_path
    for name in [name for name in sys.modules if name.split(".")[0] == "my_robots"]:
        del sys.modules[name]


def test_the_files_of_the_document_are_a_robot_and_its_commands_run(folder):
    assert {path.name for path in (folder / "my_robots").iterdir()} == {"arm"}
    twin, check = re.findall(r"^PYTHONPATH=\. plaudit (robot .*)$", PAGE, flags=re.MULTILINE)
    endpoint = ["--set", f"transport.connect=[{free_endpoint()}]"]
    patient = folder / "patient.json"  # how fast and how fresh messages are depends on how busy this machine is
    patient.write_text(json.dumps({"HZ": 1, "silent_after_ms": 60_000, "late_after_ms": 60_000}))
    with start_plaudit(*twin.split(), *endpoint, cwd=folder) as process:
        assert process.readline().startswith("the twin of arm sends 3 joints and 1 cameras at 10 Hz")
        options = ["--seconds", "1", "--params", patient]
        with start_plaudit(*check.split(), *endpoint, *options, cwd=folder) as done:
            said = done.read()
    assert done.returncode == 0, said
    assert said.count(" ok") == 4


def test_every_key_and_every_fault_is_documented():
    assert not [key for key in RuntimeParams.model_fields if f"`{key}`" not in PAGE]
    assert not [kind for kind in FAULTS if kind != "none" and f"`{kind}" not in PAGE and f"fault {kind}@" not in PAGE]
