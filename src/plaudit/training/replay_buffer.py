"""The only writers of a run's data: the replay buffer, of its episodes and labels, and the state manager, of its
weights.

    episode_id = replay.add(episode, key)          # on disk when this returns; the same key again changes nothing
    replay.pending(judge)                          # episodes that a judge has to label
    replay.add_labels(labels, failures, judge)     # on disk when this returns
    replay.sample(256, options)                    # for a learner that does not see the disk; see `RemoteSampler`

All answers follow from the store and its ledger, so a restarted buffer gives the same ones. Callers repeat a call that
was not answered, so every call may come twice.

Demonstrations are a second dataset in a read-only store. The current judge labels them too, in a ledger of the run, so
other runs with the same demonstrations are not affected.

A mark of an operator is a label (rollout/recording.py), and the judge does not score a marked episode. Discarded
episodes are kept in a store of their own and do not count.

An episode that a judge has failed on `ATTEMPTS` times is skipped for this judge. It stays in the store with the reason,
and nothing waits for it or learns from it. The next version of the judge, or the next session, tries again.

A learner that is killed goes back to a checkpoint; a robot must never go back with it unnoticed. So the state manager
gives out versions of the weights: one more for each that is published, on disk before it can be read. A restarted
process finds the version it left. Versions that acted stay on disk, in `versions`: an episode's meta names its version,
so one can look up later why a robot did what it did.
"""

import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from plaudit.config import Config, Fraction, NonNegativeInt, Seed, SmallInt
from plaudit.data.batch import FeatureCache
from plaudit.data.demonstrations import InterventionConfig
from plaudit.data.disk import disk_errors, write_atomic
from plaudit.data.ledger import Failure, Failures, Ledger, counted_sources
from plaudit.data.replay import ReplaySampler
from plaudit.data.rewards import RewardConfig
from plaudit.data.store import Store
from plaudit.errors import EpisodeNotFound
from plaudit.files import Root, read_json_object
from plaudit.judges.labeling import stale_episodes
from plaudit.policies.config import History
from plaudit.policies.loader import FROZEN_FILE, WEIGHTS_FILE, read_weights, write_weights
from plaudit.rollout.operator import GATE_S
from plaudit.rollout.recording import discarded_store, is_discarded, label_marked
from plaudit.rule import release
from plaudit.training.workers.handles import Handle
from plaudit.types import HUMAN, OPERATOR, PEOPLE, AnyArray, Batch, Episode, JudgeId, Labels, PolicyWeights

if TYPE_CHECKING:
    from plaudit.data.device_frames import DeviceFrames


Dataset = Literal["demos", "episodes"]
ONLINE = "online"  # in an episode's meta: its key, the run's steps before it, people's seconds up to its end
REPEATED = 1000  # newest episodes whose keys are kept after eviction
ATTEMPTS = 3  # failures of one judge on an episode before it is skipped


class EpisodeRef(NamedTuple):
    """An episode of a dataset."""

    dataset: Dataset
    id: int


class SampleOptions(Config):
    """Which steps a learner samples, and how."""

    source: str  # whose labels count
    gamma: Fraction
    n_step: SmallInt = 1
    horizon: SmallInt | None = None
    whole_windows: bool = False  # leave out windows of `horizon` actions that the time limit cuts short
    history: History = 0
    cameras: tuple[str, ...] = ()
    demo_ratio: Fraction = 0.5
    interventions: InterventionConfig = InterventionConfig()
    reward: RewardConfig = RewardConfig()
    terminate_on_success: bool = True
    trust_demos: bool = False  # demonstrations keep their own labels, and end where they were recorded as terminated
    hold_back: NonNegativeInt = 0  # newest labeled episodes of the run that are not sampled yet
    seed: Seed = 0


@dataclass(frozen=True)
class ReplayStats:
    """Counts of a run."""

    episodes: int  # ever added
    steps: int  # of these
    unlabeled: int  # episodes that wait for their first label of the current judge or an earlier version
    labeled_steps: int  # of episodes, evicted ones too, with a label that they can be sampled by
    failed: int  # episodes without a label that the current judge or an earlier version has failed on
    outdated: int  # episodes that only an earlier version has labeled
    demos_unlabeled: int  # demonstrations that wait for a label of the current judge
    skipped: int = 0  # episodes that the current judge has failed on so often that it is not asked again
    skipped_in_a_row: int = 0  # of these episodes, those after the newest that has a label
    demos_skipped: int = 0  # demonstrations of that kind
    demos: int = 0  # all demonstrations that the current judge labels
    demo_successes: int = 0  # of these, a success by its labels so far
    demos_blank: int = 0  # of these, those whose labels leave out every frame
    reason: str = ""  # why the judge failed on the newest skipped one
    person_s: Mapping[str, float] = field(default_factory=dict)  # metric -> s, of all episodes ever added
    born: float = 0.0  # when the service that counted was started, s since 1970


@dataclass(frozen=True)
class StoreLocation:
    """Where the files are; a process can tell whether it sees the same ones."""

    episodes: Path  # folder
    demos: Path | None
    demo_labels: Path | None
    identity: tuple[str, int, int]  # of the machine's boot, the disk and the folder
    store_id: str  # the store's own, wherever it is and whenever its machine was booted

    @property
    def is_here(self) -> bool:
        return _identity(self.episodes) == self.identity

    def open(self) -> dict[Dataset, Store]:
        """The run's episodes, and the demonstrations with the run's labels of them."""
        stores: dict[Dataset, Store] = {"episodes": Store.open(self.episodes)}
        if self.demos is not None:
            stores["demos"] = Store.open(self.demos, labels=self.demo_labels)
        return stores


@dataclass
class _Labeled:
    """Which episodes of a dataset a judge has labeled. Updated incrementally from the ledger."""

    judge: JudgeId
    position: tuple[int, int] = (0, 0)  # in the ledger: its generation, and how many versions were read
    ids: set[int] = field(default_factory=set)  # episodes at the last update
    waiting: set[int] = field(default_factory=set)  # those without a label of this judge
    labeled_steps: dict[int, int] = field(default_factory=dict)  # of labeled episodes, 0 if every frame is left out
    successes: set[int] = field(default_factory=set)  # by their labels


class ReplayBuffer:
    """The episodes and labels of one run."""

    def __init__(
        self,
        folder: str | Path,
        *,
        demos: str | Path | None = None,
        relabel_demos: bool = True,
        capacity_gb: float = 50.0,
        store_images: str = "raw",
        compress_old: str = "raw",
        since: float = 0.0,
    ):
        """
        folder: of the run; `episodes` in it is made when it is not there
        store_images, compress_old: how frames of the run's episodes, and of the oldest ones, are stored
        relabel_demos: the current judge labels the demonstrations; False: they keep the labels that they have
        since: s since 1970; what a judge failed on before is tried again as if it had never been
        """
        folder = Path(folder)
        path, labels = folder / "episodes", folder / "demo_labels" if relabel_demos else None
        self._capacity = int(capacity_gb * 1e9)
        self._relabel_demos = relabel_demos
        self._since = since
        self._born = time.time()
        self._labeled: dict[Dataset, _Labeled] = {}
        self._samplers: dict[SampleOptions, ReplaySampler] = {}
        with ExitStack() as stack:  # closes the store if the rest fails
            store = stack.enter_context(
                Store.open_or_create(
                    path, capacity_bytes=self._capacity, images=store_images, compress_old=compress_old
                )
            )
            self._stores: dict[Dataset, Store] = {"episodes": store}
            if demos is not None:
                self._stores["demos"] = Store.open(demos, labels=labels)
                if relabel_demos:
                    copy_exclusions(Store.open(demos), self._stores["demos"])
            self._failures = {dataset: Failures(held.ledger) for dataset, held in self._stores.items()}
            self._keys = {_online_meta(store, i)["key"]: i for i in store.ids}
            for episode_id in store.ids:  # labels that a crash prevented
                label_marked(store, episode_id)
            stack.pop_all()

    @property
    def _store(self) -> Store:
        return self._stores["episodes"]

    def close(self) -> None:
        self._store.close()

    def location(self) -> StoreLocation:
        demos = self._stores.get("demos")
        return StoreLocation(
            self._store.folder.absolute(),
            None if demos is None else demos.folder.absolute(),
            demos.ledger.path.absolute() if demos is not None and self._relabel_demos else None,
            _identity(self._store.folder),
            self._store.settings.id,
        )

    def add(self, episode: Episode, key: str) -> int:
        """Store an episode and return its id; the same key again returns the same id."""
        person_s = {name: self.person_s().get(name, 0.0) + s for name, s in seconds_of(episode).items()}
        meta = {**episode.meta, ONLINE: {"key": key, "steps_before": self._steps, "person_s": person_s}}
        episode = replace(episode, meta=meta)
        if is_discarded(episode):
            with discarded_store(self._store.folder, self._capacity) as store:
                added = [i for i in store.ids if _online_meta(store, i)["key"] == key]
                return added[0] if added else store.append(episode)
        if key not in self._keys:
            self._keys[key] = self._store.append(episode)
            ids = self._store.ids
            if len(self._keys) > 2 * len(ids) + REPEATED:  # calls are repeated at once or never
                first = min(ids[0], ids[-1] - REPEATED) if ids else 0
                self._keys = {key: i for key, i in self._keys.items() if i >= first}
        with suppress(EpisodeNotFound):  # evicted since it was first added
            label_marked(self._store, self._keys[key])
        return self._keys[key]

    @property
    def _steps(self) -> int:
        """Steps of all episodes that were ever added; the newest one knows those of evicted ones."""
        newest = self._store.ids[-1:]
        return sum(_online_meta(self._store, i)["steps_before"] + self._store.entry(i).steps for i in newest)

    def person_s(self) -> dict[str, float]:
        """Seconds of people with all episodes that were ever added; an older run did not record them."""
        return next((_online_meta(self._store, i).get("person_s", {}) for i in self._store.ids[-1:]), {})

    def stats(self, judge: JudgeId) -> ReplayStats:
        """The counts for this judge."""
        waiting, skipped = self._waiting("episodes", judge), self._skipped("episodes", judge)
        unlabeled = {i for i in waiting if not self._has_label(i, judge)}
        never_labeled = {i for i in skipped if not self._has_label(i, judge)}
        failed = {failure.episode for failure in self._standing("episodes", judge)}
        demos_unlabeled, demos_skipped = self._waiting("demos", judge), self._skipped("demos", judge)
        ids, reasons = self._store.ids, skipped or demos_skipped
        demos = self._labeled.get("demos", _Labeled(judge))
        # Skipped episodes after the newest labeled one; waiting episodes in between do not count.
        in_a_row = takewhile(never_labeled.__contains__, (i for i in reversed(ids) if i not in unlabeled))
        return ReplayStats(
            episodes=ids[-1] + 1 if ids else 0,
            steps=self._steps,
            unlabeled=len(unlabeled),
            labeled_steps=sum(self._labeled["episodes"].labeled_steps.values()),
            failed=len(failed & (unlabeled | never_labeled)),
            outdated=len(waiting - unlabeled),
            demos_unlabeled=len(demos_unlabeled),
            skipped=len(skipped),
            skipped_in_a_row=len(list(in_a_row)),
            demos_skipped=len(demos_skipped),
            demos=len(demos.ids),
            demo_successes=len(demos.successes),
            demos_blank=sum(demos.labeled_steps.get(i) == 0 for i in demos.ids),
            reason=reasons[max(reasons)] if reasons else "",
            person_s=self.person_s(),
            born=self._born,
        )

    def _labels_dataset(self, dataset: Dataset) -> bool:
        """Whether the current judge labels this dataset."""
        return dataset in self._stores and (dataset == "episodes" or self._relabel_demos)

    def _has_label(self, episode_id: int, judge: JudgeId) -> bool:
        """Whether a source that counts with this judge has labeled it, in any version."""
        return self._store.ledger.newest(episode_id, counted_sources(judge.source)) is not None

    def pending(self, judge: JudgeId) -> list[EpisodeRef]:
        """What the judge has to label: demonstrations, new episodes, those of an earlier version, failed ones."""
        tried = {failure.episode for failure in self._standing("episodes", judge)}
        waiting = sorted(self._waiting("episodes", judge), key=lambda i: (i in tried, self._has_label(i, judge), i))
        demos = sorted(self._waiting("demos", judge))
        return [*(EpisodeRef("demos", i) for i in demos), *(EpisodeRef("episodes", i) for i in waiting)]

    def _standing(self, dataset: Dataset, judge: JudgeId) -> list[Failure]:
        """Failures of this judge, in any version, on episodes that it has not labeled since."""
        return [failure for failure in self._failures[dataset].unresolved() if failure.source == judge.source]

    def _skipped(self, dataset: Dataset, judge: JudgeId) -> dict[int, str]:
        """Stored episodes that this judge skips -> why."""
        if not self._labels_dataset(dataset):
            return {}
        failures, alive = self._failures[dataset], set(self._stores[dataset].ids)
        return {
            failure.episode: failure.reason
            for failure in self._standing(dataset, judge)
            if failure.episode in alive
            and failures.attempts(failure.episode, judge.source, judge.model, self._since) >= ATTEMPTS
        }

    def _waiting(self, dataset: Dataset, judge: JudgeId) -> set[int]:
        """Episodes that wait for a label of this judge, model and rule: not marked, not excluded, not skipped."""
        if not self._labels_dataset(dataset):
            return set()
        store = self._stores[dataset]
        labeled = self._labeled.get(dataset)
        ledger, alive = store.ledger, set(store.ids)
        ledger.refresh()
        if labeled is None or (labeled.judge.source, labeled.position[0]) != (judge.source, ledger.generation):
            labeled = self._labeled[dataset] = _Labeled(judge)
        elif labeled.judge != judge:  # another version: the same labels count, and all episodes wait for its own
            labeled.judge, labeled.ids = judge, set()
        changed = ledger.changed_since(labeled.position[1])
        labeled.position = (ledger.generation, len(ledger))
        asked = (labeled.waiting | changed | (alive - labeled.ids)) & alive
        counted = {i: ledger.labels(i, counted_sources(judge.source)) for i in changed}
        labels = {i: one for i, one in counted.items() if one is not None}
        labeled.labeled_steps |= {i: one.steps if one.labeled.any() else 0 for i, one in labels.items()}
        successes = {i for i, one in labels.items() if one.success_once}
        labeled.successes = ((labeled.successes - changed) | successes) & alive
        stale = stale_episodes(ledger, judge, sorted(asked))
        labeled.waiting = {i for i in stale if ledger.newest(i, {OPERATOR}) is None and not ledger.is_excluded(i)}
        labeled.ids = alive
        return labeled.waiting - self._skipped(dataset, judge).keys()

    def episodes(self, items: Sequence[EpisodeRef]) -> dict[EpisodeRef, Episode]:
        """The episodes that are still stored."""
        return stored_episodes(self._stores, items)

    def add_labels(self, labels: Mapping[EpisodeRef, Labels], failed: Mapping[EpisodeRef, str], judge: JudgeId) -> None:
        """Write a judge's labels, and the reasons for missing ones; nothing is written twice."""
        for dataset, store in self._stores.items():
            ledger = store.ledger
            ledger.refresh()
            own = {item.id: one for item, one in labels.items() if item.dataset == dataset}
            if dataset == "demos":  # a person has shown them, so none is withheld
                own = {i: release(one) for i, one in own.items()}
            new = [(i, part) for i, one in own.items() if not _is_written(ledger, i, one) for part in one.with_parts]
            if new:
                ledger.extend(new)
            reasons = [(item.id, reason) for item, reason in failed.items() if item.dataset == dataset]
            self._failures[dataset].append(reasons, judge.source, judge.model)

    def sample(self, size: int, options: SampleOptions, rejected: frozenset[str] = frozenset()) -> Batch[AnyArray]:
        """A batch for a learner on another machine. rejected: see `ReplaySampler.refresh`"""
        self.num_samples(options, rejected)
        return self._samplers[options].sample(size)

    def num_samples(self, options: SampleOptions, rejected: frozenset[str] = frozenset()) -> int:
        """Number of steps that a learner with these options can sample."""
        if options not in self._samplers:
            self._samplers[options] = make_sampler(self.location().open(), options)
        return self._samplers[options].refresh(rejected)


def copy_exclusions(demos: Store, labeled: Store) -> None:
    """Copy people's exclusions of demonstrations to a run's own labels of them, and what revokes an exclusion.

    labeled: the same demonstrations with the run's ledger
    """
    changed = [i for i in demos.ids if demos.ledger.is_excluded(i) != labeled.ledger.is_excluded(i)]
    labels = ((i, demos.ledger.labels(i, PEOPLE)) for i in changed)
    labeled.ledger.extend([(i, one) for i, one in labels if one is not None])


def stored_episodes(stores: Mapping[Dataset, Store], items: Sequence[EpisodeRef]) -> dict[EpisodeRef, Episode]:
    """The given episodes that are still stored."""
    episodes: dict[EpisodeRef, Episode] = {}
    for item in items:
        with suppress(EpisodeNotFound):
            episodes[item] = stores[item.dataset].episode(item.id)
    return episodes


class RemoteSampler:
    """Batches for a learner on another machine, from the buffer; one that sees the disk has a `ReplaySampler`."""

    def __init__(self, buffer: Handle[ReplayBuffer], options: SampleOptions):
        self._buffer, self._options = buffer, options
        self._rejected: frozenset[str] = frozenset()

    def refresh(self, rejected: frozenset[str] = frozenset()) -> int:
        """See `ReplaySampler.refresh`."""
        self._rejected = rejected
        return self._buffer.call(ReplayBuffer.num_samples, self._options, rejected)

    def sample(self, size: int) -> Batch[AnyArray]:
        """`size` transitions, with replacement."""
        return self._buffer.call(ReplayBuffer.sample, size, self._options, self._rejected)


def make_sampler(
    stores: Mapping[Dataset, Store],
    options: SampleOptions,
    features: FeatureCache | None = None,
    frames: "DeviceFrames | None" = None,
) -> ReplaySampler:
    """From the files, which are mapped into this process. features, frames: see `ReplaySampler`"""
    names = ("gamma", "n_step", "horizon", "whole_windows", "history", "cameras", "interventions", "reward")
    shared: dict[str, Any] = {name: getattr(options, name) for name in (*names, "terminate_on_success", "seed")}
    shared |= {"features": features, "frames": frames, "shares": (options.demo_ratio, 1 - options.demo_ratio)}
    online, demos, trusted = stores["episodes"], stores.get("demos"), counted_sources(options.source)
    if demos is None:
        return ReplaySampler(online, sources=(trusted,), hold_back=(options.hold_back,), **shared)
    shared |= {"trust_terminated": (options.trust_demos, True), "hold_back": (0, options.hold_back)}
    sources = (None if options.trust_demos else trusted, trusted)
    return ReplaySampler(demos, online, sources=sources, **shared)


def seconds_of(episode: Episode) -> dict[str, float]:
    """Metric -> seconds that each kind of work took a person in an episode; 0 if the episode's rate is unknown."""
    corrected = int((episode.control_mode == HUMAN).sum())
    corrected_s = corrected / episode.fps if episode.fps else 0.0
    return {"person/time_correcting_s": corrected_s, "person/time_at_gate_s": float(episode.meta.get(GATE_S, 0.0))}


def _online_meta(store: Store, episode_id: int) -> dict[str, Any]:
    return store.entry(episode_id).line["meta"][ONLINE]


def _is_written(ledger: Ledger, episode_id: int, labels: Labels) -> bool:
    """Whether labels are in the ledger: a person's by their time, a model's by their values."""
    source = labels.judge.source
    if labels.time:
        return any((v.source, v.time) == (source, labels.time) for v in ledger.history(episode_id))
    newest = ledger.labels(episode_id, {source})
    if newest is None or newest.judge != labels.judge:
        return False
    return np.array_equal(newest.targets, labels.targets, equal_nan=True)


def _identity(folder: Path) -> tuple[str, int, int]:
    boot = Path("/proc/sys/kernel/random/boot_id")
    try:
        stat = folder.stat()
    except OSError:
        return "", 0, 0
    return boot.read_text().strip() if boot.exists() else os.uname().nodename, stat.st_dev, stat.st_ino


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
