"""Training with a reward model in charge, as a user types it."""

from pathlib import Path

import pytest

pytest.importorskip("plaudit.envs.panda.mujoco_batch", exc_type=ImportError)  # the tests below need MuJoCo 4

from command import plaudit
from glow import saved
from plaudit.data.store import Store
from tiny_reward import tiny_model

SEEN = "learner=sac env=lift env.obs=both env.image_size=[16,16] env.max_steps=8 policy_cameras=[] num_envs=4"
SHORT = "steps=200 learner.utd_ratio=0.05 learner.hidden_dims=[8] evaluation.episodes=1"
ALARM = "reward.audit_share=1 reward.alarm_least=4 reward.alarm_window=4"


def test_a_run_is_stopped_by_the_alarm_and_goes_on_with_a_better_model(tmp_path: Path):
    pleased = saved(tiny_model(threshold=0.01), tmp_path / "pleased").name  # any frame is a success to it
    better = saved(tiny_model(seed=1, threshold=0.99), tmp_path / "better").name
    words = [*SEEN.split(), *SHORT.split(), *ALARM.split(), f"reward.model={pleased}", "name=run"]
    said = plaudit("train", *words, cwd=tmp_path, ok=False, alone=True)
    assert "pleased (" in said and "judges: 2 of 3 frames at 0.01, replace, binary, cameras front 16x16" in said
    assert "alarm: the judge called 100% of the last 4 audited episodes a success and 0% were" in said
    assert "go on with: plaudit train --resume runs/run --reward-model NEW" in said
    assert "alarm: the judge called" in plaudit("train", "--resume", "runs/run", cwd=tmp_path, ok=False)
    said = plaudit("train", "--resume", "runs/run", "--reward-model", better, cwd=tmp_path)
    assert "better (" in said and "alarm" not in said and "runs/run: 2" in said  # two hundred and some steps
    assert not Store.open(tmp_path / "runs/run/episodes").ledger.labels(0).success_once


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["--reward-model", "m", "learner=sac"],
            "--reward-model goes with --resume; for a new run write reward.model=m",
        ),
        ([*SEEN.split(), "reward.model=nowhere"], "nowhere: this is not a reward model: it has no model.json"),
    ],
)
def test_mistakes_are_told_before_anything_is_made(tmp_path: Path, words: list[str], sentence: str):
    assert sentence in plaudit("train", *words, cwd=tmp_path, ok=False)
    assert not (tmp_path / "runs").exists()
