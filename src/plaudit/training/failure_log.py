"""Which workers of an online run fail right now, since when, and for how long that is tolerated."""

from collections.abc import Callable

from plaudit.errors import PlauditError, TrainingError, WorkerFailed
from plaudit.training.run_folder import RunFolder


class FailureLog:
    """Of one session.

    failures.record("judge", error)     # raises once it has failed for longer than the timeout
    failures.recovered("judge")
    """

    def __init__(self, folder: RunFolder, clock: Callable[[], float], timeout_s: float):
        self._folder, self._clock, self._timeout_s = folder, clock, timeout_s
        self._failing: dict[str, tuple[float, str]] = {}  # worker -> since when, what
        self._logged: set[str] = set()  # failures whose traceback is in the folder

    @property
    def messages(self) -> dict[str, str]:
        """Worker -> what is wrong with it."""
        return {worker: message for worker, (_, message) in self._failing.items() if message}

    def record(self, worker: str, error: PlauditError, timeout_s: float | None = None) -> None:
        """Note a failure until the worker recovers; one that lasts too long ends the run.

        timeout_s: of this failure; None: as for all workers
        """
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        message = self.with_traceback(error) if isinstance(error, WorkerFailed) else str(error)
        since, _ = self._failing.get(worker, (self._clock(), ""))
        self._failing[worker] = since, message
        if self._clock() - since >= timeout_s:
            raise TrainingError(f"{message}; it did not recover within {timeout_s:g} s; resume with the same command")

    def retrying(self, worker: str) -> None:
        """The worker is at work again: nothing to show, but it has still to prove that it has recovered."""
        if worker in self._failing:
            self._failing[worker] = self._failing[worker][0], ""

    def note(self, worker: str, message: str) -> None:
        """Note a failure where the run ends anyway."""
        self._failing[worker] = self._clock(), message

    def recovered(self, worker: str) -> None:
        """The worker answers again."""
        self._failing.pop(worker, None)

    def with_traceback(self, failure: WorkerFailed) -> str:
        """The failure's message and where its traceback is; that of a repeated failure is logged once."""
        if str(failure) not in self._logged:
            self._logged.add(str(failure))
            self._folder.log_traceback(str(failure), failure.details)
        return f"{failure} (its traceback is in {self._folder.failures})"
