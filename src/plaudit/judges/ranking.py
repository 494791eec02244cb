"""The metrics that RBM-EVAL publishes, of a judge on episodes with a quality label: successful, suboptimal or failure.

They follow the definition in Robometer's evaluation, one data set (`data_source`) at a time and over its robot
episodes. The value of a frame is the judge's progress, or else its P(success).

    policy ranking     Kendall's tau-a between quality and the value of the last frame, for one episode of each quality
                       that a task has; the mean over all such choices, then over tasks with two or more qualities
    pairs in order     share of the pairs of one task and different quality whose last frame orders them right
    reward alignment   Pearson's correlation of values with time at 5 frames of each success

The published code draws 30 episodes of a set for the alignment, and counts equal values in a pair as right or wrong by
the order of its rows. All episodes are taken here, and an equal pair counts half.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from plaudit.data.episode_keys import episode_keys
from plaudit.data.store import Store
from plaudit.judges import stats
from plaudit.judges.config import JudgeConfig
from plaudit.judges.evaluation import label_store, seen_keys
from plaudit.judges.metrics import nan_to_none
from plaudit.judges.stats import Interval
from plaudit.protocols import Judge
from plaudit.types import AnyArray, Labels, ProgressFn

QUALITIES = ("failure", "suboptimal", "successful")  # the worst first
ALIGNED_FRAMES = 5


@dataclass(frozen=True, eq=False)
class RankedEpisode:
    """An episode with a quality label, and a judge's values."""

    source: str  # the data set that it comes from
    task: str
    quality: str  # one of QUALITIES
    values: AnyArray  # [F]


@dataclass(frozen=True)
class Ranking:
    """The metrics on one data set."""

    source: str
    episodes: int
    tasks: int  # with episodes of two or more qualities
    kendall: Interval  # over tasks
    pairs_in_order: float  # NaN without a pair
    alignment: Interval  # over successes

    def to_json(self) -> dict[str, Any]:
        counts = {"source": self.source, "episodes": self.episodes, "tasks": self.tasks}
        figures = {"kendall": self.kendall, "alignment": self.alignment}
        intervals = {name: (one.value, one.low, one.high) for name, one in figures.items()}
        finite = {name: [value if np.isfinite(value) else None for value in one] for name, one in intervals.items()}
        return {**counts, **finite, "pairs_in_order": nan_to_none(self.pairs_in_order)}


def ranked_episodes(
    store: Store,
    config: JudgeConfig,
    judge: Judge,
    ids: Sequence[int],
    labels: Mapping[int, Labels],
    progress: Callable[[str], ProgressFn] = lambda _: iter,
) -> list[RankedEpisode]:
    """The robot episodes with a quality label that the judge has not seen; [] where no episode has one.

    labels: of the judge, of episodes that it has scored; the others are scored, such as suboptimal ones, which have no
        reference label
    progress: description -> progress bar over items
    """
    metas = {i: store.episode(i).meta for i in ids}
    chosen = [i for i, m in metas.items() if m.get("quality_label") in QUALITIES and m.get("is_robot", True)]
    others = [i for i in chosen if i not in labels]
    seen, _ = seen_keys(config, judge)
    keys = episode_keys(store, others) if seen else {}
    unseen = [i for i in others if not keys.get(i, frozenset()) & seen]
    watch = progress("scoring episodes for the ranking") if unseen else iter
    scored = {**label_store(store, judge, unseen, progress=watch)[0], **labels}
    episodes = []
    for i in chosen:
        values = _values(scored[i]) if i in scored else np.zeros(0)
        if len(values) and not np.isnan(values[-1]):
            source = str(metas[i].get("data_source", ""))
            episodes.append(RankedEpisode(source, store.episode(i).task, metas[i]["quality_label"], values))
    return episodes


def rank_by_source(episodes: Sequence[RankedEpisode]) -> list[Ranking]:
    """The metrics of each data set."""
    by_source: defaultdict[str, list[RankedEpisode]] = defaultdict(list)
    for one in episodes:
        by_source[one.source].append(one)
    return [_ranking(source, some) for source, some in sorted(by_source.items())]


def alignment(values: AnyArray) -> float:
    """Pearson's correlation of values with time, at frames from the first to the last; 0 where they do not vary."""
    count = len(values)
    frames = np.arange(count) if count < ALIGNED_FRAMES else np.linspace(0, count - 1, ALIGNED_FRAMES).astype(int)
    chosen = values[frames].astype(float)
    frames, chosen = frames[~np.isnan(chosen)], chosen[~np.isnan(chosen)]
    if len(chosen) < 2 or np.ptp(chosen) == 0:
        return 0.0
    return float(np.corrcoef(frames, chosen)[0, 1])


def kendall(qualities: Sequence[str], values: Sequence[float]) -> float:
    """The mean of tau-a over all ways to take one episode of each quality; NaN where there is only one quality.

    Tau-a is a mean over pairs of qualities, so the mean over all ways is the mean over pairs of the mean sign.
    """
    groups = [np.array([v for v, q in zip(values, qualities, strict=True) if q == quality]) for quality in QUALITIES]
    pairs = list(combinations([group for group in groups if len(group)], 2))
    if not pairs:
        return float("nan")
    return float(np.mean([np.sign(better[:, None] - worse[None]).mean() for worse, better in pairs]))


def _ranking(source: str, episodes: Sequence[RankedEpisode]) -> Ranking:
    by_task: defaultdict[str, list[RankedEpisode]] = defaultdict(list)
    for one in episodes:
        by_task[one.task].append(one)
    taus, right, pairs = [], 0.0, 0
    for some in by_task.values():
        tau = kendall([one.quality for one in some], [float(one.values[-1]) for one in some])
        taus += [] if np.isnan(tau) else [tau]
        for first, second in combinations(some, 2):
            order = np.sign(QUALITIES.index(first.quality) - QUALITIES.index(second.quality))
            if order:
                right += (1 + order * np.sign(first.values[-1] - second.values[-1])) / 2
                pairs += 1
    aligned = [alignment(one.values) for one in episodes if one.quality == "successful"]
    return Ranking(
        source,
        len(episodes),
        len(taus),
        stats.mean_correlation(taus),
        float(right / pairs) if pairs else float("nan"),
        stats.mean_correlation(aligned),
    )


def _values(labels: Labels) -> AnyArray:
    """[F] progress, or else P(success)."""
    if labels.scores is None:
        return labels.targets
    return labels.scores.success_prob if labels.scores.progress is None else labels.scores.progress
