"""The report of a training run: one HTML page that stands alone, with its curves and what it was asked to do."""

import json
from pathlib import Path
from typing import Any

from plaudit.report.page import page, row, section, table, video, warning, words
from plaudit.report.plot import Moment, line_chart
from plaudit.untrusted import read_json_object, read_metrics

_SMALL = (420, 220)


def write_report(folder: Path) -> Path:
    """From the run's own files; can be written again at any time."""
    lines, config = read_run(folder)
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
            alarm(lines),
            row(success_chart(lines, config), judge_chart(lines)),
            films(folder),
            section("Learning", row(*(_chart(lines, name) for name in _curves(lines)))),
            section("Evaluations", table(rows, header=("step", "success on seeds held back", "after"))),
            section("Config", f"<pre>{words(json.dumps(config, indent=1))}</pre>"),
        )
    )
    return path


def read_run(folder: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Its metrics, a line a moment, and its config."""
    return read_metrics(folder / "metrics.jsonl"), read_json_object(folder / "config.json")


def alarm(lines: list[dict[str, Any]]) -> str:
    """A red sentence where the judge in charge was caught; nothing where it was not."""
    rang = _rang(lines)
    if rang is None:
        return ""
    return warning(
        f"The alarm rang after {rang['step']:,} steps: {_mistakes(rang)} Look at these episodes, label them and train "
        "the judge again."
    )


def _mistakes(line: dict[str, Any]) -> str:
    """What the judge was wrong about; runs of earlier versions logged the difference alone."""
    if "audit/missed_successes" not in line:
        return f"the judge called {line['reward/gap']:.0%} more of the audited episodes a success than were."
    return (
        f"of the audited episodes {line['audit/false_successes']:.0%} were called a success and are none, which "
        f"teaches the policy to please the judge, and {line['audit/missed_successes']:.0%} are a success and were not "
        "called, which the policy is not paid for."
    )


def success_chart(lines: list[dict[str, Any]], config: dict[str, Any], size: tuple[int, int] = (640, 320)) -> str:
    """With a reward model in charge, what it said of the episodes in training and what is true of them."""
    curves = {"held-back seeds": [[(line["step"], line["eval/success"]) for line in lines if "eval/success" in line]]}
    if any("reward/success_once" in line for line in lines):
        curves["judged, in training"] = [_smooth(_points(lines, "reward/success_once"))]
        curves["true, in training"] = [_smooth(_points(lines, "env/success_once"))]
    else:
        curves["in training"] = [_smooth(_points(lines, "train/success"))]
    wanted, rang = config["evaluation"]["stop_at"], _moments(lines)
    marks = () if wanted is None else (wanted,)
    return line_chart(curves, title="Success", x="steps", y="", y_range=(0, 1), marks=marks, moments=rang, size=size)


def judge_chart(lines: list[dict[str, Any]]) -> str:
    """How far the judge in charge is to be trusted; nothing where the simulator judges."""
    if not any("reward/agreement" in line for line in lines):
        return ""
    curves = {
        "agreement": [_smooth(_points(lines, "reward/agreement"))],
        "judged minus true": [_points(lines, "reward/gap")],
    }
    rang, size = _moments(lines), (_SMALL[0], 320)
    return line_chart(curves, title="Judge", x="steps", y="", y_range=(-0.2, 1), moments=rang, size=size)


def films(folder: Path) -> str:
    """The first and the last policy, where the run has been filmed."""
    shown = {"first.mp4": "Before it learned anything.", "last.mp4": "The last policy."}
    there = [(folder / name, said) for name, said in shown.items() if (folder / name).exists()]
    told = words(
        "Held-back seeds, the same in both. Under each scene: how sure the judge is, and what is true.", "faint"
    )
    found = row(*(video(path.read_bytes(), words(said)) for path, said in there))
    return section("First and last policy", f"<p>{told}</p>", found) if there else ""


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


def _rang(lines: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The line of the round that the alarm rang in first."""
    return next((line for line in lines if line.get("reward/alarm")), None)


def _moments(lines: list[dict[str, Any]]) -> list[Moment]:
    """That of the alarm, for a chart."""
    rang = _rang(lines)
    return [] if rang is None else [Moment(rang["step"], "alarm")]


def _points(lines: list[dict[str, Any]], name: str) -> list[tuple[float, float]]:
    return [(line["step"], line[name]) for line in lines if name in line]


def _smooth(points: list[tuple[float, float]], over: int = 5) -> list[tuple[float, float]]:
    """The mean of the last few: a round of sixteen episodes is a coarse measure."""
    return [
        (x, sum(y for _, y in points[max(0, i - over + 1) : i + 1]) / min(i + 1, over))
        for i, (x, _) in enumerate(points)
    ]


def _curves(lines: list[dict[str, Any]]) -> list[str]:
    kinds = ("loss/", "policy/", "value/", "train/reward", "time/compute_model_rewards")
    return sorted({name for line in lines for name in line if name.startswith(kinds)})


def _chart(lines: list[dict[str, Any]], name: str) -> str:
    return line_chart({name: [_points(lines, name)]}, title=name, x="steps", y="", size=_SMALL)
