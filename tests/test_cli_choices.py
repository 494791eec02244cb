"""What `--help` says about choices is what can be chosen."""

import re

import pytest
from typer.main import get_command

from command import plaudit
from plaudit import registry
from plaudit.cli.commands import app

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
        for command in _commands(get_command(app))
        for option in command.params
        if "-o" in option.opts
    }
    assert len(written) >= 12
    for (command, name), said in written.items():
        assert name == ("--output-dir" if "folder" in said else "--output"), command


def _commands(command):
    if not hasattr(command, "commands"):
        return [command]
    return [one for each in command.commands.values() for one in _commands(each)]
