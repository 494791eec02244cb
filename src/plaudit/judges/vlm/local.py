"""A Qwen3-VL in this process. All frames of an episode are scored in one pass, and many episodes together.

    waiting = all episodes that can be scored, longest first
    while waiting:
        score as many as max_batch_tokens allows     # about the same length, so little is padding
        out of memory? half as many, from now on     # one alone that does not fit gets an error

An episode that fails keeps its error; the others go on. The forward is our own, about twice as fast as transformers'
(docs/results.md), which is used if a version of transformers names its modules differently.
"""

import logging
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from plaudit.errors import JudgeError, PlauditError
from plaudit.judges.vlm.adapter import load_adapted
from plaudit.judges.vlm.chat_template import ChatTemplate, IntArray, Layout, image
from plaudit.judges.vlm.config import VlmJudgeConfig
from plaudit.judges.vlm.images import PATCH, Size, patches, resize_frames, size_of
from plaudit.judges.vlm.judge import VlmBackend
from plaudit.judges.vlm.loading import LoadedVlm, load_description, load_vlm, unknown_part
from plaudit.judges.vlm.processor import LocalBackend, ProcessorBackend, check_finite
from plaudit.judges.vlm.prompt import FramePrompt, build_prompt, explanation_prompt
from plaudit.judges.vlm.qwen3_vl import Decoder, Features, Vision, attend_by, attention_on
from plaudit.types import AnyArray, Episode, FloatArray

_log = logging.getLogger(__name__)


def load_local_backend(config: VlmJudgeConfig) -> VlmBackend:
    """The model in this process, by our own forward where it is a Qwen3-VL, by transformers' where it is not."""
    if config.adapter:
        backend = Qwen3VLBackend(config, load_adapted(config))
    elif (reason := unknown_part(config.model, load_description(config))) is None:
        backend = Qwen3VLBackend(config, load_vlm(config))
    else:
        backend = ProcessorBackend(config, load_vlm(config, with_processor=True), reason)
    for warning in backend.warnings:
        _log.info("%s", warning)
    return backend


@dataclass(frozen=True, eq=False)
class PackedEpisode:
    """An episode as tokens and images."""

    number: int  # its place in the list
    prompt: FramePrompt
    layout: Layout


class Qwen3VLBackend(LocalBackend):
    """A `VlmBackend` of a Qwen3-VL in this process."""

    def __init__(self, config: VlmJudgeConfig, loaded: LoadedVlm):
        super().__init__(config, loaded)
        self.max_batch_tokens = config.max_batch_tokens
        self._chat_template = ChatTemplate(loaded.tokenizer, loaded.template)
        attend = attend_by(attention_on(self.device, config.attention))
        warnings = [*loaded.warnings]
        try:
            self.vision = Vision(loaded.model.model.visual, attend, config.compile)
            self.decoder = Decoder(loaded.model, self._yes, self._no, attend, config.compile)
            self._own_forward_known = True
        except AttributeError as error:  # of a module that this version of transformers calls otherwise
            warnings.append(f"this version of transformers is not known here ({error}), so its own forward is used")
            self._own_forward_known = False
        if config.device == "auto" and self.device.type == "cpu":
            warnings.append("torch sees no CUDA GPU here, so the model runs on the processor")
        self.warnings = tuple(warnings)

    def score(self, episodes: Sequence[Episode]) -> Sequence[FloatArray | PlauditError]:
        """The logit of success of each observed frame, many episodes in one pass."""
        answers: dict[int, FloatArray | PlauditError] = {}
        waiting: list[PackedEpisode] = []
        for number, episode in enumerate(episodes):
            try:
                waiting.append(self.pack(number, episode))
            except PlauditError as error:
                answers[number] = error
        waiting.sort(key=lambda packed: packed.layout.tokens, reverse=True)
        while waiting:
            longest = waiting[0]
            batch = waiting[: max(1, self.max_batch_tokens // longest.layout.tokens)]
            logits = self._logits(batch)
            if logits is None and len(batch) > 1:
                self.max_batch_tokens = len(batch) // 2 * longest.layout.tokens
                continue
            if logits is None:
                answers[longest.number] = JudgeError(
                    f"{longest.prompt.num_frames} frames ({longest.layout.tokens:,} tokens) do not fit into the memory "
                    f"of {self.device}; set a frame_stride, fewer cameras or a smaller image_size"
                )
            else:
                answers |= {p.number: check_finite(p.prompt, of) for p, of in zip(batch, logits, strict=True)}
            del waiting[: len(batch)]
        return [answers[number] for number in range(len(episodes))]

    def pack(self, number: int, episode: Episode) -> PackedEpisode:
        """An episode as tokens; an error where it is too long for the model."""
        return self.pack_prompt(number, build_prompt(self.config, episode))

    def pack_prompt(self, number: int, prompt: FramePrompt) -> PackedEpisode:
        """The same of its prompt."""
        layout = self._chat_template.layout(prompt, self.image_sizes(prompt))
        context: int = self.model.config.text_config.max_position_embeddings
        if layout.tokens > context:
            tokens = f"{prompt.num_frames} frames make {layout.tokens:,} tokens"
            raise JudgeError(f"{tokens}, this model takes {context:,}; set a frame_stride")
        return PackedEpisode(number, prompt, layout)

    def _logits(self, batch: Sequence[PackedEpisode]) -> list[FloatArray] | None:
        """Of each episode's frames; None where memory was not enough."""
        with suppress(torch.OutOfMemoryError), torch.no_grad():
            logits = self.forward(batch).cpu().numpy()
            return np.split(logits, np.cumsum([packed.prompt.num_frames for packed in batch])[:-1])
        torch.cuda.empty_cache()  # the failed pass is no longer held by its exception
        return None

    def forward(self, batch: Sequence[PackedEpisode]) -> Tensor:
        """[A] logits of all frames of all episodes, one after the other; with gradients, where something learns."""
        if not self._own_forward_known:
            return self._transformers_forward(batch)
        ids, positions, answers = pad_batch([packed.layout for packed in batch])
        features, places = self.encode_images(batch, ids.shape[1])
        tokens, at = self._to_device(ids), self._to_device(positions)
        read = self.decoder.read(tokens, at, self._to_device(places), features, self._to_device(answers))
        return self.decoder.yes_minus_no(read)

    def _transformers_forward(self, batch: Sequence[PackedEpisode]) -> Tensor:
        """The same by transformers, one episode after the other."""
        parts = [
            self.transformers_logits(
                self._inputs(packed.layout.ids, packed.prompt),
                self._to_device(packed.layout.answer_positions),
            )
            for packed in batch
        ]
        return torch.cat(parts)

    def encode_images(self, batch: Sequence[PackedEpisode], length: int) -> tuple[Features, IntArray]:
        """Features of all frames, and which of the tokens each stands for; images of a size go together."""
        frames: dict[torch.Size, list[Tensor]] = defaultdict(list)
        places: dict[torch.Size, list[IntArray]] = defaultdict(list)
        for row, packed in enumerate(batch):
            cameras = resize_frames(packed.prompt, self.config.image_size, self.device).values()
            for images, place in zip(cameras, packed.layout.image_positions, strict=True):
                frames[images.shape[1:3]].append(images)
                places[images.shape[1:3]].append(row * length + place.ravel())
        seen = [self.vision(torch.cat(images)) for images in frames.values()]
        deep = [torch.cat(parts) for parts in zip(*(features.deep for features in seen), strict=True)]
        return (
            Features(torch.cat([features.first for features in seen]), deep),
            np.concatenate([place for group in places.values() for place in group]),
        )

    def recompute_layers(self) -> bool:
        """In training, run layers again for the gradients instead of keeping what they made: a third more time, half of
        the memory; False where that is done already, or not known how."""
        if not self._own_forward_known or self.decoder.recompute:
            return False
        self.decoder.recompute = self.vision.recompute = True
        return True

    def explanation_inputs(self, prompt: FramePrompt) -> dict[str, Tensor]:
        """Of transformers' own forward, for a chat that asks for words."""
        text = self._chat_template.render(explanation_prompt(prompt, self.config.explain_prompt, image))
        tokens = self._chat_template.segment(text, self.image_sizes(prompt) * prompt.num_frames).ids
        return self._inputs(tokens, prompt)

    def image_sizes(self, prompt: FramePrompt) -> list[Size]:
        """Of the cameras' images, as the model sees them."""
        return [size_of(images.shape, self.config.image_size) for images in prompt.frames.values()]

    def _inputs(self, tokens: IntArray, prompt: FramePrompt) -> dict[str, Tensor]:
        """Of transformers' own forward: these tokens and the frames that are shown."""
        ids = self._to_device(tokens)[None]
        frames = resize_frames(prompt, self.config.image_size, self.device).values()
        cameras = [patches(images, self.model.dtype) for images in frames]
        grids = [(1, height // PATCH, width // PATCH) for height, width in self.image_sizes(prompt)]
        return {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "mm_token_type_ids": (ids == self._chat_template.image_id).int(),
            "pixel_values": torch.cat([image for frame in zip(*cameras, strict=True) for image in frame]),
            "image_grid_thw": torch.tensor(grids * prompt.num_frames).to(self.device),
        }

    def _to_device(self, values: AnyArray) -> Tensor:
        return torch.from_numpy(values).to(self.device, non_blocking=True)


def pad_batch(layouts: Sequence[Layout]) -> tuple[IntArray, IntArray, IntArray]:
    """Token ids [B, L] and positions [3, B, L], padded at their ends; answers [A], each a place among the B x L."""
    length = max(layout.tokens for layout in layouts)
    ids = np.zeros((len(layouts), length), np.int64)
    positions = np.zeros((3, len(layouts), length), np.int64)
    for row, layout in enumerate(layouts):
        ids[row, : layout.tokens] = layout.ids
        positions[:, row, : layout.tokens] = layout.positions
    answers = [row * length + layout.answer_positions for row, layout in enumerate(layouts)]
    return ids, positions, np.concatenate(answers)
