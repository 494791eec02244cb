"""Whole runs, through the command that users type."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from conftest import counting_episode
from plaudit.data.store import Store
from plaudit.errors import BadFile, DataError, TargetNotEmpty
from plaudit.train.config import load_train_config
from plaudit.train.folder import RunFolder
from plaudit.train.loop import Progress, train

SMALL = {
    "sac": [
        "learner=sac",
        "env=lift",
        "num_envs=4",
        "steps=1600",
        "scripted_demos=3",
        "learner.updates_per_step=0.05",
        "learner.hidden=[16]",
        "checkpoint_every=300",
        "evaluation.every=500",
        "evaluation.episodes=4",
    ],
    "ppo": [
        "learner=ppo",
        "env=push",
        "reward.kind=dense",
        "num_envs=8",
        "steps=3200",
        "learner.hidden=[16]",
        "learner.epochs=2",
        "checkpoint_every=400",
        "evaluation.every=800",
        "evaluation.episodes=4",
    ],
}


def run(folder: Path, *overrides: str, rounds: int | None = None) -> Progress:
    """In this process; stopped, as by Ctrl-C, after some rounds."""
    left = [rounds]

    def watch(_: Progress) -> bool:
        left[0] = None if left[0] is None else left[0] - 1
        return left[0] != 0

    run = RunFolder.reopen(folder) if folder.exists() else RunFolder.create(folder, load_train_config(None, overrides))
    return train(run, watch, lambda what: lambda items: items)


def curve(folder: Path) -> list[dict[str, Any]]:
    """All that was measured, but for the clock."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if not name.startswith("time/")} for line in lines]


@pytest.mark.parametrize("learner", SMALL)
def test_the_same_seed_makes_the_same_curve(tmp_path: Path, learner: str):
    run(tmp_path / "one", *SMALL[learner])
    run(tmp_path / "two", *SMALL[learner])
    run(tmp_path / "other", *SMALL[learner], "seed=1")
    assert curve(tmp_path / "one") == curve(tmp_path / "two") != curve(tmp_path / "other")


@pytest.mark.parametrize("learner", SMALL)
def test_a_run_that_was_stopped_and_resumed_makes_the_curve_of_one_that_was_not(tmp_path: Path, learner: str):
    run(tmp_path / "whole", *SMALL[learner])
    run(tmp_path / "parts", *SMALL[learner], rounds=2)
    run(tmp_path / "parts", rounds=3)
    run(tmp_path / "parts")
    assert curve(tmp_path / "parts") == curve(tmp_path / "whole")


@pytest.mark.parametrize("learner", SMALL)
def test_a_run_that_was_killed_and_resumed_makes_the_curve_of_one_that_was_not(tmp_path: Path, learner: str):
    run(tmp_path / "whole", *SMALL[learner])
    RunFolder.create(tmp_path / "killed", load_train_config(None, SMALL[learner]))
    command = [sys.executable, "-m", "plaudit.cli", "train", "--resume", str(tmp_path / "killed")]
    for attempt in range(2):
        before = set((tmp_path / "killed/checkpoints").glob("[0-9]*"))
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and set((tmp_path / "killed/checkpoints").glob("[0-9]*")) <= before:
            time.sleep(0.01)
        time.sleep(random.Random(attempt).uniform(0, 0.3))  # anywhere: in a round, an update, a write
        process.send_signal(signal.SIGKILL)
        process.wait()
    subprocess.run(command, check=True, capture_output=True)
    assert curve(tmp_path / "killed") == curve(tmp_path / "whole")


def test_sac_learns_to_lift_from_a_few_demonstrations(tmp_path: Path):
    """Does it learn at all: a policy that was taught nothing lifts the cube in none of fifty episodes."""
    options = [
        "learner=sac",
        "env=lift",
        "scripted_demos=20",
        "steps=12000",
        "evaluation.every=1000",
        "evaluation.stop_at=0.3",
    ]
    end = run(tmp_path / "run", *options)
    assert end.evaluated is not None and end.evaluated >= 0.3
    first = next(line for line in curve(tmp_path / "run") if "eval/success" in line)
    assert first["eval/success"] < 0.1


def test_episodes_of_a_run_can_be_looked_at_afterwards(tmp_path: Path):
    options = [
        "learner=ppo",
        "env=lift",
        "env.obs=both",
        "env.image_size=[16,16]",
        "num_envs=2",
        "steps=100",
        "keep_episodes=true",
    ]
    run(tmp_path / "run", *options, "evaluation.episodes=1", "learner.hidden=[8]", "learner.epochs=1")
    store = Store.open(tmp_path / "run/episodes")
    assert len(store) == 2 and store.episode(0).frames["front"].shape[1:] == (16, 16, 3)
    assert store.ledger.labels(0).source == "simulator"


def test_a_folder_with_a_run_is_not_written_over(tmp_path: Path):
    config = load_train_config(None, SMALL["ppo"])
    RunFolder.create(tmp_path / "run", config)
    with pytest.raises(TargetNotEmpty, match="--resume"):
        RunFolder.create(tmp_path / "run", config)


def test_resuming_what_is_no_run_is_refused(tmp_path: Path):
    with pytest.raises(BadFile, match="not a run"):
        RunFolder.reopen(tmp_path)


def test_demonstrations_without_labels_are_refused(tmp_path: Path):
    with Store.create(tmp_path / "demos") as store:
        store.append(counting_episode())
    with pytest.raises(DataError, match="no labels"):
        run(tmp_path / "run", "learner=sac", "env=lift", f"demos={tmp_path / 'demos'}")
    assert not (tmp_path / "run").exists()
