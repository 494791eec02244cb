"""Tables of judges for the terminal."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from plaudit.judges.calibration import CalibrationRecord, Fit
from plaudit.judges.controls import ControlResult
from plaudit.judges.forecast import FIGURES, Forecast
from plaudit.judges.metrics import EpisodeMetrics, JudgeMetrics, onset_intervals
from plaudit.judges.stats import Interval
from plaudit.report.judge import Decodes, first_frame_count
from plaudit.report.promise import format_figure
from plaudit.report.tables import key_value_table
from plaudit.report.text import (
    format_count,
    format_frames,
    format_frames_interval,
    format_interval,
    format_number,
    format_percent,
)


def judge_table(title: str, metrics: JudgeMetrics, controls: Sequence[ControlResult]) -> Table:
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
    return key_value_table(title, values)


def forecast_table(forecast: Forecast) -> Table:
    """What other episodes will show."""
    values = {meaning: format_figure(name, forecast.figures[name]) for name, meaning in FIGURES.items()}
    ahead = format_count(forecast.ahead, "other episode")
    return key_value_table(f"{ahead}, in brackets between what their figures will be in 19 of 20 cases", values)


def calibration_table(title: str, fit: Fit, record: CalibrationRecord, cutoffs: EpisodeMetrics) -> Table:
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
    return key_value_table(title, values)


def decode_table(decodes: Decodes) -> Table:
    """A line for each decision rule."""
    table = Table("decision rule", "true positives", "false positives", box=None, pad_edge=False)
    table.add_column("success-onset error")
    table.add_column("90th percentile")
    for name, d in decodes.items():
        tp = f"{d.tp} of {d.tp + d.fn}" if d.tp + d.fn else "no successes"
        fp = f"{d.fp} of {d.fp + d.tn}" if d.fp + d.tn else "no failures"
        onset = format_frames(d.onset_median), format_frames(d.onset_p90)
        table.add_row(name, tp, Text(fp, "red" if d.fp else ""), *onset)
    return table


def _onset_error(decode: EpisodeMetrics) -> str:
    if not decode.tp:
        return "no success predicted"
    median, p90 = (format_frames_interval(interval) for interval in onset_intervals(decode))
    return f"median {median}, 90th percentile {p90}"
