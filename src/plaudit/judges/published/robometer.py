"""Robometer: progress and success of each frame, by two heads on a token behind the frame.

    <prompt> Picture 1: [frame] <|prog_token|> Picture 2: [frame] <|prog_token|> ...

Progress is the mean of a softmax over bins from 0 to 1, or one sigmoid; which of them follows from the head's shape.
The heads read the hidden states after the last normalization. In transformers 4.57, `hidden_states[-1]` of the model
with a language head is the state before it, and gives other numbers without an error.
"""

from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from plaudit.errors import BadFile, JudgeError
from plaudit.judges.published.clip import Clip
from plaudit.judges.published.config import RobometerConfig
from plaudit.judges.published.frames import even_frames, fit_pixels, fixed_frames, shrink_longest
from plaudit.judges.published.judge import Picture, Reader
from plaudit.judges.published.tree import Query
from plaudit.judges.published.weights import PublishedModel, load_published
from plaudit.judges.vlm.chat_template import IntArray
from plaudit.judges.vlm.images import TOKEN, Size
from plaudit.types import FloatArray

TOKENS = ("<|split_token|>", "<|reward_token|>", "<|pref_token|>", "<|sim_token|>", "<|prog_token|>")  # as trained
PROMPT = (
    "The task for the robot is '{task}'. Given the trajectory video, predict the task progress at each frame, how far "
    "along the robot is towards completing the task, a float between 0 and 1, where 0 is the starting state and 1 is "
    "when the task is completed. If the robot is not performing the same task, predict 0 progress."
)
FRAMES = {"upstream": 8, "lerobot": 4}  # of a prefix
LONGEST = 480  # pixels, upstream
LEAST, MOST = 4 * TOKEN**2, 16384 * TOKEN**2  # pixels, of qwen-vl-utils


class RobometerReader(Reader):
    """Prompts and heads of Robometer."""

    parts = ("protocol", "max_frames")

    def __init__(self, config: RobometerConfig, model: PublishedModel | None = None):
        """model: one that is loaded; None: that of the config's folder"""
        options = {"device": config.device, "dtype": config.dtype, "attention": config.attention}
        folder = Path(config.model)
        heads = ("progress_head", "success_head")
        super().__init__(config, model or load_published(folder, heads, base=config.base, tokens=TOKENS, **options))
        width = self.model.model.config.text_config.hidden_size
        self._progress, self._success = (_head(folder, name, self.model.head(name), width) for name in heads)
        self.bins = len(self._progress["4.weight"])
        if len(self._success["4.weight"]) != 1:
            raise BadFile(folder, f"its success_head has {len(self._success['4.weight'])} outputs, not one")
        self.cut_after = self.token("<|prog_token|>")
        self._count = config.max_frames or FRAMES[config.protocol]
        self._prompt = lru_cache(maxsize=64)(self._render)

    def query(self, clip: Clip, last: int) -> Query:
        choose = even_frames if self.config.protocol == "upstream" else fixed_frames
        frames = choose(last, self._count)
        sizes = self.sizes(clip.size)
        return Query(self._prompt(clip.task, len(frames)), tuple(Picture(clip.number, (one,), sizes) for one in frames))

    def sizes(self, size: Size) -> tuple[Size, ...]:
        """What a frame is resized to."""
        first = (shrink_longest(size, LONGEST),) if self.config.protocol == "upstream" else ()
        try:
            return (*first, fit_pixels(first[0] if first else size, LEAST, MOST))
        except ValueError as error:
            raise JudgeError(str(error)) from None

    def _render(self, task: str, frames: int) -> IntArray:
        """The tokens up to the last frame's."""
        content = [{"type": "text", "text": PROMPT.format(task=task)}]
        for _ in range(frames):
            content += [{"type": "image"}, {"type": "text", "text": "<|prog_token|>"}]
        ids = self.tokens(self.chat(content, add_vision_id=True, enable_thinking=False, fps=1))
        places = (ids == self.cut_after).nonzero()[0]
        if len(places) != frames:
            raise JudgeError(
                f"the chat template of {self.config.model} shows {len(places)} of {frames} progress tokens"
            )
        return ids[: places[-1] + 1]

    def decode(self, hidden: Tensor) -> Tensor:
        """[Q, 2] progress and P(success)."""
        hidden = hidden[:, 0].float()
        bins = _run_head(self._progress, hidden)
        if self.bins == 1:
            progress = bins[:, 0].sigmoid()
        else:
            progress = bins.softmax(1) @ torch.linspace(0, 1, self.bins, device=bins.device)
        return torch.stack([progress, _run_head(self._success, hidden)[:, 0].sigmoid()], dim=1)

    def scores(self, values: FloatArray) -> tuple[FloatArray, FloatArray | None, str]:
        return values[:, 1], values[:, 0].clip(0, 1), ""


def _head(folder: Path, name: str, tensors: dict[str, Tensor], width: int) -> dict[str, Tensor]:
    """The tensors of a head whose shapes fit each other."""
    needed = [f"{layer}.{part}" for layer in (0, 1, 4) for part in ("weight", "bias")]
    if missing := [key for key in needed if key not in tensors]:
        raise BadFile(folder, f"its {name} lacks {missing[0]}; copy the folder again")
    inner, outputs = tensors["0.weight"].shape[0], tensors["4.weight"].shape[0]
    shapes = ((inner, width), (inner,), (inner,), (inner,), (outputs, inner), (outputs,))
    for key, shape in zip(needed, shapes, strict=True):
        if tuple(tensors[key].shape) != shape:
            raise BadFile(folder, f"its {name}.{key} is {list(tensors[key].shape)}, and {list(shape)} fits the model")
    return tensors


def _run_head(head: dict[str, Tensor], x: Tensor) -> Tensor:
    x = F.linear(x, head["0.weight"], head["0.bias"])
    x = F.layer_norm(x, x.shape[-1:], head["1.weight"], head["1.bias"])
    return F.linear(F.gelu(x), head["4.weight"], head["4.bias"])
