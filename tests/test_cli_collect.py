"""Collecting, as a user types it."""

import pytest

pytest.importorskip("plaudit.envs.panda.cameras", exc_type=ImportError)  # the tests below need MuJoCo 4

from command import plaudit
from plaudit.cli.common import ProgressBar
from plaudit.data.store import Store

SMALL = ["--image-size", "8x12", "--noise", 0.05]
TRAINING = """
env: {type: lift, obs: both, image_size: [8, 8], max_steps: 5}
policy: {cameras: []}
learner: {type: ppo, hidden_dims: [8], update_epochs: 1}
run: {num_envs: 2, max_steps: 1000}
evaluation: {episodes: 1}
"""


def test_collect_fills_a_store_and_adds_only_what_is_missing(tmp_path):
    words = ["collect", "store", *SMALL, "--target-success", 1]
    said = plaudit(*words, "--target-failure", 2, "--camera", "wrist", cwd=tmp_path, alone=True)
    assert "store has 1 success and 2 failures, 3 of them new" in said
    assert Store.open(tmp_path / "store").episode(0).frames["wrist"].shape[1:] == (8, 12, 3)
    said = plaudit(*words, "--max-negative-trajectories", 3, "--camera", "wrist", cwd=tmp_path)
    assert "store has 1 success and 3 failures, 1 of them new" in said
    seeds = [episode.meta["seed"] for _, episode in Store.open(tmp_path / "store")]
    assert len(set(seeds)) == 4 and seeds[3] > max(seeds[:3])


def test_episodes_of_other_cameras_are_not_added(tmp_path):
    words = ["collect", "store", *SMALL, "--target-failure", 0, "--target-success"]
    plaudit(*words, 1, "--camera", "wrist", cwd=tmp_path)
    said = plaudit(*words, 2, cwd=tmp_path, ok=False)
    assert "the episodes in store have the cameras wrist 8x12; give the same with --camera and --image-size" in said
    assert len(Store.open(tmp_path / "store")) == 1


def test_what_was_collected_comes_out_in_both_old_layouts(tmp_path):
    plaudit("collect", "store", *SMALL, "--target-success", 1, "--target-failure", 1, cwd=tmp_path)
    for layout, folder in (("npy", "negative"), ("pkl", "failure")):
        assert "2 episodes exported" in plaudit("data", "export", "store", layout, "--to", layout, cwd=tmp_path)
        assert len(list((tmp_path / layout / folder).iterdir())) == 1
        assert "2 episodes imported" in plaudit("data", "import", layout, f"{layout}_again", cwd=tmp_path)


def test_a_run_that_collects_no_success_says_so_and_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(ProgressBar, "update", lambda _, done, words: print(f"{done}: {words}"))
    (tmp_path / "run.yaml").write_text(TRAINING.replace("1000", "20") + "collect: {store: data, target_success: 30}")
    said = plaudit("collect", "--config", "run.yaml", cwd=tmp_path)
    assert "10: success 0% in training, collected 0 of 30 successes and 2 failures" in said
    assert "data has 0 of 30 successes and 4 failures" in said
    assert "no success was collected" in said and "reward.env_reward=dense" in said
    assert "plaudit collect data --env lift" in said


def test_collect_with_a_config_is_a_training_run(tmp_path):
    block = "reward_data_collection: {enabled: True, save_dir: data, target_success: 0, target_failure: 3}"
    (tmp_path / "run.yaml").write_text(TRAINING + block)
    said = plaudit("collect", "--config", "run.yaml", cwd=tmp_path)
    assert (
        "runs/lift_ppo_0: 20 steps, 4 episodes" in said
        and "data/store has 0 of 0 successes and 3 of 3 failures" in said
    )
    assert "they are also files in data/success and data/failure" in said
    assert len(Store.open(tmp_path / "data/store")) == 3
    assert [path.name for path in sorted((tmp_path / "data/failure").glob("*.pkl"))] == [
        f"episode_{number:06d}.pkl" for number in range(3)
    ]
    assert "0 success" not in plaudit("data", "info", "data", cwd=tmp_path)


def test_the_same_command_resumes_a_training_run_that_collects(tmp_path):
    (tmp_path / "run.yaml").write_text(TRAINING.replace("1000", "10") + "collect: {store: data, target_failure: 9}")
    first = plaudit("collect", "--config", "run.yaml", cwd=tmp_path)
    assert "runs/lift_ppo_0: 10 steps" in first
    assert "runs/lift_ppo_0: 10 steps" in plaudit("collect", "--config", "run.yaml", cwd=tmp_path)
    (tmp_path / "run.yaml").write_text(TRAINING.replace("[8]", "[9]") + "collect: {store: data, target_failure: 9}")
    said = plaudit("collect", "--config", "run.yaml", cwd=tmp_path, ok=False)
    assert "runs/lift_ppo_0 holds a run already" in said


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "name a store to add to, or a training run with --config"),
        (["store", "--env", "lfit"], "there is no env 'lfit'; did you mean 'lift'?"),
        (
            ["store", "--image-size", "big"],
            "a size is an edge like 128, or height x width like 96x128, of at most",
        ),
        (["store", "--outcomes", "miss,drop"], "no outcome succeeds; add success to the outcomes"),
        (["--config", "run.yaml", "--noise", "0.1"], "--config takes no other flags"),
        (["--config", "run.yaml"], "run.yaml does not say where to collect"),
        (
            ["store", *SMALL, "--set", "max_steps=2", "--target-success", "1"],
            "of which 120 were kept; 1 success episodes are missing",
        ),
    ],
)
def test_mistakes_are_answered_in_a_sentence(tmp_path, words, sentence):
    (tmp_path / "run.yaml").write_text(TRAINING)
    assert sentence in plaudit("collect", *words, cwd=tmp_path, ok=False)
