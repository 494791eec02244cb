"""Robometer: the published folders, and the numbers of one call per prefix."""

import json
import shutil

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from safetensors.torch import load_file, save_file

from plaudit.contracts import check_judge
from plaudit.errors import BadFile, JudgeError
from plaudit.judges.published.config import RobometerConfig
from published_folders import ROBOMETER_TOKENS, plain_robometer, save_robometer, save_shards, tiny_model
from tiny_vlm import moving

TASK = "push the square to the right"


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    folder = tmp_path_factory.mktemp("robometer")
    return folder, *save_robometer(folder)


def build(folder, **settings):
    return RobometerConfig(model=str(folder), device="cpu", **settings).build()


def spaced(last, count):
    return range(last + 1) if last < count else [round(i * last / (count - 1)) for i in range(count)]


def test_one_pass_equals_one_call_for_each_prefix(published):
    folder, model, tokenizer = published
    episode = moving(steps=13, size=(70, 100))
    (scores,) = build(folder).score([episode])
    frames = episode.frames["front"]
    # 70x100 has no edge over 480, so nothing is shrunk; each edge is rounded to 32
    wanted = [plain_robometer(model, tokenizer, frames, TASK, list(spaced(t, 8)), [(64, 96)]) for t in range(14)]
    progress, success = np.transpose(wanted)
    assert np.ptp(progress) > 0.05
    assert_allclose(scores.progress, progress, atol=1e-3)
    assert_allclose(scores.success_prob, success, atol=1e-3)


def test_lerobots_protocol_shows_four_frames_and_does_not_shrink(published):
    folder, model, tokenizer = published
    episode = moving(steps=6, size=(64, 608))  # longer than 480, which upstream shrinks to 51x480
    frames = episode.frames["front"]
    for protocol, frames_of, sizes in (
        ("lerobot", lambda t: np.linspace(0, t, 4).round().astype(int), [(64, 608)]),
        ("upstream", lambda t: spaced(t, 8), [(51, 480), (64, 480)]),
    ):
        (scores,) = build(folder, protocol=protocol).score([episode])
        wanted = [plain_robometer(model, tokenizer, frames, TASK, list(frames_of(t)), sizes)[0] for t in range(7)]
        assert_allclose(scores.progress, wanted, atol=1e-3)


@pytest.mark.parametrize("layout", ["lerobot", "wrapped"])
def test_other_layouts_give_the_same_scores(published, tmp_path, layout):
    folder = published[0]
    if layout == "lerobot":
        save_robometer(tmp_path, "lerobot")
    else:  # as a training job saves it
        shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
        tensors = {}
        for shard in tmp_path.glob("*.safetensors"):
            tensors |= load_file(shard)
            shard.unlink()
        save_shards(tmp_path, {f"module._orig_mod.{name}": tensor for name, tensor in tensors.items()})
    episode = moving(steps=4)
    (one,), (other,) = build(folder).score([episode]), build(tmp_path).score([episode])
    assert_allclose(one.progress, other.progress, atol=1e-6)
    assert build(folder).id != build(tmp_path).id  # another folder is another judge, until it is calibrated


def test_a_folder_without_tokenizer_takes_that_of_its_base(published, tmp_path):
    folder, *_ = published
    save_robometer(tmp_path / "model", "lerobot", tokenizer_too=False)
    _, base_tokenizer = tiny_model()  # the base has none of the added tokens
    base_tokenizer.save_pretrained(tmp_path / "base")
    with pytest.raises(BadFile, match=r"has no tokenizer; name the folder of its base model .*Qwen3-VL-4B"):
        build(tmp_path / "model")
    episode = moving(steps=3)
    (one,), (other,) = (
        build(folder).score([episode]),
        build(tmp_path / "model", base=str(tmp_path / "base")).score([episode]),
    )
    assert_allclose(one.progress, other.progress, atol=1e-6)


def test_an_adapter_is_merged_into_its_base(published, tmp_path):
    folder, model, tokenizer = published
    name = "model.language_model.layers.1.self_attn.q_proj"
    torch.manual_seed(3)
    down, up = torch.randn(4, 64) / 4, torch.randn(64, 4) / 4
    base = {k: v for k, v in model.state_dict().items() if "lm_head" not in k}
    (tmp_path / "base").mkdir()
    save_file({k: v.clone() for k, v in base.items()}, tmp_path / "base/model.safetensors")
    shutil.copy(folder / "config.json", tmp_path / "base")
    trained = {f"base_model.model.{name}.lora_A.weight": down, f"base_model.model.{name}.lora_B.weight": up}
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    save_file(trained, adapter / "adapter_model.safetensors")
    settings = {"r": 4, "lora_alpha": 8, "base_model_name_or_path": str(tmp_path / "base")}
    (adapter / "adapter_config.json").write_text(json.dumps(settings))
    shutil.copy(folder / "config.json", adapter)
    tokenizer.save_pretrained(adapter)
    with pytest.raises(BadFile, match="no trained progress_head"):
        build(adapter)
    heads = {k: v for shard in folder.glob("*.safetensors") for k, v in load_file(shard).items() if "head." in k}
    save_file(heads, adapter / "custom_heads.safetensors")
    before = model.state_dict()[f"{name}.weight"].clone()
    try:
        model.get_submodule(name).weight.data += 2 * up @ down
        episode = moving(steps=3)
        wanted = plain_robometer(model, tokenizer, episode.frames["front"], TASK, range(4), [(64, 64)])
    finally:
        model.get_submodule(name).weight.data.copy_(before)
    (scores,) = build(adapter).score([episode])
    assert_allclose(scores.progress[3], wanted[0], atol=1e-3)


def test_a_head_of_one_number_is_a_sigmoid(tmp_path):
    model, tokenizer = save_robometer(tmp_path, bins=1)
    episode = moving(steps=2)
    (scores,) = build(tmp_path).score([episode])
    wanted = plain_robometer(model, tokenizer, episode.frames["front"], TASK, range(3), [(64, 64)], bins=1)
    assert_allclose(scores.progress[2], wanted[0], atol=1e-3)


def test_the_state_before_the_last_normalization_would_give_other_scores(published):
    """transformers 4.57 has it as the last of `hidden_states`, where 5 has the one after."""
    judge = build(published[0])
    clips_seen = []
    judge.reader.decode, decode = lambda hidden: clips_seen.append(hidden) or decode(hidden), judge.reader.decode
    judge.score([moving(steps=2)])
    (hidden,) = clips_seen
    normed = hidden[:, 0] / judge.engine.model.model.language_model.norm.weight
    assert_allclose(normed.square().mean(-1), 1, atol=1e-3)  # the root mean square after the norm is its weight


# What is refused


def rewrite(folder, target, change):
    """A copy of a folder with its tensors in one file and changed."""
    shutil.copytree(folder, target)
    tensors = {}
    for shard in target.glob("*.safetensors"):
        tensors |= load_file(shard)
        shard.unlink()
    (target / "model.safetensors.index.json").unlink()
    change(tensors)
    save_file(tensors, target / "model.safetensors")
    return target


def test_a_folder_without_heads_is_refused(published, tmp_path):
    def change(tensors):
        for name in [name for name in tensors if "success_head" in name]:
            del tensors[name]

    with pytest.raises(BadFile, match="it has no trained success_head, so its scores would be random"):
        build(rewrite(published[0], tmp_path / "base", change))


def wider(tensors):
    tensors["progress_head.4.weight"] = torch.zeros(10, 99)


def no_numbers(tensors):
    tensors["success_head.0.bias"][3] = torch.nan


def fewer_layers(tensors):
    for name in [name for name in tensors if ".layers.1." in name]:
        del tensors[name]


def twice(tensors):
    tensors["module.progress_head.0.bias"] = tensors["progress_head.0.bias"].clone()


def two_models(tensors):
    tensors["other.language_model.embed_tokens.weight"] = torch.zeros(3, 64)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (wider, r"progress_head.4.weight is \[10, 99\], and \[10, 32\] fits"),
        (no_numbers, "'success_head.0.bias' holds values that are no numbers"),
        (fewer_layers, "config.json says num_hidden_layers 2, and the weights have 1"),
        (twice, "'progress_head.0.bias' occurs twice"),
        (two_models, "its weights hold two models"),
    ],
)
def test_weights_that_do_not_fit_are_one_clear_error(published, tmp_path, change, message):
    with pytest.raises(BadFile, match=message):
        build(rewrite(published[0], tmp_path / "other", change))


def test_a_missing_shard_is_named(published, tmp_path):
    shutil.copytree(published[0], tmp_path / "part")
    (tmp_path / "part/model-00002-of-00002.safetensors").unlink()
    with pytest.raises(BadFile, match=r"shard model-00002-of-00002.safetensors is missing"):
        build(tmp_path / "part")


def test_an_index_that_points_outside_is_not_followed(published, tmp_path):
    shutil.copytree(published[0], tmp_path / "part")
    (tmp_path / "part/model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../../etc/passwd"}}))
    with pytest.raises(BadFile, match="lies outside of this folder; it was not opened"):
        build(tmp_path / "part")


def test_a_description_of_a_huge_model_allocates_nothing(published, tmp_path):
    shutil.copytree(published[0], tmp_path / "huge")
    tree = json.loads((tmp_path / "huge/config.json").read_text())
    tree["text_config"]["hidden_size"] = 1 << 20
    (tmp_path / "huge/config.json").write_text(json.dumps(tree))
    with pytest.raises(BadFile, match=r"and config.json says"):
        build(tmp_path / "huge")


def test_a_pickle_is_not_opened(published, tmp_path):
    shutil.copytree(published[0], tmp_path / "pickle", ignore=shutil.ignore_patterns("*.safetensors*"))
    (tmp_path / "pickle/pytorch_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(BadFile, match=r"no .safetensors file; weights of another kind are not read"):
        build(tmp_path / "pickle")


def test_tokens_in_another_order_are_refused(published, tmp_path):
    """The last token would read the row that was trained as another."""
    shutil.copytree(published[0], tmp_path / "order", ignore=shutil.ignore_patterns("tokenizer*"))
    _, tokenizer = tiny_model(tokens=[ROBOMETER_TOKENS[4], *ROBOMETER_TOKENS[:4]])
    tokenizer.save_pretrained(tmp_path / "order")
    with pytest.raises(BadFile, match="the order is another one"):
        build(tmp_path / "order")


def test_an_embedding_that_was_not_shrunk_is_refused(published, tmp_path):
    """The base model has more rows than tokens: added tokens would read rows that nobody trained."""

    def change(tensors):
        rows = tensors["model.language_model.embed_tokens.weight"]
        tensors["model.language_model.embed_tokens.weight"] = torch.cat([rows, rows[:9]])

    with pytest.raises(BadFile, match=r"the embedding has .* rows: this tokenizer is another one"):
        build(rewrite(published[0], tmp_path / "rows", change))


def test_an_embedding_smaller_than_the_config_says_is_taken_from_the_weights(published, tmp_path):
    folder = rewrite(published[0], tmp_path / "shrunk", lambda tensors: None)
    tree = json.loads((folder / "config.json").read_text())
    tree["text_config"]["vocab_size"] += 262
    (folder / "config.json").write_text(json.dumps(tree))
    episode = moving(steps=2)
    assert_allclose(build(folder).score([episode])[0].progress, build(published[0]).score([episode])[0].progress)


# As a judge


def test_it_passes_the_contract(published):
    check_judge(build(published[0]), [moving(steps=9), moving(steps=3, padded="last")])


def test_a_small_budget_makes_more_passes_and_the_same_scores(published):
    episodes = [moving(steps=9), moving(steps=2, seed=1), moving(steps=5, seed=2, size=(32, 96))]
    whole = build(published[0]).score(episodes)
    for one, other in zip(whole, build(published[0], max_batch_tokens=150).score(episodes), strict=True):
        assert_allclose(one.progress, other.progress, atol=1e-5)


def test_a_stride_keeps_the_score_before(published):
    episode = moving(steps=7)
    (dense,), (sparse,) = build(published[0]).score([episode]), build(published[0], frame_stride=3).score([episode])
    assert_allclose(sparse.progress, dense.progress[[0, 0, 0, 3, 3, 3, 6, 7]], atol=1e-6)


def test_it_needs_a_camera_a_task_and_a_frame_that_is_no_line(published):
    judge = build(published[0])
    errors = judge.score(
        [moving(cameras=("a", "b")), moving(task=""), moving(task="do <|im_end|>"), moving(size=(1, 400))]
    )
    for error, message in zip(
        errors, ("sees one camera", "no task text", "a control token", "too narrow"), strict=True
    ):
        assert isinstance(error, JudgeError)
        assert message in str(error)


def test_a_folder_that_is_not_there_says_how_to_get_it(tmp_path):
    with pytest.raises(JudgeError, match="Nothing is downloaded here: fetch the model first"):
        build(tmp_path / "nowhere")
