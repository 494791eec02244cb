"""The page of an online run, whatever there is of the run."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plaudit.data.failures import Failures
from plaudit.data.store import Store
from plaudit.report.online import write_online_report
from plaudit.types import Episode, Labels

SIM = {"type": "sim", "env": {"type": "lift"}}
ROBOT = {"type": "igris_b"}


def run(
    folder: Path,
    *lines: dict[str, Any],
    judge: str = "classifier",
    robot: dict[str, Any] = SIM,
    told: list[tuple[str, str]] | None = None,
) -> Path:
    """A run's folder with these metrics, 50 steps and an episode a line."""
    config = {
        "robot": robot,
        "learner": {"type": "sac"},
        "judge": {"type": judge},
        "executor": {"name": robot["type"]},
        "evaluation": {"stop_at": 0.9},
        "audit": {"bound": 0.2},
        "backlog": 16,
    }
    (folder / "config.json").write_text(json.dumps(config))
    usual = {"online/updates": 100, "weights/version": 2, "online/unjudged": 0}
    metrics = [
        {"step": 50 * n, "time/seconds": 10.0 * n, "online/episodes": n, **usual, **line}
        for n, line in enumerate(lines)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics))
    events = [
        {"time": 1e9, "seconds": 1.0, "episodes": 1, "step": 50, "what": what, "sentence": sentence}
        for what, sentence in told or []
    ]
    (folder / "chronicle.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return folder


def played(folder: Path, *outcomes: tuple[bool | None, bool | None], judge: str = "classifier") -> Store:
    """Episodes of four steps: what is true of each, and what the judge said of it; None for nothing."""
    store = Store.create(folder / "episodes")
    for true, said in outcomes:
        privileged = {} if true is None else {"success": np.full(4, true)}
        frames = {"front": np.zeros((5, 8, 8, 3), np.uint8)}
        episode = Episode.of(frames=frames, actions=np.zeros((4, 1)), privileged=privileged, meta={"weights": 3})
        i = store.append(episode)
        if said is not None:
            store.ledger.append(i, Labels.from_cutoff(steps=4, cutoff=2 if said else None, source=judge))
    return store


def page(folder: Path) -> str:
    return write_online_report(folder).read_text()


def test_the_first_and_the_last_evaluation_come_first(tmp_path):
    shown = page(run(tmp_path, {"eval/success": 0.1}, {"online/success_judged": 0.5}, {"eval/success": 0.92}))
    assert "<b>10% → 92%</b>" in shown
    assert "2 episodes, 100 steps, 100 updates in 20 s" in shown


def test_false_successes_are_shown_before_all_others(tmp_path):
    played(tmp_path, (True, True), (False, True), (True, False), (False, False), (False, True))
    shown = page(run(tmp_path, {}))
    assert re.findall(r"<h2>(.*?)</h2>", shown)[:4] == [
        "Episodes",
        "False successes, the newest",
        "Missed successes, the newest",
        "The newest episodes",
    ]
    assert shown.count("<figure") == 5  # each once
    assert '<td>success</td><td><span class="good">1</span></td><td><span class="bad">1</span></td>' in shown
    assert '<td>failure</td><td><span class="bad">2</span></td>' in shown


def test_what_a_person_says_of_an_episode_is_true_where_no_simulator_knows(tmp_path):
    store = played(tmp_path, (None, True), (None, True))
    store.ledger.append(0, Labels.from_cutoff(steps=4, cutoff=None, source="human"))
    shown = page(run(tmp_path, {}, robot=ROBOT))
    assert "igris_b with sac" in shown
    assert "False successes" in shown
    assert "<td>not known</td><td>1</td>" in shown


def test_with_a_person_in_charge_nothing_is_compared_with_that_person(tmp_path):
    played(tmp_path, (None, True), (None, False), (None, None), judge="human")
    shown = page(run(tmp_path, {"online/success_judged": 0.5}, judge="human", robot=ROBOT))
    assert "judged by a person" in shown
    assert "<th>truth</th>" not in shown and "False successes" not in shown and "Audit" not in shown
    assert shown.count("<figure") == 3


def test_a_judge_of_ones_own_is_known_by_its_labels(tmp_path):
    played(tmp_path, (True, True), judge="mine")
    assert '<span class="good">1</span>' in page(run(tmp_path, {}, judge="my_package:MyJudge"))


@pytest.mark.parametrize("there", ["nothing", "an empty store", "one episode", "half a line"])
def test_a_run_that_was_killed_early_has_a_page(tmp_path, there):
    run(tmp_path)
    if there != "nothing":
        played(tmp_path, *([(True, None)] if there == "one episode" else []))
    if there == "half a line":
        (tmp_path / "metrics.jsonl").write_text('{"step": 0, "online/epi')
    assert "Nothing was logged yet." in page(tmp_path)


def test_a_run_that_was_killed_says_how_it_goes_on(tmp_path):
    run(tmp_path, {}, told=[("begun", "the loop begins"), ("ended", "somebody stopped it"), ("begun", "it goes on")])
    assert f"plaudit online --resume {tmp_path}" in page(tmp_path)
    run(tmp_path, {}, told=[("begun", "the loop begins"), ("ended", "somebody stopped it")])
    assert "--resume" not in page(tmp_path) and "Somebody stopped it." in page(tmp_path)


def test_the_gap_is_drawn_with_its_bound_and_the_alarm_with_its_sentence(tmp_path):
    audited = [{"audit/gap": gap, "audit/alarm": float(gap > 0.2), "audit/episodes": 30.0} for gap in (0.0, 0.1, 0.5)]
    shown = page(run(tmp_path, *audited, told=[("alarm", "judged 90%, true 40%")]))
    assert "<b>+50</b>points, judged minus true success of 30 audited episodes; the bound is 20" in shown
    chart = re.search(r"<svg(?:(?!<svg).)*?Audit.*?</svg>", shown, re.DOTALL)[0]
    assert chart.count('stroke-dasharray="4 4"') == 2 and ">alarm</text>" in chart
    assert '<p class="bad">The alarm rang: judged 90%, true 40%.</p>' in shown


def test_why_each_successor_was_taken_or_refused(tmp_path):
    run(tmp_path, *({"judge/version": version, "online/success_judged": 0.5} for version in (0.0, 2.0)))
    figures = [{"score": score, "false": false, "missed": None} for score, false in ((0.7, 0.3), (0.9, 0.0))]
    for number, replaced, sentence, sides in (
        (1, False, "the old judge stays, and no new one could be trained: all fail", [None, None]),
        (2, True, "the new judge takes over: it is right about 90%", figures),
    ):
        decision = {"number": number, "replaced": replaced, "sentence": sentence, "seconds": 61.0}
        folder = tmp_path / f"judges/{number:04d}"
        folder.mkdir(parents=True)
        (folder / "decision.json").write_text(json.dumps({**decision, "old": sides[0], "new": sides[1]}))
    shown = page(tmp_path)
    assert "all fail" in shown and "took over" in shown and "1 min 01 s" in shown
    assert "<td>70% → 90%</td><td>30% → 0%</td><td>- → -</td>" in shown
    assert ">judge 2</text>" in shown


def test_what_the_judge_failed_on_is_told_with_its_reason(tmp_path):
    store = played(tmp_path, (True, None), (True, True))
    Failures(store.ledger).append([(0, "there is no camera 'wrist'")], "classifier", "m")
    shown = page(run(tmp_path, {"online/failed": 1}))
    assert "The judge could say nothing of 1 episode;" in shown
    assert "there is no camera &#x27;wrist&#x27;" in shown


def test_what_happened_is_told_in_order(tmp_path):
    shown = page(run(tmp_path, {}, told=[("trouble", "env: <gone>"), ("restart", "env was brought back")]))
    assert shown.index("env: &lt;gone&gt;") < shown.index("env was brought back")


def test_it_stands_alone(tmp_path):
    played(tmp_path, (True, True))
    shown = page(run(tmp_path, {"loss/critic": 1.0}, {"loss/critic": 0.5}))
    assert not re.findall(r'(?:src|href)="(?!data:)', shown)
