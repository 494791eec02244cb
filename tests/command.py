"""`plaudit` as a user types it, with the network shut.

A command alone begins as it does for a user, with nothing imported, which takes seconds where it needs torch. So each
is once run like that, and its other ways and its mistakes in this process.
"""

import io
import shlex
import socket
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command

from plaudit.cli import main
from plaudit.cli.commands import app
from plaudit.cli.record import LeRobotFlags, translated
from waiting import stretch

COMMANDS = get_command(app)

ALONE = """
import socket
def refuse(*args, **kwargs):
    raise RuntimeError("this command opened a network connection")
socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
from plaudit.cli import main
main()
"""


def check_command(line: str) -> None:
    """Assert that the command line's own parser takes this command, whose files need not exist."""
    words = shlex.split(line, comments=True)[1:]
    command: Any = COMMANDS
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        assert words[0] in command.commands, line
        command = command.commands[words.pop(0)]
    words = [word for word in words if word not in ("&", "...")]
    words = list(translated(words)) if isinstance(command, LeRobotFlags) else words
    try:
        _, rest, _ = command.make_parser(typer.Context(command)).parse_args(words)
    except Exception as error:
        raise AssertionError(f"{line}: {error}") from error
    assert not rest, f"{line}: nothing takes {' '.join(rest)}"


def plaudit(*words: object, cwd: Path, ok: bool = True, alone: bool = False) -> str:
    """Run a command, here or alone in a process; returns what it printed."""
    code, said = (_alone if alone else _here)([*map(str, words)], cwd)
    assert (code == 0) == ok, said
    assert "Traceback" not in said
    return said


def _alone(words: list[str], cwd: Path) -> tuple[Any, str]:
    command = [sys.executable, "-c", ALONE, *words]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=stretch(120))
    return done.returncode, done.stdout + done.stderr


def _here(words: list[str], cwd: Path) -> tuple[Any, str]:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("this command opened a network connection")

    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(said), redirect_stderr(said):
        patch.setattr(socket.socket, "connect", refuse)
        patch.setattr(socket, "create_connection", refuse)
        patch.setattr(socket, "getaddrinfo", refuse)
        patch.setattr(sys, "argv", ["plaudit", *words])
        patch.chdir(cwd)
        with pytest.raises(SystemExit) as ended:
            main()
    return ended.value.code, said.getvalue()
