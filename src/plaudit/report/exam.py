"""The page of an exam: one judge or several, the best first, and what each certificate says.

runs/judge_exam/reward_model_0/
  report.html                       the page
  certificate.json                  of one judge; of several, NAME.certificate.json each
"""

import math
from collections.abc import Sequence
from pathlib import Path

import rich.table
import rich.text

from plaudit.data.transfer import new_folder
from plaudit.files import file_name
from plaudit.judges.certificate import CERTIFICATE_FILE, CORRELATIONS, FIGURES, IN_FRAMES, Certificate, ControlFigure
from plaudit.judges.exam import Trace
from plaudit.judges.stats import Interval
from plaudit.report.page import Block, Cell, Chart, Row, Section, Span, Table, Text, write_page
from plaudit.report.plots import SMALL, EventMarker, interval_chart, line_chart
from plaudit.report.text import format_count, format_frames_interval, format_percent

Examined = Sequence[tuple[Certificate, Sequence[Trace]]]  # the best first

_RANKED = {  # heading -> figure
    "ROC AUC, same frame": "same_time_roc_auc",
    "ROC AUC, all frames": "frame_roc_auc",
    "precision": "precision",
    "recall": "recall",
    "false-positive rate": "fpr",
    "first success frame": "onset_median",
}
_ABOUT_RESULT = (
    "Brackets and bars: 95% confidence intervals. They are about episodes that are independent and recorded like those "
    "of this store, which the judge did not learn from. They say nothing about other scenes, or about a policy that "
    "learns from the judge: audit it there."
)
_ABOUT_FIGURES = (
    "By the rule in use. The 90th percentile has no upper end where fewer than 36 successes were found. Value order is "
    "Spearman's correlation of the judge's values with time: it should be near 1 on successes, below 0 backwards, and "
    "0 where nothing moves. A clock has an ROC AUC of 0.5 on frames of the same number."
)
_ABOUT_TIME = (
    "Three episodes: one that succeeds (the vertical line is its first success frame), one that fails, and the first "
    "frame of a success standing still, on which nothing may rise."
)
_ABOUT_CONTROLS = (
    "Frames predicted a success that must not be; at most 5% may. Those with a recall show success all the same and "
    "are only seen otherwise: there, 5 points more than the judge's own rate may be."
)


def save_exam(target: Path, examined: Examined) -> None:
    """Write the folder of an exam; it appears complete or not at all."""
    with new_folder(target) as folder:
        write_exam_report(folder / "report.html", examined)
        for certificate, _ in examined:
            name = CERTIFICATE_FILE if len(examined) == 1 else f"{file_name(certificate.name)}.{CERTIFICATE_FILE}"
            certificate.save(folder / name)


def write_exam_report(path: Path, examined: Examined) -> None:
    """Write the page."""
    certificates = [certificate for certificate, _ in examined]
    first = certificates[0]
    title = f"Exam: {first.name}" if len(examined) == 1 else f"Exam of {len(examined)} judges"
    blocks: list[Block] = [
        *(Text(_failure_message(certificate), "warning") for certificate in certificates if not certificate.passed),
        Section("Result", [_ranking(certificates), Row(_interval_charts(certificates)), Text(_ABOUT_RESULT, "muted")]),
        Section("P(success) over time", [Row([_trace_chart(*one) for one in examined]), Text(_ABOUT_TIME, "muted")]),
        Section("Figures", [_figure_table(certificates), Text(_ABOUT_FIGURES, "muted")]),
        Section("Controls", [_control_table(certificates), Text(_ABOUT_CONTROLS, "muted")]),
        Section("Certificates", [_certificate_table(certificates), *_notes(certificates)]),
    ]
    write_page(path, title, _summary(certificates), blocks)


def exam_table(certificates: Sequence[Certificate]) -> rich.table.Table:
    """The result for the terminal."""
    shown = {"ROC AUC, same frame": "same_time_roc_auc", "false positives": "fpr"}  # what fits into 80 columns
    table = rich.table.Table("judge", "result", *shown, "controls", box=None, pad_edge=False)
    for certificate in certificates:
        style = "green" if certificate.passed else "red"
        figures = [format_figure(name, certificate.figures[name]) for name in shown.values()]
        result = rich.text.Text(_result(certificate), style)
        table.add_row(certificate.name, result, *figures, _controls_passed(certificate))
    return table


def format_figure(name: str, rate: Interval) -> str:
    """A figure of an exam with its interval; "-" where it could not be measured."""
    if math.isnan(rate.value):
        return "-"
    if name in IN_FRAMES:
        return format_frames_interval(rate)
    if name in CORRELATIONS or name.endswith("roc_auc"):
        return f"{rate.value:.2f} ({rate.low:.2f} to {rate.high:.2f})"
    return _short_interval(rate)


def _short_interval(rate: Interval) -> str:
    """93% (70 to 99), 0.4% (0 to 1.4): five of them stand side by side."""
    low, high = (_percent(end).removesuffix("%") for end in (rate.low, rate.high))
    return f"{_percent(rate.value)} ({low} to {high})"


def _percent(rate: float) -> str:
    return f"{rate:.0%}" if 0.1 <= rate <= 0.9 else format_percent(rate)


def _summary(certificates: Sequence[Certificate]) -> str:
    data = [certificate.data for certificate in certificates]
    few, most = min(one.episodes for one in data), max(one.episodes for one in data)
    episodes = format_count(most, "episode") if few == most else f"{few} to {most} episodes"
    who = "this judge" if len(data) == 1 else "each judge"
    return (
        f"{episodes} of the store '{data[0].store}' that {who} never learned from and was not tuned by, with "
        f"reference labels of {', '.join(data[0].reference)}."
    )


def _failure_message(certificate: Certificate) -> str:
    """The first reason, which is the one that explains the others."""
    rest = len(certificate.problems) - 1
    return f"{certificate.name} did not pass: {certificate.problems[0]}{f'; and {rest} more' * bool(rest)}."


def _result(certificate: Certificate) -> str:
    if certificate.passed:
        return "passed"
    return certificate.shortcut or "failed"


def _controls_passed(certificate: Certificate) -> str:
    tried = [control for control in certificate.controls if control.frames]
    return f"{sum(control.passed for control in tried)} of {len(tried)}"


def _ranking(certificates: Sequence[Certificate]) -> Table:
    rows: list[Sequence[Cell]] = []
    for place, certificate in enumerate(certificates, 1):
        style = "good" if certificate.passed else "bad"
        figures = [format_figure(name, certificate.figures[name]) for name in _RANKED.values()]
        result = Span(_result(certificate), style)
        rows.append((str(place), certificate.name, result, *figures, _controls_passed(certificate)))
    return Table(rows, header=("", "judge", "result", *_RANKED, "controls passed"))


def _interval_charts(certificates: Sequence[Certificate]) -> list[Chart]:
    charts = []
    for title, name, mark in (
        ("ROC AUC, frames of the same number (a clock: 50%)", "same_time_roc_auc", 0.5),
        ("False-positive rate, frames", "fpr", None),
    ):
        rates = {c.name: c.figures[name] for c in certificates}
        rows = {judge: (rate.value, rate.low, rate.high) for judge, rate in rates.items()}
        good = [certificate.passed for certificate in certificates]
        charts.append(Chart(interval_chart(rows, good, title=title, mark=mark)))
    return charts


def _trace_chart(certificate: Certificate, traces: Sequence[Trace]) -> Chart:
    lines = {trace.name: [list(enumerate(trace.success_prob.tolist()))] for trace in traces}
    starts = [int((trace.target == 1).argmax()) for trace in traces if (trace.target == 1).any()]
    events = [EventMarker(start, "", bad=False) for start in starts]
    title = certificate.name
    return Chart(line_chart(lines, title=title, x="frame", y_range=(-0.03, 1.03), size=SMALL, events=events))


def _figure_table(certificates: Sequence[Certificate]) -> Table:
    rows = [
        (Span(about, "muted"), *(format_figure(name, c.figures[name]) for c in certificates))
        for name, about in FIGURES.items()
    ]
    return Table(rows, header=("", *(certificate.name for certificate in certificates)))


def _control_table(certificates: Sequence[Certificate]) -> Table:
    """Those in which nothing shows success first."""
    by_judge = [{control.name: control for control in certificate.controls} for certificate in certificates]
    seen_otherwise = {name: one.recall is not None for controls in by_judge for name, one in controls.items()}
    names = sorted(seen_otherwise, key=lambda name: seen_otherwise[name])
    rows = [(Span(name, "muted"), *(_control_cell(controls.get(name)) for controls in by_judge)) for name in names]
    return Table(rows, header=("", *(certificate.name for certificate in certificates)))


def _control_cell(control: ControlFigure | None) -> Cell:
    if control is None or not control.frames:
        return Span("not run", "muted")
    recall = "" if control.recall is None else f", recall {_percent(control.recall)}"
    return Span(f"{_short_interval(control.fpr)}{recall}", "good" if control.passed else "bad")


def _certificate_table(certificates: Sequence[Certificate]) -> Table:
    rows = [
        (c.name, f"{c.source} {c.fingerprint}", c.rule_text, c.data.fingerprint, *_counts(c), f"{c.date} UTC")
        for c in certificates
    ]
    header = ("judge", "fingerprint", "rule", "data", "episodes", "succeed", "left out", "date")
    return Table(rows, header)


def _counts(certificate: Certificate) -> tuple[str, str, str]:
    data = certificate.data
    return f"{data.episodes:,}", f"{data.successes:,}", f"{data.num_left_out:,}"


def _notes(certificates: Sequence[Certificate]) -> list[Text]:
    return [Text(f"{c.name}: {note}", "muted") for c in certificates for note in c.notes]
