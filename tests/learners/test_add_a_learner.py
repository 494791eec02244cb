"""Follows docs/add_a_learner.md to the letter, in an empty folder."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCUMENT = Path(__file__).parents[2] / "docs/add_a_learner.md"


@pytest.fixture
def folder(tmp_path) -> Path:
    files = re.findall(r"`((?:test_)?my_learner\.py)`[^`]*?:\n\n```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert [name for name, _ in files] == ["my_learner.py", "test_my_learner.py"]
    for name, text in files:
        (tmp_path / name).write_text(text)
    return tmp_path


def test_what_the_document_says_makes_a_learner_that_keeps_the_contract(folder):
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_my_learner.py"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout


def test_the_command_trains_with_it(folder):
    learner = "my_learner:AwbcConfig"
    words = ["train", "env=push", f"learner={learner}", "num_envs=2", "steps=60", "evaluation.episodes=1", "name=run"]
    paths = f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    command = [sys.executable, "-m", "plaudit.cli", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": paths})
    assert done.returncode == 0, done.stdout + done.stderr
    assert (folder / "runs/run/policy.yaml").exists()
