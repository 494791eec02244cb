"""Judges at work: success while it happens, labels of episodes, and a queue of episodes until nothing is left to label.

    detector = SuccessDetector(judge, num_envs)            # a live judge and its rule, in simulation or on a robot
    success = detector.step(observation, info)             # [N]; detector.scores has what the judge measured

    label_episodes(judge, episodes)                        # one answer per episode
    LabelRunner(judge, StoreQueue(store)).run()            # all stale episodes of a store, into its ledger

The judge scores and the rule decides. The recorder of a running episode keeps the scores: labels are made of them
(`plaudit.rule.labels_from_scores`) without a second look at the images.

Labels are written batch by batch, so a run that is stopped loses at most one batch, and the same call resumes: an
episode whose newest label of this source has the judge's id is not stale. An episode that the judge fails on stays
unlabeled and is tried again; the reason is kept next to the ledger (data/ledger.py). An episode without an answer yet
stays stale, which is all that a human judge needs.
"""

import math
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from plaudit.data.ledger import Failures, Ledger
from plaudit.data.store import Store
from plaudit.errors import ContractError, EpisodeNotFound, JudgeError, JudgeUnavailable, PlauditError
from plaudit.judges.config import CASCADE, HUMAN, describe_progress
from plaudit.protocols import Judge, LiveJudge
from plaudit.rule import labels_from_scores
from plaudit.types import AnyArray, BoolArray, Episode, JudgeId, Labels, Observation, ProgressFn, Scores


class SuccessDetector:
    """Says whose episode has succeeded. A rule that needs the whole episode is refused."""

    def __init__(self, judge: LiveJudge, num_envs: int):
        self.judge, self.num_envs = judge, num_envs
        self.scores = Scores(np.full(num_envs, np.nan, np.float32))  # of the newest frames
        self._tracker = judge.rule.tracker(num_envs)
        self._stream = judge.stream(num_envs)
        self._seconds, self._calls = 0.0, 0

    @property
    def id(self) -> JudgeId:
        """Id of the judge."""
        return self.judge.id

    def reset(self, observation: Observation, mask: BoolArray | None = None) -> BoolArray:
        """[N] success of first frames. mask: [N] the environments that start anew, where not all do."""
        self._tracker.reset(mask)
        self.scores = self._stream.reset(observation, mask)
        return self._tracker.update(self.scores.success_prob, mask)

    def step(self, observation: Observation, info: Mapping[str, AnyArray]) -> BoolArray:
        """[N] success of the next frames."""
        begun = time.perf_counter()
        self.scores = self._stream.step(observation, info)
        success = self._tracker.update(self.scores.success_prob)
        self._seconds += time.perf_counter() - begun
        self._calls += 1
        return success

    def read_step_ms(self) -> float:
        """Milliseconds a step, of all environments together, since this was last read."""
        mean = 1000 * self._seconds / max(self._calls, 1)
        self._seconds, self._calls = 0.0, 0
        return mean


BATCH = 8  # episodes that are scored before their labels are written; a kill costs at most one batch
RETRY_S = 20.0  # seconds before an episode that the judge failed on is tried again

ItemT = TypeVar("ItemT")
KeyT = TypeVar("KeyT", bound=Hashable)  # of an episode: its id in a store, a reference in a replay buffer
Answer = Labels | PlauditError | None


@dataclass
class LabelStats(Generic[KeyT]):
    """The results of labeling; it grows during a run."""

    done: list[KeyT] = field(default_factory=list)  # episodes that were labeled
    failed: dict[KeyT, str] = field(default_factory=dict)  # episode -> why
    pending: list[KeyT] = field(default_factory=list)  # those that the judge has not answered yet
    num_success: int = 0  # of those done, how many show success
    at_start: list[KeyT] = field(default_factory=list)  # of these, the ones that do so from the first frame on
    ood: dict[KeyT, str] = field(default_factory=dict)  # those done that are out of distribution; why
    withheld: list[KeyT] = field(default_factory=list)  # those done that have no labels for one of these two reasons
    undecided: list[KeyT] = field(default_factory=list)  # of those done, the ones that no stage of a cascade decided
    progress: str = ""  # how far the newest of them came, in words; "" where the judge does not measure it
    seconds: float = 0.0  # spent on reading and scoring

    def add(self, keys: Iterable[KeyT], labels: Mapping[KeyT, Labels], failed: Mapping[KeyT, str]) -> None:
        """Count one batch."""
        self.done += labels
        self.failed |= failed
        self.pending += [key for key in keys if key not in labels and key not in failed]
        self.num_success += sum(one.success_once for one in labels.values())
        self.at_start += [key for key, one in labels.items() if one.review]
        for one in labels.values():
            if one.scores is not None and one.scores.progress is not None:
                self.progress = describe_progress(one.scores.progress)
        self.ood |= {key: one.ood for key, one in labels.items() if one.ood}
        for key, one in labels.items():
            if not one.labeled.any():
                (self.withheld if one.withheld else self.undecided).append(key)


def label_episodes(judge: Judge, episodes: Sequence[Episode]) -> list[Answer]:
    """Labels of each episode, in order; an error if it cannot be scored, None if there is no answer yet.

    If the judge raises, each episode is scored alone, so that one bad episode does not cost the others their labels.
    """
    if not episodes:
        return []
    try:
        scores = judge.score(episodes)
    except Exception as error:  # noqa: BLE001 - whatever a plugin or a full GPU raises is this episode's failure
        if len(episodes) > 1:
            return [answer for episode in episodes for answer in label_episodes(judge, [episode])]
        if isinstance(error, PlauditError):
            return [error]
        places = traceback.extract_tb(error.__traceback__)
        where = f" ({Path(places[-1].filename).name}, line {places[-1].lineno})" if places else ""
        return [JudgeError(f"the judge raised {type(error).__name__}: {' '.join(str(error).split())}{where}")]
    if len(scores) != len(episodes):
        raise ContractError(f"judge '{judge.id.source}' gave {len(scores)} answers on {len(episodes)} episodes")
    answers: list[Answer] = []
    for episode, one in zip(episodes, scores, strict=True):
        if not isinstance(one, Scores):
            answers.append(one)
        elif len(one.success_prob) != episode.steps + 1:
            raise ContractError(
                f"judge '{judge.id.source}' scored {len(one.success_prob)} frames of an episode that has "
                f"{episode.steps + 1}"
            )
        elif judge.id.source != HUMAN and not one.note and np.isnan(one.success_prob).all():
            answers.append(
                JudgeError("its score is NaN on every frame, so nothing is decided; check its weights and its inputs")
            )
        else:
            answers.append(labels_from_scores(judge.id, judge.rule, episode, one))
    return answers


def label_mapping(
    judge: Judge, episodes: Mapping[KeyT, Episode | PlauditError]
) -> tuple[dict[KeyT, Labels], dict[KeyT, PlauditError]]:
    """Labels of episodes by any key, and why others have none; those without an answer yet are in neither.

    episodes: an error for one that could not be read
    """
    read = {key: episode for key, episode in episodes.items() if isinstance(episode, Episode)}
    answers: dict[KeyT, Answer] = {key: error for key, error in episodes.items() if isinstance(error, PlauditError)}
    answers |= dict(zip(read, label_episodes(judge, list(read.values())), strict=True))
    labels = {key: answer for key, answer in answers.items() if isinstance(answer, Labels)}
    return labels, {key: answer for key, answer in answers.items() if isinstance(answer, PlauditError)}


def stale_episodes(
    ledger: Ledger, judge: JudgeId, ids: Sequence[int], *, skip_labeled: bool = False, newest_only: bool = False
) -> list[int]:
    """Of these episodes, those without a label of this very judge; for a cascade, those that a human has labeled are
    decided.

    skip_labeled: leave out all that anybody has labeled
    newest_only: its label must be the newest of all, not only of its source: what others of its rank say is superseded
    """
    if skip_labeled:
        return [i for i in ids if ledger.newest(i) is None]
    if judge.source == CASCADE:
        ids = [i for i in ids if ledger.newest(i, {HUMAN}) is None]
    newest = {i: ledger.newest(i, None if newest_only else {judge.source}) for i in ids}
    return [i for i, one in newest.items() if one is None or one.source != judge.source or one.judge != judge]


def read_episodes(store: Store, ids: Iterable[int]) -> dict[int, Episode | PlauditError]:
    """Episodes of a store; an error for one that was evicted since it was listed."""
    episodes: dict[int, Episode | PlauditError] = {}
    for episode_id in ids:
        try:
            episodes[episode_id] = store.episode(episode_id)
        except EpisodeNotFound as error:
            episodes[episode_id] = error
    return episodes


class LabelQueue(ABC, Generic[KeyT]):
    """Episodes to label, and where their labels go."""

    @abstractmethod
    def stale(self, judge: JudgeId) -> Sequence[KeyT]:
        """The episodes without a label of this very judge, the most wanted first."""

    @abstractmethod
    def episodes(self, keys: Sequence[KeyT]) -> Mapping[KeyT, Episode | PlauditError]:
        """Read these episodes; an error for each unreadable one. Deleted episodes can be left out."""

    @abstractmethod
    def write(self, labels: Mapping[KeyT, Labels], failed: Mapping[KeyT, str], judge: JudgeId) -> None:
        """Write labels and failures to disk. Writing them twice has no further effect."""


class StoreQueue(LabelQueue[int]):
    """The episodes of a store, by their ids."""

    def __init__(self, store: Store, ids: Sequence[int] | None = None, **options: bool):
        """
        ids: which of them; None: all
        options: skip_labeled, newest_only: see `stale_episodes`
        """
        self.store, self._ids, self._options = store, ids, options

    def stale(self, judge: JudgeId) -> Sequence[int]:
        ids = self.store.ids if self._ids is None else self._ids
        return stale_episodes(self.store.ledger, judge, ids, **self._options)

    def episodes(self, keys: Sequence[int]) -> Mapping[int, Episode | PlauditError]:
        return read_episodes(self.store, keys)

    def write(self, labels: Mapping[int, Labels], failed: Mapping[int, str], judge: JudgeId) -> None:
        if labels:
            self.store.ledger.extend((i, one) for i, labeled in labels.items() for one in labeled.with_parts)
        Failures(self.store.ledger).append(failed.items(), judge.source, judge.model)


class LabelRunner(Generic[KeyT]):
    """One judge over one queue: `plaudit label`, the judge of a run, a person and an audit.

    runner.run()          # all that is stale, each once
    runner.step()         # one batch of it, between other work
    runner.step(only)     # of these, for an audit
    """

    def __init__(
        self,
        judge: Judge,
        queue: LabelQueue[KeyT],
        *,
        batch_size: int = BATCH,
        retry_s: float = RETRY_S,
        clock: Callable[[], float] = time.monotonic,
    ):
        """
        retry_s: before `step` tries an episode again that the judge failed on
        clock: seconds
        """
        self.judge, self._queue = judge, queue
        self._batch_size, self._retry_s, self._clock = batch_size, retry_s, clock
        self._last_attempt: dict[KeyT, float] = {}  # when the judge failed on it

    def run(self, progress: ProgressFn = iter) -> LabelStats[KeyT]:
        """Label every stale episode, each tried once."""
        stats: LabelStats[KeyT] = LabelStats()
        for keys in batches(progress(self._queue.stale(self.judge.id)), self._batch_size):
            self._label(keys, stats)
        return stats

    def step(self, only: Sequence[KeyT] | None = None) -> LabelStats[KeyT]:
        """Label one batch of what is stale and not to be retried later; raises `JudgeUnavailable`, which counts as no
        failure on any episode, once the others are labeled."""
        stats: LabelStats[KeyT] = LabelStats()
        keys = self._queue.stale(self.judge.id) if only is None else only
        now, never = self._clock(), -math.inf
        due = [key for key in keys if now - self._last_attempt.get(key, never) >= self._retry_s][: self._batch_size]
        if due:
            self._label(due, stats, raise_unavailable=True)
        return stats

    def _label(self, keys: Sequence[KeyT], stats: LabelStats[KeyT], *, raise_unavailable: bool = False) -> None:
        """Label one batch and write it to disk. raise_unavailable: `JudgeUnavailable` is no failure on an episode"""
        begun = time.monotonic()
        episodes = self._queue.episodes(keys)
        labels, errors = label_mapping(self.judge, episodes)
        stats.seconds += time.monotonic() - begun
        unavailable = [e for e in errors.values() if raise_unavailable and isinstance(e, JudgeUnavailable)]
        failed = {key: str(error) for key, error in errors.items() if error not in unavailable}
        self._queue.write(labels, failed, self.judge.id)
        self._last_attempt |= dict.fromkeys(failed, self._clock())
        if unavailable:
            raise unavailable[0]
        stats.add([key for key in keys if key in episodes], labels, failed)


def batches(items: Iterable[ItemT], size: int) -> Iterator[list[ItemT]]:
    """Lists of at most `size` items."""
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch


def group_by_message(failed: Mapping[int, Any]) -> dict[str, list[int]]:
    """Message -> the episodes that it is about: thirty episodes without a camera are one thing to read."""
    groups: dict[str, list[int]] = {}
    for episode_id, message in failed.items():
        groups.setdefault(str(message), []).append(episode_id)
    return groups
