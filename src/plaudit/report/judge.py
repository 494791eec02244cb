"""The report of a judge: one HTML page that shows how far to trust it and where it is wrong.

`plaudit train-reward` writes it for the model that it trained (`write_judge_report`), `plaudit judge eval` for any
judge that is compared with reference labels (`save_evaluation`):

    runs/judge_eval/vlm_0/
      report.html       the page
      scores.json       the same numbers for a program
      episodes.jsonl    one line an episode: P(success) and the reference label of each frame
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from plaudit.data.store import Store
from plaudit.data.transfer import new_folder
from plaudit.judges.controls import ControlResult
from plaudit.judges.evaluation import JudgeEvaluation
from plaudit.judges.forecast import Forecast
from plaudit.judges.labeling import group_by_message
from plaudit.judges.metrics import (
    CalibrationCurve,
    EpisodeMetrics,
    EpisodePrediction,
    FramePrediction,
    JudgeMetrics,
    hstack_images,
    onset_intervals,
)
from plaudit.judges.promise import Promise
from plaudit.judges.stats import Interval, wilson
from plaudit.report.outcomes import count_correct, count_mistakes
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
    key_value_table,
    thumbnail,
    write_page,
)
from plaudit.report.plots import FAILURE, SUCCESS, calibration_chart, histogram, line_chart, score_timeline
from plaudit.report.promise import forecast_section, promise_section
from plaudit.report.text import format_frames, format_frames_interval, format_interval, format_number, format_percent
from plaudit.report.verdict import judge_verdict

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


def decode_results(found: JudgeEvaluation) -> Decodes:
    """The judge's own rule first; for a judge with probabilities also the other two."""
    others = live_and_offline(found.metrics) if found.has_probabilities else {}
    return {"judge's rule": found.label_metrics, **others}


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
    errors: frames with the largest errors, to look at
    decodes: decision rules, of which the first counts; causal and offline when not given
    promise, forecast: about episodes to come
    history: a line an epoch of training: `epoch`, and values by name; names with one prefix share a chart
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
    target: Path, judge: str, found: JudgeEvaluation, metadata: Mapping[str, str], exam_name: str = ""
) -> None:
    """Write the folder of an evaluation; it appears complete or not at all.

    exam_name: the judge as `plaudit judge exam` takes it; empty for stored labels
    """
    with new_folder(target) as folder:
        tree = {"judge": judge, "metadata": dict(metadata), **found.to_json()}
        (folder / "scores.json").write_text(json.dumps(tree, indent=1))
        lines = (json.dumps(prediction.to_json()) + "\n" for prediction in found.predictions)
        (folder / "episodes.jsonl").write_text("".join(lines))
        write_judge_report(
            folder / "report.html",
            f"Judge: {judge}",
            found.metrics,
            found.controls,
            found.predictions,
            found.errors,
            decodes=decode_results(found),
            unlabeled=found.failed,
            notes=found.notes,
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


def failed_control_warning(judge: str, found: JudgeEvaluation) -> list[str]:
    """One message where the judge predicts success on a negative control."""
    names = ", ".join(control.name for control in found.controls if not control.passed)
    return [f"{judge} failed its checks: it predicts success on the negative control {names}."] if names else []


def first_frame_warning(metrics: JudgeMetrics) -> str:
    """For a judge that predicts success before anything happened."""
    return (
        f"{metrics.first_frame_fp} of {metrics.episodes:,} episodes are predicted a success at their first frame "
        "although they do not begin with one: the object may start where it usually ends, and no control covers that; "
        "look at these episodes and train with more that begin so"
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
