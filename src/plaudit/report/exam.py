"""The page of an exam: one judge or several, the best first; that of an evaluation (judge.py) with a ranking on top.

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
from plaudit.judges.certificate import CERTIFICATE_FILE, CORRELATIONS, FIGURES, IN_FRAMES, Certificate
from plaudit.judges.evaluation import JudgeEvaluation
from plaudit.judges.stats import Interval
from plaudit.report import page, plots
from plaudit.report.judge import JudgeReport, write_reports
from plaudit.report.verdict import Verdict, format_count, format_frames_interval, format_short_interval

Examined = Sequence[tuple[Certificate, JudgeEvaluation]]  # the best first

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


def save_exam(target: Path, examined: Examined, verdict: Verdict) -> None:
    """Write the folder of an exam; it appears complete or not at all."""
    with new_folder(target) as folder:
        write_exam_report(folder / "report.html", examined, verdict)
        for certificate, _ in examined:
            name = CERTIFICATE_FILE if len(examined) == 1 else f"{file_name(certificate.name)}.{CERTIFICATE_FILE}"
            certificate.save(folder / name)


def write_exam_report(
    path: Path,
    examined: Examined,
    verdict: Verdict,
    *,
    title: str = "",
    columns: Mapping[str, Sequence[str]] | None = None,
    more: Sequence[Markup] = (),
) -> None:
    """Write the page.

    columns: heading -> cells of the ranking, in addition to those of an exam
    more: sections that compare the judges
    """
    judges = [certificate for certificate, _ in examined]
    data, names = [one.data for one in judges], [one.name for one in judges]
    title = title or (f"Exam: {names[0]}" if len(judges) == 1 else f"Exam of {len(judges)} judges")
    few, most = min(one.episodes for one in data), max(one.episodes for one in data)
    summary = (
        f"{format_count(most, 'episode') if few == most else f'{few} to {most} episodes'} of the store "
        f"'{data[0].store}' that {'this' if len(data) == 1 else 'each'} judge never learned from and was not tuned by, "
        f"with reference labels of {', '.join(data[0].reference)}."
    )
    columns = columns or {}
    added = zip(*columns.values(), strict=True) if columns else [()] * len(judges)
    rows = zip(_results(judges, _RANKED), added, strict=True)
    ranking = [(str(place), *cells[:2], *own, *cells[2:]) for place, (cells, own) in enumerate(rows, 1)]
    result = page.section(
        "Result",
        *(_failure(one) for one in judges if not one.passed),
        page.table(ranking, ("", "judge", "result", *columns, *_RANKED, "controls passed")),
        page.row(_interval_charts(judges)),
        page.text(_ABOUT_RESULT, "muted"),
    )
    rows = [
        (page.span(about, "muted"), *(_format_figure(name, one.figures[name]) for one in judges))
        for name, about in FIGURES.items()
    ]
    figures = page.section("Figures", page.table(rows, ("", *names)), page.text(_ABOUT_FIGURES, "muted"))
    reports = [JudgeReport.of(one.name, evaluation, _metadata(one)) for one, evaluation in examined]
    write_reports(path, title, verdict, [page.text(summary, "muted"), result], reports, [*more, figures])


def _failure(certificate: Certificate) -> Markup:
    """The first reason, which is the one that explains the others."""
    first, *rest = certificate.problems
    more = f"; and {len(rest)} more" if rest else ""
    return page.text(f"{certificate.name} did not pass: {first}{more}.", "warning")


def _metadata(certificate: Certificate) -> dict[str, str]:
    data = certificate.data
    return {
        "judge": f"{certificate.source} {certificate.fingerprint}",
        "rule": certificate.rule_text,
        "store": data.store,
        "reference": ", ".join(data.reference),
        "data fingerprint": data.fingerprint,
        "episodes": f"{data.episodes:,}, {data.successes:,} of which succeed",
        "left out": f"{data.num_left_out:,}, which it learned from or could not score",
        "date": f"{certificate.date} UTC",
    }


def exam_table(certificates: Sequence[Certificate]) -> rich.table.Table:
    """The result for the terminal."""
    shown = {"ROC AUC, same frame": "same_time_roc_auc", "false positives": "fpr"}  # what fits into 80 columns
    table = rich.table.Table("judge", "result", *shown, "controls", box=None, pad_edge=False)
    for certificate, (name, _, *cells) in zip(certificates, _results(certificates, shown)):
        table.add_row(name, rich.text.Text(_result(certificate), "green" if certificate.passed else "red"), *cells)
    return table


def _format_figure(name: str, rate: Interval) -> str:
    """A figure of an exam with its interval; "-" where it could not be measured."""
    if math.isnan(rate.value):
        return "-"
    if name in IN_FRAMES:
        return format_frames_interval(rate)
    if name in CORRELATIONS or name.endswith("roc_auc"):
        return f"{rate.value:.2f} ({rate.low:.2f} to {rate.high:.2f})"
    return format_short_interval(rate)


def _result(certificate: Certificate) -> str:
    return "passed" if certificate.passed else certificate.shortcut or "failed"


def _results(certificates: Sequence[Certificate], shown: Mapping[str, str]) -> list[tuple[str, ...]]:
    """Name, result, these figures and the controls passed of each judge."""
    rows = []
    for certificate in certificates:
        tried = [control for control in certificate.controls if control.frames]
        figures = [_format_figure(name, certificate.figures[name]) for name in shown.values()]
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
