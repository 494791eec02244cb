"""The report of a judge: one HTML page that shows how reliable it is and where it is wrong; terminal tables too.

`plaudit train-reward` writes it for the model that it trained (`write_judge_report`), `plaudit judge eval` for any
judge that is compared with reference labels (`save_evaluation`):

    runs/judge_eval/vlm_0/
      report.html       the page
      scores.json       the same numbers for a program
      episodes.jsonl    one line an episode: P(success) and the reference label of each frame
"""

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import rich.table
import rich.text

from plaudit.data.store import Store
from plaudit.data.transfer import new_folder
from plaudit.judges.calibration import CalibrationRecord, Fit
from plaudit.judges.controls import ControlResult
from plaudit.judges.evaluation import JudgeEvaluation
from plaudit.judges.forecast import FIGURES, Forecast
from plaudit.judges.labeling import group_by_message
from plaudit.judges.metrics import (
    CalibrationCurve,
    EpisodeMetrics,
    EpisodePrediction,
    FramePrediction,
    Interval,
    JudgeMetrics,
    hstack_images,
    onset_intervals,
)
from plaudit.judges.promise import Promise, PromiseStep
from plaudit.judges.stats import wilson
from plaudit.report.page import (
    Block,
    Cell,
    Chart,
    ImageBlock,
    Row,
    Section,
    Span,
    Table,
    Text,
    count_correct,
    count_mistakes,
    key_value_table,
    thumbnail,
    write_page,
)
from plaudit.report.plots import FAILURE, SUCCESS, calibration_chart, histogram, line_chart, score_timeline
from plaudit.report.tables import key_value_table as terminal_table
from plaudit.report.text import (
    format_count,
    format_frames,
    format_frames_interval,
    format_interval,
    format_number,
    format_percent,
    format_target,
    sentence_case,
)

_MAX_TIMELINES = 12  # episodes with the largest errors
_GALLERY = 8  # frames of a kind
_ABOUT_LOSSES = (
    "Training frames are augmented, half of them show success and their labels are smoothed; held-out frames are not. "
    "Compare the trend of the two curves, not their height."
)


Decodes = Mapping[str, EpisodeMetrics]  # decision rule -> what it gives; the first counts


def live_and_offline(metrics: JudgeMetrics) -> Decodes:
    """By the frames up to each moment, as on a robot; and by the whole episode at once."""
    k, n = metrics.k, metrics.n
    name = f"causal ({k} of {n} frames)" if n > 1 else "causal (single frame)"
    return {name: metrics.causal, "offline (cutoff)": metrics.offline}


def decode_results(evaluation: JudgeEvaluation) -> Decodes:
    """The judge's own rule first; for a judge with probabilities also the other two."""
    others = live_and_offline(evaluation.metrics) if evaluation.has_probabilities else {}
    return {"judge's rule": evaluation.label_metrics, **others}


def write_judge_report(
    path: Path,
    title: str,
    metrics: JudgeMetrics,
    controls: Sequence[ControlResult],
    predictions: Sequence[EpisodePrediction],
    errors: Sequence[FramePrediction],
    *,
    decodes: Decodes | None = None,
    promise: Promise | None = None,
    forecast: Forecast | None = None,
    history: Sequence[Mapping[str, float]] = (),
    unlabeled: Mapping[int, str] | None = None,
    notes: Sequence[str] = (),
    metadata: Mapping[str, str] | None = None,
    judge: str = "",
    store: str = "STORE",
) -> None:
    """Write the page, which opens with a verdict. Sections without content are left out.

    predictions: of held-out episodes; those with the largest errors are drawn as timelines
    errors: frames with the largest errors
    decodes: decision rules, of which the first counts; causal and offline when not given
    promise, forecast: about new episodes
    history: one line per epoch of training: `epoch`, and values by name; names with one prefix share a chart
    unlabeled: episodes that the judge could not label, and why
    judge, store: for the next command; see `judge_verdict`
    """
    decodes = decodes or live_and_offline(metrics)
    decode = next(iter(decodes.values()))
    images: Block = (
        Row([frame_thumbnail(frame) for frame in errors])
        if errors
        else Text("No frame is wrong by 5% or more.", "muted")
    )
    blocks: list[Block] = [
        judge_verdict(decode, controls, promise, judge=judge, store=store).table(),
        *(Text(message, "muted") for message in notes),
        *judge_blocks(metrics, controls, predictions, decodes),
        *([forecast_section(forecast)] if forecast else []),
        *([promise_section(promise)] if promise else []),
        Section("Largest errors", [images]),
        *_timelines(predictions, metrics.threshold),
        *([Section("Training", [Row(_history_charts(history)), Text(_ABOUT_LOSSES, "muted")])] if history else []),
        *([Section("Episodes without a label", [_unlabeled_table(unlabeled)])] if unlabeled else []),
        Section("Metadata", [key_value_table(metadata or {})]),
    ]
    write_page(path, title, summary_line(metrics, decode), blocks)


def save_evaluation(
    target: Path, judge: str, evaluation: JudgeEvaluation, metadata: Mapping[str, str], exam_name: str = ""
) -> None:
    """Write the folder of an evaluation; it appears complete or not at all.

    exam_name: the judge as `plaudit judge exam` takes it; empty for stored labels
    """
    with new_folder(target) as folder:
        tree = {"judge": judge, "metadata": dict(metadata), **evaluation.to_json()}
        (folder / "scores.json").write_text(json.dumps(tree, indent=1))
        lines = (json.dumps(prediction.to_json()) + "\n" for prediction in evaluation.predictions)
        (folder / "episodes.jsonl").write_text("".join(lines))
        write_judge_report(
            folder / "report.html",
            f"Judge: {judge}",
            evaluation.metrics,
            evaluation.controls,
            evaluation.predictions,
            evaluation.errors,
            decodes=decode_results(evaluation),
            unlabeled=evaluation.failed,
            notes=evaluation.notes,
            metadata=metadata,
            judge=exam_name,
            store=metadata.get("store", "STORE"),
        )


def judge_blocks(
    metrics: JudgeMetrics,
    controls: Sequence[ControlResult],
    predictions: Sequence[EpisodePrediction],
    decodes: Decodes | None = None,
) -> list[Block]:
    """The confusion matrix, frame metrics, calibration and negative controls of a judge."""
    decodes = decodes or live_and_offline(metrics)
    calibration = CalibrationCurve.of(predictions)
    charts = [_calibration(calibration), _histogram(calibration, metrics.threshold)]
    return [
        *([Text(f"{first_frame_warning(metrics)}.", "warning")] if metrics.first_frame_fp else []),
        Row([Section("Episodes", _episodes(decodes)), Section("Frames", [_frames(metrics)])], "wide"),
        Row([Section("Probabilities", [Row(charts)]), Section("Negative controls", _controls(controls))], "wide"),
    ]


def summary_line(metrics: JudgeMetrics, decode: EpisodeMetrics | None = None) -> str:
    """What the judge was measured on, and its main figures."""
    d = decode or metrics.causal
    figures = []
    if not math.isnan(d.onset_median):
        figures.append(f"median success-onset error {format_frames(d.onset_median)}")
    if not math.isnan(metrics.fpr):
        figures.append(f"false-positive rate {format_percent(metrics.fpr)} (frames)")
    measured = f"Measured on {metrics.episodes:,} held-out episodes, {metrics.frames:,} frames"
    return f"{': '.join([measured, ', '.join(figures)]) if figures else measured}."


def failed_control_warning(judge: str, evaluation: JudgeEvaluation) -> list[str]:
    """One message where the judge predicts success on a negative control."""
    names = ", ".join(control.name for control in evaluation.controls if not control.passed)
    return [f"{judge} failed its checks: it predicts success on the negative control {names}."] if names else []


def first_frame_warning(metrics: JudgeMetrics) -> str:
    """For a judge that predicts success before anything happened."""
    return (
        f"{metrics.first_frame_fp} of {metrics.episodes:,} episodes are predicted a success at their first frame, and "
        "are none. The object may start at its goal. Look at these episodes and train with more like them"
    )


def first_frame_count(metrics: JudgeMetrics) -> str:
    """5 of 63 episodes, 4 of them false positives."""
    wrong = f", {metrics.first_frame_fp} of them false positives" if metrics.first_frame_fp else ""
    return f"{metrics.first_frame_positives} of {metrics.episodes:,} episodes{wrong}"


def frame_gallery(store: Store, predictions: Sequence[EpisodePrediction]) -> list[Block]:
    """Random frames of success and of failure, then the frames with the largest errors, all cameras side by side."""
    rng = np.random.default_rng(0)
    shuffled = [predictions[i] for i in rng.permutation(len(predictions))]
    sections: list[Block] = []
    for target, heading in ((1, "Success frames, at random"), (0, "Failure frames, at random")):
        hits = [(s, np.flatnonzero(s.target == target)) for s in shuffled if (s.target == target).any()]
        places = [(s, int(rng.choice(frames))) for s, frames in hits]
        sections.append(Section(heading, [_gallery(store, places[:_GALLERY])]))
    worst = sorted(((p, int(p.errors.argmax())) for p in predictions), key=lambda place: -place[0].errors.max())
    return [*sections, Section("Largest errors, one frame an episode", [_gallery(store, worst[:_GALLERY])])]


def frame_thumbnail(frame: FramePrediction) -> ImageBlock:
    """A frame with its reference label and P(success)."""
    label = Span("success", "good") if frame.target == 1 else Span("failure")
    score = f"P(success) {format_percent(frame.success_prob)}"
    return thumbnail(frame.image, label, score, Span(f"episode {frame.episode}, frame {frame.frame}", "muted"))


def _episodes(decodes: Decodes) -> list[Block]:
    name, d = next(iter(decodes.items()))
    tpr, fpr = wilson(d.tp, d.tp + d.fn), wilson(d.fp, d.fp + d.tn)
    confusion = Table(
        [
            ("success", count_correct(d.tp), count_mistakes(d.fn), _rate(tpr, "successes")),
            ("failure", count_mistakes(d.fp), count_correct(d.tn), _rate(fpr, "failures")),
        ],
        header=("reference", "predicted success", "predicted failure", "rate, 95% CI"),
    )
    rows = [
        (rule, *map(format_frames_interval, onset_intervals(e)), count_mistakes(e.fn), count_mistakes(e.fp))
        for rule, e in decodes.items()
    ]
    header = ("decision rule", "success-onset error", "90th percentile", "FN", "FP")
    about = (
        f"The upper table: {name}. Brackets: 95% confidence intervals. They hold for episodes that are independent and "
        "recorded like these held-out ones. The 90th percentile needs at least 36 episodes."
    )
    return [confusion, Table(rows, header), Text(about, "muted")]


def _rate(rate: Interval, kind: str) -> Cell:
    return Span(f"no {kind} to measure on", "muted") if math.isnan(rate.value) else format_interval(rate)


def _frames(metrics: JudgeMetrics) -> Table:
    fpr = Interval(metrics.fpr, metrics.fpr_low, metrics.fpr_high)
    about_threshold = "minimum P(success) of a predicted success"
    if metrics.threshold > 1:
        about_threshold += "; no frame has it, since P(success) of some failure frame is 100%"
    rows = [
        ("threshold", f"{metrics.threshold:.4g}", about_threshold),
        ("false-positive rate", format_interval(fpr), "of failure frames, 95% CI over episodes"),
        ("precision", format_percent(metrics.precision), "of frames predicted a success"),
        (
            "recall",
            format_interval(metrics.recall_interval),
            f"of {metrics.success_frames:,} success frames, 95% CI over episodes",
        ),
        ("accuracy", format_percent(metrics.accuracy), f"of {metrics.frames:,} frames"),
        ("ROC AUC", format_number(metrics.roc_auc), "0.5 is chance"),
        ("success at first frame", first_frame_count(metrics), "before anything happened"),
        ("calibration error (ECE)", format_percent(metrics.ece), "mean error of the probabilities"),
        ("Brier score", format_number(metrics.brier), "0.25 is chance"),
        ("log loss", format_number(metrics.log_loss), "nats; 0.69 is chance"),
    ]
    return Table([(name, value, Span(meaning, "muted")) for name, value, meaning in rows])


def _controls(controls: Sequence[ControlResult]) -> list[Block]:
    if not controls:
        return [Text("Not run.", "muted")]
    rows: list[Sequence[Cell]] = []
    for control in controls:
        if not control.frames:
            rows.append((control.name, Span("-", "muted"), Span("not run", "muted")))
            continue
        style, result = ("good", "passed") if control.passed else ("bad", "failed")
        share = Span(f"{control.fpr:.0%} of {control.frames:,}", "" if control.passed else "bad")
        rows.append((control.name, share, Span(result, style)))
    limits = ", ".join(sorted({f"{control.max_fpr:.0%}" for control in controls}))
    about = f"Made-up episodes in which no frame shows success; the limit is {limits}."
    return [Table(rows, ("control", "false positives", "")), Text(about, "muted")]


def _calibration(calibration: CalibrationCurve) -> Chart:
    columns = (array.tolist() for array in (calibration.success_prob, calibration.success_rate, calibration.count))
    return Chart(calibration_chart(*columns, title="Calibration"))


def _histogram(calibration: CalibrationCurve, threshold: float) -> Chart:
    successes = [round(rate * n) if n else 0 for rate, n in zip(calibration.success_rate, calibration.count)]
    failures = [int(n) - yes for n, yes in zip(calibration.count, successes)]
    bars = {"failure": failures, "success": successes}
    mark = (min(threshold, 1.0), f"threshold {threshold:.3g}")
    return Chart(histogram(bars, (FAILURE, SUCCESS), title="Frames", x="predicted P(success)", mark=mark))


def _history_charts(history: Sequence[Mapping[str, float]]) -> list[Chart]:
    """A chart for each prefix of the names."""
    names = list(dict.fromkeys(name for line in history for name in line if name != "epoch"))
    charts = []
    for group in dict.fromkeys(name.split("/")[0] for name in names):
        lines = {
            name.removeprefix(f"{group}/"): [[(line["epoch"], line[name]) for line in history if name in line]]
            for name in names
            if name.split("/")[0] == group
        }
        charts.append(Chart(line_chart(lines, title=group, x="epoch", size=(390, 340))))
    return charts


def _timelines(predictions: Sequence[EpisodePrediction], threshold: float) -> list[Block]:
    ranked = sorted((s for s in predictions if s.has_target.any()), key=_mean_error, reverse=True)[:_MAX_TIMELINES]
    if not ranked:
        return []
    charts = [
        score_timeline(
            s.success_prob.tolist(),
            s.target.tolist(),
            title=f"episode {s.episode}, mean error {format_percent(_mean_error(s))}",
            threshold=threshold,
        )
        for s in ranked
    ]
    legend = "Blue: P(success). Below: the reference label (green: success, gray: failure, light: unknown)."
    return [Section("Episodes with the largest errors", [Text(legend, "muted"), Row([Chart(svg) for svg in charts])])]


def _unlabeled_table(failures: Mapping[int, str]) -> Table:
    rows = [(", ".join(map(str, ids)), message) for message, ids in group_by_message(failures).items()]
    return Table(rows, header=("episodes", "reason"))


def _gallery(store: Store, places: Sequence[tuple[EpisodePrediction, int]]) -> Row:
    images = []
    for prediction, place in places:
        episode = store.episode(prediction.episode)
        frame = int(np.arange(episode.steps + 1)[episode.observed][place])
        image = hstack_images([frames[frame] for frames in episode.frames.values()])
        label, score = float(prediction.target[place]), float(prediction.success_prob[place])
        images.append(frame_thumbnail(FramePrediction(prediction.episode, frame, label, score, image)))
    return Row(images)


def _mean_error(prediction: EpisodePrediction) -> float:
    return float(prediction.errors[prediction.has_target].mean())


MAX_FALSE, MAX_MISSED = 0.1, 0.2  # the defaults of audit.max_false and audit.max_missed
REACHABLE_RATE = 0.2  # false-positive rate that is aimed for first; a looser one is of little use


@dataclass(frozen=True)
class Verdict:
    """Three lines for the top of a page."""

    usable: bool
    result: str
    reason: str
    next_step: str

    def table(self) -> Table:
        """The lines as a block of a page."""
        result = Span(self.result, "good" if self.usable else "bad")
        return Table([("Result", result), ("Why", self.reason), ("Next", self.next_step)])


def judge_verdict(
    decode: EpisodeMetrics,
    controls: Sequence[ControlResult],
    promise: Promise | None = None,
    *,
    judge: str = "",
    store: str = "STORE",
) -> Verdict:
    """
    decode: held-out episodes by the rule in use
    judge: as `plaudit judge exam` takes it; empty: it cannot be examined
    """
    label = f"plaudit label {shlex.quote(store)} --judge human"
    train = f"{label} && plaudit train-reward {shlex.quote(store)}"
    if judge and promise is not None:  # a trained model, which is not overwritten
        train += f" --output-dir {shlex.quote(f'{judge}_2')}"
    counts = describe_counts(decode)
    if failed := [control for control in controls if not control.passed]:
        many = format_count(len(failed), "negative control")
        shares = ", ".join(f"{control.name} ({control.fpr:.0%} of {control.frames:,} frames)" for control in failed)
        limit = max(control.max_fpr for control in failed)
        reason = f"It predicts success where there is none: {shares}. At most {limit:.0%} is allowed."
        return Verdict(False, f"Not usable: it fails {many}.", reason, f"Label more failures, train again: {train}")
    if missing := _missing_kind(decode):
        reason = f"There are no {missing} to measure on among the held-out episodes."
        return Verdict(False, "Not usable yet: not measured.", reason, f"Record and label {missing}: {label}")
    if problem := _too_wrong(decode):
        return Verdict(False, f"Not usable yet: {problem}.", counts, f"Label more episodes, train again: {train}")
    exam = f"plaudit judge exam {shlex.quote(judge)} {shlex.quote(store)}" if judge else ""
    certify = f"Examine it before it controls a robot: {exam}" if exam else f"Label what it gets wrong: {label}"
    if promise is None:
        return Verdict(True, "Usable while it is audited.", counts, certify)
    if promise.kept:
        rate = format_target(promise.rate)
        return Verdict(True, f"Usable: a false-positive rate of {rate} or less is guaranteed.", counts, certify)
    command = f": {train}" if next_target(promise) else f". {certify}"
    result = f"Usable while it is audited; {format_target(promise.rate)} false positives are not guaranteed."
    return Verdict(True, result, f"{counts}{_describe_bound(promise)}", f"{describe_target(promise)}{command}")


def next_target(promise: Promise) -> tuple[PromiseStep, int] | None:
    """The first rate to aim for, and how many more episodes it takes at least; None where more episodes do not help."""
    top = max(REACHABLE_RATE, promise.rate)
    open_steps = [step for step in promise.steps if step.threshold is None and promise.rate <= step.rate <= top]
    if not open_steps:
        return None
    step = max(open_steps, key=lambda step: step.rate)
    more = promise.more_for(step.needed)
    return (step, more) if more else None


def describe_target(promise: Promise) -> str:
    """`Label at least 60 more episodes for a guarantee of 20% (1,512 for the 1% that was asked for)`"""
    target = next_target(promise)
    if target is None:
        return "Look at the largest errors: more episodes like these alone do not lead to a guarantee"
    step, more = target
    asked = ""
    if step.rate != promise.rate and promise.more:
        asked = f" ({promise.more:,} for the {format_target(promise.rate)} that was asked for)"
    return f"Label at least {format_count(more, 'more episode')} for a guarantee of {format_target(step.rate)}{asked}"


def describe_counts(d: EpisodeMetrics) -> str:
    """`It predicts success for 8 of 9 successes and 0 of 18 failures.`"""
    parts = [f"{d.tp} of {d.tp + d.fn:,} successes"] if d.tp + d.fn else []
    parts += [f"{d.fp} of {d.fp + d.tn:,} failures"] if d.fp + d.tn else []
    missing = _missing_kind(d)
    nothing = f"There are no {missing} to measure on." if missing else ""
    counted = f"It predicts success for {' and '.join(parts)}." if parts else ""
    return " ".join(filter(None, (counted, nothing)))


def _describe_bound(promise: Promise) -> str:
    """What is known of the false-positive rate at the threshold in use."""
    if promise.bound is None or promise.bound >= 1:
        return ""
    bound, confidence = format_percent(promise.bound), f"{promise.confidence:.0%}"
    return f" At most {bound} of failure frames pass on new episodes like these, with {confidence} confidence."


def _missing_kind(d: EpisodeMetrics) -> str:
    """Of the two kinds of episodes, those that there are none of."""
    missing = {"successes": not d.tp + d.fn, "failures": not d.fp + d.tn}
    return " and no ".join(kind for kind, is_missing in missing.items() if is_missing)


def _too_wrong(d: EpisodeMetrics) -> str:
    """What would raise the alarm of a run's audit; empty where nothing would."""
    if not d.tp:
        return "it finds none of the successes"
    false, missed = d.fp / (d.tp + d.fp), d.fn / (d.tp + d.fn + d.fp + d.tn)
    if false > MAX_FALSE:
        return f"{false:.0%} of the successes it predicts are false, and the audit of a run allows {MAX_FALSE:.0%}"
    if missed > MAX_MISSED:
        return f"{missed:.0%} of the episodes are successes it misses, and the audit of a run allows {MAX_MISSED:.0%}"
    return ""


_ABOUT = (
    "The guarantee is about the share of an episode's failure frames that are predicted a success, averaged over new "
    "episodes. It assumes that new episodes are independent and recorded like the labeled ones: same task, scene, "
    "cameras and policies. A policy that has learned since makes other episodes; for these, audit the judge. An "
    "episode counts once, however long it is (Learn-then-Test with a betting test)."
)


def promise_section(promise: Promise) -> Section:
    """What is guaranteed, and a line for each rate, the one that takes the fewest episodes first."""
    asked = f"{format_target(promise.rate)} or less is not guaranteed. {describe_target(promise)}."
    text = _guarantee(promise) if promise.kept else asked
    if promise.bound is not None:
        episodes = format_count(promise.bound_episodes, "episode")
        text += f" {episodes} that did not choose the threshold bound its rate to {format_percent(promise.bound)}."
    header = ("rate", "proven threshold", "its recall (frames)", "episodes it takes", "more to label")
    rows = [_row(promise, step) for step in reversed(promise.steps)]
    return Section("False positives on new episodes", [Text(text), Table(rows, header), Text(_ABOUT, "muted")])


def _guarantee(promise: Promise) -> str:
    episodes = format_count(promise.episodes, "held-out episode")
    rate = format_target(promise.rate)
    return f"Guaranteed with {promise.confidence:.0%} confidence: a rate of {rate} or less, proven on {episodes}."


def _row(promise: Promise, step: PromiseStep) -> Sequence[Cell]:
    asked = " (asked for)" if step.rate == promise.rate else ""
    proven: Cell = Span("not proven", "muted")
    recall = "-" if step.recall is None else format_percent(step.recall)
    if step.threshold is not None:
        proven = Span(f"{step.threshold:.4g}", "good")
    more = promise.more_for(step.needed)
    missing = "-" if step.threshold is not None or more is None else f"{more:,} or more"
    return f"{format_target(step.rate)}{asked}", proven, recall, f"{step.needed:,}", missing


_ABOUT_FORECAST = (
    "Brackets: 95% prediction intervals for new episodes that are independent and recorded like the measured ones. "
    "They are wider than the confidence intervals of this page, which are about the mean of all such episodes. They "
    "allow for a new episode unlike all measured ones. An error has no upper end if there may be no success."
)


def forecast_section(forecast: Forecast) -> Section:
    """What other episodes will show, and how much more would be known with twice as many episodes."""
    rows = [
        (
            meaning,
            format_figure(name, forecast.figures[name]),
            format_figure(name, forecast.with_twice[name], bare=True),
        )
        for name, meaning in FIGURES.items()
    ]
    ahead = format_count(forecast.ahead, "other episode")
    header = ("figure", f"measured (of {ahead})", "by twice as many episodes")
    evidence = Text(sentence_case(forecast.describe()))
    return Section(f"What {ahead} will show", [evidence, Table(rows, header), Text(_ABOUT_FORECAST, "muted")])


def format_figure(name: str, figure: Interval, bare: bool = False) -> str:
    """1.2% (0% to 20%), or 3 frames (1 to 8), or no success found (0 or more); bare: the interval alone."""
    if math.isnan(figure.low):
        return "-"
    none_found = math.isnan(figure.value)
    figure = Interval(figure.low, figure.low, figure.high) if none_found else figure
    text = format_interval(figure) if name in ("fpr", "recall") else format_frames_interval(figure)
    brackets = text[text.index("(") :]
    return brackets[1:-1] if bare else f"no success found {brackets}" if none_found else text


def judge_table(title: str, metrics: JudgeMetrics, controls: Sequence[ControlResult]) -> rich.table.Table:
    """The metrics of a judge."""
    run = [control for control in controls if control.frames]
    passed = sum(control.passed for control in run)
    values = {
        "precision, recall": f"{format_percent(metrics.precision)}, {format_interval(metrics.recall_interval)}",
        "ROC AUC": format_number(metrics.roc_auc),
        "false-positive rate (frames)": format_interval(Interval(metrics.fpr, metrics.fpr_low, metrics.fpr_high)),
        "threshold": f"{metrics.threshold:.4g}",
        "success-onset error, causal": _onset_error(metrics.causal),
        "success-onset error, offline": _onset_error(metrics.offline),
        "calibration error (ECE)": format_percent(metrics.ece),
        "negative controls": f"{passed} of {len(run)} passed" if run else "not run",
        "success at first frame": first_frame_count(metrics),
    }
    return terminal_table(title, values)


def forecast_table(forecast: Forecast) -> rich.table.Table:
    """What other episodes will show."""
    values = {meaning: format_figure(name, forecast.figures[name]) for name, meaning in FIGURES.items()}
    ahead = format_count(forecast.ahead, "other episode")
    return terminal_table(f"Expected on {ahead} (95% prediction interval)", values)


def calibration_table(title: str, fit: Fit, record: CalibrationRecord, cutoffs: EpisodeMetrics) -> rich.table.Table:
    """A decision rule and its error rates on held-out episodes."""
    rate = Interval(record.fpr, record.fpr_low, record.fpr_high)
    target = format_percent(record.target_fpr)
    values = {
        "temperature, bias": f"{fit.calibration.temperature:.4g}, {fit.calibration.bias:.4g}",
        "threshold": f"{fit.rule.threshold:.4g}",
        "cutoff offset": f"{fit.rule.cutoff_offset} frames",
        "false-positive rate (frames)": f"{format_interval(rate)}, held out; target {target}",
        "recall (frames)": f"{format_percent(record.recall)}, held out",
        "success-onset error, offline": f"{_onset_error(cutoffs)}, held out",
    }
    return terminal_table(title, values)


def decode_table(decodes: Decodes) -> rich.table.Table:
    """A line for each decision rule."""
    table = rich.table.Table("decision rule", "true positives", "false positives", box=None, pad_edge=False)
    table.add_column("success-onset error")
    table.add_column("90th percentile")
    for name, d in decodes.items():
        tp = f"{d.tp} of {d.tp + d.fn}" if d.tp + d.fn else "no successes"
        fp = f"{d.fp} of {d.fp + d.tn}" if d.fp + d.tn else "no failures"
        onset = format_frames(d.onset_median), format_frames(d.onset_p90)
        table.add_row(name, tp, rich.text.Text(fp, "red" if d.fp else ""), *onset)
    return table


def _onset_error(decode: EpisodeMetrics) -> str:
    if not decode.tp:
        return "no success predicted"
    median, p90 = (format_frames_interval(interval) for interval in onset_intervals(decode))
    return f"median {median}, 90th percentile {p90}"
