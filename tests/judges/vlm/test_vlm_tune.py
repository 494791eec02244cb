"""The tiny model learns from labels: an adapter that judges episodes it has not seen, and says what it is."""

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from bright_square import square_store
from command import plaudit
from plaudit.data.store import Store
from plaudit.errors import JudgeError, PlauditError
from plaudit.judges.epochs import TrainingInterrupted
from plaudit.judges.evaluation import load_reference_labels, score_episodes
from plaudit.judges.metrics import compute_metrics
from plaudit.judges.vlm.adapter import add_lora, load_base
from plaudit.judges.vlm.config import VlmJudgeConfig
from plaudit.judges.vlm.local import Qwen3VLBackend
from plaudit.judges.vlm.tune import TuneConfig, Tuner
from plaudit.training.reward_model import tune_and_save, work_folder

# A short chat of one token a frame.
ASKED = {"task": "show the square", "system_prompt": "Do {task}", "question": "Done", "image_size": 32}
KEYS = [f"{key}={value}" for key, value in ASKED.items()] + ["frame_stride=2"]
SHORT = TuneConfig(rank=2, epochs=2, lr=1e-3, batch_size=3)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Stores of episodes to learn from and of others, and an adapter that learned."""
    return tmp_path_factory.mktemp("tune")


@pytest.fixture(scope="module")
def known(data) -> Store:
    return square_store(data / "known", 6, 6, size=32)


@pytest.fixture(scope="module")
def others(data) -> Store:
    return square_store(data / "all", 12, 12, size=32)


@pytest.fixture(scope="module")
def adapter(data, tiny, known) -> Path:
    flags = ("--vision", "--rank", 16, "--lr", 5e-3, "--epochs", 6, "--batch-size", 3)
    said = plaudit("judge", "tune", tiny, "known", *KEYS, *flags, "--output-dir", "adapter", cwd=data)
    assert "on the 2 episodes that chose the epoch" in said
    return data / "adapter"


def area(store: Store, judge: VlmJudgeConfig, ids: range) -> float:
    built = judge.build()
    found, failed = score_episodes(store, built, load_reference_labels(store, ("human",), ids))
    assert not failed
    return compute_metrics(found, built.rule).roc_auc


def test_from_chance_to_a_judge_of_episodes_it_has_not_seen(adapter, others, tiny):
    unseen = range(8, 20)
    assert area(others, VlmJudgeConfig(model=str(tiny), **ASKED), unseen) < 0.8
    assert area(others, VlmJudgeConfig(model=str(adapter)), unseen) > 0.95


def test_the_folder_says_what_it_is_and_peft_itself_loads_it(adapter, known, tiny):
    import peft
    import transformers

    info = json.loads((adapter / "adapter.json").read_text())
    assert info["base"] == str(tiny) and info["prompt"]["question"] == "Done" and info["tasks"] == ["show the square"]
    assert info["data"]["episodes"] == {"train": 10, "validation": 2} and info["lora"]["vision"]
    assert {path.suffix for path in adapter.iterdir()} == {".html", ".json", ".jsonl", ".safetensors", ""}
    config = VlmJudgeConfig(model=str(adapter))
    plain = transformers.Qwen3VLForConditionalGeneration.from_pretrained(tiny)
    tuned: Any = peft.PeftModel.from_pretrained(plain, adapter)
    theirs = tuned.base_model.model.eval()
    backend = config.load_backend()
    assert isinstance(backend, Qwen3VLBackend)
    packed = backend.pack(0, known.episode(0))
    ours = backend.forward([packed])
    backend.model = theirs
    np.testing.assert_allclose(ours, backend._transformers_forward([packed]).detach(), atol=1e-4)


def test_its_page_begins_with_the_verdict_and_shows_the_episodes_that_chose_the_epoch(adapter):
    page = (adapter / "report.html").read_text()
    scores = json.loads((adapter / "adapter.json").read_text())["scores"]
    area = f"{scores['tuned']['roc_auc']:.3f} (before: {scores['before']['roc_auc']:.3f})"
    assert page.index("plaudit judge calibrate OTHER_STORE") < page.index("<h2>Episodes</h2>")
    assert area in page and "10 for train, 2 for validation" in page
    assert all(f"<h2>{heading}</h2>" in page for heading in ("Largest errors", "Training", "Metadata"))


def test_it_is_calibrated_and_examined_on_episodes_it_has_not_learned_from(adapter, data, others):
    said = plaudit("judge", "calibrate", "known", "--config", "adapter", cwd=data, ok=False)
    assert "nothing unseen is left" in said
    own = ("--config", "adapter", "--output", "adapter/judge.yaml")
    said = plaudit("judge", "calibrate", "all", *own, "--episodes", "0-8,12-17", "--target-fpr", 0.2, cwd=data)
    assert "6 of 15 were left out" in said  # the successes of the other store
    plaudit("judge", "exam", "adapter", "all", "--output-dir", "exam", cwd=data, ok=False)  # it is tiny: it fails some
    certificate = json.loads((data / "adapter/certificate.json").read_text())
    assert certificate["data"]["episodes"] == 9
    judge = VlmJudgeConfig(model=str(adapter))
    assert not judge.needs_calibration and judge.build().id.fingerprint == certificate["fingerprint"]


def test_a_training_that_was_stopped_goes_on_as_if_it_was_not(known, tiny, tmp_path):
    make = partial(tune_and_save, known, judge=VlmJudgeConfig(model=str(tiny), **ASKED), config=SHORT, ids=range(3, 9))
    make(tmp_path / "whole")
    with pytest.raises(TrainingInterrupted):
        make(tmp_path / "parts", watch=lambda now: now.epoch < 2)
    assert not (tmp_path / "parts").exists() and work_folder(tmp_path / "parts").is_dir()
    make(tmp_path / "parts")
    whole, parts = (load_file(tmp_path / name / "adapter_model.safetensors") for name in ("whole", "parts"))
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    assert not work_folder(tmp_path / "parts").exists() and (tmp_path / "parts/tensorboard").is_dir()


@pytest.fixture
def tuner(known, tiny):
    judge = VlmJudgeConfig(model=str(tiny), **ASKED)
    loaded = load_base(judge)
    add_lora(loaded.model, SHORT)
    targets = load_reference_labels(known, ("human",), range(4, 10))
    return Tuner(SHORT, Qwen3VLBackend(judge, loaded), known, targets, {"train": list(targets), "validation": [4]})


def test_where_memory_is_short_the_gradients_are_the_same(tuner, monkeypatch):
    def fits(packed: list) -> torch.Tensor:
        if len(packed) > 1 or not tuner.backend.decoder.recompute:
            raise torch.OutOfMemoryError
        return forward(packed)

    forward, weights = tuner.backend.forward, list(tuner.net["now"])
    loss, _ = tuner.gradients()
    whole = [weight.grad.clone() for weight in weights]
    monkeypatch.setattr(tuner.backend, "forward", fits)
    assert tuner.gradients()[0] == pytest.approx(loss, rel=1e-5) and tuner.together == 1
    for weight, expected in zip(weights, whole, strict=True):
        torch.testing.assert_close(weight.grad, expected, rtol=1e-3, atol=1e-6)
    monkeypatch.setattr(tuner.backend, "forward", lambda packed: fits([*packed, *packed]))
    with pytest.raises(JudgeError, match="does not fit into the memory"):
        tuner.gradients()


def test_both_classes_count_alike(tuner):
    frames = np.concatenate([tuner.targets[i] for i in tuner.splits["train"]])
    per_class = tuner.weights.numpy() * [(frames == 0).sum(), (frames == 1).sum()]
    assert per_class[0] == pytest.approx(per_class[1])


def test_episodes_are_shown_such_that_a_clock_is_wrong(tuner):
    shown = set()
    for tuner.version in range(40):
        packed, target = tuner.show(4)
        (images,) = packed.prompt.frames.values()
        if target.any():
            square = images[..., 0].max((1, 2)) > 105
            assert (target == square).all()  # of the frames that are seen
        shown.add("blank" if not target.any() else "late" if len(target) < 12 else tuple(target[[0, -1]]))
    assert shown == {"blank", "late", (0, 1), (1, 0), (1, 1)}  # as it is, backwards, standing still


def broken(adapter: Path, folder: Path, **changes: object) -> Path:
    """A copy of an adapter with something changed in its description."""
    shutil.copytree(adapter, folder)
    path = folder / "adapter.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return folder


def spoil(folder: Path) -> None:
    path = folder / "adapter_model.safetensors"
    tensors = load_file(path)
    next(iter(tensors.values()))[0, 0] = float("nan")
    save_file(tensors, path)


@pytest.mark.parametrize(
    ("changes", "spoiled", "sentence"),
    [
        ({"base_fingerprint": "other"}, None, "which has changed since"),
        ({"lora": {"rank": 8, "alpha": 32.0, "vision": True}}, None, "another adapter"),
        ({"lora": {"rank": 10**9, "alpha": 32.0, "vision": True}}, None, "less than or equal to 65536"),
        ({"lora": {"rank": 16, "alpha": 99.0, "vision": True}}, None, "copy the whole folder again"),
        ({}, spoil, "finite numbers"),
        (
            {},
            lambda folder: (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin"),
            "no adapter_model",
        ),
    ],
    ids=["other base", "other rank", "a rank of a billion", "other scale", "not a number", "a pickle"],
)
def test_an_adapter_that_is_not_what_it_says_is_refused(adapter, tmp_path, changes, spoiled, sentence):
    folder = broken(adapter, tmp_path / "copy", **changes)
    if spoiled is not None:
        spoiled(folder)
    with pytest.raises(PlauditError, match=sentence):
        VlmJudgeConfig(model=str(folder)).build()


def test_asked_otherwise_than_it_learned_it_warns(adapter):
    judge = VlmJudgeConfig(model=str(adapter), question="Finished").build()
    assert any("learned with another question" in warning for warning in judge.warnings)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("nobody/nothing", "known"), "transformers cannot load"),
        (("{adapter}", "known"), "is an adapter already"),
        (("{tiny}", "known", "--episodes", "6-11"), "are failure; a judge learns from frames of both kinds"),
        (("{tiny}", "known", "--episodes", "5-7"), "episodes are too few"),
        (("{tiny}", "known", "--output-dir", "known"), "name another with --output-dir"),
        (("{tiny}", "known", "backend=openai", "endpoint={base_url: http://localhost:1}"), "behind an endpoint"),
    ],
    ids=["no model", "an adapter", "one class", "too few", "no room", "an endpoint"],
)
def test_what_cannot_be_tuned_is_told_and_nothing_is_written(adapter, data, tiny, words, sentence):
    before = sorted(data.iterdir())
    named = [word.format(tiny=tiny, adapter=adapter) if "{base" not in word else word for word in words]
    assert sentence in " ".join(plaudit("judge", "tune", *named, *KEYS, cwd=data, ok=False).split())
    assert sorted(data.iterdir()) == before


def test_without_peft_the_extra_is_named(tiny, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "peft", None)
    with pytest.raises(PlauditError, match=r"peft is not installed; run: pip install 'plaudit\[vlm\]'"):
        load_base(VlmJudgeConfig(model=str(tiny)))
