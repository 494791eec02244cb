"""Settings that a training on a processor is given when it may take so many minutes."""

from dataclasses import replace

import numpy as np
import pytest

from bright_square import square_store
from plaudit.judges.classifier import budget
from plaudit.judges.classifier.budget import choose_settings, largest_image_size, measure_speed
from plaudit.judges.classifier.config import RewardTrainConfig
from plaudit.judges.classifier.dataset import RewardDataset, split
from plaudit.judges.classifier.encoders.small import SmallConfig


@pytest.fixture
def table(tmp_path) -> RewardDataset:
    return RewardDataset.from_store(square_store(tmp_path / "store"))


def choose(table: RewardDataset, folder, monkeypatch, seconds_of, **settings):
    """seconds_of: how long a training with a config takes"""
    monkeypatch.setattr(budget, "_estimate", lambda config, *_: seconds_of(config))
    monkeypatch.setattr(budget, "measure_speed", lambda *_: True)
    folder.mkdir(exist_ok=True)
    config = RewardTrainConfig(**{"max_minutes": 10, "device": "cpu", **settings})
    return choose_settings(config, table, split(table, 0), folder)


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


@pytest.mark.parametrize("settings", [{"max_minutes": None}, {"encoder": SmallConfig()}])
def test_a_network_from_scratch_and_one_without_a_limit_are_left_alone(table, tmp_path, monkeypatch, settings):
    assert choose(table, tmp_path / "work", monkeypatch, lambda config: 1, **settings) is None


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
    images, epochs = 4 * 128 + 10 + 4 * 20, 0.8 * 15  # views to learn from; scorings, and controls of test episodes
    assert budget._estimate(config, table, parts, known) == images + epochs * 100
    assert budget._estimate(folds, table, parts, known) == images + epochs * 100 * (1 + 5 * 1)  # and five folds
