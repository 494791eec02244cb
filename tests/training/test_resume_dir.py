"""`runner.resume_dir` of the recipes: the run in that folder goes on, or a sentence says why not."""

from pathlib import Path

import pytest

from command import plaudit
from plaudit.training.config_file import load_training_config
from plaudit.training.run_folder import RunFolder
from training_runs import train

RUN = """
env: {type: lift, max_steps: 5}
learner: {type: ppo, hidden_dims: [8], update_epochs: 1}
run: {num_envs: 2, max_steps: %d}
runner: {resume_dir: %s}
evaluation: {episodes: 1}
"""
FOLDER = Path("runs/lift_ppo_0")


@pytest.fixture
def here(tmp_path: Path, monkeypatch) -> Path:
    """An empty run in `FOLDER` of the working folder, with two checkpoints by name."""
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text(RUN % (20, "null"))
    RunFolder.create(FOLDER, load_training_config("train", Path("run.yaml"), []))
    for step in (0, 20):
        (FOLDER / f"checkpoints/{step:012d}").mkdir(parents=True)
    return tmp_path


def test_a_recipe_goes_on_with_the_run_in_the_folder(tmp_path: Path):
    path, config = tmp_path / "run.yaml", tmp_path / FOLDER / "config.yaml"
    path.write_text(RUN % (20, "null"))
    train(RunFolder.create(tmp_path / FOLDER, load_training_config("train", path, [])))
    path.write_text(RUN % (40, FOLDER))
    assert f"{FOLDER}: 40 steps, 8 episodes" in plaudit("train", "--config", "run.yaml", cwd=tmp_path)
    assert sorted({line["step"] for line in RunFolder.reopen(tmp_path / FOLDER).metrics()}) == [10, 20, 30, 40]
    assert "max_steps: 40" in config.read_text() and "resume_dir" not in config.read_text()


@pytest.mark.parametrize("named", [FOLDER, FOLDER / "checkpoints", FOLDER / "checkpoints/000000000020"])
def test_a_run_may_be_named_by_its_newest_checkpoint(here: Path, named: Path):
    config = load_training_config("train", Path("run.yaml"), [f"runner.resume_dir={named}"])
    assert RunFolder.resume_named(config.run.resume_dir, config).path == FOLDER


def test_an_online_run_is_resumed_by_the_same_key(here: Path):
    words = ["env=lift", "learner=sac", "run.seed=3"]
    RunFolder.create(Path("runs/robot"), load_training_config("online", None, words))
    config = load_training_config("online", None, [*words, "runner.resume_dir=runs/robot", "run.max_episodes=7"])
    assert RunFolder.resume_named(config.run.resume_dir, config).config.max_episodes == 7


@pytest.mark.parametrize("command", ["train", "online"])
@pytest.mark.parametrize(
    ("resume_dir", "more", "sentence"),
    [
        ("logs/checkpoints/global_step_100", "", "resume_dir must name the folder of a Plaudit run"),
        ("nowhere", "", "resume_dir must name the folder of a Plaudit run"),
        ("runs/lift_ppo_0/checkpoints/000000000000", "", "resumed from its newest checkpoint, 000000000020"),
        ("runs/lift_ppo_0", "run.resume_dir=runs/b", "this is the same as 'run.resume_dir'"),
    ],
)
def test_what_cannot_be_resumed_is_answered_and_nothing_changes(here: Path, command, resume_dir, more, sentence):
    Path("run.yaml").write_text(RUN % (40, resume_dir))
    Path("logs/checkpoints/global_step_100/actor").mkdir(parents=True)
    before = (FOLDER / "config.yaml").read_bytes()
    words = [*more.split(), *(["learner=sac", "run.num_envs=16"] if command == "online" else [])]
    assert sentence in plaudit(command, "--config", "run.yaml", *words, cwd=here, ok=False)
    assert list(Path("runs").iterdir()) == [FOLDER] and (FOLDER / "config.yaml").read_bytes() == before


@pytest.mark.parametrize("other", ["env=push", "run.seed=1", "judge.rule.k=3"])
def test_a_run_of_another_config_is_not_resumed(here: Path, other: str):
    words = ["train", "--config", "run.yaml", f"run.resume_dir={FOLDER}", other]
    said = plaudit(*words, cwd=here, ok=False)
    assert f"has another {other.replace('.', '=').split('=')[0]}" in said and "resumed as it was" in said
