"""Runs with noisy judges: labels that come late are learned from late, and a run says what came of it."""

import pytest

from plaudit.judges.plan import NoiseRun
from plaudit.training.noise_runs import LEVELS, Setting, make_run, settings_to_run
from plaudit.training.trainer import Trainer
from training_runs import create

TINY = ("env.max_steps=5", "run.num_envs=2", "run.max_steps=40", "demos.scripted=0", "learner.random_steps=0")


@pytest.mark.parametrize(("late_by", "updates"), [(4, 20), (1000, 0)])
def test_updates_wait_for_labels_and_none_is_forgotten(tmp_path, late_by, updates):
    words = ["env=lift", "learner=sac", "learner.batch_size=8", "judge=noisy", f"judge.late_by={late_by}", *TINY]
    with Trainer(create(tmp_path / "run", " ".join([*words, "evaluation.episodes=2"])), lambda _: iter) as trainer:
        trainer.run(lambda _: True)
        assert trainer.learner.version == updates


def test_a_run_says_what_came_of_it(monkeypatch):
    monkeypatch.setattr("plaudit.training.noise_runs.EPISODES", 2)
    found = make_run(Setting("lift", {"misses": 0.5}, 3, "sac", TINY))
    assert found == NoiseRun(env="lift", learner="sac", noise={"misses": 0.5}, seed=3, success=0.0)


def test_each_kind_of_error_is_run_alone_beside_runs_without_any():
    settings = settings_to_run("push", (7,), more=("run.max_steps=9",))
    assert [one.noise for one in settings if one.learner == "sac"] == [{}, {"late_by": 64}]
    assert len(settings) == sum(1 + sum(map(len, kinds.values())) for kinds in LEVELS.values())
    assert all(one.words.index("run.max_steps=9") > one.words.index("learner=" + one.learner) for one in settings)
