"""`plaudit judge plan` as a user types it, and every way to get it wrong."""

import pytest

from command import plaudit
from plaudit.judges.plan import PlanTable
from plaudit.judges.simulator import KINDS
from plaudit.training.config import BUILT_IN_TASKS


def test_every_built_in_task_has_a_plan():
    for task in BUILT_IN_TASKS:
        assert set(PlanTable.built_in().plan(task).curves) >= set(KINDS) - {"late_by"}


def test_a_task_and_a_judge_in_a_users_words(tmp_path):
    words = ("judge", "plan", "--env", "pick_place", "--precision", "0.9", "--recall", "0.9", "--labels", "100")
    said = " ".join(plaudit(*words, "--success", "0.8", cwd=tmp_path, alone=True).split())
    assert "plaudit train env=pick_place learner=ppo" in said and "of successes never seen" in said
    assert "this judge: 10% of failures called a success at a random moment, 10% of successes never seen" in said
    assert "100 labeled episodes, half of them successes, prove at best" in said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--env pickplace", "no runs with noisy judges are known for 'pickplace'; did you mean 'pick_place'?"),
        ("--env lift --labels 0", "--labels 0: nothing is proven without a success and a failure"),
        ("--env lift --precision 0.9", "--precision and --recall go together"),
        ("--env lift --precision 0.1 --recall 1", "no judge has a precision of 10% with a recall of 100%"),
        ("--env lift --precision 0 --recall 1", "a precision is above 0"),
        ("--env lift --success nan", "Invalid value for '--success'"),
        ("--env lift --certificate none.json", "there is no such certificate"),
        ("--env lift --table none.json", "there is no such table"),
        ("--env lift run.max_steps=9", "keys of 'plaudit train' need --measure"),
        ("--env lift --measure run.max_step=9", "did you mean 'max_steps'"),
    ],
)
def test_what_makes_no_sense_is_one_sentence_and_nothing_is_written(tmp_path, words, sentence):
    assert sentence in " ".join(plaudit("judge", "plan", *words.split(), cwd=tmp_path, ok=False).split())
    assert not list(tmp_path.iterdir())
