"""The page of an exam: one judge or several, the best first; that of an evaluation (judge.py) with a ranking on top.

    runs/judge_exam/reward_model_0/
      report.html                       the page
      certificate.json                  of one judge; of several, NAME.certificate.json each

The page of an arena is that of an exam of several judges, with the judges next to each other on top.

    runs/judge_arena/bottle_0/
      report.html     the page
      arena.json      all figures, controls, pairs and disagreements for a program
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import rich.table
import rich.text
from markupsafe import Markup

from plaudit.data.transfer import new_folder
from plaudit.errors import format_count
from plaudit.files import file_name
from plaudit.judges.arena import Disagreement, Entry, PairwiseWins
from plaudit.judges.certificate import CERTIFICATE_FILE, FIGURES, Certificate
from plaudit.judges.evaluation import JudgeEvaluation
from plaudit.judges.stats import Interval
from plaudit.report import page, plots
from plaudit.report.judge import JudgeReport, write_reports
from plaudit.report.verdict import Verdict, format_exam_figure, format_percent, format_short_interval

Examined = Sequence[tuple[Certificate, JudgeEvaluation]]  # the best first

_RANKED = {  # heading -> figure
    "false-positive rate": "fpr",
    "recall": "recall",
    "precision": "precision",
    "first success frame": "onset_median",
    "ROC AUC, same frame": "same_time_roc_auc",
    "ROC AUC, all frames": "frame_roc_auc",
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

_ABOUT_RANKING = (
    "The metrics of RBM-EVAL, on robot episodes with a quality label. Kendall's tau between quality (failure, "
    "suboptimal, successful) and the value of the last frame: 1 is the right order, 0 is chance. Alignment is "
    "Pearson's correlation of 5 values of each success with time, which a clock gets right."
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
    more: Sequence[Markup] = (),
) -> None:
    """Write the page. more: sections that compare the judges"""
    judges = [certificate for certificate, _ in examined]
    data, names = [one.data for one in judges], [one.name for one in judges]
    title = title or (f"Exam: {names[0]}" if len(judges) == 1 else f"Exam of {len(judges)} judges")
    few, most = min(one.episodes for one in data), max(one.episodes for one in data)
    summary = (
        f"{format_count(most, 'episode') if few == most else f'{few} to {most} episodes'} of the store "
        f"'{data[0].store}' that {'this' if len(data) == 1 else 'each'} judge never learned from and was not tuned by, "
        f"with reference labels of {', '.join(data[0].reference)}."
    )
    ranking = [(str(place), *cells) for place, cells in enumerate(_results(judges, _RANKED), 1)]
    result = page.section(
        "Result",
        *(_failure(one) for one in judges if not one.passed),
        page.table(ranking, ("", "judge", "result", *_RANKED, "controls passed")),
        page.row(_interval_charts(judges)),
        page.text(_ABOUT_RESULT, "muted"),
    )
    rows = [
        (page.span(about, "muted"), *(format_exam_figure(name, one.figures[name]) for one in judges))
        for name, about in FIGURES.items()
    ]
    figures = [page.table(rows, ("", *names)), page.text(_ABOUT_FIGURES, "muted")]
    if len(judges) == 1:  # the result has the most important ones
        figures = [page.folded("Show all figures", *figures)]
    reports = [JudgeReport.of(one.name, evaluation, _metadata(one)) for one, evaluation in examined]
    first = [page.text(summary, "muted"), result]
    write_reports(path, title, verdict, first, reports, [*more, page.section("Figures", *figures)])


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


def _result(certificate: Certificate) -> str:
    return "passed" if certificate.passed else certificate.shortcut or "failed"


def _results(certificates: Sequence[Certificate], shown: Mapping[str, str]) -> list[tuple[str, ...]]:
    """Name, result, these figures and the controls passed of each judge."""
    rows = []
    for certificate in certificates:
        tried = [control for control in certificate.controls if control.frames]
        figures = [format_exam_figure(name, certificate.figures[name]) for name in shown.values()]
        result = page.span(_result(certificate), "good" if certificate.passed else "bad")
        passed = f"{sum(control.passed for control in tried)} of {len(tried)}"
        rows.append((certificate.name, result, *figures, passed))
    return rows


def _interval_charts(certificates: Sequence[Certificate]) -> list[Markup]:
    good, charts = [one.passed for one in certificates], []
    for title, name, mark in (
        ("False-positive rate, frames", "fpr", None),
        ("ROC AUC, same frame (a clock: 50%)", "same_time_roc_auc", 0.5),
    ):
        rates = {one.name: one.figures[name] for one in certificates}
        rows = {judge: (rate.value, rate.low, rate.high) for judge, rate in rates.items()}
        charts.append(page.chart(plots.interval_chart(rows, good, title=title, mark=mark)))
    return charts


_ABOUT_ACCURACY = (
    "Frames and episodes right: by the judge's labels. Value order: how well the values follow time on successes. A "
    "clock reaches 1, so this figure alone proves nothing."
)
_ABOUT_PAIRS = (
    "Share of episodes in which the judge of the row gets more frames right than the judge of the column; equal ones "
    "count half. Brackets: 95% intervals over episodes. Colored where the interval excludes 50%."
)
_ABOUT_CONTROLS = (
    "Share of frames of each negative control that are called a success. No frame of them shows one, so the share "
    "should be near zero: at most 5%. Where only the images change (brighter, darker, cropped, shifted, one camera "
    "dark), the limit is the judge's own false-positive rate plus 5%."
)
_ABOUT_BASELINES = (
    "clock and constant look at nothing: the clock says success from the median onset of these episodes on, the "
    "constant always. A judge is only as good as the distance of its figures from theirs."
)


def save_arena(
    target: Path,
    entries: Sequence[Entry],
    pairs: Sequence[PairwiseWins],
    frames: Sequence[Disagreement],
    failed: Mapping[str, str],
    verdict: Verdict,
) -> None:
    """Write the folder, which appears complete or not at all.

    entries: the best first
    failed: judges that did not run, and why
    """
    with new_folder(target) as folder:
        tree = {
            "format": "plaudit arena",
            "version": 1,
            "judges": [entry.to_json() for entry in entries],
            "pairwise_wins": [pair.to_json() for pair in pairs],
            "disagreements": [frame.to_json() for frame in frames],
            "failed": dict(failed),
        }
        (folder / "arena.json").write_text(json.dumps(tree, indent=1, allow_nan=False))
        title = f"Arena of {format_count(sum(not entry.baseline for entry in entries), 'judge')} and 2 baselines"
        if failed:
            title += f"; {format_count(len(failed), 'judge')} did not run"
        compared = [_pairs_section(entries, pairs), _frames_section(frames), _controls(entries)]
        write_exam_report(
            folder / "report.html",
            [(entry.certificate, entry.evaluation) for entry in entries],
            verdict,
            title=title,
            more=[*_failed_section(failed), _accuracy_section(entries), *_ranking_section(entries), *compared],
        )


def _accuracy_section(entries: Sequence[Entry]) -> Markup:
    rows = [
        (
            entry.name,
            format_short_interval(entry.frame_accuracy),
            format_short_interval(entry.episode_accuracy),
            _number(entry.certificate.figures["value_order"]),
            _number(entry.certificate.figures["ece"]),
            _seconds(entry.seconds),
        )
        for entry in entries
    ]
    header = ("judge", "frames right", "episodes right", "value order", "calibration error", "time per episode")
    return page.section("Accuracy and time", page.table(rows, header), page.text(_ABOUT_ACCURACY, "muted"))


def _ranking_section(entries: Sequence[Entry]) -> list[Markup]:
    rows = [
        (
            entry.name,
            one.source or "-",
            f"{one.episodes:,}",
            f"{one.tasks:,}",
            _number(one.kendall),
            "-" if math.isnan(one.pairs_in_order) else format_percent(one.pairs_in_order),
            _number(one.alignment),
        )
        for entry in entries
        for one in entry.rankings
    ]
    header = ("judge", "data set", "episodes", "tasks", "Kendall's tau", "pairs in order", "alignment")
    about = page.text(_ABOUT_RANKING, "muted")
    return [page.section("Ranking by quality", page.table(rows, header), about)] if rows else []


def _number(rate: Interval) -> str:
    return "-" if math.isnan(rate.value) else f"{rate.value:.2f} ({rate.low:.2f} to {rate.high:.2f})"


def _seconds(seconds: float) -> str:
    if math.isnan(seconds):
        return "-"
    if seconds < 1e-4:
        return "under 0.1 ms"
    return f"{1000 * seconds:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _failed_section(failed: Mapping[str, str]) -> list[Markup]:
    rows = list(failed.items())
    return [page.section("Judges that did not run", page.table(rows, ("judge", "reason")))] if rows else []


def _pairs_section(entries: Sequence[Entry], pairs: Sequence[PairwiseWins]) -> Markup:
    rates = {(pair.first, pair.second): pair.rate for pair in pairs}
    names = [entry.name for entry in entries]

    def cell(first: str, second: str) -> Markup | str:
        rate = rates.get((first, second))
        if rate is None:
            return ""
        style = "good" if rate.low > 0.5 else "bad" if rate.high < 0.5 else ""
        return page.span(format_short_interval(rate), style)

    rows = [(name, *(cell(name, other) for other in names)) for name in names]
    about = [page.text(_ABOUT_PAIRS, "muted"), page.text(_ABOUT_BASELINES, "muted")]
    return page.section("Pairwise wins", page.table(rows, ("", *names)), *about)


def _frames_section(frames: Sequence[Disagreement]) -> Markup:
    if not frames:
        return page.section("Largest disagreement", page.text("No two judges differ by 5% or more.", "muted"))
    shown = []
    for one in frames:
        target = one.frame.target
        label = page.span("success", "good") if target == 1 else page.span("failure", "bad")
        label = page.span("no label", "muted") if math.isnan(target) else label
        place = page.span(f"episode {one.frame.episode}, frame {one.frame.frame}", "muted")
        lines = (f"{name}: {format_percent(prob)}" for name, prob in sorted(one.probs.items(), key=lambda p: -p[1]))
        shown.append(page.thumbnail(one.frame.image, place, label, *lines))
    about = "P(success) of each judge; the reference label is in color. One frame of an episode."
    return page.section("Largest disagreement", page.row(shown), page.text(about, "muted"))


def _controls(entries: Sequence[Entry]) -> Markup:
    results = {entry.name: {one.name: one for one in entry.certificate.controls} for entry in entries}
    longest = sorted(results.values(), key=len, reverse=True)  # a judge of the simulator has few controls
    names = dict.fromkeys(name for own in longest for name, one in own.items() if one.frames)

    def cell(judge: str, control: str) -> Markup | str:
        one = results[judge].get(control)
        if one is None or not one.frames:
            return "-"
        return page.span(f"{one.fpr.value:.0%}", "good" if one.passed else "bad")

    rows = [(page.span(control, "muted"), *(cell(judge, control) for judge in results)) for control in names]
    return page.section("Negative controls", page.table(rows, ("", *results)), page.text(_ABOUT_CONTROLS, "muted"))
