"""How good is a judge? Its predictions next to reference labels, and the metrics of both frames and episodes.

    episodes = [EpisodePrediction(success_prob, target, episode) for ... in held_out]
    metrics = compute_metrics(episodes, DecisionRule(threshold=0.9))

A frame without a reference label has a target of NaN and never counts. Two kinds of mistakes matter most, because a
learner exploits them: a failure predicted a success, and a success predicted at the wrong moment. All intervals are
over episodes (stats.py).

scikit-learn and scipy are imported where they are used: most worker processes compute no metrics.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np

from plaudit.errors import JudgeError
from plaudit.judges.stats import Interval, episode_rate, quantile
from plaudit.rule import DecisionRule, above_threshold, decode_cutoff
from plaudit.types import AnyArray, BoolArray, ByteArray, FloatArray

# Predictions


@dataclass(frozen=True, eq=False)
class EpisodePrediction:
    """The recorded frames of one held-out episode."""

    success_prob: FloatArray  # [F] by the judge
    target: FloatArray  # [F] 1 success, 0 failure, NaN without a reference label
    episode: int  # its id

    def __post_init__(self) -> None:
        prob, target = np.asarray(self.success_prob, np.float32), np.asarray(self.target, np.float32)
        object.__setattr__(self, "success_prob", prob)
        object.__setattr__(self, "target", target)
        problem = ""
        if prob.ndim != 1 or prob.shape != target.shape:
            problem = f"success_prob and target must be [F], got {list(prob.shape)} and {list(target.shape)}"
        elif not ((prob >= 0) & (prob <= 1)).all():
            problem = "a probability is NaN or outside [0, 1]; apply PlattScaling to logits first"
        elif not np.isin(target[~np.isnan(target)], (0, 1)).all():
            problem = "a target must be 1, 0 or NaN"
        if problem:
            raise JudgeError(f"episode {self.episode}: {problem}")

    @property
    def has_target(self) -> BoolArray:
        """[F] the frames with a reference label."""
        return ~np.isnan(self.target)

    @property
    def first_success(self) -> int | None:
        """The first frame that shows success."""
        return first_true(self.target == 1)

    @property
    def errors(self) -> FloatArray:
        """[F] |success_prob - target|; 0 without a reference label."""
        return np.nan_to_num(np.abs(self.success_prob - self.target))

    def predicted(self, threshold: float) -> BoolArray:
        """[F] the frames predicted a success."""
        return above_threshold(self.success_prob, threshold)

    def to_json(self) -> dict[str, Any]:
        """NaN becomes None: JSON has no NaN."""
        target = [None if np.isnan(value) else int(value) for value in self.target]
        return {"episode": self.episode, "target": target, "success_prob": self.success_prob.tolist()}

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> Self:
        """Read what `to_json` returned."""
        return cls(np.array(tree["success_prob"], np.float32), np.array(tree["target"], np.float32), tree["episode"])


@dataclass(frozen=True, eq=False)
class FramePrediction:
    """One frame, to be looked at."""

    episode: int
    frame: int
    target: float  # 1 or 0
    success_prob: float  # by the judge
    image: ByteArray  # uint8 [H, W, 3]


def hstack_images(images: Sequence[ByteArray]) -> ByteArray:
    """[..., H, W, 3] of several cameras side by side, on white where one is lower than the others."""
    height = max(image.shape[-3] for image in images)
    padded = []
    for image in images:
        below = [*[(0, 0)] * (image.ndim - 3), (0, height - image.shape[-3]), (0, 0), (0, 0)]
        padded.append(np.pad(image, below, constant_values=255))
    return np.concatenate(padded, axis=-2)


def largest_errors(episodes: Sequence[EpisodePrediction], max_frames: int = 24) -> list[tuple[EpisodePrediction, int]]:
    """Frames with the largest errors, at most four per episode and not next to each other: neighbors look alike."""
    places: list[tuple[float, EpisodePrediction, int]] = []
    for episode in episodes:
        errors, chosen = episode.errors, []
        for frame in np.argsort(-errors, kind="stable").tolist():
            if len(chosen) < 4 and all(abs(frame - other) > len(errors) // 20 for other in chosen):
                chosen.append(frame)
        places += [(float(errors[frame]), episode, frame) for frame in chosen]
    places.sort(key=lambda place: -place[0])
    return [(episode, frame) for error, episode, frame in places[:max_frames] if error >= 0.05]


def first_true(mask: BoolArray) -> int | None:
    """The first index that is True; None where there is none."""
    return int(mask.argmax()) if mask.any() else None


def drop_unlabeled(target: AnyArray, values: AnyArray) -> tuple[AnyArray, AnyArray]:
    """Both in float64, without the frames that have no target."""
    target, values = np.asarray(target, np.float64), np.asarray(values, np.float64)
    if target.shape != values.shape or target.ndim != 1:
        raise JudgeError(f"targets {list(target.shape)} and scores {list(values.shape)} must be of one length, [F]")
    labeled = ~np.isnan(target)
    return target[labeled], values[labeled]


# Frames and episodes


def frame_rate(episodes: Sequence[EpisodePrediction], threshold: float, target: int) -> Interval:
    """The share of frames with this target that are predicted a success: the recall for 1, the false-positive rate for
    0. The interval is over episodes."""
    counts = [(e.predicted(threshold)[e.target == target].sum(), (e.target == target).sum()) for e in episodes]
    return episode_rate(*np.array(counts, float).reshape(-1, 2).T)


def false_positive_rate(episodes: Sequence[EpisodePrediction], threshold: float) -> Interval:
    """The share of failure frames predicted a success."""
    return frame_rate(episodes, threshold, 0)


@dataclass(frozen=True)
class EpisodeMetrics:
    """Episodes by outcome, and how far the first frame predicted a success lies from the first that shows it."""

    tp: int
    fn: int
    fp: int
    tn: int
    onset_median: float  # frames, median of |error| over true positives; NaN for none
    onset_p90: float  # 90th percentile of the same
    errors: tuple[int | None, ...] = ()  # frames, of each success; below 0 is too early, None for a false negative

    @classmethod
    def of(
        cls, episodes: Sequence[EpisodePrediction], onset_of: Callable[[EpisodePrediction], int | None]
    ) -> "EpisodeMetrics":
        """onset_of: the first frame that is predicted a success; None where none is"""
        errors: list[int | None] = []
        predicted: list[bool] = []  # of each failure, whether it is predicted a success
        for episode in episodes:
            onset, first = onset_of(episode), episode.first_success
            if first is not None:
                errors.append(None if onset is None else onset - first)
            elif episode.has_target.any():
                predicted.append(onset is not None)
        off = [abs(error) for error in errors if error is not None]
        median, p90 = (float(np.median(off)), float(np.quantile(off, 0.9))) if off else (math.nan, math.nan)
        fn, fp = len(errors) - len(off), sum(predicted)
        return cls(len(off), fn, fp, len(predicted) - fp, median, p90, tuple(errors))


def causal_metrics(episodes: Sequence[EpisodePrediction], rule: DecisionRule) -> EpisodeMetrics:
    """By a rule as it decides live; a prediction on a frame without a target does not count."""
    return EpisodeMetrics.of(episodes, lambda e: first_true(rule.decide(e.success_prob) & e.has_target))


def offline_metrics(episodes: Sequence[EpisodePrediction], offset: int = 0, threshold: float = 0.5) -> EpisodeMetrics:
    """By `decode_cutoff`, which is given the labeled frames until success ends."""

    def onset_of(episode: EpisodePrediction) -> int | None:
        labeled, first = np.flatnonzero(episode.has_target), episode.first_success
        undone = None if first is None else first_true((episode.target[labeled] == 0) & (labeled > first))
        cutoff = decode_cutoff(episode.success_prob[labeled[:undone]], offset, threshold)
        return None if cutoff is None else int(labeled[cutoff])

    return EpisodeMetrics.of(episodes, onset_of)


def onset_intervals(outcome: EpisodeMetrics) -> tuple[Interval, Interval]:
    """The median and the 90th percentile of the success-onset error."""
    errors = [abs(error) for error in outcome.errors if error is not None]
    return quantile(errors, 0.5), quantile(errors, 0.9)


# Probabilities


@dataclass(frozen=True, eq=False)
class CalibrationCurve:
    """Whether 80% means 80%: frames in bins of equal width by their probability. An empty bin has NaN in it."""

    success_prob: FloatArray  # [B] mean of the predictions
    success_rate: FloatArray  # [B] share of frames that show success
    count: AnyArray  # i64 [B] frames
    ece: float  # expected calibration error: mean of |success_rate - success_prob|, weighted by count
    brier: float  # mean of (success_prob - target)^2; 0.25 for a judge that always says 50%
    log_loss: float  # in nats; one sure mistake is not infinite

    @classmethod
    def of(cls, episodes: Sequence[EpisodePrediction]) -> "CalibrationCurve":
        """Metrics of all frames of these episodes."""
        success_prob = np.concatenate([episode.success_prob for episode in episodes])
        return calibration_curve(success_prob, np.concatenate([episode.target for episode in episodes]))


CALIBRATION_BINS = 10


def calibration_curve(success_prob: AnyArray, target: AnyArray, bins: int = CALIBRATION_BINS) -> CalibrationCurve:
    """Calibration curve of the frames that have a target."""
    from sklearn.metrics import log_loss

    target, prob = drop_unlabeled(target, success_prob)
    if not len(target):
        raise JudgeError("no frame has a reference label to compare with")
    place = np.minimum((prob * bins).astype(int), bins - 1)
    count = np.bincount(place, minlength=bins)
    with np.errstate(invalid="ignore"):
        predicted = np.bincount(place, prob, bins) / count
        observed = np.bincount(place, target, bins) / count
    return CalibrationCurve(
        success_prob=predicted.astype(np.float32),
        success_rate=observed.astype(np.float32),
        count=count,
        ece=float(np.nansum(np.abs(predicted - observed) * count) / len(target)),
        brier=float(np.mean((prob - target) ** 2)),
        log_loss=float(log_loss(target, np.clip(prob, 1e-7, 1 - 1e-7), labels=[0, 1])),
    )


# All of it


@dataclass(frozen=True)
class JudgeMetrics:
    """A judge on one set of episodes. What nothing was there to measure with is NaN."""

    episodes: int  # in which some frame has a target
    frames: int  # with a target
    success_frames: int
    threshold: float
    k: int  # of the last n frames, how many decide on an episode; frames are scored one by one
    n: int
    precision: float  # of frames, at the threshold
    recall: float
    accuracy: float
    roc_auc: float  # at any threshold
    brier: float
    log_loss: float
    ece: float
    fpr: float  # share of failure frames predicted a success
    fpr_low: float  # 95% confidence interval of it, by episodes
    fpr_high: float
    causal: EpisodeMetrics  # k of n frames at the threshold, as decided live
    offline: EpisodeMetrics  # one cutoff, decoded from the whole episode
    first_frame_positives: int  # episodes predicted a success at their first frame
    first_frame_fp: int  # of these, the ones that do not begin with success
    recall_low: float  # 95% confidence interval of it, by episodes
    recall_high: float

    @property
    def fpr_interval(self) -> Interval:
        return Interval(self.fpr, self.fpr_low, self.fpr_high)

    @property
    def recall_interval(self) -> Interval:
        return Interval(self.recall, self.recall_low, self.recall_high)

    def to_json(self) -> dict[str, Any]:
        """NaN becomes None: JSON has no NaN."""
        return nan_to_none(asdict(self))

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> Self:
        """Read what `to_json` returned."""
        values: dict[str, Any] = {name: math.nan if value is None else value for name, value in tree.items()}
        for name in ("causal", "offline"):
            episodes: dict[str, Any] = {k: math.nan if value is None else value for k, value in tree[name].items()}
            episodes["errors"] = tuple(episodes["errors"])
            values[name] = EpisodeMetrics(**episodes)
        return cls(**values)


def value_order(values: AnyArray) -> float:
    """Spearman's correlation of a judge's values with time; 0 where they do not vary."""
    from scipy.stats import spearmanr

    values = values[~np.isnan(values)]
    if len(values) < 2 or np.ptp(values) == 0:
        return 0.0
    result: Any = spearmanr(values, np.arange(len(values)))
    return float(result.statistic)


def nan_to_none(value: Any) -> Any:
    """The same as JSON reads it back: None for NaN, lists for tuples; of mappings, too."""
    if isinstance(value, dict):
        return {name: nan_to_none(inner) for name, inner in value.items()}
    if isinstance(value, tuple):
        return list(value)
    return None if isinstance(value, float) and math.isnan(value) else value


def compute_metrics(episodes: Sequence[EpisodePrediction], rule: DecisionRule) -> JudgeMetrics:
    """Frames at the rule's threshold; episodes as the rule decides live, and by one cutoff."""
    from sklearn.metrics import accuracy_score, precision_score, roc_auc_score

    threshold = rule.threshold
    live = rule if rule.causal else rule.model_copy(update={"decode": "k_of_n"})
    episodes = [episode for episode in episodes if episode.has_target.any()]
    if not episodes:
        raise JudgeError("no frame of these episodes has a reference label; label some of them first")
    target = np.concatenate([e.target[e.has_target] for e in episodes])
    prob = np.concatenate([e.success_prob[e.has_target] for e in episodes])
    predicted = above_threshold(prob, threshold)
    undefined: Any = math.nan  # of a share of nothing, which scikit-learn takes and its types do not say
    calibration = calibration_curve(prob, target)
    fpr, recall = (frame_rate(episodes, threshold, kind) for kind in (0, 1))
    starts = [e.target[e.has_target][0] for e in episodes if e.predicted(threshold)[e.has_target][0]]
    return JudgeMetrics(
        episodes=len(episodes),
        frames=len(target),
        success_frames=int(target.sum()),
        threshold=float(threshold),
        k=live.window[0],
        n=live.window[1],
        precision=float(precision_score(target, predicted, zero_division=undefined)),
        recall=recall.value,
        accuracy=float(accuracy_score(target, predicted)),
        roc_auc=float(roc_auc_score(target, prob)) if 0 < target.sum() < len(target) else math.nan,
        brier=calibration.brier,
        log_loss=calibration.log_loss,
        ece=calibration.ece,
        fpr=fpr.value,
        fpr_low=fpr.low,
        fpr_high=fpr.high,
        causal=causal_metrics(episodes, live),
        offline=offline_metrics(episodes, rule.cutoff_offset, threshold),
        first_frame_positives=len(starts),
        first_frame_fp=sum(bool(first == 0) for first in starts),
        recall_low=recall.low,
        recall_high=recall.high,
    )
