"""`plaudit config`: keys, choices and examples, as a user asks for them."""

import re

import pytest

from command import plaudit
from plaudit import registry
from plaudit.config import read_yaml
from plaudit.training.config_file import load_training_config

CHOICES = [
    f"{one.kind.split()[0]}.{name}"
    for one in vars(registry).values()
    if isinstance(one, registry.Registry)
    for name in one.names()
]


@pytest.mark.parametrize("choice", CHOICES)
def test_every_choice_has_its_keys_shown(tmp_path, choice):
    kind, name = choice.split(".")
    said = plaudit("config", "show", choice, cwd=tmp_path)
    assert said.startswith(f"{kind}:\n  type: {name}\n")
    (tmp_path / "shown.yaml").write_text(said)
    assert read_yaml(tmp_path / "shown.yaml")[kind]["type"] == name


def test_what_is_shown_of_a_learner_is_its_config(tmp_path):
    said = plaudit("config", "show", "learner.sac", cwd=tmp_path)
    assert re.search(r"utd_ratio: 0\.5 +# update-to-data", said)
    (tmp_path / "run.yaml").write_text(f"env: {{type: lift}}\n{said}")
    shown = load_training_config("train", tmp_path / "run.yaml", [])
    assert shown.learner == load_training_config("train", None, ["env=lift", "learner=sac"]).learner


def test_the_whole_tree_is_a_config_that_changes_nothing(tmp_path):
    (tmp_path / "all.yaml").write_text(plaudit("config", "show", cwd=tmp_path))
    tree = read_yaml(tmp_path / "all.yaml")
    assert {"policy", "judge", "operator", "reward", "audit", "evaluation", "demos", "run", "cluster"} == set(tree)
    words = ["env=lift", "learner=sac"]
    shown, default = (load_training_config("online", path, words) for path in (tmp_path / "all.yaml", None))
    for block in set(tree) - {"policy"}:  # policy.inference has other defaults in a simulation
        assert getattr(shown, block) == getattr(default, block)


def test_a_block_that_is_off_by_default_is_shown_when_asked_for(tmp_path):
    assert "cluster, forecast, collect" in plaudit("config", "list", cwd=tmp_path)
    said = plaudit("config", "show", "collect", cwd=tmp_path)
    assert said.startswith("collect:\n  store: ???") and re.search(r"stop: true +# end the run when both", said)


def test_a_comment_belongs_to_its_own_key(tmp_path):
    said = plaudit("config", "show", "run", cwd=tmp_path)
    assert re.search(r"\n  seed: 0 +# of weights", said)  # and not that of the key above it
    assert re.search(r"max_steps: null +# The run ends at whichever comes first\. None", said)  # in the line above


def test_a_heading_of_several_keys_is_no_comment_of_the_first(tmp_path):
    assert re.search(r"local_files_only: true +# False: fetch", plaudit("config", "show", "judge.vlm", cwd=tmp_path))


def test_an_example_is_copied_and_nothing_is_overwritten(tmp_path):
    assert "online_sim_sac" in plaudit("config", "list", cwd=tmp_path)
    plaudit("config", "copy", "online_sim_sac", cwd=tmp_path)
    written = (tmp_path / "online_sim_sac.yaml").read_text()
    assert "learner" in written
    (tmp_path / "online_sim_sac.yaml").write_text("mine")
    assert "exists already" in plaudit("config", "copy", "online_sim_sac", cwd=tmp_path, ok=False)
    assert (tmp_path / "online_sim_sac.yaml").read_text() == "mine"
    plaudit("config", "copy", "online_sim_sac", "other.yaml", cwd=tmp_path)
    assert (tmp_path / "other.yaml").read_text() == written


def test_a_copy_of_rlinfs_guide_comes_with_the_command_to_start_with(tmp_path):
    said = plaudit("config", "copy", "rlinf", "guide", cwd=tmp_path)
    script, recipe = re.search(r"cd guide && bash (\S+) (\S+)", said).groups()
    assert (tmp_path / "guide" / script).is_file() and list((tmp_path / "guide").rglob(f"{recipe}.yaml"))


def test_a_plugin_is_copied_as_a_file_or_a_folder(tmp_path):
    plaudit("config", "copy", "my_judge", cwd=tmp_path)
    plaudit("config", "copy", "my_policy", cwd=tmp_path)
    assert "class BrightnessConfig" in (tmp_path / "my_judge.py").read_text()
    assert (tmp_path / "my_policy/components/network.yaml").is_file()
    assert "exists already" in plaudit("config", "copy", "my_policy", cwd=tmp_path, ok=False)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["show", "lerner.sac"], "there is no block or choice 'lerner.sac'; did you mean 'learner.sac'?"),
        (["show", "learner.sacc"], "there is no learner 'sacc'; did you mean 'sac'?"),
        (["copy", "online_sim"], "there is no example 'online_sim'; did you mean 'online_sim_sac'?"),
        (["copy", "online_sim_sac", "nowhere/a.yaml"], "nowhere is not a folder"),
    ],
)
def test_mistakes_are_a_sentence(tmp_path, words, sentence):
    assert sentence in plaudit("config", *words, cwd=tmp_path, ok=False)
    assert not list(tmp_path.iterdir())
