"""Training a reward model, as a user types it: our way, and the three ways that were published elsewhere."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from bright_square import CUTOFF, square_frames, square_store
from command import plaudit
from plaudit.data.formats import WriteOptions
from plaudit.data.store import Store
from plaudit.data.transfer import export_dataset, import_dataset
from plaudit.encoders.resnet import ResNetEncoderWrapper
from plaudit.judges.classifier.judge import load_reward_model
from slow import slow_but
from waiting import stretch, wait_until

SMALL = ("encoder={type: small, widths: [8, 16]}", "hidden_dim=16", "latent_dim=16")
FAST = (*SMALL, "epochs=6", "lr=3e-3", "batch_size=32")

# The command, with a checkpoint after every epoch instead of every few seconds.
EVERY_EPOCH = """
from plaudit.cli import main
from plaudit.judges import epochs
epochs.KEEP_EVERY = 0.0
main()
"""

Run = Callable[..., str]


@pytest.fixture
def run(tmp_path) -> Run:
    """The command, from the folder of the test."""
    return partial(plaudit, "train-reward", cwd=tmp_path)


@pytest.fixture
def store(tmp_path) -> Store:
    return square_store(tmp_path / "store")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def write_folders(folder: Path, camera: str = "base_camera") -> None:
    """As RLinf's collector writes them: floats from 0 to 1, channels first."""
    for kind in ("positive", "negative"):
        (folder / kind).mkdir(parents=True)
        for number in range(6):
            success = kind == "positive"
            frames = square_frames(success, number if success else 10 + number)
            labels = (np.arange(len(frames)) >= CUTOFF) * np.float32(success)
            images = {camera: (frames.transpose(0, 3, 1, 2) / 255).astype(np.float32)}
            tree = np.array({"images": images, "labels": labels}, dtype=object)
            np.save(folder / kind / f"{number:06d}.npy", tree, allow_pickle=True)


def test_from_a_store_to_a_model_and_a_table(run, tmp_path, store):
    said = run("store", *FAST, "--output-dir", "judge", "--seed", 3, alone=True)
    assert "judge: measured on 2 held-out episodes, 24 frames" in said
    for line in (
        "precision, recall",
        "ROC AUC",
        "false-positive rate (frames)",
        "threshold",
        "success-onset error, causal",
        "success-onset error, offline",
    ):
        assert line in said
    assert "7 of 7 passed" in said and "look at judge/report.html before you trust it" in said
    assert names(tmp_path) == ["judge", "store"]
    model = load_reward_model(tmp_path / "judge")
    assert model.config.training["config"]["seed"] == 3 and model.config.scores["accuracy"] == 1
    promise = model.config.promise
    assert promise is not None and not promise.kept and (promise.episodes, promise.labeled) == (2, 12)
    sentence = "too few episodes to guarantee a false-positive rate of 1%: label at least 1,512 more"
    assert sentence in " ".join(said.split())
    page = (tmp_path / "judge/report.html").read_text()
    assert "Label at least 60 more episodes for a guarantee of 20% (1,512 for the 1% that you requested)" in page
    tree = json.loads((tmp_path / "judge/model.json").read_text())
    del tree["promise"]  # as an earlier version wrote it
    (tmp_path / "judge/model.json").write_text(json.dumps(tree))
    assert load_reward_model(tmp_path / "judge").fingerprint == model.fingerprint


@pytest.mark.slow
def test_the_flags_of_two_folders(run, tmp_path):
    write_folders(tmp_path / "reward_data")
    said = run(
        *("--positive-dir", "./reward_data/positive", "--negative-dir", "./reward_data/negative"),
        *("--output-checkpoint", "./checkpoints/reward_model.pt", "--backbone", "resnet10"),
        *("--image-key", "base_camera", "--image-size", 3, 32, 32, "--batch-size", 64, "--epochs", 1, "--lr", 1e-4),
        *("--hidden-dim", 32, "--num-spatial-blocks", 2, "--visualize-positive", "--vis-output-dir", "./show"),
    )
    assert "note: nothing is downloaded" in said and "show shows 36 success frames" in said
    assert "reward_data/positive: 6 trajectories, 72 frames; label=1: 36, label=0: 36" in said
    assert "reward_data/negative: 6 trajectories, 72 frames; label=1: 0, label=0: 72" in said
    assert "the model is in checkpoints/reward_model and checkpoints/reward_model.pt" in said
    assert names(tmp_path) == ["checkpoints", "reward_data", "show"]
    assert names(tmp_path / "show")[0] == "positive_000000_frame006.png" and len(names(tmp_path / "show")) == 36
    assert Image.open(tmp_path / "show/positive_000005_frame011.png").size == (24, 24)
    model = load_reward_model(tmp_path / "checkpoints/reward_model.pt", force=True)
    assert model.cameras == {"base_camera": (24, 24)} and model.classifier.image_size == (32, 32)
    assert model.fingerprint == load_reward_model(tmp_path / "checkpoints/reward_model", force=True).fingerprint


@pytest.mark.slow
def test_the_published_weights_may_be_given_and_are_frozen(run, tmp_path):
    write_folders(tmp_path)
    weights = ResNetEncoderWrapper().state_dict()
    torch.save(weights, tmp_path / "resnet10_pretrained.pt")
    said = run(
        *("--positive-dir", "positive", "--negative-dir", "negative", "--image-size", 3, 32, 32, "--epochs", 2),
        *("--pretrained-encoder-path", "resnet10_pretrained.pt", "--output-dir", "judge"),
    )
    assert "nothing is downloaded" not in said
    member = load_reward_model(tmp_path / "judge", "cpu", force=True).members[0]
    assert all(torch.equal(member.encoder.state_dict()[name], tensor) for name, tensor in weights.items())


@pytest.mark.parametrize("command", ["train-reward", "train-progress"])
def test_minutes_include_the_import_of_a_data_set(tmp_path, store, command, monkeypatch):
    """Which takes half an hour by the clock of the command."""
    clock, passed = time.monotonic, [0.0]

    def slow_import(*args, **kwargs):
        passed[0] += 1800
        return import_dataset(*args, **kwargs)

    export_dataset(store, tmp_path / "labeled", "lerobot", WriteOptions(video=False))
    monkeypatch.setattr(time, "monotonic", lambda: clock() + passed[0])
    monkeypatch.setattr("plaudit.data.transfer.import_dataset", slow_import)
    words = (*FAST, "--minutes", 20, "--device", "cpu", "--output-dir", "judge")
    said = plaudit(command, "labeled", *words, cwd=tmp_path, ok=False)
    assert passed == [1800] and "max_minutes is 20" in said and "nothing was trained" in said


@pytest.mark.parametrize(
    "block", slow_but("reward_model", of=["policy", "reward_model"]), ids=["before 0.6", "since 0.6"]
)
def test_lerobots_reward_classifier(run, tmp_path, block):
    store = square_store(tmp_path / "store", 3, 3)
    export_dataset(store, tmp_path / "labeled", "lerobot", WriteOptions(video=False))
    classifier = {"type": "reward_classifier", "model_name": "helper2424/resnet10", "num_cameras": 1}
    classifier |= {"num_classes": 2, "hidden_dim": 32, "latent_dim": 32}
    visual = {"observation.images.front": {"type": "VISUAL", "shape": [3, 32, 32]}}
    classifier |= {"image_size": 32} if block == "policy" else {"input_features": visual}
    dataset = {"repo_id": "someone/labeled", "root": str(tmp_path / "labeled"), "video_backend": "pyav"}
    (tmp_path / "classifier.json").write_text(json.dumps({block: classifier, "dataset": dataset}))
    said = run("--config", "classifier.json", "epochs=1", "--output-dir", "judge")
    assert "ResNet-10 begins from random weights" in said and "the model is in judge" in said
    shape = load_reward_model(tmp_path / "judge", force=True).classifier
    assert (shape.encoder.type, shape.image_size, shape.hidden_dim) == ("resnet10", (32, 32), 32)
    assert names(tmp_path) == ["classifier.json", "judge", "labeled", "labeled.store", "store"]


def test_the_maniskill_recipe(run, tmp_path, store, monkeypatch):
    export_dataset(store, tmp_path / "data", "pkl")
    monkeypatch.setenv("EMBODIED_PATH", str(tmp_path))
    (tmp_path / "maniskill_train_resnet_reward.yaml").write_text("""
reward_training:
  enabled: True
  only: True
  data_path: "${oc.env:EMBODIED_PATH}/data"
  epochs: 8
  micro_batch_size: 32
  global_batch_size: 32
  lr: 3.0e-3
  save_dir: "${oc.env:EMBODIED_PATH}/logs/reward_checkpoints"
""")
    run("--config", "maniskill_train_resnet_reward.yaml", *SMALL, "head=serl", "global_pool_features=false")
    assert names(tmp_path / "logs/reward_checkpoints") == ["reward_model", "reward_model_best.pt"]
    model = load_reward_model(tmp_path / "logs/reward_checkpoints/reward_model_best.pt")
    assert list(model.cameras) == ["main"] and model.config.scores["roc_auc"] == 1


def test_a_broken_file_is_named_and_left_out(run, tmp_path):
    write_folders(tmp_path)
    (tmp_path / "positive/000003.npy").write_bytes(b"nonsense")
    said = run(
        "--positive-dir", "positive", "--negative-dir", "negative", "--output-dir", "judge", *FAST, "image_size=null"
    )
    assert "warning: episode 3 was left out" in said
    assert sum(load_reward_model(tmp_path / "judge", force=True).config.data.episodes.values()) == 11


def test_a_failed_control_is_told(run, tmp_path):
    store = square_store(tmp_path / "plain")
    white = square_store(tmp_path / "white", 0, 0)
    for episode_id, episode in store:
        frames = np.array(episode.frames["front"])
        frames[CUTOFF:] = 255 if episode_id < 6 else 0
        white.ledger.append(white.append(replace(episode, frames={"front": frames})), store.ledger.labels(episode_id))
    said = run("white", "--output-dir", "judge", *FAST)
    assert "problem: a negative control failed, blank white: 100% of 8 frames predicted a success" in said
    assert "the model is saved and marked: it is refused as a judge unless forced" in said


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "error: name a store or a data set to learn from, or --positive-dir and --negative-dir"),
        (["nowhere"], "error: nowhere does not exist"),
        (["store", "other"], "error: one store or data set at a time, not store and other"),
        (["--positive-dir", "p"], "error: --positive-dir and --negative-dir belong together; give both"),
        (["store", "--positive-dir", "p", "--negative-dir", "n"], "error: name store, or --positive-dir and"),
        (["store", "--image-size", "1", "24", "24"], "error: --image-size takes channels, height and width; images"),
        (
            ["store", "--output-dir", "full"],
            "error: full holds something already; nothing was written, name another with --output-dir",
        ),
        (
            ["store", "--output-checkpoint", "full/m.pt"],
            "error: full/m.pt holds something already; nothing was written",
        ),
        (["store", "--output-checkpoint", "m.pt", "--members", "2"], "one network, and ensemble_size is 2"),
        (["store", "--backbone", "resnet11"], "there is no encoder 'resnet11'; did you mean 'resnet10'?"),
        (["store", "--image-key", "wrist", *FAST], "has no camera 'wrist', it has: front; name cameras that all"),
        (["store", "epoch=3"], "error: command line: unknown key 'epoch'; did you mean 'epochs'?"),
        (["store", "num_cameras=2"], "error: num_cameras is 2 and there are 1: front"),
        (["store", "exclude_episodes=[0]"], "exclude_episodes choose from a data set, and store is a store"),
        (["unlabeled"], "error: unlabeled has no labels; label it (plaudit label unlabeled --judge human), then run"),
        (["store", "--pretrained-encoder-path", "r.pt"], "no such file of weights; download resnet10_pretrained.pt"),
        (["--positive-dir", "unlabeled", "--negative-dir", "nowhere"], "error: nowhere does not exist"),
        (["failures"], "labeled frames of these 4 episodes are failure; a judge learns from frames of both kinds"),
    ],
)
def test_a_mistake_is_answered_with_one_sentence_and_nothing_is_written(run, tmp_path, store, words, sentence):
    (tmp_path / "full").mkdir()
    (tmp_path / "full/m.pt").write_text("x")
    unlabeled = Store.create(tmp_path / "bare")
    unlabeled.append(store.episode(0))
    export_dataset(unlabeled, tmp_path / "unlabeled", "lerobot", WriteOptions(video=False))
    square_store(tmp_path / "failures", 0, 4)
    before = names(tmp_path)
    said = run(*words, ok=False)
    assert sentence in said and len(said.strip().splitlines()) == 1
    assert [name for name in names(tmp_path) if name != "runs"] == before
    assert not list((tmp_path / "runs").glob("*"))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["unlabeled"], "unlabeled has no labels"),
        (["labeled", "--pretrained-encoder-path", "resnet10_pretrained.pt"], "huggingface.co/RLinf"),
    ],
)
def test_missing_labels_and_weights_are_told_before_an_image_is_decoded(
    run, tmp_path, store, monkeypatch, words, sentence
):
    export_dataset(store, tmp_path / "labeled", "lerobot", WriteOptions(video=False))
    bare = Store.create(tmp_path / "bare")
    bare.append(store.episode(0))
    export_dataset(bare, tmp_path / "unlabeled", "lerobot", WriteOptions(video=False))
    monkeypatch.setattr(Store, "append", lambda *_: pytest.fail("an episode was decoded"))
    assert sentence in run(*words, ok=False)


def test_a_data_set_that_was_labeled_here_is_learned_from_with_these_labels(run, tmp_path, store):
    bare = Store.create(tmp_path / "bare")
    for _, episode in store:
        bare.append(episode)
    export_dataset(bare, tmp_path / "theirs", "lerobot", WriteOptions(video=False))
    (tmp_path / "theirs.json").write_text(json.dumps({str(i): CUTOFF if i < 6 else None for i in store.ids}))
    plaudit("data", "label", "theirs", "theirs.json", cwd=tmp_path)
    assert "has no camera 'wrist'" in run("theirs", "--image-key", "wrist", ok=False)


@pytest.mark.slow
def test_ctrl_c_stops_after_the_epoch_and_the_same_command_goes_on(tmp_path, store):
    words = ["train-reward", "store", *SMALL, "epochs=3000", "patience=3000", "--output-dir", "judge"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, "-c", EVERY_EPOCH, *words], cwd=tmp_path, stderr=subprocess.PIPE, text=True, env=environment
    )
    wait_until(lambda: process.poll() is not None or any((tmp_path / ".judge.work").glob("member_0/*")))
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=stretch(60))
    assert process.returncode == 130 and said.strip().endswith("run the same command to resume from .judge.work")
    (kept,) = (tmp_path / ".judge.work/member_0").iterdir()
    assert int(kept.name) > 0 and not (tmp_path / "judge").exists()
