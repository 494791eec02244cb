"""Failures and events of an online run: which workers fail now, and the files that say what happened.

    events = EventLog(folder, workers.clock, timeout_s)
    events.failed("judge", error)               # raises once the worker has failed for longer than the timeout
    events.recovered("judge")
    events.update(state, workers.restarts)      # now and then: writes to events.jsonl what has changed

Metrics are numbers every few seconds. An event is a message: a worker was lost or came back, a judge was promoted, an
alarm was raised, somebody pressed Ctrl-C. Tracebacks go to failures.log. A failed write is ignored: a full disk may be
what failed, and it is on the screen already.
"""

import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Literal

from plaudit.data.disk import Folder
from plaudit.errors import PlauditError, StoreError, TrainingError, WorkerFailed
from plaudit.rollout.recording import held_warning
from plaudit.training.online_state import OnlineState
from plaudit.training.run_folder import RunFolder
from plaudit.trust import plain

EventKind = Literal["started", "error", "warning", "recovered", "restart", "judge", "alarm", "ended"]
EVENTS, TRACEBACKS = "events.jsonl", "failures.log"


class EventLog:
    """Failures and events of one session."""

    def __init__(self, folder: RunFolder, clock: Callable[[], float] = time.monotonic, timeout_s: float = 60.0):
        """timeout_s: how long a worker may fail before the run ends"""
        self._folder, self._clock, self._timeout_s = folder.path, clock, timeout_s
        self._failing: dict[str, tuple[float, str]] = {}  # worker -> since when, message
        self._logged: set[str] = set()  # failures whose traceback is written
        self._standing: set[tuple[EventKind, str, str]] = set()  # what the last `update` was given

    @property
    def errors(self) -> dict[str, str]:
        """Worker -> why it fails now."""
        return {worker: message for worker, (_, message) in self._failing.items() if message}

    def failed(self, worker: str, error: PlauditError, timeout_s: float | None = None) -> None:
        """Record a failure until the worker recovers; one that lasts too long ends the run.

        timeout_s: for this failure; None: as for all workers
        """
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        message = self.with_traceback(error) if isinstance(error, WorkerFailed) else str(error)
        since, _ = self._failing.get(worker, (self._clock(), ""))
        self._failing[worker] = since, message
        if self._clock() - since >= timeout_s:
            raise TrainingError(f"{message}; it did not recover within {timeout_s:g} s; resume with the same command")

    def retrying(self, worker: str) -> None:
        """The worker is at work again. Nothing is shown, but its failure is not over before it `recovered`."""
        if worker in self._failing:
            self._failing[worker] = self._failing[worker][0], ""

    def recovered(self, worker: str) -> None:
        """The worker answers again."""
        self._failing.pop(worker, None)

    def failed_at_end(self, worker: str, message: str) -> None:
        """Record a failure when the run ends anyway."""
        self._failing[worker] = self._clock(), message

    def with_traceback(self, failure: WorkerFailed) -> str:
        """The message of a failure and where its traceback is; the traceback of a repeated failure is logged once."""
        if str(failure) not in self._logged:
            self._logged.add(str(failure))
            time_utc = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
            self._append(TRACEBACKS, plain(f"{time_utc}: {failure}\n{failure.details.rstrip()}\n\n"))
        return f"{failure} (its traceback is in {self._folder / TRACEBACKS})"

    def write(self, state: OnlineState, kind: EventKind, message: str) -> None:
        """Add one event."""
        position = {"elapsed_s": round(state.elapsed_s, 1), "episodes": state.episodes, "step": state.step}
        line = {"time": round(time.time(), 1), **position, "event": kind, "message": message}
        self._append(EVENTS, json.dumps(line) + "\n")

    def update(self, state: OnlineState, restarts: Mapping[str, int]) -> None:
        """Add what has changed since the last call."""
        standing: dict[tuple[EventKind, str, str], str | None] = {
            **{("error", worker, text): f"{worker}: {text}" for worker, text in state.errors.items()},
            **{("restart", worker, str(count)): f"{worker} was restarted" for worker, count in restarts.items()},
            ("judge", "", state.last_event): state.last_event,
            ("alarm", "", state.alarm or ""): state.alarm,
            ("warning", "held", ""): held_warning(state.held_fraction),
            ("warning", "learner", ""): state.learner_warning,
        }
        for worker in {key[1] for key in self._standing if key[0] == "error"} - state.errors.keys():
            self.write(state, "recovered", f"{worker}: it answers again")
        for key, message in standing.items():
            if message and key not in self._standing:
                self.write(state, key[0], message)
        self._standing = {key for key, message in standing.items() if message}

    def _append(self, name: str, text: str) -> None:
        with suppress(OSError, StoreError):
            Folder(self._folder).append(name, text.encode())
