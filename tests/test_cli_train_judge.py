"""Training with a reward model as the judge, as a user types it."""

from pathlib import Path

import pytest

pytest.importorskip("plaudit.envs.panda.cameras", exc_type=ImportError)  # the tests below need MuJoCo 4

from command import plaudit
from glow import saved
from plaudit.data.store import Store
from tiny_reward import tiny_model

SEEN = "learner=sac env=lift env.obs=both env.image_size=[16,16] env.max_steps=8 policy.cameras=[] run.num_envs=4"
SHORT = "run.max_steps=200 learner.utd_ratio=0.05 learner.hidden_dims=[8] evaluation.episodes=1"
ALARM = "audit.fraction=1"


@pytest.mark.slow
def test_a_run_is_stopped_by_the_alarm_and_goes_on_with_a_better_model(tmp_path: Path):
    pleased = saved(tiny_model(threshold=0.01), tmp_path / "pleased").name  # any frame is a success to it
    better = saved(tiny_model(seed=1, threshold=0.99), tmp_path / "better").name
    words = [*SEEN.split(), *SHORT.split(), *ALARM.split(), f"judge={pleased}", "run.name=run"]
    said = plaudit("train", *words, cwd=tmp_path, ok=False, alone=True)
    assert "judge: classifier " in said
    assert ", 2 of 3 frames at 0.01; reward: replace, binary; cameras: front 16x16" in said
    assert "of the judge's successes are false (max 10%): the policy may have learned to exploit the judge" in said
    assert ", in training 100% by the judge and 0% [0-0] corrected by the audit (95% confidence for the last " in said
    assert "resume with its folder as NEW: plaudit train --resume runs/run judge.model=NEW" in said
    assert "alarm: in 3 audited episodes" in plaudit("train", "--resume", "runs/run", cwd=tmp_path, ok=False)
    said = plaudit("train", "--resume", "runs/run", f"judge.model={better}", cwd=tmp_path)
    assert "alarm" not in said and "runs/run: 2" in said  # two hundred and some steps
    assert not Store.open(tmp_path / "runs/run/episodes").ledger.labels(0).success_once
    assert "runs/run: 3" in plaudit("train", "--resume", "runs/run", "run.max_steps=300", cwd=tmp_path)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["--resume", "runs/run", "learner=sac"],
            "--resume continues a run as it was configured; only judge=, judge.*, run.max_steps and run.max_episodes",
        ),
        ([*SEEN.split(), "judge=./nowhere"], "nowhere: there is no such file"),
    ],
)
def test_mistakes_are_told_before_anything_is_made(tmp_path: Path, words: list[str], sentence: str):
    assert sentence in plaudit("train", *words, cwd=tmp_path, ok=False)
    assert not (tmp_path / "runs").exists()


def test_a_run_that_fails_before_its_first_step_leaves_no_folder(tmp_path: Path):
    blind = saved(tiny_model(threshold=0.999999), tmp_path / "blind").name
    words = [*SEEN.split(), "env.max_steps=50", "demos.scripted=1", f"judge=./{blind}", "run.name=run"]
    assert "the judge sees success in none of the 1 demonstrations" in plaudit("train", *words, cwd=tmp_path, ok=False)
    assert not (tmp_path / "runs/run").exists()
