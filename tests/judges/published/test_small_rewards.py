"""SARM and ReWiND: their published files, and the numbers of their definitions."""

import argparse
import json
import pickle
import shutil

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from safetensors.torch import load_file, save_file

from plaudit.errors import PlauditError
from plaudit.judges.config import PROGRESS, SUCCESS
from plaudit.judges.published.config import RewindConfig, SarmConfig
from plaudit.types import Episode
from small_rewards import (
    GAP,
    HALF,
    LENGTH,
    colored,
    plain_rewind,
    plain_sarm,
    save_clip,
    save_dino,
    save_minilm,
    save_rewind,
    save_sarm,
)

TASK = "push the square to the right"


@pytest.fixture(scope="module")
def encoders(tmp_path_factory):
    home = tmp_path_factory.mktemp("encoders")
    return {"clip": save_clip(home / "clip"), "dino": save_dino(home / "dino"), "minilm": save_minilm(home / "minilm")}


@pytest.fixture
def sarm(tmp_path, encoders):
    """(folder, its tensors, builds the judge)"""
    tensors = save_sarm(tmp_path / "sarm")
    return (
        tmp_path / "sarm",
        tensors,
        lambda **keys: SarmConfig(
            model=str(tmp_path / "sarm"), base=str(encoders["clip"]), device="cpu", **keys
        ).build(),
    )


@pytest.fixture
def rewind(tmp_path, encoders):
    """(file, its tensors, builds the judge)"""
    tensors = save_rewind(tmp_path / "rewind.pth")
    folders = {"base": str(encoders["dino"]), "text_model": str(encoders["minilm"])}
    return (
        tmp_path / "rewind.pth",
        tensors,
        lambda **keys: RewindConfig(model=str(tmp_path / "rewind.pth"), device="cpu", **folders, **keys).build(),
    )


def test_sarm_equals_its_definition_window_by_window(sarm, encoders):
    _, tensors, build = sarm
    episode = colored(steps=9)
    (scores,) = build().score([episode])
    frames = episode.frames["front"]
    wanted = [plain_sarm(tensors, encoders["clip"], frames, episode.state, TASK, t)[0] for t in range(10)]
    assert np.ptp(wanted) > 0.01
    assert_allclose(scores.progress, wanted, atol=1e-3)
    assert_allclose(scores.success_prob, wanted, atol=1e-3)


@pytest.mark.parametrize(("stage", "start", "end"), [(0, 0.0, 0.5), (1, 0.5, 0.8), (2, 0.8, 1.0)])
def test_each_stage_has_its_share_of_the_task(sarm, encoders, stage, start, end):
    folder, tensors, build = sarm
    tensors["stage_model.heads.sparse.bias"][stage] = 100
    save_file(tensors, folder / "model.safetensors")
    episode = colored(steps=2)
    (scores,) = build().score([episode])
    frames = episode.frames["front"]
    plain = [plain_sarm(tensors, encoders["clip"], frames, episode.state, TASK, t) for t in range(3)]
    assert [at for _, at in plain] == [stage] * 3
    assert_allclose(scores.progress, [value for value, _ in plain], atol=1e-3)
    assert ((start <= scores.progress) & (scores.progress <= end)).all()


def test_sarm_reads_the_middle_of_its_window_and_not_the_last_place(sarm, encoders):
    _, tensors, build = sarm
    episode = colored(steps=9)
    (scores,) = build().score([episode])
    frames = episode.frames["front"]
    last = [plain_sarm(tensors, encoders["clip"], frames, episode.state, TASK, t, 2 * HALF)[0] for t in range(10)]
    assert np.abs(scores.progress - last).max() > 0.002


def test_sarm_sees_later_frames_and_says_so(sarm):
    judge = sarm[2]()
    episode = colored(steps=9)
    cut = Episode.of(
        frames={"front": episode.frames["front"][:8]}, actions=episode.actions[:7], state=episode.state[:8], task=TASK
    )
    whole, part = judge.score([episode, cut])
    assert_allclose(whole.progress[:3], part.progress[:3], atol=1e-5)  # whose windows end before the cut
    assert np.abs(whole.progress[4:8] - part.progress[4:8]).max() > 2e-4
    assert judge.warnings == (
        f"SARM looks up to {HALF * GAP} frames ahead, so its scores are those of finished episodes",
    )


def test_sarms_dense_head_has_its_own_stages(sarm, encoders):
    _, tensors, build = sarm
    episode = colored(steps=3)
    (scores,) = build(head="dense").score([episode])
    frames = episode.frames["front"]
    wanted = [plain_sarm(tensors, encoders["clip"], frames, episode.state, TASK, t, head="dense")[0] for t in range(4)]
    assert_allclose(scores.progress, wanted, atol=1e-3)
    assert build(head="dense").id != build().id


def test_rewind_equals_its_definition_prefix_by_prefix(rewind, encoders):
    _, tensors, build = rewind
    episode = colored(steps=8)  # from frame 5 on, a prefix is longer than the window
    (scores,) = build().score([episode])
    dino, minilm = encoders["dino"], encoders["minilm"]
    wanted = [plain_rewind(tensors, dino, minilm, episode.frames["front"], TASK, t) for t in range(9)]
    assert np.ptp(wanted) > 0.01
    assert_allclose(scores.progress, wanted, atol=1e-3)
    first = [plain_rewind(tensors, dino, minilm, episode.frames["front"], TASK, t, place=t) for t in range(LENGTH - 1)]
    assert np.abs(scores.progress[: LENGTH - 1] - first).max() > 1e-4  # the place of the frame itself, before padding


def test_rewind_sees_no_later_frame_and_knows_the_task(rewind):
    judge = rewind[2]()
    episode = colored(steps=6)
    cut = Episode.of(frames={"front": episode.frames["front"][:5]}, actions=episode.actions[:4], task=TASK)
    other = Episode.of(frames=episode.frames, actions=episode.actions, task="lift the cube")
    whole, part, wrong = judge.score([episode, cut, other])
    assert_allclose(whole.progress[:5], part.progress, atol=1e-6)
    assert np.abs(whole.progress - wrong.progress).max() > 1e-4


def test_a_large_frame_is_cut_and_not_resized(rewind, encoders):
    _, tensors, build = rewind
    large = np.zeros((2, 230, 300, 3), np.uint8)
    large[:, 3:227, 38:262] = colored(steps=1, size=224).frames["front"]
    episode = Episode.of(frames={"front": large}, actions=np.zeros((1, 1)), task=TASK)
    (scores,) = build().score([episode])
    inner = large[:, 3:227, 38:262]
    assert_allclose(
        scores.progress[0],
        plain_rewind(tensors, encoders["dino"], encoders["minilm"], inner, TASK, 0),
        atol=1e-3,
    )


def test_the_unused_class_token_changes_nothing(rewind):
    path, _, build = rewind
    (before,) = build().score([colored(steps=2)])
    tree = torch.load(path, weights_only=False)
    tree["model_state_dict"]["class_token"] += 5
    torch.save(tree, path)
    (after,) = build().score([colored(steps=2)])
    assert_allclose(after.progress, before.progress)


def test_frames_between_those_that_are_scored_keep_the_score_before(rewind):
    (every,) = rewind[2]().score([colored(steps=6)])
    (some,) = rewind[2](frame_stride=4).score([colored(steps=6)])
    assert_allclose(some.progress, every.progress[[0, 0, 0, 0, 4, 4, 6]], atol=1e-6)


def test_what_the_scores_mean_is_declared(sarm, rewind):
    for build, scope in ((sarm[2], "task"), (rewind[2], "any")):
        signals = build().config.signals
        assert set(signals) == {SUCCESS, PROGRESS}
        for signal in signals.values():
            assert (signal.unit, signal.direction, signal.bounds, signal.scope) == ("fraction", "higher", (0, 1), scope)


def described(folder, **keys):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **keys}))


def resaved(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def without_heads(tensors):
    for name in [name for name in tensors if ".heads." in name]:
        del tensors[name]


def without_subtasks(tensors):
    for name in [name for name in tensors if name.startswith("subtask_model")]:
        del tensors[name]


def two_cameras(tensors):
    for name in ("weight", "bias"):
        tensors[f"stage_model.fusion_backbone.0.{name}"] = torch.ones(24 * 4)
    tensors["stage_model.fusion_backbone.1.weight"] = torch.zeros(24, 24 * 4)


def not_a_number(tensors):
    tensors["stage_model.first_pos"] = torch.full((1, 24), torch.nan)


def without_a_layer(tensors):
    for name in [name for name in tensors if ".layers.1." in name]:
        del tensors[name]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: resaved(f, without_heads), "no trained heads.sparse.weight, so its scores would be random"),
        (lambda f: resaved(f, without_subtasks), "no trained subtask_model, so its scores would be random"),
        (lambda f: resaved(f, two_cameras), "its stage_model has 4 streams; with one camera it has 3"),
        (lambda f: resaved(f, not_a_number), "'first_pos' holds values that are no numbers"),
        (lambda f: resaved(f, without_a_layer), "it has no layers transformer.layers.0 and so on"),
        (lambda f: described(f, sparse_temporal_proportions=[1.0]), "its sparse head has 3 stages"),
        (lambda f: described(f, num_heads=5), "its 5 attention heads do not divide its width of 24"),
        (lambda f: described(f, frame_gap=None), "frame_gap is None"),
        (lambda f: described(f, normalization_mapping={"STATE": "MIN_MAX"}), "its state is normalized by 'MIN_MAX'"),
        (lambda f: (f / "policy_preprocessor.json").unlink(), "it has no policy_preprocessor.json with the statistics"),
        (lambda f: (f / "model.safetensors").write_bytes(b"0" * 50), "this is not a safetensors file"),
        (lambda f: (f / "model.safetensors").unlink(), "has no model.safetensors. Nothing is downloaded here"),
    ],
)
def test_a_bad_sarm_folder_is_one_error(sarm, damage, message):
    folder, _, build = sarm
    damage(folder)
    with pytest.raises(PlauditError, match=message):
        build()


def test_a_dense_head_that_was_never_trained_is_refused(sarm):
    folder, _, build = sarm
    described(folder, annotation_mode="single_stage")
    build()
    with pytest.raises(PlauditError, match="its dense head was never trained"):
        build(head="dense")


def test_an_episode_with_another_state_is_not_scored(sarm):
    other = Episode.of(frames=colored(2).frames, actions=np.zeros((2, 1)), task=TASK)
    (error,) = sarm[2]().score([other])
    assert "the model was trained with 2 state values; this episode has 0" in str(error)


class Attack:
    def __reduce__(self):
        return (print, ("code ran",))


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"args": Attack()}, "nothing was run"),
        ({"args": argparse.Namespace(max_length=16), "ema": {}}, "it has no model_state_dict of tensors"),
        ({"args": argparse.Namespace(lr=1.0), "model_state_dict": {}}, "its args have max_length None"),
        ({"args": argparse.Namespace(max_length=4), "model_state_dict": {}}, "no trained video_proj.weight"),
    ],
)
def test_a_bad_rewind_checkpoint_is_one_error(rewind, capsys, tree, message):
    path, _, build = rewind
    torch.save(tree, path)
    with pytest.raises(PlauditError, match=message):
        build()
    assert "code ran" not in capsys.readouterr().out


def test_a_plain_pickle_is_no_checkpoint(rewind):
    path, _, build = rewind
    path.write_bytes(pickle.dumps({"args": argparse.Namespace(max_length=4)}))
    with pytest.raises(PlauditError):
        build()


def test_a_rewind_checkpoint_without_its_head_is_refused(rewind):
    path, _, build = rewind
    tree = torch.load(path, weights_only=False)
    del tree["model_state_dict"]["progress_head.4.weight"]
    torch.save(tree, path)
    with pytest.raises(PlauditError, match=r"'progress_head\.4\.weight' is missing, so its scores would be random"):
        build()


def test_encoders_must_be_named_and_fit(rewind, encoders, tmp_path):
    path = rewind[0]
    with pytest.raises(PlauditError, match=r"DINOv2 .* is not in any folder that was named"):
        RewindConfig(model=str(path), text_model=str(encoders["minilm"]), device="cpu").build()
    shutil.copytree(encoders["dino"], tmp_path / "dino")
    tensors = load_file(tmp_path / "dino/model.safetensors")
    tensors.pop("embeddings.cls_token")
    save_file(tensors, tmp_path / "dino/model.safetensors")
    keys = {"model": str(path), "text_model": str(encoders["minilm"]), "device": "cpu"}
    with pytest.raises(PlauditError, match=r"embeddings\.cls_token' is missing"):
        RewindConfig(base=str(tmp_path / "dino"), **keys).build()
