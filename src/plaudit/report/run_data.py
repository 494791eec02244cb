"""What a report reads from a run's folder: config, metrics, events and judge versions."""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from plaudit.config import read_yaml
from plaudit.data.disk import Folder
from plaudit.files import Root, read_json_lines, read_json_object, read_metrics
from plaudit.report.plots import Band, EventMarker, Series

Lines = list[dict[str, Any]]
ABOUT_INTERVALS = (
    "Shaded areas and brackets are 95% intervals about the episodes that the current judge labeled in this run, "
    "estimated from audited episodes that were drawn at random with known probabilities. They do not hold for "
    "other scenes or later policies."
)


@dataclass(frozen=True)
class RunData:
    """The files of a run's folder; a run that was killed early has some of them only."""

    folder: Path
    config: dict[str, Any]
    metrics: Lines  # a line a moment, by the names in docs/metrics.md
    events: Lines
    judge_versions: Lines  # candidates that were trained to replace the judge, promoted or rejected

    @classmethod
    def load(cls, folder: Path, metrics: Lines | None = None) -> Self:
        """Read them; lines that a power cut or a full disk cut off are left out. metrics: if they were read already"""
        Folder(folder).check_no_links()  # a report embeds what it reads
        decisions = [read_json_object(path) for path in sorted(folder.glob("judge/[0-9]*/promotion.json"))]
        config = read_yaml(folder / "config.yaml", Root(folder))
        metrics = read_metrics(folder / "metrics.jsonl") if metrics is None else metrics
        return cls(folder, config, metrics, read_json_lines(folder / "events.jsonl"), decisions)

    @cached_property
    def columns(self) -> dict[str, list[tuple[float, float]]]:
        """Each metric over env steps."""
        return _columns({}, self.metrics)

    def extended(self, lines: Lines) -> Self:
        """With more metrics. Only these are read: a page follows runs of any length."""
        run = replace(self, metrics=[*self.metrics, *lines])
        vars(run)["columns"] = _columns(self.columns, lines)
        return run

    def option(self, *keys: str) -> Any:
        """A value of the config, like `option("audit", "max_false")`; None where this kind of run has none."""
        value: Any = self.config
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return value

    @property
    def is_online(self) -> bool:
        return self.config.get("schedule") == "online"

    @property
    def last(self) -> dict[str, Any]:
        """The last line of metrics; empty where nothing was logged yet."""
        return self.metrics[-1] if self.metrics else {}

    def latest(self, name: str) -> Any:
        """The latest value of a metric; None where the run does not log it."""
        points = self.columns.get(name)
        return points[-1][1] if points else None

    def points(self, name: str) -> list[tuple[float, float]]:
        """A metric over env steps."""
        return self.columns.get(name, [])

    def rates(self, name: str) -> Series:
        """A share over env steps. A file from elsewhere may have NaN, or a number that is no share: left out."""
        return [(step, share) for step, share in self.points(name) if 0 <= share <= 1]

    def band(self, name: str) -> Band:
        """The interval of a metric over env steps."""
        low, high = self.points(f"{name}_low"), self.points(f"{name}_high")
        return [(step, least, most) for (step, least), (_, most) in zip(low, high)]

    def over_time(self, name: str) -> Series:
        """A metric over minutes: a worker that waits makes no steps."""
        return [(line["time/elapsed_s"] / 60, line[name]) for line in self.metrics if name in line]

    def names(self, *prefixes: str) -> list[str]:
        """The metrics whose name begins so."""
        return sorted(name for name in self.columns if name.startswith(prefixes))

    def markers(self) -> list[EventMarker]:
        """Alarms and promotions of a judge, for a chart over env steps."""
        markers: list[EventMarker] = []
        alarm, version = False, 0
        for step, rings in self.points("audit/alarm"):
            if rings and not alarm:
                markers.append(EventMarker(step, "alarm"))
            alarm = bool(rings)
        for step, newest in self.points("judge/version"):
            if newest > version:
                markers.append(EventMarker(step, f"judge v{newest:.0f}", bad=False))
            version = newest
        return sorted(markers)


def _columns(columns: dict[str, list[tuple[float, float]]], lines: Lines) -> dict[str, list[tuple[float, float]]]:
    for line in lines:
        for name, value in line.items():
            columns.setdefault(name, []).append((line["step"], value))
    return columns
