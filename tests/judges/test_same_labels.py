"""One stored episode, one reward model, the same labels: whichever command decides."""

import sys
from pathlib import Path

import numpy as np
import pytest

import glow
from plaudit.cli import main
from plaudit.data.store import Store
from plaudit.errors import ConfigError
from plaudit.judges.config import save_own_judge
from plaudit.judges.evaluation import compare_labels, evaluate
from plaudit.judges.labeling import SuccessDetector, label_episodes
from plaudit.rule import DecisionRule, release
from plaudit.training.config_file import load_training_config
from plaudit.training.replay_buffer import ReplayBuffer
from plaudit.training.rollout_judge import live_judge
from plaudit.training.workers.handles import SerialHandle
from plaudit.training.workers.labelers import JudgeBundle, JudgeWorker
from plaudit.types import Episode, Labels, Observation

# Brightness of frames in tenths; the model speaks for success from 0.5 on, and two of three frames make one.
EPISODES = (
    [1, 2, 3, 6, 7, 8, 8, 8],  # lifted
    [1, 2, 6, 7, 6, 2, 1, 1, 1, 1, 1, 1],  # lifted and dropped: one cutoff would see no success
    [1, 6, 1, 1, 6, 1, 1, 6],  # flickers
    [7, 1, 1, 1],  # bright at the start
    [1, 2, 3, 2, 1],
)
TRAIN = ["env=glow", "learner=ppo", "policy.cameras=[]"]


def lamp(light: list[int]) -> Episode:
    frames = np.array(light, float)[:, None, None, None] * np.full((1, *glow.SIZE, 3), 25.5)
    return Episode.of(frames={"front": np.rint(frames).astype(np.uint8)}, actions=np.zeros((len(light) - 1, 1)))


@pytest.fixture
def model(tmp_path) -> Path:
    return glow.saved(glow.bright_model(0.5), tmp_path / "model")


def live(model: Path, episode: Episode, words: list[str]) -> Labels:
    """As `plaudit train` decides while the episode runs, frame by frame."""
    judge = live_judge(load_training_config("train", None, [*TRAIN, f"judge={model}", *words]))
    seen = [
        Observation({c: f[t : t + 1] for c, f in episode.frames.items()}, episode.state[t : t + 1])
        for t in range(episode.steps + 1)
    ]
    detector = SuccessDetector(judge, 1)
    decided = np.concatenate([detector.reset(seen[0]), *(detector.step(now, {}) for now in seen[1:])])
    return Labels(decided, np.ones(len(decided), bool), judge.id)


def online(folder: Path, model: Path, words: list[str]) -> Store:
    """As `plaudit online` labels what its robot did."""
    replay = ReplayBuffer(folder)
    for number, light in enumerate(EPISODES):
        replay.add(lamp(light), str(number))
    config = load_training_config("online", None, [*glow.online(model), *words])
    worker = JudgeWorker(SerialHandle("replay buffer", replay))
    worker.load(JudgeBundle.of(config.judge.config))
    assert worker.label_pending().done == len(EPISODES)
    worker.close()
    replay.close()
    return Store.open(folder / "episodes")


def labeled(folder: Path, model: Path, words: list[str], monkeypatch) -> Store:
    """As `plaudit label` labels a store."""
    with Store.create(folder) as store:
        store.extend([lamp(light) for light in EPISODES])
    asked = ["plaudit", "label", str(folder), "--judge", "classifier", "--model", str(model), *words]
    monkeypatch.setattr(sys, "argv", asked)
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    return Store.open(folder)


@pytest.mark.parametrize("rule", [{}, {"k": 3, "n": 4}, {"decode": "per_frame"}, {"threshold": 0.9}])
def test_every_command_gives_an_episode_the_same_labels(tmp_path, model, monkeypatch, rule):
    words = [f"rule.{name}={value}" for name, value in {"decode": "k_of_n", **rule}.items()]
    nested = [f"judge.{word}" for word in words]
    runs, store = online(tmp_path / "run", model, nested), labeled(tmp_path / "store", model, words, monkeypatch)
    for i in store.ids:
        found, of_run = store.ledger.labels(i), runs.ledger.labels(i)
        while_it_ran = live(model, store.episode(i), nested)
        assert while_it_ran.success.tolist() == release(found).success.tolist() == release(of_run).success.tolist()
        assert while_it_ran.judge == found.judge == of_run.judge
        assert np.array_equal(found.scores.success_prob, of_run.scores.success_prob)
    assert any(store.ledger.labels(i).success_once for i in store.ids)


def test_an_evaluation_measures_the_labels_that_a_run_would_get(tmp_path, model, monkeypatch):
    store = labeled(tmp_path / "store", model, [], monkeypatch)
    truths = {i: store.ledger.labels(i).targets for i in store.ids}
    judge = live_judge(load_training_config("train", None, [*TRAIN, f"judge={model}"]))
    found = evaluate(store, judge, truths, controls=None)
    there = compare_labels(store, {i: store.ledger.labels(i) for i in store.ids}, truths, judge.rule)
    assert found.label_metrics == there.label_metrics and set(found.label_metrics.errors) == {0}
    assert found.label_metrics.fp == 0 and found.metrics == there.metrics


def test_a_folders_own_rule_is_taken_by_every_command(tmp_path, model, monkeypatch):
    save_own_judge(model, DecisionRule(threshold=0.9, k=3, n=3))
    store = labeled(tmp_path / "store", model, [], monkeypatch)
    runs = online(tmp_path / "run", model, ["judge.rule.decode=k_of_n"])
    for i in store.ids:
        expected = DecisionRule(threshold=0.9, k=3, n=3).decide(store.ledger.labels(i).scores.success_prob)
        assert store.ledger.labels(i).success.tolist() == expected.tolist()
        assert live(model, store.episode(i), []).judge == store.ledger.labels(i).judge == runs.ledger.labels(i).judge


def test_a_cutoff_annotates_data_and_is_refused_by_training(tmp_path, model, monkeypatch):
    store = labeled(tmp_path / "store", model, ["rule.decode=cutoff"], monkeypatch)
    assert not store.ledger.labels(1).success_once  # lifted and dropped
    with pytest.raises(ConfigError, match="'cutoff' needs whole episodes"):
        load_training_config("train", None, [*TRAIN, f"judge={model}", "judge.rule.decode=cutoff"])


def test_labels_of_a_round_are_those_of_the_episode_that_was_stored(model):
    simulation = glow.GlowConfig().build(3)
    config = load_training_config("train", None, [*TRAIN, f"judge={model}"])
    judge = live_judge(config)
    speeds = np.float32([[0.1], [0.3], [0.6]])
    played = glow.collect_rollout(simulation, lambda seen: speeds, range(3), SuccessDetector(judge, 3))
    for episode, labels in played.episodes(simulation, judge):
        (afterwards,) = label_episodes(judge, [episode])
        assert isinstance(afterwards, Labels) and labels.judge == afterwards.judge
        assert labels.success.tolist() == afterwards.success.tolist()
