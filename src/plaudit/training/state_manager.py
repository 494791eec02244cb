"""The state manager: versions of the weights, for everyone who acts with them.

A learner that is killed goes back to a checkpoint; a robot must never go back with it unnoticed. So versions are given
out here: one more for each that is published, on disk before it can be read. A restarted process finds the version it
left. Versions that acted stay on disk, in `versions`: an episode's meta names its version, so one can look up later why
a robot did what it did.
"""

import json
import time
from dataclasses import dataclass
from pathlib import Path

from plaudit.data.disk import disk_errors, write_atomic
from plaudit.files import Root, read_json_object
from plaudit.policies.loader import FROZEN_FILE, WEIGHTS_FILE, read_weights, write_weights
from plaudit.types import PolicyWeights

STARTS = ".starts.json"  # reader -> how often it has started
VERSIONS = "versions"  # folder of the weights that acted, by version
VERSIONS_BYTES = 10 << 30  # of these; beyond it the oldest go
BORN = ".born"  # when the manager that writes here was started


@dataclass(frozen=True)
class PolicyStatus:
    """The newest version and its age."""

    version: int  # the newest; 0 before any
    published: float  # s since 1970 of the newest
    born: float = 0.0  # when the manager was started, s since 1970


def writes_here(report: PolicyStatus, folder: Path) -> bool:
    """Whether the weights of a manager are in this folder of this machine."""
    try:
        return Root(folder).read(folder / BORN, 100) == repr(report.born).encode()
    except FileNotFoundError:
        return False


class StateManager:
    """Versioned weights with many readers.

    version = state.publish(weights)                 # by a learner; its own count of versions is not used
    start = state.count_start("robot")               # by a reader, once; how often it had started before
    weights = state.get_weights(version)             # by a reader; None while there is nothing newer
    """

    def __init__(self, folder: str | Path, versions_bytes: int = VERSIONS_BYTES):
        self._folder, self._versions_bytes = Path(folder), versions_bytes
        (self._folder / VERSIONS).mkdir(parents=True, exist_ok=True)
        path = self._folder / WEIGHTS_FILE
        self._newest = read_weights(path) if path.exists() else None
        self._published = path.stat().st_mtime if self._newest else 0.0
        self._born = time.time()
        with disk_errors(self._folder, "no weights can be published"):
            write_atomic(self._folder / BORN, repr(self._born).encode())

    @property
    def version(self) -> int:
        """The newest version; 0 before the first one."""
        return 0 if self._newest is None else self._newest.version

    def publish_frozen(self, weights: PolicyWeights) -> None:
        """Keep the weights of the policy's frozen part, which no version contains."""
        with disk_errors(self._folder, "the frozen encoder was not written"):
            write_weights(self._folder / FROZEN_FILE, weights)

    def get_frozen(self) -> PolicyWeights | None:
        """The weights of the policy's frozen part; None while there are none."""
        path = self._folder / FROZEN_FILE
        return read_weights(path) if path.exists() else None

    def publish(self, weights: PolicyWeights) -> int:
        """Write these weights to disk and return their version."""
        newest = PolicyWeights(self.version + 1, weights.tensors)
        with disk_errors(self._folder, "these weights were not published"):
            write_weights(self._folder / WEIGHTS_FILE, newest)
        self._newest, self._published = newest, time.time()
        return newest.version

    def count_start(self, reader: str) -> int:
        """How often a reader had started before, over all sessions of a run; this time is counted, and on disk."""
        path = self._folder / STARTS
        starts: dict[str, int] = read_json_object(path) if path.exists() else {}
        before = starts.get(reader, 0)
        with disk_errors(self._folder, f"a start of the {reader} was not counted"):
            write_atomic(path, json.dumps({**starts, reader: before + 1}).encode())
        return before

    def get_weights(self, newer_than: int) -> PolicyWeights | None:
        """The newest weights, if the reader has older ones. They stay on disk, in `versions`."""
        newest = self._newest if self.version > newer_than else None
        path = self._folder / VERSIONS / f"{self.version:08d}.safetensors"
        if newest is None or path.exists():
            return newest
        with disk_errors(self._folder, f"version {newest.version} was not given to a robot"):
            write_weights(path, newest)
            kept = sorted(path.parent.glob("*.safetensors"))
            while len(kept) > 1 and sum(each.stat().st_size for each in kept) > self._versions_bytes:
                kept.pop(0).unlink()
        return newest

    def close(self) -> None:
        """Everything is on disk already."""

    def status(self) -> PolicyStatus:
        """The state that the loop shows."""
        return PolicyStatus(self.version, self._published, self._born)
