"""Commands that a page starts: importing a data set, training a judge. Each is a child process of the server.

A page chooses among these commands and gives numbers, never a path or a word of a command line. What a command prints
goes to a file that the page shows.
"""

import os
import shlex
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from pydantic import Field

from plaudit.config import Config, parse
from plaudit.data.transfer import store_beside
from plaudit.errors import DataError
from plaudit.processes import ChildProcess
from plaudit.trust import plain
from plaudit.web.library import Library, judge_beside

TAIL = 4000  # bytes of what a command printed that are shown
GRACE_S = 5.0
MOST = 20  # tasks that are remembered
FROM_SCRATCH = ("--lr", "1e-3")  # of encoders without published weights


class TaskRequest(Config):
    """What a page may ask for."""

    kind: Literal["import", "train-reward"]
    name: str = Field(max_length=1000)  # of a data set or a store in the library
    minutes: float = Field(default=5.0, gt=0, le=24 * 60)  # train-reward: how long it may take
    encoder: Literal["small", "keypoints", "efficientnet_lite0"] = "small"


@dataclass
class Task:
    """A command that was started."""

    number: int
    words: list[str]
    result: tuple[str, Path]  # kind and path of what it makes
    child: ChildProcess
    log: Path
    began: float = field(default_factory=time.time)
    ended: float | None = None
    state: Literal["running", "finished", "failed", "stopped"] = "running"

    def update(self) -> None:
        """Notice that it has ended."""
        if self.state == "running" and not self.child.alive:
            self.state, self.ended = "finished" if self.child.end() else "failed", time.time()

    def stop(self) -> None:
        """End the command; the same one continues where it was."""
        self.update()
        if self.state == "running":
            with suppress(ProcessLookupError):
                os.kill(self.child.pid, signal.SIGTERM)
            self.child.end(GRACE_S, hang_up=False)
            self.state, self.ended = "stopped", time.time()


class Tasks:
    """The commands of one server; one at a time, since each uses all cores."""

    def __init__(self, library: Library, command: str):
        """command: "module:function" that runs a `plaudit` command line in a child process"""
        self._library, self._command = library, command
        self._tasks: list[Task] = []
        self._guard = threading.Lock()
        self._folder = TemporaryDirectory(prefix="plaudit-serve-")

    def start(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Start what a page asks for."""
        asked = parse(TaskRequest, request)
        words, result = COMMANDS[asked.kind](self._library, asked)
        with self._guard:
            for task in self._tasks:
                task.update()
                if task.state == "running":
                    raise DataError(f"plaudit {task.words[0]} is still running; wait or stop it")
            number = self._tasks[-1].number + 1 if self._tasks else 1
            log = Path(self._folder.name) / f"{number}.log"
            log.touch()
            child = ChildProcess(words[0], self._command, words, log)
            self._tasks = [*self._tasks[1 - MOST :], Task(number, words, result, child, log)]
            return self._describe(self._tasks[-1])

    def stop(self, number: Any) -> list[dict[str, Any]]:
        """Stop a running command."""
        with self._guard:
            for task in self._tasks:
                if task.number == number:
                    task.stop()
        return self.list()

    def list(self) -> list[dict[str, Any]]:
        """The commands so far, the newest first."""
        with self._guard:
            for task in self._tasks:
                task.update()
            return [self._describe(task) for task in reversed(self._tasks)]

    def _describe(self, task: Task) -> dict[str, Any]:
        kind, path = task.result
        made = next((i.name for i in self._library.items().values() if (i.kind, i.path) == (kind, path)), None)
        with task.log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
            tail = file.read().decode(errors="replace")
        return {
            "number": task.number,
            "command": shlex.join(["plaudit", *task.words]).replace(f"{Path.cwd()}/", ""),
            "state": task.state,
            "seconds": round((task.ended or time.time()) - task.began, 1),
            "output": "\n".join(plain(line) for line in tail.splitlines()),
            "result": {"kind": kind, "name": made},
        }

    def close(self) -> None:
        """End all commands."""
        with self._guard:
            for task in self._tasks:
                task.stop()
        self._folder.cleanup()


Command = tuple[list[str], tuple[str, Path]]


def _import(library: Library, asked: TaskRequest) -> Command:
    source = library.item("dataset", asked.name).path
    store = store_beside(source)
    return ["data", "import", str(source), str(store)], ("store", store)


def _train_reward(library: Library, asked: TaskRequest) -> Command:
    store = library.item("store", asked.name).path
    target = judge_beside(store)
    options = ["--backbone", asked.encoder, "--minutes", f"{asked.minutes:g}", "--output-dir", str(target)]
    extra = [] if asked.encoder == "efficientnet_lite0" else list(FROM_SCRATCH)
    return ["train-reward", str(store), *options, *extra], ("judge", target)


COMMANDS: dict[str, Callable[[Library, TaskRequest], Command]] = {"import": _import, "train-reward": _train_reward}
