"""A judge goes over a store: `plaudit label`, and a learned referee that judges its episodes again.

    for a batch of episodes: judge.label(batch) -> ledger, synced -> the next batch

What is in the ledger survives whatever stops the run, and the same call goes on: an episode whose newest label of this
judge has its model, threshold and rule is passed over. An episode that the judge fails on stays unlabelled and is asked
about again next time; why it failed is kept beside the ledger (data/failures.py), and the others go on.
"""

import json
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from plaudit.data.failures import Failures
from plaudit.data.ledger import Ledger, Version
from plaudit.data.store import Store
from plaudit.errors import ContractError, EpisodeGone, PlauditError
from plaudit.judges.frames import EpisodeJudge
from plaudit.types import Episode, Labels

BATCH = 8  # episodes that are judged before they are written; a kill costs at most so many

# Stands on the label of an episode that is called a success before anything was done in it.
REVIEW = "success from the first frame on, to be reviewed"

Track = Callable[[Sequence[int]], Iterable[int]]
ItemT = TypeVar("ItemT")
KeyT = TypeVar("KeyT")


class Signature(Protocol):
    """Who a judge is, as its labels know it."""

    @property
    def source(self) -> str: ...

    @property
    def facts(self) -> Mapping[str, Any]:
        """As those of a `Labeler`."""
        ...


@dataclass
class Labelled:
    """What came of a run; it grows while one goes on."""

    done: list[int] = field(default_factory=list)  # ids of episodes that were judged
    failed: dict[int, str] = field(default_factory=dict)  # id -> why
    succeeded: int = 0  # of those done, how many were called a success
    at_start: list[int] = field(default_factory=list)  # of these, the ones that are called so from the first frame on


def pending(
    ledger: Ledger,
    judge: Signature,
    ids: Sequence[int],
    *,
    only_unlabelled: bool = False,
    on_top: bool = False,
) -> list[int]:
    """Of these episodes, those that the judge has still to be asked about.

    only_unlabelled: leave out all that anybody has labelled
    on_top: its verdict must be the newest of all, so that a learner takes it, not only the newest of its own
    """
    if only_unlabelled:
        return [i for i in ids if ledger.newest(i) is None]
    return [i for i in ids if not _says_so(ledger.newest(i, None if on_top else {judge.source}), judge)]


def _says_so(version: Version | None, judge: Signature) -> bool:
    """Whether this is what the judge would say again. Its note is for people, where a rule says the same exactly."""
    if version is None or version.source != judge.source:
        return False
    exact = {name: value for name, value in judge.facts.items() if name != "note" or "rule" not in judge.facts}
    line = version.line
    line = {**line, "note": line["note"].removesuffix(REVIEW).removesuffix("; ")}
    return all(line.get(name, "") == value for name, value in exact.items())


def label_store(
    store: Store, judge: EpisodeJudge, ids: Sequence[int], *, batch: int = BATCH, track: Track = iter
) -> Labelled:
    """Judge these episodes into the store's ledger; see `pending` for those that need it."""
    result = Labelled()
    for some in batches(track(ids), batch):
        _judge(store, judge, some, result)
    return result


def _judge(store: Store, judge: EpisodeJudge, ids: Sequence[int], result: Labelled) -> None:
    """One batch, safe on disk when this returns."""
    verdicts, failed = ask(store, judge, ids)
    if verdicts:
        store.ledger.extend(verdicts.items())
    Failures(store.ledger).append(failed.items(), judge.source, judge.facts["model"])
    result.done += verdicts
    result.failed |= failed
    result.succeeded += sum(labels.succeeded for labels in verdicts.values())
    result.at_start += [episode_id for episode_id, labels in verdicts.items() if begins_with_success(labels)]


def ask(store: Store, judge: EpisodeJudge, ids: Sequence[int]) -> tuple[dict[int, Labels], dict[int, str]]:
    """What a judge says of episodes, and why it failed on others."""
    there: dict[int, Episode] = {}
    failed: dict[int, str] = {}
    for episode_id in ids:
        try:
            there[episode_id] = store.episode(episode_id)
        except EpisodeGone as error:  # evicted since they were counted
            failed[episode_id] = str(error)
    verdicts, more = verdicts_on(judge, there)
    return verdicts, failed | more


def verdicts_on(judge: EpisodeJudge, episodes: Mapping[KeyT, Episode]) -> tuple[dict[KeyT, Labels], dict[KeyT, str]]:
    """The same of episodes that are at hand, by whatever they are known as."""
    said = _said(judge, list(episodes.values()))
    verdicts: dict[KeyT, Labels] = {}
    failed: dict[KeyT, str] = {}
    for (key, episode), verdict in zip(episodes.items(), said, strict=True):
        if isinstance(verdict, Exception):
            failed[key] = _reason(verdict)
        elif len(verdict.reward) != episode.steps:
            raise ContractError(
                f"judge '{judge.source}' gave {len(verdict.reward)} verdicts on episode {key}, which has "
                f"{episode.steps} steps"
            )
        else:
            verdicts[key] = _for_review(verdict) if begins_with_success(verdict) else verdict
    return verdicts, failed


def begins_with_success(labels: Labels) -> bool:
    """Whether an episode is called a success from its first frame on, or as soon as a rule of k of n frames can be met.

    Nothing was done by then: either the object already is where it usually ends, or the judge goes by something else.
    """
    tree = json.loads(labels.rule) if labels.rule else {}
    confirm = tree.get("rule", tree).get("confirm")
    known = labels.frames[~np.isnan(labels.frames)]
    return bool((known[: confirm[0] if confirm else 1] == 1).any())


def _for_review(labels: Labels) -> Labels:
    return replace(labels, note=f"{labels.note}; {REVIEW}" if labels.note else REVIEW)


def _said(judge: EpisodeJudge, episodes: Sequence[Episode]) -> Sequence[Labels | Exception]:
    """A verdict or an error each. Where the judge raises, each is asked about alone, so that the others go on."""
    if not episodes:
        return []
    try:
        said = judge.label(episodes)
    except Exception as error:  # noqa: BLE001 - whatever a plugin or a full GPU raises is this episode's failure
        return [error] if len(episodes) == 1 else [one for episode in episodes for one in _said(judge, [episode])]
    if len(said) != len(episodes):
        raise ContractError(f"judge '{judge.source}' gave {len(said)} verdicts on {len(episodes)} episodes")
    return said


def _reason(error: Exception) -> str:
    """A sentence; of an error that is not one of ours, also what and where it was."""
    if isinstance(error, PlauditError):
        return str(error)
    places = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(places[-1].filename).name}, line {places[-1].lineno})" if places else ""
    return f"the judge raised {type(error).__name__}: {' '.join(str(error).split())}{where}"


def batches(items: Iterable[ItemT], size: int) -> Iterator[list[ItemT]]:
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch


def by_sentence(failed: Mapping[int, Any]) -> dict[str, list[int]]:
    """Sentence -> the episodes it was said of: thirty episodes without a camera are one thing to read."""
    found: dict[str, list[int]] = {}
    for episode_id, sentence in failed.items():
        found.setdefault(str(sentence), []).append(episode_id)
    return found
