"""What is asked: the chat, its tokens and positions, its images, and how an answer in words is read."""

from typing import Any

import numpy as np
import pytest
import torch

from plaudit.encoders import resize_images
from plaudit.errors import JudgeError
from plaudit.judges.vlm.chat_template import ChatTemplate
from plaudit.judges.vlm.config import VlmJudgeConfig
from plaudit.judges.vlm.images import size_of
from plaudit.judges.vlm.prompt import build_prompt, conversation, parse_answer
from tiny_vlm import make_tokenizer, moving


def picture(camera, moment):
    return f"<{camera} {moment}>"


def test_the_chat_shows_a_frame_and_asks_and_leaves_the_answer_open():
    asked = build_prompt(VlmJudgeConfig(question="Done?", system_prompt="{task}!"), moving(steps=1, task="push"))
    assert conversation(asked, 2, picture) == [
        {"role": "system", "content": "push!"},
        {"role": "user", "content": ["<front 0>", {"type": "text", "text": "Done?"}]},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": ["<front 1>", {"type": "text", "text": "Done?"}]},
    ]


def test_several_cameras_are_shown_together_each_with_its_name():
    asked = build_prompt(VlmJudgeConfig(cameras=("wrist", "front")), moving(cameras=("front", "wrist", "top")))
    parts = conversation(asked, 1, picture)[1]["content"]
    assert [part if isinstance(part, str) else part["text"] for part in parts[:4]] == [
        "wrist:", "<wrist 0>", "front:", "<front 0>",
    ]  # fmt: skip


def test_criteria_are_added_to_the_task():
    config = VlmJudgeConfig(success_criteria="it stands")
    assert build_prompt(config, moving(task="lift {task}")).system_prompt.endswith(
        "lift {task}\nIt is complete when: it stands"
    )


def test_a_repeated_frame_is_not_shown():
    assert build_prompt(VlmJudgeConfig(), moving(steps=4, padded="last")).num_frames == 4
    assert build_prompt(VlmJudgeConfig(frame_stride=3), moving(steps=4, padded="first")).frame_indices.tolist() == [
        0,
        3,
    ]


def test_positions_are_those_of_transformers(scorer, plain):
    job = scorer.pack(0, moving(steps=3, size=(48, 96), cameras=("front", "wrist")))
    ids = torch.from_numpy(job.layout.ids)[None]
    grids = torch.tensor([(1, height // 16, width // 16) for height, width in scorer.image_sizes(job.prompt)] * 4)
    types = (ids == plain.tokenizer.convert_tokens_to_ids("<|image_pad|>")).int()
    expected, _ = plain.model.model.get_rope_index(ids, types, image_grid_thw=grids)
    assert torch.equal(torch.from_numpy(job.layout.positions), expected[:, 0])


def test_tokens_are_those_of_the_whole_text(scorer, plain):
    job = scorer.pack(0, moving(steps=4))
    chat = conversation(job.prompt, 5, lambda camera, moment: {"type": "image"})
    text = plain.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    text = text.replace("<|image_pad|>", 4 * "<|image_pad|>")
    assert job.layout.ids.tolist() == plain.tokenizer(text, add_special_tokens=False)["input_ids"]
    assert job.layout.answer_positions[-1] == job.layout.tokens - 1


def test_a_template_that_rewrites_turns_is_refused():
    tokenizer: Any = make_tokenizer()
    thinking = tokenizer.chat_template + "{%- if add_generation_prompt %}{{- '<think>\\n' }}{%- endif %}"
    with pytest.raises(JudgeError, match=r"changes turns once others follow .* use an Instruct model"):
        ChatTemplate(tokenizer, thinking)


@pytest.mark.parametrize(
    ("frame", "edge", "size"),
    [
        ((224, 224), 224, (224, 224)),
        ((480, 640), 224, (192, 256)),
        ((1, 999), 224, (32, 7072)),
        ((64, 64), 64, (64, 64)),
    ],
)
def test_frames_keep_their_shape_in_whole_tokens(frame, edge, size):
    assert size_of((1, *frame, 3), edge) == size


def test_resizing_averages_what_it_leaves_out():
    frames = torch.from_numpy(np.indices((1, 64, 64, 3)).sum(0).astype(np.uint8) % 2 * 200)
    assert resize_images(frames, (32, 32))[0, 8:-8, 8:-8].float().sub(100).abs().max() <= 1


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("It is done.\n\nAnswer: Yes", True),
        ("Answer: **No.**", False),
        ("<think>yes or no?</think>\n<answer>\nNo\n</answer>", False),
        ("yes", True),
        ("Answer: yes or no", None),
        ("I answer that yes, it moved, but it fell", None),
        ("", None),
    ],
)
def test_an_answer_is_read_only_at_the_end(text, answer):
    reasoned = parse_answer(text)
    assert reasoned.answer is answer
    assert (reasoned.error is None) == (answer is not None)
