"""A person who judges or audits a running loop, at the machine that has the store or at another one.

    side = here(store.folder, config)                          # the window is open on the store itself
    side = elsewhere(folder, fetch, config)                    # or on a mirror, where the screen is
    side.offer(audit.waiting(store))                           # every now and then
    for episode_id, labels in side.collect():
        deliver(store.ledger, episode_id, labels)

On the same machine labels arrive in the store's ledger by themselves, and nothing is collected. On another one, what
is offered is copied into a mirror: a store like any other, whose episodes know what they are called at home.

The window is a process of its own: Qt wants the main thread, and nobody waits for it. Closing it is normal, a person is
at lunch; the loop is told, shows how many episodes wait and by which command the window opens again, and goes on. The
window closes with the process that opened it, and what was begun in it is found again (judges/human/drafts.py).

No verdict is lost and none counts twice. How far verdicts were collected is kept on disk, and taken as received only
when the caller comes back for more; a crash in between brings the last ones once more, and `deliver` passes over what
is in the ledger already, by who said it and when. A mirror shows no other judge's verdict: who audits a judge should
not have receive it before.
"""

import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Protocol

from pydantic import Field

from plaudit.config import Config
from plaudit.data.journal import Journal, write_atomic
from plaudit.data.ledger import Ledger
from plaudit.data.store import Store, is_store
from plaudit.errors import EpisodeNotFound, PlauditError
from plaudit.judges.human.asked import ask_for
from plaudit.judges.human.queue import Order
from plaudit.judges.human.run import label_by_hand
from plaudit.judges.human.verdict import SOURCE
from plaudit.rollout.processes import ChildProcess, exit_with_parent, send
from plaudit.types import Episode, Labels

WINDOW = "plaudit.training.labeling_window:window"
MIRROR_BYTES = 20 << 30  # of a mirror; beyond it the oldest go
GRACE = 2.0  # s that a window may take to close

Verdicts = list[tuple[int, Labels]]


class WindowConfig(Config):
    name: str = ""  # who labels; it stands in the labels' notes
    order: Order = "unlabelled"
    window: bool = True  # open one from here; false: somebody opens it by hand
    reopen_s: float | None = Field(default=None, ge=0)  # after which a closed one opens again; None: not by itself


class HumanSide(Protocol):
    """Where a person looks at episodes."""

    def offer(self, ids: Sequence[int]) -> None:
        """Have these looked at, the most wanted first; asked twice, does nothing more."""
        ...

    def collect(self) -> Verdicts:
        """What was said since, for the store's ledger (`deliver`)."""
        ...

    @property
    def status(self) -> str:
        """What there is to tell of the window, in a sentence."""
        ...

    def close(self) -> None: ...


def here(store: Path, config: WindowConfig) -> "StoreSide":
    return StoreSide(store, Window(store, config))


def elsewhere(folder: Path, fetch: Callable[[int], Episode], config: WindowConfig) -> "MirrorSide":
    """fetch: an episode of the store that is not here; `EpisodeNotFound` where it has been evicted"""
    return MirrorSide(Mirror(folder), fetch, Window(folder, config))


def deliver(ledger: Ledger, episode_id: int, labels: Labels) -> bool:
    """Add a verdict, unless it is there; returns whether it was new."""
    ledger.refresh()
    if any((v.source, v.time) == (labels.judge.source, labels.time) for v in ledger.history(episode_id)):
        return False
    ledger.append(episode_id, labels)
    return True


class StoreSide:
    """A person at the machine that has the store."""

    def __init__(self, store: Path, window: "Window"):
        self._store, self._window = store, window
        self._asked: list[int] | None = None

    def offer(self, ids: Sequence[int]) -> None:
        if list(ids) != self._asked:
            ask_for(self._store, ids)
            self._asked = list(ids)
        if ids:
            self._window.show()

    def collect(self) -> Verdicts:
        """Nothing: what is said is in the store's ledger already."""
        return []

    @property
    def status(self) -> str:
        return self._window.status

    def close(self) -> None:
        self._window.close()


class MirrorSide:
    """A person at another machine."""

    def __init__(self, mirror: "Mirror", fetch: Callable[[int], Episode], window: "Window"):
        self._mirror, self._fetch, self._window = mirror, fetch, window

    def offer(self, ids: Sequence[int]) -> None:
        there = self._mirror.remote_ids
        for remote_id in ids:
            if remote_id not in there:
                with suppress(EpisodeNotFound):  # and with it the reason to look at it
                    self._mirror.add(self._fetch(remote_id), remote_id)
        if ids:
            self._window.show()

    def collect(self) -> Verdicts:
        return self._mirror.verdicts()

    @property
    def status(self) -> str:
        return self._window.status

    def close(self) -> None:
        self._window.close()
        self._mirror.close()


class Mirror:
    """A store of episodes that live in another one; of one process, beside which a window labels."""

    def __init__(self, folder: Path, capacity_bytes: int = MIRROR_BYTES):
        new = not is_store(folder)
        self._store = Store.create(folder, capacity_bytes=capacity_bytes) if new else Store.open(folder, write=True)
        self._kept = folder / "collected.json"  # versions of the ledger that whoever collects has received
        self._given: int = json.loads(self._kept.read_text()) if self._kept.exists() else 0
        self._received = self._given
        self._names = folder / "remote.json"  # of evicted episodes too: they may have been labelled before
        lines = Journal(folder / "journal").read()
        self._remote: dict[int, int] = {line["id"]: line["meta"]["remote"] for line in lines if line["op"] == "episode"}
        if self._names.exists():
            self._remote |= {int(mine): remote for mine, remote in json.loads(self._names.read_text()).items()}

    @property
    def remote_ids(self) -> set[int]:
        """What the episodes here are called at home."""
        return {self._remote[i] for i in self._store.ids}

    def add(self, episode: Episode, remote_id: int) -> int:
        """A copy, without what only a simulator knows of it; returns its id here."""
        write_atomic(self._names, json.dumps(self._remote).encode())  # before this episode makes others go
        mine = self._store.append(replace(episode, privileged={}, meta={**episode.meta, "remote": remote_id}))
        self._remote[mine] = remote_id
        return mine

    def verdicts(self) -> Verdicts:
        """What was said since the last call, whose verdicts count as received now; after a crash they come again."""
        if self._received != self._given:
            write_atomic(self._kept, json.dumps(self._given).encode())
            self._received = self._given
        ledger = self._store.ledger
        ledger.refresh()
        new = ledger.since(self._given)
        self._given += len(new)
        return [(self._remote[v.episode], v.labels()) for v in new if v.source == SOURCE]

    def close(self) -> None:
        self._store.close()


class Window:
    """The labelling window over a store, from outside."""

    def __init__(self, store: Path, config: WindowConfig, target: str = WINDOW):
        """target: the function that is the window's process"""
        self._store, self._config, self._target = store, config, target
        self._child: ChildProcess | None = None
        self._closed_at = 0.0
        self._ended = ""  # how it went the last time that it was open
        self._problem = ""  # why there can be none

    @property
    def open(self) -> bool:
        self._look()
        return self._child is not None

    @property
    def status(self) -> str:
        if self.open:
            return "the labelling window is open"
        if self._problem:
            return f"no labelling window could be opened: {self._problem}"
        by_hand = f"plaudit label {self._store} --judge human"
        if self._ended:
            return f"{self._ended}; open it again with: {by_hand}"
        return f"no labelling window was opened from here; open one with: {by_hand}"

    def show(self) -> None:
        """Open it, unless it is open, cannot be, or was closed by the person not long ago."""
        if self.open or self._problem or not self._config.window:
            return
        wait = self._config.reopen_s
        if self._ended and (wait is None or time.monotonic() - self._closed_at < wait):
            return
        arguments = (self._store.resolve(), self._config.order, self._config.name)
        self._child = ChildProcess("labelling window", self._target, *arguments)

    def close(self) -> None:
        """As the person would: what was begun stays."""
        if self._child is not None:
            with suppress(ProcessLookupError):
                os.kill(self._child.pid, signal.SIGTERM)
            self._child.end(GRACE, hang_up=False)
            self._child = None

    def _look(self) -> None:
        """Whether it has ended since, and of what."""
        child = self._child
        if child is None or child.alive:
            return
        with suppress(EOFError, OSError):
            self._problem = child.connection.recv() if child.connection.poll() else ""
        self._closed_at = time.monotonic()
        self._ended = "the labelling window was closed" if child.end() else child.exit_reason()
        self._child = None


def window(connection: Connection, store: Path, order: Order, name: str) -> None:
    """The process: until the person closes the window, or whoever opened it is gone."""
    exit_with_parent(connection, GRACE)
    try:
        label_by_hand(store, order=order, name=name, say=lambda _: None)
    except PlauditError as error:
        send(connection, str(error))
