"""Training a reward model, on squares that are bright where a frame shows success."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from bright_square import CUTOFF, STEPS, square_episode, square_store
from glow import saved
from plaudit.data.episode_keys import episode_keys, unpack_keys
from plaudit.data.store import Store
from plaudit.encoders import SmallConfig
from plaudit.encoders.resnet import Resnet10Config
from plaudit.errors import BadFile, JudgeError, PlauditError, TargetNotEmpty
from plaudit.judges import epochs
from plaudit.judges.calibration import PlattScaling
from plaudit.judges.classifier import dataset, model, training
from plaudit.judges.classifier.checkpoint import RewardModel
from plaudit.judges.classifier.config import RewardTrainConfig
from plaudit.judges.classifier.dataset import SPLITS, RewardDataset, add_blank_negatives, split, subsample
from plaudit.judges.classifier.fit import RememberingModel, TrainResult
from plaudit.judges.classifier.judge import ClassifierJudge, load_reward_model
from plaudit.judges.classifier.model import BinaryRewardClassifier, ClassifierConfig
from plaudit.judges.classifier.training import OnlineFeatures, balanced_batch
from plaudit.judges.config import load_judge_config
from plaudit.judges.epochs import EpochMetrics, StepMetrics, TrainingInterrupted
from plaudit.training.reward_model import train_and_save, work_folder
from plaudit.types import Episode, JudgeId, Labels, Observation
from tiny_reward import noise_episode, tiny_model

CONFIG = RewardTrainConfig(
    encoder=SmallConfig(widths=(8, 16)),
    epochs=8,
    lr=3e-3,
    batch_size=32,
    hidden_dim=16,
    latent_dim=16,
    num_augmented_views=2,
)
FROZEN = CONFIG.model_copy(update={"freeze_encoder": True, "lr": 1e-2})


def going(epoch: EpochMetrics) -> bool:
    return True


def silent(what: str) -> Callable:
    return iter


def make(store: Store, target: Path, config: RewardTrainConfig = CONFIG, watch=going, track=silent) -> TrainResult:
    return train_and_save(store, target, config, lambda now: isinstance(now, StepMetrics) or watch(now), track)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("fit")


@pytest.fixture(scope="module")
def squares(folder: Path) -> Store:
    return square_store(folder / "squares")


@pytest.fixture(scope="module")
def fitted(folder: Path, squares: Store) -> TrainResult:
    return make(squares, folder / "model")


def test_it_learns_what_success_looks_like(fitted):
    assert fitted.metrics.episodes == 2 and fitted.metrics.accuracy == 1
    assert fitted.metrics.causal.tp == 1 and fitted.metrics.causal.onset_median == 1  # two frames decide
    assert {c.name for c in fitted.controls} >= {"frozen frame", "time reversed", "truncated", "blank black"}
    assert all(control.passed for control in fitted.controls)


def test_the_folder_has_all_that_is_known_and_the_work_is_cleared_away(folder, fitted):
    assert {path.name for path in (folder / "model").iterdir()} == {
        *("model.json", "member_0.safetensors", "curve.jsonl", "held_out.jsonl", "report.html", "judge.yaml"),
        *("tensorboard", "ood.safetensors"),
    }
    assert not work_folder(folder / "model").exists()
    epochs = [json.loads(line) for line in (folder / "model/curve.jsonl").read_text().splitlines()]
    assert [e["epoch"] for e in epochs] == list(range(1, len(fitted.history) + 1))
    page = (folder / "model/report.html").read_text()
    assert "8 for train, 2 for validation, 2 for test" in page and fitted.model.config.data.fingerprint in page


def test_what_is_loaded_judges_as_what_was_saved(folder, squares, fitted):
    loaded = load_reward_model(folder / "model", "cpu")
    assert loaded.fingerprint == fitted.model.fingerprint and loaded.threshold == fitted.model.threshold
    for episode_id in (0, 11):
        one, other = (m.score_episode(squares.episode(episode_id)).success_prob for m in (loaded, fitted.model))
        assert np.array_equal(one, other)


def test_an_episode_that_a_person_has_excluded_is_no_sample(tmp_path):
    store = square_store(tmp_path / "store")
    nothing = np.zeros(STEPS + 1, bool)
    store.ledger.append(3, Labels(nothing, nothing, JudgeId("human"), note="excluded"))
    assert set(RewardDataset.from_store(store).episode.tolist()) == set(store.ids) - {3}


def test_every_frame_of_a_store_is_a_sample_of_the_data_set(squares):
    table = RewardDataset.from_store(squares)
    assert isinstance(table, RewardDataset) and len(table) == sum(squares.entry(i).rows for i in squares.ids)
    row = int(table.rows_of([7])[2])
    assert (table.episode[row], table.frame_index[row]) == (7, 2)
    assert table.target[row] == squares.ledger.labels(7).targets[2]


def test_a_long_episode_is_resized_piece_by_piece(squares, monkeypatch):
    whole = RewardDataset.from_store(squares, image_size=(16, 16)).images["front"]
    monkeypatch.setattr(dataset, "RESIZED_AT_ONCE", 5)
    assert np.array_equal(RewardDataset.from_store(squares, image_size=(16, 16)).images["front"], whole)


@pytest.mark.parametrize("members", [1, 2])
def test_what_was_measured_is_what_the_model_says_later(tmp_path, squares, members):
    """Also where training looked at features that were kept in half precision."""
    changes = {"epochs": 2, "ensemble_size": members}
    found = make(squares, tmp_path / "frozen", FROZEN.model_copy(update=changes))
    loaded = load_reward_model(tmp_path / "frozen", force=True)
    for episode in found.predictions:
        assert (
            loaded.score_episode(squares.episode(episode.episode)).success_prob.tolist()
            == episode.success_prob.tolist()
        )
    assert (loaded.config.ensemble_calibration != (1, 0)) == (members > 1)


def test_controls_of_a_model_with_a_history_encode_no_frame_twice(monkeypatch):
    model, episode = tiny_model(members=2, num_history_frames=2), noise_episode()
    remembering = RememberingModel(model.members, model.config, "cpu")
    encoded: list[int] = []
    embed = model._embed_batch
    monkeypatch.setattr(remembering, "_embed", lambda images: encoded.append(len(images)) or embed(images))
    backwards = replace(episode, frames={"front": episode.frames["front"][::-1]})
    for one in (episode, backwards, episode):
        assert remembering.score_episode(one).success_prob == pytest.approx(model.score_episode(one).success_prob)
    assert sum(encoded) == episode.steps + 1


def test_an_ensemble_of_an_earlier_version_judges_as_it_did(tmp_path):
    model, episode = tiny_model(members=2), noise_episode()
    folder = saved(model, tmp_path / "m")
    tree = json.loads((folder / "model.json").read_text())
    del tree["ensemble_calibration"]  # which they did not have
    (folder / "model.json").write_text(json.dumps(tree))
    said = [PlattScaling(temperature=0.3)(member[:, 0]) for member in model.logits(episode)]
    assert load_reward_model(folder).score_episode(episode).success_prob == pytest.approx(np.min(said, axis=0))


def changed(model: RewardModel, **facts) -> RewardModel:
    """The same weights, with another description."""
    shape = model.classifier.model_copy(update=facts.pop("classifier", {}))
    described = model.config.model_copy(update={"classifier": shape, **facts})
    member = BinaryRewardClassifier(shape)
    member.load_state_dict(model.members[0].state_dict())
    return RewardModel([member], described, "cpu")


def test_a_fingerprint_is_of_all_that_changes_a_score(tmp_path):
    model, episode = tiny_model(), noise_episode()
    others = {
        "calibration": changed(model, calibration=((0.3, 1.0),)),
        "of the ensemble": changed(model, ensemble_calibration=(1.0, 1.0)),
        "image size": changed(model, classifier={"image_size": (14, 14)}),
        "history": changed(tiny_model(num_history_frames=2), classifier={"history_stride": 2}),
        "stride": tiny_model(num_history_frames=2),
    }
    assert len({model.fingerprint, *(other.fingerprint for other in others.values())}) == 1 + len(others)
    for name in ("calibration", "image size"):
        assert not np.allclose(
            others[name].score_episode(episode).success_prob, model.score_episode(episode).success_prob
        ), name
    assert changed(model, classifier={"dropout": 0.5}).fingerprint == model.fingerprint  # of training alone
    assert load_reward_model(saved(model, tmp_path / "m")).fingerprint == model.fingerprint


def test_a_fingerprint_is_of_padding_and_pixel_statistics_too():
    shape = ClassifierConfig(encoder=Resnet10Config(), cameras={"front": (32, 32)}, hidden_dim=4, latent_dim=4)
    facts = tiny_model().config.model_copy(update={"classifier": shape})
    model = RewardModel([BinaryRewardClassifier(shape)], facts, "cpu")
    encoders = [Resnet10Config(padding="torchvision"), Resnet10Config(normalize="unit")]
    others = [changed(model, classifier={"encoder": encoder}).fingerprint for encoder in encoders]
    assert len({model.fingerprint, *others}) == 3


def test_no_episode_is_in_two_parts(squares):
    table = RewardDataset.from_store(squares)
    parts = split(table, seed=0)
    episodes = [set(table.episode[parts[part]].tolist()) for part in SPLITS]
    assert sum(map(len, episodes)) == len(set.union(*episodes)) == 12
    assert all(any(i < 6 for i in ids) and any(i >= 6 for i in ids) for ids in episodes)  # both kinds in each


def test_a_model_knows_the_episodes_that_it_learned_from_and_chose_its_threshold_by(folder, squares, fitted):
    model = RewardModel.from_pretrained(folder / "model", "cpu")
    seen = unpack_keys(model.config.data.seen)
    table = RewardDataset.from_store(squares)
    test = set(table.episode[split(table, CONFIG.seed)["test"]].tolist())
    known = {i for i, keys in episode_keys(squares, squares.ids).items() if keys & seen}
    assert known == set(squares.ids) - test and test


def test_each_part_has_its_share_of_the_episodes(tmp_path):
    table = RewardDataset.from_store(square_store(tmp_path / "store", 20, 40), image_size=(4, 4))
    counts = [len(np.unique(table.episode[rows])) for rows in split(table, seed=0).values()]
    assert counts == [42, 9, 9]
    both = split(table, seed=0, test=0.0)
    assert np.array_equal(both["test"], both["validation"])


def test_batches_are_balanced_and_what_is_measured_is_as_it_comes(squares):
    table = RewardDataset.from_store(squares)
    parts = split(table, seed=0)
    rng = torch.Generator().manual_seed(0)
    batches = [balanced_batch(table, parts["train"], 16, rng) for _ in range(20)]
    assert {(len(batch), table.target[batch].mean()) for batch in batches} == {(16, 0.5)}
    assert all(np.isin(batch, parts["train"]).all() for batch in batches)
    assert table.target[parts["validation"]].mean() == 0.25  # half of one episode of two


def test_frames_that_show_nothing_are_learned_as_failures(squares):
    table = RewardDataset.from_store(squares)
    longer, parts = add_blank_negatives(table, split(table, seed=0), seed=0)
    blanks = np.flatnonzero(longer.episode < 0)
    assert set(blanks) <= set(parts["train"]) and not longer.target[blanks].any()
    assert np.array_equal(longer.images["front"][: len(table)], table.images["front"][: len(table)])
    assert (longer.images["front"][blanks[0]] == 0).all()


def test_noise_is_learned_as_it_is_and_at_several_grains(squares):
    table = RewardDataset.from_store(squares)
    longer, _ = add_blank_negatives(table, split(table, seed=0), seed=0)
    blanks = np.flatnonzero(longer.episode < 0)
    noise = longer.images["front"][blanks[len(blanks) // 2 :]].astype(int)
    assert noise.std(axis=(1, 2, 3)).min() > 50
    steps = np.abs(np.diff(noise, axis=2)).mean(axis=(1, 2, 3))  # between neighbors: a coarse grain repeats them
    assert steps.min() < 20 and steps.max() > 70
    member = model.build_member(CONFIG, CONFIG.classifier_config(longer.cameras, 0), 0)
    features = OnlineFeatures(member, longer, CONFIG)
    rows = np.concatenate([blanks, longer.rows_of([0])])
    trained = features.train_batch(rows[:, None], torch.Generator().manual_seed(0))["front"]
    shown = features.eval_batch(rows)["front"]
    same = [torch.allclose(*pair, atol=1e-3) for pair in zip(trained, shown, strict=True)]
    assert all(same[: len(blanks)]) and not any(same[len(blanks) :])


def test_neighbours_are_thinned_to_a_rate(squares):
    table = RewardDataset.from_store(squares)
    kept = subsample(table, split(table, seed=0)["train"], 5.0)  # of 10 a second
    assert set(table.frame_index[kept].tolist()) == {0, 2, 4, 6, 8, 10}


def ending_with_success(folder: Path) -> Store:
    """Episodes at 50 frames a second; those that succeed end with the first frame that shows it."""
    store = Store.create(folder)
    for number in range(12):
        episode = replace(square_episode(number < 6, number), fps=50.0)
        labels = Labels.from_cutoff(steps=STEPS, cutoff=STEPS if number < 6 else None, source="human")
        store.ledger.append(store.append(episode), labels)
    return store


def test_an_episode_that_ends_with_its_only_success_frame_is_learned_and_found(tmp_path):
    store = ending_with_success(tmp_path / "store")
    table = RewardDataset.from_store(store)
    kept = subsample(table, split(table, seed=0)["train"], 10.0)
    assert STEPS % 5 and table.target[kept].sum() == 4  # of 6, one each is for validation and test
    make(store, tmp_path / "model", CONFIG.model_copy(update={"epochs": 1}))
    rule = load_judge_config(tmp_path / "model", None).rule
    assert rule.window == (1, 1)  # two of three frames would find no success


@pytest.mark.slow
def test_the_same_seed_gives_the_same_model_and_another_another(tmp_path, squares, fitted):
    assert make(squares, tmp_path / "again").model.fingerprint == fitted.model.fingerprint
    other = CONFIG.model_copy(update={"seed": 1, "epochs": 1})
    assert make(squares, tmp_path / "other", other).model.fingerprint != fitted.model.fingerprint


class Killed(BaseException):
    """As good as kill -9: nothing that our code does for an error is done."""


def stop_at(epoch: int, member: int = 0) -> Callable[[EpochMetrics], bool]:
    return lambda now: (now.member, now.epoch) != (member, epoch)


def kill_at(epoch: int) -> Callable[[EpochMetrics], bool]:
    def watch(now: EpochMetrics) -> bool:
        if now.epoch == epoch:
            raise Killed
        return True

    return watch


@pytest.mark.parametrize(
    "config",
    [pytest.param(CONFIG, marks=pytest.mark.slow), FROZEN],
    ids=["encoder trained", "encoder frozen"],
)
def test_a_training_that_was_stopped_and_killed_goes_on_as_if_it_was_not(tmp_path, squares, config, monkeypatch):
    config = config.model_copy(update={"ensemble_size": 2, "epochs": 4, "patience": 9})
    whole = make(squares, tmp_path / "whole", config)
    for module in (training, epochs):
        monkeypatch.setattr(module, "KEEP_EVERY", 0.0)
    with pytest.raises(TrainingInterrupted):
        make(squares, tmp_path / "parts", config, stop_at(2))
    assert not (tmp_path / "parts").exists() and work_folder(tmp_path / "parts").is_dir()
    with pytest.raises(Killed):
        make(squares, tmp_path / "parts", config, kill_at(4))
    seen: list[EpochMetrics] = []
    parts = make(squares, tmp_path / "parts", config, lambda epoch: seen.append(epoch) or True)
    assert [(e.member, e.epoch) for e in seen] == [(0, 4), (1, 1), (1, 2), (1, 3), (1, 4)]
    assert parts.model.fingerprint == whole.model.fingerprint
    assert [e.train_loss for e in parts.history] == [e.train_loss for e in whole.history]
    assert not work_folder(tmp_path / "parts").exists()


def test_one_that_was_stopped_within_an_epoch_goes_on_as_if_it_was_not(tmp_path, squares):
    config = CONFIG.model_copy(update={"epochs": 3, "batch_size": 8})
    whole = make(squares, tmp_path / "whole", config)
    steps: list[StepMetrics] = []

    def train(goes_on: Callable[[StepMetrics], bool]) -> TrainResult:
        def watch(now: EpochMetrics | StepMetrics) -> bool:
            if isinstance(now, EpochMetrics):
                return True
            steps.append(now)
            return goes_on(now)

        return train_and_save(squares, tmp_path / "parts", config, watch, silent)

    with pytest.raises(TrainingInterrupted):  # within the first epoch
        train(lambda step: False)
    with pytest.raises(TrainingInterrupted):  # after its last step
        train(lambda step: step.step < step.steps)
    parts = train(lambda step: True)
    assert parts.model.fingerprint == whole.model.fingerprint
    assert [e.train_loss for e in parts.history] == [e.train_loss for e in whole.history]
    assert [(s.epoch, s.step) for s in steps] == [(e, n) for e in (1, 2, 3) for n in range(1, steps[0].steps + 1)]


def test_its_curve_is_there_as_event_files(folder, fitted):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "model/tensorboard"))
    events.Reload()
    assert [e.value for e in events.Scalars("loss/train")] == pytest.approx([e.train_loss for e in fitted.history])


def test_encoding_that_was_interrupted_goes_on_where_it_was(tmp_path, squares, monkeypatch):
    config = FROZEN.model_copy(update={"epochs": 2})
    whole = make(squares, tmp_path / "whole", config)
    monkeypatch.setattr(model, "CPU_MINI_BATCH", 16)
    counts: list[int] = []

    def track(stop_after: int) -> Callable:
        def through(items):
            counts.append(len(items))
            for number, item in enumerate(items):
                if number == stop_after:
                    raise KeyboardInterrupt
                yield item

        return lambda what: through if what.startswith("encoding") else iter

    with pytest.raises(KeyboardInterrupt):
        make(squares, tmp_path / "parts", config, track=track(3))
    parts = make(squares, tmp_path / "parts", config, track=track(999))
    assert counts[1] == counts[0] - 3 and counts[1] > 0
    assert np.allclose(_weights(parts), _weights(whole), atol=1e-5)


def _weights(fitted: TrainResult) -> np.ndarray:
    return np.concatenate([p.detach().numpy().ravel() for p in fitted.model.members[0].head.parameters()])


def test_other_work_that_lies_there_is_not_used(tmp_path, squares):
    with pytest.raises(TrainingInterrupted):
        make(squares, tmp_path / "model", CONFIG, stop_at(2))
    seen: list[EpochMetrics] = []
    other = CONFIG.model_copy(update={"epochs": 2, "seed": 5})
    make(squares, tmp_path / "model", other, lambda epoch: seen.append(epoch) or True)
    assert [epoch.epoch for epoch in seen] == [1, 2]


def test_a_camera_may_have_dots_in_its_name(tmp_path):
    store = square_store(tmp_path / "store", cameras=("observation.image",))
    fitted = make(store, tmp_path / "model", CONFIG.model_copy(update={"epochs": 1}))
    assert list(load_reward_model(tmp_path / "model", force=True).cameras) == ["observation.image"]
    assert fitted.model.fingerprint == load_reward_model(tmp_path / "model", force=True).fingerprint


def test_state_history_and_progress_can_be_learned_too(tmp_path, squares):
    config = CONFIG.model_copy(
        update={"use_state": True, "num_history_frames": 2, "predict_progress": True, "epochs": 3}
    )
    model = make(squares, tmp_path / "model", config).model
    said = model.score_episode(squares.episode(0))
    assert said.progress is not None and said.progress.shape == (STEPS + 1,)
    assert model.classifier.state_dim == 2 and model.classifier.num_frames == 3


# What is bad is answered with a sentence, and nothing is written


def one_class(folder: Path) -> Store:
    return square_store(folder, successes=0, failures=6)


def three_episodes(folder: Path) -> Store:
    return square_store(folder, successes=2, failures=1)


def rotten(folder: Path) -> Store:
    square_store(folder).close()
    path = next(path for path in folder.glob("segments/*/*front*"))
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    return Store.open(folder)


def a_camera_missing(folder: Path) -> Store:
    store = square_store(folder)
    return _with(store, square_episode(True, 99, cameras=("wrist",)))


def no_camera(folder: Path) -> Store:
    store = Store.create(folder)
    for number in range(6):
        _with(store, replace(square_episode(True, number), frames={}))
    return store


def two_sizes(folder: Path) -> Store:
    return _with(square_store(folder), square_episode(True, 99, size=32))


def no_labels(folder: Path) -> Store:
    store = Store.create(folder)
    store.append(square_episode(True, 0))
    return store


def _with(store: Store, episode: Episode) -> Store:
    labels = Labels.from_cutoff(steps=STEPS, cutoff=CUTOFF, source="human")
    store.ledger.append(store.append(episode), labels)
    return store


def one_without_a_state(folder: Path) -> Store:
    episode = square_episode(True, 99)
    return _with(square_store(folder), replace(episode, state=episode.state[:, :0]))


def test_episodes_with_and_without_a_state_are_learned_together(tmp_path):
    store = one_without_a_state(tmp_path / "store")
    table = RewardDataset.from_store(store)
    assert len(table) == 13 * (STEPS + 1) and table.state_dim == 0


@pytest.mark.parametrize(
    ("bad", "changes", "sentence"),
    [
        (one_class, {}, "all 72 labeled frames of these 6 episodes are failure; a judge learns from frames of both"),
        (three_episodes, {}, "3 episodes are too few: at least 4 are needed"),
        (rotten, {}, "camera.front.bin fails its checksum); 'plaudit data check"),
        (a_camera_missing, {}, "episode 12 has no camera 'front', it has: wrist"),
        (two_sizes, {}, "camera 'front' is 32x32 in episode 12 and 24x24 in others"),
        (no_camera, {}, "has no camera, and a reward model learns from images"),
        (no_labels, {}, "has no labels of human, simulator, dataset, cutoff; label it first"),
        (
            one_without_a_state,
            {"use_state": True},
            "not all of these episodes have a state of one size; leave out --us",
        ),
        (square_store, {"label_sources": ("vlm",)}, "has no labels of vlm"),
        (square_store, {"image_keys": ("top",)}, "has no camera 'top', it has: front"),
        (square_store, {"lr": 1e30, "epochs": 3}, "the loss became nan in epoch 1; no model was written, lower the"),
        (square_store, {"lr": 1e30, "epochs": 1, "batch_size": 999}, "the loss became nan in epoch 1; no model"),
    ],
)
def test_bad_input_is_refused_with_a_sentence_and_nothing_is_written(tmp_path, bad, changes, sentence):
    store = bad(tmp_path / "store")
    with pytest.raises(PlauditError) as error:
        make(store, tmp_path / "runs/model", CONFIG.model_copy(update=changes))
    assert sentence in str(error.value) and "\n" not in str(error.value)
    assert list((tmp_path / "runs").glob("*")) == []


def test_frames_that_do_not_fit_on_the_disk_are_refused_before_they_are_written(squares, monkeypatch):
    usage = shutil.disk_usage(squares.folder)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(JudgeError, match=r"the frames to learn from take 0.3 MB in .* and 0.0 MB are free. Free some"):
        RewardDataset.from_store(squares)


def test_a_target_that_holds_something_is_refused_before_anything_is_read(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model/notes.txt").write_text("mine")
    with pytest.raises(TargetNotEmpty, match="holds something already; nothing was written"):
        make(Store.create(tmp_path / "empty"), tmp_path / "model")


def test_a_body_can_be_frozen_only_where_there_is_one():
    with pytest.raises(ValueError, match="encoder 'small' has no parts"):
        RewardTrainConfig(encoder=SmallConfig(), freeze_encoder="stem")


def test_frames_of_another_size_are_refused_at_run_time(fitted):
    with pytest.raises(JudgeError, match="camera 'front' gives 32x32 images, this reward model was trained on 24x24"):
        fitted.model.score_episode(square_episode(True, 0, size=32))
    with pytest.raises(JudgeError, match="looks at camera 'front', which is not there; there are: wrist"):
        observation = Observation({"wrist": np.zeros((1, 24, 24, 3), np.uint8)}, np.zeros((1, 2), np.float32))
        ClassifierJudge(fitted.model).stream(1).reset(observation)


def test_weights_of_another_network_are_refused_with_the_first_tensor(folder, fitted, tmp_path, squares):
    other = CONFIG.model_copy(update={"hidden_dim": 8, "epochs": 1})
    make(squares, tmp_path / "other", other)
    (tmp_path / "other/model.json").write_text((folder / "model/model.json").read_text())
    with pytest.raises(BadFile, match=r"another network: head.0.weight is \[8, 16\], this one has \[16, 16\]"):
        load_reward_model(tmp_path / "other")


def test_a_model_that_calls_a_white_image_success_is_saved_marked_and_refused(tmp_path):
    store = Store.create(tmp_path / "store")
    for number in range(12):
        episode = square_episode(False, number)
        if number < 6:
            episode.frames["front"][CUTOFF:] = 255
        labels = Labels.from_cutoff(steps=STEPS, cutoff=CUTOFF if number < 6 else None, source="human")
        store.ledger.append(store.append(episode), labels)
    fitted = make(store, tmp_path / "model")
    assert any(problem.startswith("blank white: 100% of 8 frames") for problem in fitted.model.config.problems)
    assert "Not usable: it fails" in (tmp_path / "model/report.html").read_text()
    with pytest.raises(JudgeError, match="is marked as not to be trusted: blank white"):
        load_reward_model(tmp_path / "model")
    assert load_reward_model(tmp_path / "model", force=True).fingerprint == fitted.model.fingerprint
