"""The report of a run, by train or online, whatever there is of the run."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command import plaudit
from drawn import drawn_figures, overlaps
from plaudit.data.ledger import Failures
from plaudit.data.store import Store
from plaudit.report.run import write_run_report
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
        "schedule": "online",
        "robot": robot,
        "learner": {"type": "sac"},
        "judge": {"type": judge},
        "evaluation": {"stop_success_rate": 0.9},
        "audit": {"max_false": 0.1, "max_missed": 0.2, "window": 4},
        "run": {"max_unlabeled_episodes": 16},
    }
    (folder / "config.yaml").write_text(json.dumps(config))
    usual = {"learner/updates": 100, "policy/version": 2, "replay/unlabeled_episodes": 0}
    metrics = [
        {"step": 50 * n, "time/elapsed_s": 10.0 * n, "rollout/episodes": n, **usual, **line}
        for n, line in enumerate(lines)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics))
    events = [
        {"time": 1e9, "elapsed_s": 1.0, "episodes": 1, "step": 50, "event": what, "message": sentence}
        for what, sentence in told or []
    ]
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
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


def charts(page: str) -> list[str]:
    return re.findall(r"<svg.*?</svg>", page, re.DOTALL)


def page(folder: Path) -> str:
    return write_run_report(folder).read_text()


def test_the_first_and_the_last_evaluation_come_first(tmp_path):
    shown = page(run(tmp_path, {"eval/success_once": 0.1}, {"judge/success_once": 0.5}, {"eval/success_once": 0.92}))
    assert "<b>10% → 92%</b>" in shown
    assert "2 episodes, 100 steps, 100 updates in 20 s" in shown


def test_false_positives_are_shown_before_all_others(tmp_path):
    played(tmp_path, (True, True), (False, True), (True, False), (False, False), (False, True))
    shown = page(run(tmp_path, {}))
    assert re.findall(r"<h2>(.*?)</h2>", shown)[:4] == [
        "Episodes",
        "Latest false positives",
        "Latest false negatives",
        "Latest episodes",
    ]
    assert shown.count("<figure") == 5  # each once
    assert '<td>success</td><td><span class="good">1</span></td><td><span class="bad">1</span></td>' in shown
    assert '<td>failure</td><td><span class="bad">2</span></td>' in shown


def test_the_label_of_a_human_is_the_reference_where_there_is_no_simulator(tmp_path):
    store = played(tmp_path, (None, True), (None, True))
    store.ledger.append(0, Labels.from_cutoff(steps=4, cutoff=None, source="human"))
    shown = page(run(tmp_path, {}, robot=ROBOT))
    assert "igris_b with sac" in shown
    assert "Latest false positives" in shown
    assert "<td>unknown</td><td>1</td>" in shown


def test_with_a_human_as_the_judge_there_is_no_reference(tmp_path):
    played(tmp_path, (None, True), (None, False), (None, None), judge="human")
    shown = page(run(tmp_path, {"judge/success_once": 0.5}, judge="human", robot=ROBOT))
    assert "labels by a human" in shown
    assert "<th>reference</th>" not in shown and "false positive" not in shown and "Audit" not in shown
    assert shown.count("<figure") == 3


def test_a_custom_judge_is_found_by_its_labels(tmp_path):
    played(tmp_path, (True, True), judge="mine")
    assert '<span class="good">1</span>' in page(run(tmp_path, {}, judge="my_package:MyJudge"))


@pytest.mark.parametrize("there", ["nothing", "an empty store", "one episode", "half a line"])
def test_a_run_that_was_killed_early_has_a_page(tmp_path, there):
    run(tmp_path)
    if there != "nothing":
        played(tmp_path, *([(True, None)] if there == "one episode" else []))
    if there == "half a line":
        (tmp_path / "metrics.jsonl").write_text('{"step": 0, "online/epi')
    assert "Nothing has been logged yet." in page(tmp_path)


def test_a_run_that_was_killed_shows_the_command_that_resumes_it(tmp_path):
    run(tmp_path, {}, told=[("started", "run started"), ("ended", "stopped by Ctrl-C"), ("started", "run resumed")])
    assert f"plaudit online --resume {tmp_path}" in page(tmp_path)
    run(tmp_path, {}, told=[("started", "run started"), ("ended", "stopped by Ctrl-C")])
    assert f"plaudit online --resume {tmp_path}" in page(tmp_path) and "Stopped by Ctrl-C." in page(tmp_path)


def estimated(name: str, rate: float) -> dict[str, float]:
    return {f"audit/{name}": rate, f"audit/{name}_low": rate - 0.04, f"audit/{name}_high": rate + 0.06}


def test_errors_are_drawn_as_intervals_with_their_limits_and_the_alarm_with_its_message(tmp_path, written_charts):
    audited = [
        {**estimated("false_successes", rate), **estimated("missed_successes", 0.1), "audit/alarm": float(rate > 0.2)}
        | {**estimated("corrected_success_rate", 0.6), "audit/judge_success_rate": 0.8, "audit/episodes": 4}
        for rate in (0.05, 0.1, 0.5)
    ]
    shown = page(run(tmp_path, *audited, told=[("alarm", "judged 90%, true 40%")]))
    assert "<b>50% [46-56]</b>false, of the successes by the judge (max 10)" in shown
    assert "<b>60% [56-66]</b>success in training, the last 4 episodes (corrected by the audit)" in shown
    chart = next(chart for chart in charts(shown) if "Errors of the judge" in chart)
    assert chart.count("stroke-dasharray") == 2 and chart.count('id="interval') == 2 and ">alarm</text>" in chart
    first = charts(shown)[0]
    assert ">corrected by the audit</text>" in first and first.count('id="interval') == 1
    assert '<p class="warning">Audit alarm: judged 90%, true 40%.' in shown


def compared(audited: int = 9, **line: float) -> dict[str, float]:
    """A line of a run whose judge is audited."""
    rates = {**estimated("corrected_success_rate", 0.6), "audit/judge_success_rate": 0.7, "audit/episodes": audited}
    return {**rates, "judge/success_once": 0.99, "env/success_once": 0.98, **line}


def success_tiles(shown: str) -> dict[str, str]:
    tiles = re.findall(r"<b>(\S+?%).*?</b>success in training, the last 4 episodes \((.*?)\)", shown)
    return {who: rate for rate, who in tiles}


def test_success_rates_that_are_compared_are_of_the_same_episodes(tmp_path, written_charts):
    played(tmp_path, (False, True), (True, True), (False, True), (False, True), (False, True))
    shown = page(run(tmp_path, {}, *[compared()] * 5))  # the fifth line is about the episodes 1 to 4
    assert success_tiles(shown) == {"judge": "70%", "simulator": "25%", "corrected by the audit": "60%"}
    assert ">Success rate; in training, of the last 4 episodes</text>" in charts(shown)[0]


def test_a_curve_of_other_episodes_says_which(tmp_path, written_charts):
    played(tmp_path, (None, True), (None, True))  # nothing is known of single episodes
    first = charts(page(run(tmp_path, {}, compared(), compared())))[0]
    assert ">simulator, last 50 episodes</text>" in first and ">simulator</text>" not in first


def test_the_window_begins_with_the_current_judge(tmp_path):
    played(tmp_path, (False, True), (False, True), (False, True), (True, True))
    shown = page(run(tmp_path, {}, *[compared(audited) for audited in (1, 2, 3, 1)]))
    assert success_tiles(shown)["simulator"] == "100%"


def test_worker_charts_have_units(tmp_path, written_charts):
    zeros = dict.fromkeys(("time/judge_latency_s", "time/updates_per_s", "time/sample_wait_fraction"), 0.0)
    latency, updates, wait = [
        next(chart for chart in charts(page(run(tmp_path, zeros, zeros))) if f">{title}</text>" in chart)
        for title in ("Judge latency", "Learner updates per second", "Time the learner waits for batches")
    ]
    assert "%" not in latency + updates and ">s per episode</text>" in latency and ">1/s</text>" in updates
    assert ">100%</text>" in wait


def test_no_texts_of_a_page_overlap(tmp_path, monkeypatch, written_charts):
    played(tmp_path, (True, True), (False, True))
    zeros = dict.fromkeys(("time/judge_latency_s", "policy/robot_version", "loss/critic", "time/updates_per_s"), 0.0)
    errors = {**estimated("false_successes", 0.3), **estimated("missed_successes", 0.1), **zeros, "audit/alarm": 1.0}
    lines = [compared(**errors, **{"eval/success_once": 0.5, "judge/version": n}) for n in range(3)]
    figures = drawn_figures(monkeypatch)
    page(run(tmp_path, *lines))
    assert len(figures) > 6 and [overlaps(figure) for figure in figures] == [[]] * len(figures)


def test_the_page_says_what_the_intervals_cover(tmp_path):
    shown = page(run(tmp_path, compared()))
    assert "episodes that the current judge labeled in this run" in shown and "drawn at random" in shown
    assert "drawn at random" not in page(run(tmp_path, {"judge/success_once": 0.5}))


def test_why_each_candidate_was_promoted_or_rejected(tmp_path, written_charts):
    run(tmp_path, *({"judge/version": version, "judge/success_once": 0.5} for version in (0.0, 2.0)))
    figures = [{"balanced_accuracy": score, "fpr": fpr, "fnr": None} for score, fpr in ((0.7, 0.3), (0.9, 0.0))]
    for number, replaced, sentence, sides in (
        (1, False, "no new version of the judge could be trained: all fail", [None, None]),
        (2, True, "promoted a new version of the judge: balanced accuracy 90%", figures),
    ):
        decision = {"number": number, "promoted": replaced, "message": sentence, "seconds": 61.0}
        folder = tmp_path / f"judge/{number:04d}"
        folder.mkdir(parents=True)
        (folder / "promotion.json").write_text(json.dumps({**decision, "current": sides[0], "candidate": sides[1]}))
    shown = page(tmp_path)
    assert "all fail" in shown and "promoted" in shown and "1 min 01 s" in shown
    assert "<td>70% → 90%</td><td>30% → 0%</td><td>- → -</td>" in shown
    assert ">judge v2</text>" in shown


def test_episodes_that_the_judge_could_not_label_are_listed_with_the_reason(tmp_path):
    store = played(tmp_path, (True, None), (True, True))
    Failures(store.ledger).append([(0, "there is no camera 'wrist'")], "classifier", "m")
    shown = page(run(tmp_path, {"judge/failed_episodes": 1}))
    assert "The judge could not label 1 episode;" in shown
    assert "there is no camera &#39;wrist&#39;" in shown


def test_events_are_in_order_and_escaped(tmp_path):
    shown = page(run(tmp_path, {}, told=[("error", "env: <gone>"), ("restart", "env was restarted")]))
    assert shown.index("env: &lt;gone&gt;") < shown.index("env was restarted")


def test_the_page_needs_no_other_file(tmp_path, written_charts):
    played(tmp_path, (True, True))
    shown = page(run(tmp_path, {"loss/critic": 1.0}, {"loss/critic": 0.5}))
    assert not re.findall(r'(?:src|href)="(?!data:|#)', shown)


# Runs of `plaudit train`


def train_page(folder: Path, *lines: dict[str, Any], judge: str = "classifier") -> str:
    """Of a run with these metrics, a line for each 100 steps."""
    config = {
        "schedule": "train",
        "audit": {"max_false": 0.1, "max_missed": 0.2, "window": 4},
        "env": {"type": "lift"},
        "learner": {"type": "sac"},
        "judge": {"type": judge},
        "run": {"seed": 0},
        "evaluation": {"stop_success_rate": 0.9},
    }
    metrics = [
        {"step": 100 * n, "time/elapsed_s": n, "judge/success_once": 0.5, **line} for n, line in enumerate(lines, 1)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics))
    (folder / "config.yaml").write_text(json.dumps(config))
    return page(folder)


def judged(judge: float, true: float, alarm: float = 0.0) -> dict[str, float]:
    audit = {**estimated("false_successes", judge - true), **estimated("missed_successes", 0.1), "audit/alarm": alarm}
    return {"judge/success_once": judge, "env/success_once": true, **audit}


def test_success_by_the_judge_and_by_the_simulator_share_a_chart(tmp_path, written_charts):
    first, second = charts(train_page(tmp_path, judged(0.5, 0.4) | {"eval/success_once": 0.1}, judged(0.9, 0.9)))[:2]
    assert all(f">{name}</text>" in first for name in ("eval seeds", "judge", "simulator"))
    assert "Errors of the judge" in second


def test_the_window_of_the_audit_covers_several_rollouts(tmp_path):
    rollouts = [
        {**compared(), "env/success_once": true, "rollout/episodes": 2 * n} for n, true in enumerate((0, 1, 0.5), 1)
    ]
    shown = train_page(tmp_path, *rollouts)
    assert success_tiles(shown) == {"judge": "70%", "simulator": "75%", "corrected by the audit": "60%"}


def test_a_run_without_a_learned_judge_has_one_training_curve(tmp_path, written_charts):
    shown = train_page(tmp_path, {"eval/success_once": 0.3}, judge="simulator")
    assert ">training</text>" in shown and ">judge</text>" not in shown and "Audit" not in shown


def test_an_audit_alarm_is_a_warning_and_a_line_in_both_charts(tmp_path, written_charts):
    shown = train_page(tmp_path, judged(0.5, 0.5), judged(0.9, 0.4, alarm=1.0))
    assert '<p class="warning">Audit alarm: after 200 steps 50% of the successes by the judge were false' in shown
    assert len(re.findall(r">alarm</text>", shown)) == 2
    assert ">alarm<" not in train_page(tmp_path, judged(0.5, 0.5))


def test_videos_are_inside_the_page(tmp_path):
    assert "<video" not in train_page(tmp_path, {})
    (tmp_path / "videos").mkdir()
    (tmp_path / "videos/first.mp4").write_bytes(b"film")
    assert 'src="data:video/mp4;base64,ZmlsbQ=="' in train_page(tmp_path, {})


def test_a_run_that_is_not_a_run_is_refused(tmp_path):
    assert "is not the folder of a run" in plaudit("report", ".", cwd=tmp_path, ok=False)
