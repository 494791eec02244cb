"""RynnValue: bins, repeated tokens and isolated slots, and the numbers of one call per prefix."""

import json
import math
import shutil

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from safetensors.torch import save_file

from plaudit.contracts import check_judge
from plaudit.errors import BadFile, JudgeError
from plaudit.judges.published.config import RynnValueConfig
from published_folders import SYMLOG, plain_rynnvalue, save_rynnvalue
from tiny_vlm import moving

TASK = "push the square to the right"


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rynnvalue")
    return folder, *save_rynnvalue(folder)


@pytest.fixture
def copied(published, tmp_path):
    return shutil.copytree(published[0], tmp_path / "copy")


def build(folder, **settings):
    return RynnValueConfig(model=str(folder), device="cpu", **settings).build()


def values(judge, episode):
    """[F, 3] what the head says of each frame: seconds, probability, entropy."""
    kept = []
    judge.reader.scores, scores = lambda read: kept.append(read) or scores(read), judge.reader.scores
    (answer,) = judge.score([episode])
    return kept[0], answer


def change(folder, name, **keys):
    path = folder / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **keys}))


def test_one_pass_equals_one_call_for_each_prefix(published):
    folder, model, tokenizer, heads = published
    episode = moving(steps=11, size=(70, 100))
    read, scores = values(build(folder), episode)
    frames = episode.frames["front"]
    spaced = [range(t + 1) if t < 8 else [round(i * t / 7) for i in range(8)] for t in range(12)]
    wanted = [plain_rynnvalue(model, tokenizer, heads, frames, TASK, list(shown), [(64, 96)]) for shown in spaced]
    assert np.ptp(read[:, 0]) > 0.05
    assert_allclose(read[:, 0], wanted, atol=1e-3)
    assert scores.progress is None  # remaining seconds are no progress without a horizon


@pytest.mark.parametrize("case", ["linear head", "lerobot", "linear bins", "quantile", "repeats"])
def test_other_heads_bins_and_layouts(tmp_path, case):
    edges = [float(e) for e in np.geomspace(1, 65, 17) - 1]
    options = {
        "linear head": {"kind": "linear"},
        "lerobot": {"layout": "lerobot"},
        "linear bins": {"bins": {"bins": 33, "min_value": 0.0, "max_value": 40.0, "support_transform": "linear"}},
        "quantile": {"bins": {**SYMLOG, "bins": 16, "support_transform": "quantile", "bin_edges": edges}},
        "repeats": {"repeats": 3, "num_heads": 1},
    }[case]
    model, tokenizer, heads = save_rynnvalue(tmp_path, **options)
    episode = moving(steps=3)
    judge = build(tmp_path)
    read, _ = values(judge, episode)
    if case in ("linear bins", "quantile"):
        centers = np.linspace(0, 40, 33) if case == "linear bins" else (np.array(edges[1:]) + edges[:-1]) / 2
        assert_allclose(judge.reader.centers, centers, atol=1e-5)
        plain = plain_centers(model, tokenizer, heads, episode, centers)
    else:
        repeats = options.get("repeats", 8)
        plain = plain_rynnvalue(model, tokenizer, heads, episode.frames["front"], TASK, range(4), [(64, 64)], repeats)
    assert_allclose(read[3, 0], plain, atol=1e-3)


def plain_centers(model, tokenizer, heads, episode, centers):
    """The same by linear bins: the mean is taken of the centers themselves."""
    means = []
    for head in heads:
        logs = {}
        head.register_forward_hook(lambda _, __, out, logs=logs: logs.update(out=out))
        bins = {"bins": len(centers), "min_value": 0.0, "max_value": 1.0}
        plain_rynnvalue(model, tokenizer, [head], episode.frames["front"], TASK, range(4), [(64, 64)], bins=bins)
        means.append(float(logs["out"].softmax(-1)[-1] @ torch.tensor(centers, dtype=torch.float32)))
    return sum(means) / len(means)


def test_the_default_of_one_repeat_is_not_assumed(copied):
    """The original code fills in 1 where the file says 8."""
    change(copied, "processor_config.json", value_token_repeat=1)
    with pytest.raises(
        BadFile, match=r"its value_token_repeat is not one number \(config.json: 8, processor_config.json: 1"
    ):
        build(copied)


def test_averaged_repeats_would_not_fit_the_head(copied):
    for name in ("config.json", "processor_config.json"):
        change(copied, name, value_token_repeat=1)
    with pytest.raises(BadFile, match=r"is \[16, 512\], and \[16, 64\] fits 1 repeated tokens"):
        build(copied)


def test_heads_stay_in_float32_next_to_a_model_in_bfloat16(published):
    reader = build(published[0], dtype="bfloat16").reader
    assert reader.model.model.dtype == torch.bfloat16
    assert {weights.dtype for weights in reader.model.heads.values()} == {torch.float32}


def test_symlog_bins_by_hand(published):
    reader = build(published[0]).reader
    assert_allclose(reader.centers[0], 0)
    assert_allclose(reader.centers[-1], math.log(513), rtol=1e-6)
    one = torch.full((2, 256), -1e9)
    one[:, 100] = 0  # all of the mass of both heads in one bin
    reader._heads = [lambda x: one[:1], lambda x: one[1:]]
    seconds, _, entropy = reader.decode(torch.zeros(1, 8, 64))[0].tolist()
    assert_allclose(seconds, math.exp(100 * math.log(513) / 255) - 1, rtol=1e-5)
    assert entropy == pytest.approx(0, abs=1e-5)


def test_success_is_that_little_time_is_left(published):
    reader = build(published[0], done_within_s=1.0).reader
    logits = torch.zeros(1, 256)
    reader._heads = [lambda x: logits]
    _, prob, entropy = reader.decode(torch.zeros(1, 8, 64))[0].tolist()
    below = math.floor(math.log(2) / (math.log(513) / 255)) + 1  # centers up to symlog(1)
    assert prob == pytest.approx(below / 256)
    assert entropy == pytest.approx(1)


def test_a_uniform_distribution_is_out_of_distribution(published):
    judge = build(published[0], horizon_s=100.0)
    judge.reader._heads = [lambda x: torch.zeros(len(x), 256)]
    (scores,) = judge.score([moving(steps=3)])
    assert scores.ood == "the distribution over remaining time is nearly uniform (100% of the largest entropy)"
    (scores,) = build(published[0], max_entropy=1.0).score([moving(steps=3)])
    assert scores.ood == ""


def test_progress_is_what_is_left_of_a_horizon(published):
    read, scores = values(build(published[0], horizon_s=50.0), moving(steps=3))
    assert_allclose(scores.progress, (1 - read[:, 0] / 50).clip(0, 1), atol=1e-6)


def test_a_model_that_knows_robots_needs_a_description(copied):
    with pytest.raises(JudgeError, match="was trained without descriptions"):
        build(copied, robot="a Franka robot")
    change(copied, "processor_config.json", use_meta=True)
    with pytest.raises(JudgeError, match="set robot= and view="):
        build(copied)
    episode = moving(steps=2)
    described = build(copied, robot="a Franka robot", view="a wrist camera")
    text = described.reader.model.tokenizer.decode(described.reader._prompt("push", 1))
    assert (
        "user\nThe agent is a Franka robot. The observation is captured from a wrist camera.The agent is perf" in text
    )
    assert not np.allclose(values(described, episode)[0], values(build(copied, robot="a UR5"), episode)[0])


def test_without_isolation_slots_are_seen_by_what_follows(published, tmp_path):
    save_rynnvalue(tmp_path, attn_implementation="sdpa")
    episode = moving(steps=3)
    plain, isolated = (values(build(folder), episode)[0] for folder in (tmp_path, published[0]))
    assert np.abs(plain - isolated)[1:].max() > 1e-3


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"value_tokenizer_config": {**SYMLOG, "bins": 10**9}}, "has 1000000000 bins"),
        ({"value_tokenizer_config": None}, "does not describe the bins"),
        ({"value_tokenizer_config": {**SYMLOG, "support_transform": "cubic"}}, "its bins are 'cubic'"),
        ({"value_tokenizer_config": {**SYMLOG, "max_value": math.inf}}, "its bins are 'symlog' from 0.0 to inf"),
        (
            {"value_tokenizer_config": {"bins": 2, "support_transform": "quantile", "bin_edges": [0, 1, 10**400]}},
            "its bin_edges are not 3 numbers",
        ),
        ({"num_value_heads": 3}, r"says 3 value heads, and the weights have \[0, 1\]"),
        ({"value_token_id": 5}, "its value_token_id is 5, and its tokenizer has"),
        ({"value_head_config": {"head_type": "tree"}}, "has the head_type 'tree'"),
        ({"value_head_config": {"head_type": "linear"}}, r"value_heads.0.proj is not complete \('weight'\)"),
    ],
)
def test_a_description_that_does_not_fit_is_one_clear_error(copied, keys, message):
    change(copied, "config.json", **keys)
    with pytest.raises((BadFile, JudgeError), match=message):
        build(copied)


def test_a_folder_without_heads_is_refused(tmp_path):
    model, *_ = save_rynnvalue(tmp_path)
    for shard in tmp_path.glob("*.safetensors*"):
        shard.unlink()
    save_file({k: v.clone() for k, v in model.state_dict().items()}, tmp_path / "model.safetensors")
    with pytest.raises(BadFile, match="it has no trained value_heads"):
        build(tmp_path)


def test_it_passes_the_contract(published):
    check_judge(build(published[0]), [moving(steps=9), moving(steps=3, padded="first")])
