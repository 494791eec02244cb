import numpy as np
import pytest

from conftest import counting_episode
from plaudit.rollout.operator import OperatorStatus
from plaudit.training.monitor import HelpStats, LabelTime, next_tasks
from plaudit.training.replay_buffer import seconds_of


def test_what_the_robot_waits_for_comes_before_labels():
    status = OperatorStatus("gate", hint="no progress for 2 s: take over")
    waiting = {"audit/pending_episodes": 1.0, "judge/undecided_episodes": 2.0}
    tasks = next_tasks(status, waiting, 5)
    assert [task.kind for task in tasks] == ["help", "start", "audit", "decide", "label"]
    assert [task.text for task in tasks[2:]] == ["audit 1 episode", "decide 2 episodes", "label 5 episodes"]
    assert [task.kind for task in next_tasks(OperatorStatus("held"), {}, None)] == ["release"]


def test_nobody_is_asked_where_nothing_waits():
    assert next_tasks(None, {}, None) == next_tasks(OperatorStatus("episode"), {}, 0) == []


def test_the_time_of_corrections_and_at_the_gate_is_that_of_the_episode():
    episode = counting_episode(4, control_mode=np.array([0, 1, 1, 0], np.uint8), meta={"gate_s": 3.5})
    assert seconds_of(episode) == {"person/time_correcting_s": 0.2, "person/time_at_gate_s": 3.5}
    assert seconds_of(counting_episode(4)) == {"person/time_correcting_s": 0.0, "person/time_at_gate_s": 0.0}
    imported = counting_episode(4, fps=0.0, control_mode=np.ones(4, np.uint8))  # its rate is not known
    assert seconds_of(imported)["person/time_correcting_s"] == 0


def test_the_time_of_labels_is_the_time_between_them_without_breaks():
    spent = LabelTime("person/time_labeling_s")
    for time in (1000.0, 1008.0, 1020.0, 9000.0, 9001.0):
        spent.add(time)
    assert spent.seconds == pytest.approx(60 + 8 + 12 + 60 + 1)  # the first, and the one after a break, count as 60 s


def helped(*modes: int, true: bool | None = None):
    truth = {} if true is None else {"success": np.full(len(modes), true)}
    return counting_episode(len(modes), control_mode=np.array(modes, np.uint8), privileged=truth)  # 10 Hz


def test_success_with_and_without_help_is_told_apart():
    stats = HelpStats(window=50)
    assert stats.metrics() == {}
    stats.add(helped(0, 1, 1, 0, true=True), success=True)
    stats.add(helped(1, 0, 0, 1, true=False), success=True)
    stats.add(helped(0, 0, 0, 0, true=True), success=False)
    assert stats.metrics() == {
        "person/intervention_rate": 4 / 12,
        "person/helped_episodes": 2 / 3,
        "person/seconds_since": 0.4,
        "person/intervention_s": 0.4 / 3,
        "judge/success_unaided": 0,
        "judge/success_with_help": 1.0,
        "env/success_with_help": 0.5,
        "judge/success_without_help": 0.0,
        "env/success_without_help": 1.0,
    }


def test_only_the_newest_episodes_count_and_a_robot_has_no_truth():
    stats = HelpStats(window=2)
    for _ in range(3):
        stats.add(helped(1, 1, 1), success=False)
    for _ in range(2):
        stats.add(helped(0, 0, 0, 0, 0), success=True)
    assert stats.metrics() == {
        "person/intervention_rate": 0,
        "person/helped_episodes": 0,
        "person/seconds_since": 1.0,
        "judge/success_unaided": 1.0,
        "judge/success_without_help": 1.0,
    }
