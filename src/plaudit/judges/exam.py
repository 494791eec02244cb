"""The exam of a judge: the evaluation of `plaudit judge eval` as one fixed suite, on episodes that it has not seen.

    certificate, evaluation = examine(store, config, judge, sources, ids, name="my judge")
    ranked = sorted(certificates, key=rank)

Every figure has an interval over episodes, and there are more controls. Two figures detect a clock, which looks good in
the others if all episodes take equally long: the ROC AUC of frames with the same index, which a clock cannot tell
apart, and the order of values on an episode that stands still.

An interrupted exam resumes from the scores that a `KeepingJudge` keeps in a file.
"""

import hashlib
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from plaudit.data.disk import Folder, write_atomic
from plaudit.data.episode_keys import episode_keys
from plaudit.data.store import Store
from plaudit.errors import JudgeError, PlauditError
from plaudit.files import MAX_LINES_BYTES
from plaudit.judges import stats
from plaudit.judges.calibration import MIN_EPISODES, count_classes
from plaudit.judges.certificate import AGAIN, CLOCK, CONSTANT, Certificate, ExamData, find_problems
from plaudit.judges.config import JudgeConfig
from plaudit.judges.controls import exam_makers
from plaudit.judges.evaluation import JudgeEvaluation, control_task, evaluate_unseen, unseen_reference
from plaudit.judges.metrics import (
    CALIBRATION_BINS,
    EpisodePrediction,
    false_positive_rate,
    onset_intervals,
    value_order,
)
from plaudit.judges.stats import Interval
from plaudit.protocols import Judge
from plaudit.rule import DecisionRule
from plaudit.types import AnyArray, Episode, FloatArray, Labels, ProgressFn, Scores

BATCH = 2  # episodes that are scored before they are kept and counted on the screen
MAX_STILL_ORDER = 0.2  # of the values on an episode that stands still
RECALL = 0.95  # at which `fpr_at_95_recall` is measured
_SAME = 0.01  # range of probabilities that are as good as equal


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
    progress: Callable[[str], ProgressFn] = lambda _: iter,
) -> tuple[Certificate, JudgeEvaluation]:
    """The certificate of a judge, and the evaluation that it is made of.

    sources, ids: whose reference labels, and of which episodes; those that the judge has seen are left out
    other_task: a store of episodes in which this task is never done
    wrong_task: for a judge that uses the task text, see `control_task`
    progress: description -> progress bar over items
    """
    reference = unseen_reference(store, config, judge, sources, ids, include=None)
    check_both_classes(store, reference.targets)
    evaluation = evaluate_unseen(
        store,
        judge,
        reference,
        sources,
        ids,
        controls=partial(exam_makers, other_task=other_task),
        wrong_task=control_task(config.uses_task, wrong_task),
        batch_size=BATCH,
        progress=progress,
    )
    targets = {i: reference.targets[i] for i in evaluation.labels}
    check_both_classes(store, targets, len(reference.targets) - len(targets))
    figures = exam_figures(evaluation, judge.rule)
    shortcut = _shortcut(evaluation, figures)
    num_episodes = evaluation.metrics.episodes
    data = ExamData(
        store=str(store.folder),
        fingerprint=data_fingerprint(store, targets),
        reference=tuple(sources),
        episodes=num_episodes,
        successes=sum(one.first_success is not None for one in evaluation.predictions),
        frames=evaluation.metrics.frames,
        num_left_out=reference.num_left_out + len(reference.targets) - num_episodes,
    )
    problems = find_problems(data, figures, evaluation.controls, shortcut)
    if failed := evaluation.failed:
        total, why = len(failed) + len(evaluation.labels), next(iter(failed.values()))
        problems.append(f"it could not score {len(failed)} of {total} episodes: {why}")
    certificate = Certificate(
        date=time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime()),
        name=name,
        source=judge.id.source,
        fingerprint=judge.id.fingerprint,
        rule="" if judge.id.rule is None else judge.id.rule.model_dump_json(exclude_none=True),
        rule_text=judge.rule.describe(),
        data=data,
        figures=figures,
        controls=tuple(evaluation.controls),
        shortcut=shortcut,
        problems=tuple(problems),
        notes=tuple(evaluation.notes),
    )
    return certificate, evaluation


def rank(certificate: Certificate) -> tuple[bool, float, float]:
    """Sort key of certificates, the best judge first: passed, then frames of the same index, then all frames."""
    same_time, frames = (certificate.figures[name].value for name in ("same_time_roc_auc", "frame_roc_auc"))
    return not certificate.passed, -(frames if math.isnan(same_time) else same_time), -frames


def check_data(path: Path, certificate: Certificate, store: Store, targets: Mapping[int, FloatArray]) -> None:
    """Refuse a certificate that was not made on these episodes with these reference labels."""
    now = data_fingerprint(store, targets)
    if now != certificate.data.fingerprint:
        raise JudgeError(
            f"{path} was made on other data: {certificate.data.episodes} episodes of {certificate.data.store} with "
            f"fingerprint {certificate.data.fingerprint}, and {store.folder} has {now} now; {AGAIN}"
        )


def check_both_classes(store: Store, targets: Mapping[int, FloatArray], num_unscored: int = 0) -> None:
    """Refuse data with too few episodes of either class. num_unscored: episodes that the judge could not score"""
    successes, failures = count_classes(targets.values())
    if min(successes, failures) < MIN_EPISODES:
        raise JudgeError(
            f"an exam needs at least {MIN_EPISODES} episodes that show success and {MIN_EPISODES} that show failure. "
            f"Of the {len(targets)} in {store.folder} that this judge has not seen {successes} show success and "
            f"{failures} failure{f' ({num_unscored} others could not be scored)' * bool(num_unscored)}; label more"
        )


def data_fingerprint(store: Store, targets: Mapping[int, FloatArray]) -> str:
    """Fingerprint of the content of episodes and of their reference labels, wherever they are stored."""
    keys = episode_keys(store, list(targets))
    parts = sorted(b"".join(sorted(keys[i])) + target.astype("<f4").tobytes() for i, target in targets.items())
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


# Figures


def exam_figures(evaluation: JudgeEvaluation, rule: DecisionRule) -> dict[str, Interval]:
    """All `FIGURES` of an exam; NaN if one could not be measured."""
    predictions = [one for one in evaluation.predictions if one.has_target.any()]
    labels = [evaluation.labels[one.episode] for one in predictions]
    probs, targets = [p.success_prob for p in predictions], [p.target for p in predictions]
    outcome = evaluation.label_metrics
    success, failure = ([prob[target == kind] for prob, target in zip(probs, targets)] for kind in (1, 0))
    scores = [np.array([rule.episode_score(p.success_prob[p.has_target])]) for p in predictions]
    succeeds = [p.first_success is not None for p in predictions]
    episode_pairs = (
        [score if yes == kind else score[:0] for score, yes in zip(scores, succeeds)] for kind in (True, False)
    )

    # Frames by the labels, which the rule in use has decided.
    called = [one.success & p.has_target for p, one in zip(predictions, labels)]
    shown = [target == 1 for target in targets]

    def frame_share(wrong: Sequence[AnyArray], total: Sequence[AnyArray]) -> Interval:
        """Fraction of frames that are correct."""
        count, frames = (np.array([mask.sum() for mask in masks], float) for masks in (wrong, total))
        return stats.episode_rate(count, frames).complement

    def order(some: Sequence[Labels]) -> Interval:
        """Value order of a judge's progress, or else of its P(success)."""
        progress = [None if one.scores is None else one.scores.progress for one in some]
        values = (one.frame_probs if own is None else own for one, own in zip(some, progress))
        return stats.mean_correlation([value_order(one) for one in values])

    def of_control(name: str) -> list[Labels]:
        return [one.labels for one in evaluation.scored_controls if one.name == name]

    onset_median, onset_p90 = onset_intervals(outcome)
    not_begun = sum(bool(one.target[one.has_target][0] == 0) for one in predictions)
    return {
        "same_time_roc_auc": stats.auc(*stats.count_same_time_pairs(probs, targets)),
        "frame_roc_auc": stats.auc(*stats.count_pairs(success, failure)),
        "episode_roc_auc": stats.auc(*stats.count_pairs(*episode_pairs)),
        "precision": stats.wilson(outcome.tp, outcome.tp + outcome.fp),
        "recall": stats.wilson(outcome.tp, outcome.tp + outcome.fn),
        "frame_precision": frame_share([c & ~s for c, s in zip(called, shown)], called),
        "frame_recall": frame_share([s & ~c for c, s in zip(called, shown)], shown),
        "fpr": evaluation.metrics.fpr_interval,
        "fpr_at_95_recall": _fpr_at_recall(predictions),
        "first_frame_fpr": stats.wilson(evaluation.metrics.first_frame_fp, not_begun),
        "onset_median": onset_median,
        "onset_p90": onset_p90,
        "value_order": order([one for one, yes in zip(labels, succeeds) if yes]),
        "value_order_still": order(of_control("frozen frame")),
        "value_order_reversed": order(
            [one.labels for one in evaluation.scored_controls if one.name == "time reversed"]
        ),
        "ece": _calibration_error(predictions),
    }


def _fpr_at_recall(predictions: Sequence[EpisodePrediction]) -> Interval:
    """The threshold is chosen anew in every draw of the bootstrap; the upper end is at least that of a fixed one."""
    scores, owners = [], []
    for kind in (1, 0):
        values = np.concatenate([p.success_prob[p.target == kind] for p in predictions])
        owner = np.repeat(np.arange(len(predictions)), [int((p.target == kind).sum()) for p in predictions])
        order = np.argsort(values, kind="stable")
        scores.append(values[order])
        owners.append(owner[order])

    def threshold_of(weights: AnyArray) -> float:
        success = np.cumsum(weights[owners[0]])
        place = np.searchsorted(success, (1 - RECALL) * success[-1], "right")
        return float(scores[0][place]) if success[-1] else math.nan

    def rate_of(weights: AnyArray) -> float:
        failure = np.cumsum(weights[owners[1]])
        below = np.searchsorted(scores[1], threshold_of(weights), "left")
        return float(1 - (failure[below - 1] if below else 0) / failure[-1]) if failure[-1] else math.nan

    rate = stats.bootstrap(lambda draws: np.array([rate_of(weights) for weights in draws]), len(predictions))
    fixed = false_positive_rate(predictions, threshold_of(np.ones(len(predictions))))
    return Interval(rate.value, rate.low, max(rate.high, fixed.high))


def _calibration_error(predictions: Sequence[EpisodePrediction]) -> Interval:
    """The same bins as `calibration_curve`."""
    bins = CALIBRATION_BINS
    errors, frames = np.zeros((2, len(predictions), bins))  # errors have their sign
    for row, one in enumerate(predictions):
        prob, target = one.success_prob[one.has_target].astype(float), one.target[one.has_target]
        place = np.minimum((prob * bins).astype(int), bins - 1)
        errors[row], frames[row] = np.bincount(place, prob - target, bins), np.bincount(place, minlength=bins)
    return stats.bootstrap(
        lambda weights: np.abs(weights @ errors).sum(axis=1) / (weights @ frames).sum(axis=1), len(predictions)
    )


def _shortcut(evaluation: JudgeEvaluation, figures: Mapping[str, Interval]) -> Literal["", "clock-like", "constant"]:
    """What the judge uses instead of what it sees; "" if nothing indicates it."""
    scores = np.concatenate([one.success_prob[one.has_target] for one in evaluation.predictions])
    if np.ptp(scores) < _SAME:
        return CONSTANT
    still_called = any(not control.passed for control in evaluation.controls if control.name == "frozen frame")
    rises_alone = still_called and figures["value_order_still"].low > MAX_STILL_ORDER
    only_time = figures["same_time_roc_auc"].high <= 0.5 + _SAME and figures["frame_roc_auc"].low > 0.5
    return CLOCK if rises_alone or only_time else ""


# Resuming


class KeepingJudge:
    """A `Judge` whose scores are kept in a file, so that it scores each episode once over several runs.

    A score belongs to a judge and to the content of an episode. Errors and missing answers are not kept: the next run
    tries these episodes again. It also measures the time that the judge takes.
    """

    def __init__(self, judge: Judge, path: Path):
        """path: the file, created if it does not exist; one of another judge is replaced"""
        self.judge, self.id, self.rule, self._path = judge, judge.id, judge.rule, path
        self.trained_on: str | None = getattr(judge, "trained_on", "")
        self.seconds, self.episodes, self.frames = 0.0, 0, 0  # of what was scored in this run
        owner = json.dumps(str(judge.id))
        self._scores = _read_scores(path, owner)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, f"{owner}\n{_to_lines(self._scores)}".encode())

    def score(self, episodes: Sequence[Episode]) -> Sequence[Scores | PlauditError | None]:
        """The judge's answers, or those of an earlier run."""
        keys = [_content_key(episode) for episode in episodes]
        new = {key: episode for key, episode in zip(keys, episodes, strict=True) if key not in self._scores}
        begun = time.perf_counter()
        answers = dict(zip(new, self.judge.score(list(new.values())), strict=True)) if new else {}
        self.seconds += time.perf_counter() - begun
        self.episodes += len(new)
        self.frames += sum(episode.steps + 1 for episode in new.values())
        scored = {key: answer for key, answer in answers.items() if isinstance(answer, Scores)}
        Folder(self._path.parent).append(self._path.name, _to_lines(scored).encode())
        self._scores |= scored
        return [self._scores.get(key, answers.get(key)) for key in keys]


def _content_key(episode: Episode) -> str:
    """A digest of everything that a judge may look at."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(repr((episode.task, episode.fps, episode.robot, episode.padded, episode.terminated)).encode())
    arrays = {f"camera {name}": frames for name, frames in episode.frames.items()}
    arrays |= {f"privileged {name}": values for name, values in episode.privileged.items()}
    arrays |= {"state": episode.state, "actions": episode.actions, "control mode": episode.control_mode}
    for name, values in sorted(arrays.items()):
        digest.update(f"{name} {values.dtype} {values.shape}".encode())
        digest.update(np.ascontiguousarray(values).data)
    return digest.hexdigest()


def _to_lines(scores: Mapping[str, Scores]) -> str:
    lines = []
    for key, one in scores.items():
        progress = None if one.progress is None else one.progress.tolist()
        tree = {"success_prob": one.success_prob.tolist(), "progress": progress, "note": one.note, "ood": one.ood}
        lines.append(json.dumps({"episode": key, **tree}) + "\n")
    return "".join(lines)


def _read_scores(path: Path, owner: str) -> dict[str, Scores]:
    """What an earlier run of this judge kept, up to a line that a kill cut off."""
    scores: dict[str, Scores] = {}
    try:
        first, *lines = Folder(path.parent).read(path.name, MAX_LINES_BYTES).decode().splitlines() or [""]
        for line in lines if first == owner else []:
            tree = json.loads(line)
            prob, progress = np.array(tree["success_prob"], np.float32), tree["progress"]
            progress = None if progress is None else np.array(progress, np.float32)
            scores[tree["episode"]] = Scores(prob, progress, tree["note"], tree["ood"])
    except (OSError, ValueError, KeyError, TypeError, PlauditError):
        pass
    return scores
