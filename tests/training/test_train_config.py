from pathlib import Path

import pytest

from plaudit.errors import ConfigError
from plaudit.training.config import OTHER_NAMES, load_train_config

SEEING = ["learner=ppo", "env=lift", "env.obs=both", "policy_cameras=[]"]


def test_names_stand_for_their_type_and_overrides_reach_inside():
    config = load_train_config(None, ["learner=sac", "env=pick_place", "learner.lr=0.01", "env.image_size=[32,48]"])
    assert (config.env.type, config.env.image_size) == ("pick_place", (32, 48))
    assert (config.learner.type, config.learner.lr) == ("sac", 0.01)


def test_a_file_and_the_command_line_add_up(tmp_path: Path):
    path = tmp_path / "run.yaml"
    path.write_text("env: {type: lift}\nlearner: {type: ppo, gamma: 0.9}\nsteps: 100\n")
    config = load_train_config(path, ["learner.gamma=0.8"])
    assert (config.learner.gamma, config.steps) == (0.8, 100)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("learner=sacc", "did you mean 'sac'"),
        ("env=pickplace", "did you mean 'pick_place'"),
        ("learner.gama=0.9", "unknown key 'learner.gama'; did you mean 'gamma'"),
        ("steps=many", "key 'steps'"),
        ("env.image_size=[0,64]", "key 'env.image_size.0' is 0"),
        ("nonsense", "not KEY=VALUE"),
        ("learner.num_subsample_critics=3", "num_subsample_critics is 3, but there are 2 critics"),
        ("policy_cameras=[front]", "policy_cameras has 'front', which the environment does not show"),
    ],
)
def test_a_mistake_is_answered_with_what_was_meant(override: str, said: str):
    with pytest.raises(ConfigError, match=said.replace("[", r"\[")):
        load_train_config(None, ["learner=sac", "env=lift", override])


@pytest.mark.parametrize("key", OTHER_NAMES)
def test_every_key_of_the_other_stacks_is_answered_with_ours(key: str, tmp_path: Path):
    path = tmp_path / "run.yaml"
    lines = [f"{'  ' * depth}{part}:" for depth, part in enumerate(key.split("."))]
    path.write_text("learner: {type: sac}\n" + "\n".join(lines) + " 1\n")
    with pytest.raises(ConfigError) as caught:
        load_train_config(path, ["steps=5"])
    assert str(caught.value) == f"{path}: key '{key}' goes by another name here; {OTHER_NAMES[key]}"


def test_a_whole_recipe_is_answered_key_by_key():
    recipe = ["reward.use_reward_model=True", "reward.resnet.checkpoint_path=best.pt", "reward.group_name=Judges"]
    elsewhere = ["runner.resume_dir=null", "cluster.component_placement.reward=0-1"]
    with pytest.raises(ConfigError) as caught:
        load_train_config(None, [*SEEING, *recipe, *elsewhere])
    assert [".".join(map(str, where)) for where, _ in caught.value.problems] == [
        "reward.group_name",
        "runner.resume_dir",
        "cluster.component_placement.reward",
    ]


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["learner=sac", "env=gymnasium", "env.id=Pendulum-v1", "scripted_demos=3"], "only the built-in tasks"),
        (["learner=sac", "env=lift", "scripted_demos=3", "demos=somewhere"], "not both"),
        (["learner=ppo", "env=lift", "learner.pretrain_updates=-1"], "key 'learner.pretrain_updates' is -1"),
    ],
)
def test_demonstrations_that_cannot_be_had_are_refused(overrides: list[str], said: str):
    with pytest.raises(ConfigError, match=said):
        load_train_config(None, overrides)


RECIPE = """
reward:
  use_reward_model: %s
  mode: replace
  reward_model_type: resnet
  %s:
    checkpoint_path: best.pt
    image_keys: [front]
    image_size: [3, 64, 64]
    hidden_dim: 256
    num_spatial_blocks: 8
    pretrained_encoder_path: resnet10_pretrained.pt
    use_pretrain: True
    freeze_encoder: True
    reward_type: continuous
"""


@pytest.mark.parametrize("block", ["reward_model", "resnet"])
def test_a_reward_model_is_named_as_the_recipes_name_it(block: str, tmp_path: Path):
    path = tmp_path / "run.yaml"
    path.write_text(RECIPE % (True, block))
    reward = load_train_config(path, SEEING).reward
    assert (reward.model_path, reward.reward_type, reward.ends) == (Path("best.pt"), "continuous", True)
    path.write_text(RECIPE % (False, block))
    assert load_train_config(path, SEEING).reward.model_path is None


def test_a_recipe_that_only_collects_need_not_name_a_model():
    words = ["reward.use_reward_model=False", "reward.reward_model.image_keys=[front]"]
    assert load_train_config(None, [*SEEING, *words]).reward.model_path is None


def test_a_config_reads_the_same_after_it_was_written(tmp_path: Path):
    (tmp_path / "run.yaml").write_text(RECIPE % (True, "resnet"))
    config = load_train_config(tmp_path / "run.yaml", SEEING)
    (tmp_path / "config.json").write_text(config.model_dump_json())
    assert load_train_config(tmp_path / "config.json", []) == config


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["reward.use_reward_model=true"], "use_reward_model needs a model: write 'reward.model' with its folder"),
        (["reward.model=a", "reward.resnet.checkpoint_path=b"], "a reward model is named more than once"),
        (["reward.model=a", "env.obs=state"], "a reward model looks at camera images; write env.obs=both"),
        (["reward.model=a", "judge.rule.k=3", "judge.rule.n=2"], "3 of the last 2 frames can never be above"),
        (["reward.model=a", "reward.alarm_window=20"], "waits for more episodes than it remembers can never ring"),
        (["reward.model=a", "reward.mode=multiply"], "'replace', 'add' or 'terminal'"),
        (
            ["reward.reward_type=binary", "reward.resnet.reward_type=continuous"],
            "reward_type is binary, and continuous in its block; write one of them",
        ),
    ],
)
def test_a_reward_model_that_cannot_be_meant_is_refused(overrides: list[str], said: str):
    with pytest.raises(ConfigError) as caught:
        load_train_config(None, [*SEEING, *overrides])
    assert said in str(caught.value)


OTHERS = ("pickcube_train_reward", "judge_", "online_")  # of other commands
PRESETS = sorted((Path(__file__).parents[2] / "examples/configs").glob("*.yaml"))


@pytest.mark.parametrize("preset", [p for p in PRESETS if not p.stem.startswith(OTHERS)], ids=lambda p: p.stem)
def test_every_preset_is_a_whole_config(preset: Path):
    assert load_train_config(preset, []).steps > 0


def test_a_mistake_of_the_whole_names_no_key():
    with pytest.raises(ConfigError, match=r"^command line: a reward model looks at camera images; write env.obs=both"):
        load_train_config(None, ["learner=sac", "env=lift", "reward.model=judge"])
