"""Collecting while a policy trains, and the config that says so."""

from pathlib import Path

import pytest

from plaudit.data.formats import open_dataset
from plaudit.data.ledger import Ledger
from plaudit.data.store import Store
from plaudit.errors import ConfigError, StoreError, TargetNotEmpty
from plaudit.training.config import TrainingConfig
from plaudit.training.config_file import load_training_config
from plaudit.training.run_folder import RunFolder
from plaudit.training.trainer import RunState
from training_runs import create, train

SEEING = ["learner=ppo", "env=lift", "env.obs=both", "env.cameras=[front,wrist]"]
SHORT = (
    "env.max_steps=5 env.image_size=[8,8] policy.cameras=[] run.num_envs=2 run.max_steps=40 learner.hidden_dims=[8] "
    "learner.update_epochs=1 "
    "evaluation.episodes=1 collect.store={store} collect.target_success=0"
)


def run(folder: Path, *more: str, rounds: int = -1) -> RunState:
    """A new run, or one to go on with, stopped after some rounds."""
    left = [rounds]

    def watch(_: RunState) -> bool:
        left[0] -= 1
        return left[0] != 0

    if folder.exists():
        return train(RunFolder.reopen(folder), watch)
    words = [*SEEING, SHORT.format(store=folder.parent / "store"), *more]
    return train(create(folder, " ".join(words)), watch)


def test_a_run_fills_a_store_and_ends_with_it(tmp_path: Path):
    end = run(tmp_path / "run", "collect.target_failure=3", "collect.cameras=[wrist]")
    assert (end.step, end.episodes) == (20, 4)
    store = Store.open(tmp_path / "store")
    assert len(store) == 3 and list(store.episode(0).frames) == ["wrist"]
    assert [store.ledger.labels(i).judge.source for i in store.ids] == ["simulator"] * 3
    assert store.ledger.labels(0).targets.tolist() == [0] * 6
    assert run(tmp_path / "run").step == 20  # there is enough: it stays as it is


def test_a_run_may_go_on_when_there_is_enough(tmp_path: Path):
    end = run(tmp_path / "run", "collect.target_failure=3", "collect.stop=false")
    assert end.step == 40 and len(Store.open(tmp_path / "store")) == 3
    assert RunFolder.reopen(tmp_path / "run").metrics()[0]["collect/failure"] == 2


def test_a_run_that_is_resumed_stores_no_episode_twice(tmp_path: Path):
    run(tmp_path / "run", rounds=2)
    for checkpoint in (tmp_path / "run/checkpoints").glob("*/*"):
        checkpoint.unlink()
    for checkpoint in (tmp_path / "run/checkpoints").glob("*"):
        checkpoint.rmdir()  # as if it had been killed before the first one: it plays its rounds again
    run(tmp_path / "run")
    run(tmp_path / "other", "run.seed=0")
    seeds = [(episode.meta["run"], episode.meta["seed"]) for _, episode in Store.open(tmp_path / "store")]
    assert len(seeds) == len(set(seeds)) == 16 and len({name for name, _ in seeds}) == 2


def test_a_run_that_is_killed_and_resumed_has_each_trajectory_once_in_its_folders(tmp_path: Path, monkeypatch):
    data = tmp_path / "data"
    words = f"collect.positive_dir={data}/positive collect.negative_dir={data}/negative collect.save_dir={data}"
    run(tmp_path / "run", *words.split(), rounds=1)
    assert len(list(data.glob("negative/*.npy"))) == len(list(data.glob("failure/*.pkl"))) == 2
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Ledger, "extend", _interrupted)  # after the episodes are stored, before their labels are
        run(tmp_path / "run")
    assert len(Store.open(tmp_path / "store")) == 4
    run(tmp_path / "run")
    store, layouts = Store.open(tmp_path / "store"), (open_dataset(data), open_dataset(data / "failure"))
    for dataset in layouts:
        shown = [source.load()[0].frames["wrist"][-1].tobytes() for source in dataset.sources]
        assert shown == [episode.frames["wrist"][-1].tobytes() for _, episode in store] and len(shown) == 8


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("taken", ["negative/000000.npy", "failure/episode_000000.pkl", "store.json"])
def test_folders_that_hold_something_are_left_alone_and_no_run_begins(tmp_path: Path, taken: str):
    data = tmp_path / "data"
    (data / taken).parent.mkdir(parents=True)
    (data / taken).touch()
    words = f"collect.positive_dir={data}/positive collect.negative_dir={data}/negative collect.save_dir={data}"
    with pytest.raises((TargetNotEmpty, StoreError), match="name another folder"):
        run(tmp_path / "run", *words.split())
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_success_is_the_simulators_whoever_judges(tmp_path: Path):
    run(tmp_path / "run", "reward.env_reward=dense", "collect.target_failure=2")
    labels = Store.open(tmp_path / "store").ledger.labels(0)
    assert labels.labeled.all() and not labels.success_once


def test_a_folder_of_something_else_is_left_alone_and_no_run_begins(tmp_path: Path):
    (tmp_path / "store/success").mkdir(parents=True)
    with pytest.raises(StoreError, match="holds something else than a store"):
        run(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def loaded(tmp_path: Path, block: str) -> TrainingConfig:
    (tmp_path / "run.yaml").write_text(block)
    return load_training_config("train", tmp_path / "run.yaml", SEEING)


def test_the_block_of_the_collector_wrapper_is_taken_as_it_is(tmp_path: Path):
    block = "reward_data_collection: {enabled: %s, save_dir: some/data, target_success: 50, target_failure: 60}"
    config = loaded(tmp_path, block % "True").collect
    assert (config.store, config.target_success, config.target_failure) == (Path("some/data/store"), 50, 60)
    assert config.save_dir == Path("some/data")
    assert loaded(tmp_path, block % "False").collect is None


def test_the_block_of_the_reward_data_collector_is_taken_as_it_is(tmp_path: Path):
    block = """
reward:
  collect_data: %s
  data_collection:
    positive_dir: "./reward_data/positive"
    negative_dir: "./reward_data/negative"
    image_keys: ["front"]
    max_positive_trajectories: 500
    max_negative_trajectories: null
"""
    config = loaded(tmp_path, block % "True").collect
    assert (config.store, config.cameras) == (Path("reward_data/store"), ("front",))
    assert (config.positive_dir, config.negative_dir) == (Path("reward_data/positive"), Path("reward_data/negative"))
    assert (config.target_success, config.target_failure) == (500, None)
    assert loaded(tmp_path, block % "False").collect is None


def test_a_recipe_that_collects_renders_images_without_another_key(tmp_path: Path):
    folders = "{positive_dir: d/a, negative_dir: d/b, image_keys: [base_camera]}"
    (tmp_path / "run.yaml").write_text(f"reward: {{collect_data: true, data_collection: {folders}}}")
    config = load_training_config("train", tmp_path / "run.yaml", ["learner=ppo", "env=lift"])
    assert (config.env.obs, config.env.cameras) == ("both", ("front",))
    with pytest.raises(ConfigError, match=r"write env\.obs=both"):
        load_training_config("train", tmp_path / "run.yaml", ["learner=ppo", "env=lift", "env.obs=state"])


def test_a_task_named_on_the_command_line_keeps_the_recipes_env_block(tmp_path: Path):
    (tmp_path / "run.yaml").write_text("env: {train: {total_num_envs: 3, init_params: {obs_mode: state}}}")
    config = load_training_config("train", tmp_path / "run.yaml", ["learner=ppo", "env=lift"])
    assert (config.run.num_envs, config.env.obs) == (3, "state")


def test_a_recipe_of_the_guide_has_its_task_and_learner_by_default(tmp_path: Path):
    (tmp_path / "run.yaml").write_text("reward_data_collection: {enabled: true, save_dir: data}")
    config = load_training_config("train", tmp_path / "run.yaml", [])
    assert (config.target_name, config.learner.on_policy, config.env.obs) == ("pick_place", True, "both")
    assert load_training_config("train", tmp_path / "run.yaml", ["env=lift", "learner=sac"]).run_name == "lift_sac_0"


@pytest.mark.parametrize(
    ("block", "sentence"),
    [
        ("reward: {collect_data: true}", "say where to: write a block 'collect' with a 'store'"),
        ("reward_data_collection: yes", "this is a block of keys, not a value"),
        ("reward_data_collection: {save_dir: a, target_sucess: 3}", "'collect.target_sucess'; did you mean"),
        ("reward_data_collection: {target_success: 3}", "key 'collect.store' is missing"),
        ("reward: {data_collection: {positive_dir: /a, negative_dir: b}}", "its folders have no place in common"),
        ("reward: {data_collection: {positive_dir: a}}", "positive_dir and negative_dir belong together"),
        ("reward: {data_collection: {positive_dir: a/b, negative_dir: a/b}}", "give each another name"),
        ("reward: {data_collection: {positive_dir: a/store, negative_dir: a/b}}", "give each another name"),
        ("reward_data_collection: {save_dir: a}\ncollect: {store: b}", "the data collection is configured twice"),
        ("collect: {store: a, target_success: 1, max_positive_trajectories: 1}", "the same as 'target_success'"),
        ("collect: {store: a, cameras: [fornt]}", "collect.cameras has 'fornt', which the environment does not show"),
        ("collect: {store: a, target_success: -1}", "key 'collect.target_success' is -1"),
        ("collect: {store: a}\nenv: {obs: state}", "env.obs is 'state', which has none; write env.obs=both"),
        (
            "collect: {store: a, cameras: [main]}\nenv: {obs: both, cameras: [wrist]}",
            "collect.cameras has 'main', which",
        ),
    ],
)
def test_a_block_that_is_wrong_is_answered_in_a_sentence(tmp_path: Path, block: str, sentence: str):
    (tmp_path / "run.yaml").write_text(block)
    seeing = [word for word in SEEING if not word.startswith("env.") or "\nenv:" not in block]
    with pytest.raises(ConfigError) as caught:
        load_training_config("train", tmp_path / "run.yaml", seeing)
    assert sentence in str(caught.value)
    assert str(tmp_path / "run.yaml") in str(caught.value)
