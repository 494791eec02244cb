"""`plaudit` as a user types it, with the network shut.

Each command is once run in a process of its own, and its other ways and its mistakes in this one.
"""

import io
import shlex
import socket
import sys
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main

from plaudit.cli import load_app, main
from plaudit.cli.record import LeRobotFlags, translated
from processes import Forked

typer.main.get_command = cache(typer.main.get_command)  # in this process all commands are there, and made once
COMMANDS = typer.main.get_command(load_app())


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
    with Forked(_run, words, cwd=cwd) as process:
        said = process.read()
    return process.returncode, said


def _here(words: list[str], cwd: Path) -> tuple[Any, str]:
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said), pytest.MonkeyPatch.context() as patch:
        patch.chdir(cwd)
        with pytest.raises(SystemExit) as ended:
            _run(words)
    return ended.value.code, said.getvalue()


def _run(words: list[str]) -> None:
    connect = socket.socket.connect

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("this command opened a network connection")

    def connect_locally(self: socket.socket, address: Any) -> None:
        (connect if self.family == socket.AF_UNIX else refuse)(self, address)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", connect_locally)
        patch.setattr(socket, "create_connection", refuse)
        patch.setattr(socket, "getaddrinfo", refuse)
        patch.setattr(sys, "argv", ["plaudit", *words])
        main()
