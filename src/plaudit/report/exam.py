"""The page of an exam: one judge or several, the best first, and what each certificate says.

runs/judge_exam/reward_model_0/
  report.html                       the page
  certificate.json                  of one judge; of several, NAME.certificate.json each
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import rich.table
import rich.text
from markupsafe import Markup

from plaudit.data.transfer import new_folder
from plaudit.files import file_name
from plaudit.judges.certificate import CERTIFICATE_FILE, CORRELATIONS, FIGURES, IN_FRAMES, Certificate, ControlFigure
from plaudit.judges.exam import Traces
from plaudit.judges.stats import Interval
from plaudit.report import page, plots
from plaudit.report.text import format_count, format_frames_interval, format_percent

Examined = Sequence[tuple[Certificate, Traces]]  # the best first

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
    judges = [certificate for certificate, _ in examined]
    data, names = [one.data for one in judges], [one.name for one in judges]
    title = f"Exam: {names[0]}" if len(judges) == 1 else f"Exam of {len(judges)} judges"
    few, most = min(one.episodes for one in data), max(one.episodes for one in data)
    summary = (
        f"{format_count(most, 'episode') if few == most else f'{few} to {most} episodes'} of the store "
        f"'{data[0].store}' that {'this' if len(data) == 1 else 'each'} judge never learned from and was not tuned by, "
        f"with reference labels of {', '.join(data[0].reference)}."
    )
    ranking = [(str(place), *cells) for place, cells in enumerate(_results(judges, _RANKED), 1)]
    figures = [
        (page.span(about, "muted"), *(format_figure(name, one.figures[name]) for one in judges))
        for name, about in FIGURES.items()
    ]
    certificates = [
        (c.name, f"{c.source} {c.fingerprint}", c.rule_text, c.data.fingerprint, f"{c.data.episodes:,}")
        + (f"{c.data.successes:,}", f"{c.data.num_left_out:,}", f"{c.date} UTC")
        for c in judges
    ]

    def muted(words: str) -> Markup:
        return page.text(words, "muted")

    def failure(certificate: Certificate) -> Markup:
        """The first reason, which is the one that explains the others."""
        first, *rest = certificate.problems
        more = f"; and {len(rest)} more" if rest else ""
        return page.text(f"{certificate.name} did not pass: {first}{more}.", "warning")

    blocks = [
        *(failure(one) for one in judges if not one.passed),
        page.section(
            "Result",
            page.table(ranking, ("", "judge", "result", *_RANKED, "controls passed")),
            page.row(_interval_charts(judges)),
            muted(_ABOUT_RESULT),
        ),
        page.section("P(success) over time", page.row(_trace_chart(*one) for one in examined), muted(_ABOUT_TIME)),
        page.section("Figures", page.table(figures, ("", *names)), muted(_ABOUT_FIGURES)),
        page.section("Controls", page.table(_control_rows(judges), ("", *names)), muted(_ABOUT_CONTROLS)),
        page.section(
            "Certificates",
            page.table(
                certificates, ("judge", "fingerprint", "rule", "data", "episodes", "succeed", "left out", "date")
            ),
            *(muted(f"{one.name}: {note}") for one in judges for note in one.notes),
        ),
    ]
    page.write_page(path, title, summary, blocks)


def exam_table(certificates: Sequence[Certificate]) -> rich.table.Table:
    """The result for the terminal."""
    shown = {"ROC AUC, same frame": "same_time_roc_auc", "false positives": "fpr"}  # what fits into 80 columns
    table = rich.table.Table("judge", "result", *shown, "controls", box=None, pad_edge=False)
    for certificate, (name, _, *cells) in zip(certificates, _results(certificates, shown)):
        table.add_row(name, rich.text.Text(_result(certificate), "green" if certificate.passed else "red"), *cells)
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


def _result(certificate: Certificate) -> str:
    return "passed" if certificate.passed else certificate.shortcut or "failed"


def _results(certificates: Sequence[Certificate], shown: Mapping[str, str]) -> list[tuple[str, ...]]:
    """Name, result, these figures and the controls passed of each judge."""
    rows = []
    for certificate in certificates:
        tried = [control for control in certificate.controls if control.frames]
        figures = [format_figure(name, certificate.figures[name]) for name in shown.values()]
        result = page.span(_result(certificate), "good" if certificate.passed else "bad")
        passed = f"{sum(control.passed for control in tried)} of {len(tried)}"
        rows.append((certificate.name, result, *figures, passed))
    return rows


def _interval_charts(certificates: Sequence[Certificate]) -> list[Markup]:
    good, charts = [one.passed for one in certificates], []
    for title, name, mark in (
        ("ROC AUC, frames of the same number (a clock: 50%)", "same_time_roc_auc", 0.5),
        ("False-positive rate, frames", "fpr", None),
    ):
        rates = {one.name: one.figures[name] for one in certificates}
        rows = {judge: (rate.value, rate.low, rate.high) for judge, rate in rates.items()}
        charts.append(page.chart(plots.interval_chart(rows, good, title=title, mark=mark)))
    return charts


def _trace_chart(certificate: Certificate, traces: Traces) -> Markup:
    lines = {name: [list(enumerate(trace.success_prob.tolist()))] for name, trace in traces.items()}
    starts = [trace.first_success for trace in traces.values()]
    events = [plots.EventMarker(start, "", bad=False) for start in starts if start is not None]
    size, y_range = plots.SMALL, (-0.03, 1.03)
    return page.chart(
        plots.line_chart(lines, title=certificate.name, x="frame", y_range=y_range, size=size, events=events)
    )


def _control_rows(certificates: Sequence[Certificate]) -> list[tuple[str, ...]]:
    """Those in which nothing shows success first."""
    by_judge = [{control.name: control for control in certificate.controls} for certificate in certificates]
    seen_otherwise = {name: one.recall is not None for controls in by_judge for name, one in controls.items()}

    def cell(control: ControlFigure | None) -> Markup:
        if control is None or not control.frames:
            return page.span("not run", "muted")
        recall = "" if control.recall is None else f", recall {_percent(control.recall)}"
        return page.span(f"{_short_interval(control.fpr)}{recall}", "good" if control.passed else "bad")

    names = sorted(seen_otherwise, key=lambda name: seen_otherwise[name])
    return [(page.span(name, "muted"), *(cell(controls.get(name)) for controls in by_judge)) for name in names]
