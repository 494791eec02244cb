"""The report of a training run: one HTML page that stands alone, with its curves and what it was asked to do."""

import json
from pathlib import Path
from typing import Any

from plaudit.report.page import page, row, section, table, words
from plaudit.report.plot import line_chart


def write_report(folder: Path) -> Path:
    """From the run's own files; can be written again at any time."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    config = json.loads((folder / "config.json").read_text())
    charts = [_success(lines, config), *(_chart(lines, name) for name in _curves(lines))]
    evaluations = [line for line in lines if "eval/success" in line]
    rows = [
        (f"{line['step']:,}", f"{line['eval/success']:.0%}", f"{line['time/seconds']:.0f} s") for line in evaluations
    ]
    title = f"{config['env']['type']} with {config['learner']['type']}, seed {config['seed']}"
    path = folder / "report.html"
    path.write_text(
        page(
            title,
            _summary(lines, evaluations),
            row(*charts),
            section("Evaluations", table(rows, header=("step", "success on seeds held back", "after"))),
            section("Config", f"<pre>{words(json.dumps(config, indent=1))}</pre>"),
        )
    )
    return path


def _summary(lines: list[dict[str, Any]], evaluations: list[dict[str, Any]]) -> str:
    last = lines[-1]
    best = max((line["eval/success"] for line in evaluations), default=None)
    first = next((line for line in evaluations if line["eval/success"] >= 0.9), None)
    said = f"{last['step']:,} steps in {last['time/seconds']:.0f} s"
    if best is not None:
        said += f"; best success on held-back seeds {best:.0%}"
    if first is not None:
        said += f"; 90% reached after {first['step']:,} steps and {first['time/seconds']:.0f} s"
    return said


def _success(lines: list[dict[str, Any]], config: dict[str, Any]) -> str:
    played = {name: [(line["step"], line[name]) for line in lines if name in line] for name in _PLAYED}
    curves = {
        "held-back seeds": [[(line["step"], line["eval/success"]) for line in lines if "eval/success" in line]],
        **{said: [_smooth(played[name])] for name, said in _PLAYED.items() if played[name]},
    }
    return line_chart(curves, title="Success", x="steps", y="", y_range=(0, 1), mark=config["evaluation"]["stop_at"])


_PLAYED = {"train/success": "in training", "env/success_once": "of these, true"}  # the second beside a reward model


def _smooth(points: list[tuple[float, float]], over: int = 5) -> list[tuple[float, float]]:
    """The mean of the last few: a round of sixteen episodes is a coarse measure."""
    return [
        (x, sum(y for _, y in points[max(0, i - over + 1) : i + 1]) / min(i + 1, over))
        for i, (x, _) in enumerate(points)
    ]


def _curves(lines: list[dict[str, Any]]) -> list[str]:
    names = {name for line in lines for name in line if name.startswith(("loss/", "policy/", "value/", "train/reward"))}
    return sorted(names)


def _chart(lines: list[dict[str, Any]], name: str) -> str:
    points = [(line["step"], line[name]) for line in lines if name in line]
    return line_chart({name: [points]}, title=name, x="steps", y="", size=(420, 220))
