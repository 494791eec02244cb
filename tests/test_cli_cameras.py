"""The main camera by its names in other stacks, from episodes to a reward model to a policy, as a user types it."""

import pickle
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("plaudit.envs.panda.cameras", exc_type=ImportError)  # the tests below need MuJoCo 4

from bright_square import CUTOFF, square_frames, square_store
from command import plaudit
from plaudit.data.formats import open_dataset
from plaudit.data.store import Store
from plaudit.judges.classifier.judge import load_reward_model
from plaudit.training.run_folder import RunFolder

MODEL = (
    *("encoder={type: small, widths: [4, 8]}", "hidden_dim=8", "latent_dim=8", "epochs=1", "batch_size=32"),
    *("--output-dir", "model"),
)
RUN = """
env: {type: pick_place, obs: both, cameras: [front], image_size: [32, 32], max_steps: 5}
policy: {cameras: []}
learner: {type: ppo, hidden_dims: [8], update_epochs: 1}
run: {num_envs: 2, max_steps: 10}
evaluation: {episodes: 1}
"""


def write_pickles(folder: Path, key: str) -> None:
    """As RLinf's collector writes them, ten episodes of 32x32; a key with a dot is nested."""
    for number in range(10):
        success = number < 5
        (folder / ("success" if success else "failure")).mkdir(parents=True, exist_ok=True)
        frames = [
            {
                "obs": {**_named(key, image), "wrist_images": None, "states": np.zeros(3, np.float32)},
                "action": np.zeros(4, np.float32),
                "reward": 0.0,
                "done": t == 11,
                "grasp": False,
                "success": success and t >= CUTOFF,
            }
            for t, image in enumerate(square_frames(success, number, 32))
        ]
        tree = {"frames": frames, "success": success, "label": int(success)}
        kind = "success" if success else "failure"
        (folder / kind / f"episode_{number:06d}.pkl").write_bytes(pickle.dumps(tree))


def _named(key: str, image: np.ndarray) -> dict[str, object]:
    outer, _, inner = key.partition(".")
    return {outer: {inner: image} if inner else image}


def test_pickles_of_rlinf_make_a_judge_of_our_own_task(tmp_path):
    write_pickles(tmp_path / "data", "main_images")
    plaudit("train-reward", "data", *MODEL, "--image-key", "base_camera", cwd=tmp_path)
    assert load_reward_model(tmp_path / "model", force=True).cameras == {"base_camera": (32, 32)}
    block = "reward: {use_reward_model: true, reward_model: {checkpoint_path: ./model, image_keys: [main]}}\n"
    (tmp_path / "run.yaml").write_text(RUN + block + "judge: {force: true}\n")
    said = plaudit("train", "--config", "run.yaml", cwd=tmp_path)
    assert "cameras: base_camera 32x32" in said
    assert "judge/accuracy" in RunFolder.reopen(tmp_path / "runs/pick_place_ppo_0").metrics()[0]
    said = plaudit("train", "--config", "run.yaml", "env.image_size=[16,16]", "run.name=b", cwd=tmp_path, ok=False)
    assert "write env.obs=both env.cameras=[front] env.image_size=[32,32]" in said


@pytest.mark.parametrize("key", ["main_images", "base_camera", "images.front"])
def test_any_name_of_the_main_camera_may_be_asked_for(tmp_path, key: str):
    write_pickles(tmp_path / "data", key)
    for name in ("main", "main_images", "base_camera", "front"):
        plaudit("data", "import", "data", name, "--camera", name, cwd=tmp_path)
        assert list(Store.open(tmp_path / name).episode(0).frames) == [name]
    said = plaudit("data", "import", "data", "other", "--camera", "side", cwd=tmp_path, ok=False)
    assert "camera 'side' is not in" in said


def test_episodes_of_two_stacks_in_one_store_are_learned_from_together(tmp_path):
    square_store(tmp_path / "store", size=32).close()
    write_pickles(tmp_path / "data", "main_images")
    plaudit("data", "import", "data", "store", cwd=tmp_path)
    said = plaudit("train-reward", "store", *MODEL, "--image-key", "main", "--visualize-positive", cwd=tmp_path)
    assert "shows 66 success frames" in said
    assert load_reward_model(tmp_path / "model", force=True).config.data.episodes["train"] > 10


def test_a_recipe_collects_the_camera_under_the_name_that_it_gives(tmp_path):
    folders = "positive_dir: data/positive, negative_dir: data/negative, max_negative_trajectories: 2"
    block = f"reward: {{collect_data: true, data_collection: {{{folders}, image_keys: [base_camera]}}}}\n"
    (tmp_path / "run.yaml").write_text(RUN + block)
    plaudit("collect", "--config", "run.yaml", cwd=tmp_path)
    episode, _ = open_dataset(tmp_path / "data").sources[0].load()
    assert {name: frames.shape for name, frames in episode.frames.items()} == {"base_camera": (6, 32, 32, 3)}
