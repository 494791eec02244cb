"""What a person sees on the terminal while an online run goes on."""

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from plaudit.training.display import Display, Pace
from plaudit.training.events import Chronicle
from plaudit.training.online_config import OnlineConfig, load_online
from plaudit.training.progress import Now
from plaudit.training.replay_buffer import ReplayStats
from plaudit.training.state_manager import PolicyStatus

AUDITED = {"audit/judged": 0.8, "audit/true": 0.7, "audit/gap": 0.1, "audit/alarm": 0.0, "audit/episodes": 40.0}


def config(*more: str) -> OnlineConfig:
    asked = ["robot=sim", "robot.env.type=lift", "learner=sac", "judge=classifier", "judge.model=judge"]
    return load_online(OnlineConfig, None, [*asked, "algorithm=sequential", "episodes=1000", *more])


def moment(episodes: int = 120, **more) -> Now:
    counts = ReplayStats(
        episodes=episodes,
        steps=50 * episodes,
        unjudged=3,
        unjudged_steps=150,
        failed=0,
        outdated=0,
        demos_unjudged=0,
    )
    return Now(counts, PolicyStatus(version=61, pushed=0.0), **more)


def drawn(screen, width: int = 80) -> list[str]:
    paper = io.StringIO()
    Console(file=paper, width=width, force_terminal=False).print(screen)
    return paper.getvalue().splitlines()


def test_all_that_matters_is_on_one_screen():
    now = moment(
        judged_success=0.62,
        true_success=0.58,
        evaluated=0.71,
        updates=2900,
        owed=75,
        on_robot=60,
        age=4.2,
        steps_per_second=19.9,
        updates_per_second=66.0,
        judge_latency=0.048,
        sampling=0.07,
        seconds=754,
        honesty={**AUDITED, "audit/waiting": 2.0, "judge/version": 2.0, "judge/refused": 1.0},
    )
    shown = "\n".join(drawn(Display(config()).screen(now)))
    for said in (
        "lift with sac, judged by a classifier",
        "0:12:34",
        "120 of 1,000 episodes",
        "judged 62%, true 58%; on seeds held back 71%",
        "6,000 steps, 20 frames/s, weights 60 of 61, 4 s behind",
        "3 of 16 episodes wait, 48 ms each, version 2 (1 refused)",
        "2,900 updates, 75 owed, 66 updates/s, 7% waiting for batches",
        "gap +10 of 20 points: judged 80%, true 70% of 40; 2 wait for a person",
    ):
        assert said in shown


def crowded() -> Now:
    return replace(
        moment(9_999_999, judged_success=1.0, true_success=1.0, evaluated=1.0, updates=9_999_999, owed=9_999_999),
        on_robot=99_999,
        age=99_999.0,
        steps_per_second=99_999.0,
        updates_per_second=99_999.0,
        judge_latency=999.0,
        seconds=999_999,
        holding="the learner studies the demonstrations first, 1,000,000 updates to go",
        honesty={**AUDITED, "audit/waiting": 9999.0, "judge/version": 99.0, "judge/refused": 99.0},
        news="the new judge takes over: " + "it is right more often, " * 8,
        alarm="judged 100% of the last 60 audited episodes a success, and 20% were; " * 3,
        troubles={"env": "the robot does not answer: " + "nothing came for a while " * 4},
    )


def test_no_line_is_longer_than_a_terminal():
    view = Display(config("episodes=99999999", "evaluation.stop_at=0.9"))
    view.screen(moment(0))
    assert max(map(len, drawn(view.screen(crowded(), {"env": 3, "trainer": 12}, stopping=True), width=200))) <= 80


def test_what_went_wrong_is_told_in_full():
    now = crowded()
    shown = " ".join(" ".join(drawn(Display(config()).screen(now, {"env": 3, "trainer": 1}))).split())
    assert " ".join(now.alarm.split()) in shown
    assert " ".join(now.troubles["env"].split()) in shown
    assert "brought back: env 3x, trainer 1x" in shown


def test_it_keeps_its_height_while_all_is_well():
    view = Display(config())
    early = drawn(view.screen(moment(0, holding="there are no weights yet")))
    late = drawn(view.screen(moment(999, honesty=AUDITED, judged_success=0.5, age=20.0, judge_latency=0.1)))
    assert len(early) == len(late) <= 10


def test_why_the_robot_waits():
    assert "waits    16 episodes wait for the judge, 16 may" in "\n".join(
        drawn(Display(config()).screen(moment(holding="16 episodes wait for the judge, 16 may")))
    )
    assert "waits    the robot does not" in "\n".join(drawn(Display(config()).screen(moment())))


def test_on_a_robot_with_a_person_nobody_speaks_of_what_only_a_simulation_knows():
    asked = load_online(OnlineConfig, None, ["robot=igris_b", "learner=sac", "judge=human"])
    closed = "the labelling window was closed; open it again with: plaudit label runs/x/episodes --judge human"
    shown = " ".join(" ".join(drawn(Display(asked).screen(moment(window=closed)))).split())
    assert "igris_b with sac, judged by a person" in shown
    assert closed in shown
    for unknown in ("true", "held back", "gap", "ms each"):
        assert unknown not in shown


def test_the_time_left_is_that_of_the_rate_of_late():
    pace = Pace()
    for second in range(0, 600, 2):  # first an episode every 10 s, then one every 2 s
        pace.note(second, second // 10 if second < 300 else 30 + (second - 300) // 2)
    assert pace.left(279) == pytest.approx(200, rel=0.05)  # 100 more


def test_nobody_can_say_how_long_it_will_be_while_the_robot_stands():
    pace = Pace()
    assert pace.left(100) is None
    for second in range(300):
        pace.note(second, min(second, 50))
    assert pace.left(100) is None


def test_a_run_that_may_end_earlier_says_so():
    view = Display(config("evaluation.stop_at=0.9"))
    for second in range(0, 90, 10):
        view.screen(moment(second, seconds=float(second)))
    shown = drawn(view.screen(moment(90, seconds=90.0)))
    assert "90 of 1,000 episodes, at most 0:15:10 to go" in shown[1]


def test_a_log_gets_the_same_in_one_line():
    said = Display(config()).line(moment(judged_success=0.5, seconds=61, holding="it is tired"))
    assert "\n" not in said
    assert said.startswith("time 0:01:01; played 120 of 1,000 episodes; success judged 50%")
    assert said.endswith("waits it is tired")


def test_the_chronicle_has_each_thing_once(tmp_path):
    chronicle = Chronicle(tmp_path)
    lost = {"env": "the robot does not answer"}
    for now, restarts in (
        (moment(1), {}),
        (moment(2, troubles=lost), {}),
        (moment(2, troubles=lost), {}),
        (moment(3), {"env": 1}),
        (moment(4, news="the new judge takes over"), {"env": 1}),
        (moment(5, news="the new judge takes over", alarm="too many"), {"env": 2}),
        (moment(6, news="the new judge takes over", alarm="too many"), {"env": 2}),
    ):
        chronicle.note(now, restarts)
    told = [json.loads(line) for line in (tmp_path / "chronicle.jsonl").read_text().splitlines()]
    assert [(line["episodes"], line["what"], line["sentence"]) for line in told] == [
        (2, "trouble", "env: the robot does not answer"),
        (3, "over", "env: it answers again"),
        (3, "restart", "env was brought back"),
        (4, "news", "the new judge takes over"),
        (5, "restart", "env was brought back"),
        (5, "alarm", "too many"),
    ]


def test_a_full_disk_does_not_end_the_loop_for_want_of_a_chronicle(tmp_path):
    Chronicle(tmp_path / "gone").tell(moment(), "begun", "the loop begins")
