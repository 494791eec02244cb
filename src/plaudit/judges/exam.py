"""The exam of a judge: one fixed suite for all of them, on episodes that it has not seen.

    certificate, traces = examine(store, config, judge, sources, ids, name="my judge")
    ranked = sorted(certificates, key=rank)

It is made of the parts of `plaudit judge eval`, with an interval over episodes for every figure, and of more controls.
Two figures are here because a clock looks good in the others where episodes last as long as each other: the ROC AUC of
frames with the same number, which a clock cannot tell apart, and the order of values on an episode that stands still.
"""

import hashlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from plaudit.data.episode_keys import episode_keys
from plaudit.data.store import Store
from plaudit.errors import JudgeError
from plaudit.judges.calibration import MIN_EPISODES
from plaudit.judges.certificate import (
    AGAIN,
    FIGURES,
    MAX_FPR,
    Certificate,
    ControlFigure,
    ExamData,
    Interval,
    to_interval_map,
)
from plaudit.judges.config import JudgeConfig
from plaudit.judges.controls import (
    MAX_EPISODES,
    ControlMaker,
    NegativeControl,
    ScoredControl,
    another_task,
    control_makers,
    score_controls,
    shift_makers,
)
from plaudit.judges.evaluation import (
    JudgeEvaluation,
    control_task,
    describe_coverage,
    evaluate,
    load_reference_labels,
)
from plaudit.judges.exam_figures import exam_figures
from plaudit.judges.kept_scores import KeepingJudge
from plaudit.judges.metrics import RateCI, false_positive_rate
from plaudit.judges.predictions import EpisodePrediction
from plaudit.judges.unseen import SeenEpisodes
from plaudit.protocols import Judge
from plaudit.types import AnyArray, FloatArray, ProgressFn

CLOCK, CONSTANT = "clock-like", "constant"
BATCH = 2  # episodes that are scored before they are kept and counted on the screen
MAX_STILL_ORDER = 0.2  # of the values on an episode that stands still
_SAME = 0.01  # range of probabilities that are as good as equal


@dataclass(frozen=True, eq=False)
class Trace:
    """A judge's P(success) over one episode, for the page."""

    name: str  # "success", "failure", "standing still"
    success_prob: FloatArray
    target: FloatArray


def examine(
    store: Store,
    config: JudgeConfig,
    judge: Judge,
    sources: Sequence[str],
    ids: Sequence[int],
    *,
    name: str,
    other_task: Store | None = None,
    wrong_task: str | None = None,
    kept: Path | None = None,
    progress: Callable[[str], ProgressFn] = lambda _: iter,
) -> tuple[Certificate, list[Trace]]:
    """The certificate of a judge, and a few of its answers to look at.

    sources, ids: whose reference labels, and of which episodes; those that the judge has seen are left out
    other_task: a store of episodes in which this task is never done
    wrong_task: for a judge that uses the task text, see `control_task`
    kept: a file for the judge's scores, from which the same call resumes; None: an interruption loses them
    progress: description -> progress bar over items
    """
    labeled = load_reference_labels(store, sources, ids)
    chosen = SeenEpisodes.of(config, judge).choose(store, list(labeled), include=None)
    targets = {i: labeled[i] for i in chosen.ids}
    check_both_classes(store, targets)
    scorer = judge if kept is None else KeepingJudge(judge, kept)
    watch = progress("scoring episodes, part 1 of 2")
    found = evaluate(store, scorer, targets, with_controls=False, batch_size=BATCH, progress=watch)
    targets = {i: targets[i] for i in found.labels}
    check_both_classes(store, targets, unscored=len(chosen.ids) - len(targets))
    makers = _makers(store, targets, control_task(config.uses_task, wrong_task), other_task)
    watch = progress("scoring controls, part 2 of 2")
    scored, failures = score_controls(scorer, makers, batch_size=BATCH, progress=watch)
    figures = exam_figures(found, judge.rule, scored)
    controls = _control_figures(scored, found.metrics.threshold, figures["fpr"].value)
    shortcut = _shortcut(found, figures, controls)
    left_out = len(labeled) - len(chosen.ids)
    coverage = describe_coverage(store, sources, ids, found.metrics.episodes, left_out)
    notes = [*chosen.notes, *found.notes, coverage]
    notes += [f"{len(failures)} controls could not be scored: {failures[0]}."] if failures else []
    certificate = Certificate(
        date=time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime()),
        name=name,
        source=judge.id.source,
        fingerprint=judge.id.fingerprint,
        rule=judge.id.rule,
        rule_text=judge.rule.describe(),
        data=_data(store, targets, sources, len(labeled), found),
        figures=to_interval_map(figures),
        controls=tuple(controls),
        shortcut=shortcut,
        problems=(*_problems(shortcut, figures, controls), *_unscored(found)),
        notes=tuple(notes),
    )
    return certificate, _traces(found, scored)


def rank(certificate: Certificate) -> tuple[bool, float, float]:
    """Sorts certificates, the best judge first: who passed, then by what no clock could tell, then by all frames."""
    same_time, frames = (certificate.figures[name].rate().value for name in ("same_time_roc_auc", "frame_roc_auc"))
    return not certificate.passed, -(frames if math.isnan(same_time) else same_time), -frames


def check_data(
    path: Path,
    certificate: Certificate,
    store: Store,
    config: JudgeConfig,
    judge: Judge,
    sources: Sequence[str],
    ids: Sequence[int],
) -> None:
    """Refuse a certificate that was not made on these episodes with these reference labels."""
    labeled = load_reference_labels(store, sources, ids)
    chosen = SeenEpisodes.of(config, judge).choose(store, list(labeled), include=None)
    now = data_fingerprint(store, {i: labeled[i] for i in chosen.ids})
    if now != certificate.data.fingerprint:
        raise JudgeError(
            f"{path} was made on other data: {certificate.data.episodes} episodes of {certificate.data.store} with "
            f"fingerprint {certificate.data.fingerprint}, and {store.folder} has {now} now; {AGAIN}"
        )


def check_both_classes(store: Store, targets: Mapping[int, FloatArray], unscored: int = 0) -> None:
    """Refuse data with which nothing can be told apart.

    unscored: episodes that the judge could not score, which are not among these
    """
    successes, failures = (sum(bool((one == kind).any()) for one in targets.values()) for kind in (1, 0))
    if min(successes, failures) < MIN_EPISODES:
        raise JudgeError(
            f"an exam needs at least {MIN_EPISODES} episodes that show success and {MIN_EPISODES} that show failure; "
            f"of the {len(targets)} in {store.folder} that this judge has not seen {successes} show success and "
            f"{failures} failure{f' ({unscored} others could not be scored)' * bool(unscored)}; label more"
        )


def data_fingerprint(store: Store, targets: Mapping[int, FloatArray]) -> str:
    """Of episodes, wherever they lie, and of their reference labels."""
    keys = episode_keys(store, list(targets))
    parts = sorted(b"".join(sorted(keys[i])) + target.astype("<f4").tobytes() for i, target in targets.items())
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def _data(
    store: Store, targets: Mapping[int, FloatArray], sources: Sequence[str], num_labeled: int, found: JudgeEvaluation
) -> ExamData:
    return ExamData(
        store=str(store.folder),
        fingerprint=data_fingerprint(store, targets),
        reference=tuple(sources),
        episodes=found.metrics.episodes,
        successes=sum(one.first_success is not None for one in found.predictions),
        frames=found.metrics.frames,
        num_left_out=num_labeled - found.metrics.episodes,
    )


# Controls


def _makers(
    store: Store, targets: Mapping[int, FloatArray], wrong: str | None, other: Store | None
) -> list[ControlMaker]:
    """wrong: a wrong task, for a judge that uses the task text; then episodes of another task are told this one"""
    episodes = [(store.episode(i), target) for i, target in targets.items()]
    makers = [*control_makers(episodes, task=wrong), *shift_makers(episodes)]
    if other is None:
        return makers
    task = None if wrong is None else episodes[0][0].task
    ids = np.random.default_rng(0).permutation(list(other.ids))[:MAX_EPISODES].tolist()
    return [*makers, *(partial(_of_another_task, other, i, task) for i in ids)]


def _of_another_task(other: Store, episode_id: int, task: str | None) -> NegativeControl:
    return another_task(other.episode(episode_id), task)


def _control_figures(scored: Sequence[ScoredControl], threshold: float, fpr: float) -> list[ControlFigure]:
    """In episodes that are seen otherwise, the judge's own false positives come on top of what may be."""
    figures = []
    for name in dict.fromkeys(one.name for one in scored):
        of_name = [one for one in scored if one.name == name]
        tried = [_masked(one, one.mask, n) for n, one in enumerate(of_name)]
        success = [_masked(one, one.success, n) for n, one in enumerate(of_name) if one.success is not None]
        figures.append(
            ControlFigure(
                name=name,
                episodes=len(of_name),
                frames=sum(len(one.target) for one in tried),
                fpr=Interval.of(false_positive_rate(tried, threshold)),
                max_fpr=MAX_FPR + (fpr if success else 0),
                recall=float(np.concatenate([one.predicted(threshold) for one in success]).mean()) if success else None,
            )
        )
    return figures


def _masked(one: ScoredControl, mask: AnyArray, number: int) -> EpisodePrediction:
    """The frames of a control that were scored, as failures."""
    prob = one.labels.frame_probs[mask]
    prob = prob[~np.isnan(prob)]
    return EpisodePrediction(prob, np.zeros(len(prob), np.float32), number)


# What it goes by, and what speaks against it


def _shortcut(found: JudgeEvaluation, figures: Mapping[str, RateCI], controls: Sequence[ControlFigure]) -> str:
    scores = np.concatenate([one.success_prob[one.has_target] for one in found.predictions])
    if np.ptp(scores) < _SAME:
        return CONSTANT
    still_called = any(not control.passed for control in controls if control.name == "frozen frame")
    rises_alone = still_called and figures["value_order_still"].low > MAX_STILL_ORDER
    same_time, frames = figures["same_time_roc_auc"], figures["frame_roc_auc"]
    only_time = same_time.high <= 0.5 + _SAME and frames.low > 0.5
    return CLOCK if rises_alone or only_time else ""


def _problems(shortcut: str, figures: Mapping[str, RateCI], controls: Sequence[ControlFigure]) -> list[str]:
    names = {
        CLOCK: "it is clock-like (its values rise with time, whatever happens)",
        CONSTANT: "it is constant (every frame gets nearly the same probability)",
    }
    problems = [names[shortcut]] if shortcut else []
    for name in ("same_time_roc_auc", "frame_roc_auc"):
        if not shortcut and figures[name].low <= 0.5:
            what, low, high = FIGURES[name], figures[name].low, figures[name].high
            problems.append(f"it is no better than chance ({what}: {low:.2f} to {high:.2f})")
            break
    return problems + [
        f"{one.name}: {one.fpr.rate().value:.0%} of {one.frames:,} frames predicted a success, at most "
        f"{one.max_fpr:.0%} may be"
        for one in controls
        if not one.passed
    ]


def _unscored(found: JudgeEvaluation) -> list[str]:
    if not found.failed:
        return []
    why = next(iter(found.failed.values()))
    return [f"it could not score {len(found.failed)} of {len(found.failed) + len(found.labels)} episodes: {why}"]


def _traces(found: JudgeEvaluation, scored: Sequence[ScoredControl]) -> list[Trace]:
    """The first frame of a success standing still, a failure, a success."""
    still = [one.labels.frame_probs for one in scored if one.name == "frozen frame"][:1]
    traces = [Trace("standing still", prob, np.zeros(len(prob), np.float32)) for prob in still]
    for name, succeeds in (("failure", False), ("success", True)):
        for one in found.predictions:
            if (one.first_success is not None) == succeeds and one.has_target.any():
                traces.append(Trace(name, one.success_prob, one.target))
                break
    return traces
