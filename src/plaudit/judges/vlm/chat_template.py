"""A chat about an episode as tokens: their ids, their positions, which stand for frames and where answers are read.

The model's template renders chats of one, two and three frames, each of which must add the same text to the one before.
Then a chat of any length is its head and copies of that step, which are tokenized once per task. Both end at a control
token, so no token spans two pieces.

Positions have three rows (time, height, width), as in `Qwen3VLModel.get_rope_index`: text counts up in all three, the
tokens of an image share a time and spread over rows and columns, and what follows continues after the longer edge.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plaudit.errors import JudgeError
from plaudit.judges.vlm.images import TOKEN, Size
from plaudit.judges.vlm.prompt import FramePrompt, Message, conversation

IntArray = NDArray[np.int64]
IMAGE = "<|image_pad|>"
UNSTABLE_TEMPLATE = (
    "this model's chat template changes turns once others follow (a template for thinking does), so frames cannot be "
    "scored in one pass; use an Instruct model"
)


@dataclass(frozen=True, eq=False)
class Layout:
    """L tokens of a chat about F frames."""

    ids: IntArray  # [L]
    positions: IntArray  # [3, L]
    image_positions: Sequence[IntArray]  # of each camera [F, n], which tokens stand for its frames
    answer_positions: IntArray  # [F] the token after which each answer is read

    @property
    def tokens(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, eq=False)
class ChatSegment:
    """A part of a chat, counted from its own beginning."""

    ids: IntArray  # [l]
    positions: IntArray  # [3, l]
    image_positions: Sequence[IntArray]  # of each image [n]
    advance: int  # by how much positions go on after it


class ChatTemplate:
    """Turns chats into tokens, for one tokenizer and its template."""

    def __init__(self, tokenizer: Any, template: str):
        self._tokenizer, self._template = tokenizer, template
        self.image_id: int = tokenizer.convert_tokens_to_ids(IMAGE)
        self._segments = lru_cache(maxsize=64)(self._cut)  # most episodes of a store have the same task
        self._cut("", "", ("camera",), ((TOKEN, TOKEN),))  # refuses an unsuitable template before any episode

    def layout(self, prompt: FramePrompt, sizes: Sequence[Size]) -> Layout:
        """The tokens of a chat. sizes: of the cameras' images, as the model sees them"""
        head, step = self._segments(prompt.system_prompt, prompt.question, tuple(prompt.frames), tuple(sizes))
        more = np.arange(prompt.num_frames - 1)  # steps after the head
        starts = len(head.ids) + more * len(step.ids)
        later = (head.advance + more * step.advance)[:, None] + step.positions[:, None, :]  # [3, F-1, l]
        return Layout(
            ids=np.concatenate([head.ids, np.tile(step.ids, len(more))]),
            positions=np.concatenate([head.positions, later.reshape(3, -1)], axis=1),
            image_positions=[
                np.concatenate([first[None], starts[:, None] + next_])
                for first, next_ in zip(head.image_positions, step.image_positions, strict=True)
            ],
            answer_positions=np.concatenate([[len(head.ids)], starts + len(step.ids)]) - 1,
        )

    def render(self, messages: list[Message]) -> str:
        """The text of a chat, up to where the model answers."""
        return self._tokenizer.apply_chat_template(
            messages, chat_template=self._template, tokenize=False, add_generation_prompt=True
        )

    def segment(self, text: str, sizes: Sequence[Size]) -> ChatSegment:
        """The tokens of a text. sizes: of the images in it, in order"""
        ids = np.array(self._tokenizer(text, add_special_tokens=False)["input_ids"], np.int64)
        return expand_images(
            ids, frozenset({self.image_id}), [(height // TOKEN, width // TOKEN) for height, width in sizes]
        )

    def _cut(
        self, system_prompt: str, question: str, cameras: tuple[str, ...], sizes: tuple[Size, ...]
    ) -> tuple[ChatSegment, ChatSegment]:
        """What a chat begins with, up to the first answer, and what each further frame adds."""
        no_frames = dict.fromkeys(cameras, np.zeros((0, 1, 1, 3), np.uint8))
        prompt = FramePrompt(system_prompt, question, no_frames, np.arange(0))
        one, two, three = (self.render(conversation(prompt, count, image)) for count in (1, 2, 3))
        whole = all(longer.startswith(shorter) for shorter, longer in pairwise((one, two, three)))
        if not whole or three[len(two) :] != two[len(one) :] or not two[len(one) :].startswith("<|"):
            raise JudgeError(UNSTABLE_TEMPLATE)
        if one.count(IMAGE) != len(cameras):
            raise JudgeError(
                f"this model's chat template shows {one.count(IMAGE)} images where {len(cameras)} were given"
            )
        return self.segment(one, sizes), self.segment(two[len(one) :], sizes)


def expand_images(ids: IntArray, image_ids: frozenset[int], grids: Sequence[Size]) -> ChatSegment:
    """A text as tokens, in which each image is one token, with all tokens of its images and the positions of all.

    grids: of the images in order, rows and columns of tokens
    """
    assert np.isin(ids, list(image_ids)).sum() == len(grids)
    left = iter(grids)
    columns, places, begin, now = [], [], 0, 0
    for token in ids.tolist():
        rows, across = next(left) if token in image_ids else (1, 1)
        y, x = np.mgrid[:rows, :across].reshape(2, -1)
        columns.append(now + np.stack([np.zeros_like(y), y, x]))
        if token in image_ids:
            places.append(begin + np.arange(rows * across))
        begin, now = begin + rows * across, now + max(rows, across)
    counts = [part.shape[1] for part in columns]
    return ChatSegment(np.repeat(ids, counts), np.concatenate(columns, axis=1), places, now)


def image(camera: str, number: int) -> Message:
    """An image as a part of a message, where the pixels come separately."""
    return {"type": "image"}
