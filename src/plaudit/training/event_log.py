"""Events of an online run, for whoever reads events.jsonl the morning after.

    events = EventLog(folder)
    events.update(progress, workers.restarts)     # now and then: writes what has changed

Metrics are numbers a few seconds apart. That a worker was lost and came back, that a new judge was promoted, that an
alarm was raised or somebody pressed Ctrl-C is a message. The log watches from outside as the display does: the loop
knows nothing of it.
"""

from collections.abc import Mapping

from plaudit.rollout.recording import held_warning
from plaudit.training.progress import OnlineProgress
from plaudit.training.run_folder import EventKind, RunFolder


class EventLog:
    """Of one session."""

    def __init__(self, folder: RunFolder):
        self._folder = folder
        self._errors: dict[str, str] = {}
        self._restarts: dict[str, int] = {}
        self._last_event, self._alarm = "", None
        self._warned: set[str] = set()  # kinds of warnings that are shown

    def write(self, progress: OnlineProgress, kind: EventKind, message: str) -> None:
        """Add one event."""
        position = {"elapsed_s": round(progress.elapsed_s, 1), "episodes": progress.episodes, "step": progress.step}
        self._folder.event(kind, message, **position)

    def update(self, progress: OnlineProgress, restarts: Mapping[str, int]) -> None:
        """Add what is not as it was at the last call."""
        for worker, message in progress.errors.items():
            if self._errors.get(worker) != message:
                self.write(progress, "error", f"{worker}: {message}")
        for worker in self._errors.keys() - progress.errors.keys():
            self.write(progress, "recovered", f"{worker}: it answers again")
        for worker, count in restarts.items():
            if count > self._restarts.get(worker, 0):
                self.write(progress, "restart", f"{worker} was restarted")
        if progress.last_event and progress.last_event != self._last_event:
            self.write(progress, "judge", progress.last_event)
        if progress.alarm is not None and progress.alarm != self._alarm:
            self.write(progress, "alarm", progress.alarm)
        warnings = {"held": held_warning(progress.held_fraction), "learner": progress.learner_warning}
        for kind, warning in warnings.items():
            if warning and kind not in self._warned:
                self.write(progress, "warning", warning)
        self._warned = {kind for kind, warning in warnings.items() if warning}
        self._errors, self._restarts = dict(progress.errors), dict(restarts)
        self._last_event, self._alarm = progress.last_event, progress.alarm
