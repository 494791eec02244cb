"""Whether a candidate replaces the current judge: both label the same episodes, none of which the candidate saw.

    current, candidate = evaluate_judge(judge, val), evaluate_judge(new, val)
    promoted, message = should_promote(current, candidate, rules)

The candidate is promoted when all of this holds:

1. it passes the negative controls (judges/controls.py), made of the held-out episodes that succeed;
2. its false-positive rate on held-out failures is no higher than the current judge's, or at most `max_fpr`;
3. its false-negative rate on held-out successes is no higher than the current judge's, or at most `max_fnr`;
4. it is right about more episodes, and significantly so; or about as many, and it significantly predicts success in
   fewer failure frames.

Significance is tested on the episodes in which the two judges differ. If the two are equally good, each of these is
better or worse with equal probability. An exact one-sided sign test must reject this at the comparison's part of the
run's error budget: over all comparisons of a run, a candidate that is no better is promoted with a probability of at
most 2.5% (judges/stats.py). This holds for episodes that were held out whatever the judges decided (retrain.py).

"Right" refers to whole episodes, as balanced accuracy over the groups that exist: failures and successes of the run,
failures and successes of the data that the first judge was trained on. Counted together, many easy failures of last
week would hide the few that the policy found yesterday. A young policy has no successes, so a judge that never predicts
success would look perfect on its episodes alone. The first judge may have been trained on some of the held-out episodes
of its own data, which favors the current judge.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from plaudit.config import Config, PositiveInt
from plaudit.data.store import Store
from plaudit.judges.config import REFERENCE_SOURCES
from plaudit.judges.evaluation import evaluate, load_reference_labels
from plaudit.judges.metrics import nan_to_none
from plaudit.judges.stats import is_more_often
from plaudit.protocols import Judge

RETRAIN_META = "retrain"  # key in the meta of a copied episode: where it came from
SUCCESSES, FAILURES = "successes", "failures"
RATES = ("balanced_accuracy", "fpr", "fnr")  # of a summary: derived, and written with it
Measured = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]  # NaN is None in JSON


class PromotionRules(Config):
    """What a candidate must achieve to replace the current judge."""

    max_fpr: float = Field(default=0.05, ge=0, le=1)  # of held-out failures, that is always accepted
    max_fnr: float = Field(default=0.2, ge=0, le=1)  # of held-out successes, that is always accepted
    min_val_episodes: PositiveInt = 4  # held out; a comparison on fewer says nothing
    # Lowest confidence with which the candidate must be better; the run's error budget usually asks for more.
    confidence: float = Field(default=0.95, ge=0.5, le=0.9999)


@dataclass(frozen=True)
class EpisodeResult:
    """One judge's result on one held-out episode."""

    correct: bool  # about whether it succeeds
    num_false_frames: int  # failure frames in which it predicts success


@dataclass(frozen=True)
class JudgeEvalSummary:
    """One judge's results on the held-out episodes; NaN where there was no data to measure."""

    fingerprint: str
    num_correct: Mapping[str, int]  # group -> episodes that it is right about, "online failures" and so on
    num_episodes: Mapping[str, int]  # group -> episodes; only groups that there are
    frame_fpr: Measured  # of failure frames
    frame_fpr_low: Measured  # 95% confidence interval of it, by episodes
    frame_fpr_high: Measured
    frame_recall: Measured  # of success frames
    problems: tuple[str, ...]  # controls that it does not pass; episodes that it cannot score
    results: Mapping[str, EpisodeResult] = field(default_factory=dict)  # by episode

    @property
    def episodes(self) -> int:
        """Held-out episodes."""
        return sum(self.num_episodes.values())

    @property
    def balanced_accuracy(self) -> float:
        """Fraction of episodes that it is right about, the mean over groups."""
        return fmean(self.num_correct[group] / self.num_episodes[group] for group in self.num_episodes)

    @property
    def fpr(self) -> float:
        """Fraction of the failures in which it predicts success."""
        return self._error_rate(FAILURES)

    @property
    def fnr(self) -> float:
        """Fraction of the successes in which it predicts none."""
        return self._error_rate(SUCCESSES)

    def _error_rate(self, outcome: str) -> float:
        groups = [group for group in self.num_episodes if group.endswith(outcome)]
        total = sum(self.num_episodes[group] for group in groups)
        wrong = sum(self.num_episodes[group] - self.num_correct[group] for group in groups)
        return wrong / total if total else math.nan

    def to_json(self) -> dict[str, Any]:
        """NaN becomes None: JSON has no NaN."""
        rates = {name: getattr(self, name) for name in RATES}
        return nan_to_none({**asdict(self), **rates})


def evaluate_judge(judge: Judge, held_out: Store) -> JudgeEvalSummary:
    """Label all held-out episodes, and the controls made of those that succeed."""
    targets = load_reference_labels(held_out, REFERENCE_SOURCES)
    evaluation = evaluate(held_out, judge, targets)
    metrics, unscored = evaluation.metrics, list(evaluation.failed.values())
    num_correct: Counter[str] = Counter()
    num_episodes: Counter[str] = Counter()
    for episode_id, labels in evaluation.labels.items():
        actual = bool((targets[episode_id] == 1).any())
        group = f"{episode_origin(held_out, episode_id)} {SUCCESSES if actual else FAILURES}"
        num_episodes[group] += 1
        num_correct[group] += labels.success_once == actual
    results: dict[str, EpisodeResult] = {}
    for one in evaluation.predictions:
        correct = evaluation.labels[one.episode].success_once == (one.first_success is not None)
        false_frames = one.predicted(metrics.threshold) & (one.target == 0)
        results[str(one.episode)] = EpisodeResult(correct, int(false_frames.sum()))
    return JudgeEvalSummary(
        judge.id.fingerprint,
        dict(num_correct),
        dict(num_episodes),
        frame_fpr=metrics.fpr,
        frame_fpr_low=metrics.fpr_low,
        frame_fpr_high=metrics.fpr_high,
        frame_recall=metrics.recall,
        problems=(
            *evaluation.failed_controls,
            *([f"{len(unscored)} episodes could not be scored: {unscored[0]}"] if unscored else []),
        ),
        results=results,
    )


def should_promote(
    current: JudgeEvalSummary, candidate: JudgeEvalSummary, rules: PromotionRules, alpha: float = 1.0
) -> tuple[bool, str]:
    """Whether the candidate replaces the current judge, and why.

    alpha: chance of promoting a candidate that is no better, which this comparison may spend
    """
    accuracy = (
        f"balanced accuracy {candidate.balanced_accuracy:.0%} on {candidate.episodes} held-out episodes, the current "
        f"judge's {current.balanced_accuracy:.0%}"
    )
    reason = _objection(current, candidate, rules, max(rules.confidence, 1 - alpha))
    if not reason:
        return True, f"promoted a new version of the judge: {accuracy}"
    return False, f"rejected a new version of the judge: {reason} ({accuracy})"


def _objection(current: JudgeEvalSummary, candidate: JudgeEvalSummary, rules: PromotionRules, confidence: float) -> str:
    """The first reason to keep the current judge; "" if there is none."""
    if candidate.problems:
        return f"it failed its checks: {'; '.join(candidate.problems)}"
    if candidate.episodes < rules.min_val_episodes:
        return f"{candidate.episodes} held-out episodes are too few to compare on, {rules.min_val_episodes} are needed"
    for rate, outcome in ((candidate.fpr, "fails"), (candidate.fnr, "succeeds")):
        if math.isnan(rate):
            return f"none of the held-out episodes {outcome}, so there is nothing to compare on; label some that do"
    if candidate.fpr > max(current.fpr, rules.max_fpr):
        return f"it predicts success in {candidate.fpr:.0%} of the failures, the current judge in {current.fpr:.0%}"
    if candidate.fnr > max(current.fnr, rules.max_fnr):
        return f"it misses {candidate.fnr:.0%} of the successes, the current judge {current.fnr:.0%}"
    if candidate.balanced_accuracy < current.balanced_accuracy:
        return "it is right less often"
    both = [(current.results[i], candidate.results[i]) for i in candidate.results if i in current.results]
    tied = candidate.balanced_accuracy == current.balanced_accuracy
    pairs = [(old.num_false_frames, new.num_false_frames) if tied else (new.correct, old.correct) for old, new in both]
    significant, num_better, num_different = is_more_often(pairs, confidence)
    what = "it is right as often, and has fewer false frames in" if tied else "it is right in"
    chance = f"which may be chance: {confidence:.1%} confidence is required"
    differ = f"{num_better} of the {num_different} held-out episodes in which the two differ"
    return "" if significant else f"{what} {differ}, {chance}"


def episode_origin(store: Store, episode_id: int) -> str:
    """Where an episode that retrain.py copied came from: "online" or "initial"."""
    return store.entry(episode_id).line["meta"][RETRAIN_META]["origin"]
