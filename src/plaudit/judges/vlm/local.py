"""A Qwen3-VL in this process. All frames of an episode are scored in one pass, and many episodes together.

    wait = all that can be asked about, longest first
    while wait:
        score as many as the token budget holds      # about the same length, so little is filled up
        out of memory? half as many, from now on     # one alone that does not fit gets an error

An episode that fails keeps its error; the others go on.
"""

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from plaudit.errors import JudgeError, PlauditError
from plaudit.judges.vlm.attention import attend_by, attention_on
from plaudit.judges.vlm.config import VlmConfig
from plaudit.judges.vlm.decoder import Decoder
from plaudit.judges.vlm.images import PATCH, Size, patches, resized, size_of
from plaudit.judges.vlm.layout import IntArray, Layout, Writer, image
from plaudit.judges.vlm.loading import Loaded, device_on, load_model
from plaudit.judges.vlm.prompt import FORMS, Asked, Reasoned, answer_of, ask, asked_words, reasoning
from plaudit.judges.vlm.vision import Features, Vision
from plaudit.types import AnyArray, Episode, FloatArray


@dataclass(frozen=True, eq=False)
class Job:
    """An episode that can be asked about."""

    number: int  # its place in the list
    asked: Asked
    sizes: Sequence[Size]  # of its cameras' images, as the model sees them
    layout: Layout


class LocalScorer:
    """A `Backend` of `VlmJudge`. Build with `load`, or of a model that is there."""

    source = "vlm"

    def __init__(self, config: VlmConfig, loaded: Loaded):
        self.config, self.model = config, loaded.model
        self.device: torch.device = loaded.model.device
        self.budget = config.token_budget
        self._tokenizer = loaded.tokenizer
        self._writer = Writer(loaded.tokenizer, loaded.template)
        attend = attend_by(attention_on(self.device, config.attention))
        yes, no = (_tokens(loaded.tokenizer, word) for word in ("yes", "no"))
        self.vision = Vision(loaded.model.model.visual, attend, config.compile)
        self.decoder = Decoder(loaded.model, yes, no, attend, config.compile)
        facts = [loaded.fingerprint, str(loaded.model.dtype), asked_words(config)]
        self.fingerprint = hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]
        on_cpu = config.device == "auto" and self.device.type == "cpu"
        self.notes: tuple[str, ...] = (
            ("torch sees no CUDA GPU here, so the model runs on the processor",) if on_cpu else ()
        )

    @classmethod
    def load(cls, config: VlmConfig) -> Self:
        device = device_on(config.device)
        usual = torch.bfloat16 if device.type == "cuda" else torch.float32
        dtype: torch.dtype = usual if config.dtype == "auto" else getattr(torch, config.dtype)
        return cls(config, load_model(config, device, dtype))

    def score(self, episodes: Sequence[Episode]) -> Sequence[FloatArray | PlauditError]:
        said: dict[int, FloatArray | PlauditError] = {}
        waiting: list[Job] = []
        for number, episode in enumerate(episodes):
            try:
                waiting.append(self.job(number, episode))
            except PlauditError as error:
                said[number] = error
        waiting.sort(key=lambda job: job.layout.tokens, reverse=True)
        while waiting:
            longest = waiting[0].layout.tokens
            batch = waiting[: max(1, self.budget // longest)]
            scores = self._scores(batch)
            if scores is None and len(batch) > 1:
                self.budget = len(batch) // 2 * longest
                continue
            for place, job in enumerate(batch):
                said[job.number] = _too_large(job, self.device) if scores is None else _checked(job, scores[place])
            del waiting[: len(batch)]
        return [said[number] for number in range(len(episodes))]

    def job(self, number: int, episode: Episode) -> Job:
        asked = ask(self.config, episode)
        sizes = [size_of(images.shape, self.config.image_size) for images in asked.frames.values()]
        layout = self._writer.layout(asked, sizes)
        context: int = self.model.config.text_config.max_position_embeddings
        if layout.tokens > context:
            raise JudgeError(
                f"{asked.moments} frames make {layout.tokens:,} tokens, this model takes {context:,}; set a stride"
            )
        return Job(number, asked, sizes, layout)

    def _scores(self, batch: Sequence[Job]) -> list[FloatArray] | None:
        """Of each job's moments; None where memory was not enough."""
        try:
            said = self.forward(batch).cpu().numpy()
        except torch.OutOfMemoryError:
            said = None
        if said is None:  # out here, where the failed pass is no longer held by its exception
            torch.cuda.empty_cache()
            return None
        return np.split(said, np.cumsum([job.asked.moments for job in batch])[:-1])

    @torch.inference_mode()
    def forward(self, batch: Sequence[Job]) -> Tensor:
        """[A] log-odds of all moments of all jobs, one after the other."""
        ids, positions, answers = filled([job.layout for job in batch])
        features, places = self.look(batch, ids.shape[1])
        x = self.decoder.read(self._there(ids), self._there(positions), self._there(places), features)
        return self.decoder.log_odds(x, self._there(answers))

    def look(self, batch: Sequence[Job], length: int) -> tuple[Features, IntArray]:
        """Features of all frames, and which of the tokens each stands for; images of a size go together."""
        frames: dict[Size, list[Tensor]] = defaultdict(list)
        places: dict[Size, list[IntArray]] = defaultdict(list)
        for row, job in enumerate(batch):
            for camera, size, place in zip(job.asked.frames, job.sizes, job.layout.places, strict=True):
                frames[size].append(resized(self._there(job.asked.pictures(camera)), size))
                places[size].append(row * length + place.ravel())
        seen = [self.vision(torch.cat(images)) for images in frames.values()]
        deep = [torch.cat(parts) for parts in zip(*(features.deep for features in seen), strict=True)]
        return (
            Features(torch.cat([features.first for features in seen]), deep),
            np.concatenate([place for group in places.values() for place in group]),
        )

    def reason(self, episode: Episode) -> Reasoned:
        """Ask for words, about the last frame; for audits."""
        try:
            return answer_of(self._generate(ask(self.config, episode)))
        except PlauditError as error:
            return Reasoned("", None, str(error))
        except torch.OutOfMemoryError:
            return Reasoned("", None, f"its frames do not fit into the memory of {self.device}; set a stride")

    @torch.inference_mode()
    def _generate(self, asked: Asked) -> str:
        inputs = self.inputs(asked)
        written = self.model.generate(
            **inputs,
            generation_config=type(self.model.generation_config)(
                max_new_tokens=self.config.reason_tokens,
                do_sample=False,
                eos_token_id=self._tokenizer.eos_token_id,
                pad_token_id=self._tokenizer.pad_token_id,
            ),
        )
        return self._tokenizer.decode(written[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)

    def inputs(self, asked: Asked) -> dict[str, Tensor]:
        """Of transformers' own forward, for a chat that asks for words."""
        sizes = [size_of(images.shape, self.config.image_size) for images in asked.frames.values()]
        text = self._writer.render(reasoning(asked, self.config.reason_question, image))
        ids = self._there(self._writer.piece(text, sizes * asked.moments).ids)[None]
        pictures = [
            patches(resized(self._there(asked.pictures(camera)), size), self.model.dtype)
            for camera, size in zip(asked.frames, sizes, strict=True)
        ]
        grids = [(1, height // PATCH, width // PATCH) for height, width in sizes]
        return {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "mm_token_type_ids": (ids == self._writer.image_id).int(),
            "pixel_values": torch.cat([shot for moment in zip(*pictures, strict=True) for shot in moment]),
            "image_grid_thw": torch.tensor(grids * asked.moments).to(self.device),
        }

    def _there(self, values: AnyArray) -> Tensor:
        return torch.from_numpy(values).to(self.device, non_blocking=True)


def filled(layouts: Sequence[Layout]) -> tuple[IntArray, IntArray, IntArray]:
    """Token ids [B, L] and positions [3, B, L], filled up at their ends; answers [A], each a place among the B x L."""
    length = max(layout.tokens for layout in layouts)
    ids = np.zeros((len(layouts), length), np.int64)
    positions = np.zeros((3, len(layouts), length), np.int64)
    for row, layout in enumerate(layouts):
        ids[row, : layout.tokens] = layout.ids
        positions[:, row, : layout.tokens] = layout.positions
    return ids, positions, np.concatenate([row * length + layout.answers for row, layout in enumerate(layouts)])


def _tokens(tokenizer: Any, word: str) -> list[int]:
    """The single tokens that spell it."""
    spelled = [tokenizer(form, add_special_tokens=False)["input_ids"] for form in FORMS[word]]
    single = sorted({ids[0] for ids in spelled if len(ids) == 1})
    if not single:
        raise JudgeError(f"this model's tokenizer has no single token for '{word}', so its answer cannot be read")
    return single


def _checked(job: Job, log_odds: FloatArray) -> FloatArray | PlauditError:
    bad = np.flatnonzero(~np.isfinite(log_odds))
    if len(bad):
        frame = job.asked.shown[bad[0]]
        return JudgeError(
            f"the model's answer at frame {frame} is not a number ({len(bad)} in all); try dtype: float32"
        )
    return job.asked.held(log_odds)


def _too_large(job: Job, device: torch.device) -> JudgeError:
    return JudgeError(
        f"{job.asked.moments} frames ({job.layout.tokens:,} tokens) do not fit into the memory of {device}; "
        "set a stride, fewer cameras or a smaller image_size"
    )
