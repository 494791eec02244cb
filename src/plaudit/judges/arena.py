"""Several judges on the same episodes, next to two that look at nothing.

    clock, constant = baselines(store, targets)
    entries = [enter(store, contender, sources, ids) for contender in (*contenders, clock, constant)]
    pairwise_wins(entries); disagreements(store, entries)

Every judge takes the exam (exam.py) on the same episodes: metrics with intervals and all negative controls. A clock and
a constant take it too: a figure that a clock reaches says nothing about a judge that looks, and both must fail.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from plaudit.config import Fraction, PositiveFloat
from plaudit.data.store import Store
from plaudit.errors import JudgeError
from plaudit.judges import stats
from plaudit.judges.certificate import Certificate
from plaudit.judges.config import JudgeConfig, check_compared
from plaudit.judges.evaluation import JudgeEvaluation, frame_prediction
from plaudit.judges.exam import KeepingJudge, examine, rank
from plaudit.judges.metrics import EpisodePrediction, FramePrediction, nan_to_none
from plaudit.judges.ranking import Ranking, rank_by_source, ranked_episodes
from plaudit.judges.stats import Interval
from plaudit.rule import DecisionRule
from plaudit.types import AnyArray, Episode, FloatArray, JudgeId, Scores

GALLERY = 8  # frames with the largest disagreement


class BaselineConfig(JudgeConfig):
    """A judge that looks at nothing. A clock says success from a moment on, a constant always."""

    kind: Literal["clock", "constant"] = "clock"
    onset: PositiveFloat = 1.0  # of a clock: the frame from which it says success
    prob: Fraction = 0.9  # of a constant

    def build(self) -> "Baseline":
        return Baseline(self)


class Baseline:
    """A `Judge`."""

    trained_on = ""

    def __init__(self, config: BaselineConfig):
        self.config, self.rule = config, DecisionRule(decode="per_frame")
        self.id = JudgeId(config.kind, f"{config.onset:g} {config.prob:g}", self.rule.key())

    def score(self, episodes: Sequence[Episode]) -> Sequence[Scores]:
        """Of a clock: the time, from 0 to 1 at twice the onset."""
        return [Scores(self._values(episode.steps + 1)) for episode in episodes]

    def _values(self, frames: int) -> FloatArray:
        if self.config.kind == "constant":
            return np.full(frames, self.config.prob, np.float32)
        return (np.arange(frames) / (2 * self.config.onset)).clip(0, 1).astype(np.float32)


def baselines(targets: Mapping[int, FloatArray]) -> list[BaselineConfig]:
    """A clock that says success at the median onset of these episodes, and a constant."""
    onsets = [int((target == 1).argmax()) for target in targets.values() if (target == 1).any()]
    onset = float(np.median(onsets)) if onsets else 1.0
    return [BaselineConfig(kind="clock", onset=max(onset, 0.5)), BaselineConfig(kind="constant")]


@dataclass(frozen=True, eq=False)
class Entry:
    """One judge and its results."""

    name: str
    config: JudgeConfig
    certificate: Certificate
    evaluation: JudgeEvaluation
    seconds: float  # per episode, controls included; NaN where all scores were kept from before
    frames_per_s: float
    baseline: bool = False
    rankings: Sequence[Ranking] = ()  # on episodes with a quality label, of each data set that they come from

    @property
    def frame_accuracy(self) -> Interval:
        """Share of frames that its labels get right."""
        right, total = _right_frames(self.evaluation)
        return stats.episode_rate(right, total)

    @property
    def episode_accuracy(self) -> Interval:
        """Share of episodes that its labels get right."""
        outcome = self.evaluation.label_metrics
        return stats.wilson(outcome.tp + outcome.tn, outcome.tp + outcome.fp + outcome.tn + outcome.fn)

    def to_json(self) -> dict[str, Any]:
        certificate = self.certificate.model_dump(mode="json")
        return certificate | {
            "baseline": self.baseline,
            "passed": self.certificate.passed,
            "frame_accuracy": _as_json(self.frame_accuracy),
            "episode_accuracy": _as_json(self.episode_accuracy),
            "seconds_per_episode": nan_to_none(self.seconds),
            "frames_per_second": nan_to_none(self.frames_per_s),
            "cost_s": self.config.cost_s,
            "signals": {name: vars(signal) for name, signal in self.config.signals.items()},
            "rankings": [one.to_json() for one in self.rankings],
        }


def enter(
    store: Store, name: str, config: JudgeConfig, sources: Sequence[str], ids: Sequence[int], kept: Path, **options: Any
) -> Entry:
    """Build a judge and examine it.

    kept: a file for its scores, from which the same call resumes
    options: of `examine`
    """
    check_compared(config)
    judge = KeepingJudge(config.build_with_progress(), kept)
    certificate, evaluation = examine(store, config, judge, sources, ids, name=name, **options)
    watch = {"progress": options["progress"]} if "progress" in options else {}
    rankings = rank_by_source(ranked_episodes(store, config, judge, ids, evaluation.labels, **watch))
    seconds = judge.seconds / judge.episodes if judge.episodes else np.nan
    rate = judge.frames / judge.seconds if judge.episodes else np.nan
    return Entry(name, config, certificate, evaluation, seconds, rate, isinstance(config, BaselineConfig), rankings)


# Judges next to each other


@dataclass(frozen=True)
class PairwiseWins:
    """How often one judge gets more frames of an episode right than another."""

    first: str
    second: str
    rate: Interval  # share of episodes, equal ones count half
    episodes: int

    def to_json(self) -> dict[str, Any]:
        return {"first": self.first, "second": self.second, "episodes": self.episodes, "rate": _as_json(self.rate)}


@dataclass(frozen=True, eq=False)
class Disagreement:
    """A frame on which judges differ."""

    frame: FramePrediction  # with the image, and the probability of the first judge
    probs: Mapping[str, float]

    @property
    def spread(self) -> float:
        return max(self.probs.values()) - min(self.probs.values())

    def to_json(self) -> dict[str, Any]:
        place = {"episode": self.frame.episode, "frame": self.frame.frame, "target": nan_to_none(self.frame.target)}
        return {**place, "success_prob": dict(self.probs), "spread": self.spread}


def pairwise_wins(entries: Sequence[Entry]) -> list[PairwiseWins]:
    """Each pair of judges on the episodes that both have scored; every pair in both orders."""
    accuracy = {}
    for entry in entries:
        right, total = _right_frames(entry.evaluation)
        numbers = [one.episode for one in entry.evaluation.predictions]
        accuracy[entry.name] = {i: r / t for i, r, t in zip(numbers, right, total, strict=True) if t}
    wins = []
    for first in accuracy:
        for second in accuracy:
            common = sorted(set(accuracy[first]) & set(accuracy[second]))
            if first == second or not common:
                continue
            ahead = np.array([accuracy[first][i] - accuracy[second][i] for i in common])
            score = (ahead > 0) + 0.5 * (ahead == 0)
            wins.append(PairwiseWins(first, second, stats.episode_rate(score, np.ones(len(score))), len(common)))
    return wins


def disagreements(store: Store, entries: Sequence[Entry]) -> list[Disagreement]:
    """The frames on which judges differ most, one of an episode. Baselines count only where there is one judge."""
    own = [entry for entry in entries if not entry.baseline]
    shown = own if len(own) > 1 else list(entries)
    predictions = {entry.name: {one.episode: one for one in entry.evaluation.predictions} for entry in shown}
    common = sorted(set.intersection(*(set(one) for one in predictions.values()))) if len(shown) > 1 else []
    places: list[tuple[float, int, int]] = []
    answers = {i: {one.name: _answers(one.evaluation, predictions[one.name][i]) for one in shown} for i in common}
    for episode_id in common:
        probs = np.stack(list(answers[episode_id].values()))
        spread = np.nan_to_num(np.fmax.reduce(probs) - np.fmin.reduce(probs))
        places.append((float(spread.max()), episode_id, int(spread.argmax())))
    chosen = []
    for spread, episode_id, frame in sorted(places, reverse=True)[:GALLERY]:
        if spread < 0.05:
            break
        probs = {name: float(one[frame]) for name, one in answers[episode_id].items() if not np.isnan(one[frame])}
        first: EpisodePrediction = next(iter(predictions.values()))[episode_id]
        chosen.append(Disagreement(frame_prediction(store.episode(episode_id), first, frame), probs))
    return chosen


def rank_entries(entries: Sequence[Entry]) -> list[Entry]:
    """The best first, baselines last."""
    return sorted(entries, key=lambda entry: (entry.baseline, *rank(entry.certificate)))


def check_baselines(entries: Sequence[Entry]) -> None:
    """A suite that a clock or a constant passes proves nothing about a judge."""
    for entry in entries:
        if entry.baseline and entry.certificate.passed:
            raise JudgeError(
                f"the baseline '{entry.name}' passes on these episodes, so a judge that passes proves nothing. Use "
                "episodes of which some fail, and which succeed at different times"
            )


def named_apart(judges: Sequence[str]) -> list[str]:
    """A short name for each `JUDGE,KEY=VALUE...`: the last part of its path or its class; where two are alike, all of
    the path, and the keys in which they differ."""
    split = [judge.split(",") for judge in judges]
    short = [_short_name(word) for word, *_ in split]
    names = []
    for name, (word, *keys) in zip(short, split, strict=True):
        alike = [other for other, one in zip(split, short, strict=True) if one == name]
        name = name if all(other == word for other, *_ in alike) else word
        names.append(" ".join([name, *(key for key in keys if not all(key in other for other in alike))]))
    return [f"{name} ({names[:n].count(name) + 1})" if names[:n].count(name) else name for n, name in enumerate(names)]


def _short_name(word: str) -> str:
    path = Path(word)
    return path.stem if path.is_file() else path.name.rpartition(":")[2] or word


def _right_frames(evaluation: JudgeEvaluation) -> tuple[AnyArray, AnyArray]:
    """[E] frames of each episode that its labels get right, and all that have a target."""
    right, total = [], []
    for one in evaluation.predictions:
        success = evaluation.labels[one.episode].success
        right.append(int((success == (one.target == 1))[one.has_target].sum()))
        total.append(int(one.has_target.sum()))
    return np.array(right, float), np.array(total, float)


def _answers(evaluation: JudgeEvaluation, one: EpisodePrediction) -> AnyArray:
    """[F] P(success), NaN where the judge labels nothing: a cascade may leave an episode undecided."""
    return np.where(evaluation.labels[one.episode].labeled, one.success_prob, np.nan)


def _as_json(rate: Interval) -> list[float | None]:
    return [nan_to_none(value) for value in (rate.value, rate.low, rate.high)]
