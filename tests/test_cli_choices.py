"""What `--help` says about choices is what can be chosen."""

import re

import pytest

from command import plaudit
from plaudit import registry

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
