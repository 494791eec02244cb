"""The workers that label a run's episodes: the judge, and a person who labels or audits.

Neither keeps state of its own: the replay buffer lists the episodes that are left. A judge that was restarted or
replaced therefore continues where the labels end. An episode that the judge fails on is recorded with the reason and
retried after the others, `ATTEMPTS` times in all (replay_buffer.py).

A person labels in a window. Qt needs the main thread, so the window is a process. Closing it is normal: the run goes on
and shows how many episodes wait and by which command the window opens again. The window closes with the process that
opened it, and drafts are kept (judges/human/drafts.py).

At the machine of the store, the window is open on the store itself, and labels are in its ledger at once. Elsewhere it
is open on a mirror in the person's home folder: a store with copies of the episodes. A mirror outlives the run: drafts
are kept, and labels that were given while the run was away are sent when it is back. A mirror is named by the id of the
store, because the machine that has the store may have been rebooted or replaced. No answer is lost and none counts
twice: how far answers were collected is kept on disk, and written only after they are in the run's ledger. A mirror has
no labels of judges: who audits a judge should not see them.
"""

import hashlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from socket import gethostname
from typing import Any

from plaudit.data.disk import write_atomic
from plaudit.data.store import Store
from plaudit.errors import PlauditError, WorkerLost
from plaudit.files import Root, read_json, read_json_object
from plaudit.judges.cascade import CascadeConfig
from plaudit.judges.classifier.config import ClassifierJudgeConfig
from plaudit.judges.config import HUMAN, JudgeConfig, judge_warnings
from plaudit.judges.human.app import has_display, run_labeling_app
from plaudit.judges.human.drafts import is_being_labeled
from plaudit.judges.human.judge import HumanJudge, with_window_id
from plaudit.judges.human.queue import QueueOrder
from plaudit.judges.labeling import RETRY_S, LabelQueue, LabelRunner, LabelStats
from plaudit.judges.published.config import PublishedConfig
from plaudit.judges.vlm.config import VlmJudgeConfig
from plaudit.processes import ChildProcess, exit_with_parent, send
from plaudit.registry import JUDGE_REGISTRY, dotted_path
from plaudit.training.config import LabelingWindowConfig
from plaudit.training.replay_buffer import Dataset, EpisodeRef, ReplayBuffer, stored_episodes
from plaudit.training.workers.handles import Handle
from plaudit.types import Episode, JudgeId, Labels

WINDOW = "plaudit.training.workers.labelers:window"
MIRROR_BYTES = 20 << 30  # of a mirror; beyond it the oldest go
GRACE = 2.0  # s that a window may take to close


class Mirror:
    """A store with copies of another store's episodes, written by one process and labeled by a window."""

    def __init__(self, folder: Path):
        self._kept = folder / "collected.json"  # versions of the ledger that were collected
        self._names = folder / "remote.json"  # of evicted episodes too: they may have been labeled before
        with ExitStack() as stack:  # closes the store if the rest fails
            self.store = stack.enter_context(Store.open_or_create(folder, capacity_bytes=MIRROR_BYTES))
            self._collected: int = read_json(self._kept) if self._kept.exists() else 0
            self._read = self._collected  # what `answered` has looked at
            named = read_json_object(self._names) if self._names.exists() else {}
            self._remote: dict[int, int] = {int(local): remote for local, remote in named.items()}
            self._remote |= {i: self.store.entry(i).line["meta"]["remote"] for i in self.store.ids}
            stack.pop_all()

    def local_id(self, remote_id: int) -> int | None:
        """What an episode is called here, evicted or not; the newest copy of it."""
        return max((local for local, remote in self._remote.items() if remote == remote_id), default=None)

    def is_answered(self, remote_id: int) -> bool:
        """Whether the person has labeled it."""
        local = self.local_id(remote_id)
        return local is not None and self.store.ledger.newest(local, {HUMAN}) is not None

    def add(self, episode: Episode, remote_id: int) -> int:
        """A copy, without what only a simulator knows of it; returns its id here."""
        write_atomic(self._names, json.dumps(self._remote).encode())  # before this episode makes others go
        local = self.store.append(replace(episode, privileged={}, meta={**episode.meta, "remote": remote_id}))
        self._remote[local] = remote_id
        return local

    def answered(self) -> list[int]:
        """The episodes with an answer that was not collected yet, by their ids at home."""
        self.store.ledger.refresh()
        self._read = len(self.store.ledger)
        new = self.store.ledger.since(self._collected)
        return list(dict.fromkeys(self._remote[v.episode] for v in new if v.source == HUMAN))

    def mark_collected(self) -> None:
        """Record that the run's ledger now has what `answered` last returned."""
        if self._read != self._collected:
            write_atomic(self._kept, json.dumps(self._read).encode())
            self._collected = self._read

    def close(self) -> None:
        self.store.close()


class Window:
    """The labeling window over a store, from outside."""

    def __init__(self, store: Path, config: LabelingWindowConfig, target: str = WINDOW):
        """target: the function that is the window's process"""
        self._store, self._config, self._target = store, config, target
        self._child: ChildProcess | None = None
        self._closed_at = 0.0
        self._ended = ""  # how it went the last time that it was open
        self._problem = ""  # why there can be none

    @property
    def open(self) -> bool:
        """Whether a window is open on the store, opened from here or by a person's own command."""
        child = self._child
        if child is not None and not child.alive:
            with suppress(EOFError, OSError):
                self._problem = child.connection.recv() if child.connection.poll() else ""
            self._closed_at = time.monotonic()
            self._ended = "the labeling window was closed" if child.end() else child.exit_reason()
            self._child = None
        return self._child is not None or is_being_labeled(self._store)

    @property
    def status(self) -> str:
        """A message: whether the window is open, or how to open it."""
        if self.open:
            return "the labeling window is open"
        command = f"plaudit label {self._store} --judge human"
        if self._problem:
            where = gethostname()
            serve = f"plaudit serve {self._store}"
            return f"no labeling window could be opened on {where}: {self._problem}; or label in a browser: {serve}"
        if self._ended:
            return f"{self._ended}; open it again with: {command}"
        return f"no labeling window was opened from here; open one with: {command}"

    def show(self) -> None:
        """Open it, unless it is open, cannot be, or was closed by the person not long ago."""
        if self.open or self._problem or not self._config.open:
            return
        wait = self._config.reopen_after_s
        if self._ended and (wait is None or time.monotonic() - self._closed_at < wait):
            return
        arguments = (self._store.resolve(), self._config.order, self._config.labeler)
        self._child = ChildProcess("labeling window", self._target, *arguments)

    def close(self) -> None:
        """Close the window; unfinished labels are kept as drafts."""
        if self._child is not None:
            with suppress(ProcessLookupError):
                os.kill(self._child.pid, signal.SIGTERM)
            self._child.end(GRACE, hang_up=False)
            self._child = None


def window(connection: Connection, store: Path, order: QueueOrder, name: str) -> None:
    """The process: ends when the person closes the window, or the process that opened it is gone."""
    exit_with_parent(connection, GRACE)
    if not has_display():
        again = "start the run again; with --ray, start the cluster's node there again"
        return send(connection, f"DISPLAY is not set there; set it (export DISPLAY=:0) and {again}")
    try:
        run_labeling_app(store, order=order, name=name, say=lambda _: None)
    except PlauditError as error:
        send(connection, str(error))


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


WHO = HumanJudge.id  # whatever a person labeled stands
MIRRORS = Path(".plaudit") / "mirrors"  # in the home folder


class WindowQueue(BufferQueue):
    """The run's episodes, by the ids that they have in the window that is open on the run's store."""

    def stale(self, judge: JudgeId) -> Sequence[EpisodeRef]:
        return [ref for ref in super().stale(judge) if ref.dataset == "episodes"]

    def episodes(self, keys: Sequence[EpisodeRef]) -> Mapping[EpisodeRef, Episode]:
        return {ref: with_window_id(episode, ref.id) for ref, episode in super().episodes(keys).items()}


class MirrorQueue(BufferQueue):
    """The run's episodes as copies in a mirror, each of which is fetched once."""

    def __init__(self, replay: Handle[ReplayBuffer], mirror: Mirror):
        super().__init__(replay)
        self._mirror = mirror

    def stale(self, judge: JudgeId) -> Sequence[EpisodeRef]:
        """Episodes without a label, and those that the person has labeled or relabeled since."""
        pending = [ref for ref in super().stale(judge) if ref.dataset == "episodes"]
        return list(dict.fromkeys([*self.answered(), *pending]))

    def answered(self) -> list[EpisodeRef]:
        """Episodes with an answer that is not in the run's ledger yet."""
        return [EpisodeRef("episodes", remote_id) for remote_id in self._mirror.answered()]

    def episodes(self, keys: Sequence[EpisodeRef]) -> Mapping[EpisodeRef, Episode]:
        """Episodes from the mirror; missing ones are fetched. Episodes that the run has deleted are left out."""
        alive = set(self._mirror.store.ids)
        missing = [ref for ref in keys if self._mirror.local_id(ref.id) not in alive]
        fetched = self._replay.call(ReplayBuffer.episodes, missing) if missing else {}
        for ref in missing:
            if ref in fetched and not self._mirror.is_answered(ref.id):
                self._mirror.add(fetched[ref], ref.id)
        local = {ref: self._mirror.local_id(ref.id) for ref in keys}
        return {
            ref: with_window_id(fetched[ref] if ref in fetched else self._mirror.store.episode(i), i)
            for ref, i in local.items()
            if i is not None and (ref in fetched or i in alive)
        }

    def write(self, labels: Mapping[EpisodeRef, Labels], failed: Mapping[EpisodeRef, str], judge: JudgeId) -> None:
        super().write(labels, failed, judge)
        self._mirror.mark_collected()


class HumanLabelWorker:
    """
    worker = HumanLabelWorker(replay, config)
    worker.label_pending()       # who labels the run: everything that has no label
    worker.label_pending(ids)    # who audits: these
    """

    def __init__(self, replay: Handle[ReplayBuffer], config: LabelingWindowConfig):
        self._replay, self._config = replay, config
        self._runner: LabelRunner[EpisodeRef] | None = None
        self._queue: WindowQueue | MirrorQueue
        self._judge: HumanJudge
        self._window: Window
        self._mirror: Mirror | None = None

    def label_pending(self, ids: Sequence[int] | None = None) -> LabelReport:
        """Show what is wanted, take what was answered."""
        runner = self._open()
        only = None if ids is None else [EpisodeRef("episodes", i) for i in ids]
        if only is not None and isinstance(self._queue, MirrorQueue):
            only = list(dict.fromkeys([*self._queue.answered(), *only]))
        stats = runner.step(only)
        if not stats.pending:
            self._judge.request([])
        return LabelReport.of(WHO, stats, self._window.status)

    def close(self) -> None:
        """Close the window; what was begun in it is kept."""
        if self._runner is not None:
            self._window.close()
        if self._mirror is not None:
            self._mirror.close()

    def _open(self) -> LabelRunner[EpisodeRef]:
        if self._runner is None:
            where = self._replay.call(ReplayBuffer.location)
            if where.is_here:
                folder = where.episodes
                self._queue, store = WindowQueue(self._replay), Store.open(folder)
            else:
                folder = Path.home() / MIRRORS / where.store_id[:12]
                self._mirror = Mirror(folder)
                self._queue, store = MirrorQueue(self._replay, self._mirror), self._mirror.store
            self._window = Window(folder, self._config)
            self._judge = HumanJudge(store, self._window.show)
            self._runner = LabelRunner(self._judge, self._queue, batch_size=sys.maxsize)
        return self._runner
