"""How good is a judge? Numbers for any of them: a classifier, a vision-language model, a person.

    episodes = [Scored(probability, truth, episode) for ... in held_out]
    threshold = choose_threshold(episodes, target_fpr=0.01)
    scores = measure(test_episodes, threshold.value)

All that is asked of a judge is P(success) of each frame, and of the truth 1, 0 or NaN; a frame without a truth counts
neither for nor against. A frame is called a success where its probability is at least the threshold, everywhere.

Two kinds of mistake count most, because a learner finds them. A failure that is called success is a reward for nothing,
so the threshold is chosen by the share of these. A success that is called too early or too late ends the episode at
the wrong moment, so the first frame called is measured against the first true one. Frames of an episode look alike and
are right or wrong together: every interval here counts episodes, not frames.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np

from plaudit.errors import RewardError
from plaudit.types import AnyArray, BoolArray, ByteArray, FloatArray

Confirm = tuple[int, int]  # k of the last n frames must be called before the episode is

_DRAWS = 2000  # of a bootstrap
_Z = 1.96  # 95% of a normal distribution lie within so many standard deviations
_RIDGE = 0.01  # a prior on calibration as wide as 10: felt only where the data is silent
_TEMPERATURES = (0.05, 20.0)


@dataclass(frozen=True, eq=False)
class Scored:
    """One held-out episode: what the judge said of its recorded frames, and what is true."""

    probability: FloatArray  # [F] the judge's P(success) of each frame
    truth: FloatArray  # [F] 1 success, 0 failure, NaN where not known
    episode: int  # its id

    def __post_init__(self) -> None:
        probability, truth = np.asarray(self.probability, np.float32), np.asarray(self.truth, np.float32)
        object.__setattr__(self, "probability", probability)
        object.__setattr__(self, "truth", truth)
        where = f"episode {self.episode}"
        if probability.ndim != 1 or probability.shape != truth.shape:
            raise RewardError(
                f"{where}: probability and truth must be [F], got {list(probability.shape)} and {list(truth.shape)}"
            )
        if not ((probability >= 0) & (probability <= 1)).all():
            raise RewardError(
                f"{where}: a probability is NaN or lies outside [0, 1]; give logits to a Calibration first"
            )
        if not np.isin(truth[~np.isnan(truth)], (0, 1)).all():
            raise RewardError(f"{where}: truth must be 1, 0 or NaN")

    @property
    def judged(self) -> BoolArray:
        """[F] the frames whose truth is known."""
        return ~np.isnan(self.truth)

    @property
    def first(self) -> int | None:
        """The first frame that shows success."""
        return _first(self.truth == 1)

    def called(self, threshold: float) -> BoolArray:
        """[F]"""
        return called_success(self.probability, threshold)

    def to_json(self) -> dict[str, Any]:
        """NaN becomes None: JSON has no NaN."""
        truth = [None if np.isnan(value) else int(value) for value in self.truth]
        return {"episode": self.episode, "truth": truth, "probability": self.probability.tolist()}

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> Self:
        return cls(np.array(tree["probability"], np.float32), np.array(tree["truth"], np.float32), tree["episode"])


@dataclass(frozen=True, eq=False)
class JudgedFrame:
    """A frame and what the judge said of it, to be looked at."""

    episode: int
    frame: int
    truth: float  # 1 or 0
    probability: float  # that the judge gave it
    image: ByteArray  # uint8 [H, W, 3]


# Frames, one by one


def called_success(probability: AnyArray, threshold: float) -> BoolArray:
    """In float32 on both sides: a threshold that was rounded would let through the frame it was chosen to keep out."""
    return np.asarray(probability, np.float32) >= np.float32(threshold)


def roc_auc(truth: AnyArray, score: AnyArray) -> float:
    """The chance that a success scores higher than a failure, a tie counting half; NaN without one of the two."""
    truth, score = _known(truth, score)
    yes = truth == 1
    successes, failures = int(yes.sum()), int((~yes).sum())
    if not successes or not failures:
        return math.nan
    _, place, counts = np.unique(score, return_inverse=True, return_counts=True)
    rank = np.cumsum(counts) - (counts - 1) / 2  # of each distinct score, from 1; ties share their mean
    return float((rank[place[yes]].sum() - successes * (successes + 1) / 2) / (successes * failures))


def precision_recall(truth: AnyArray, yes: AnyArray) -> tuple[float, float]:
    """Of the frames called success, how many are; of those that are, how many are called. NaN for a share of none."""
    truth, yes = _known(truth, yes)
    yes = yes.astype(bool)
    right = int((yes & (truth == 1)).sum())
    return _share(right, int(yes.sum())), _share(right, int((truth == 1).sum()))


@dataclass(frozen=True, eq=False)
class Reliability:
    """Whether 80% means 80%: frames in bins of equal width by their probability. An empty bin has NaN in it."""

    probability: FloatArray  # [B] mean of what the judge said
    success: FloatArray  # [B] share that was a success
    count: AnyArray  # i64 [B] frames
    ece: float  # expected calibration error: mean of |success - probability|, weighted by count
    brier: float  # mean of (probability - truth)^2; 0.25 for a judge that always says 50%
    log_loss: float  # mean of -log of the probability given to the truth, in nats


def reliability(probability: AnyArray, truth: AnyArray, bins: int = 10) -> Reliability:
    truth, probability = _known(truth, probability)
    if not len(truth):
        raise RewardError("no frame has a truth to compare with")
    place = np.minimum((probability * bins).astype(int), bins - 1)
    count = np.bincount(place, minlength=bins)
    with np.errstate(invalid="ignore"):
        said = np.bincount(place, probability, bins) / count
        was = np.bincount(place, truth, bins) / count
    given = np.clip(np.where(truth == 1, probability, 1 - probability), 1e-7, 1)  # one sure mistake is not infinite
    return Reliability(
        probability=said.astype(np.float32),
        success=was.astype(np.float32),
        count=count,
        ece=float(np.nansum(np.abs(said - was) * count) / len(truth)),
        brier=float(np.mean((probability - truth) ** 2)),
        log_loss=float(-np.mean(np.log(given))),
    )


# From logits to probabilities


@dataclass(frozen=True)
class Calibration:
    """P(success) = sigmoid(logit / temperature + bias)."""

    temperature: float = 1.0  # above 1 for a network that is surer than it should be
    bias: float = 0.0

    def __call__(self, logits: AnyArray) -> FloatArray:
        return _sigmoid(np.asarray(logits, np.float64) / self.temperature + self.bias).astype(np.float32)


def fit_calibration(logits: AnyArray, truth: AnyArray) -> Calibration:
    """The two numbers that make held-out truth most likely, by Newton's method.

    Where the logits separate the classes without a mistake, the likelihood would have the temperature go to zero and
    every probability to 0 or 1. A tiny ridge towards temperature 1 and bias 0 stops that, and the temperature stays
    within 0.05 and 20 whatever the data says (a judge that is wrong more often than right ends at 20: all near 50%).
    """
    truth, logits = _known(truth, logits)
    if not np.isfinite(logits).all():
        raise RewardError("a logit is NaN or infinite; calibration needs finite ones")
    if not 0 < truth.sum() < len(truth):
        raise RewardError(
            "calibration needs frames that show success and frames that do not; all of these are of one kind"
        )
    slope, bias = _newton(logits, truth, free=np.array([True, True]), start=np.array([1.0, 0.0]))
    coldest, hottest = _TEMPERATURES
    bounded = min(max(slope, 1 / hottest), 1 / coldest)
    if bounded != slope:  # the problem is convex, so the best within the bounds lies on the bound
        _, bias = _newton(logits, truth, free=np.array([False, True]), start=np.array([bounded, 0.0]))
    return Calibration(temperature=float(1 / bounded), bias=float(bias))


def _newton(logits: AnyArray, truth: AnyArray, *, free: BoolArray, start: AnyArray) -> AnyArray:
    """Slope (1 / temperature) and bias of least loss; those that are not free stay where they start."""
    columns = np.stack([logits, np.ones_like(logits)], axis=1)
    at = start

    def loss(point: AnyArray) -> float:
        z = columns @ point
        return float((np.logaddexp(0, z) - truth * z).sum() + _RIDGE / 2 * ((point - (1, 0)) ** 2).sum())

    for _ in range(100):
        p = _sigmoid(columns @ at)
        gradient = (columns.T @ (p - truth) + _RIDGE * (at - (1, 0)))[free]
        curvature = (columns.T * (p * (1 - p))) @ columns + _RIDGE * np.eye(2)
        step = np.zeros(2)
        step[free] = np.linalg.solve(curvature[np.ix_(free, free)], gradient)
        now = loss(at)
        while loss(at - step) > now and np.abs(step).max() > 1e-9:  # far from the optimum a full step may overshoot
            step = step / 2
        at = at - step
        if np.abs(step).max() <= 1e-9:
            break
    return at


# The threshold, and how often it lets a failure through


@dataclass(frozen=True)
class Rate:
    """A share with its 95% confidence interval."""

    value: float  # NaN where there was nothing to count
    low: float
    high: float


@dataclass(frozen=True)
class Threshold:
    """From which probability on a frame is called a success, and what that costs on the episodes it was chosen on."""

    value: float  # a hair over 1 where failures reach 1.0: nothing is called success then
    fpr: float  # share of failure frames called success
    low: float  # 95% confidence interval of it
    high: float
    target: float  # that was asked for


def choose_threshold(
    episodes: Sequence[Scored], target_fpr: float = 0.01, floor: float = 0.5, seed: int = 0
) -> Threshold:
    """The smallest threshold, `floor` or more, at which at most `target_fpr` of the failure frames are called success.

    It was chosen to look good on these episodes: the rate to believe is `false_positive_rate` of others.
    """
    failures = np.concatenate([e.probability[e.truth == 0] for e in episodes] or [np.zeros(0, np.float32)])
    if not len(failures):
        raise RewardError(
            "no frame of these episodes shows failure; a threshold is chosen by how many of those get through"
        )
    allowed = int(target_fpr * len(failures) + 1e-9)
    value = float(floor)
    if allowed < len(failures):
        highest = np.sort(failures)[::-1][allowed]  # the first one that must not be called
        value = max(value, float(np.nextafter(highest, np.float32(2))))
    rate = false_positive_rate(episodes, value, seed)
    return Threshold(value=value, fpr=rate.value, low=rate.low, high=rate.high, target=target_fpr)


def false_positive_rate(episodes: Sequence[Scored], threshold: float, seed: int = 0) -> Rate:
    """The share of failure frames called success, with an interval that counts episodes.

    The interval is a bootstrap over episodes. That alone is too sure of itself when few episodes have a mistake in
    them, and with none it would be [0, 0]. So its upper end is at least this: the upper end of Wilson's interval for
    the share of episodes with a mistake, times the share of frames that goes wrong in such an episode, which is taken
    to be all of them where none was seen. Without any mistake in E episodes that is 3.84 / (E + 3.84), a little more
    than the rule of three: 16% after 20 episodes, 3.7% after 100.

    Where mistakes are of one length the interval holds the true rate in 98 of 100 data sets; where most are short and
    a few are long, in 86 to 96, and then it is the upper end that was too low.
    """
    counts = [(int((e.truth == 0).sum()), int(e.called(threshold)[e.truth == 0].sum())) for e in episodes]
    failures, called = np.array([c for c in counts if c[0]], float).reshape(-1, 2).T  # [E] each
    if not len(failures):
        return Rate(math.nan, 0.0, 1.0)
    chosen = np.random.default_rng(seed).integers(len(failures), size=(_DRAWS, len(failures)))
    draws = called[chosen].sum(axis=1) / failures[chosen].sum(axis=1)
    wrong = called > 0
    share = called[wrong].sum() / failures[wrong].sum() if wrong.any() else 1.0
    return Rate(
        value=float(called.sum() / failures.sum()),
        low=float(np.quantile(draws, 0.025)),
        high=float(max(np.quantile(draws, 0.975), share * wilson(int(wrong.sum()), len(wrong)).high)),
    )


def wilson(hits: int, of: int) -> Rate:
    """A share of things that are independent, as episodes are, with Wilson's interval."""
    if not of:
        return Rate(math.nan, 0.0, 1.0)
    p, z2 = hits / of, _Z**2
    middle, spread = p + z2 / (2 * of), _Z * math.sqrt(p * (1 - p) / of + z2 / (4 * of**2))
    return Rate(p, max(0.0, (middle - spread) / (1 + z2 / of)), min(1.0, (middle + spread) / (1 + z2 / of)))


# When the task was done


def first_success(probability: AnyArray, threshold: float, confirm: Confirm = (1, 1)) -> int | None:
    """The first frame at which k of the last n frames are called: what a robot could know at that moment."""
    return _first(confirmed(called_success(probability, threshold), confirm))


def decode_cutoff(probability: AnyArray, shift: int = 0, even: float = 0.5) -> int | None:
    """The cutoff that makes the probabilities most likely: failure before it, success from it on; None for never.

    Unlike `first_success` it sees the whole episode, so a flicker does not fool it: it is for labels, not for robots.
    Moving the cutoff one frame earlier turns log(1 - p) of that frame into log p, so the best one has the largest sum
    of log-odds from it on, if any sum is positive. Where success ends before the episode does, give it the part before.

    shift: frames that this judge is known to be late by, see `fit_shift`
    even: the probability that speaks neither for success nor against it; a judge that is to be strict has a high one
    """
    least, most = 1e-4, 1 - 1e-4  # no single frame decides for all
    p, even = np.clip(np.asarray(probability, np.float64), least, most), min(max(even, least), most)
    gain = np.cumsum((np.log(p / even) - np.log((1 - p) / (1 - even)))[::-1])[::-1]
    if not len(gain) or gain.max() <= 1e-9:
        return None
    return min(max(int(gain.argmax()) - shift, 0), len(gain) - 1)


def fit_shift(episodes: Sequence[Scored]) -> int:
    """How many frames late the decoded cutoff is in the middle of these episodes; below 0 for early.

    A robot lingers before a grasp and is quick after it, so there are more frames that look almost like success than
    frames that are only just one, and a judge that is right about most of them turns a few frames late.
    """
    errors = [error for error in _decoded_errors(episodes) if error is not None]
    return round(float(np.median(errors))) if errors else 0


@dataclass(frozen=True)
class CutoffErrors:
    """How far the first frame called lies from the first that shows success."""

    errors: tuple[int | None, ...]  # frames, of each episode that succeeds; below 0 is too early, None never called
    median: float  # of |error|, over those that were called; NaN for none
    p90: float  # 90th percentile of the same
    missed: int  # episodes that succeed and were never called
    false_calls: int  # episodes that fail and were called
    failing: int  # episodes that fail


def cutoff_errors(episodes: Sequence[Scored], threshold: float, confirm: Confirm = (1, 1)) -> CutoffErrors:
    """Of episodes in which some frame has a truth; a call on a frame without one is passed over."""
    errors: list[int | None] = []
    calls: list[bool] = []
    for episode in episodes:
        call = _first(confirmed(episode.called(threshold), confirm) & episode.judged)
        if episode.first is not None:
            errors.append(None if call is None else call - episode.first)
        elif episode.judged.any():
            calls.append(call is not None)
    median, p90 = _spread(errors)
    return CutoffErrors(tuple(errors), median, p90, errors.count(None), sum(calls), len(calls))


def _decoded_errors(episodes: Sequence[Scored], shift: int = 0) -> list[int | None]:
    """The same with `decode_cutoff`, which is given the known frames until success ends."""
    errors: list[int | None] = []
    for episode in episodes:
        if episode.first is not None:
            known = np.flatnonzero(episode.judged)
            undone = _first((episode.truth[known] == 0) & (known > episode.first))
            cutoff = decode_cutoff(episode.probability[known[:undone]], shift)
            errors.append(None if cutoff is None else int(known[cutoff]) - episode.first)
    return errors


# All of it


@dataclass(frozen=True)
class Scores:
    """A judge's report card on one set of episodes. A number that nothing was there to measure with is NaN."""

    episodes: int  # in which some frame has a truth
    frames: int  # with a truth
    success_frames: int  # of these, that show success
    threshold: float
    confirm: Confirm  # frames of how many that must be called before the episode is; frames are scored one by one
    precision: float  # of frames, at the threshold
    recall: float
    accuracy: float
    roc_auc: float  # at any threshold
    brier: float
    log_loss: float
    ece: float
    fpr: float  # share of failure frames called success
    fpr_low: float  # 95% confidence interval of it, by episodes
    fpr_high: float
    episodes_hit: int  # succeed and are called
    episodes_missed: int  # succeed and are not
    episodes_false: int  # fail and are called
    episodes_rejected: int  # fail and are not
    cutoff_median: float  # frames between the first one called and the first that shows success, of those called
    cutoff_p90: float
    decoded_median: float  # the same when the whole episode is seen, by `decode_cutoff`
    decoded_p90: float
    decoded_missed: int  # episodes that succeed and for which it finds no cutoff

    def to_json(self) -> dict[str, Any]:
        """NaN becomes None: JSON has no NaN."""
        tree = asdict(self) | {"confirm": list(self.confirm)}
        return {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in tree.items()}

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> Self:
        values: dict[str, Any] = {name: math.nan if value is None else value for name, value in tree.items()}
        return cls(**{**values, "confirm": tuple(tree["confirm"])})


def measure(
    episodes: Sequence[Scored], threshold: float, confirm: Confirm = (1, 1), seed: int = 0, shift: int = 0
) -> Scores:
    """shift: of decoded cutoffs, see `fit_shift`"""
    episodes = [episode for episode in episodes if episode.judged.any()]
    if not episodes:
        raise RewardError("no frame of these episodes has a truth; label some of them first")
    truth = np.concatenate([e.truth[e.judged] for e in episodes])
    probability = np.concatenate([e.probability[e.judged] for e in episodes])
    yes = called_success(probability, threshold)
    precision, recall = precision_recall(truth, yes)
    calibrated = reliability(probability, truth)
    rate = false_positive_rate(episodes, threshold, seed)
    cutoffs = cutoff_errors(episodes, threshold, confirm)
    decoded = _decoded_errors(episodes, shift)
    decoded_median, decoded_p90 = _spread(decoded)
    return Scores(
        episodes=len(episodes),
        frames=len(truth),
        success_frames=int(truth.sum()),
        threshold=float(threshold),
        confirm=confirm,
        precision=precision,
        recall=recall,
        accuracy=float((yes == (truth == 1)).mean()),
        roc_auc=roc_auc(truth, probability),
        brier=calibrated.brier,
        log_loss=calibrated.log_loss,
        ece=calibrated.ece,
        fpr=rate.value,
        fpr_low=rate.low,
        fpr_high=rate.high,
        episodes_hit=len(cutoffs.errors) - cutoffs.missed,
        episodes_missed=cutoffs.missed,
        episodes_false=cutoffs.false_calls,
        episodes_rejected=cutoffs.failing - cutoffs.false_calls,
        cutoff_median=cutoffs.median,
        cutoff_p90=cutoffs.p90,
        decoded_median=decoded_median,
        decoded_p90=decoded_p90,
        decoded_missed=decoded.count(None),
    )


def confirmed(called: BoolArray, confirm: Confirm) -> BoolArray:
    """[F] where k of the last n are called."""
    k, n = confirm
    if not 1 <= k <= n:
        raise RewardError(f"confirm must be (k, n) with 1 <= k <= n, got {confirm}")
    so_far = np.concatenate([np.zeros(n, int), np.cumsum(called)])  # calls up to each frame, none before the first
    return so_far[n:] - so_far[: len(called)] >= k


def _first(yes: BoolArray) -> int | None:
    return int(yes.argmax()) if yes.any() else None


def _known(truth: AnyArray, other: AnyArray) -> tuple[AnyArray, AnyArray]:
    """Both, where the truth is known."""
    truth, other = np.asarray(truth, np.float64), np.asarray(other, np.float64)
    if truth.shape != other.shape or truth.ndim != 1:
        raise RewardError(
            f"truth {list(truth.shape)} and what is measured {list(other.shape)} must be of one length, [F]"
        )
    known = ~np.isnan(truth)
    return truth[known], other[known]


def _share(part: int, of: int) -> float:
    return part / of if of else math.nan


def _spread(errors: Sequence[int | None]) -> tuple[float, float]:
    """Median and 90th percentile of how far off, of those that are there."""
    off = [abs(error) for error in errors if error is not None]
    return (float(np.median(off)), float(np.quantile(off, 0.9))) if off else (math.nan, math.nan)


def _sigmoid(z: AnyArray) -> AnyArray:
    return 0.5 * (1 + np.tanh(0.5 * z))
