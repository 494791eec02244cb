"""The judge's side: look at what nobody has judged yet, a few episodes at a time.

It remembers nothing that matters. Which judge it is it is told by `load`, again after it was killed, and what is left
to do is asked of the replay buffer; so a judge that was killed, or replaced by a better one, goes on where the labels
end. An episode
that it fails on stays in the queue with the reason beside it, and is asked about again after the others, a few times
(`ATTEMPTS` in replay.py).
"""

import hashlib
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plaudit.data.store import Store
from plaudit.errors import EpisodeNotFound, WorkerLost
from plaudit.judges.classifier.judge import ClassifierJudgeConfig
from plaudit.judges.config import JudgeConfig
from plaudit.judges.labeling import BATCH, label_mapping
from plaudit.judges.vlm.judge import VlmJudgeConfig
from plaudit.protocols import Judge
from plaudit.registry import JUDGE_REGISTRY
from plaudit.training.handles import Handle
from plaudit.training.replay_buffer import EpisodeRef, ReplayBuffer
from plaudit.types import Episode, JudgeId

AGAIN = 20.0  # s before an episode that the judge failed on is asked about again


@dataclass(frozen=True, eq=False)
class JudgeBundle:
    """A judge's config on its way to the machine where it will sit, with the files that it needs there."""

    config: Mapping[str, Any]  # as a file has it, with its `type`
    files: Mapping[str, bytes]  # of a reward model, by their paths in its folder
    identity: str  # of both

    @classmethod
    def of(cls, config: JudgeConfig) -> "JudgeBundle":
        """Reward models go along, they are small; a vision-language model is where its path says.

        Relative paths are those of the process that calls this: another one, elsewhere, has another working folder.
        """
        tree = config.model_dump(mode="json", exclude_unset=True) | {"type": _type_of(config)}
        tree |= {
            key: str(value.absolute())
            for key, value in config.model_dump(exclude_unset=True).items()
            if isinstance(value, Path)
        }
        files: dict[str, bytes] = {}
        if isinstance(config, ClassifierJudgeConfig) and config.model.exists():
            root = config.model if config.model.is_dir() else config.model.parent
            paths = sorted(config.model.rglob("*")) if config.model.is_dir() else [config.model]
            files = {str(path.relative_to(root)): path.read_bytes() for path in paths if path.is_file()}
            tree["model"] = "" if config.model.is_dir() else config.model.name  # among the files
        elif isinstance(config, VlmJudgeConfig) and Path(config.model).is_dir():  # and no id of the hub
            tree["model"] = str(Path(config.model).absolute())
        digest = hashlib.sha256(repr(sorted(tree.items())).encode())
        for name, data in files.items():
            digest.update(name.encode() + data)
        return cls(tree, files, digest.hexdigest()[:16])

    def build(self, folder: Path) -> Judge:
        """folder: where its files may be put"""
        config = dict(self.config)
        if self.files:
            config["model"] = str(folder / config["model"])
            for name, data in self.files.items():
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
        parsed = JUDGE_REGISTRY.parse(config)
        assert isinstance(parsed, JudgeConfig)
        return parsed.build()


def _type_of(config: JudgeConfig) -> str:
    """By its class, which any process can import; a name may be registered only where the plugin was imported."""
    return f"{type(config).__module__}:{type(config).__qualname__}"


@dataclass(frozen=True)
class LabelReport:
    """What came of one look."""

    who: JudgeId
    done: int = 0
    failed: int = 0
    latency: float = 0.0  # s an episode
    note: str = ""  # what a person should know


class JudgeWorker:
    """One judge at work.

    judge_id = worker.load(bundle)
    report = worker.label_pending()
    """

    def __init__(self, replay: Handle[ReplayBuffer], batch: int = BATCH, clock: Callable[[], float] = time.monotonic):
        """clock: seconds, after which an episode that it failed on is tried again"""
        self._replay, self._batch, self._clock = replay, batch, clock
        self._judge: Judge | None = None
        self._identity = ""
        self._stores: dict[str, Store] | None = None
        self._tried: dict[EpisodeRef, float] = {}  # when a judge failed on it
        self._folder = tempfile.TemporaryDirectory(prefix="plaudit-judge-")

    def close(self) -> None:
        self._folder.cleanup()

    def load(self, bundle: JudgeBundle) -> JudgeId:
        """Build a judge, or another version of it; the one at hand is kept. Returns who its labels will be of."""
        if self._judge is None or bundle.identity != self._identity:
            self._judge = bundle.build(Path(self._folder.name) / bundle.identity)
            self._identity = bundle.identity
            self._tried.clear()
        return self._judge.id

    def label_pending(self) -> LabelReport:
        """Label one batch of what is waiting; nothing where nothing is."""
        if self._judge is None:
            raise WorkerLost("judge", "its process was started again and has no judge yet")
        who = self._judge.id
        items = [item for item in self._replay.call(ReplayBuffer.pending, who) if self._due(item)][: self._batch]
        if not items:
            return LabelReport(who)
        begun = time.monotonic()
        episodes = self._fetch(items)
        verdicts, failed = label_mapping(self._judge, episodes)
        seconds = time.monotonic() - begun
        self._tried |= dict.fromkeys(failed, self._clock())
        self._replay.call(ReplayBuffer.add_labels, verdicts, failed, who)
        latency = seconds / len(episodes) if episodes else 0.0
        return LabelReport(who, len(verdicts), len(failed), latency)

    def _due(self, item: EpisodeRef) -> bool:
        return item not in self._tried or self._clock() - self._tried[item] >= AGAIN

    def _fetch(self, items: Sequence[EpisodeRef]) -> dict[EpisodeRef, Episode]:
        """From the disk where this machine has it, else through the service."""
        stores = self._open()
        if not stores:
            return self._replay.call(ReplayBuffer.episodes, items)
        found: dict[EpisodeRef, Episode] = {}
        for item in items:
            store = stores[item.shelf]
            store.refresh()
            try:
                found[item] = store.episode(item.id)
            except EpisodeNotFound:
                continue
        return found

    def _open(self) -> dict[str, Store]:
        if self._stores is None:
            where = self._replay.call(ReplayBuffer.location)
            paths = {"episodes": where.episodes, **({} if where.demos is None else {"demos": where.demos})}
            self._stores = {shelf: Store.open(path) for shelf, path in paths.items()} if where.is_here else {}
        return self._stores
