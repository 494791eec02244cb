"""Fitting a judge's rule on labelled episodes: temperature and bias, the threshold, and how late its cutoffs are.

    said, failed = score_episodes(store, judge, truths)
    rule, held_back = calibrate(said, judge.rule, target_fpr=0.01)

The rule that is stored is fitted on all episodes. What it is worth is not read off the same ones: they are dealt into
five parts, a rule is fitted on four and tried on the fifth, in turn, and the calls on the fifths are counted together.
So the rate that is reported is one of episodes that chose nothing. It is that of a rule from four fifths of the data,
which is a little worse than the one that is stored.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from plaudit.data.store import Store
from plaudit.errors import JudgeError
from plaudit.judges.calibration import (
    PlattScaling,
    RateCI,
    choose_threshold,
    false_positive_rate,
    fit_calibration,
    logit,
)
from plaudit.judges.config import CalibrationRecord
from plaudit.judges.cutoffs import OnsetErrors, fit_cutoff_offset, onset_errors
from plaudit.judges.labeling import BATCH, batches
from plaudit.judges.metrics import precision_recall
from plaudit.judges.scored import EpisodePrediction
from plaudit.protocols import Judge
from plaudit.rule import DecisionRule, above_threshold
from plaudit.types import FloatArray, ProgressFn, Scores

PARTS = 5
FEWEST = 3  # episodes that show success, and that show failure


@dataclass(frozen=True, eq=False)
class ScoredEpisode:
    """One episode: a judge's log-odds, and the truth, of the frames that have both."""

    logit: FloatArray  # [F]
    truth: FloatArray  # [F] 1 or 0
    episode: int


@dataclass(frozen=True)
class Fit:
    """What was fitted on a judge's scores."""

    rule: DecisionRule
    calibration: PlattScaling


@dataclass(frozen=True, eq=False)
class CrossValResult:
    """What rules were worth on episodes that did not choose them."""

    fpr: RateCI
    recall: float
    cutoffs: OnsetErrors  # decoded


def score_episodes(
    store: Store, judge: Judge, truths: Mapping[int, FloatArray], progress: ProgressFn = iter
) -> tuple[list[ScoredEpisode], dict[int, str]]:
    """A judge's numbers of these episodes, each asked for once; and those that it could not judge, and why."""
    found: list[ScoredEpisode] = []
    failed: dict[int, str] = {}
    for ids in batches(progress(list(truths)), BATCH):
        batch = {i: store.episode(i) for i in ids}
        for (episode_id, episode), said in zip(batch.items(), judge.score(list(batch.values())), strict=True):
            if not isinstance(said, Scores):
                failed[episode_id] = "there is no answer yet" if said is None else str(said)
                continue
            logits = logit(said.success_prob[episode.recorded]).astype(np.float32)
            truth = truths[episode_id][episode.recorded]
            known = ~np.isnan(truth) & np.isfinite(logits)
            found.append(ScoredEpisode(logits[known], truth[known], episode_id))
    return found, failed


def calibrate(
    said: Sequence[ScoredEpisode], rule: DecisionRule, target_fpr: float, seed: int = 0
) -> tuple[Fit, CrossValResult]:
    """The rule of all episodes, and what such rules are worth on others."""
    check_enough(said)
    return fit_rule(said, rule, target_fpr), cross_validate(said, rule, target_fpr, seed)


def check_scores(source: str, said: Sequence[ScoredEpisode]) -> None:
    """Whether there is anything to calibrate: not where all scores are yes and no."""
    sure = logit(1.0) - 1e-3
    if said and all((np.abs(one.logit) > sure).all() for one in said):
        raise JudgeError(f"'{source}' says yes and no; only a judge that gives probabilities can be calibrated")


def check_enough(said: Sequence[ScoredEpisode]) -> None:
    successes, failures = (sum(bool((one.truth == kind).any()) for one in said) for kind in (1, 0))
    if min(successes, failures) < FEWEST:
        raise JudgeError(
            f"calibration needs at least {FEWEST} episodes that show success and {FEWEST} that show failure, and some "
            f"50 to be sure of the rate; of those with reference labels {successes} show success and {failures} failure"
        )


def fit_rule(said: Sequence[ScoredEpisode], rule: DecisionRule, target_fpr: float) -> Fit:
    """The same way from numbers to labels, with what can be fitted fitted."""
    logits, truth = (np.concatenate([getattr(one, name) for one in said]) for name in ("logit", "truth"))
    fitted = fit_calibration(logits, truth)
    calibration = PlattScaling(temperature=fitted.temperature, bias=fitted.bias)
    scored = [EpisodePrediction(calibration(one.logit), one.truth, one.episode) for one in said]
    threshold = choose_threshold(scored, target_fpr).value
    found = {"threshold": threshold, "cutoff_offset": fit_cutoff_offset(scored, threshold)}
    return Fit(DecisionRule(**{**rule.model_dump(), **found}), calibration)


def cross_validate(
    said: Sequence[ScoredEpisode], rule: DecisionRule, target_fpr: float, seed: int = 0
) -> CrossValResult:
    called: list[EpisodePrediction] = []
    decoded: list[EpisodePrediction] = []
    for others, mine in _parts(said, seed):
        fitted = fit_rule(others, rule, target_fpr)
        whole = fitted.rule.model_copy(update={"decode": "cutoff"})
        for one in mine:
            probability = fitted.calibration(one.logit)
            yes = above_threshold(probability, fitted.rule.threshold).astype(np.float32)
            called.append(EpisodePrediction(yes, one.truth, one.episode))
            decoded.append(EpisodePrediction(whole.decide(probability).astype(np.float32), one.truth, one.episode))
    truth, yes = (np.concatenate([getattr(s, name) for s in called]) for name in ("truth", "probability"))
    _, recall = precision_recall(truth, yes)
    return CrossValResult(
        false_positive_rate(called, 0.5, seed), recall, onset_errors(decoded, DecisionRule(decode="per_frame"))
    )


def _parts(said: Sequence[ScoredEpisode], seed: int) -> list[tuple[list[ScoredEpisode], list[ScoredEpisode]]]:
    """Dealt by episode, successes and failures alike: each part with all the others."""
    rng = np.random.default_rng(seed)
    dealt: list[list[ScoredEpisode]] = [[] for _ in range(PARTS)]
    kinds = {kind: [one for one in said if bool((one.truth == 1).any()) == kind] for kind in (True, False)}
    for number, one in enumerate(kinds[kind][i] for kind in kinds for i in rng.permutation(len(kinds[kind]))):
        dealt[number % PARTS].append(one)
    parts = [part for part in dealt if part]
    return [([one for other in parts if other is not mine for one in other], mine) for mine in parts]


def record(
    judge: Judge, said: Sequence[ScoredEpisode], sources: Sequence[str], target_fpr: float, held_back: CrossValResult
) -> CalibrationRecord:
    """What is stored with the judge."""
    return CalibrationRecord(
        date=time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime()),
        fingerprint=judge.id.fingerprint,
        reference=tuple(sources),
        episodes=len(said),
        successes=sum(bool((one.truth == 1).any()) for one in said),
        target_fpr=target_fpr,
        fpr=held_back.fpr.value,
        fpr_low=held_back.fpr.low,
        fpr_high=held_back.fpr.high,
        recall=held_back.recall,
    )
