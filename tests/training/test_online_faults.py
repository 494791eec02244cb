"""Faults of a day: the loop goes on when they have passed, every episode is kept, and what was learned is on disk."""

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import glow
from plaudit.data.store import Store
from plaudit.errors import JudgeUnavailable, RobotSilent, TrainingError
from plaudit.judges.classifier.judge import ClassifierJudge
from plaudit.policies.loader import read_weights
from plaudit.training.config_file import load_training_config
from plaudit.training.online import Callback, OnlineState, OnlineTrainer
from plaudit.training.run_folder import RunFolder
from plaudit.training.workers.group import LocalWorkerGroup


def run_of(
    tmp_path: Path, *more: str, watch: Callback = lambda now: True, learners: list[Any] | None = None
) -> OnlineState:
    """learners: gets the learner, to look at it in the end"""
    glow.saved(glow.bright_model(0.8), tmp_path / "judge")
    config = load_training_config("online", None, [*glow.online(tmp_path / "judge"), *more])
    folder = RunFolder.open(tmp_path / "run", config)
    workers = LocalWorkerGroup(folder, serial=True)
    try:
        return OnlineTrainer(folder, workers).run(watch)
    finally:
        if learners is not None:
            handle: Any = workers.learner.handle
            learners.append(handle.worker)
        workers.close()
        folder.close()


def silent_at(steps: Iterator[int], silent: range, monkeypatch) -> None:
    """The robot sends nothing at these steps of a run."""
    works = glow.Glow.step

    def step(self, actions, active):
        if self.num_envs == 1 and next(steps) in silent:
            raise RobotSilent("camera 'front' is silent")
        return works(self, actions, active)

    monkeypatch.setattr(glow.Glow, "step", step)


def test_a_camera_that_is_silent_for_a_moment_ends_its_episode_and_not_the_run(tmp_path, monkeypatch):
    silent_at(iter(range(10**6)), range(17, 20), monkeypatch)  # in the second episode, and at two further attempts
    told: list[str] = []

    def watch(now: OnlineState) -> bool:
        told.extend(f"waits for {now.env_waiting_for}: {message}" for message in now.errors.values())
        return True

    end = run_of(tmp_path, "run.max_episodes=5", "evaluation.freq=100000", watch=watch)
    assert end.episodes == 5 and not end.errors
    kept = [episode for _, episode in Store.open(tmp_path / "run/episodes")]
    assert [episode.meta["ended"] for episode in kept] == ["steps", "camera 'front' is silent", *3 * ["steps"]]
    assert [episode.steps for episode in kept] == [12, 5, 12, 12, 12]
    reason = "camera 'front' is silent; the robot holds; the run waits up to 60 s"
    assert set(told) == {f"waits for robot and policy to be back: {reason}"}


def test_a_robot_that_stays_silent_ends_the_run_with_a_sentence(tmp_path, monkeypatch):
    silent_at(iter(range(10**6)), range(17, 10**6), monkeypatch)
    with pytest.raises(TrainingError, match=r"camera 'front' is silent; .* it did not recover within 2 s; resume with"):
        run_of(tmp_path, "run.max_episodes=5", "evaluation.freq=100000", "policy.inference.patience_s=2")
    assert [episode.steps for _, episode in Store.open(tmp_path / "run/episodes")] == [12, 5]


def test_a_robot_that_faults_in_every_episode_uses_up_its_patience(tmp_path, monkeypatch):
    silent_at(iter(range(10**6)), range(2, 10**6, 3), monkeypatch)  # two steps of each episode, then a fault
    with pytest.raises(TrainingError, match=r"camera 'front' is silent; .* it did not recover within 4 s; resume with"):
        run_of(tmp_path, "run.max_episodes=50", "evaluation.freq=100000", "policy.inference.patience_s=4")
    steps = [episode.steps for _, episode in Store.open(tmp_path / "run/episodes")]
    assert steps == len(steps) * [2] and 1 < len(steps) < 10


def test_an_episode_without_a_fault_restores_the_patience(tmp_path, monkeypatch):
    silent_at(iter(range(10**6)), range(2, 10**6, 15), monkeypatch)  # every second episode
    end = run_of(tmp_path, "run.max_episodes=8", "evaluation.freq=100000", "policy.inference.patience_s=4")
    kept = [episode.steps for _, episode in Store.open(tmp_path / "run/episodes")]
    assert kept == 4 * [2, 12] and not end.errors


def test_a_judge_whose_server_is_restarted_has_failed_on_no_episode(tmp_path, monkeypatch):
    calls, works, told = iter(range(10**6)), ClassifierJudge.score, set()

    def score(self, episodes):
        if next(calls) in range(2, 30):
            raise JudgeUnavailable("the server cannot be reached")
        return works(self, episodes)

    monkeypatch.setattr(ClassifierJudge, "score", score)
    words = ("run.max_episodes=6", "evaluation.freq=100000", "audit.fraction=0")
    end = run_of(tmp_path, *words, watch=lambda now: told.update(now.errors.items()) or True)
    assert told == {("judge", "the server cannot be reached")} and not end.errors
    assert (end.episodes, end.replay.unlabeled, end.replay.failed, end.replay.skipped) == (6, 0, 0, 0)


def assert_newest_on_disk(run: Path, learner: Any, version: int) -> None:
    """The policy on disk is what the learner has learned last, and so is the checkpoint."""
    published, learned = read_weights(run / "policy/model.safetensors"), learner.weights().tensors
    assert published.version == version
    assert all(np.array_equal(published.tensors[name], tensor) for name, tensor in learned.items())
    assert max(int(path.stem) for path in (run / "checkpoints").iterdir()) == learner.version


@pytest.mark.parametrize("how", ["to its end", "ctrl-c", "failure"])
def test_the_policy_on_disk_is_the_learners_last_update_however_a_run_ends(tmp_path, monkeypatch, how):
    if how == "failure":
        silent_at(iter(range(10**6)), range(53, 10**6), monkeypatch)
    learners: list[Any] = []
    words = ("run.max_episodes=7", "evaluation.freq=100000", "run.publish_freq=1000", "policy.inference.patience_s=0")
    with pytest.raises(TrainingError) if how == "failure" else nullcontext():
        run_of(tmp_path, *words, watch=lambda now: how != "ctrl-c" or now.updates < 12, learners=learners)
    (worker,) = learners
    assert worker.updates >= 12
    assert_newest_on_disk(tmp_path / "run", worker.learner, 2)  # the first is that of the beginning
    acted = {str(episode.meta["weights"]) for _, episode in Store.open(tmp_path / "run/episodes")}
    assert acted == {path.stem.lstrip("0") for path in (tmp_path / "run/policy/versions").iterdir()}
