"""Which episodes a judge has not seen: neither learned from, nor chosen its threshold or its calibration by.

    seen = SeenEpisodes.of(config, judge)
    chosen = seen.choose(store, list(targets), include=False)
    chosen.ids, chosen.notes             # what to measure on, and what to say about it

A model on the episodes that it was trained on looks nearly perfect and says nothing of those to come. So a reward
model's or an adapter's description has the keys of its training and validation episodes (data/episode_keys.py), and a
calibration's record those that it was fitted on. Its test episodes decided nothing and are not among them. A judge of
your own says the same with an attribute `trained_on`: such a text of keys, "" for nothing (also where there is no such
attribute), None where it is not known.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Self

from plaudit.data.episode_keys import Keys, episode_keys, pack_keys, unpack_keys
from plaudit.data.store import Store
from plaudit.errors import JudgeError
from plaudit.judges.calibration import CalibrationRecord, CrossValResult, Fit, make_record
from plaudit.judges.config import JudgeConfig
from plaudit.judges.predictions import EpisodePrediction
from plaudit.protocols import Judge
from plaudit.types import JudgeId

INCLUDE = "--include-training"  # the option by which they are measured all the same


@dataclass(frozen=True)
class ChosenEpisodes:
    """Those to measure on."""

    ids: Sequence[int]
    num_seen: int  # of these, how many the judge has seen
    notes: Sequence[str]


@dataclass(frozen=True)
class SeenEpisodes:
    """What is known of the episodes that a judge has seen."""

    keys: Keys
    notes: tuple[str, ...] = ()  # what is not known

    @classmethod
    def of(cls, config: JudgeConfig, judge: Judge, *, calibrated: bool = True) -> Self:
        """calibrated: whether the judge's own calibration is in use; one that is fitted anew does not count"""
        keys: set[bytes] = set()
        notes: list[str] = []
        trained_on: str | None = getattr(judge, "trained_on", "")
        if trained_on is None:
            notes.append(
                "This model does not say which episodes it learned from (an earlier version or another trainer made "
                "it): the metrics hold only if it has seen none of these."
            )
        keys |= _unpack(trained_on or "", "this model")
        record = config.resolved().calibration_record if calibrated else None
        if record is not None and record.fitted_on is None:
            notes.append(
                "The calibration of this judge does not say which episodes it was fitted on (an earlier version made "
                "it): the metrics hold only if it was others."
            )
        if record is not None:
            keys |= _unpack(record.fitted_on or "", "this judge's calibration")
        return cls(frozenset(keys), tuple(notes))

    def choose(self, store: Store, ids: Sequence[int], *, include: bool | None = False) -> ChosenEpisodes:
        """Those that the judge has not seen, or all of them; refuses where that leaves none.

        include: those that it has seen too; None: there is no such option
        """
        if not self.keys:
            return ChosenEpisodes(ids, 0, self.notes)
        known = episode_keys(store, ids)
        seen = {i for i in ids if known[i] & self.keys}
        if not seen:
            return ChosenEpisodes(ids, 0, self.notes)
        what = "episodes that the judge learned from or chose its threshold or calibration by"
        if include:
            note = f"{len(seen)} of these {len(ids)} are {what} ({INCLUDE}): the numbers are better than on new ones."
            return ChosenEpisodes(ids, len(seen), (note, *self.notes))
        if len(seen) == len(ids):
            raise JudgeError(
                f"all {len(ids)} episodes of {store.folder} with reference labels are {what}: nothing unseen is left; "
                f"use other episodes{'' if include is None else f', or {INCLUDE}'}"
            )
        option = "" if include is None else f"; {INCLUDE} uses them too"
        note = f"{len(seen)} of {len(ids)} were left out, {what}{option}."
        return ChosenEpisodes([i for i in ids if i not in seen], 0, (note, *self.notes))


def record_calibration(
    store: Store,
    chosen: ChosenEpisodes,
    judge: JudgeId,
    predictions: Sequence[EpisodePrediction],
    reference: Sequence[str],
    target_fpr: float,
    fit: Fit,
    cross_val: CrossValResult,
) -> CalibrationRecord:
    """What is stored with a judge that was calibrated on these predictions: also which episodes they are of."""
    keys = episode_keys(store, [one.episode for one in predictions])
    return make_record(
        judge,
        predictions,
        reference,
        target_fpr,
        cross_val,
        num_seen=chosen.num_seen,
        fitted_on=pack_keys(chain.from_iterable(keys.values())),
        promise=fit.promise,
    )


def _unpack(text: str, whose: str) -> Keys:
    try:
        return unpack_keys(text)
    except ValueError as error:
        raise JudgeError(
            f"the list of episodes that {whose} was made with cannot be read ({error}); train or calibrate it again"
        ) from error
