"""The report of an online run: one HTML page that stands alone.

Everything on it comes from the run's folder, so it can be written at any time: of a run that is under way, that was
killed after its first episode, or that a person judges on a robot where nobody knows the truth.
"""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from plaudit.data.failures import Failures
from plaudit.data.store import Store, is_store
from plaudit.report.page import figures, note, page, row, section, table, warning, words
from plaudit.report.plot import Moment, Series, line_chart
from plaudit.report.verdicts import judge_of, read_verdicts, sheets, stripes, verdict_table
from plaudit.untrusted import read_json_lines, read_json_object, read_metrics

_LARGE, _SMALL = (640, 320), (420, 220)
_TOLD = 60  # lines of the chronicle that are shown, the newest

Lines = list[dict[str, Any]]


def write_online_report(folder: Path) -> Path:
    """Returns its path."""
    lines, told = read_metrics(folder / "metrics.jsonl"), read_json_lines(folder / "chronicle.jsonl")
    config = read_json_object(folder / "config.json")
    decisions = [read_json_object(path) for path in sorted(folder.glob("judges/[0-9]*/decision.json"))]
    path = folder / "report.html"
    path.write_text(
        page(
            _title(config),
            _summary(folder, lines, told),
            figures(_numbers(lines, config)),
            _warnings(lines, told),
            row(_success(lines, config), _audit(lines, config)),
            _episodes(folder, config),
            _judges(decisions),
            section("The loop", row(*_loop(lines, config))),
            section("Learning", row(*(_chart(lines, name) for name in _learned(lines)))) if _learned(lines) else "",
            _chronicle(told),
            section("Config", f"<pre>{words(json.dumps(config, indent=1))}</pre>"),
        )
    )
    return path


# In words


def _title(config: dict[str, Any]) -> str:
    robot, judge = config["robot"], config["judge"].get("type")
    what = (
        robot["env"].get("type", "a simulation")
        if "env" in robot
        else config["executor"]["name"] or robot.get("type", "a robot")
    )
    who = {"human": "a person", "vlm": "a vision-language model", "simulator": "the simulator", None: "its own judge"}
    return f"{what} with {config['learner']['type']}, online, judged by {who.get(judge, f'a {judge}')}"


def _summary(folder: Path, lines: Lines, told: Lines) -> str:
    if not lines:
        return "Nothing was logged yet."
    last = lines[-1]
    counted = {"episode": last["online/episodes"], "step": last["step"], "update": last["online/updates"]}
    said = ", ".join(f"{count:,} {what}{'s' * (count != 1)}" for what, count in counted.items())
    said += f" in {_clock(last['time/seconds'])}. "
    ended = [line for line in told if line["what"] in ("begun", "ended")]
    if ended and ended[-1]["what"] == "ended":
        sentence = ended[-1]["sentence"]
        return f"{said}{sentence[:1].upper()}{sentence[1:]}."
    return f"{said}It is under way, or it was killed; go on with: plaudit online --resume {folder}"


def _numbers(lines: Lines, config: dict[str, Any]) -> dict[str, str]:
    """The figures that matter, meaning -> number."""
    last = lines[-1] if lines else {}
    held_back = [line["eval/success"] for line in lines if "eval/success" in line]
    shown: dict[str, str] = {}
    if held_back:
        at_both_ends = f"{held_back[0]:.0%} → {held_back[-1]:.0%}"
        shown["true success on seeds held back, at the beginning and at the end"] = at_both_ends
    recent = min(50, last.get("online/episodes", 0))
    if "online/success_judged" in last:
        shown[f"judged success of the last {recent} episodes"] = f"{last['online/success_judged']:.0%}"
    if "online/success_true" in last:
        shown[f"true success of the last {recent}, exploring"] = f"{last['online/success_true']:.0%}"
    if "audit/gap" in last:
        gap, bound = 100 * last["audit/gap"], 100 * config["audit"]["bound"]
        audited = f"{last['audit/episodes']:.0f} audited episodes"
        shown[f"points, judged minus true success of {audited}; the bound is {bound:.0f}"] = f"{gap:+.0f}"
    if "weights/version" in last:
        shown["versions of the weights published"] = f"{last['weights/version']:,}"
    return shown


def _warnings(lines: Lines, told: Lines) -> str:
    rang = [line["sentence"] for line in told if line["what"] == "alarm"]
    if not rang and any(line.get("audit/alarm") for line in lines):
        rang = ["the judge was wrong about too many of the audited episodes"]
    said = [f"The alarm rang: {sentence}." for sentence in dict.fromkeys(rang)]
    last = lines[-1] if lines else {}
    if count := last.get("online/failed"):
        said.append(f"The judge could say nothing of {count} episode{'s' * (count > 1)}; why is told below.")
    return "".join(map(warning, said))


# Success and the judge


def _success(lines: Lines, config: dict[str, Any]) -> str:
    curves = {
        "held-back seeds": [_points(lines, "eval/success")],
        "judged": [_points(lines, "online/success_judged")],
        "true": [_points(lines, "online/success_true")],
    }
    there = {name: curve for name, curve in curves.items() if curve[0]}
    wanted = config["evaluation"]["stop_at"]
    if not there:
        return ""
    return line_chart(
        there,
        title="Success" if len(there) > 1 else f"Success: {next(iter(there))}",
        x="steps",
        y="",
        y_range=(0, 1),
        marks=() if wanted is None else (wanted,),
        moments=_moments(lines),
        size=_LARGE,
    )


def _audit(lines: Lines, config: dict[str, Any]) -> str:
    points = _points(lines, "audit/gap")
    if not points:
        return ""
    bound = config["audit"]["bound"]
    reach = 1.25 * max(bound, *(abs(gap) for _, gap in points))
    return line_chart(
        {"judged minus true": [points]},
        title="Audit: judged minus true, and its bound",
        x="steps",
        y="",
        y_range=(-reach, reach),
        marks=(-bound, bound),
        moments=_moments(lines),
        size=(_SMALL[0], _LARGE[1]),
    )


def _moments(lines: Lines) -> list[Moment]:
    """When the alarm rang and when another judge took over."""
    found: list[Moment] = []
    for before, line in zip([{}, *lines], lines):
        if line.get("audit/alarm") and not before.get("audit/alarm"):
            found.append(Moment(line["step"], "alarm"))
        if line.get("judge/version", 0) > before.get("judge/version", 0):
            found.append(Moment(line["step"], f"judge {line['judge/version']:.0f}", bad=False))
    return found


def _judges(decisions: Lines) -> str:
    """Who was trained to replace the judge, and why each was taken or not."""
    if not decisions:
        return ""
    rows = []
    for found in decisions:
        verdict = words("took over", "good") if found["replaced"] else words("refused", "faint")
        sentence = found["sentence"].removeprefix("the old judge stays: ").removeprefix("the new judge takes over: ")
        shares = [_beside(found, name) for name in ("score", "false", "missed")]
        rows.append((f"{found['number']}", verdict, *shares, words(_clock(found["seconds"])), words(sentence)))
    header = ("", "", "right", "failures called", "successes missed", "took", "why")
    told = words(
        "Trained in the background from labels that are believed. Shares of held-out episodes, old → new.", "faint"
    )
    return section("Successors of the judge", f"<p>{told}</p>", table(rows, header=header))


def _beside(found: dict[str, Any], name: str) -> str:
    if found["old"] is None or found["new"] is None:
        return words("-", "faint")
    shares = [found[side][name] for side in ("old", "new")]
    return " → ".join("-" if share is None else f"{share:.0%}" for share in shares)


def _episodes(folder: Path, config: dict[str, Any]) -> str:
    """What the judge made of them, mistakes first."""
    if not is_store(folder / "episodes"):
        return ""
    store = Store.open(folder / "episodes")
    if not store.ids:
        return ""
    judge = judge_of(store, config)
    verdicts = read_verdicts(store, judge)
    summary = section("Episodes", row(stripes(verdicts)), verdict_table(verdicts), _not_judged(store, judge))
    return summary + sheets(store, verdicts, judge)


def _not_judged(store: Store, judge: str) -> str:
    """What the judge failed on, and why."""
    by_reason: dict[str, list[int]] = {}
    for failure in Failures(store.ledger).standing():
        if failure.source == judge:
            by_reason.setdefault(failure.reason, []).append(failure.episode)
    rows = [(words(_some(ids)), words(reason, "bad")) for reason, ids in by_reason.items()]
    return table(rows, header=("not judged", "why")) if rows else ""


# The loop


def _loop(lines: Lines, config: dict[str, Any]) -> list[str]:
    """Over minutes rather than steps: what waits makes none."""
    backlog, queue = config["backlog"], _over_time(lines, "online/unjudged")
    weights = {"published": "weights/version", "on the robot": "weights/on_robot"}
    charts = [
        _timed({"": queue}, f"Episodes that wait for the judge, of {backlog}", _room(queue, backlog)),
        _timed({"": _over_time(lines, "online/judge_latency")}, "Judge: seconds an episode"),
        _timed({"": _over_time(lines, "online/steps_per_second")}, "Robot: frames a second, while it moves"),
        _timed({"": _over_time(lines, "online/updates_per_second")}, "Trainer: updates a second"),
        _timed({"": _over_time(lines, "online/updates")}, "Updates made"),
        _timed({"": _over_time(lines, "online/owed")}, "Updates owed"),
        _timed({name: _over_time(lines, key) for name, key in weights.items()}, "Weights"),
        _timed({"": _over_time(lines, "weights/age")}, "Weights: seconds that the robot is behind"),
        _timed({"": _over_time(lines, "online/sampling")}, "Trainer: share of time waiting for batches", 1.0),
    ]
    return [chart for chart in charts if chart]


def _timed(curves: dict[str, Series], title: str, top: float | None = None) -> str:
    if not any(curves.values()):
        return ""
    most = max(value for curve in curves.values() for _, value in curve)
    named = {name: [curve] for name, curve in curves.items()}
    return line_chart(named, title=title, x="minutes", y="", y_range=(0, top or 1.1 * most or 1), size=_SMALL)


def _room(queue: Series, backlog: int) -> float:
    """The height of a chart that shows a queue and, once that comes near, its bound."""
    return min(backlog, 2 * max((length for _, length in queue), default=0) + 4)


def _learned(lines: Lines) -> list[str]:
    return sorted({name for line in lines for name in line if name.startswith(("loss/", "policy/", "value/"))})


def _chart(lines: Lines, name: str) -> str:
    return line_chart({name: [_points(lines, name)]}, title=name, x="steps", y="", size=_SMALL)


def _chronicle(told: Lines) -> str:
    """What happened, and when."""
    if not told:
        return ""
    looks = {"alarm": "bad", "trouble": "bad", "restart": "bad", "over": "good", "news": ""}
    rows = [
        (
            words(_moment(line["time"]), "faint"),
            words(f"episode {line['episodes']:,}", "faint"),
            words(line["sentence"], looks.get(line["what"], "faint")),
        )
        for line in told[-_TOLD:]
    ]
    more = note(f"{len(told) - _TOLD} earlier lines are in chronicle.jsonl.") if len(told) > _TOLD else ""
    return section("What happened", table(rows), more)


def _points(lines: Lines, name: str) -> Series:
    return [(line["step"], line[name]) for line in lines if name in line]


def _over_time(lines: Lines, name: str) -> Series:
    return [(line["time/seconds"] / 60, line[name]) for line in lines if name in line]


def _some(ids: list[int], most: int = 12) -> str:
    shown = ", ".join(map(str, ids[-most:]))
    return f"{shown} and {len(ids) - most} more" if len(ids) > most else shown


def _clock(seconds: float) -> str:
    """48 s, 2 min 05 s, 3 h 10 min"""
    whole = round(seconds)
    if whole < 3600:
        return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
