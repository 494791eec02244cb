"""Episodes that are out of distribution: far frames, strange starts, members that disagree."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from bright_square import CUTOFF, STEPS, square_episode, square_store
from command import plaudit
from plaudit.data.store import Store
from plaudit.encoders import SmallConfig
from plaudit.errors import BadFile
from plaudit.judges.classifier import ood as ood_module
from plaudit.judges.classifier.checkpoint import OOD_FILE, RewardModel
from plaudit.judges.classifier.config import ClassifierJudgeConfig, RewardTrainConfig
from plaudit.judges.classifier.fit import train_reward_model
from plaudit.judges.classifier.judge import ClassifierJudge
from plaudit.judges.classifier.ood import (
    START_CELLS,
    EpisodeView,
    OodDetector,
    compared_frames,
    pooled,
    start_cells,
)
from plaudit.judges.classifier.training import never_stop
from plaudit.judges.config import judge_warnings
from plaudit.judges.labeling import label_episodes
from plaudit.types import Episode, Labels, Scores

CONFIG = RewardTrainConfig(
    encoder=SmallConfig(widths=(8, 16)), epochs=5, lr=3e-3, batch_size=32, hidden_dim=16, latent_dim=16
)


class Views:
    """Views of episodes, drawn anew in every test."""

    def __init__(self, seed: int):
        self.rng = np.random.default_rng(seed)

    def __call__(
        self, shift: float = 0.0, start: int = 0, start_prob: float = 0.1, disagreement: float = 0.1
    ) -> EpisodeView:
        """Of an episode that starts with an object somewhere along ten cells, and whose frames lie around a point."""
        cells = self.rng.normal(100, 2, (START_CELLS, START_CELLS, 3))
        place = self.rng.integers(0, 9) + start
        cells[8:10, place : place + 2] = 220
        frames = self.rng.normal(shift, 0.3, (8, 20))
        return EpisodeView(frames.astype("f4"), cells.reshape(-1, 3).astype("u1"), start_prob, disagreement)


@pytest.fixture
def view() -> Views:
    return Views(seed=1)


@pytest.fixture(scope="module")
def detector() -> OodDetector:
    view = Views(seed=0)
    return OodDetector.fit([view() for _ in range(60)], range(40, 60), threshold=0.8)


def test_an_episode_in_distribution_is_not_flagged(detector, view):
    assert np.mean([bool(detector.reason(view())) for _ in range(300)]) <= 0.05


@pytest.mark.parametrize(
    ("strange", "why"),
    [
        ({"shift": 1.0}, "its frames look like no training frames"),
        ({"start": 10}, "it starts with something in a new place"),
        ({"disagreement": 0.9}, "its members disagree"),
        ({"start_prob": 0.95}, "it looks successful from the first frame"),
    ],
)
def test_an_ood_episode_is_flagged_and_it_is_said_why(detector, view, strange, why):
    assert all(why in detector.reason(view(**strange)) for _ in range(20))


def test_a_start_like_success_is_nothing_new_where_known_ones_begin_with_success(view):
    known = [view(start_prob=0.97) for _ in range(20)]
    assert "successful" not in OodDetector.fit(known, (), 0.8, begun=[3]).reason(view(start_prob=0.96))


def test_a_known_start_that_the_model_is_wrong_about_excuses_no_other(view):
    known = [view(start_prob=0.97) for _ in range(20)]
    assert "it looks successful from the first frame" in OodDetector.fit(known, (), 0.8).reason(view(start_prob=0.96))


def test_members_that_know_their_training_episodes_by_heart_set_no_limit(view):
    views = [view(disagreement=0.0) for _ in range(30)] + [view(disagreement=0.7) for _ in range(10)]
    assert "disagree" not in OodDetector.fit(views, range(30, 40), threshold=0.8).reason(view(disagreement=0.69))


def test_frames_that_are_compared_cover_the_episode():
    assert compared_frames(100)[0] == 0 and compared_frames(100)[-1] == 99 and len(compared_frames(100)) == 16
    assert compared_frames(2).tolist() == [0, 1]


def test_the_cells_of_a_start_are_those_of_all_cameras_whatever_their_size():
    left, right = np.zeros((40, 60, 3), "u1"), np.full((10, 10, 3), 7, "u1")
    left[:2, :3] = (10, 20, 30)
    cells = start_cells([left, right])
    assert cells.shape == (2 * START_CELLS**2, 3) and cells[0].tolist() == [10, 20, 30] and not cells[1].any()
    assert (cells[START_CELLS**2 :] == 7).all()


def test_more_starts_than_are_kept_flag_no_more_known_episodes(view, monkeypatch):
    monkeypatch.setattr(ood_module, "REFERENCES", 40)
    many = OodDetector.fit([view() for _ in range(100)], (), threshold=0.8)
    assert len(many.starts) == 40 and np.mean([bool(many.reason(view())) for _ in range(100)]) <= 0.08


def test_pooling_keeps_distances_nearly():
    maps = torch.randn(6, 96, 7, 9, generator=torch.Generator().manual_seed(0))
    whole, short = torch.nn.functional.adaptive_avg_pool2d(maps, 4).flatten(1), pooled(maps)
    assert short.shape == (6, 256)
    assert torch.allclose(torch.pdist(short), torch.pdist(whole), rtol=0.3)


# A model that was trained


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    found = tmp_path_factory.mktemp("ood")
    store = square_store(found / "squares", 8, 8)
    train_reward_model(store, CONFIG, found / "work", never_stop, lambda _: iter).model.save_pretrained(found)
    return found


def brighter(episode: Episode) -> Episode:
    return replace(episode, frames={name: 255 - frames // 2 for name, frames in episode.frames.items()})


def starting_done(seed: int) -> Episode:
    """With the square where it usually ends from the first frame on."""
    episode = square_episode(True, seed)
    order = np.minimum(np.arange(STEPS + 1) + CUTOFF, STEPS)
    return replace(episode, frames={name: frames[order] for name, frames in episode.frames.items()})


def scored(judge: ClassifierJudge, *episodes: Episode) -> list[Scores]:
    return [scores for scores in judge.score(episodes) if isinstance(scores, Scores)]


def labeled(judge: ClassifierJudge, *episodes: Episode) -> list[Labels]:
    return [labels for labels in label_episodes(judge, episodes) if isinstance(labels, Labels)]


def test_a_trained_model_flags_another_ground_and_a_start_like_success(folder):
    judge = ClassifierJudge(RewardModel.from_pretrained(folder))
    known = scored(judge, *(square_episode(seed % 2 == 0, 100 + seed) for seed in range(20)))
    assert len(known) == 20 and sum(bool(scores.ood) for scores in known) <= 1
    (scores,) = scored(judge, brighter(square_episode(True, 200)))
    assert "its frames look like no training frames" in scores.ood
    (scores,) = scored(judge, starting_done(300))
    assert "it looks successful from the first frame" in scores.ood and scores.success_prob[0] > judge.rule.threshold


def test_what_is_flagged_is_withheld_where_the_setting_says_so(folder):
    strange, plain = brighter(square_episode(True, 200)), square_episode(True, 201)
    judge = ClassifierJudgeConfig(model=folder, ood="abstain").build()
    withheld, other = labeled(judge, strange, plain)
    assert withheld.withheld and not other.withheld and other.success_once
    paid, _ = labeled(ClassifierJudgeConfig(model=folder).build(), strange, plain)
    assert not paid.withheld and paid.judge != withheld.judge


def test_label_says_how_many_are_ood_and_what_became_of_them(folder, tmp_path):
    with Store.create(tmp_path / "s") as store:
        for episode in (square_episode(True, 101), brighter(square_episode(True, 200))):
            store.append(episode)
    words = ("label", "s", "--judge", "classifier", "--model", folder, "force=true")
    said = " ".join(plaudit(*words, cwd=tmp_path).split())
    assert "1 episode is out of distribution (1); of episode 1: its frames look like no training frames" in said
    assert "they are labeled as others are; ood=abstain leaves them out" in said
    said = " ".join(plaudit(*words, "ood=abstain", cwd=tmp_path).split())
    assert (
        "they have no labels" in said
        and "1 episode of s labeled by classifier (1 called a success), 1 left without labels" in said
    )
    ledger = Store.open(tmp_path / "s").ledger
    assert (
        ledger.labels(1).withheld
        and "look like no training frames" in ledger.labels(1).note
        and ledger.labels(0).labeled.all()
    )


def test_a_model_of_an_earlier_version_flags_nothing_and_says_so_where_it_is_asked_to(folder, tmp_path):
    for name in ("model.json", "member_0.safetensors"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    config = ClassifierJudgeConfig(model=tmp_path, ood="abstain")
    judge = config.build()
    assert scored(judge, brighter(square_episode(True, 200)))[0].ood == ""
    assert any("cannot tell" in warning for warning in judge_warnings(config, judge))
    assert judge.id == ClassifierJudgeConfig(model=tmp_path).build().id  # its labels are the same
    assert RewardModel.from_pretrained(folder).fingerprint == judge.model.fingerprint  # as are its scores


def test_references_of_another_model_are_refused(folder, tmp_path):
    for path in folder.glob("m*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    tensors = load_file(folder / OOD_FILE)
    save_file({**tensors, "mean": tensors["mean"][:-1].clone()}, tmp_path / OOD_FILE)
    with pytest.raises(BadFile, match="of another model"):
        RewardModel.from_pretrained(tmp_path)
