"""The labeling window of a run: a process of its own, on the run's store or on a mirror of it where the screen is.

Qt needs the main thread, so the window is a process. Closing it is normal: the run goes on and shows how many episodes
wait and by which command the window opens again. The window closes with the process that opened it, and drafts are kept
(judges/human/drafts.py).

On another machine, episodes are copied into a mirror: a store whose episodes carry the id that they have in the run's
store. No answer is lost and none counts twice: how far answers were collected is kept on disk, and written only after
they are in the run's ledger. A mirror has no labels of judges: who audits a judge should not see them.
"""

import json
import os
import signal
import time
from contextlib import ExitStack, suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from socket import gethostname

from plaudit.config import Config, NonNegativeFloat
from plaudit.data.disk import write_atomic
from plaudit.data.store import Store
from plaudit.errors import PlauditError
from plaudit.files import read_json, read_json_object
from plaudit.judges.config import HUMAN
from plaudit.judges.human.app import has_display, run_labeling_app
from plaudit.judges.human.drafts import is_being_labeled
from plaudit.judges.human.queue import QueueOrder
from plaudit.processes import ChildProcess, exit_with_parent, send
from plaudit.types import Episode

WINDOW = "plaudit.training.labeling_window:window"
MIRROR_BYTES = 20 << 30  # of a mirror; beyond it the oldest go
GRACE = 2.0  # s that a window may take to close


class LabelingWindowConfig(Config):
    """The labeling window of a human who labels or audits."""

    labeler: str = ""  # who labels; it stands in the notes of the labels
    order: QueueOrder = "unlabeled"  # in which episodes are shown
    open: bool = True  # open one from here; false: a human opens it
    reopen_after_s: NonNegativeFloat | None = None  # a closed one opens again; None: not by itself


class Mirror:
    """A store with copies of another store's episodes, written by one process and labeled by a window."""

    def __init__(self, folder: Path):
        self._kept = folder / "collected.json"  # versions of the ledger that were collected
        self._names = folder / "remote.json"  # of evicted episodes too: they may have been labeled before
        with ExitStack() as stack:  # closes the store if the rest fails
            self.store = stack.enter_context(Store.open_or_create(folder, capacity_bytes=MIRROR_BYTES))
            self._collected: int = read_json(self._kept) if self._kept.exists() else 0
            self._read = self._collected  # what `answered` has looked at
            named = read_json_object(self._names) if self._names.exists() else {}
            self._remote: dict[int, int] = {int(local): remote for local, remote in named.items()}
            self._remote |= {i: self.store.entry(i).line["meta"]["remote"] for i in self.store.ids}
            stack.pop_all()

    def local_id(self, remote_id: int) -> int | None:
        """What an episode is called here, evicted or not; the newest copy of it."""
        return max((local for local, remote in self._remote.items() if remote == remote_id), default=None)

    def is_answered(self, remote_id: int) -> bool:
        """Whether the person has labeled it."""
        local = self.local_id(remote_id)
        return local is not None and self.store.ledger.newest(local, {HUMAN}) is not None

    def add(self, episode: Episode, remote_id: int) -> int:
        """A copy, without what only a simulator knows of it; returns its id here."""
        write_atomic(self._names, json.dumps(self._remote).encode())  # before this episode makes others go
        local = self.store.append(replace(episode, privileged={}, meta={**episode.meta, "remote": remote_id}))
        self._remote[local] = remote_id
        return local

    def answered(self) -> list[int]:
        """The episodes with an answer that was not collected yet, by their ids at home."""
        self.store.ledger.refresh()
        self._read = len(self.store.ledger)
        new = self.store.ledger.since(self._collected)
        return list(dict.fromkeys(self._remote[v.episode] for v in new if v.source == HUMAN))

    def mark_collected(self) -> None:
        """Record that the run's ledger now has what `answered` last returned."""
        if self._read != self._collected:
            write_atomic(self._kept, json.dumps(self._read).encode())
            self._collected = self._read

    def close(self) -> None:
        self.store.close()


class Window:
    """The labeling window over a store, from outside."""

    def __init__(self, store: Path, config: LabelingWindowConfig, target: str = WINDOW):
        """target: the function that is the window's process"""
        self._store, self._config, self._target = store, config, target
        self._child: ChildProcess | None = None
        self._closed_at = 0.0
        self._ended = ""  # how it went the last time that it was open
        self._problem = ""  # why there can be none

    @property
    def open(self) -> bool:
        """Whether a window is open on the store, opened from here or by a person's own command."""
        child = self._child
        if child is not None and not child.alive:
            with suppress(EOFError, OSError):
                self._problem = child.connection.recv() if child.connection.poll() else ""
            self._closed_at = time.monotonic()
            self._ended = "the labeling window was closed" if child.end() else child.exit_reason()
            self._child = None
        return self._child is not None or is_being_labeled(self._store)

    @property
    def status(self) -> str:
        """A message: whether the window is open, or how to open it."""
        if self.open:
            return "the labeling window is open"
        command = f"plaudit label {self._store} --judge human"
        if self._problem:
            where = gethostname()
            serve = f"plaudit serve {self._store}"
            return f"no labeling window could be opened on {where}: {self._problem}; or label in a browser: {serve}"
        if self._ended:
            return f"{self._ended}; open it again with: {command}"
        return f"no labeling window was opened from here; open one with: {command}"

    def show(self) -> None:
        """Open it, unless it is open, cannot be, or was closed by the person not long ago."""
        if self.open or self._problem or not self._config.open:
            return
        wait = self._config.reopen_after_s
        if self._ended and (wait is None or time.monotonic() - self._closed_at < wait):
            return
        arguments = (self._store.resolve(), self._config.order, self._config.labeler)
        self._child = ChildProcess("labeling window", self._target, *arguments)

    def close(self) -> None:
        """Close the window; unfinished labels are kept as drafts."""
        if self._child is not None:
            with suppress(ProcessLookupError):
                os.kill(self._child.pid, signal.SIGTERM)
            self._child.end(GRACE, hang_up=False)
            self._child = None


def window(connection: Connection, store: Path, order: QueueOrder, name: str) -> None:
    """The process: ends when the person closes the window, or the process that opened it is gone."""
    exit_with_parent(connection, GRACE)
    if not has_display():
        again = "start the run again; with --ray, start the cluster's node there again"
        return send(connection, f"DISPLAY is not set there; set it (export DISPLAY=:0) and {again}")
    try:
        run_labeling_app(store, order=order, name=name, say=lambda _: None)
    except PlauditError as error:
        send(connection, str(error))
