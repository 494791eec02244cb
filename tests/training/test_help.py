import numpy as np

from conftest import counting_episode
from plaudit.training.help import HelpStats


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
