"""What `--help` says about choices is what can be chosen."""

import re
import subprocess
import sys
from typing import Any

import pytest
import typer
from typer.main import get_command

from command import plaudit
from plaudit import registry
from plaudit.cli import load_app
from plaudit.judges.classifier.train_job import RewardTrainJob

REGISTRIES = {
    "train": (registry.LEARNER_REGISTRY, registry.ENV_REGISTRY),
    "online": (registry.LEARNER_REGISTRY, registry.ENV_REGISTRY, registry.ROBOT_REGISTRY, registry.JUDGE_REGISTRY),
}


@pytest.mark.parametrize("command", REGISTRIES)
def test_help_lists_every_choice_and_where_the_keys_are(command, tmp_path):
    text = plaudit(command, "--help", cwd=tmp_path)
    for known in REGISTRIES[command]:
        ours = [name for name in known.names() if known.get(name).__module__.startswith("plaudit.")]
        missing = {name for name in ours if not re.search(rf"\b{name}\b", text)}
        assert not missing, f"plaudit {command} --help does not name {missing}"
    assert "docs/train.md" in text


def test_a_folder_to_write_is_output_dir_and_a_file_is_output_in_every_command():
    written = {
        (command.name, option.opts[0]): option.help
        for command in _commands(get_command(load_app()))
        for option in command.params
        if "-o" in option.opts
    }
    assert len(written) >= 12
    for (command, name), said in written.items():
        assert name == ("--output-dir" if "folder" in said else "--output"), command


def test_a_flag_of_a_config_class_has_the_type_and_the_bounds_of_its_key():
    (command,) = (one for one in _commands(get_command(load_app())) if one.name == "train-reward")
    options: dict[str, Any] = {
        name: option for option in command.get_params(typer.Context(command)) for name in option.opts
    }
    assert (options["--members"].min, options["--members"].max) == (1, 1000)  # SmallInt: 0 < n <= 1000
    assert options["--members"].show_default == str(RewardTrainJob.model_fields["ensemble_size"].default)
    assert options["--use-state"].is_flag and options["--image-key"].multiple


def test_the_help_of_a_training_command_does_not_wait_for_torch():
    program = (
        "import sys; from plaudit.cli import load_app; load_app()(['train-reward', '--help'], standalone_mode=False)"
    )
    check = "assert not {'torch', 'scipy'} & sys.modules.keys(), sorted(sys.modules)"
    done = subprocess.run([sys.executable, "-c", f"{program}; {check}"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def _commands(command):
    if not hasattr(command, "commands"):
        return [command]
    return [one for each in command.commands.values() for one in _commands(each)]


def test_a_wrong_choice_is_a_sentence_without_the_name_of_an_exception(tmp_path):
    text = plaudit("label", "x", "--judge", "human", "--window", "qtt", cwd=tmp_path, ok=False)
    assert "Invalid value for '--window': 'qtt' is not one of 'auto', 'web', 'qt'." in text


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("judge arena x --juge y", "No such option: --juge; did you mean '--judge'?"),
        ("judge arena x --model y", "No such option: --model; did you mean '--judge JUDGE,model=...'?"),
        ("train-reward x --epoch 3", "No such option: --epoch; did you mean '--epochs'?"),
        ("data info x --rate", "No such option: --rate; known: --episode, --follow-links, --help"),
    ],
)
def test_an_unknown_option_is_answered_with_the_nearest_one_or_with_all(tmp_path, words, sentence):
    assert sentence in plaudit(*words.split(), cwd=tmp_path, ok=False)
