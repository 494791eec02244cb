"""Cross-fitting, on squares that are bright where a frame shows success."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bright_square import CUTOFF, square_store
from plaudit.data.store import Store
from plaudit.encoders import SmallConfig
from plaudit.judges.calibration import by_others_thresholds
from plaudit.judges.classifier.config import RewardTrainConfig
from plaudit.judges.classifier.dataset import RewardDataset, add_blank_negatives, split, subsample
from plaudit.judges.classifier.fit import Scale, TrainResult, fold_splits
from plaudit.judges.epochs import TrainingInterrupted
from plaudit.judges.metrics import EpisodePrediction
from plaudit.training.reward_model import train_and_save

CONFIG = RewardTrainConfig(
    encoder=SmallConfig(widths=(4, 8)),
    freeze_encoder=True,
    cross_fit=True,
    epochs=2,
    lr=1e-2,
    batch_size=32,
    hidden_dim=16,
    latent_dim=16,
    num_augmented_views=1,
    train_fps=5.0,  # every second frame
)


def make(store: Store, target: Path, config: RewardTrainConfig = CONFIG, watch=lambda now: True) -> TrainResult:
    return train_and_save(store, target, config, watch, lambda _: iter)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cross_fit")


@pytest.fixture(scope="module")
def squares(folder: Path) -> Store:
    return square_store(folder / "squares")


@pytest.fixture(scope="module")
def fitted(folder: Path, squares: Store) -> TrainResult:
    return make(squares, folder / "model")


def test_every_episode_is_held_out_once_and_decides_nothing_in_its_fold(squares):
    table = RewardDataset.from_store(squares)
    splits = split(table, 0)
    splits["train"] = subsample(table, splits["train"], CONFIG.train_fps)
    table, splits = add_blank_negatives(table, splits, 0)
    folds = fold_splits(CONFIG, table, splits)
    episodes = [{name: set(table.episode[rows].tolist()) for name, rows in fold.items()} for fold in folds]
    for fold in episodes:
        assert not fold["test"] & (fold["train"] | fold["validation"]) and not fold["train"] & fold["validation"]
    held_out = [i for fold in episodes for i in fold["test"]]
    tested = set(table.episode[splits["test"]].tolist())
    assert sorted(held_out) == sorted(set(squares.ids) - tested) and len(folds) == 5
    assert all(min(fold["train"]) < 0 for fold in episodes)  # frames that show nothing, too


def test_the_threshold_and_the_figures_rest_on_all_episodes(fitted):
    config = fitted.model.config
    assert {p.episode for p in fitted.predictions} == set(range(12)) and fitted.metrics.episodes == 12
    assert config.promise.episodes == 10 and config.promise.bound_episodes == 12
    assert (config.forecast.episodes, config.forecast.cross_fitted) == (12, 10)


def test_frames_between_those_that_are_scored_are_scored_by_their_neighbors(fitted):
    one = next(p for p in fitted.predictions if p.first_success == CUTOFF)
    logits = np.log(one.success_prob / (1 - one.success_prob))
    assert logits[1] == pytest.approx((logits[0] + logits[2]) / 2, abs=1e-3)


def test_logits_of_a_fold_are_brought_to_the_scale_of_the_kept_model():
    fold, kept = Scale(failure=-2.0, success=2.0), Scale(failure=-3.0, success=3.5)
    assert fold.to(kept, np.float32([-2, 0, 2])).tolist() == [-3, 0.25, 3.5]
    untrained = Scale(failure=0.3, success=0.31)
    assert untrained.to(kept, np.float32([0.3, 1])).tolist() == np.float32([0.3, 1]).tolist()


def test_the_report_shows_what_other_episodes_will_show_and_what_more_would_tell(folder, fitted):
    page = (folder / "model/report.html").read_text()
    assert "What 10 other episodes will show" in page and "by twice as many episodes" in page
    assert "Measured on 12 episodes, of which 10 were cross-fitted" in page and "10 cross-fitted episodes" in page
    fpr = json.loads((folder / "model/model.json").read_text())["forecast"]["figures"]["fpr"]
    assert fpr["low"] <= fpr["value"] <= fpr["high"] and fpr["high"] > 0.2  # twelve episodes cannot rule out more


def test_one_that_was_stopped_in_a_fold_goes_on_there_and_ends_alike(tmp_path, squares, fitted):
    with pytest.raises(TrainingInterrupted):
        make(squares, tmp_path / "model", watch=lambda now: now.fold < 4)
    folds: list[int] = []
    again = make(squares, tmp_path / "model", watch=lambda now: folds.append(now.fold) or True)
    assert set(folds) == {4, 5}
    assert again.model.threshold == fitted.model.threshold
    assert replace(again.metrics) == fitted.metrics


@pytest.mark.parametrize(
    "episodes, changes, why",
    [
        (3, {}, "too few for five folds"),
        (6, {"cross_fit": False}, "they were not cross-fitted"),
    ],
)
def test_without_it_the_report_says_why_and_has_wide_intervals(tmp_path, episodes, changes, why):
    store = square_store(tmp_path / "data", episodes, episodes)
    found = make(store, tmp_path / "model", CONFIG.model_copy(update={"epochs": 1, **changes}))
    forecast = found.model.config.forecast
    assert forecast.cross_fitted == 0 and forecast.episodes == found.metrics.episodes <= 2
    assert forecast.figures["fpr"].high > 0.5
    page = (tmp_path / "model/report.html").read_text()
    assert "test episodes, so the intervals are wide" in page and why in page


def test_an_episode_does_not_choose_the_threshold_that_it_is_counted_by():
    """One has a failure frame that scores higher than all others: by its own threshold it would not pass."""
    target = np.array([0, 0, 1, 1])
    known = [EpisodePrediction([0.1, 0.2, 0.9, 0.9], target, number) for number in range(9)]
    known.append(EpisodePrediction([0.1, 0.7, 0.9, 0.9], target, 9))
    moved = by_others_thresholds(known, 0.8, 0.01)
    assert moved[9].predicted(0.8).tolist() == [False, True, True, True]
    assert [p.predicted(0.8).tolist() for p in moved[:9]] == [[False, False, True, True]] * 9
