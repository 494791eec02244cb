import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from plaudit.config import Config
from plaudit.errors import ConfigError
from plaudit.training.config_file import OTHER_NAMES, load_training_config

SEEING = ["learner=ppo", "env=lift", "env.obs=both", "policy.cameras=[]"]


def test_names_stand_for_their_type_and_overrides_reach_inside():
    config = load_training_config(
        "train", None, ["learner=sac", "env=pick_place", "learner.lr=0.01", "env.image_size=[32,48]"]
    )
    assert (config.env.type, config.env.image_size) == ("pick_place", (32, 48))
    assert (config.learner.type, config.learner.lr) == ("sac", 0.01)


def test_a_file_and_the_command_line_add_up(tmp_path: Path):
    path = tmp_path / "run.yaml"
    path.write_text("env: {type: lift}\nlearner: {type: ppo, gamma: 0.9}\nrun: {max_steps: 100}\n")
    config = load_training_config("train", path, ["learner.gamma=0.8"])
    assert (config.learner.gamma, config.max_steps) == (0.8, 100)


READ = """
import sys
from plaudit.training.config_file import load_training_config
for command in sys.argv[1:]:
    kind, *words = command.split()
    load_training_config(kind, None, words)
    if "torch" in sys.modules:
        sys.exit(f"torch in {command}")
"""


def test_a_config_is_read_without_torch():
    """One after the other in one process: the first that imports it is the one to blame."""
    judged = "env=lift env.obs=both judge=classifier judge.model=runs/judge"
    commands = [f"train {judged} learner={learner}" for learner in ("sac", "qchunk", "ppo")]
    commands += [f"online {judged} learner=sac", "train env=lift learner=ppo judge=simulator"]
    done = subprocess.run([sys.executable, "-c", READ, *commands], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("learner=sacc", "did you mean 'sac'"),
        ("env=pickplace", "did you mean 'pick_place'"),
        ("learner.gama=0.9", "unknown key 'learner.gama'; did you mean 'gamma'"),
        ("run.max_steps=many", "key 'run.max_steps'"),
        ("env.image_size=[0,64]", "key 'env.image_size.0' is 0"),
        ("env.image_size=64", "key 'env.image_size' is 64: input should be a list in brackets, like .1, 2."),
        ("nonsense", "not KEY=VALUE"),
        (
            "learner=expo",
            "key 'learner.base' is missing: the trained policy to improve; 'plaudit train-policy' makes one",
        ),
        ("judge=nowhere", "there is no judge 'nowhere', nor such a file or folder; known: cascade, classifier"),
        ("learner.num_subsample_critics=3", "num_subsample_critics is 3, but there are 2 critics"),
        ("policy.cameras=[front]", "policy.cameras has 'front', and env.obs is 'state', .* write env.obs=both"),
        (
            "run.store_images=lossless,front=raw",
            "run.store_images has 'front', and env.obs is 'state', .* write env.obs=both",
        ),
    ],
)
def test_a_mistake_is_answered_with_what_was_meant(override: str, said: str):
    with pytest.raises(ConfigError, match=said.replace("[", r"\[")):
        load_training_config("train", None, ["learner=sac", "env=lift", override])


def test_a_key_of_a_robots_simulation_is_named_as_it_has_to_be_written():
    words = ["robot=sim", "robot.env.type=lift", "learner=sac", "judge=classifier", "judge.model=runs/judge"]
    with pytest.raises(ConfigError, match=r"write robot\.env\.obs=both"):
        load_training_config("online", None, words)


@pytest.mark.parametrize("key", OTHER_NAMES)
def test_every_key_of_the_other_stacks_is_answered_with_ours(key: str, tmp_path: Path):
    path = tmp_path / "run.yaml"
    lines = [f"{'  ' * depth}{part}:" for depth, part in enumerate(key.split("."))]
    path.write_text("learner: {type: sac}\n" + "\n".join(lines) + " 2\n")
    with pytest.raises(ConfigError) as caught:
        load_training_config("train", path, ["run.max_steps=5"])
    assert str(caught.value) == f"{path}: key '{key}' goes by another name here; {OTHER_NAMES[key]}"


def test_a_whole_recipe_is_taken_as_it_is_written(tmp_path):
    path = tmp_path / "maniskill_ppo_mlp_resnet_reward.yaml"
    path.write_text("""
cluster: {num_nodes: 1, component_placement: {actor: 0-0, env: 0-0, rollout: 0-0, reward: 0-1}}
runner: {resume_dir: null}
env:
  type: lift
  train: {reward_render_mode: always, total_num_envs: 8, init_params: {obs_mode: state, render_mode: rgb_array}}
reward: {group_name: RewardGroup, use_reward_model: true, resnet: {checkpoint_path: best.pt, image_size: [3, 64, 64]}}
learner: ppo
""")
    config = load_training_config("train", path, [])
    assert (config.env.obs, config.policy.cameras, config.run.num_envs) == ("both", (), 8)
    judge: Any = config.judge.config
    assert judge.model == Path("best.pt") and judge.network.image_size == (3, 64, 64)
    assert judge.device == "auto" == config.run.device  # two GPUs are not here


def test_what_of_a_recipe_has_no_meaning_here_is_answered():
    elsewhere = ["cluster.num_nodes=2", "env.train.init_params.sim_backend=gpu"]
    with pytest.raises(ConfigError) as caught:
        load_training_config("train", None, [*SEEING, *elsewhere])
    assert {".".join(map(str, where)) for where, _ in caught.value.problems} == {
        *("cluster.num_nodes", "env.train.init_params.sim_backend"),
    }


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["learner=sac", "env=gymnasium", "env.id=Pendulum-v1", "demos.scripted=3"], "only the built-in tasks"),
        (["learner=sac", "env=lift", "demos.scripted=3", "demos.store=somewhere"], "not both"),
        (["learner=sac", "env=lift", "learner.bc_weight=0.1"], r"demonstrations to clone \(learner\.bc_weight\)"),
        (["learner=sac", "env=lift", "learner.clone_updates=9"], r"\(learner\.clone_updates\).* name a store of them"),
        (["learner=ppo", "env=lift", "learner.pretrain_updates=-1"], "key 'learner.pretrain_updates' is -1"),
    ],
)
def test_demonstrations_that_cannot_be_had_are_refused(overrides: list[str], said: str):
    with pytest.raises(ConfigError, match=said):
        load_training_config("train", None, overrides)


@pytest.mark.parametrize("keys", [["learner.demo_ratio=0"], ["learner.demo_ratio=0.01", "learner.batch_size=32"]])
def test_cloning_demonstrations_that_no_batch_holds_is_refused(keys: list[str]):
    words = ["learner=sac", "env=lift", "demos.scripted=20", "learner.bc_weight=0.1"]
    assert load_training_config("train", None, [*words, "learner.demo_ratio=0.01"]).learner.clones_demos
    with pytest.raises(ConfigError, match=r"so no batch holds demonstrations; raise demo_ratio, or set bc_weight"):
        load_training_config("train", None, [*words, *keys])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("train learner=sac env=lift demos.noise=0.1", "demos.noise is set, and there are no demonstrations"),
        ("train learner=sac env=lift demos.relabel=true", "demos.relabel is set, and there are no demonstrations"),
        ("train learner=sac env=lift demos.store=demos demos.noise=0.1", "demos.noise is for demos.scripted"),
        (
            "train learner=ppo env=lift reward.env_reward=dense reward.mode=terminal",
            "dense pays .* ignores reward.mode",
        ),
        ("online learner=sac robot=igris_b judge=human evaluation.stop_success_rate=0.9", "would never end the run"),
        ("online learner=sac robot=igris_b judge=vlm audit.by=simulator", "has no simulator; use audit.by=human"),
        ("online learner=sac env=lift policy.inference.control_cpu=0", "control_cpu is for rtc, and this run uses"),
        (
            "online learner=sac env=lift policy.path=p.yaml policy.behavior=pretrained "
            "policy.update_within_episode=true",
            "policy.update_within_episode does nothing with policy.behavior=pretrained",
        ),
    ],
)
def test_a_key_that_would_do_nothing_is_refused(words: str, said: str):
    schedule, *overrides = words.split()
    with pytest.raises(ConfigError, match=said):
        load_training_config("online" if schedule == "online" else "train", None, overrides)


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
    config = load_training_config("train", path, SEEING)
    assert (getattr(config.judge.config, "model", None), config.reward.reward_type) == (Path("best.pt"), "continuous")
    assert config.reward.terminates and config.reward.reward_model.hidden_dim == 256
    path.write_text(RECIPE % (False, block))
    assert load_training_config("train", path, SEEING).judge.is_simulator


def test_a_recipe_that_only_collects_need_not_name_a_model():
    words = ["reward.use_reward_model=False", "reward.reward_model.image_keys=[front]"]
    assert load_training_config("train", None, [*SEEING, *words]).judge.is_simulator


def test_a_config_reads_the_same_after_it_was_written(tmp_path: Path):
    (tmp_path / "run.yaml").write_text(RECIPE % (True, "resnet"))
    config = load_training_config("train", tmp_path / "run.yaml", SEEING)
    (tmp_path / "config.yaml").write_text(config.model_dump_json())
    assert load_training_config("train", tmp_path / "config.yaml", []) == config


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            ["reward.use_reward_model=true"],
            "'reward.use_reward_model': it needs a model: write 'judge: FOLDER' of a reward model",
        ),
        (["judge=a.pt", "reward.resnet.checkpoint_path=b"], "'judge' names who decides already; write one of them"),
        (["judge=a.pt", "env.obs=state"], "a judge sees camera images; write env.obs=both"),
        (["judge=a.pt", "judge.rule.k=3", "judge.rule.n=2"], "3 of the last 2 frames can never be above"),
        (["judge=a.pt", "reward.mode=multiply"], "'replace', 'add' or 'terminal'"),
        (
            ["reward.reward_type=binary", "reward.resnet.reward_type=continuous"],
            "it is continuous here and binary in 'reward'",
        ),
    ],
)
def test_a_reward_model_that_cannot_be_meant_is_refused(overrides: list[str], said: str):
    with pytest.raises(ConfigError) as caught:
        load_training_config("train", None, [*SEEING, *overrides])
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("schedule", "overrides", "said"),
    [
        ("train", ["judge.ood=audit"], "the simulator would decide which episodes the learner may use"),
        (
            "online",
            ["learner=sac", "judge.ood=audit"],
            "the simulator would decide which episodes the learner may use",
        ),
        ("online", ["learner=sac", "judge.ood=audit", "audit.fraction=0"], "the run has no audit"),
    ],
)
def test_ood_episodes_that_cannot_be_held_back_are_refused(schedule, overrides: list[str], said: str):
    with pytest.raises(ConfigError, match=said):
        load_training_config(schedule, None, [*SEEING, "judge=classifier", "judge.model=m", *overrides])


OTHERS = ("pickcube_train_reward", "judge_", "online_", "pretrained_")  # of other commands, or with a base
PRESETS = sorted((Path(__file__).parents[2] / "examples/configs").glob("*.yaml"))


@pytest.mark.parametrize("preset", [p for p in PRESETS if not p.stem.startswith(OTHERS)], ids=lambda p: p.stem)
def test_every_preset_is_a_whole_config(preset: Path):
    assert load_training_config("train", preset, []).max_steps


def test_a_mistake_of_the_whole_names_no_key():
    with pytest.raises(ConfigError, match=r"^command line: a judge sees camera images; write env.obs=both"):
        load_training_config("train", None, ["learner=sac", "env=lift", "judge=judge.pt"])


class NoEnvironment(Config):
    """A config class that builds something, and knows nothing of observations."""

    size: int = 3

    def build(self, num_envs: int) -> None: ...


class SomeGymEnv:
    """What Gymnasium calls an environment."""

    def reset(self) -> None: ...
    def step(self, action: object) -> None: ...
    def close(self) -> None: ...


@pytest.mark.parametrize("name", ["NoEnvironment", "SomeGymEnv"])
def test_a_class_that_is_no_config_of_an_environment_is_a_sentence(name):
    told = rf"env: {__name__}:{name} is not an environment config: it has no obs, cameras, image_size; derive one"
    with pytest.raises(ConfigError, match=told):
        load_training_config("train", None, [f"env={__name__}:{name}", "learner=sac"])
