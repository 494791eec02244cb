"""What a report reads from a run's folder: config, metrics, events and judge versions."""

from dataclasses import dataclass
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
        return next((line[name] for line in reversed(self.metrics) if name in line), None)

    def points(self, name: str) -> list[tuple[float, float]]:
        """A metric over env steps."""
        return [(line["step"], line[name]) for line in self.metrics if name in line]

    def band(self, name: str) -> Band:
        """The interval of a metric over env steps."""
        low, high = f"{name}_low", f"{name}_high"
        return [(line["step"], line[low], line[high]) for line in self.metrics if low in line]

    def over_time(self, name: str) -> Series:
        """A metric over minutes: a worker that waits makes no steps."""
        return [(line["time/elapsed_s"] / 60, line[name]) for line in self.metrics if name in line]

    def names(self, *prefixes: str) -> list[str]:
        """The metrics whose name begins so."""
        return sorted({name for line in self.metrics for name in line if name.startswith(prefixes)})

    def markers(self) -> list[EventMarker]:
        """Alarms and promotions of a judge, for a chart over env steps."""
        markers: list[EventMarker] = []
        alarm, version = False, 0
        for line in self.metrics:
            rings = bool(line.get("audit/alarm", alarm))
            if rings and not alarm:
                markers.append(EventMarker(line["step"], "alarm"))
            if line.get("judge/version", version) > version:
                markers.append(EventMarker(line["step"], f"judge v{line['judge/version']:.0f}", bad=False))
            alarm, version = rings, line.get("judge/version", version)
        return markers
