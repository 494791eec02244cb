"""A published reward model as a judge: one prompt for every prefix of an episode, all in one pass.

    for each episode: the frames that are scored; for each of them the prompt about the prefix that ends there
    while prompts are left:
        as many as max_batch_tokens allows, as a tree (tree.py)
        out of memory? half as many, from now on

The definition of a score is one call for its prefix alone, so a score depends on no later frame. Frames between those
that are scored keep the score before. (Rejected: the linear interpolation of published scripts, which uses later ones.)
"""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from plaudit.errors import JudgeError, PlauditError
from plaudit.judges.published.clip import Clip, identify, make_clip, probabilities, spread
from plaudit.judges.published.config import PublishedConfig
from plaudit.judges.published.frames import resize
from plaudit.judges.published.tree import PromptTree, Query
from plaudit.judges.published.weights import PublishedModel
from plaudit.judges.vlm.chat_template import IntArray
from plaudit.judges.vlm.images import TOKEN, Size
from plaudit.judges.vlm.qwen3_vl import Decoder, Features, Vision, attend_by, attention_on
from plaudit.types import Episode, FloatArray, Scores

READERS = {
    "robometer": "plaudit.judges.published.robometer:RobometerReader",
    "rynnvalue": "plaudit.judges.published.rynnvalue:RynnValueReader",
    "roboreward": "plaudit.judges.published.words:RoboRewardReader",
    "topreward": "plaudit.judges.published.words:TopRewardReader",
}


@dataclass(frozen=True)
class Picture:
    """What the tokens of one image stand for: a frame, or two of a video."""

    clip: int
    frames: tuple[int, ...]
    sizes: tuple[Size, ...]  # to which it is resized, one after the other

    @property
    def grid(self) -> Size:
        """Rows and columns of tokens."""
        return self.sizes[-1][0] // TOKEN, self.sizes[-1][1] // TOKEN


class Reader(ABC):
    """What one model is asked, and what its answers mean."""

    warnings: tuple[str, ...] = ()
    isolated: tuple[int, ...] = ()  # tokens that no other token sees
    cut_after: int  # the token after which a prompt may go on in several ways
    parts: ClassVar[tuple[str, ...]]  # keys of the config that change the scores

    def __init__(self, config: Any, model: PublishedModel):
        self.config, self.model = config, model

    @abstractmethod
    def query(self, clip: Clip, last: int) -> Query:
        """The prompt about the prefix that ends at this frame."""

    @abstractmethod
    def decode(self, hidden: Tensor) -> Tensor:
        """[Q, k] values from the hidden states that were read, [Q, reads, D], after the last normalization."""

    @abstractmethod
    def scores(self, values: FloatArray) -> tuple[FloatArray, FloatArray | None, str]:
        """P(success), progress and why the episode is out of distribution, from [F, k] values of an episode."""

    def read(self, engine: "TreeEngine", queries: Sequence[Query], clips: Mapping[int, Clip]) -> Tensor:
        """[Q, k] values of these prompts."""
        return self.decode(engine.hidden(queries, clips))

    def token(self, word: str) -> int:
        """The id of a token that is one by itself."""
        ids = self.model.tokenizer(word, add_special_tokens=False)["input_ids"]
        if len(ids) != 1:
            raise JudgeError(f"the tokenizer of {self.config.model} has no single token for {word!r}: another model's")
        return ids[0]

    def tokens(self, text: str) -> IntArray:
        """A text as tokens."""
        return np.array(self.model.tokenizer(text, add_special_tokens=False)["input_ids"], np.int64)

    def chat(self, content: list[dict[str, Any]], **options: Any) -> str:
        """One user turn in the model's own words."""
        return self.model.tokenizer.apply_chat_template(
            [{"role": "user", "content": content}],
            chat_template=self.model.template,
            tokenize=False,
            **{"add_generation_prompt": False, **options},
        )


class TreeEngine:
    """Runs prompts through a model, shared beginnings once."""

    def __init__(self, model: Any, attention: str, cut_after: int, isolated: Sequence[int], compiled: bool = False):
        """model: a `Qwen3VLForConditionalGeneration`"""
        self.model, self.device = model, model.device
        self._attend = attend_by(attention_on(self.device, attention))  # type: ignore[arg-type]
        self._vision = Vision(model.model.visual, self._attend, compiled)
        self._decoder = Decoder(model, (), (), self._attend, compiled)
        self._image_ids = frozenset({model.config.image_token_id, model.config.video_token_id})
        self._cut_after, self._isolated = cut_after, frozenset(isolated)

    def tree(self) -> PromptTree:
        """An empty one."""
        return PromptTree(lambda picture: picture.grid, self._image_ids, self._cut_after, self._isolated)

    @torch.no_grad()
    def hidden(self, queries: Sequence[Query], clips: Mapping[int, Clip]) -> Tensor:
        """[Q, reads, D] hidden states of the last tokens, after the last normalization."""
        tree = self.tree()
        for query in queries:
            tree.add(query)
        rows, features = self.encode(tree.images, clips)  # a GPU works on it while the tree is packed
        packed = tree.pack()
        read = self._decoder.read(
            self._to_device(packed.ids)[None],
            self._to_device(packed.positions)[:, None],
            self._to_device(packed.places),
            Features(features.first[rows], [deep[rows] for deep in features.deep]),
            self._to_device(np.concatenate(packed.reads)),
            packed.attention(self._attend, self.device),
        )
        return read.unflatten(0, (len(queries), -1))

    def pixels(self, pictures: Sequence[Picture], clips: Mapping[int, Clip]) -> list[Tensor]:
        """uint8 [n, h, w, 3] of the first frames of n pictures of one size, and of the second ones of videos."""
        wanted: dict[tuple[int, tuple[Size, ...]], set[int]] = defaultdict(set)
        for one in pictures:
            wanted[one.clip, one.sizes].update(one.frames)
        seen: dict[tuple[int, tuple[Size, ...], int], Tensor] = {}
        for (clip, sizes), frames in wanted.items():
            images = self._to_device(np.stack([clips[clip].frames[frame] for frame in frames]))
            seen |= {(clip, sizes, frame): image for frame, image in zip(frames, resize(images, sizes), strict=True)}
        times = range(len(pictures[0].frames))
        return [torch.stack([seen[one.clip, one.sizes, one.frames[time]] for one in pictures]) for time in times]

    def encode(self, pictures: Sequence[Any], clips: Mapping[int, Clip]) -> tuple[Tensor, Features]:
        """Features of each distinct picture, and which of them stand for the pictures in order."""
        groups: dict[tuple[Size, int], list[Picture]] = defaultdict(list)
        for picture in dict.fromkeys(pictures):
            groups[picture.sizes[-1], len(picture.frames)].append(picture)
        seen, first, begin = [], {}, 0
        for group in groups.values():
            seen.append(self._vision(*self.pixels(group, clips)))
            for picture in group:
                first[picture], begin = begin, begin + picture.grid[0] * picture.grid[1]
        rows = [first[picture] + np.arange(picture.grid[0] * picture.grid[1]) for picture in pictures]
        deep = [torch.cat(parts) for parts in zip(*(one.deep for one in seen), strict=True)]
        return self._to_device(np.concatenate(rows)), Features(torch.cat([one.first for one in seen]), deep)

    def _to_device(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(values).to(self.device, non_blocking=True)


class PublishedJudge:
    """A `Judge`. It is causal, but too slow to be asked while a robot moves."""

    trained_on = ""

    def __init__(self, config: PublishedConfig, reader: Reader, model: PublishedModel):
        self.config, self.reader, self.rule = config, reader, config.resolved().rule
        self.warnings = reader.warnings
        self.engine = TreeEngine(model.model, config.attention, reader.cut_after, reader.isolated, config.compile)
        self.max_batch_tokens = config.max_batch_tokens
        facts = (model.layout, model.fingerprint, str(model.model.dtype))
        self.uncalibrated, self.id, self._calibration = identify(config, reader.parts, *facts)

    def score(self, episodes: Sequence[Episode]) -> Sequence[Scores | PlauditError]:
        """Every frame of each episode, many prompts in one pass."""
        answers: dict[int, Scores | PlauditError] = {}
        clips: dict[int, Clip] = {}
        waiting: list[tuple[int, Query]] = []
        for number, episode in enumerate(episodes):
            try:
                clip = make_clip(self.config, number, episode)
                queries = [self.reader.query(clip, int(frame)) for frame in clip.shown]
            except PlauditError as error:
                answers[number] = error
                continue
            clips[number] = clip
            waiting += [(number, query) for query in queries]
        values: dict[int, list[FloatArray]] = {number: [] for number in clips}
        while waiting:
            batch = self._batch(waiting)
            read = self._read([query for _, query in batch], clips)
            if read is None and len(batch) > 1:
                self.max_batch_tokens = max(1, self._tokens(batch) // 2)
                continue
            for place, (number, _) in enumerate(batch):
                if read is not None:
                    values[number].append(read[place])
                else:
                    answers[number] = JudgeError(
                        f"one prefix does not fit into the memory of {self.engine.device}; show fewer or smaller frames"
                    )
            del waiting[: len(batch)]
            waiting = [item for item in waiting if item[0] not in answers]
        for number, clip in clips.items():
            if number not in answers:
                answers[number] = self._scores(clip, episodes[number], np.stack(values[number]))
        return [answers[number] for number in range(len(episodes))]

    def _batch(self, waiting: Sequence[tuple[int, Query]]) -> Sequence[tuple[int, Query]]:
        alone = (len(query.ids) + sum(rows * columns for rows, columns in _grids(query)) for _, query in waiting)
        if sum(alone) <= self.max_batch_tokens:  # even if nothing were shared
            return waiting
        tree = self.engine.tree()
        for count, (_, query) in enumerate(waiting):
            tree.add(query)
            if tree.tokens > self.max_batch_tokens:
                return waiting[: max(1, count)]
        return waiting

    def _tokens(self, batch: Sequence[tuple[int, Query]]) -> int:
        tree = self.engine.tree()
        for _, query in batch:
            tree.add(query)
        return tree.tokens

    def _read(self, queries: Sequence[Query], clips: Mapping[int, Clip]) -> FloatArray | None:
        """None where memory was not enough."""
        with suppress(torch.OutOfMemoryError):
            return self.reader.read(self.engine, queries, clips).float().cpu().numpy()
        torch.cuda.empty_cache()  # the failed pass is no longer held by its exception
        return None

    def _scores(self, clip: Clip, episode: Episode, values: FloatArray) -> Scores | PlauditError:
        bad = clip.shown[~np.isfinite(values).all(axis=1)]
        if len(bad):
            return JudgeError(f"the model's answer at frame {bad[0]} is not a number ({len(bad)} in all); try float32")
        prob, progress, ood = self.reader.scores(values)
        return Scores(
            spread(episode, clip, probabilities(self._calibration, prob)),
            None if progress is None else spread(episode, clip, progress),
            ood=ood,
        )


def _grids(query: Query) -> list[Size]:
    return [picture.grid for picture in query.images]  # type: ignore[attr-defined]


def build_judge(config: Any) -> PublishedJudge:
    """The judge of a config, with its model loaded."""
    module, name = READERS[config.type].split(":")
    reader_class: Callable[..., Reader] = getattr(import_module(module), name)
    reader = reader_class(config)
    return PublishedJudge(config, reader, reader.model)
