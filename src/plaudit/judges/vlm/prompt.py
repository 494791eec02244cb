"""The prompt about an episode, as a chat; the same for all backends.

    system      A robot works on a task, and you see it frame by frame. The task: lift the red cube
    user        [frame 0] Is the task complete in this frame? Answer Yes or No.
    assistant   <- the score of frame 0 is read here
    user        [frame 1] Is the task complete in this frame? Answer Yes or No.
    assistant   <- the score of frame 1

The assistant's turns stay empty. So the chat up to any question is a prefix of the whole chat, and one pass has every
score in it. An endpoint that gets the prefixes one by one gives the same numbers. (Rejected: answering "No" in earlier
turns, which a model repeats; all questions in one user turn, where no endpoint can be stopped.)

The score is log P(yes) - log P(no), each summed over the single tokens that spell the word: see `ANSWER_TOKENS`.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plaudit.errors import JudgeError
from plaudit.judges.vlm.config import PromptSettings, VlmJudgeConfig
from plaudit.types import ByteArray, Episode, FloatArray

Message = dict[str, Any]
Image = Callable[[str, int], Message]  # camera, number of the frame -> the part of a message that is the image

# How a tokenizer may spell the words in one token.
ANSWER_TOKENS = {
    "yes": ("Yes", "yes", "YES", " Yes", " yes", " YES"),
    "no": ("No", "no", "NO", " No", " no", " NO"),
}

CONTROL = re.compile(r"<\|\w+\|>")  # a token that a chat is made of: text that holds one would break out of its turn
# At the end of what was generated: "Answer: Yes", "<answer>no</answer>", or nothing but the word.
_ANSWER = re.compile(r"(?:^|answer)\W*(yes|no)\W*(?:</answer>)?\W*$", re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class FramePrompt:
    """One episode as a prompt: what is asked, and the frames that are shown."""

    system_prompt: str
    question: str
    frames: Mapping[str, ByteArray]  # camera -> uint8 [R, H, W, 3], all recorded ones; often still on disk
    frame_indices: NDArray[np.int64]  # [F] which of these are shown

    @property
    def num_frames(self) -> int:
        """Frames that are shown, of each camera."""
        return len(self.frame_indices)

    def images(self, camera: str) -> ByteArray:
        """[F, H, W, 3] the frames that are shown, a copy."""
        return self.frames[camera][self.frame_indices]

    def expand(self, logits: FloatArray) -> FloatArray:
        """Of every observed frame, from the frames that are shown: the logit of the last one before it."""
        observed = len(next(iter(self.frames.values())))
        last = np.searchsorted(self.frame_indices, np.arange(observed), side="right") - 1
        return logits[last].astype(np.float32)


@dataclass(frozen=True)
class Explanation:
    """A model's words, for people. They never become a label."""

    text: str
    answer: bool | None  # whether it calls the episode's last frame a success; None where it gave no answer
    error: str | None = None  # why there is no answer


def build_prompt(config: VlmJudgeConfig, episode: Episode) -> FramePrompt:
    """The prompt of an episode; an error where the episode has no task or no camera."""
    task = (config.task or episode.task).strip()
    if not task:
        raise JudgeError("this episode has no task text; give it one, or set task: in the judge's config")
    if config.success_criteria:
        task = f"{task}\nIt is complete when: {config.success_criteria}"
    if control := CONTROL.search(task):
        raise JudgeError(f"this episode's task holds {control[0]}, a control token of the model; take it out")
    if not episode.frames:
        raise JudgeError("this episode has no camera, so there is nothing to look at")
    cameras = config.cameras or tuple(episode.frames)
    if missing := [camera for camera in cameras if camera not in episode.frames]:
        names = ", ".join(sorted(episode.frames))
        raise JudgeError(f"the judge looks at camera '{missing[0]}', which this episode does not have; it has: {names}")
    frames = {camera: episode.frames[camera][episode.observed] for camera in cameras}
    last = len(next(iter(frames.values()))) - 1
    return FramePrompt(
        system_prompt=config.system_prompt.replace("{task}", task),
        question=config.question.replace("{task}", task),
        frames=frames,
        frame_indices=np.union1d(np.arange(0, last, config.frame_stride), last),
    )


def prompt_fingerprint(config: VlmJudgeConfig) -> str:
    """Everything in a config that decides what is asked and seen; the task itself is in the episode."""
    return config.model_dump_json(include=set(PromptSettings.model_fields))


def conversation(prompt: FramePrompt, num_frames: int, image: Image) -> list[Message]:
    """The chat up to the question after the last of the first `num_frames` frames."""
    messages: list[Message] = [{"role": "system", "content": prompt.system_prompt}]
    for number in range(num_frames):
        if number:
            messages.append({"role": "assistant", "content": ""})
        parts = [*_images(prompt.frames, number, image), _text(prompt.question)]
        messages.append({"role": "user", "content": parts})
    return messages


def explanation_prompt(prompt: FramePrompt, question: str, image: Image) -> list[Message]:
    """The chat that asks for words: all frames in one turn, and one question."""
    parts = [part for number in range(prompt.num_frames) for part in _images(prompt.frames, number, image)]
    return [
        {"role": "system", "content": prompt.system_prompt},
        {"role": "user", "content": [*parts, _text(question)]},
    ]


def _images(cameras: Iterable[str], number: int, image: Image) -> list[Message]:
    """The images of one frame; with several cameras, each behind its name."""
    named = [(_text(f"{camera}:"), image(camera, number)) for camera in cameras]
    return [part for name, picture in named for part in ((name, picture) if len(named) > 1 else (picture,))]


def _text(text: str) -> Message:
    return {"type": "text", "text": text}


def parse_answer(text: str) -> Explanation:
    """Read the answer at the end of what was generated."""
    answer = _ANSWER.search(text.strip())
    if answer is None:
        error = f"the model's text does not end in 'Answer: Yes' or 'Answer: No': ...{text[-80:]!r}"
        return Explanation(text, None, error)
    return Explanation(text, answer[1].lower() == "yes")
