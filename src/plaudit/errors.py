"""What can go wrong, as a tree.

Every message is one sentence that says what happened, where, and what to do next; the command line prints it as it is
and exits with 1. Errors a user can cause also derive from `ValueError`, so that library code reads naturally; broken
invariants of our own are plain `assert`s and never appear here.
"""

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any


class PlauditError(Exception):
    """The root: `except PlauditError` catches everything this package raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Crosses to another process whatever its constructor takes."""
        return _again, (type(self), self.args, self.__dict__)


def _again(cls: type[PlauditError], args: tuple[Any, ...], facts: dict[str, Any]) -> PlauditError:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(facts)
    return error


class ConfigError(PlauditError, ValueError):
    """A config file or an override that does not say what it should. `problems` has one entry a mistake."""

    def __init__(self, problems: Iterable[tuple[tuple[str | int, ...], str]]):
        self.problems = list(problems)
        super().__init__("\n".join(sentence for _, sentence in self.problems))


class UnknownName(PlauditError, ValueError):
    """A name that the registry does not know."""


class NotAllowed(PlauditError, ValueError):
    """A file that asks for what only the user may: code of somebody else, a variable, a server. Nothing was done."""


class MissingPackage(PlauditError, ImportError):
    """A package that this call needs and that is not installed."""

    def __init__(self, package: str, install: str):
        super().__init__(f"{package} is not installed; run: pip install {install}")


class MissingExtra(MissingPackage):
    """One that comes with an extra of ours."""

    def __init__(self, package: str, extra: str):
        super().__init__(package, f"'plaudit[{extra}]'")


class NoWindow(PlauditError):
    """A window cannot be opened here: no screen, or Qt misses something of the system."""


class ContractError(PlauditError, ValueError):
    """A plugin that breaks the protocol it claims to follow (see `plaudit.contracts`)."""


class EnvError(PlauditError, ValueError):
    """A simulated task that cannot be made or driven as asked."""


class InvalidAction(EnvError):
    """An action of the wrong shape, or not finite. Nothing moved."""


class PolicyError(PlauditError, ValueError):
    """A policy that cannot be built, loaded or asked for actions as told."""


class RobotError(PlauditError, ValueError):
    """A robot that cannot be driven, or not any more. Whoever drives tells it to hold, and keeps the episode."""


class RobotSilent(RobotError):
    """Nothing good came from the robot for too long."""


class InvalidCommand(RobotError):
    """An action of the wrong shape, or not finite. Nothing was sent."""


class BadMessage(RobotError):
    """Bytes that are not the message they should be. It is dropped and counted."""


class RewardError(PlauditError, ValueError):
    """A reward model that cannot be trained, loaded or used as asked."""


class JudgeError(PlauditError, ValueError):
    """A judge that cannot be loaded or asked, or an episode that it cannot judge. The episode stays unlabelled."""


class RolloutError(PlauditError, RuntimeError):
    """A robot that cannot be driven any further. It was told to hold."""


class TrainingError(PlauditError, RuntimeError):
    """An online run that cannot go on. Everything that was acknowledged is on disk, and the same command resumes it."""


class WorkerLost(TrainingError):
    """A worker of an online run that does not answer: its process died, or its machine cannot be reached."""

    def __init__(self, worker: str, why: str = ""):
        self.worker = worker
        super().__init__(f"the {worker} does not answer{f' ({why})' if why else ''}")


class WorkerFailed(TrainingError):
    """A worker of an online run that raised something unexpected, a plugin's `ValueError` say."""

    def __init__(self, worker: str, error: BaseException, details: str):
        """
        worker: which one
        error: what it raised
        details: the traceback, for whoever mends it
        """
        lines = str(error).strip().splitlines()
        super().__init__(f"the {worker} failed: {type(error).__name__}{f': {lines[0]}' if lines else ''}")
        self.details = details


class ClusterError(PlauditError, RuntimeError):
    """A cluster that cannot be started, reached or used as asked."""


class DataError(PlauditError, ValueError):
    """Anything about episodes, labels and the files that hold them."""


class InvalidEpisode(DataError):
    """Arrays that do not make an episode: wrong shape, wrong type, not finite."""


class BadFile(DataError):
    """A file that cannot be read as what it should be."""

    def __init__(self, path: str | Path, what: str):
        self.path = Path(path)
        super().__init__(f"{path}: {what}")


class UnsafeFile(BadFile):
    """A file that asks to run code. It was not run."""


class UnknownFormat(DataError):
    """A folder that is none of the formats we know."""


class TargetNotEmpty(DataError):
    """An export into a folder that holds something. Nothing was written."""


class StoreError(DataError):
    """The episode store itself."""


class StoreDamaged(StoreError):
    """Bytes on disk that fail their checksum."""


class ForeignFile(StoreError):
    """A link, a pipe or the like where a store keeps a file of its own. It was not opened."""


class SegmentMissing(StoreDamaged):
    """A folder of arrays that the journal speaks of and the disk does not have."""


class JournalMissing(StoreDamaged):
    """A journal or ledger that is not there."""


class Replaced(StoreError):
    """A journal that another one has taken the place of, since it was opened: it is read again from its start."""


class EpisodeGone(StoreError):
    """An episode that is not in the store: evicted since it was looked up, or never there."""


class StoreLocked(StoreError):
    """A second writer."""


class StoreFull(StoreError):
    """The disk is full. The episode at hand was not stored; all earlier ones are intact."""


def nearest(name: str, known: Iterable[str]) -> str:
    """The tail of an error sentence: the nearest known name, or all of them when none is near."""
    known = sorted(known)
    close = get_close_matches(name, known, n=1, cutoff=0.6)
    if close:
        return f"did you mean '{close[0]}'?"
    return f"known: {', '.join(known)}" if known else "there are none"
