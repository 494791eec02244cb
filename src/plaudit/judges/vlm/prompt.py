"""What is asked of a model about an episode, as a chat; both backends ask the same.

    system      A robot works on a task, and you see it frame by frame. The task: lift the red cube
    user        [frame 0] Is the task complete in this frame? Answer Yes or No.
    assistant   <- the score of frame 0 is read here
    user        [frame 1] Is the task complete in this frame? Answer Yes or No.
    assistant   <- the score of frame 1

The assistant's turns stay empty. So the chat up to any question is a prefix of the whole chat, token by token, and one
pass over the whole has every score in it; and it is a chat that any server renders with the model's own template, so an
endpoint that is sent the prefixes one by one gives the same numbers. (Rejected: filling in "No" as the answers before,
which a model goes on repeating, and questions inside of one user turn, where no endpoint can be stopped.)

The score is log P(yes) - log P(no), each summed over the single tokens that spell the word: see `FORMS`.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plaudit.errors import JudgeError
from plaudit.judges.vlm.config import VlmConfig
from plaudit.types import ByteArray, Episode, FloatArray

Message = dict[str, Any]
Image = Callable[[str, int], Message]  # camera, moment -> the part of a message that is the image

# How a tokenizer may spell the words in one token.
FORMS = {
    "yes": ("Yes", "yes", "YES", " Yes", " yes", " YES"),
    "no": ("No", "no", "NO", " No", " no", " NO"),
}

_CONTROL = re.compile(r"<\|\w+\|>")  # a token that a chat is made of: text that holds one would break out of its turn
# At the end of what was generated: "Answer: Yes", "<answer>no</answer>", or nothing but the word.
_ANSWER = re.compile(r"(?:^|answer)\W*(yes|no)\W*(?:</answer>)?\W*$", re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class Asked:
    """One episode, ready to be asked about."""

    instruction: str
    question: str
    frames: Mapping[str, ByteArray]  # camera -> uint8 [R, H, W, 3], all recorded ones; often still on disk
    shown: NDArray[np.int64]  # [F] which of these are shown

    @property
    def moments(self) -> int:
        return len(self.shown)

    def pictures(self, camera: str) -> ByteArray:
        """[F, H, W, 3], a copy."""
        return self.frames[camera][self.shown]

    def held(self, log_odds: FloatArray) -> FloatArray:
        """Of every recorded frame, from those of the frames shown: the number of the last one before."""
        recorded = len(next(iter(self.frames.values())))
        last = np.searchsorted(self.shown, np.arange(recorded), side="right") - 1
        return log_odds[last].astype(np.float32)


@dataclass(frozen=True)
class Reasoned:
    """What a model says in words. Never a reward: for a person who wants to know why."""

    text: str
    answer: bool | None  # whether it calls the episode's last frame a success; None where it gave no answer
    error: str | None = None  # why there is no answer


def ask(config: VlmConfig, episode: Episode) -> Asked:
    task = (config.task or episode.task).strip()
    if not task:
        raise JudgeError("this episode has no task text; give it one, or set task: in the judge's config")
    if config.success_criteria:
        task = f"{task}\nIt is complete when: {config.success_criteria}"
    if found := _CONTROL.search(task):
        raise JudgeError(f"this episode's task holds {found[0]}, a control token of the model; take it out")
    if not episode.frames:
        raise JudgeError("this episode has no camera, so there is nothing to look at")
    frames = {camera: _camera(episode, camera)[episode.recorded] for camera in config.cameras or episode.frames}
    last = len(next(iter(frames.values()))) - 1
    return Asked(
        instruction=config.instruction.replace("{task}", task),
        question=config.question.replace("{task}", task),
        frames=frames,
        shown=np.union1d(np.arange(0, last, config.stride), last),
    )


def asked_words(config: VlmConfig) -> str:
    """All of a config that decides what is asked and seen, for a fingerprint; the task itself is in the episode."""
    settings = {"task", "success_criteria", "instruction", "question", "cameras", "image_size", "stride"}
    return config.model_dump_json(include=settings)


def _camera(episode: Episode, camera: str) -> ByteArray:
    if camera not in episode.frames:
        raise JudgeError(
            f"the judge looks at camera '{camera}', which this episode does not have; it has: "
            f"{', '.join(sorted(episode.frames))}"
        )
    return episode.frames[camera]


def conversation(asked: Asked, moments: int, image: Image) -> list[Message]:
    """The chat up to the question after the last of so many moments."""
    messages: list[Message] = [{"role": "system", "content": asked.instruction}]
    for moment in range(moments):
        if moment:
            messages.append({"role": "assistant", "content": ""})
        parts = [*_pictures(asked.frames, moment, image), _text(asked.question)]
        messages.append({"role": "user", "content": parts})
    return messages


def reasoning(asked: Asked, question: str, image: Image) -> list[Message]:
    """The chat that asks for words: all frames in one turn, and one question."""
    parts = [part for moment in range(asked.moments) for part in _pictures(asked.frames, moment, image)]
    return [
        {"role": "system", "content": asked.instruction},
        {"role": "user", "content": [*parts, _text(question)]},
    ]


def _pictures(cameras: Iterable[str], moment: int, image: Image) -> list[Message]:
    named = [(_text(f"{camera}:"), image(camera, moment)) for camera in cameras]
    return [part for name, picture in named for part in ((name, picture) if len(named) > 1 else (picture,))]


def _text(text: str) -> Message:
    return {"type": "text", "text": text}


def answer_of(text: str) -> Reasoned:
    """Read the answer at the end of what was generated."""
    found = _ANSWER.search(text.strip())
    if found is None:
        return Reasoned(
            text, None, f"the model's text does not end in 'Answer: Yes' or 'Answer: No': ...{text[-80:]!r}"
        )
    return Reasoned(text, found[1].lower() == "yes")
