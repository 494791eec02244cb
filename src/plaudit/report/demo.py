"""The report of the demo: one HTML page that stands alone, from the episodes to the policy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap

import numpy as np

from plaudit.data.store import Store
from plaudit.judges.controls import ControlResult
from plaudit.judges.metrics import Scores, reliability
from plaudit.judges.scored import JudgedFrame, Scored, side_by_side
from plaudit.report.judge import frame_picture, headline, trust
from plaudit.report.page import figures, page, row, section, table, warning, words
from plaudit.report.run import alarm, films, judge_chart, read_run, success_chart
from plaudit.untrusted import read_json_lines, read_json_object

_SHOWN = 8  # frames of a kind
_WIDTH = 120  # characters of a command in a line


@dataclass(frozen=True)
class Stage:
    """A part of the way."""

    name: str
    result: str  # what came of it, in a sentence
    seconds: float
    command: str  # that does the same


def write_demo_report(
    path: Path,
    title: str,
    summary: str,
    numbers: Mapping[str, str],
    problems: Sequence[str],
    stages: Sequence[Stage],
    *,
    data: Path,
    judge: Path,
    run: Path,
) -> None:
    """
    numbers: the figures that matter, meaning -> number
    problems: what did not go as it should, in sentences
    data, judge, run: folders that the stages made
    """
    lines, config = read_run(run)
    scores, controls, held_out = read_judge(judge)
    said = np.concatenate([scored.probability for scored in held_out])
    true = np.concatenate([scored.truth for scored in held_out])
    path.write_text(
        page(
            title,
            summary,
            figures(numbers),
            *map(warning, problems),
            alarm(lines),
            _stages(stages),
            section("Learning, judged and true", row(success_chart(lines, config, (760, 320)), judge_chart(lines))),
            films(run),
            section("The judge", f"<p>{words(headline(scores))}</p>", trust(scores, controls, reliability(said, true))),
            _frames(Store.open(data), held_out),
            section("The same by hand", f"<pre>{words(_commands(stages))}</pre>"),
        )
    )


def read_judge(folder: Path) -> tuple[Scores, list[ControlResult], list[Scored]]:
    """How good it was found to be, and what it said of each episode that it was measured on."""
    facts = read_json_object(folder / "model.json")
    held_out = [Scored.from_json(line) for line in read_json_lines(folder / "held_out.jsonl")]
    return Scores.from_json(facts["scores"]), [ControlResult(**tree) for tree in facts["controls"]], held_out


def _stages(stages: Sequence[Stage]) -> str:
    rows = [(words(f"{n}. {s.name}"), words(s.result), words(clock(s.seconds))) for n, s in enumerate(stages, 1)]
    rows.append((words("together", "faint"), "", words(clock(sum(stage.seconds for stage in stages)))))
    return section("Stages", table(rows, header=("stage", "what came of it", "time")))


def _commands(stages: Sequence[Stage]) -> str:
    """One after the other, long ones over several lines."""
    lines = (wrap(s.command, _WIDTH, break_long_words=False, break_on_hyphens=False) for s in stages)
    return "\n".join(" \\\n    ".join(pieces) for pieces in lines)


def clock(seconds: float) -> str:
    """48 s, 2 min 05 s"""
    whole = round(seconds)
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60:02d} s"


def _frames(store: Store, held_out: Sequence[Scored]) -> str:
    """A few of each kind as they come, and those that it is most wrong about."""
    rng = np.random.default_rng(0)
    shuffled = [held_out[i] for i in rng.permutation(len(held_out))]
    parts = []
    for truth, kind in ((1, "Frames of success"), (0, "Frames of failure")):
        places = [(s, int(rng.choice(np.flatnonzero(s.truth == truth)))) for s in shuffled if (s.truth == truth).any()]
        parts.append(section(f"{kind}, drawn at random", _pictures(store, places[:_SHOWN])))
    worst = sorted(((s, int(_error(s).argmax())) for s in held_out), key=lambda place: -_error(place[0])[place[1]])
    parts.append(section("The worst frame of each of the worst episodes", _pictures(store, worst[:_SHOWN])))
    return "".join(parts)


def _error(scored: Scored) -> np.ndarray:
    return np.nan_to_num(np.abs(scored.probability - scored.truth))


def _pictures(store: Store, places: Sequence[tuple[Scored, int]]) -> str:
    """All cameras of a moment side by side."""
    shown = []
    for scored, place in places:
        episode = store.episode(scored.episode)
        frame = int(np.arange(episode.steps + 1)[episode.recorded][place])
        truth, said = float(scored.truth[place]), float(scored.probability[place])
        image = side_by_side([frames[frame] for frames in episode.frames.values()])
        shown.append(JudgedFrame(scored.episode, frame, truth, said, image))
    return row(*map(frame_picture, shown))
