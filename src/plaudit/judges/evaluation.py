"""How good is any judge? What it says of labelled episodes beside what is true, and of controls that it must not call.

    truths = load_reference_labels(store, resolve_reference(None, judge.source))       # labels of others, never its own
    found = evaluate(store, judge, truths)
    found.scores, found.on_labels, found.controls, found.failed

A judge is its labels: all that is looked at stands on them, so a person, a simulator and what the ledger has from last
month are measured as a model is. Where labels have a probability, one threshold and one model, frames are scored by
it; otherwise by yes and no.

Three ways lead from frames to an episode's first success, and each is measured: what stands on the labels; k of n
frames called at the threshold, as a robot would have known it; and one cutoff, decoded from the whole.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from plaudit.data.store import Store
from plaudit.errors import JudgeError
from plaudit.judges.controls import UNRELATED, Control, ControlResult, failed, make_controls, tally
from plaudit.judges.cutoffs import OnsetErrors, onset_errors
from plaudit.judges.labeling import BATCH, batches, label_ids, label_mapping
from plaudit.judges.metrics import CalibrationCurve, JudgeMetrics, calibration_curve, compute_metrics
from plaudit.judges.scored import EpisodePrediction, FramePrediction, largest_errors, side_by_side
from plaudit.protocols import Judge
from plaudit.rule import DecisionRule
from plaudit.types import Episode, FloatArray, JudgeId, Labels, ProgressFn

BY_YES_AND_NO = DecisionRule(decode="per_frame")  # of labels that say only yes and no


@dataclass(frozen=True, eq=False)
class Evaluation:
    """A judge's report card, and what it was made of."""

    scores: JudgeMetrics
    on_labels: OnsetErrors  # what its labels say of each episode
    calibration_curve: CalibrationCurve
    graded: bool  # whether it gives probabilities; if not, it was scored by yes and no
    controls: Sequence[ControlResult]
    scored: Sequence[EpisodePrediction]
    worst: Sequence[FramePrediction]
    failed: Mapping[int, str]  # episodes that it could not judge, and why
    notes: Sequence[str]  # what could not be measured, and why

    @property
    def problems(self) -> list[str]:
        """Controls that it passes as a success."""
        return failed(self.controls)

    def to_json(self) -> dict[str, Any]:
        bins = zip(*(getattr(self.calibration_curve, name).tolist() for name in ("probability", "success", "count")))
        return {
            "scores": self.scores.to_json(),
            "on_labels": _plain(asdict(self.on_labels)),
            "calibration": [_plain({"said": said, "was": was, "frames": n}) for said, was, n in bins],
            "controls": [asdict(control) | {"passed": control.passed} for control in self.controls],
            "problems": self.problems,
            "failed": dict(self.failed),
            "notes": list(self.notes),
        }


def evaluate(
    store: Store,
    judge: Judge,
    truths: Mapping[int, FloatArray],
    *,
    wrong_task: str | None = None,
    with_controls: bool = True,
    batch: int = BATCH,
    progress: ProgressFn = iter,
) -> Evaluation:
    """
    truths: episode -> 1, 0 or NaN for each frame, see `load_reference_labels`
    wrong_task: for a judge that reads the instruction
    """
    verdicts: dict[int, Labels] = {}
    failures: dict[int, str] = {}
    for ids in batches(progress(list(truths)), batch):
        said, not_said = label_ids(store, judge, ids)
        verdicts |= said
        failures |= not_said
    found = compare(store, verdicts, truths, judge.rule, failures)
    if not with_controls:
        return found
    controls, notes = ask_controls(store, judge, truths, found, wrong_task, batch)
    return _with(found, controls, notes)


def compare(
    store: Store,
    verdicts: Mapping[int, Labels],
    truths: Mapping[int, FloatArray],
    rule: DecisionRule,
    failures: Mapping[int, str] | None = None,
    notes: Sequence[str] = (),
) -> Evaluation:
    """Labels that are there beside the truth; nobody is asked, so nobody can be asked about controls."""
    shared = [i for i in verdicts if i in truths]
    if not shared:
        why = next(iter((failures or {}).values()), "it has labelled none of them")
        raise JudgeError(f"the judge has no verdict on any of the {len(truths)} episodes to compare: {why}")
    graded, mixed = _has_probabilities({i: verdicts[i] for i in shared})
    notes = [*notes, *mixed]
    calls = [_scored(i, verdicts[i].targets, truths[i]) for i in shared]
    scored = [_scored(i, verdicts[i].frame_probs, truths[i]) for i in shared] if graded else calls
    by = rule if graded else rule.model_copy(update={"threshold": BY_YES_AND_NO.threshold})
    scores = compute_metrics(scored, by)
    truth, said = (np.concatenate([getattr(s, name) for s in scored]) for name in ("truth", "probability"))
    if scores.success_frames in (0, scores.frames):
        kind = "success" if scores.success_frames else "failure"
        notes.append(f"All frames of the reference are {kind}: what the judge makes of the others was not measured.")
    worst = [_judged_frame(store.episode(s.episode), s, frame) for s, frame in largest_errors(scored)]
    on_labels = onset_errors(calls, BY_YES_AND_NO)
    return Evaluation(
        scores, on_labels, calibration_curve(said, truth), graded, (), scored, worst, dict(failures or {}), notes
    )


def _has_probabilities(verdicts: Mapping[int, Labels]) -> tuple[bool, list[str]]:
    """Whether frames can be scored by probabilities of one judge; if they are there and cannot, why not."""
    judges: set[JudgeId] = {labels.judge for labels in verdicts.values()}
    if any(labels.scores is None for labels in verdicts.values()):
        return False, []
    probs = np.concatenate([labels.frame_probs[labels.labeled] for labels in verdicts.values()])
    if np.isin(probs, (0, 1)).all():
        return False, []
    if len(judges) > 1:
        return False, [
            f"These labels are of {len(judges)} models, thresholds or rules, so they are compared by yes and no and "
            "not by their probabilities."
        ]
    return True, []


def _scored(episode_id: int, said: FloatArray, truth: FloatArray) -> EpisodePrediction:
    """A frame that was not judged counts neither for nor against."""
    return EpisodePrediction(np.nan_to_num(said), np.where(np.isnan(said), np.nan, truth), episode_id)


def ask_controls(
    store: Store,
    judge: Judge,
    truths: Mapping[int, FloatArray],
    found: Evaluation,
    wrong_task: str | None,
    batch: int,
) -> tuple[list[ControlResult], list[str]]:
    """Which controls it calls, at the threshold of its frames; and what could not be asked."""
    if not any((truth == 1).any() for truth in truths.values()):
        return [], ["Controls are made from episodes that succeed, and no reference episode does: none was run."]
    asked = [0]
    reasons: list[str] = []

    def answers() -> Iterator[tuple[Control, FloatArray]]:
        made = make_controls([(store.episode(i), truth) for i, truth in truths.items()], wrong_task=wrong_task)
        for controls in batches(made, batch):
            asked[0] += len(controls)
            verdicts, failures = label_mapping(judge, {n: control.episode for n, control in enumerate(controls)})
            reasons.extend(failures.values())
            for n, said in verdicts.items():
                yield controls[n], said.frame_probs if found.graded else said.targets

    results = tally(answers(), found.scores.threshold)
    lost = f"{len(reasons)} of {asked[0]} controls could not be judged: {reasons[0]}." if reasons else ""
    return results, [lost] if lost else []


def _with(found: Evaluation, controls: Sequence[ControlResult], notes: Sequence[str]) -> Evaluation:
    return Evaluation(**{**vars(found), "controls": controls, "notes": [*found.notes, *notes]})


def control_task(uses_task: bool, asked: str | None) -> str | None:
    """The instruction that a judge is tried with; None for one that reads none."""
    return (asked or UNRELATED) if uses_task else None


def _judged_frame(episode: Episode, scored: EpisodePrediction, frame: int) -> FramePrediction:
    truth, said = float(scored.truth[frame]), float(scored.probability[frame])
    images = [episode.frames[camera][frame] for camera in sorted(episode.frames)]
    image = side_by_side(images or [np.full((8, 8, 3), 255, np.uint8)])
    return FramePrediction(scored.episode, frame, truth, said, image)


def _plain(tree: Mapping[str, Any]) -> dict[str, Any]:
    """NaN becomes None: JSON has no NaN."""
    return {name: None if isinstance(value, float) and np.isnan(value) else value for name, value in tree.items()}
