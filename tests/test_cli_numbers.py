"""Numbers that are none, and ranges without an end: a sentence each, at once."""

import subprocess
import sys

import pytest
import torch
import typer

from command import plaudit
from conftest import counting_episode, labeled_store
from plaudit.cli.common import run_app


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["data", "export", "store", "new", "--episodes", "²"], "--episodes takes ids like '0,3,7-9', not '²'"),
        (["data", "export", "store", "new", "--episodes", "0-99999999999"], "episode 1"),
        (["data", "export", "store", "new", "--episodes", "9" * 40], "--episodes takes ids"),
        (["data", "export", "store", "new", "--quality", "-5"], "--quality"),
        (["data", "export", "store", "new", "--quality", "60", "--codec", "h264"], "--quality of h264 is 1 to 51"),
        (
            ["data", "export", "store", "new", "--images", "--codec", "h264"],
            "--images writes PNG images, which have no",
        ),
        (
            ["data", "export", "store", "new", "--to", "npy", "--codec", "h264"],
            "only --to lerobot takes --codec; leave",
        ),
        (["data", "export", "store", "new", "--fps", "nan"], "'--fps'"),
        (["data", "label", "store", "--restore", "0:²"], "--restore takes EPISODE:VERSION"),
        (["env", "bench", "lift", "--seconds", "inf"], "--seconds"),
        (["env", "bench", "lift", "--seconds", "nan"], "'--seconds'"),
        (["env", "view", "lift", "--noise", "nan"], "'--noise'"),
        (["env", "bench", "lift", "--set", "[1,2"], "command line: '[1,2' cannot be read"),
        (["env", "bench", "lift", "--set", "x\udcff=1"], "cannot be read"),
        (["env", "view", "lift", "--size", "²"], "a size is an edge like 128"),
        (["env", "view", "lift", "--size", "99999x99999"], "of at most 4096 pixels"),
        (["env", "record", "new", "--episodes", "9" * 30], "--episodes"),
        (["robot", "check", "igris_b", "--seconds", "inf"], "--seconds"),
        (["cluster", "check", "--address", "../../etc"], "'../../etc' is not the address of a head"),
        (["data", "info", "nothing\x1b[2J"], "nothing\\x1b[2J"),
    ],
)
def test_what_is_no_number_is_told(tmp_path, words, sentence):
    labeled_store(tmp_path / "store", counting_episode()).close()
    said = plaudit(*words, cwd=tmp_path, ok=False)
    assert sentence in said
    assert "\x1b" not in said


@pytest.mark.parametrize("device", [",", "cuda:99", "meta", ""])
def test_what_is_no_device_is_told(tmp_path, device):
    labeled_store(tmp_path / "store", *(counting_episode(first=i) for i in range(8)), cutoff=2).close()
    said = plaudit("train-reward", "store", "--device", device, "--backbone", "small", cwd=tmp_path, ok=False)
    assert f"'{device}'" in said and "device" in said


def test_ctrl_c_where_a_command_has_nothing_to_say_to_it_is_told(tmp_path, monkeypatch):
    import plaudit.report.tables as robots

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(robots, "robots_table", interrupted)
    assert plaudit("robot", "list", cwd=tmp_path, ok=False) == "interrupted\n"


@pytest.mark.parametrize("module", ["signal", "typer", "rich", "plaudit.cli.judge"])
def test_ctrl_c_while_packages_are_imported_is_told_without_a_traceback(module):
    program = f"""
import os, sys
sys.modules.pop("signal", None)
class Interrupt:
    def find_spec(self, name, *_):
        if name == {module!r}:
            os.kill(os.getpid(), 2)
sys.meta_path.insert(0, Interrupt())
from plaudit.cli import main
main()
"""
    done = subprocess.run([sys.executable, "-c", program, "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


def test_memory_that_torch_does_not_get_is_told(capsys):
    app = typer.Typer()
    app.command()(lambda: torch.empty(1 << 55))
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit, match="1"):
        patch.setattr(sys, "argv", ["app"])
        run_app(app)
    assert "there is not enough memory for this" in capsys.readouterr().err
