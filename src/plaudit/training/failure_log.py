"""Which workers of an online run fail right now, since when, and for how long that is put up with."""

from collections.abc import Callable

from plaudit.errors import PlauditError, TrainingError, WorkerFailed
from plaudit.training.online_folder import OnlineFolder


class FailureLog:
    """Of one session.

    failures.record("judge", error)     # raises once it has failed for longer than `patience`
    failures.recovered("judge")
    """

    def __init__(self, folder: OnlineFolder, clock: Callable[[], float], patience: float):
        """patience: s"""
        self._folder, self._clock, self._patience = folder, clock, patience
        self._failing: dict[str, tuple[float, str]] = {}  # worker -> since when, what
        self._kept: set[str] = set()  # failures whose traceback is in the folder

    @property
    def messages(self) -> dict[str, str]:
        """Worker -> what is the matter with it."""
        return {worker: message for worker, (_, message) in self._failing.items()}

    def record(self, worker: str, error: PlauditError) -> None:
        """What went wrong, until it is over; what lasts too long ends the run."""
        message = self.with_traceback(error) if isinstance(error, WorkerFailed) else str(error)
        since, _ = self._failing.get(worker, (self._clock(), ""))
        self._failing[worker] = since, message
        if self._clock() - since > self._patience:
            raise TrainingError(f"{message}; waited {self._patience:g} s for it, go on with the same command")

    def note(self, worker: str, message: str) -> None:
        """The same where the run ends anyway."""
        self._failing[worker] = self._clock(), message

    def recovered(self, worker: str) -> None:
        self._failing.pop(worker, None)

    def with_traceback(self, failure: WorkerFailed) -> str:
        """Its message and where more is told; the traceback of what is repeated is kept once."""
        if str(failure) not in self._kept:
            self._kept.add(str(failure))
            self._folder.keep_traceback(str(failure), failure.details)
        return f"{failure} (its traceback is in {self._folder.tracebacks})"
