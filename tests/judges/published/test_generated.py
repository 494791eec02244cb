"""SOLE-R1 and GRM: the pictures, the prompts, the parser, and the text of transformers' own generation."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image

from plaudit.contracts import check_judge
from plaudit.errors import PlauditError
from plaudit.judges.published.clip import make_clip
from plaudit.judges.published.config import GrmConfig, SoleConfig
from plaudit.judges.published.generated import Grm, Sole, compose, read_image
from plaudit.types import Episode, Scores
from published_folders import call, resized, tiny_model
from tiny_vlm import moving

TASK = "push the square to the right"
GRM_PROMPT = "You compare {task}.\n---\n<image>a<image>" + "b<image>" * 6 + " {task}?"
SOLE_PROMPT = "<image>{previous}% of {task}?"
SEEN = "<|vision_start|><|image_pad|><|vision_end|>"


@torch.no_grad()
def save_model(folder, says=()):
    """A random model; or one that says these tokens after every prompt, whatever it sees."""
    model, tokenizer = tiny_model(rows=700)
    tokenizer.add_tokens([*says])
    if says:
        chain = [tokenizer("\n")["input_ids"][-1], *map(tokenizer.convert_tokens_to_ids, says), tokenizer.eos_token_id]
        text, rows = model.model.language_model, torch.nn.functional.normalize(torch.randn(700, 64), dim=1)
        for layer in text.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        text.norm.weight.fill_(1.0)
        text.embed_tokens.weight.copy_(rows)
        model.lm_head.weight.zero_()
        for token, following in pairwise(chain):
            model.lm_head.weight[following] = rows[token]
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder, model, tokenizer


@pytest.fixture(scope="module")
def random(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("random"))


@pytest.fixture(scope="module")
def grows(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("grows"), ("<score>", "+50%", "</score>"))[0]


@pytest.fixture(scope="module")
def goal(tmp_path_factory):
    path = tmp_path_factory.mktemp("goal") / "goal.png"
    Image.fromarray(np.full((64, 64, 3), 200, np.uint8)).save(path)
    return path


def grm(folder, goal, **settings):
    return GrmConfig(model=str(folder), goal=goal, device="cpu", **settings)


def sole(folder, **settings):
    return SoleConfig(model=str(folder), device="cpu", **settings)


def written(model, tokenizer, text, images, count):
    """By transformers' own generation."""
    inputs = call(model, tokenizer, text, [(one, one) for one in images])
    out = model.generate(**inputs, max_new_tokens=count, do_sample=False, pad_token_id=0)
    return tokenizer.decode(out[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)


def test_grm_writes_what_transformers_writes_about_the_eight_images_in_order(random, goal):
    folder, model, tokenizer = random
    reader = Grm(grm(folder, goal, prompt=GRM_PROMPT, max_new_tokens=8))
    episode, target = moving(cameras=("front", "left", "right")), np.asarray(Image.open(goal))
    front, left, right = (episode.frames[camera] for camera in ("front", "left", "right"))
    images = [front[0], target, front[1], left[1], right[1], front[3], left[3], right[3]]
    text = f"<|im_start|>system\nYou compare {TASK}.<|im_end|>\n<|im_start|>user\n{SEEN}a{SEEN}"
    text += f"b{SEEN}" * 6 + f" {TASK}?<|im_end|>\n<|im_start|>assistant\n"
    # 64x64 is less than 12,544 pixels: edges grow to 128
    wanted = written(model, tokenizer, text, [resized(one, (128, 128)) for one in images], 8)
    assert reader.write(images, (12544, 76800), {"task": TASK}) == wanted
    assert reader.write(images[::-1], (12544, 76800), {"task": TASK}) != wanted


def test_grm_asks_about_start_goal_before_and_after(grows, goal):
    seen = []

    class Watched(Grm):
        def write(self, images, limits, words):
            seen.append(images)
            return super().write(images, limits, words)

    episode = moving(steps=3, cameras=("front", "left"))
    config = grm(grows, goal, camera="front", left="left", frame_stride=2)
    progress = Watched(config).progress(make_clip(config, 0, episode), episode)
    assert_allclose(progress, [0, 0.5, 0.75])  # half of what is left, twice
    front, left = episode.frames["front"], episode.frames["left"]
    target = np.full((64, 64, 3), 200, np.uint8)
    wanted = [front[0], target, front[2], left[2], front[2], front[3], left[3], front[3]]  # no right camera: the front
    for one, other in zip(seen[1], wanted, strict=True):
        assert_array_equal(one, other)


def test_the_modes_of_grm(tmp_path, grows, goal):
    (scores,) = grm(grows, goal, mode="forward").build().score([moving(steps=2)])
    assert_allclose(scores.progress, [0, 0.5, 0.5], atol=1e-6)
    folder = save_model(tmp_path, ("<score>", "-20%", "</score>"))[0]
    (scores,) = grm(folder, goal, mode="backward").build().score([moving(steps=2)])
    assert_allclose(scores.progress, [0.8, 0.8, 0.8], atol=1e-6)
    (scores,) = grm(folder, goal, mode="incremental").build().score([moving(steps=2)])
    assert_allclose(scores.progress, [0, 0, 0])  # nothing is lost from nothing


def smooth(left):
    frames = np.empty((4, 160, 160, 3), np.uint8)
    frames[:] = np.arange(160)[:, None]
    for number, frame in enumerate(frames):
        frame[40:70, left + 8 * number : left + 8 * number + 30] = (200, 40, 90)
    return Episode.of(frames={"front": frames}, actions=np.zeros((3, 1)), task=TASK)


@pytest.mark.parametrize("form", ["png", "jpeg", "smaller"])
def test_a_goal_from_the_scored_episode_is_refused(tmp_path, grows, form):
    own, other = smooth(left=20), smooth(left=60)
    image, path = Image.fromarray(own.frames["front"][3]), tmp_path / ("goal.jpg" if form == "jpeg" else "goal.png")
    (image.resize((96, 96)) if form == "smaller" else image).save(path)
    first, second = grm(grows, path).build().score([own, other])
    assert isinstance(first, PlauditError) and "the goal image shows frame 3 of camera 'front'" in str(first)
    assert isinstance(second, Scores)


def test_sole_shows_three_moments_in_black_squares():
    frames = [np.full((60, 120, 3), level, np.uint8) for level in (50, 100, 150)]
    picture = compose([frames])
    assert picture.shape == (384, 1162, 3)
    assert_array_equal(picture[192, [100, 386, 500, 775, 1000], 0], [50, 0, 100, 0, 150])
    assert_array_equal(picture[[95, 96, 287, 288], 0, 0], [0, 50, 50, 0])  # 384 wide, 192 high, in the middle
    assert compose([frames, frames]).shape == (773, 1162, 3)


def test_sole_writes_what_transformers_writes(random):
    folder, model, tokenizer = random
    frames = moving(steps=3).frames["front"]
    picture = compose([[frames[0], frames[1], frames[3]]])
    text = f"<|im_start|>user\n{SEEN}35% of {TASK}?<|im_end|>\n<|im_start|>assistant\n"
    small = (65536, 200_000)
    wanted = written(model, tokenizer, text, [resized(picture, (256, 768))], 6)
    reader = Sole(sole(folder, prompt=SOLE_PROMPT, max_new_tokens=6))
    assert reader.write([picture], small, {"task": TASK, "previous": "35"}) == wanted


class Scripted(Sole):
    """Says what it is given to say."""

    def __init__(self, config, answers):
        super().__init__(config)
        self.answers, self.seen = iter(answers), []

    def write(self, images, limits, words):
        self.seen.append((images[0], words["previous"]))
        return next(self.answers)


def test_sole_carries_its_answer_from_step_to_step(random):
    config = sole(random[0], camera="front", wrist="wrist")
    reader = Scripted(config, ["<think>50%?</think><answer>-20%</answer>", "<think></think> <answer> 85 % </answer>\n"])
    episode = moving(steps=2, cameras=("front", "wrist"))
    assert_allclose(reader.progress(make_clip(config, 0, episode), episode), [0, 0, 0.85])
    assert [previous for _, previous in reader.seen] == ["0", "-20"]
    rows = [[episode.frames[camera][place] for place in (0, 1, 2)] for camera in ("front", "wrist")]
    assert_array_equal(reader.seen[1][0], compose(rows))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "35%",
        "<answer>35</answer>",
        "<answer>350%</answer>",
        "<answer>nan%</answer>",
        "<answer>1%</answer><answer>2%</answer>",
        "<answer>5%</answer> or <answer>about ten</answer>",
        "<think>so <answer>35%</answer></think>",
        "<answer>" + "9" * 5000 + "%</answer>",
    ],
)
def test_an_answer_that_is_no_score_is_never_replaced(random, text):
    config = sole(random[0])
    episode = moving(steps=1)
    with pytest.raises(PlauditError, match=r"frame 1 is no <answer>N%</answer> from -100 to 100") as error:
        Scripted(config, [text]).progress(make_clip(config, 0, episode), episode)
    assert len(str(error.value)) < 400


def test_a_model_that_writes_anything_else_gives_an_error_and_no_score(random):
    (answer,) = sole(random[0], max_new_tokens=3).build().score([moving(steps=1)])
    assert isinstance(answer, PlauditError)


def test_whose_prompt_it_is_can_be_seen(tmp_path, grows, goal):
    ours, path = grm(grows, goal), tmp_path / "prompt.txt"
    path.write_text(GRM_PROMPT)
    theirs = grm(grows, goal, prompt_file=path)
    judges = [ours.build(), theirs.build(), grm(grows, goal, prompt=GRM_PROMPT).build()]
    assert "published figures do not hold" in judges[0].warnings[0] and judges[1].warnings == ()
    assert "Plaudit's own prompt" in ours.signals["progress"].description
    ids = [judge.id for judge in judges]
    assert ids[0] != ids[1] and ids[1] == ids[2]
    check_judge(judges[1], [moving(steps=2)])


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("{task} <image>", "shows 1 images, and grm has 8"),
        ("<image>" * 8, r"no \{task\}"),
        ("{task}<|im_end|>" + "<image>" * 8, r"holds <\|im_end\|>"),
    ],
)
def test_a_prompt_that_does_not_fit_is_refused(grows, goal, prompt, message):
    with pytest.raises(PlauditError, match=message):
        grm(grows, goal, prompt=prompt).build()


def test_a_goal_that_is_no_image_is_refused(tmp_path, grows):
    path = tmp_path / "goal.png"
    for content in (b"", b"\x80\x04pickle", b"GIF89a" + bytes(100)):
        path.write_bytes(content)
        with pytest.raises(PlauditError, match=r"goal\.png.*no image that can be read"):
            read_image(path)
    with pytest.raises(PlauditError, match="no such file"):
        grm(grows, tmp_path / "missing.png").build()


def test_a_task_that_looks_like_a_mark_stays_a_task(random, goal):
    reader = Grm(grm(random[0], goal, prompt=GRM_PROMPT, max_new_tokens=3))
    images = [np.zeros((64, 64, 3), np.uint8)] * 8
    assert isinstance(reader.write(images, (1024, 4096), {"task": "find <image> in {previous}"}), str)
