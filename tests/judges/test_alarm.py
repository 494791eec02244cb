"""The alarm of an audit: it rings for a judge that is wrong too often, in either way."""

import numpy as np
import pytest

from plaudit.errors import JudgeError
from plaudit.judges.audit import Alarm


def noted(judged: int, true: int, of: int, **options) -> Alarm:
    alarm = Alarm(**options)
    for i in range(of):
        alarm.note(i < judged, i < true)
    return alarm


def test_the_alarm_rings_when_more_is_judged_than_true():
    assert noted(12, 4, of=20).gap == pytest.approx(0.4)
    assert noted(12, 4, of=20).ringing and not noted(12, 8, of=20).ringing  # 0.2 is not beyond 0.2


def test_the_alarm_rings_for_a_judge_that_sees_too_little():
    strict = noted(4, 12, of=20)
    assert strict.ringing and not noted(8, 12, of=20).ringing
    assert "called 20% of the last 20 audited episodes a success and 60% were" in strict.sentence
    assert "40% are missed successes, at most 20% may be" in strict.sentence
    assert "does not see what the policy does right" in strict.sentence and "false" not in strict.sentence


def test_the_alarm_rings_for_a_judge_whose_mistakes_cancel_out():
    alarm = Alarm()
    for i in range(60):
        alarm.note(judged=i % 2 == 0, true=i % 2 == 1)  # wrong about every one
    assert alarm.gap == 0 and alarm.ringing
    assert (alarm.false_successes, alarm.missed_successes) == (0.5, 0.5)
    assert "50% are false successes" in alarm.sentence and "50% are missed successes" in alarm.sentence


@pytest.mark.parametrize("more", [{}, {"two_sided": False}, {"two_sided": True}])
def test_an_alarm_of_an_earlier_version_is_read(more):
    """Those of `train` rang on one side only, and the oldest did not say so."""
    tree = {"bound": 0.2, "window": 50, "least": 20, "noted": [[False, True]] * 20, **more}
    assert Alarm.from_json(tree).ringing and Alarm.from_json(tree).missed_successes == 1


def test_the_alarm_waits_until_it_has_seen_enough_and_forgets_what_is_old():
    assert not noted(19, 0, of=19).ringing and noted(20, 0, of=20).ringing
    later = noted(20, 0, of=20, window=20)
    for _ in range(20):
        later.note(True, True)
    assert later.gap == 0 and not later.ringing
    assert np.isnan(Alarm().gap) and not Alarm().ringing


def test_the_alarm_says_what_is_wrong_and_what_to_do():
    said = noted(12, 4, of=20).sentence
    assert said.startswith("the judge called 60% of the last 20 audited episodes a success and 20% were")
    assert "plaudit train-reward" in said


def test_the_alarm_survives_a_checkpoint():
    alarm = noted(12, 4, of=20, bound=0.3, window=30)
    again = Alarm.from_json(alarm.to_json())
    assert (again.gap, again.ringing, again.to_json()) == (alarm.gap, True, alarm.to_json())


def test_an_alarm_that_can_never_ring_is_refused():
    with pytest.raises(JudgeError, match="waits for 20 episodes and remembers 10 can never ring"):
        Alarm(window=10)
