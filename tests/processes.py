"""Processes that begin at once: forked from one in which torch is imported and nothing else has happened."""

import multiprocessing
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from waiting import stretch

FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(["plaudit.training.trainer"])  # imports all that these tests run


def run_plaudit(folder: Path, *words: str) -> None:
    """A command in a folder whose modules it finds, as a user has it who writes a plugin there."""
    _run_in(folder, _plaudit, words)


def run_pytest(folder: Path, *words: str) -> None:
    """The tests of a plugin, in its folder."""
    _run_in(folder, pytest.main, ["-q", "-p", "no:cacheprovider", *words])


def _plaudit(words: tuple[str, ...]) -> None:
    from plaudit.cli import main

    sys.argv = ["plaudit", *words]
    main()


def _run_in(folder: Path, function: Callable[..., object], arguments: object) -> None:
    process = FORKED.Process(target=_enter, args=(folder, function, arguments))
    process.start()
    process.join(stretch(120))
    if process.exitcode != 0:
        process.kill()
        pytest.fail(f"it ended with {process.exitcode}: {(folder / 'output.txt').read_text()}")


def _enter(folder: Path, function: Callable[..., object], arguments: object) -> None:
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    with Path("output.txt").open("w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    sys.exit(function(arguments))  # type: ignore[arg-type]
