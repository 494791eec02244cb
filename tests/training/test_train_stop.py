"""Ctrl-C while `plaudit train` learns: where it stops, what it says, and that nothing is lost."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from test_trainer import curve

from command import plaudit
from plaudit.learners.config import PpoConfig, SacConfig
from plaudit.learners.ppo import Ppo
from plaudit.learners.sac import Sac
from plaudit.training.run_folder import RunFolder
from training_runs import create, train

PRESSED_AT = 3  # the update of the first session at which somebody presses Ctrl-C
SHORT = (
    "env=lift env.max_steps=10 run.name=run run.num_envs=2 run.max_steps=40 learner.hidden_dims=[8] "
    "evaluation.episodes=1 evaluation.freq=20"
)
REPLAY = f"{SHORT} learner.batch_size=8 learner.random_steps=0 learner.utd_ratio=0.5 learner="


class PressedSacConfig(SacConfig):
    times: int = 1

    def build(self, *args: Any, **kwargs: Any) -> "PressedSac":
        return PressedSac(self, *args, **kwargs)


class PressedSac(Sac):
    config: PressedSacConfig

    def update(self, batch: Any) -> Any:
        metrics = super().update(batch)
        if self.version == PRESSED_AT:
            for _ in range(self.config.times):
                signal.raise_signal(signal.SIGINT)
        return metrics


class PressedPpoConfig(PpoConfig):
    def build(self, *args: Any, **kwargs: Any) -> "PressedPpo":
        return PressedPpo(self, *args, **kwargs)


class PressedPpo(Ppo):
    def update(self, rollout: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return super().update(rollout)


def newest(run: Path) -> dict[str, Any]:
    """The state of a run in its newest checkpoint."""
    return json.loads(max((run / "checkpoints").glob("*/state.json")).read_text())


def test_ctrl_c_stops_between_two_updates_and_the_run_goes_on_there(tmp_path: Path):
    words = (REPLAY + "test_train_stop:PressedSacConfig").split()
    said = plaudit("train", *words, cwd=tmp_path, ok=False)
    assert "stopping after the current rollout or update; Ctrl-C again stops at once" in said
    assert said.strip().endswith("stopped; resume with: plaudit train --resume runs/run")
    state = newest(tmp_path / "runs/run")
    assert (state["version"], state["updates"]["updates_due"]) == (PRESSED_AT, 7)  # half of 20 steps
    assert curve(tmp_path / "runs/run") == []  # a rollout is logged when all is learned from it
    plaudit("train", "--resume", "runs/run", "--allow-code", "test_train_stop", cwd=tmp_path)
    train(create(tmp_path / "whole", REPLAY + "sac"))
    assert curve(tmp_path / "runs/run") == curve(tmp_path / "whole")


def test_a_run_that_dies_while_it_makes_the_updates_that_were_left_logs_nothing_twice(tmp_path: Path):
    words = (REPLAY + "test_train_stop:PressedSacConfig").split()
    plaudit("train", *words, cwd=tmp_path, ok=False)

    def die(_: object) -> bool:
        raise MemoryError

    with pytest.raises(MemoryError):
        train(RunFolder.reopen(tmp_path / "runs/run"), die)  # after the line is logged, before a checkpoint
    assert curve(tmp_path / "runs/run")
    train(RunFolder.reopen(tmp_path / "runs/run"))
    train(create(tmp_path / "whole", REPLAY + "sac"))
    assert curve(tmp_path / "runs/run") == curve(tmp_path / "whole")


def test_a_second_ctrl_c_stops_at_once(tmp_path: Path):
    words = (REPLAY + "test_train_stop:PressedSacConfig learner.times=2").split()
    said = plaudit("train", *words, cwd=tmp_path, ok=False)
    assert said.strip().endswith("interrupted; resume from the last checkpoint with: plaudit train --resume runs/run")


def test_ppo_says_that_it_learns_from_the_rollout_before_it_stops(tmp_path: Path):
    words = f"{SHORT} learner=test_train_stop:PressedPpoConfig learner.update_epochs=1".split()
    said = plaudit("train", *words, cwd=tmp_path, ok=False)
    assert "stopping after the current rollout and the update from it; Ctrl-C again stops at once" in said
    assert [line["step"] for line in curve(tmp_path / "runs/run")] == [20, 20]  # learned from, and evaluated
