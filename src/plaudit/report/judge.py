"""The report of a judge: one HTML page that shows how reliable it is and where it is wrong; terminal tables too.

The page has the same sections in the same order, whatever made it: the result, scores over time, figures, episodes and
frames, probabilities and controls, the largest errors, new episodes, training, metadata. A section without content is
left out. `plaudit train-reward` writes it for the model that it trained (`write_judge_report`), `plaudit judge exam`
for one or several judges (exam.py), and `plaudit judge eval` for any judge that is compared with reference labels
(`save_evaluation`):

    runs/judge_eval/vlm_0/
      report.html       the page
      scores.json       the same numbers for a program
      episodes.jsonl    one line an episode: P(success) and the reference label of each frame
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Self

import numpy as np
import rich.table
import rich.text
from markupsafe import Markup

from plaudit.data.store import Store
from plaudit.data.transfer import new_folder
from plaudit.errors import format_count
from plaudit.judges.calibration import CalibrationRecord, Fit
from plaudit.judges.certificate import MAX_FPR, ControlResult
from plaudit.judges.evaluation import JudgeEvaluation, frame_prediction
from plaudit.judges.guarantee import FORECAST_FIGURES, Forecast, Guarantee
from plaudit.judges.labeling import group_by_message
from plaudit.judges.metrics import (
    CalibrationCurve,
    EpisodeMetrics,
    EpisodePrediction,
    FramePrediction,
    JudgeMetrics,
    onset_intervals,
)
from plaudit.judges.stats import Interval, wilson
from plaudit.report import page, plots
from plaudit.report.tables import key_value_table
from plaudit.report.verdict import (
    Verdict,
    describe_target,
    format_frames,
    format_frames_interval,
    format_interval,
    format_number,
    format_percent,
    format_share,
    format_short_interval,
    format_target,
    judge_verdict,
    sentence_case,
)
from plaudit.types import FloatArray

_MAX_TIMELINES = 12  # episodes with the largest errors, of all judges of a page
_GALLERY = 8  # frames of a kind

Decodes = Mapping[str, EpisodeMetrics]  # decision rule -> what it gives; the first counts


def live_and_offline(metrics: JudgeMetrics) -> Decodes:
    """By the frames up to each moment, as on a robot; and by the whole episode at once."""
    frames = f"{metrics.k} of {metrics.n} frames" if metrics.n > 1 else "single frame"
    return {f"causal ({frames})": metrics.causal, "offline (cutoff)": metrics.offline}


def decode_results(evaluation: JudgeEvaluation) -> Decodes:
    """The judge's own rule first; for a judge with probabilities also the other two."""
    others = live_and_offline(evaluation.metrics) if evaluation.has_probabilities else {}
    return {"judge's rule": evaluation.label_metrics, **others}


@dataclass(frozen=True, eq=False)
class JudgeReport:
    """What a page shows of one judge, measured on held-out episodes."""

    name: str
    metrics: JudgeMetrics
    controls: Sequence[ControlResult]
    predictions: Sequence[EpisodePrediction]  # those with the largest errors are drawn as timelines
    errors: Sequence[FramePrediction]  # the largest
    decodes: Decodes
    metadata: Mapping[str, str]
    notes: Sequence[str] = ()
    standing_still: FloatArray | None = None  # [F] P(success) of an episode that repeats its first frame
    unlabeled: Mapping[int, str] = field(default_factory=dict)  # episodes that it could not label, and why
    guarantee: Guarantee | None = None  # about new episodes, and so is the forecast
    forecast: Forecast | None = None
    # A line per epoch of training: `epoch`, and values by name; names with one prefix share a chart.
    history: Sequence[Mapping[str, float]] = ()

    @classmethod
    def of(cls, name: str, evaluation: JudgeEvaluation, metadata: Mapping[str, str]) -> Self:
        """The report of an evaluation."""
        still = (one.labels.frame_probs for one in evaluation.scored_controls if one.name == "frozen frame")
        return cls(
            name,
            evaluation.metrics,
            evaluation.controls,
            evaluation.predictions,
            evaluation.errors,
            decode_results(evaluation),
            metadata,
            evaluation.notes,
            next(still, None),
            evaluation.failed,
        )

    @property
    def decode(self) -> EpisodeMetrics:
        """What the rule in use gives."""
        return next(iter(self.decodes.values()))

    def sections(self, max_timelines: int = _MAX_TIMELINES) -> list[Markup]:
        """All but the result and the scores over time, which compare judges."""
        images = page.row(map(frame_thumbnail, self.errors))
        sections = [
            *(page.text(message, "muted") for message in self.notes),
            *judge_blocks(self.metrics, self.controls, self.predictions, self.decodes),
            page.section(
                "Largest errors", images if self.errors else page.text("No frame is wrong by 5% or more.", "muted")
            ),
            *_timelines(self.predictions, self.metrics.threshold, max_timelines),
            *([_forecast_section(self.forecast)] if self.forecast else []),
            *([_guarantee_section(self.guarantee)] if self.guarantee else []),
            *([_training_section(self.history)] if self.history else []),
        ]
        if self.unlabeled:
            rows = [(", ".join(map(str, ids)), why) for why, ids in group_by_message(self.unlabeled).items()]
            sections.append(page.section("Episodes without a label", page.table(rows, ("episodes", "reason"))))
        return [*sections, page.section("Metadata", page.key_value_table(self.metadata))]


def write_reports(
    path: Path,
    title: str,
    verdict: Verdict,
    result: Sequence[Markup],
    reports: Sequence[JudgeReport],
    figures: Sequence[Markup] = (),
) -> None:
    """Write the page of one judge or of several.

    result: the first blocks
    figures: a section that compares the judges
    """
    parts = [one.sections(max(_MAX_TIMELINES // len(reports), 2)) for one in reports]
    if len(reports) > 1:
        parts = [[page.section(one.name, *sections)] for one, sections in zip(reports, parts)]
    page.write_page(path, title, verdict, [*result, _traces_section(reports), *figures, *chain(*parts)])


def write_judge_report(path: Path, title: str, report: JudgeReport, verdict: Verdict) -> None:
    """Write the page of one judge."""
    summary = page.text(summary_line(report.metrics, report.decode), "muted")
    write_reports(path, title, verdict, [summary], [report])


def save_evaluation(
    target: Path, judge: str, evaluation: JudgeEvaluation, metadata: Mapping[str, str], exam_name: str = ""
) -> Verdict:
    """Write the folder of an evaluation, which appears complete or not at all. Returns its verdict.

    exam_name: the judge as `plaudit judge exam` takes it; empty for stored labels
    """
    with new_folder(target) as folder:
        tree = {"judge": judge, "metadata": dict(metadata), **evaluation.to_json()}
        (folder / "scores.json").write_text(json.dumps(tree, indent=1))
        lines = (json.dumps(prediction.to_json()) + "\n" for prediction in evaluation.predictions)
        (folder / "episodes.jsonl").write_text("".join(lines))
        report, store = JudgeReport.of(judge, evaluation, metadata), metadata.get("store", "STORE")
        verdict = judge_verdict(report.decode, report.controls, judge=exam_name, store=store)
        write_judge_report(folder / "report.html", f"Judge: {judge}", report, verdict)
    return verdict


def summary_line(metrics: JudgeMetrics, decode: EpisodeMetrics | None = None) -> str:
    """What the judge was measured on, and its main figures."""
    median, figures = (decode or metrics.causal).onset_median, []
    if not math.isnan(median):
        figures.append(f"median success-onset error {format_frames(median)}")
    if not math.isnan(metrics.fpr):
        figures.append(f"false-positive rate {format_percent(metrics.fpr)} (frames)")
    measured = f"Measured on {metrics.episodes:,} held-out episodes, {metrics.frames:,} frames"
    return f"{measured}: {', '.join(figures)}." if figures else f"{measured}."


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


# Measured


def judge_blocks(
    metrics: JudgeMetrics,
    controls: Sequence[ControlResult],
    predictions: Sequence[EpisodePrediction],
    decodes: Decodes | None = None,
) -> list[Markup]:
    """The confusion matrix, frame metrics, calibration and negative controls of a judge."""
    episodes = page.section("Episodes", *_episode_tables(decodes or live_and_offline(metrics)))
    probabilities = page.section("Probabilities", page.row(_probability_charts(predictions, metrics.threshold)))
    return [
        *([page.text(f"{first_frame_warning(metrics)}.", "warning")] if metrics.first_frame_fp else []),
        page.row([episodes, page.section("Frames", _frame_table(metrics))], "wide"),
        page.row([probabilities, page.section("Negative controls", *_control_table(controls))], "wide"),
    ]


def _episode_tables(decodes: Decodes) -> list[Markup]:
    name, d = next(iter(decodes.items()))

    def rate(count: int, total: int, kind: str) -> str:
        return format_interval(wilson(count, total)) if total else page.span(f"no {kind} to measure on", "muted")

    right, wrong = page.count_correct, page.count_mistakes
    confusion = page.table(
        [
            ("success", right(d.tp), wrong(d.fn), rate(d.tp, d.tp + d.fn, "successes")),
            ("failure", wrong(d.fp), right(d.tn), rate(d.fp, d.fp + d.tn, "failures")),
        ],
        ("reference", "predicted success", "predicted failure", "rate, 95% CI"),
    )
    rows = [
        (rule, *map(format_frames_interval, onset_intervals(e)), wrong(e.fn), wrong(e.fp))
        for rule, e in decodes.items()
    ]
    onsets = page.table(rows, ("decision rule", "success-onset error", "90th percentile", "missed", "false"))
    about = (
        f"The upper table: {name}. Brackets: 95% confidence intervals. They hold for episodes that are independent and "
        "recorded like these held-out ones. The 90th percentile needs at least 36 episodes."
    )
    return [confusion, onsets, page.text(about, "muted")]


def _frame_table(metrics: JudgeMetrics) -> Markup:
    about_threshold = "minimum P(success) of a predicted success"
    if metrics.threshold > 1:
        about_threshold += "; no frame has it, since P(success) of some failure frame is 100%"
    recall_of = f"of {metrics.success_frames:,} success frames, 95% CI over episodes"
    rows = [
        ("threshold", f"{metrics.threshold:.4g}", about_threshold),
        ("false-positive rate", format_interval(metrics.fpr_interval), "of failure frames, 95% CI over episodes"),
        ("recall", format_interval(metrics.recall_interval), recall_of),
        ("precision", format_percent(metrics.precision), "of frames predicted a success"),
        ("success at first frame", first_frame_count(metrics), "before anything happened"),
    ]
    more = [
        ("accuracy", format_percent(metrics.accuracy), f"of {metrics.frames:,} frames"),
        ("ROC AUC", format_number(metrics.roc_auc), "0.5 is chance"),
        ("calibration error (ECE)", format_percent(metrics.ece), "mean error of the probabilities"),
        ("Brier score", format_number(metrics.brier), "0.25 is chance"),
        ("log loss", format_number(metrics.log_loss), "nats; 0.69 is chance"),
    ]
    main, rest = (page.table((*row[:2], page.span(row[2], "muted")) for row in part) for part in (rows, more))
    return page.join([main, page.folded("More figures", rest)])


def _control_table(controls: Sequence[ControlResult]) -> list[Markup]:
    if not controls:
        return [page.text("Not run.", "muted")]
    shifted = any(control.recall is not None for control in controls)
    rows = []
    for control in sorted(controls, key=lambda control: control.recall is not None):
        rate, result = page.span("-", "muted"), page.span("not run", "muted")
        if control.frames:
            rate = page.span(format_short_interval(control.fpr), "" if control.passed else "bad")
            result = page.span("passed", "good") if control.passed else page.span("failed", "bad")
        recall = "-" if control.recall is None else format_share(control.recall)
        rows.append((control.name, rate, f"{control.frames:,}", *([recall] if shifted else []), result))
    about = f"Made-up episodes in which these frames show no success; the limit is {MAX_FPR:.0%} of them."
    if shifted:
        about += " Those with a recall show an episode with changed images. There, the judge's own rate is added."
    header = ("control", "false positives", "of frames", *(["recall"] if shifted else []), "")
    return [page.table(rows, header), page.text(about, "muted")]


def _probability_charts(predictions: Sequence[EpisodePrediction], threshold: float) -> list[Markup]:
    curve = CalibrationCurve.of(predictions)
    columns = (array.tolist() for array in (curve.success_prob, curve.success_rate, curve.count))
    successes = [round(rate * n) if n else 0 for rate, n in zip(curve.success_rate, curve.count)]
    bars = {"failure": [int(n) - yes for n, yes in zip(curve.count, successes)], "success": successes}
    mark = (min(threshold, 1.0), f"threshold {threshold:.3g}")
    colors = (plots.FAILURE, plots.SUCCESS)
    histogram = plots.histogram(bars, colors, title="Frames", x="predicted P(success)", mark=mark)
    return [page.chart(plots.calibration_chart(*columns, title="Calibration")), page.chart(histogram)]


def _traces_section(reports: Sequence[JudgeReport]) -> Markup:
    """A chart for each judge: the first frame of a success standing still, a failure and a success."""
    charts, still = list[Markup](), any(report.standing_still is not None for report in reports)
    size = plots.SMALL if len(reports) > 1 else (600, 220)
    for report in reports:
        traces = {} if report.standing_still is None else {"standing still": report.standing_still}
        measured = [one for one in report.predictions if one.has_target.any()]
        failure = next((one for one in measured if one.first_success is None), None)
        success = next((one for one in measured if one.first_success is not None), None)
        for name, one in (("failure", failure), ("success", success)):
            if one is not None:  # a frame that was not scored, like the padding at the end, has 0 and no target
                traces[name] = np.where((one.success_prob == 0) & ~one.has_target, np.nan, one.success_prob)
        events = [] if success is None else [plots.EventMarker(success.first_success or 0, "", bad=False)]
        lines = {
            name: [[(frame, prob) for frame, prob in enumerate(trace.tolist()) if not math.isnan(prob)]]
            for name, trace in traces.items()
        }
        options: dict[str, Any] = {"y_range": (-0.03, 1.03), "percent": True, "size": size, "events": events}
        options["colors"] = {"success": plots.SUCCESS, "failure": plots.FAILURE, "standing still": plots.COLORS[-1]}
        charts.append(page.chart(plots.line_chart(lines, title=report.name, x="frame", **options)))
    about = "The vertical line is the first success frame of the reference."
    if still:
        about += " Standing still repeats the first frame of a success; nothing may rise there."
    drawn = page.row(charts, "grid" if len(charts) > 1 else "")
    return page.section("P(success) over time", drawn, page.text(about, "muted"))


def _training_section(history: Sequence[Mapping[str, float]]) -> Markup:
    """A chart for each prefix of the names."""
    names = list(dict.fromkeys(name for line in history for name in line if name != "epoch"))
    charts = []
    for group in dict.fromkeys(name.split("/")[0] for name in names):
        lines = {
            name.removeprefix(f"{group}/"): [[(line["epoch"], line[name]) for line in history if name in line]]
            for name in names
            if name.split("/")[0] == group
        }
        charts.append(page.chart(plots.line_chart(lines, title=group, x="epoch", size=(390, 340))))
    about = (
        "Training frames are augmented and balanced; held-out frames are not augmented. Compare the trend of the two "
        "curves, not their height."
    )
    return page.section("Training", page.row(charts), page.text(about, "muted"))


def _timelines(predictions: Sequence[EpisodePrediction], threshold: float, most: int) -> list[Markup]:
    errors = {n: float(one.errors[one.has_target].mean()) for n, one in enumerate(predictions) if one.has_target.any()}
    charts = []
    for n in sorted(errors, key=lambda n: -errors[n])[:most]:
        one = predictions[n]
        title = f"episode {one.episode}, mean error {format_percent(errors[n])}"
        scores = one.success_prob.tolist(), one.target.tolist()
        charts.append(page.chart(plots.score_timeline(*scores, title=title, threshold=threshold)))
    legend = "Curve: P(success). Below: the reference label (blue: success, orange: failure, gray: unknown)."
    shown = page.section("Episodes with the largest errors", page.text(legend, "muted"), page.row(charts))
    return [shown] if charts else []


def frame_gallery(store: Store, predictions: Sequence[EpisodePrediction]) -> list[Markup]:
    """Random frames of success and of failure, then the frames with the largest errors, all cameras side by side."""

    def gallery(heading: str, places: Sequence[tuple[EpisodePrediction, int]]) -> Markup:
        images = []
        for prediction, place in places[:_GALLERY]:
            episode = store.episode(prediction.episode)
            frame = int(np.arange(episode.steps + 1)[episode.observed][place])
            images.append(frame_thumbnail(frame_prediction(episode, prediction, place, frame)))
        return page.section(heading, page.row(images))

    rng = np.random.default_rng(0)
    shuffled = [predictions[i] for i in rng.permutation(len(predictions))]
    sections = []
    for target, heading in ((1, "Success frames, at random"), (0, "Failure frames, at random")):
        hits = [(one, np.flatnonzero(one.target == target)) for one in shuffled if (one.target == target).any()]
        sections.append(gallery(heading, [(one, int(rng.choice(frames))) for one, frames in hits]))
    worst = sorted(((p, int(p.errors.argmax())) for p in predictions), key=lambda place: -place[0].errors.max())
    return [*sections, gallery("Largest errors, one frame an episode", worst)]


def frame_thumbnail(frame: FramePrediction) -> Markup:
    """A frame with its reference label and P(success)."""
    label = page.span("success", "good") if frame.target == 1 else page.span("failure", "bad")
    place = page.span(f"episode {frame.episode}, frame {frame.frame}", "muted")
    return page.thumbnail(frame.image, label, f"P(success) {format_percent(frame.success_prob)}", place)


# New episodes


def _guarantee_section(guarantee: Guarantee) -> Markup:
    """What is guaranteed, and a line for each rate, the one that takes the fewest episodes first."""
    rate = f"{format_target(guarantee.rate)} or less"
    words = f"{rate} is not guaranteed. {describe_target(guarantee)}."
    if guarantee.kept:
        episodes = format_count(guarantee.episodes, "held-out episode")
        words = f"Guaranteed with {guarantee.confidence:.0%} confidence: a rate of {rate}, proven on {episodes}."
    if guarantee.bound is not None:
        episodes = format_count(guarantee.bound_episodes, "episode")
        words += f" {episodes} that did not choose the threshold bound its rate to {format_percent(guarantee.bound)}."
    rows = []
    for step in reversed(guarantee.steps):
        asked = " (asked for)" if step.rate == guarantee.rate else ""
        more = guarantee.more_for(step.needed) if step.threshold is None else None
        proven = (
            page.span("not proven", "muted") if step.threshold is None else page.span(f"{step.threshold:.4g}", "good")
        )
        recall = "-" if step.recall is None else format_percent(step.recall)
        missing = "-" if more is None else f"{more:,} or more"
        rows.append((f"{format_target(step.rate)}{asked}", proven, recall, f"{step.needed:,}", missing))
    header = ("rate", "proven threshold", "its recall (frames)", "episodes it takes", "more to label")
    about = (
        "The guarantee is about the share of an episode's failure frames that are predicted a success, averaged over "
        "new episodes. It assumes that new episodes are independent and recorded like the labeled ones: same task, "
        "scene, cameras and policies. A policy that has learned since makes other episodes; for these, audit the "
        "judge. An episode counts once, regardless of its length (Learn-then-Test with a betting test)."
    )
    heading = "False positives on new episodes"
    return page.section(heading, page.text(words), page.table(rows, header), page.text(about, "muted"))


def _forecast_section(forecast: Forecast) -> Markup:
    """What other episodes will show, and how much more would be known with twice as many episodes."""
    rows = [
        (about, format_figure(name, forecast.figures[name]), format_figure(name, forecast.with_twice[name], bare=True))
        for name, about in FORECAST_FIGURES.items()
    ]
    ahead = format_count(forecast.ahead, "other episode")
    figures = page.table(rows, ("figure", f"measured (of {ahead})", "by twice as many episodes"))
    about = (
        "Brackets: 95% prediction intervals for new episodes that are independent and recorded like the measured ones. "
        "They are wider than the confidence intervals of this page, which are about the mean of all such episodes. "
        "They allow for a new episode unlike all measured ones. An error has no upper end if there may be no success."
    )
    evidence = page.text(sentence_case(forecast.describe()))
    return page.section(f"What {ahead} will show", evidence, figures, page.text(about, "muted"))


def format_figure(name: str, figure: Interval, bare: bool = False) -> str:
    """1.2% (0% to 20%), or 3 frames (1 to 8), or no success found (0 or more); bare: the interval alone."""
    if math.isnan(figure.low):
        return "-"
    none_found = math.isnan(figure.value)
    figure = Interval(figure.low, figure.low, figure.high) if none_found else figure
    words = format_interval(figure) if name in ("fpr", "recall") else format_frames_interval(figure)
    brackets = words[words.index("(") :]
    return brackets[1:-1] if bare else f"no success found {brackets}" if none_found else words


# For the terminal


def judge_table(title: str, metrics: JudgeMetrics, controls: Sequence[ControlResult]) -> rich.table.Table:
    """The metrics of a judge."""
    run = [control for control in controls if control.frames]
    passed = sum(control.passed for control in run)
    values = {
        "precision, recall": f"{format_percent(metrics.precision)}, {format_interval(metrics.recall_interval)}",
        "ROC AUC": format_number(metrics.roc_auc),
        "false-positive rate (frames)": format_interval(metrics.fpr_interval),
        "threshold": f"{metrics.threshold:.4g}",
        "success-onset error, causal": _onset_error(metrics.causal),
        "success-onset error, offline": _onset_error(metrics.offline),
        "calibration error (ECE)": format_percent(metrics.ece),
        "negative controls": f"{passed} of {len(run)} passed" if run else "not run",
        "success at first frame": first_frame_count(metrics),
    }
    return key_value_table(title, values)


def forecast_table(forecast: Forecast) -> rich.table.Table:
    """What other episodes will show."""
    values = {meaning: format_figure(name, forecast.figures[name]) for name, meaning in FORECAST_FIGURES.items()}
    ahead = format_count(forecast.ahead, "other episode")
    return key_value_table(f"Expected on {ahead} (95% prediction interval)", values)


def calibration_table(title: str, fit: Fit, record: CalibrationRecord, cutoffs: EpisodeMetrics) -> rich.table.Table:
    """A decision rule and its error rates on held-out episodes."""
    rate = format_interval(Interval(record.fpr, record.fpr_low, record.fpr_high))
    values = {
        "temperature, bias": f"{fit.calibration.temperature:.4g}, {fit.calibration.bias:.4g}",
        "threshold": f"{fit.rule.threshold:.4g}",
        "cutoff offset": f"{fit.rule.cutoff_offset} frames",
        "false-positive rate (frames)": f"{rate}, held out; target {format_percent(record.target_fpr)}",
        "recall (frames)": f"{format_percent(record.recall)}, held out",
        "success-onset error, offline": f"{_onset_error(cutoffs)}, held out",
    }
    return key_value_table(title, values)


def decode_table(decodes: Decodes) -> rich.table.Table:
    """A line for each decision rule."""
    header = ("decision rule", "true positives", "false positives", "success-onset error", "90th percentile")
    table = rich.table.Table(*header, box=None, pad_edge=False)
    for name, d in decodes.items():
        tp = f"{d.tp} of {d.tp + d.fn}" if d.tp + d.fn else "no successes"
        fp = f"{d.fp} of {d.fp + d.tn}" if d.fp + d.tn else "no failures"
        onset = format_frames(d.onset_median), format_frames(d.onset_p90)
        table.add_row(name, tp, rich.text.Text(fp, "red" if d.fp else ""), *onset)
    return table


def _onset_error(decode: EpisodeMetrics) -> str:
    if not decode.tp:
        return "no success predicted"
    median, p90 = map(format_frames_interval, onset_intervals(decode))
    return f"median {median}, 90th percentile {p90}"
