from pathlib import Path

import pytest

from plaudit.errors import ConfigError
from plaudit.train.config import OTHER_NAMES, load_train_config


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
        ("learner.critics_in_target=3", "critics_in_target is 3, but there are 2 critics"),
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
    recipe = ["reward.use_reward_model=True", "reward.resnet.checkpoint_path=best.pt", "runner.resume_dir=null"]
    with pytest.raises(ConfigError) as caught:
        load_train_config(None, ["learner=ppo", "env=lift", *recipe])
    assert len(caught.value.problems) == 3


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["learner=ppo", "env=lift", "scripted_demos=3"], "only sac learns from demonstrations"),
        (["learner=sac", "env=gymnasium", "env.id=Pendulum-v1", "scripted_demos=3"], "only the built-in tasks"),
        (["learner=sac", "env=lift", "scripted_demos=3", "demos=somewhere"], "not both"),
    ],
)
def test_demonstrations_that_cannot_be_had_are_refused(overrides: list[str], said: str):
    with pytest.raises(ConfigError, match=said):
        load_train_config(None, overrides)


PRESETS = sorted((Path(__file__).parents[2] / "examples/configs").glob("*.yaml"))


@pytest.mark.parametrize("preset", [p for p in PRESETS if p.stem != "pickcube_train_reward"], ids=lambda p: p.stem)
def test_every_preset_is_a_whole_config(preset: Path):
    assert load_train_config(preset, []).steps > 0
