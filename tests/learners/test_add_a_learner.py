"""Follows docs/add_a_learner.md to the letter, in an empty folder."""

import re
from pathlib import Path

import pytest

from processes import run_plaudit, run_pytest

DOCUMENT = Path(__file__).parents[2] / "docs/add_a_learner.md"


@pytest.fixture
def folder(tmp_path) -> Path:
    files = re.findall(r"`((?:test_)?my_learner\.py)`[^`]*?:\n\n```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert [name for name, _ in files] == ["my_learner.py", "test_my_learner.py"]
    for name, text in files:
        (tmp_path / name).write_text(text)
    return tmp_path


def test_what_the_document_says_makes_a_learner_that_keeps_the_contract(folder):
    run_pytest(folder, "test_my_learner.py")
    assert "1 passed" in (folder / "output.txt").read_text()


def test_the_command_trains_with_it(folder):
    learner = "my_learner:AwbcConfig"
    small = ("env.max_steps=10", "run.num_envs=2", "run.max_steps=40", "evaluation.episodes=1")
    run_plaudit(folder, "train", "env=push", f"learner={learner}", *small, "run.name=run")
    assert (folder / "runs/run/policy/policy.yaml").exists()
