"""The judge worker: labels episodes that have no label yet, a few at a time.

The worker keeps no state of its own. `load` sets the judge, and is called again after a restart. The replay buffer
lists the episodes that are left. A judge that was restarted or replaced therefore continues where the labels end. An
episode that the judge fails on is recorded with the reason and retried after the others, `ATTEMPTS` times in all
(training/replay_buffer.py).
"""

import hashlib
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plaudit.data.store import Store
from plaudit.errors import WorkerLost
from plaudit.files import Root
from plaudit.judges.cascade import CascadeConfig
from plaudit.judges.classifier.config import ClassifierJudgeConfig
from plaudit.judges.config import JudgeConfig, judge_warnings
from plaudit.judges.labeling import RETRY_S, LabelQueue, LabelRunner, LabelStats
from plaudit.judges.published.config import PublishedConfig
from plaudit.judges.vlm.config import VlmJudgeConfig
from plaudit.registry import JUDGE_REGISTRY, dotted_path
from plaudit.training.handles import Handle
from plaudit.training.replay_buffer import Dataset, EpisodeRef, ReplayBuffer, stored_episodes
from plaudit.types import Episode, JudgeId, Labels


@dataclass(frozen=True, eq=False)
class JudgeBundle:
    """A judge's config on its way to the machine where it will sit, with the files that it needs there."""

    config: Mapping[str, Any]  # as a file has it, with its `type`
    files: Mapping[str, bytes]  # of its models, by the key that names one and their paths in its folder
    identity: str  # of all
    stages: Sequence["JudgeBundle"] = ()  # of a cascade

    @classmethod
    def of(cls, config: JudgeConfig) -> "JudgeBundle":
        """Reward models go along, they are small; a vision-language model is where its path says.

        Relative paths are those of the process that calls this: another one, elsewhere, has another working folder.
        """
        # By its class, which any process can import: a name may be registered only where the plugin was imported.
        tree = config.model_dump(mode="json", exclude_unset=True) | {"type": dotted_path(type(config))}
        tree |= {
            key: str(value.absolute())
            for key, value in config.model_dump(exclude_unset=True).items()
            if isinstance(value, Path)
        }
        files: dict[str, bytes] = {}
        models = {"progress": config.progress}
        if isinstance(config, ClassifierJudgeConfig):
            models["model"] = config.model
        for key, model in models.items():
            if model is not None and model.exists():
                root, paths = (model, sorted(model.rglob("*"))) if model.is_dir() else (model.parent, [model])
                opener = Root(root) if model.is_dir() else Root.of_named_file(model)
                files |= {f"{key}/{path.relative_to(root)}": _read(opener, path) for path in paths if path.is_file()}
                tree[key] = key if model.is_dir() else f"{key}/{model.name}"  # among the files
        if isinstance(config, VlmJudgeConfig | PublishedConfig):
            named = {key: Path(tree[key]) for key in ("model", "base", "text_model") if tree.get(key)}
            tree |= {key: str(path.absolute()) for key, path in named.items() if path.exists()}  # no ids of the hub
        stages = [cls.of(stage) for stage in config.stages] if isinstance(config, CascadeConfig) else []
        tree |= {"stages": [stage.identity for stage in stages]} if stages else {}
        digest = hashlib.sha256(repr(sorted(tree.items())).encode())
        for name, data in files.items():
            digest.update(name.encode() + data)
        return cls(tree, files, digest.hexdigest()[:16], stages)

    def unpack(self, folder: Path) -> JudgeConfig:
        """Write the files into a folder and return the judge's config."""
        config = dict(self.config)
        config |= {key: str(folder / config[key]) for key in {name.split("/")[0] for name in self.files}}
        for name, data in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        if self.stages:
            built = [stage.unpack(folder / str(number)) for number, stage in enumerate(self.stages)]
            config["stages"] = [JUDGE_REGISTRY.dump(stage) for stage in built]
        parsed = JUDGE_REGISTRY.parse(config)
        assert isinstance(parsed, JudgeConfig)
        return parsed


def _read(root: Root, path: Path) -> bytes:
    with root.open(path) as file:
        return file.read()


@dataclass(frozen=True)
class LabelReport:
    """The result of one call of a labeling worker."""

    who: JudgeId
    done: int = 0
    latency: float = 0.0  # s an episode
    note: str = ""  # what a person should know
    progress: str = ""  # how far the newest episode came, in words; "" where the judge does not measure it

    @classmethod
    def of(cls, judge: JudgeId, stats: LabelStats[EpisodeRef], note: str = "") -> "LabelReport":
        """A report of what a runner has counted."""
        scored = len(stats.done) + len(stats.failed)
        latency = stats.seconds / scored if scored else 0.0
        return cls(judge, len(stats.done), latency, note, stats.progress)


class BufferQueue(LabelQueue[EpisodeRef]):
    """The unlabeled episodes of a run's replay buffer, read from the disk where this machine has it."""

    def __init__(self, replay: Handle[ReplayBuffer]):
        self._replay = replay
        self._stores: dict[Dataset, Store] | None = None  # empty: on another machine

    def stale(self, judge: JudgeId) -> Sequence[EpisodeRef]:
        return self._replay.call(ReplayBuffer.pending, judge)

    def episodes(self, keys: Sequence[EpisodeRef]) -> Mapping[EpisodeRef, Episode]:
        if self._stores is None:
            where = self._replay.call(ReplayBuffer.location)
            self._stores = where.open() if where.is_here else {}
        if not self._stores:
            return self._replay.call(ReplayBuffer.episodes, keys)
        for store in self._stores.values():
            store.refresh()
        return stored_episodes(self._stores, keys)

    def write(self, labels: Mapping[EpisodeRef, Labels], failed: Mapping[EpisodeRef, str], judge: JudgeId) -> None:
        if labels or failed:
            self._replay.call(ReplayBuffer.add_labels, labels, failed, judge)


class JudgeWorker:
    """One judge at work.

    judge_id = worker.load(bundle)
    report = worker.label_pending()
    """

    def __init__(self, replay: Handle[ReplayBuffer], clock: Callable[[], float] = time.monotonic):
        """clock: seconds, after which an episode that it failed on is tried again"""
        self._queue, self._clock = BufferQueue(replay), clock
        self._runner: LabelRunner[EpisodeRef] | None = None
        self._identity, self._warnings = "", list[str]()
        self._folder = tempfile.TemporaryDirectory(prefix="plaudit-judge-")

    def close(self) -> None:
        self._folder.cleanup()

    def load(self, bundle: JudgeBundle) -> JudgeId:
        """Build a judge unless it is the current one; returns the id of its labels."""
        if self._runner is None or bundle.identity != self._identity:
            config = bundle.unpack(Path(self._folder.name) / bundle.identity)
            judge = config.build_with_progress()
            self._warnings = judge_warnings(config, judge)
            self._runner = LabelRunner(judge, self._queue, retry_s=RETRY_S, clock=self._clock)
            self._identity = bundle.identity
        return self._runner.judge.id

    def warnings(self) -> list[str]:
        """Messages about the judge that was loaded, before its labels are used."""
        return self._warnings

    def label_pending(self) -> LabelReport:
        """Label one batch of waiting episodes, if there are any."""
        if self._runner is None:
            raise WorkerLost("judge", "its process was started again and has no judge yet")
        return LabelReport.of(self._runner.judge.id, self._runner.step())
