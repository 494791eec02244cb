"""RoboReward and TOPReward: videos with times, forced answers, and the numbers of one call per prefix."""

import json

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image

from plaudit.contracts import check_judge
from plaudit.data.rewards import RewardConfig
from plaudit.errors import JudgeError
from plaudit.judges.config import check_compared, check_rewarded
from plaudit.judges.published.config import RoboRewardConfig, TopRewardConfig
from plaudit.judges.published.frames import even_frames, fit_pixels, fit_video, frames_by_time, stretch, timestamps
from plaudit.judges.published.words import RUBRIC, parse_score
from published_folders import call, last_hidden, resized, tiny_model
from tiny_vlm import moving

TASK = "push the square to the right"
VIDEO = "<|vision_start|><|video_pad|><|vision_end|>"


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    folder = tmp_path_factory.mktemp("words")
    model, tokenizer = tiny_model()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder, model, tokenizer


def roboreward(folder, **settings):
    return RoboRewardConfig(model=str(folder), device="cpu", **settings).build()


def topreward(folder, **settings):
    return TopRewardConfig(model=str(folder), device="cpu", **settings).build()


def pairs(frames, indices, *sizes):
    shown = [resized(frames[i], *sizes) for i in indices]
    shown += shown[-1:] * (len(shown) % 2)
    return list(zip(shown[::2], shown[1::2]))


def timed(seconds):
    seconds = [*seconds, seconds[-1]] if len(seconds) % 2 else list(seconds)
    return "".join(f"<{(a + b) / 2:.1f} seconds>{VIDEO}" for a, b in zip(seconds[::2], seconds[1::2]))


def plain_words(model, tokenizer, text, shown):
    """[V] log-probabilities of the token after a text."""
    hidden = last_hidden(model, call(model, tokenizer, text, shown, video=True))
    return model.lm_head(hidden[-1]).log_softmax(-1)


# RoboReward


def rubric(seconds, end="<|im_end|>\n<|im_start|>assistant\n"):
    return f"<|im_start|>user\n{timed(seconds)}{RUBRIC.format(task=TASK)}{end}"


def test_the_mean_of_the_scores_equals_one_call_for_each_prefix(published):
    folder, model, tokenizer = published
    episode = moving(steps=9, fps=4.0)
    (scores,) = roboreward(folder, variant="expectation").score([episode])
    digits = [tokenizer(f"ANSWER: {d}")["input_ids"] for d in range(1, 6)]
    forced, size = digits[0][:-1], fit_pixels((64, 64), 128 * 1024, 768 * 1024)
    for t in (0, 3, 6, 9):
        indices = sorted({*range(0, t + 1, 4), t})
        indices = indices * 2 if t == 0 else indices
        text = rubric([i / 4 for i in indices]) + tokenizer.decode(forced)
        logs = plain_words(model, tokenizer, text, pairs(episode.frames["front"], indices, size))
        probs = logs[[d[-1] for d in digits]].softmax(-1)
        assert_allclose(scores.success_prob[t], (probs @ torch.arange(1.0, 6) - 1).item() / 4, atol=1e-3)
    assert np.ptp(scores.success_prob) > 1e-3


def test_the_forced_answer_ends_before_the_digit_however_it_is_spelled(tmp_path):
    for number, added in enumerate([[], [" 1", " 2", " 3", " 4", " 5"], [" 3"]]):
        model, tokenizer = tiny_model(words="ANSWER: is: True is: True is: True", rows=700)
        tokenizer.add_tokens(added)
        model.save_pretrained(tmp_path / str(number))
        tokenizer.save_pretrained(tmp_path / str(number))
        if len(added) == 1:  # one score alone has its own token with the space
            with pytest.raises(JudgeError, match="does not spell 'ANSWER: 1' to 'ANSWER: 5' alike"):
                roboreward(tmp_path / str(number), variant="expectation")
            continue
        reader = roboreward(tmp_path / str(number), variant="expectation").reader
        assert tokenizer.decode(reader._forced) == ("ANSWER:" if added else "ANSWER: ")
        assert tokenizer.decode(reader._digits) == "".join(added or "12345")


def test_the_published_variant_reads_generated_text(published):
    folder, model, tokenizer = published
    judge = roboreward(folder, max_new_tokens=6)
    episode = moving(steps=4, fps=2.0)
    judge.reader.generate, generate = lambda *a: written.append(generate(*a)) or "so ANSWER: 4", judge.reader.generate
    written = []
    (scores,) = judge.score([episode])
    assert_allclose(scores.success_prob, 0.75)
    size = fit_pixels((64, 64), 128 * 1024, 768 * 1024)
    inputs = call(model, tokenizer, rubric([0, 1, 2]), pairs(episode.frames["front"], [0, 2, 4], size), video=True)
    out = model.generate(**inputs, max_new_tokens=6, do_sample=False)[0, inputs["input_ids"].shape[1] :]
    assert written[4] == tokenizer.decode(out, skip_special_tokens=True)


@pytest.mark.parametrize(
    ("text", "score"), [("ANSWER: 4", 4), ("I think... ANSWER:5", 5), ("ANSWER: 9", 1), ("", 1), ("four", 1)]
)
def test_an_answer_that_cannot_be_read_counts_as_1(text, score):
    assert parse_score(text) == score


def test_our_variant_says_that_it_is_ours(published):
    judge = roboreward(published[0], variant="expectation")
    assert "not the published protocol" in judge.warnings[0]
    assert judge.id != roboreward(published[0]).id


# TOPReward


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("protocol", ["upstream", "lerobot"])
def test_the_log_probability_equals_one_call_for_each_prefix(published, chat, protocol):
    folder, model, tokenizer = published
    episode = moving(steps=11, fps=4.0, size=(96, 128))
    (scores,) = topreward(folder, protocol=protocol, chat_template=chat, max_frames=4).score([episode])
    for t in (0, 5, 11):
        indices = sorted({*range(0, t + 1, 2), t})
        if protocol == "upstream" and len(indices) > 4:
            indices = [indices[round(i * (len(indices) - 1) / 3)] for i in range(4)]
        indices = indices[-4:]
        sizes = [(224, 224)] if protocol == "upstream" else [(96, 128)]
        body = f"<|im_start|>user\n{timed([i / 2 for i in range(len(indices))])}"
        body += "The above video shows a robot manipulation trajectory that completes the following task: "
        ask = f"{TASK} Decide whether the above statement is True or not. The answer is:"
        if chat:
            text, word = f"{body}{ask}<|im_end|>\n<|im_start|>assistant\n", "True"
        else:
            text, word = body + ask, " True"
        target = tokenizer(f"is:{word}" if not chat else word)["input_ids"][-1]
        logs = plain_words(model, tokenizer, text, pairs(episode.frames["front"], indices, *sizes))
        assert_allclose(np.log(scores.success_prob[t]), logs[target].item(), atol=1e-3)


def test_the_two_variants_read_different_tokens(published):
    one, other = (topreward(published[0], chat_template=chat).reader for chat in (False, True))
    assert one._true != other._true
    assert one.model.tokenizer.decode([one._true]) == " True"
    assert one.config.signals != other.config.signals


def test_every_chosen_frame_is_shown(published):
    """Without times, transformers' processor drops frames without an error: 4 of 16."""
    judge = topreward(published[0], max_frames=16)
    query = judge.reader.query(clip_of(judge, moving(steps=29, fps=4.0)), 29)
    assert len(query.images) == 8  # 16 frames in pairs
    assert len({frame for one in query.images for frame in one.frames}) == 16
    text = judge.reader.model.tokenizer.decode(query.ids)
    assert text.count("seconds>") == 8
    assert "<0.2 seconds>" in text and "<7.2 seconds>" in text


def clip_of(judge, episode):
    from plaudit.judges.published.clip import make_clip

    return make_clip(judge.config, 0, episode)


def test_progress_within_an_episode_is_refused_where_episodes_are_compared(published):
    judge = topreward(published[0], scale="minmax", max_frames=4)
    (scores,) = judge.score([moving(steps=5, fps=2.0)])
    assert (scores.progress.min(), scores.progress.max()) == (0, 1)  # also of an episode that fails
    with pytest.raises(JudgeError, match="is scaled within each episode, so it would pay failures like successes"):
        check_rewarded(judge.config, RewardConfig(shaping=0.5))
    check_rewarded(judge.config, RewardConfig())
    check_compared(judge.config)  # its probabilities are not scaled


def test_progress_is_not_paid_at_every_step(published):
    for judge in (roboreward(published[0]), topreward(published[0])):
        with pytest.raises(JudgeError, match="almost finished for as long as it can"):
            check_rewarded(judge.config, RewardConfig(reward_type="continuous"))
        check_rewarded(judge.config, RewardConfig(reward_type="continuous", mode="terminal"))


def test_a_rate_that_is_not_known_is_asked_for(published):
    (error,) = topreward(published[0]).score([moving(fps=0.0)])
    assert "set fps= in the judge's config" in str(error)
    (scores,) = topreward(published[0], fps=2.0, max_frames=2).score([moving(fps=0.0)])
    assert np.isfinite(scores.success_prob).all()


def test_a_tokenizer_that_spells_true_in_pieces_is_refused(tmp_path):
    model, tokenizer = tiny_model(words="Yes No")
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(JudgeError, match="does not spell 'True' as one token"):
        topreward(tmp_path)


def test_another_architecture_is_refused(published, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(JudgeError, match="is a 'llama' and no Qwen3-VL"):
        topreward(tmp_path)


def test_they_pass_the_contract(published):
    check_judge(topreward(published[0], max_frames=2), [moving(steps=4, fps=2.0)])
    check_judge(roboreward(published[0], variant="expectation"), [moving(steps=3, fps=2.0)])


# Frames, sizes and times, against transformers' own


def test_sizes_are_those_of_transformers():
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    rng = np.random.default_rng(0)
    for _ in range(200):
        height, width = (int(edge) for edge in rng.integers(33, 2000, 2))
        assert fit_pixels((height, width), 4096, 500_000) == smart_resize(height, width, 32, 4096, 500_000)


def test_sizes_of_videos_are_those_of_transformers():
    pytest.importorskip("torchvision")
    from transformers.models.qwen3_vl.video_processing_qwen3_vl import smart_resize

    rng = np.random.default_rng(0)
    for _ in range(200):
        height, width = (int(edge) for edge in rng.integers(33, 2000, 2))
        count = 2 * int(rng.integers(1, 32))  # odd counts are rounded up in one version and to even ones in another
        wanted = smart_resize(count, height, width, temporal_factor=2, factor=32, min_pixels=9999, max_pixels=3_000_000)
        assert fit_video(count, (height, width), 9999, 3_000_000) == tuple(wanted)


@pytest.mark.parametrize(("old", "new"), [((48, 64), (36, 48)), ((28, 28), (32, 32)), ((9, 60), (9, 64))])
def test_a_gpu_stretches_frames_to_the_numbers_of_pil(old, new):
    frame = np.random.default_rng(0).choice([0, 100, 255], (*old, 3)).astype(np.uint8)  # clipped at both ends
    wanted = Image.fromarray(frame).resize(new[::-1], Image.Resampling.BICUBIC)
    got = stretch(stretch(torch.from_numpy(frame)[None], 2, new[1]), 1, new[0])
    assert_array_equal(got[0], np.asarray(wanted))


def test_more_frames_of_a_video_make_each_smaller():
    assert fit_video(2, (480, 640), 4096, 3_000_000) == (480, 640)
    assert fit_video(64, (480, 640), 4096, 3_000_000) == (160, 224)


def test_frames_by_hand():
    assert even_frames(2, 8) == [0, 1, 2]
    assert even_frames(50, 8) == [0, 7, 14, 21, 29, 36, 43, 50]
    assert frames_by_time(0, 10.0, 1.0) == [0]
    assert frames_by_time(20, 10.0, 1.0) == [0, 10, 20]
    assert frames_by_time(25, 10.0, 1.0) == [0, 10, 20, 25]  # the last frame is always shown
    assert frames_by_time(9, 30.0, 30.0) == list(range(10))
    assert timestamps([0.0, 1.0, 2.0]) == ["<0.5 seconds>", "<2.0 seconds>"]
