"""What a person sees on the terminal while an online run goes on."""

import io
import json
from collections import deque
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from plaudit.rollout.operator import OperatorStatus
from plaudit.rule import DecisionRule
from plaudit.training.audit import OOD_WINDOW, withheld_warning
from plaudit.training.config import TrainingConfig
from plaudit.training.config_file import load_training_config
from plaudit.training.display import Display, EtaEstimate
from plaudit.training.online import EventLog, OnlineSchedule, OnlineState
from plaudit.training.replay_buffer import PolicyStatus, ReplayStats
from plaudit.training.run_folder import RunFolder
from plaudit.training.workers.env import EpisodeInfo
from plaudit.training.workers.labelers import LabelReport
from plaudit.training.workers.learner import LearnerInfo
from plaudit.types import JudgeId

AUDITED = {
    "audit/judge_success_rate": 0.8,
    "audit/corrected_success_rate": 0.7,
    "audit/corrected_success_rate_low": 0.61,
    "audit/corrected_success_rate_high": 0.78,
    "audit/false_successes": 0.04,
    "audit/false_successes_low": 0.01,
    "audit/false_successes_high": 0.12,
    "audit/missed_successes": 0.02,
    "audit/missed_successes_low": 0.0,
    "audit/missed_successes_high": 0.09,
    "audit/alarm": 0.0,
    "audit/episodes": 40.0,
}


def config(*more: str) -> TrainingConfig:
    asked = ["env=lift", "learner=sac", "judge=classifier", "judge.model=judge", "env.obs=both", "policy.cameras=[]"]
    return load_training_config("online", None, [*asked, "policy.inference=sequential", "run.max_episodes=1000", *more])


def moment(episodes: int = 120, **more) -> OnlineState:
    counts = ReplayStats(
        episodes=episodes,
        steps=50 * episodes,
        unlabeled=3,
        labeled_steps=50 * (episodes - 3),
        failed=0,
        outdated=0,
        demos_unlabeled=0,
    )
    return OnlineState(counts, PolicyStatus(version=61, published=0.0), **more)


def drawn(screen, width: int = 80) -> list[str]:
    paper = io.StringIO()
    Console(file=paper, width=width, force_terminal=False).print(screen)
    return paper.getvalue().splitlines()


def words(screen) -> str:
    """All text of a screen, whatever its lines."""
    return " ".join(" ".join(drawn(screen)).split())


def test_all_that_matters_is_on_one_screen():
    now = moment(
        judge_success=0.62,
        env_success=0.58,
        eval_success=0.71,
        updates=2900,
        pending_updates=75,
        robot_version=60,
        staleness_s=4.2,
        env_steps_per_s=19.9,
        updates_per_s=66.0,
        judge_latency_s=0.048,
        sample_wait_fraction=0.07,
        elapsed_s=754,
        judge_metrics={**AUDITED, "audit/pending_episodes": 2.0, "judge/version": 2.0, "judge/num_rejected": 1.0}
        | {"judge/ood_share": 0.04},
    )
    shown = words(Display(config()).screen(now))
    for said in (
        "lift with sac, labels by a classifier",
        "0:12:34",
        "120 of 1,000 episodes",
        "62% (judge), 70% [61-78] (audit), 58% (simulator); eval seeds 71%",
        "v60 (latest v61), 4 s stale, 6,000 steps, 20 steps/s",
        "3 unlabeled episodes (max 16), 48 ms each, v2 (1 rejected), 4% OOD",
        "2,900 updates, 75 pending, 66 updates/s, 7% waiting for batches",
        "false 4% [1-12] (max 10), missed 2% [0-9] (max 20), 40 audited",
    ):
        assert said in shown


def crowded() -> OnlineState:
    return replace(
        moment(
            9_999_999,
            judge_success=1.0,
            env_success=1.0,
            eval_success=1.0,
            updates=9_999_999,
            pending_updates=9_999_999,
        ),
        robot_version=99_999,
        staleness_s=99_999.0,
        env_steps_per_s=99_999.0,
        updates_per_s=99_999.0,
        judge_latency_s=999.0,
        elapsed_s=999_999,
        env_waiting_for="1,000,000 updates of pretraining on demonstrations",
        judge_metrics={**AUDITED, "audit/pending_episodes": 9999.0, "judge/version": 99.0, "judge/num_rejected": 99.0},
        last_event="the new judge takes over: " + "it is right more often, " * 8,
        alarm="judged 100% of the last 60 audited episodes a success, and 20% were; " * 3,
        errors={"env": "the robot does not answer: " + "nothing came for a while " * 4},
    )


def test_no_line_fills_a_terminal_so_that_an_echoed_ctrl_c_begins_no_new_one():
    view = Display(config("run.max_episodes=99999999", "evaluation.stop_success_rate=0.9"))
    view.screen(moment(0))
    lines = drawn(view.screen(crowded(), {"env": 3, "learner": 12}, stopping=True), width=200)
    assert max(map(len, lines)) + len("^C") <= 80


def test_what_went_wrong_is_told_in_full():
    now = crowded()
    shown = " ".join(" ".join(drawn(Display(config()).screen(now, {"env": 3, "learner": 1}))).split())
    assert " ".join(now.alarm.split()) in shown
    assert " ".join(now.errors["env"].split()) in shown
    assert "restarts: env 3, learner 1" in shown


def test_it_keeps_its_height_while_all_is_well():
    view = Display(config())
    early = drawn(view.screen(moment(0, env_waiting_for="the first weights")))
    late = drawn(
        view.screen(moment(999, judge_metrics=AUDITED, judge_success=0.5, staleness_s=20.0, judge_latency_s=0.1))
    )
    assert len(early) == len(late) <= 11


def test_a_long_row_continues_on_the_next_line():
    now = moment(env_waiting_for="labels: 16 unlabeled episodes (max 16)")
    now.add_episode(played(400, 0, 1.0))
    shown = words(Display(config()).screen(now))
    assert "(max 16); held 0.0%, 0 starved chunks, 100% guided" in shown and "…" not in shown


def test_the_intervals_state_their_confidence_and_how_episodes_were_sampled():
    sentence = (
        "[ ]: 95% confidence for all episodes of this judge (success: the last 200); the simulator checks its first "
        "20, suspicious ones, and 25% of the others, drawn at random"
    )
    assert sentence in words(Display(config()).screen(moment()))
    assert "a person checks its first 5, suspicious ones, and up to 50% of the others" in words(
        Display(
            config("audit.by=human", "audit.first_episodes=5", "audit.fraction=0.5", "audit.minutes_per_hour=9")
        ).screen(moment())
    )


def test_a_run_that_is_stopped_says_which_workers_are_awaited():
    now = moment(awaited=["judge", "learner"])
    view = Display(config())
    assert "stopping: waiting for the current call of judge and learner; Ctrl-C again aborts" in words(
        view.screen(now, stopping=True)
    )
    assert "ending: waiting for the current call of judge and learner" in words(view.screen(now))
    assert "waiting for the current call" not in words(view.screen(moment()))


def schedule(**now) -> OnlineSchedule:
    learner = LearnerInfo(updates=0, pretrain_updates=0, policy_config=None, exploring_config=None)
    nobody: Any = None
    return OnlineSchedule(config("learner.utd_ratio=0.5"), nobody, nobody, learner, moment(**now))


def test_a_learner_that_cannot_keep_up_is_a_warning_with_its_rate_and_what_to_change(tmp_path):
    warning = schedule(updates_per_s=0.05, env_steps_per_s=20.0, pending_updates=33).learner_warning
    assert "it makes 0.05 updates/s and needs 10 (learner.utd_ratio=0.5 at 20 steps/s)" in warning
    assert "33 updates are pending, about 11 min. Set learner.utd_ratio to 0.003 or less" in warning
    now = moment(learner_warning=warning, updates_per_s=0.05)
    assert warning in words(Display(config()).screen(now)) and "0.05 updates/s" in words(Display(config()).screen(now))
    log = EventLog(RunFolder.create(tmp_path / "run", config()))
    log.update(now, {})
    log.update(now, {})
    assert (tmp_path / "run/events.jsonl").read_text().count("cannot keep up") == 1


def test_a_judge_that_withholds_most_episodes_is_a_warning_with_what_to_do():
    ood = deque([True] * 26 + [False] * 24, OOD_WINDOW)
    warning = withheld_warning(ood, DecisionRule(ood="abstain"))
    assert "52% of the last 50 episodes are out of distribution" in warning and "judge.ood=accept" in warning
    assert warning in words(Display(config()).screen(moment(judge_warning=warning)))
    assert withheld_warning(ood, DecisionRule(ood="accept")) == ""  # such episodes count
    assert withheld_warning(ood, DecisionRule(ood="audit")) == ""  # people are asked about them
    ood.append(False)
    assert withheld_warning(ood, DecisionRule(ood="abstain")) == ""


@pytest.mark.parametrize(
    "now",
    [
        {"updates_per_s": 11.0, "env_steps_per_s": 20.0, "pending_updates": 9999},  # it catches up
        {"updates_per_s": 5.0, "env_steps_per_s": 20.0, "pending_updates": 30},  # it is 6 s behind
        {"updates_per_s": 0.0, "env_steps_per_s": 20.0, "pending_updates": 30},  # not measured yet
    ],
)
def test_a_learner_that_is_fast_enough_is_no_warning(now):
    assert schedule(**now).learner_warning == ""


def played(steps: int, held: int, guided: float | None) -> EpisodeInfo:
    return EpisodeInfo(0, steps, 60, None, 0.0, steps / 20, "steps", held, min(held, 1), guided)


def test_how_well_chunks_follow_each_other_is_shown_and_too_many_held_steps_are_a_warning(tmp_path):
    now = moment(3)
    now.add_episode(played(400, 0, 1.0))
    assert "robot    running; held 0.0%, 0 starved chunks, 100% guided" in "\n".join(
        drawn(Display(config()).screen(now))
    )
    now.add_episode(played(100, 20, 0.5))
    shown = " ".join(" ".join(drawn(Display(config()).screen(now))).split())
    assert "robot running; held 4.0%, 1 starved chunks, 75% guided" in shown
    assert "4.0% of control steps had no command" in shown and "lower policy.inference.execution_horizon" in shown
    assert now.metrics()["rollout/held_fraction"] == 0.04 and now.metrics()["rollout/guided_fraction"] == 0.75
    folder = RunFolder.create(tmp_path / "run", config())
    log = EventLog(folder)
    log.update(now, {})
    log.update(now, {})
    (event,) = map(json.loads, (folder.path / "events.jsonl").read_text().splitlines())
    assert event["event"] == "warning" and "had no command" in event["message"]


def test_how_far_the_newest_episode_came_is_told_where_the_judge_measures_it():
    now = moment()
    now.add_labels(LabelReport(JudgeId("classifier"), done=1, progress="62%, stalled"))
    assert "last episode at 62%, stalled" in "\n".join(drawn(Display(config()).screen(now)))


def test_why_the_robot_waits():
    assert "robot    waits for labels: 16 unlabeled episodes (max 16)" in "\n".join(
        drawn(Display(config()).screen(moment(env_waiting_for="labels: 16 unlabeled episodes (max 16)")))
    )
    assert "robot    running" in "\n".join(drawn(Display(config()).screen(moment())))


def test_on_a_robot_with_a_person_nobody_speaks_of_what_only_a_simulation_knows():
    asked = load_training_config("online", None, ["robot=igris_b", "learner=sac", "judge=human"])
    closed = "the labeling window was closed; open it again with: plaudit label runs/x/episodes --judge human"
    shown = " ".join(" ".join(drawn(Display(asked).screen(moment(window_status=closed)))).split())
    assert "igris_b with sac, labels by a human" in shown
    assert closed in shown
    for unknown in ("simulator", "eval seeds", "gap", "ms each"):
        assert unknown not in shown


def test_the_time_left_is_that_of_the_rate_of_late():
    pace = EtaEstimate()
    for second in range(0, 600, 2):  # first an episode every 10 s, then one every 2 s
        pace.add(second, second // 10 if second < 300 else 30 + (second - 300) // 2)
    assert pace.remaining_s(279) == pytest.approx(200, rel=0.05)  # 100 more


def test_nobody_can_say_how_long_it_will_be_while_the_robot_stands():
    pace = EtaEstimate()
    assert pace.remaining_s(100) is None
    for second in range(300):
        pace.add(second, min(second, 50))
    assert pace.remaining_s(100) is None


def test_a_run_that_may_end_earlier_says_so():
    view = Display(config("evaluation.stop_success_rate=0.9"))
    for second in range(0, 90, 10):
        view.screen(moment(second, elapsed_s=float(second)))
    shown = drawn(view.screen(moment(90, elapsed_s=90.0)))
    assert "90 of 1,000 episodes, at most 0:15:10 to go" in shown[1]


def test_a_log_gets_the_same_in_one_line():
    said = Display(config()).line(moment(judge_success=0.5, elapsed_s=61, env_waiting_for="the first weights"))
    assert "\n" not in said
    assert said.startswith("time: 0:01:01; run: 120 of 1,000 episodes; success: 50% (judge)")
    assert said.endswith("robot: waits for the first weights")


def test_the_event_log_has_each_event_once(tmp_path):
    events = EventLog(RunFolder(tmp_path, config()))
    lost = {"env": "the robot does not answer"}
    for now, restarts in (
        (moment(1), {}),
        (moment(2, errors=lost), {}),
        (moment(2, errors=lost), {}),
        (moment(3), {"env": 1}),
        (moment(4, last_event="promoted"), {"env": 1}),
        (moment(5, last_event="promoted", alarm="too many"), {"env": 2}),
        (moment(6, last_event="promoted", alarm="too many"), {"env": 2}),
    ):
        events.update(now, restarts)
    told = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [(line["episodes"], line["event"], line["message"]) for line in told] == [
        (2, "error", "env: the robot does not answer"),
        (3, "recovered", "env: it answers again"),
        (3, "restart", "env was restarted"),
        (4, "judge", "promoted"),
        (5, "restart", "env was restarted"),
        (5, "alarm", "too many"),
    ]


def test_a_full_disk_does_not_end_the_loop_for_want_of_an_event(tmp_path):
    EventLog(RunFolder(tmp_path / "gone", config())).write(moment(), "started", "run started")


def test_one_person_sees_everything_that_they_are_asked_to_do_and_the_time_that_it_took():
    status = OperatorStatus("gate")
    spent = {"person/time_correcting_s": 90.0, "person/time_at_gate_s": 30.0}
    now = moment(operator=status, judge_metrics={"audit/pending_episodes": 2.0, "person/time_auditing_s": 12.0})
    now = replace(now, replay=replace(now.replay, person_s=spent))
    shown = words(Display(config("audit.by=human", "teleop.type=scripted")).screen(now))
    assert "scene ready?, audit 2 episodes; minutes so far: 1.5 correcting, 0.5 at the gate, 0.2 auditing" in shown
    human = load_training_config("online", None, ["env=lift", "env.obs=both", "learner=sac", "judge=human"])
    labels = words(Display(human).screen(moment()))
    assert "to do label 3 episodes" in labels


def test_an_operator_sees_what_is_asked_and_which_keys_answer():
    status = OperatorStatus("gate", "success: no episode is running, so nothing was done", 1)
    view = Display(config())
    asked = [line.rstrip() for line in drawn(view.screen(moment(operator=status)))]
    assert "robot    waits for the operator" in asked and "space start  q stop  x estop" in asked
    assert "to do    scene ready?  success: no episode is running, so nothing was done" in asked
    held = [line.rstrip() for line in drawn(view.screen(moment(operator=OperatorStatus("held"))))]
    assert "robot    waits for release" in held and "to do    EMERGENCY STOP" in held
    watched = drawn(view.screen(moment(operator=OperatorStatus("episode"))))
    assert "to do    episode running" in [line.rstrip() for line in watched]
    assert "e end  s success  f failure  d discard  r repeat  p pause  q stop  x estop" in watched
    stopping = drawn(view.screen(moment(operator=OperatorStatus("episode")), stopping=True))
    assert "x estop" in [line.rstrip() for line in stopping], "the other keys do nothing any more"
    assert len(watched) == len(asked) == len(drawn(view.screen(moment()))) + 2
