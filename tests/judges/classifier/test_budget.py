"""Settings that a training on a CPU is given when it may take so many minutes, and that it ends in time."""

import time
from dataclasses import replace
from math import inf

import numpy as np
import pytest

from bright_square import square_store
from plaudit.encoders import SmallConfig
from plaudit.encoders.resnet import Resnet10Config
from plaudit.errors import JudgeError
from plaudit.judges.classifier import budget
from plaudit.judges.classifier.budget import (
    Choice,
    Estimate,
    choose_settings,
    largest_image_size,
    measure_speed,
    member_seconds,
)
from plaudit.judges.classifier.config import RewardTrainConfig
from plaudit.judges.classifier.dataset import RewardDataset, split
from plaudit.judges.classifier.fit import train_reward_model
from plaudit.judges.classifier.train_job import RewardTrainJob
from plaudit.judges.epochs import StepMetrics


@pytest.fixture
def table(tmp_path) -> RewardDataset:
    return RewardDataset.from_store(square_store(tmp_path / "store"))


def choose(table: RewardDataset, folder, monkeypatch, seconds_of, elapsed_s=0.0, **settings):
    """seconds_of: how long a training with a config takes, most of it to encode images, or its parts"""

    def estimate(config, *_) -> Estimate:
        found = seconds_of(config)
        return found if isinstance(found, Estimate) else Estimate(found, 0, 0, config.epochs)

    monkeypatch.setattr(budget, "_estimate", estimate)
    monkeypatch.setattr(budget, "measure_speed", lambda *_: True)
    folder.mkdir(exist_ok=True)
    config = RewardTrainConfig(**{"max_minutes": 10, "device": "cpu", **settings})
    return choose_settings(config, table, split(table, 0), folder, elapsed_s=elapsed_s)


def test_with_time_enough_it_takes_the_best(table, tmp_path, monkeypatch):
    choice = choose(table, tmp_path / "work", monkeypatch, lambda config: 400)
    assert choice.settings["freeze_encoder"] is True and choice.settings["num_augmented_views"] == 4
    assert choice.settings["ensemble_size"] == 3 and choice.settings["num_history_frames"] == 3
    assert str(choice).endswith("4 augmented views; about 7 minutes")


def test_with_less_it_looks_at_fewer_views(table, tmp_path, monkeypatch):
    choice = choose(table, tmp_path / "work", monkeypatch, lambda config: 250 * config.num_augmented_views)
    assert choice.settings["num_augmented_views"] == 2 and choice.seconds == 500


def test_what_is_set_stays(table, tmp_path, monkeypatch):
    given = {"ensemble_size": 1, "num_history_frames": 0, "image_size": (32, 32), "freeze_encoder": "stem"}
    choice = choose(table, tmp_path / "work", monkeypatch, lambda config: 1e9, **given)
    assert set(choice.settings) == {"num_augmented_views"}


def test_one_that_is_resumed_goes_on_with_the_same(table, tmp_path, monkeypatch):
    first = choose(table, tmp_path / "work", monkeypatch, lambda config: 250 * config.num_augmented_views)
    again = choose(table, tmp_path / "work", monkeypatch, lambda config: 1)
    assert again == first


def test_one_without_a_limit_is_left_alone(table, tmp_path, monkeypatch):
    assert choose(table, tmp_path / "work", monkeypatch, lambda config: 1, max_minutes=None) is None


@pytest.mark.parametrize("encoder", [SmallConfig(), Resnet10Config()])
def test_an_encoder_from_random_weights_is_estimated_and_nothing_is_chosen(table, tmp_path, monkeypatch, encoder):
    choice = choose(table, tmp_path / "work", monkeypatch, lambda config: 1234, encoder=encoder)
    assert choice == Choice({}, 1234)
    assert str(choice) == "the settings you gave; about 21 minutes"


def slow_epochs(config: RewardTrainConfig) -> Estimate:
    return Estimate(encode_s=20, epoch_s=50 * config.ensemble_size, score_s=10, epochs=config.epochs)


@pytest.mark.parametrize(("minutes", "epochs"), [(3, 3), (2, 2), (1.34, 1)])
def test_a_limit_takes_one_member_and_as_many_epochs_as_fit(table, tmp_path, monkeypatch, minutes, epochs):
    limit = {"max_minutes": minutes, "enforce_max_minutes": True}
    choice = choose(table, tmp_path / "work", monkeypatch, slow_epochs, **limit)
    assert (choice.settings["ensemble_size"], choice.settings["epochs"]) == (1, epochs)
    assert choice.seconds <= 60 * minutes and choice.score_s == 10


def test_a_limit_without_room_for_an_epoch_is_refused_with_the_least_time(table, tmp_path, monkeypatch):
    limit = {"max_minutes": 1, "enforce_max_minutes": True}
    with pytest.raises(JudgeError, match=r"max_minutes is 1, .* take about 2 minutes; nothing was trained"):
        choose(table, tmp_path / "work", monkeypatch, slow_epochs, **limit)
    assert choose(table, tmp_path / "work", monkeypatch, slow_epochs, max_minutes=1).seconds > 60  # a guide is exceeded


def test_epochs_that_were_given_stay_and_the_limit_cuts_them_short(table, tmp_path, monkeypatch):
    limit = {"max_minutes": 3, "enforce_max_minutes": True, "epochs": 30}
    choice = choose(table, tmp_path / "work", monkeypatch, slow_epochs, **limit)
    assert "epochs" not in choice.settings and choice.seconds == 20 + 0.8 * 30 * 50 + 10


def test_minutes_are_a_limit_where_they_are_given():
    assert RewardTrainJob(max_minutes=3).training.enforce_max_minutes
    assert not RewardTrainJob().training.enforce_max_minutes and RewardTrainJob().training.max_minutes == 10


def test_each_network_gets_its_share_of_what_is_left(table):
    config = RewardTrainConfig(max_minutes=10, ensemble_size=2, enforce_max_minutes=True)
    assert member_seconds(config, Choice({}, 500, score_s=100), elapsed_s=200) == pytest.approx(135)
    assert member_seconds(config.model_copy(update={"cross_fit": True}), None, elapsed_s=0) == 50
    assert member_seconds(config.model_copy(update={"enforce_max_minutes": False}), None, elapsed_s=0) == inf


@pytest.mark.parametrize("used_s", [0, 60])
def test_training_ends_when_its_minutes_are_used_up(tmp_path, monkeypatch, used_s):
    """By a clock on which every step takes ten seconds.

    used_s: time that the command took before
    """
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def pass_time(done: object) -> bool:
        now[0] += 10 * isinstance(done, StepMetrics)
        return True

    config = RewardTrainConfig(
        encoder=SmallConfig(widths=(4,)), hidden_dim=8, latent_dim=8, batch_size=32, epochs=100, patience=100,
        device="cpu", max_minutes=2, enforce_max_minutes=True,
    )  # fmt: skip
    fitted = train_reward_model(
        square_store(tmp_path / "store"), config, tmp_path / "work", pass_time, lambda _: iter,
        begun=-used_s,
    )  # fmt: skip
    assert 1 <= len(fitted.history) < 100 and now[0] == 120 - used_s


def test_time_before_training_counts_against_a_limit_and_not_against_a_guide(table, tmp_path, monkeypatch):
    limit = {"max_minutes": 3, "enforce_max_minutes": True}
    for elapsed_s, epochs in ((0, 3), (60, 2), (99, 1)):
        work = tmp_path / str(elapsed_s)
        choice = choose(table, work, monkeypatch, slow_epochs, elapsed_s, **limit)
        assert choice.settings["epochs"] == epochs
    with pytest.raises(JudgeError, match="one epoch on this CPU with all around it would take about 4 minutes"):
        choose(table, tmp_path / "refused", monkeypatch, slow_epochs, 110, **limit)
    late, now = (choose(table, tmp_path / f"guide {s}", monkeypatch, slow_epochs, s, max_minutes=3) for s in (999, 0))
    assert late == now


def test_large_images_are_read_no_larger_than_they_are_used():
    config = RewardTrainConfig(max_minutes=10, device="cpu")
    assert largest_image_size(config, {"front": (480, 640)}) == (192, 256)
    assert largest_image_size(config, {"front": (360, 640)}) == (160, 288)
    assert largest_image_size(config, {"front": (64, 64)}) is None
    assert largest_image_size(config.model_copy(update={"image_size": (96, 96)}), {"front": (480, 640)}) == (96, 96)
    assert largest_image_size(config.model_copy(update={"max_minutes": None}), {"front": (480, 640)}) is None


def test_the_estimate_is_of_images_and_steps(table, tmp_path):
    """At a speed that is measured, and as many of each as there are."""
    config = RewardTrainConfig(max_minutes=10, device="cpu", freeze_encoder=True, hidden_dim=16, latent_dim=16)
    speed = measure_speed(config, table)
    assert speed.image_s > 0 and speed.step_s > 0
    parts = {"train": np.arange(128), "validation": np.arange(10), "test": np.arange(20)}
    known = replace(speed, image_s=1.0, step_s=100.0)
    folds = config.model_copy(update={"cross_fit": True})
    # Views to learn from; frames to score, and 16 frames of each of 12 episodes to compare.
    found = budget._estimate(config, table, parts, known)
    assert (found.encode_s, found.epoch_s, found.score_s) == (4 * 128, 100, 10 + 20 + 12 * 16)
    assert found.seconds == 4 * 128 + 0.8 * 15 * 100 + 222
    assert budget._estimate(folds, table, parts, known).epoch_s == 100 * (1 + 5 * 1)  # and five folds
    learning = config.model_copy(update={"freeze_encoder": False})
    assert budget._estimate(learning, table, parts, known).epoch_s == 100 + 10  # validation images in each epoch
