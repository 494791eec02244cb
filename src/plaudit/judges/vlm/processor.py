"""Any vision-language model of transformers, by transformers' own processor and forward.

The fallback for models that our own forward (local.py) does not know. It is slower: one episode at a time, and images
go through the model's own preprocessing. All frames of an episode are still scored in one pass, so the chat template
has to leave earlier turns as they are: chats of one, two and three frames have to grow by the same tokens.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from PIL import Image as PilImage
from torch import Tensor

from plaudit.errors import JudgeError, PlauditError
from plaudit.judges.vlm.chat_template import UNSTABLE_TEMPLATE, image
from plaudit.judges.vlm.config import VlmJudgeConfig
from plaudit.judges.vlm.images import resize_frames
from plaudit.judges.vlm.judge import VlmBackend
from plaudit.judges.vlm.loading import LoadedVlm, answer_token_ids
from plaudit.judges.vlm.prompt import FramePrompt, Message, build_prompt, conversation, explanation_prompt
from plaudit.types import Episode, FloatArray


class LocalBackend(VlmBackend):
    """A `VlmBackend` of a model in this process."""

    def __init__(self, config: VlmJudgeConfig, loaded: LoadedVlm, *kind: str):
        """kind: a part of the fingerprint"""
        super().__init__(config, *kind, loaded.fingerprint, str(loaded.model.dtype))
        self.model, self.device, self.trained_on = loaded.model, loaded.model.device, loaded.trained_on
        self._tokenizer = loaded.tokenizer
        self._yes, self._no = (answer_token_ids(loaded.tokenizer, word) for word in ("yes", "no"))

    @abstractmethod
    def explanation_inputs(self, prompt: FramePrompt) -> dict[str, Tensor]:
        """What transformers' own forward takes, of a chat that asks for words."""

    def transformers_logits(self, inputs: Mapping[str, Tensor], answers: Tensor) -> Tensor:
        """[A] log P(yes) - log P(no) of the word after each of these tokens, by transformers' own forward."""
        words = self.model(**inputs, logits_to_keep=answers, use_cache=False).logits[0].float()
        return words[:, self._yes].logsumexp(1) - words[:, self._no].logsumexp(1)

    def generate(self, prompt: FramePrompt) -> str:
        """The likeliest text after the chat."""
        with memory_errors(self.device), torch.inference_mode():
            inputs = self.explanation_inputs(prompt)
            written = self.model.generate(
                **inputs,
                generation_config=type(self.model.generation_config)(
                    max_new_tokens=self.config.max_new_tokens,
                    do_sample=False,
                    eos_token_id=self._tokenizer.eos_token_id,
                    pad_token_id=self._tokenizer.pad_token_id,
                ),
            )
        return self._tokenizer.decode(written[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)


class ProcessorBackend(LocalBackend):
    """A `VlmBackend` of any model that transformers can run."""

    def __init__(self, config: VlmJudgeConfig, loaded: LoadedVlm, warning: str):
        """warning: why this model is not run by our own forward"""
        super().__init__(config, loaded, "processor")
        self.warnings = (f"{warning}; transformers' own forward scores its frames, one episode at a time",)
        self._processor, self._template = loaded.processor, loaded.template

    def score(self, episodes: Sequence[Episode]) -> Sequence[FloatArray | PlauditError]:
        """The logit of success of each observed frame."""
        return [self._score(episode) for episode in episodes]

    def _score(self, episode: Episode) -> FloatArray | PlauditError:
        try:
            prompt = build_prompt(self.config, episode)
            with memory_errors(self.device), torch.inference_mode():
                images = self._images(prompt)
                inputs = self._inputs(conversation(prompt, prompt.num_frames, image), images)
                answers = self._answer_positions(prompt, images, inputs["input_ids"][0].tolist())
                logits = self.transformers_logits(inputs, torch.tensor(answers, device=self.device))
        except PlauditError as error:
            return error
        return check_finite(prompt, logits.cpu().numpy())

    def _answer_positions(self, prompt: FramePrompt, images: Sequence[Any], ids: list[int]) -> list[int]:
        """The token after which each answer is read: each chat has to begin with the one that is a frame shorter."""
        count = prompt.num_frames
        shorter = [
            self._inputs(conversation(prompt, frames, image), images[: frames * len(prompt.frames)])["input_ids"][0]
            for frames in range(1, min(count, 3))
        ]
        chats = [*(chat.tolist() for chat in shorter), ids]
        first = len(chats[0])
        step = len(chats[1]) - first if count > 1 else 0
        ends = [first + step * number for number in range(count)]
        if ends[-1] != len(ids) or any(ids[: len(chat)] != chat for chat in chats):
            raise JudgeError(UNSTABLE_TEMPLATE)
        return [end - 1 for end in ends]

    def explanation_inputs(self, prompt: FramePrompt) -> dict[str, Tensor]:
        return self._inputs(explanation_prompt(prompt, self.config.explain_prompt, image), self._images(prompt))

    def _images(self, prompt: FramePrompt) -> list[Any]:
        """In the order of the chat: all cameras of a frame, then the next frame."""
        cameras = resize_frames(prompt, self.config.image_size).values()
        return [PilImage.fromarray(frame.numpy()) for frames in zip(*cameras, strict=True) for frame in frames]

    def _inputs(self, messages: list[Message], images: Sequence[Any]) -> dict[str, Tensor]:
        text = self._processor.apply_chat_template(
            messages, chat_template=self._template, tokenize=False, add_generation_prompt=True
        )
        inputs = self._processor(text=[text], images=list(images), return_tensors="pt", add_special_tokens=False)
        return dict(inputs.to(self.device, self.model.dtype))  # the type of floats only


def check_finite(prompt: FramePrompt, logits: FloatArray) -> FloatArray | PlauditError:
    """The logits of all observed frames; an error where one is not a number."""
    bad = prompt.frame_indices[~np.isfinite(logits)]
    if len(bad):
        return JudgeError(
            f"the model's answer at frame {bad[0]} is not a number ({len(bad)} in all); try dtype: float32"
        )
    return prompt.expand(logits)


@contextmanager
def memory_errors(device: torch.device) -> Iterator[None]:
    """Out of memory as an error of this episode."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        advice = "set a frame_stride, fewer cameras or a smaller image_size"
        raise JudgeError(f"its frames do not fit into the memory of {device}; {advice}") from error
