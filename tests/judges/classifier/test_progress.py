"""A model of progress, learned from demonstrations in which a square slides to the right."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command import plaudit
from glow import bright_model, saved
from plaudit.data.store import Store
from plaudit.errors import JudgeError
from plaudit.judges.classifier.config import ClassifierJudgeConfig, ProgressJudgeConfig
from plaudit.judges.classifier.dataset import RewardDataset
from plaudit.judges.classifier.judge import ClassifierJudge
from plaudit.judges.config import JudgeWithProgress, describe_progress, load_named_judge
from plaudit.judges.controls import frozen_frame, time_reversed
from plaudit.judges.metrics import value_order
from plaudit.types import FloatArray, Labels, Observation
from sliding_square import sliding_episode, sliding_store
from tiny_reward import noise_episode, tiny_model
from told import Told

KEYS = ("encoder={type: keypoints, widths: [8, 8]}", "hidden_dim=16", "latent_dim=16", "dropout=0", "augment.shift=0")
TRAIN = (*KEYS, "augment.scale=0", "epochs=4", "lr=2e-2", "batch_size=16", "--members", 2)
ACROSS = np.linspace(0, 1, 12)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("progress")
    sliding_store(folder / "demos")
    plaudit("train-progress", "demos", "--output-dir", "model", *TRAIN, cwd=folder)
    return folder / "model"


def values(folder: Path, places: FloatArray, seed: int = 77) -> FloatArray:
    """The model's, of an episode that it has not seen."""
    judge: Any = load_named_judge(str(folder)).build()
    [scores] = judge.score([sliding_episode(places, seed)])
    return scores.progress


def test_its_values_rise_with_the_task_and_fall_when_the_scene_moves_backwards(folder):
    found = values(folder, ACROSS)
    assert value_order(found) > 0.9 and found[0] < 0.3 and found[-1] > 0.7
    there_and_back = values(folder, np.concatenate([ACROSS, ACROSS[::-1]]))
    assert value_order(there_and_back[12:]) < -0.9
    assert values(folder, ACROSS[:6]).max() < found[-1]  # cut short, it ends lower


def test_it_fails_every_control_that_a_clock_would_pass(folder):
    """Backwards, its values are those of the episode backwards; where nothing moves, there is one value."""
    judge: Any = load_named_judge(str(folder)).build()
    episode = sliding_episode(ACROSS, seed=77)
    target = (np.arange(12) == 11).astype(np.float32)
    controls = [control.episode for make in (frozen_frame, time_reversed) if (control := make(episode, target))]
    ahead, still, back = (scores.progress for scores in judge.score([episode, *controls]))
    assert back == pytest.approx(ahead[::-1], abs=2e-4)
    assert np.ptp(still) == 0 and value_order(still) == 0


def test_failures_are_left_out_and_an_episode_without_labels_is_a_success(tmp_path):
    store = sliding_store(tmp_path / "demos", episodes=4)
    for episode_id, cutoff in {1: None, 2: 5, 3: 0}.items():  # a failure, a success, one that begins with success
        labels = Labels.from_cutoff(steps=store.episode(episode_id).steps, cutoff=cutoff, source="human")
        store.ledger.append(episode_id, labels)
    table = RewardDataset.from_store(store, demonstrations=True)
    assert np.unique(table.episode).tolist() == [0, 2]
    first, second = (table.progress[table.episode == i] for i in (0, 2))
    assert first == pytest.approx(np.arange(8) / 7)
    assert second == pytest.approx(np.minimum(np.arange(10) / 5, 1))


def test_the_lowest_of_an_ensemble_counts():
    model, episode = tiny_model(members=3, predict_success=False, predict_progress=True), noise_episode()
    members = 1 / (1 + np.exp(-model.logits(episode)[:, :, 0]))
    assert model.score_episode(episode).progress == pytest.approx(members.min(axis=0), abs=1e-4)


def test_the_folder_labels_a_store_as_a_judge_of_progress(folder, tmp_path):
    sliding_store(tmp_path / "store", episodes=2)
    said = plaudit("label", "store", "--config", folder, cwd=tmp_path)
    assert "2 episodes of store labeled by progress" in said
    labels = Store.open(tmp_path / "store").ledger.labels(1, ["progress"])
    assert labels.scores.progress == pytest.approx(values(folder, np.linspace(0, 1, 9), seed=1), abs=1e-4)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["num_history_frames=2"], "progress alone is learned from single frames"),
        (["predict_progress=false"], "predict_success=false leaves nothing to learn"),
        (["--sources", "human"], "none of the 4 episodes of demos ends in success"),
    ],
)
def test_what_cannot_be_learned_from_is_told_and_nothing_is_written(tmp_path, words, sentence):
    store = sliding_store(tmp_path / "demos", episodes=4)
    for i in store.ids:
        store.ledger.append(i, Labels.from_cutoff(steps=store.episode(i).steps, cutoff=None, source="human"))
    assert sentence in plaudit("train-progress", "demos", "-o", "model", *words, cwd=tmp_path, ok=False)
    assert [path.name for path in tmp_path.iterdir()] == ["demos"]


def test_a_model_of_progress_is_no_classifier_of_success(folder, tmp_path):
    with pytest.raises(JudgeError, match="is a judge of type 'progress', not 'classifier'"):
        ClassifierJudgeConfig(model=folder).build()
    success = saved(bright_model(0.8), tmp_path / "success")
    with pytest.raises(JudgeError, match="is a judge of type 'classifier', not 'progress'"):
        ProgressJudgeConfig(model=success).build()


# Beside another judge


def beside(progress: tuple[float, ...] = (0.1, 0.5, 0.9)) -> JudgeWithProgress:
    return JudgeWithProgress(Told(0, 0.2, 1), Told(0, 0, 0, progress=progress))


def test_one_judge_says_what_succeeded_and_the_other_how_far_it_is():
    judge: Any = beside()
    [scores] = judge.score([noise_episode(steps=2)])
    stream, seen = judge.stream(1), Observation({}, np.zeros((1, 2), np.float32))
    live = [stream.reset(seen), stream.step(seen, {}), stream.step(seen, {})]
    assert scores.success_prob.tolist() == pytest.approx([0, 0.2, 1]) == [one.success_prob[0] for one in live]
    assert scores.progress.tolist() == pytest.approx([0.1, 0.5, 0.9]) == [one.progress[0] for one in live]


def test_either_judge_changed_makes_other_labels_and_the_label_keeps_its_certificate():
    judge, other = beside(), ClassifierJudge(tiny_model(predict_success=False, predict_progress=True))
    changed = JudgeWithProgress(judge.judge, other)
    assert (
        changed.id != judge.id and replace(changed.id, progress="") == replace(judge.id, progress="") == judge.judge.id
    )


@pytest.mark.parametrize(
    ("progress", "words"),
    [
        ((0.1, 0.4, 0.7, 0.9), "90%"),
        ((0.1, 0.6, 0.6, 0.55, 0.5, 0.6), "60%, stalled"),
        ((0.5, 1, 1, 1, 1, 1), "100%"),
        ((np.nan,), ""),
    ],
)
def test_an_operator_is_told_how_far_an_episode_came_and_whether_it_stalled(progress, words):
    assert describe_progress(np.array(progress, np.float32)) == words
