"""How good is any judge? Its labels and scores of episodes next to reference labels, and of negative controls.

    sources = resolve_reference(None, judge.id.source)                        # of others, never its own
    reference = unseen_reference(store, config, judge, sources, store.ids)    # episodes that it did not learn from
    evaluation = evaluate_unseen(store, judge, reference, sources, store.ids)
    evaluation.metrics, evaluation.label_metrics, evaluation.controls, evaluation.failed

A judge is measured by its labels, so a person, a simulator and last month's labels in the ledger are measured like a
model. If the labels have probabilities of one judge, frames are scored by these; otherwise by yes and no. An episode's
first success is measured in three ways: by the labels; by k of n frames at the threshold, as decided live; and by one
cutoff, decoded from the whole episode.

A model looks nearly perfect on its training episodes. So a reward model or an adapter has the keys of its training and
validation episodes (data/episode_keys.py), and a calibration's record those that it was fitted on. A judge of your own
declares them in an attribute `trained_on`: a text of such keys, "" for none (the default), None if they are not known.
`plaudit judge exam` (exam.py) is this evaluation with more controls, figures and a certificate; both write the same
report.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from plaudit.data.episode_keys import Keys, episode_keys, unpack_keys
from plaudit.data.store import Store
from plaudit.errors import DataError, JudgeError
from plaudit.judges.certificate import ControlResult, failed_controls
from plaudit.judges.config import REFERENCE_SOURCES, JudgeConfig
from plaudit.judges.controls import (
    UNRELATED_TASK,
    ControlMaker,
    Labeled,
    ScoredControl,
    control_makers,
    control_results,
    score_controls,
)
from plaudit.judges.labeling import BATCH, batches, label_episodes, label_mapping, read_episodes
from plaudit.judges.metrics import (
    CalibrationCurve,
    EpisodeMetrics,
    EpisodePrediction,
    FramePrediction,
    JudgeMetrics,
    causal_metrics,
    compute_metrics,
    hstack_images,
    largest_errors,
    nan_to_none,
)
from plaudit.judges.simulator import SOURCE as SIMULATOR
from plaudit.judges.simulator import SimulatorJudge
from plaudit.protocols import Judge
from plaudit.rule import DecisionRule, release
from plaudit.types import Episode, FloatArray, Labels, ProgressFn

BINARY_RULE = DecisionRule(decode="per_frame")  # of labels that are only yes and no
INCLUDE = "--include-training"  # the option that also measures on episodes the judge has seen

# The reference


def resolve_reference(requested: Sequence[str] | None, judge: str) -> tuple[str, ...]:
    """Whose labels count: those asked for, or all that a model may learn from; never the judge's own."""
    if requested is not None and judge in requested:
        raise JudgeError(f"the judge is '{judge}' itself; compare it with labels of another source (--reference)")
    return tuple(source for source in requested or REFERENCE_SOURCES if source != judge)


def load_reference_labels(
    store: Store, sources: Collection[str], ids: Sequence[int] | None = None
) -> dict[int, FloatArray]:
    """1, 0 or NaN for each frame, [T+1], of each episode with a label of these sources.

    An episode without one has the simulator's stored flag, if the simulator is one of the sources.
    """
    targets: dict[int, FloatArray] = {}
    for episode_id in store.ids if ids is None else ids:
        episode = store.episode(episode_id)
        labels = store.ledger.labels(episode_id, sources)
        if labels is None and SIMULATOR in sources:
            (answer,) = label_episodes(SimulatorJudge(), [episode])
            labels = answer if isinstance(answer, Labels) else None
        if labels is None:
            continue
        check_covers(store, episode_id, episode, labels)
        target = np.full(episode.steps + 1, np.nan, np.float32)
        target[episode.observed] = labels.targets[episode.observed]
        targets |= {} if np.isnan(target).all() else {episode_id: target}
    if not targets:
        raise JudgeError(
            f"{store.folder} has no labels of {', '.join(sources)} to compare with; label some episodes first (plaudit "
            f"label {store.folder} --judge human, or plaudit data label), or name others with --reference"
        )
    return targets


def check_covers(store: Store, episode_id: int, episode: Episode, labels: Labels) -> None:
    """Refuse labels of another length than their episode."""
    if labels.steps != episode.steps:
        raise DataError(
            f"{store.folder}: the labels of episode {episode_id} cover {labels.steps} steps, it has "
            f"{episode.steps}; label it again"
        )


def describe_coverage(
    store: Store, sources: Collection[str], ids: Collection[int], episodes: int, left_out: int = 0
) -> str:
    """Which new episodes the intervals hold for.

    ids, episodes: the episodes to choose from, and how many of them were compared
    left_out: how many were left out because the judge learned from them
    """
    which = "all" if set(ids) >= set(store.ids) else "those chosen with --episodes"
    learned = f", without {left_out} that the judge learned from" if left_out else ""
    return (
        f"The 95% intervals hold for new episodes drawn like these {episodes}: {which} of {store.folder} that have "
        f"labels of {', '.join(sources)}{learned}. They do not cover other tasks, scenes or policies."
    )


# Episodes that the judge has not seen


@dataclass(frozen=True)
class ReferenceSet:
    """Reference labels of the episodes to measure on."""

    targets: Mapping[int, FloatArray]  # episode -> 1, 0 or NaN for each frame
    num_seen: int  # of these, how many the judge has seen
    num_left_out: int  # how many others were left out because it has
    notes: Sequence[str]


def seen_keys(config: JudgeConfig, judge: Judge, *, calibrated: bool = True) -> tuple[Keys, list[str]]:
    """Keys of the episodes that a judge was trained or calibrated on; and notes on what is not known.

    calibrated: whether the judge's own calibration is in use; one that is fitted anew does not count
    """
    lists: dict[str, str | None] = {"model": getattr(judge, "trained_on", "")}
    if calibrated and (record := config.resolved().calibration_record) is not None:
        lists["calibration"] = record.fitted_on
    keys: set[bytes] = set()
    for what, text in lists.items():
        try:
            keys |= unpack_keys(text or "")
        except ValueError as error:
            raise JudgeError(
                f"the list of episodes that were used for this judge's {what} cannot be read ({error}); train or "
                "calibrate it again"
            ) from error
    return frozenset(keys), [
        f"This judge's {what} does not say which episodes it was made with (an earlier version or another trainer made "
        "it). The metrics hold only if it has seen none of these."
        for what, text in lists.items()
        if text is None
    ]


def unseen_reference(
    store: Store,
    config: JudgeConfig,
    judge: Judge,
    sources: Sequence[str],
    ids: Sequence[int],
    *,
    include: bool | None = False,
    calibrated: bool = True,
) -> ReferenceSet:
    """The reference labels of episodes that the judge has not seen; an error if there are none.

    include: also those that it has seen; None: there is no such option
    calibrated: see `seen_keys`
    """
    targets = load_reference_labels(store, sources, ids)
    used, notes = seen_keys(config, judge, calibrated=calibrated)
    keys = episode_keys(store, list(targets)) if used else {}
    seen = {i for i in keys if keys[i] & used}
    what = "episodes that the judge learned from or chose its threshold or calibration by"
    if not seen:
        return ReferenceSet(targets, 0, 0, notes)
    if include:
        note = f"{len(seen)} of these {len(targets)} are {what} ({INCLUDE}): the numbers are better than on new ones."
        return ReferenceSet(targets, len(seen), 0, [note, *notes])
    if len(seen) == len(targets):
        raise JudgeError(
            f"all {len(targets)} episodes of {store.folder} with reference labels are {what}: nothing unseen is left; "
            f"use other episodes{'' if include is None else f', or {INCLUDE}'}"
        )
    option = "" if include is None else f"; {INCLUDE} uses them too"
    note = f"{len(seen)} of {len(targets)} were left out, {what}{option}."
    unseen = {i: target for i, target in targets.items() if i not in seen}
    return ReferenceSet(unseen, 0, len(seen), [note, *notes])


# The judge next to the reference


@dataclass(frozen=True, eq=False)
class JudgeEvaluation:
    """A judge's metrics, and what they were computed from."""

    metrics: JudgeMetrics
    label_metrics: EpisodeMetrics  # of its labels
    has_probabilities: bool  # if not, it was scored by yes and no
    labels: Mapping[int, Labels]  # of the episodes that were compared
    predictions: Sequence[EpisodePrediction]
    errors: Sequence[FramePrediction]  # the largest
    failed: Mapping[int, str]  # episodes that it could not label, and why
    notes: Sequence[str]  # what could not be measured, and why
    controls: Sequence[ControlResult] = ()
    scored_controls: Sequence[ScoredControl] = ()  # what the controls were computed from

    @property
    def failed_controls(self) -> list[str]:
        """A message for each."""
        return failed_controls(self.controls)

    def to_json(self) -> dict[str, Any]:
        """The evaluation as JSON, without labels, predictions and images."""
        columns = ("success_prob", "success_rate", "count")
        bins = zip(*(getattr(CalibrationCurve.of(self.predictions), name).tolist() for name in columns))
        return {
            "scores": self.metrics.to_json(),
            "label_metrics": nan_to_none(asdict(self.label_metrics)),
            "calibration": [nan_to_none(dict(zip(columns, values))) for values in bins],
            "controls": [one.model_dump(mode="json") | {"passed": one.passed} for one in self.controls],
            "failed_controls": self.failed_controls,
            "failed": dict(self.failed),
            "notes": list(self.notes),
        }


def control_task(uses_task: bool, requested: str | None) -> str | None:
    """The wrong task that a judge is tried with; None for one that uses no task text."""
    return (requested or UNRELATED_TASK) if uses_task else None


def label_store(
    store: Store, judge: Judge, ids: Sequence[int], batch_size: int = BATCH, progress: ProgressFn = iter
) -> tuple[dict[int, Labels], dict[int, str]]:
    """Labels of a store's episodes, and why others have none; nothing is written."""
    labels: dict[int, Labels] = {}
    failed: dict[int, str] = {}
    for batch in batches(progress(list(ids)), batch_size):
        labeled, errors = label_mapping(judge, read_episodes(store, batch))
        labels |= labeled
        failed |= {i: str(error) for i, error in errors.items()}
    return labels, failed


def evaluate(
    store: Store,
    judge: Judge,
    targets: Mapping[int, FloatArray],
    *,
    controls: Callable[[Labeled, str | None], list[ControlMaker]] | None = control_makers,
    wrong_task: str | None = None,
    batch_size: int = BATCH,
    progress: Callable[[str], ProgressFn] = lambda _: iter,
) -> JudgeEvaluation:
    """Label the episodes that have a target, and the controls made of those that succeed.

    targets: episode -> 1, 0 or NaN for each frame, see `load_reference_labels`
    controls: which ones to make of these episodes, see controls.py; None: none
    wrong_task: for a judge that uses the task text, see `control_task`
    progress: description -> progress bar over items
    """
    watch = progress("scoring episodes" if controls is None else "scoring episodes, part 1 of 2")
    labels, failed = label_store(store, judge, list(targets), batch_size, watch)
    evaluation = compare_labels(store, labels, targets, judge.rule, failed)
    if controls is None:
        return evaluation
    episodes = [(store.episode(i), targets[i]) for i in evaluation.labels]
    if not any((target == 1).any() for _, target in episodes):
        note = "Controls are made from episodes that succeed, and no reference episode does: none was run."
        return replace(evaluation, notes=[*evaluation.notes, note])
    watch = progress("scoring controls, part 2 of 2")
    scored, failures = score_controls(judge, controls(episodes, wrong_task), batch_size=batch_size, progress=watch)
    results = control_results(scored, evaluation.metrics.threshold, evaluation.metrics.fpr)
    note = [f"{len(failures)} controls could not be scored: {failures[0]}."] if failures else []
    return replace(evaluation, controls=results, scored_controls=scored, notes=[*evaluation.notes, *note])


def evaluate_unseen(
    store: Store, judge: Judge, reference: ReferenceSet, sources: Sequence[str], ids: Sequence[int], **options: Any
) -> JudgeEvaluation:
    """`evaluate` on the episodes of `unseen_reference`, with notes on which new episodes the metrics hold for.

    sources, ids: as for `unseen_reference`
    options: of `evaluate`
    """
    evaluation = evaluate(store, judge, reference.targets, **options)
    coverage = describe_coverage(store, sources, ids, evaluation.metrics.episodes, reference.num_left_out)
    return replace(evaluation, notes=[*reference.notes, *evaluation.notes, coverage])


def compare_labels(
    store: Store,
    labels: Mapping[int, Labels],
    targets: Mapping[int, FloatArray],
    rule: DecisionRule,
    failed: Mapping[int, str] | None = None,
    notes: Sequence[str] = (),
) -> JudgeEvaluation:
    """Labels next to their targets; without a judge there are no controls."""
    failed, notes = failed or {}, list(notes)
    labels = {i: release(one) for i, one in labels.items() if i in targets}
    if not labels:
        why = next(iter(failed.values()), "it has labeled none of them")
        raise JudgeError(f"the judge has no label on any of the {len(targets)} episodes to compare: {why}")
    if not any(one.labeled.any() for one in labels.values()):
        why = next((f" ({one.note})" for one in labels.values() if one.note), "")
        raise JudgeError(f"the judge decides none of the {len(labels)} episodes, so there is nothing to compare{why}")

    def predictions_of(values: Mapping[int, FloatArray]) -> list[EpisodePrediction]:
        """A frame without a label counts neither for nor against."""
        return [
            EpisodePrediction(np.nan_to_num(prob), np.where(np.isnan(prob), np.nan, targets[i]), i)
            for i, prob in values.items()
        ]

    # Frames are scored by probabilities if all labels have some and they are of one judge.
    has_probabilities = all(one.scores is not None for one in labels.values())
    if has_probabilities:
        probs = np.concatenate([one.frame_probs[one.labeled] for one in labels.values()])
        has_probabilities = not np.isin(probs, (0, 1)).all()
    num_judges = len({one.judge for one in labels.values()})
    if has_probabilities and num_judges > 1:
        has_probabilities = False
        notes.append(
            f"These labels are of {num_judges} models, thresholds or rules, so they are compared by yes and no and "
            "not by their probabilities."
        )
    binary = predictions_of({i: one.targets for i, one in labels.items()})
    predictions = predictions_of({i: one.frame_probs for i, one in labels.items()}) if has_probabilities else binary
    threshold = rule.threshold if has_probabilities else BINARY_RULE.threshold
    metrics = compute_metrics(predictions, rule.model_copy(update={"threshold": threshold}))
    if flagged := {i for i, one in labels.items() if one.ood}:
        wrong = {i for i, one in labels.items() if one.success_once != bool((targets[i] == 1).any())}
        notes.append(
            f"The judge flags {len(flagged)} of {len(labels)} episodes as out of distribution; {len(flagged & wrong)} "
            f"of its {len(wrong)} wrong episodes are among them (ood=abstain leaves flagged episodes unlabeled)."
        )
    if metrics.success_frames in (0, metrics.frames):
        kind = "success" if metrics.success_frames else "failure"
        notes.append(f"All frames of the reference are {kind}: how the judge does on the others was not measured.")
    return JudgeEvaluation(
        metrics,
        causal_metrics(binary, BINARY_RULE),
        has_probabilities,
        labels,
        predictions,
        [frame_prediction(store.episode(p.episode), p, frame) for p, frame in largest_errors(predictions)],
        dict(failed),
        notes,
    )


def frame_prediction(
    episode: Episode, prediction: EpisodePrediction, place: int, frame: int | None = None
) -> FramePrediction:
    """One frame of a prediction with the images of all cameras.

    place, frame: its number among the predictions and in the episode; None: the same
    """
    frame = place if frame is None else frame
    images = [episode.frames[camera][frame] for camera in sorted(episode.frames)]
    image = hstack_images(images or [np.full((8, 8, 3), 255, np.uint8)])
    target, prob = float(prediction.target[place]), float(prediction.success_prob[place])
    return FramePrediction(prediction.episode, frame, target, prob, image)


def score_episodes(
    store: Store, judge: Judge, targets: Mapping[int, FloatArray], progress: ProgressFn = iter
) -> tuple[list[EpisodePrediction], dict[int, str]]:
    """The judge's scores of all frames that it scored; and why it could not score other episodes.

    Frames without a target stay, because a rule looks at frames that follow each other.
    """
    labels, failed = label_store(store, judge, list(targets), progress=progress)
    failed = {i: "there is no answer yet" for i in targets if i not in labels} | failed
    probs = {i: release(one).frame_probs for i, one in labels.items()}
    scored = {i: ~np.isnan(prob) for i, prob in probs.items()}
    return [EpisodePrediction(prob[scored[i]], targets[i][scored[i]], i) for i, prob in probs.items()], failed
