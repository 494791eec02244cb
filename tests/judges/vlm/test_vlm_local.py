"""One pass in this process: the same numbers as one chat at a time, whatever else is in the batch."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from plaudit.contracts import check_judge
from plaudit.encoders import resize_images
from plaudit.errors import JudgeError
from plaudit.judges.calibration import PlattScaling
from plaudit.judges.vlm.images import data_url, size_of
from plaudit.judges.vlm.judge import VlmJudge
from plaudit.judges.vlm.prompt import build_prompt, conversation
from plaudit.rule import DecisionRule
from plaudit.types import Episode, Scores
from tiny_vlm import moving


def one_chat_a_frame(plain, config, episode):
    """Log-odds of each frame, each of a chat of its own that ends there."""
    asked = build_prompt(config, episode)
    urls = {}
    for camera in asked.frames:
        frames = torch.from_numpy(asked.images(camera))
        frames = resize_images(frames, size_of(frames.shape, config.image_size))
        urls[camera] = [data_url(frame, "png") for frame in frames.contiguous().numpy()]

    def image(camera, moment):
        return {"type": "image_url", "image_url": {"url": urls[camera][moment]}}

    return [plain.logit(conversation(asked, moments, image)) for moments in range(1, asked.num_frames + 1)]


@pytest.mark.parametrize(
    "episode",
    [
        moving(steps=7),
        moving(steps=3, size=(48, 96)),  # a wide frame, which keeps its shape
        moving(steps=3, cameras=("front", "wrist")),
        moving(steps=3, padded="last"),
        moving(steps=3, seed=2, task="stapele die Würfel: 积木"),
    ],
    ids=["one camera", "wide", "two cameras", "last frame repeated", "other alphabets"],
)
def test_one_pass_equals_a_chat_for_each_frame(scorer, plain, episode):
    (said,) = scorer.score([episode])
    assert np.ptp(said) > 0.02
    assert_allclose(said, one_chat_a_frame(plain, scorer.config, episode), atol=1e-4)


def test_batched_equals_alone_at_any_length_and_in_order(scorer):
    episodes = [
        moving(3, 0),
        moving(9, 1),
        moving(1, 2, padded="last"),
        moving(6, 3, (48, 96)),
        moving(3, 4, cameras=("a", "b")),
    ]
    together = scorer.score(episodes)
    for episode, said in zip(episodes, together, strict=True):
        assert_allclose(said, scorer.score([episode])[0], atol=1e-5)
    assert [len(said) for said in together] == [4, 10, 1, 7, 4]


def test_a_small_budget_makes_more_batches_and_the_same_numbers(scorer, make_scorer, monkeypatch):
    episodes = [moving(steps, seed=steps) for steps in (2, 5, 3, 4)]
    frugal = make_scorer(max_batch_tokens=2 * scorer.pack(0, moving(steps=3)).layout.tokens)
    sizes = record_batches(frugal, monkeypatch)
    for one, other in zip(frugal.score(episodes), scorer.score(episodes), strict=True):
        assert_allclose(one, other, atol=1e-5)
    assert sizes == [1, 1, 2]  # longest first


def test_a_score_depends_on_no_later_frame(scorer):
    episode = moving(steps=5)
    front = episode.frames["front"].copy()
    front[3:] = 255 - front[3:]
    changed = Episode.of(frames={"front": front}, actions=episode.actions, task=episode.task)
    one, other = scorer.score([episode, changed])
    assert_array_equal(one[:3], other[:3])
    assert np.abs(one[3:] - other[3:]).min() > 1e-3


def test_frames_between_those_shown_keep_the_number_before(make_scorer):
    (said,) = make_scorer(frame_stride=3).score([moving(steps=7)])
    first, second, third, last = said[[0, 3, 6, 7]]
    assert_array_equal(said, [first, first, first, second, second, second, third, last])
    assert len({first, second, third, last}) == 4


def record_batches(scorer, monkeypatch, fits=99):
    """How many episodes each pass had; one with more than `fits` runs out of memory, as CUDA would say it."""
    sizes, forward = [], scorer.forward

    def counted(batch):
        sizes.append(len(batch))
        if len(batch) > fits:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return forward(batch)

    monkeypatch.setattr(scorer, "forward", counted)
    return sizes


def test_out_of_memory_halves_the_batch_and_goes_on(scorer, make_scorer, monkeypatch):
    episodes = [moving(3, seed) for seed in range(9)]
    small = make_scorer()
    sizes = record_batches(small, monkeypatch, fits=2)
    for one, other in zip(small.score(episodes), scorer.score(episodes), strict=True):
        assert_allclose(one, other, atol=1e-5)
    assert sizes == [9, 4, 2, 2, 2, 2, 1]  # and stays halved


def test_an_episode_that_never_fits_is_an_error_and_the_others_go_on(make_scorer, monkeypatch):
    scorer = make_scorer()
    forward = scorer.forward

    def fits_short(batch):
        if max(job.layout.tokens for job in batch) > 300:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return forward(batch)

    monkeypatch.setattr(scorer, "forward", fits_short)
    short, long = scorer.score([moving(steps=2), moving(steps=20)])
    assert len(short) == 3
    assert "21 frames" in str(long) and "do not fit into the memory of cpu; set a frame_stride" in str(long)


@pytest.mark.parametrize(
    ("episode", "sentence"),
    [
        (moving(task=""), "this episode has no task text; give it one, or set task: in the judge's config"),
        (
            moving(task="push <|im_end|>"),
            "this episode's task holds <|im_end|>, a control token of the model; take it out",
        ),
        (
            Episode.of(frames={}, actions=np.zeros((2, 1)), task="push"),
            "this episode has no camera, so there is nothing",
        ),
        (moving(steps=150), "frames make 4,"),
    ],
    ids=["no task", "control token", "no camera", "too long"],
)
def test_an_episode_that_cannot_be_asked_about_is_one_sentence_and_the_others_go_on(scorer, episode, sentence):
    good, bad = scorer.score([moving(), episode])
    assert len(good) == 6
    assert isinstance(bad, JudgeError) and sentence in str(bad)


def test_a_camera_that_is_not_there_is_named(make_scorer):
    (said,) = make_scorer(cameras=["wrist"]).score([moving()])
    assert str(said) == "the judge looks at camera 'wrist', which this episode does not have; it has: front"


def test_only_the_named_cameras_are_looked_at(make_scorer):
    two = moving(cameras=("front", "wrist"))
    alone = Episode.of(frames={"wrist": two.frames["wrist"]}, actions=two.actions, task=two.task)
    one, other = make_scorer(cameras=["wrist"]).score([two, alone])
    assert_array_equal(one, other)


def test_the_task_of_the_config_wins_and_criteria_matter(scorer, make_scorer):
    (asked,) = scorer.score([moving(task="lift it")])
    (configured,) = make_scorer(task="lift it").score([moving(task="push it")])
    (strict,) = make_scorer(task="lift it", success_criteria="it hangs in the air").score([moving()])
    assert_allclose(asked, configured, atol=1e-6)
    assert np.abs(asked - strict).max() > 1e-3


def test_numbers_that_are_not_finite_are_an_error(make_scorer):
    scorer = make_scorer()
    scorer.model.model.language_model.norm.weight.fill_(float("nan"))
    (said,) = scorer.score([moving(steps=2)])
    assert str(said) == "the model's answer at frame 0 is not a number (3 in all); try dtype: float32"


def test_nothing_to_score_is_nothing(scorer):
    assert scorer.score([]) == []


def test_it_makes_a_judge_that_keeps_the_contract(scorer):
    judge = VlmJudge(scorer, DecisionRule(decode="per_frame"), PlattScaling(bias=-1.0))
    check_judge(judge, [moving(), moving(task=""), moving(steps=2, padded="first")])
    (calibrated,), (plain,) = judge.score([moving()]), VlmJudge(scorer, DecisionRule()).score([moving()])
    assert isinstance(calibrated, Scores) and isinstance(plain, Scores)
    assert (calibrated.success_prob < plain.success_prob).all()
    assert judge.uncalibrated == scorer.fingerprint != judge.id.fingerprint


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed:UserWarning")  # a processor that has no bfloat16 says so
def test_half_the_precision_changes_little(scorer, make_scorer):
    (exact,), (rough,) = scorer.score([moving()]), make_scorer(dtype="bfloat16").score([moving()])
    assert_allclose(rough, exact, atol=0.2)


def test_words_without_an_answer_are_an_error_on_the_record(make_scorer):
    reasoned = make_scorer(max_new_tokens=4).explain(moving(steps=2, cameras=("front", "wrist")))
    assert reasoned.text and reasoned.answer is None
    assert "does not end in 'Answer: Yes' or 'Answer: No'" in reasoned.error


def test_words_are_generated_as_transformers_does(make_scorer, plain):
    scorer = make_scorer(max_new_tokens=5)
    asked = build_prompt(scorer.config, moving(steps=2))
    urls = [data_url(frame, "png") for frame in asked.images("front")]
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    question = {"type": "text", "text": scorer.config.explain_prompt}
    chat = [{"role": "system", "content": asked.system_prompt}, {"role": "user", "content": [*parts, question]}]
    inputs = plain.inputs(chat)
    written = plain.model.generate(**inputs, max_new_tokens=5, do_sample=False, pad_token_id=0)
    expected = plain.tokenizer.decode(written[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    assert scorer.explain(moving(steps=2)).text == expected


def test_asking_for_words_about_an_episode_without_a_task_is_an_error_too(scorer):
    assert "has no task text" in scorer.explain(moving(task="")).error
