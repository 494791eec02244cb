"""The exceptions that this package raises on purpose.

Every message says what happened, where, and what to do next; the command line prints it and exits with 1. Errors that a
user can cause also derive from `ValueError`, as Python code expects. Broken invariants of our own are plain `assert`s.
"""

from collections.abc import Iterable
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any


class PlauditError(Exception):
    """The base class: `except PlauditError` catches everything that this package raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Makes every error picklable, whatever arguments its constructor takes."""
        return _rebuild, (type(self), self.args, self.__dict__)


def without_prefix(message: str) -> str:
    """A message of pydantic without the name of the exception that it begins with."""
    return message.replace("Value error, ", "", 1)


def _rebuild(cls: type[PlauditError], args: tuple[Any, ...], attributes: dict[str, Any]) -> PlauditError:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(attributes)
    return error


class ConfigError(PlauditError, ValueError):
    """A config file or an override is invalid. `problems` has one entry per mistake: its key and a message."""

    def __init__(self, problems: Iterable[tuple[tuple[str | int, ...], str]]):
        self.problems = list(problems)
        super().__init__("\n".join(message for _, message in self.problems))


class UnknownName(PlauditError, ValueError):
    """A name is not registered."""


class NotAllowed(PlauditError, ValueError):
    """A file asks for something that only the user may allow: foreign code, a variable, a server. Nothing was done."""


class MissingPackage(PlauditError, ImportError):
    """A package that this call needs is not installed."""

    def __init__(self, package: str, install: str):
        super().__init__(f"{package} is not installed; run: pip install {install}")


class MissingExtra(MissingPackage):
    """A package that one of our extras installs is missing."""

    def __init__(self, package: str, extra: str):
        super().__init__(package, f"'plaudit[{extra}]'")


def import_extra(name: str, extra: str) -> Any:
    """Import a module that one of our extras installs; MissingExtra if it is not installed."""
    try:
        return import_module(name)
    except ImportError as error:
        raise MissingExtra(name, extra) from error


class DisplayError(PlauditError):
    """A window cannot be opened here: no screen, or Qt misses something of the system."""


class DeviceError(PlauditError, ValueError):
    """A network is to run on a device that this machine does not have."""


class ContractError(PlauditError, ValueError):
    """A plugin breaks the protocol that it implements (see `plaudit.contracts`)."""


class EnvError(PlauditError, ValueError):
    """A simulated task cannot be made or stepped with these arguments."""


class InvalidAction(EnvError):
    """An action has the wrong shape or is not finite. Nothing moved."""


class PolicyError(PlauditError, ValueError):
    """A policy cannot be built, loaded or asked for actions."""


class PolicyUnavailable(PolicyError):
    """A policy that does not answer now and may later: its server was restarted, say."""


class RobotError(PlauditError, ValueError):
    """A robot cannot be driven any further. The caller calls `hold()` and keeps the episode."""


class RobotSilent(RobotError):
    """A robot, or one of its sensors, has been silent for too long. It may be back later."""


class InvalidCommand(RobotError):
    """A command has the wrong shape or is not finite. Nothing was sent."""


class BadMessage(RobotError):
    """A message from a robot cannot be decoded or used. It is dropped and counted."""


class JudgeError(PlauditError, ValueError):
    """A judge cannot be trained, loaded or used as asked, or cannot score an episode, which stays unlabeled."""


class JudgeUnavailable(JudgeError):
    """A judge that does not answer now and may later: its server was restarted, say. No episode is to blame."""


class RolloutError(PlauditError, RuntimeError):
    """An episode cannot continue. The robot holds."""


class RolloutFault(RolloutError):
    """An episode ended by a fault that may pass, like a silent camera. The robot holds; the engine may `recover()`."""


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
        """error: what it raised; details: the traceback"""
        lines = str(error).strip().splitlines()
        super().__init__(f"the {worker} failed: {type(error).__name__}{f': {lines[0]}' if lines else ''}")
        self.details = details


class ClusterError(PlauditError, RuntimeError):
    """A cluster cannot be started, reached or used."""


class DataError(PlauditError, ValueError):
    """Episodes, labels, or the files that contain them are invalid."""


class InvalidEpisode(DataError):
    """Arrays do not form an episode: wrong shape, wrong type, not finite."""


class BadFile(DataError):
    """A file does not have the expected contents."""

    def __init__(self, path: str | Path, what: str):
        self.path = Path(path)
        super().__init__(f"{path}: {what}")


class UnsafeFile(BadFile):
    """A file contains code. It was not run."""


class UnknownFormat(DataError):
    """A folder is in none of the supported formats."""


class UnclearDataset(DataError):
    """A data set leaves something open that options of the import settle, such as its state columns."""


class TargetNotEmpty(DataError):
    """The folder of an export is not empty. Nothing was written."""


class StoreError(DataError):
    """The episode store cannot be opened, read or written."""


class StoreDamaged(StoreError):
    """Bytes on disk do not match their checksum."""


class ForeignFile(StoreError):
    """A link, a pipe or another special file is in the place of one of the store's own files. It was not opened."""


class SegmentMissing(StoreDamaged):
    """A folder of arrays that the journal refers to is missing."""


class JournalMissing(StoreDamaged):
    """A journal or ledger is missing."""


class Replaced(StoreError):
    """A journal was replaced after it was opened; it is read again from its start."""


class EpisodeNotFound(StoreError):
    """An episode is not in the store: it was evicted, or never added."""


class StoreLocked(StoreError):
    """Another process writes to the store."""


class StoreFull(StoreError):
    """The disk is full. This episode was not stored; all earlier ones are intact."""


MAX_CHOICES = 40  # that a message lists; a folder may have thousands of files


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """The end of an error message: the choice most similar to `name`, or all choices when none is similar."""
    choices = sorted(choices)
    close = get_close_matches(name, choices, n=1, cutoff=0.6)
    if close:
        return f"did you mean '{close[0]}'?"
    more = f" and {len(choices) - MAX_CHOICES} more" if len(choices) > MAX_CHOICES else ""
    return f"known: {', '.join(choices[:MAX_CHOICES])}{more}" if choices else "there are none"


def format_count(count: int, noun: str) -> str:
    """1 episode, 2,000 episodes, 0 successes."""
    plural = "es" if noun.endswith("s") else "s"
    return f"{count:,} {noun}{plural * (count != 1)}"
