"""Judges at work: from episodes to labels, and over a store until nothing is left to label.

    label_episodes(judge, episodes)                        # one answer an episode
    label_store(store, judge, stale_episodes(store.ledger, judge.id, store.ids))

Labels go to the ledger batch by batch, so that whatever stops a run loses at most one, and the same call goes on: an
episode whose newest label of this source has the judge's id is passed over. An episode that the judge fails on stays
unlabeled and is tried again next time; why it failed is kept beside the ledger (data/failures.py), and the others go
on.
"""

import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from plaudit.data.failures import Failures
from plaudit.data.ledger import Ledger
from plaudit.data.store import Store
from plaudit.errors import ContractError, EpisodeNotFound, JudgeError, PlauditError
from plaudit.protocols import Judge
from plaudit.rule import DecisionRule, labels_from_scores
from plaudit.types import Episode, JudgeId, Labels, ProgressFn, Scores

BATCH = 8  # episodes that are scored before their labels are written; a kill costs at most so many

# Stands on the label of an episode that shows success before anything was done in it.
REVIEW = "success from the first frame on, to be reviewed"

ItemT = TypeVar("ItemT")
KeyT = TypeVar("KeyT")
Answer = Labels | PlauditError | None


@dataclass
class LabelStats:
    """What came of a labeling run; it grows while one goes on."""

    done: list[int] = field(default_factory=list)  # ids of episodes that were labeled
    failed: dict[int, str] = field(default_factory=dict)  # id -> why
    pending: list[int] = field(default_factory=list)  # ids of those that the judge has not answered yet
    num_success: int = 0  # of those done, how many show success
    at_start: list[int] = field(default_factory=list)  # of these, the ones that do so from the first frame on


def label_episodes(judge: Judge, episodes: Sequence[Episode]) -> list[Answer]:
    """Labels of each episode, in order; an error where one cannot be scored, None where there is no answer yet.

    Where the judge raises, each episode is scored alone, so that one bad episode does not cost the others their labels.
    """
    return [
        _labels(judge, episode, scores) if isinstance(scores, Scores) else scores
        for episode, scores in zip(episodes, _scores(judge, episodes), strict=True)
    ]


def _scores(judge: Judge, episodes: Sequence[Episode]) -> Sequence[Scores | PlauditError | None]:
    if not episodes:
        return []
    try:
        found = judge.score(episodes)
    except PlauditError as error:
        failure = error
    except Exception as error:  # noqa: BLE001 - whatever a plugin or a full GPU raises is this episode's failure
        failure = JudgeError(_reason(error))
    else:
        if len(found) != len(episodes):
            raise ContractError(f"judge '{judge.id.source}' gave {len(found)} answers on {len(episodes)} episodes")
        return found
    return [failure] if len(episodes) == 1 else [one for episode in episodes for one in _scores(judge, [episode])]


def _labels(judge: Judge, episode: Episode, scores: Scores) -> Labels:
    if len(scores.success_prob) != episode.steps + 1:
        raise ContractError(
            f"judge '{judge.id.source}' scored {len(scores.success_prob)} frames of an episode that has "
            f"{episode.steps + 1}"
        )
    labels = labels_from_scores(judge.id, judge.rule, episode, scores)
    return replace(labels, note=REVIEW) if begins_with_success(labels, judge.rule) else labels


def begins_with_success(labels: Labels, rule: DecisionRule) -> bool:
    """Whether an episode shows success from its first frame on, or as soon as a rule of k of n frames can be met.

    Nothing was done by then: either the object already is where it usually ends, or the judge goes by something else.
    """
    known = labels.success[labels.labeled]
    return bool(known[: rule.window[0]].any())


def _reason(error: Exception) -> str:
    """What was raised and where, for an error that is not one of ours."""
    places = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(places[-1].filename).name}, line {places[-1].lineno})" if places else ""
    return f"the judge raised {type(error).__name__}: {' '.join(str(error).split())}{where}"


def stale_episodes(
    ledger: Ledger,
    judge: JudgeId,
    ids: Sequence[int],
    *,
    skip_labeled: bool = False,
    newest_only: bool = False,
) -> list[int]:
    """Of these episodes, those without a label of this very judge.

    skip_labeled: leave out all that anybody has labeled
    newest_only: its label must be the newest of all, so that a learner takes it, not only the newest of its source
    """
    if skip_labeled:
        return [i for i in ids if ledger.newest(i) is None]
    return [i for i in ids if not _is_current(ledger, judge, i, None if newest_only else {judge.source})]


def _is_current(ledger: Ledger, judge: JudgeId, episode_id: int, sources: set[str] | None) -> bool:
    version = ledger.newest(episode_id, sources)
    return version is not None and version.source == judge.source and version.judge == judge


def label_store(
    store: Store, judge: Judge, ids: Sequence[int], *, batch: int = BATCH, progress: ProgressFn = iter
) -> LabelStats:
    """Label these episodes into the store's ledger; see `stale_episodes` for those that need it."""
    stats = LabelStats()
    for some in batches(progress(ids), batch):
        _label_batch(store, judge, some, stats)
    return stats


def _label_batch(store: Store, judge: Judge, ids: Sequence[int], stats: LabelStats) -> None:
    """One batch, safe on disk when this returns."""
    labels, failed = label_ids(store, judge, ids)
    if labels:
        store.ledger.extend(labels.items())
    Failures(store.ledger).append(failed.items(), judge.id.source, judge.id.fingerprint)
    stats.done += labels
    stats.failed |= failed
    stats.pending += [i for i in ids if i not in labels and i not in failed]
    stats.num_success += sum(found.success_once for found in labels.values())
    stats.at_start += [i for i, found in labels.items() if found.note == REVIEW]


def label_ids(store: Store, judge: Judge, ids: Sequence[int]) -> tuple[dict[int, Labels], dict[int, str]]:
    """Labels of a store's episodes that could be labeled, and why others could not."""
    there: dict[int, Episode] = {}
    failed: dict[int, str] = {}
    for episode_id in ids:
        try:
            there[episode_id] = store.episode(episode_id)
        except EpisodeNotFound as error:  # evicted since they were counted
            failed[episode_id] = str(error)
    labels, more = label_mapping(judge, there)
    return labels, failed | more


def label_mapping(judge: Judge, episodes: Mapping[KeyT, Episode]) -> tuple[dict[KeyT, Labels], dict[KeyT, str]]:
    """The same of episodes that are at hand, by whatever key; those without an answer yet are in neither."""
    answers = dict(zip(episodes, label_episodes(judge, list(episodes.values())), strict=True))
    labels = {key: answer for key, answer in answers.items() if isinstance(answer, Labels)}
    failed = {key: str(answer) for key, answer in answers.items() if isinstance(answer, PlauditError)}
    return labels, failed


def batches(items: Iterable[ItemT], size: int) -> Iterator[list[ItemT]]:
    """Lists of at most `size` items."""
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch


def group_by_message(failed: Mapping[int, Any]) -> dict[str, list[int]]:
    """Message -> the episodes that it is about: thirty episodes without a camera are one thing to read."""
    found: dict[str, list[int]] = {}
    for episode_id, message in failed.items():
        found.setdefault(str(message), []).append(episode_id)
    return found
