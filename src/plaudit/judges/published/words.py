"""Reward models that answer in tokens about a video: RoboReward and TOPReward. Both are a plain Qwen3-VL.

    RoboReward    <0.5 seconds>[2 frames] <2.5 seconds>[2 frames] <rubric, task>     -> "ANSWER: 4"
    TOPReward     <0.2 seconds>[2 frames] ... <task> ... The answer is:              -> log P("True")

Frames are chosen here and handed over with their times. Without times, transformers would assume 24 frames per second
and drop frames, and the time is a part of the text.
"""

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from plaudit.errors import BadFile, JudgeError
from plaudit.files import Root, read_json_object
from plaudit.judges.published.clip import Clip
from plaudit.judges.published.config import RoboRewardConfig, TopRewardConfig
from plaudit.judges.published.frames import even_frames, fit_pixels, fit_video, frames_by_time, timestamps
from plaudit.judges.published.judge import Picture, Reader, TreeEngine
from plaudit.judges.published.tree import Query
from plaudit.judges.published.weights import PublishedModel
from plaudit.judges.vlm.chat_template import IntArray, expand_images
from plaudit.judges.vlm.images import PATCH, TOKEN, Size, patches
from plaudit.judges.vlm.loading import load_description, load_vlm, unknown_part
from plaudit.types import FloatArray

VIDEO = "<|vision_start|><|video_pad|><|vision_end|>"
_FORCED = "ANSWER: "
_SCORES = "12345"
_ANSWER = re.compile(r"ANSWER:\s*([1-5])")
RUBRIC = (
    "Given the task, assign a discrete progress score reward (1,2,3,4,5) for the robot in the video in the format: "
    "ANSWER: <score>\n"
    "Rubric for end-of-episode progress (judge only the final state without time limits):\n"
    "1 - No Success: Final state shows no goal-relevant change for the command.\n"
    "2 - Minimal Progress: Final state shows a small but insufficient change toward the goal.\n"
    "3 - Partial Completion: The final state shows good progress toward the goal but violates more than one "
    "requirement or a major requirement.\n"
    "4 - Near Completion: Final state is correct in region and intent but misses a single minor requirement.\n"
    "5 - Perfect Completion: Final state satisfies all requirements.\n\n"
    "Task: {task}\n"
)
ABOVE = "The above video shows a robot manipulation trajectory that completes the following task: "
BELOW = "{task} Decide whether the above statement is True or not. The answer is:"


class VideoReader(Reader):
    """Prompts with one video, as pairs of frames with their times."""

    def __init__(self, config: Any):
        if (reason := unknown_part(config.model, load_description(config))) is not None:
            raise JudgeError(reason)
        loaded = load_vlm(config)
        layout = "transformers"
        super().__init__(
            config, PublishedModel(loaded.model, loaded.tokenizer, loaded.template, {}, layout, loaded.fingerprint)
        )
        self.cut_after = self.token("<|vision_end|>")
        self._ids = lru_cache(maxsize=1024)(self.tokens)

    def check_rate(self, clip: Clip) -> None:
        """The times of frames must be known."""
        if clip.fps <= 0:
            raise JudgeError(
                "this episode does not say how many frames per second it has; set fps= in the judge's config"
            )

    def pictures(self, clip: Clip, frames: list[int], sizes: tuple[Size, ...]) -> tuple[Picture, ...]:
        """The frames in pairs; of an odd number, the last one is shown twice."""
        even = [*frames, frames[-1]] if len(frames) % 2 else frames
        return tuple(Picture(clip.number, pair, sizes) for pair in zip(even[::2], even[1::2]))

    def with_times(self, text: str, times: list[str]) -> str:
        """The text of a chat, with the time of each pair before its tokens."""
        if text.count(VIDEO) != 1:
            raise JudgeError(
                f"the chat template of {self.config.model} shows {text.count(VIDEO)} videos where one was given"
            )
        return text.replace(VIDEO, "".join(time + VIDEO for time in times))

    def words(self, hidden: Tensor) -> Tensor:
        """[Q, V] log-probabilities of the next token."""
        head = self.model.model.lm_head.weight
        return F.linear(hidden[:, -1].to(head.dtype), head).float().log_softmax(-1)


class RoboRewardReader(VideoReader):
    """A score from 1 to 5: as generated text, or as the mean of the five scores under their probabilities."""

    parts = ("variant", "rate", "fps", "max_new_tokens")
    LEAST, MOST = 128 * TOKEN**2, 768 * TOKEN**2  # pixels of a frame, of qwen-vl-utils

    def __init__(self, config: RoboRewardConfig):
        super().__init__(config)
        if config.variant == "expectation":
            self._forced, self._digits = self._forced_answer()
            self.warnings = (
                "variant=expectation is not the published protocol; the figures of RoboReward do not hold for it",
            )

    def query(self, clip: Clip, last: int) -> Query:
        self.check_rate(clip)
        frames = frames_by_time(last, clip.fps, self.config.rate)
        frames = frames if len(frames) > 1 else frames * 2
        try:
            sizes = (fit_pixels(clip.size, self.LEAST, self.MOST),)
        except ValueError as error:
            raise JudgeError(str(error)) from None
        content = [{"type": "video"}, {"type": "text", "text": RUBRIC.format(task=clip.task)}]
        text = self.chat(content, add_generation_prompt=True)
        ids = self._ids(self.with_times(text, timestamps([frame / clip.fps for frame in frames])))
        if self.config.variant == "expectation":
            ids = np.concatenate([ids, self._forced])
        return Query(ids, self.pictures(clip, frames, sizes))

    def _forced_answer(self) -> tuple[IntArray, list[int]]:
        """The tokens that all answers begin with, and the token of each score. Tokenizers differ in whether the space
        belongs to the digit."""
        answers = [self.tokens(_FORCED + digit) for digit in _SCORES]
        same = {tuple(answer[:-1]) for answer in answers}
        digits = [int(answer[-1]) for answer in answers]
        if len(same) != 1 or len(set(digits)) != len(digits):
            raise JudgeError(f"the tokenizer of {self.config.model} does not spell 'ANSWER: 1' to 'ANSWER: 5' alike")
        return np.array(same.pop(), np.int64), digits

    def decode(self, hidden: Tensor) -> Tensor:
        """[Q, 1] the mean score."""
        probs = self.words(hidden)[:, self._digits].softmax(-1)
        return probs @ torch.arange(1.0, 6.0, device=probs.device)[:, None]

    def read(self, engine: TreeEngine, queries: Any, clips: Any) -> Tensor:
        if self.config.variant == "expectation":
            return super().read(engine, queries, clips)
        return torch.tensor([[float(parse_score(self.generate(engine, query, clips)))] for query in queries])

    @torch.no_grad()
    def generate(self, engine: TreeEngine, query: Query, clips: Any) -> str:
        """The likeliest text after one prompt, by transformers' own forward."""
        inputs = video_inputs(engine, query, clips)
        return generate(self.model.model, self.model.tokenizer, inputs, self.config.max_new_tokens)

    def scores(self, values: FloatArray) -> tuple[FloatArray, FloatArray | None, str]:
        return ((values[:, 0] - 1) / 4).clip(0, 1), None, ""


def generate(model: Any, tokenizer: Any, inputs: dict[str, Tensor], max_new_tokens: int) -> str:
    """The likeliest text after one prompt, by transformers' own forward."""
    written = model.generate(
        **inputs,
        generation_config=type(model.generation_config)(
            max_new_tokens=max_new_tokens,
            do_sample=False,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        ),
    )
    return tokenizer.decode(written[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)


def parse_score(text: str) -> int:
    """The score in a text; 1 where there is none, as published."""
    match = _ANSWER.search(text)
    return int(match[1]) if match else 1


def video_inputs(engine: TreeEngine, query: Query, clips: Any) -> dict[str, Tensor]:
    """What transformers' own forward takes for a prompt with one video."""
    images: Any = query.images  # of this engine: pictures
    model, first = engine.model, images[0]
    video = model.config.video_token_id
    ids = expand_images(query.ids, frozenset({video}), [one.grid for one in images]).ids
    ids = torch.from_numpy(ids).to(engine.device)[None]
    earlier, later = engine.pixels(images, clips)
    rows, columns = (edge // PATCH for edge in first.sizes[-1])
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "mm_token_type_ids": (ids == video).int() * 2,
        "pixel_values_videos": patches(earlier, model.dtype, later).flatten(0, 1),
        "video_grid_thw": torch.tensor([[len(query.images), rows, columns]]).to(engine.device),
    }


class TopRewardReader(VideoReader):
    """log P("True") after the statement that the video completes the task."""

    parts = ("protocol", "chat_template", "rate", "fps", "max_frames", "scale")
    EDGE = 224  # pixels, upstream

    def __init__(self, config: TopRewardConfig):
        super().__init__(config)
        self._limits = _video_limits(config)
        self._eos = self.model.tokenizer.eos_token
        tail = self.tokens("True" if config.chat_template else "is: True")
        self._true = int(tail[-1])
        if self.model.tokenizer.decode([self._true]).strip() != "True":
            raise JudgeError(f"the tokenizer of {config.model} does not spell 'True' as one token")

    def query(self, clip: Clip, last: int) -> Query:
        self.check_rate(clip)
        frames = frames_by_time(last, clip.fps, self.config.rate)
        if len(frames) > self.config.max_frames and self.config.protocol == "upstream":
            frames = [frames[place] for place in even_frames(len(frames) - 1, self.config.max_frames)]
        frames = frames[-self.config.max_frames :]
        first = ((self.EDGE, self.EDGE),) if self.config.protocol == "upstream" else ()
        try:
            sizes = (*first, fit_video(len(frames), first[0] if first else clip.size, *self._limits))
        except ValueError as error:
            raise JudgeError(str(error)) from None
        ids = self._ids(self._text(clip.task, len(frames)))
        if ids[-1] != self._true:
            raise JudgeError(f"the prompt does not end in the token 'True' of {self.config.model}")
        return Query(ids[:-1], self.pictures(clip, frames, sizes))

    def _text(self, task: str, frames: int) -> str:
        below, times = BELOW.format(task=task), timestamps([number / self.config.rate for number in range(frames)])
        if self.config.chat_template:
            content = [{"type": "video"}, {"type": "text", "text": ABOVE + below}]
            return self.with_times(self.chat(content, add_generation_prompt=True), times) + "True"
        text = self.chat([{"type": "video"}, {"type": "text", "text": ABOVE}])
        return self.with_times(text.split(self._eos)[0] if self._eos else text, times) + below + " True"

    def decode(self, hidden: Tensor) -> Tensor:
        """[Q, 1] the log-probability."""
        return self.words(hidden)[:, [self._true]]

    def scores(self, values: FloatArray) -> tuple[FloatArray, FloatArray | None, str]:
        logs = values[:, 0]
        span = float(logs.max() - logs.min())
        scaled = (logs - logs.min()) / span if span > 0 else logs * 0
        return np.exp(logs), scaled if self.config.scale == "minmax" else None, ""


def _video_limits(config: TopRewardConfig) -> tuple[int, int]:
    """Pixels that a video has at least and at most, all frames together."""
    path = Path(config.model) / "video_preprocessor_config.json"
    size = read_json_object(path, Root(path.parent)).get("size") if path.is_file() else None
    size = size if isinstance(size, dict) else {}
    least, most = size.get("shortest_edge", 4096), size.get("longest_edge", 25165824)
    if not all(isinstance(n, int) and 0 < n <= 1 << 32 for n in (least, most)) or least > most:
        raise BadFile(path, "it has no sound limits of pixels (size)")
    return least, most
