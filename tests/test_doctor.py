"""`plaudit doctor` and shell completion."""

import os
import re
import shutil
import socket
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from command import plaudit
from plaudit.cli.doctor import PROBLEM, disk, extras, is_free


def test_doctor_tells_what_this_machine_has(tmp_path: Path) -> None:
    said = plaudit("doctor", cwd=tmp_path)
    for part in ("versions", "GPU", "rendering", "video", "display", "extras", "ports", "disk"):
        assert f"\n{part} " in f"\n{said}"
    assert f"Python {sys.version.split()[0]}" in said
    assert not list(tmp_path.iterdir())


def test_a_renderer_that_is_missing_is_a_problem(tmp_path: Path) -> None:
    environ = {**os.environ, "MUJOCO_GL": "osmesa", "LD_LIBRARY_PATH": str(tmp_path)}
    for name in ("libOSMesa.so.8", "libOSMesa.so.6"):  # found before an installed one, and no library
        (tmp_path / name).write_text("")
    command = [sys.executable, "-c", "from plaudit.cli.doctor import rendering; print(*rendering())"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert PROBLEM in done.stdout and "apt-get install libosmesa6" in done.stdout


def test_what_is_missing_is_named_with_its_extra() -> None:
    installed, *missing = extras()
    assert "cluster" in installed.says and "web" in installed.says  # the tests need them
    for check in missing:
        match = re.fullmatch(r"(\S+) \((.+)\); run: pip install 'plaudit\[(\S+)\]'", check.says)
        assert match is not None and match[1] == match[3]
        for package in match[2].split(", "):
            with pytest.raises(metadata.PackageNotFoundError):
                metadata.version(package)


def test_a_port_in_use_is_seen() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        assert not is_free(port)
    assert is_free(port)


def test_a_folder_that_cannot_be_written_to_is_a_problem(tmp_path: Path) -> None:
    assert disk(tmp_path).state != PROBLEM
    assert not list(tmp_path.iterdir())
    said = plaudit("doctor", "/proc/self", cwd=tmp_path, ok=False)
    assert "/proc/self cannot be written to" in said and "1 problem" in said
    assert "is not a folder" in plaudit("doctor", "missing", cwd=tmp_path, ok=False)


def test_the_shell_completes_commands() -> None:
    command = shutil.which("plaudit", path=str(Path(sys.executable).parent))
    assert command is not None

    def completed(words: str) -> list[str]:
        asks = {"_PLAUDIT_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        return subprocess.run([command], env={**os.environ, **asks}, capture_output=True, text=True).stdout.split()

    assert completed("plaudit rec") == ["record"]
    assert "exam" in completed("plaudit judge ex")
