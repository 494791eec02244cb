"""What `plaudit judge eval` leaves: how far to trust a judge, and where it and the reference part.

runs/judge_eval/vlm_0/
  report.html       for a person
  scores.json       the same numbers for a program, and what was measured
  episodes.jsonl    one line an episode: what the judge said of each frame, and what is true

The page shares its parts with that of a reward model (report/judge.py). What is added is what labels can tell of any
judge: what they say of whole episodes, and the episodes on which it is most wrong, frame by frame.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from plaudit.data.transfer import new_folder
from plaudit.judges.evaluation import Evaluation
from plaudit.judges.labeling import by_sentence
from plaudit.judges.scored import Scored
from plaudit.report.judge import Way, frame_picture, headline, live, percent, seen_whole, trust
from plaudit.report.page import facts_table, note, page, row, section, table, warning, words
from plaudit.report.plot import timeline

_EPISODES = 12  # drawn


def save_evaluation(target: Path, judge: str, found: Evaluation, facts: Mapping[str, str]) -> None:
    """A folder that appears whole."""
    with new_folder(target) as folder:
        (folder / "scores.json").write_text(
            json.dumps({"judge": judge, "facts": dict(facts), **found.to_json()}, indent=1)
        )
        lines = (json.dumps(scored.to_json()) + "\n" for scored in found.scored)
        (folder / "episodes.jsonl").write_text("".join(lines))
        write_evaluation(folder / "report.html", judge, found, facts)


def write_evaluation(path: Path, judge: str, found: Evaluation, facts: Mapping[str, str]) -> None:
    ways = ways_of(found)
    path.write_text(
        page(
            f"Judge: {judge}",
            headline(found.scores, ways[0], "episodes"),
            "".join(warning(sentence) for sentence in named(judge, found)),
            "".join(note(sentence) for sentence in found.notes),
            trust(found.scores, found.controls, found.reliability, ways, "None was run."),
            section("Worst frames", _worst(found)),
            section("Worst episodes", *_episodes(found)),
            section("Not judged", _failed(found.failed)) if found.failed else "",
            section("Facts", facts_table(facts)),
        )
    )


def ways_of(found: Evaluation) -> list[Way]:
    """What its labels say; and of a judge with probabilities, what else could be made of them."""
    mine = Way.of("on its labels", found.on_labels)
    return [mine, live(found.scores), seen_whole(found.scores)] if found.graded else [mine]


def named(judge: str, found: Evaluation) -> list[str]:
    """Who passes success where there is none."""
    controls = ", ".join(control.name for control in found.controls if not control.passed)
    return [f"{judge} passes success on a control: {controls}. Do not trust it."] if controls else []


def _worst(found: Evaluation) -> str:
    if not found.worst:
        return note("No frame was judged wrong by 5% or more.")
    return row(*map(frame_picture, found.worst))


def _episodes(found: Evaluation) -> Sequence[str]:
    ranked = sorted((s for s in found.scored if s.judged.any()), key=_error, reverse=True)[:_EPISODES]
    threshold = found.scores.threshold
    charts = [timeline(s.probability.tolist(), s.truth.tolist(), title=_called(s), threshold=threshold) for s in ranked]
    legend = "Blue: what the judge said. Below it the reference: green a success, dark a failure, pale not known."
    return [row(*charts), note(legend)]


def _called(scored: Scored) -> str:
    return f"episode {scored.episode}, off by {percent(_error(scored))} on average"


def _error(scored: Scored) -> float:
    return float(np.abs(scored.probability - scored.truth)[scored.judged].mean())


def _failed(failed: Mapping[int, str]) -> str:
    rows = [(words(", ".join(map(str, ids))), words(sentence)) for sentence, ids in by_sentence(failed).items()]
    return table(rows, header=("episodes", "why"))
