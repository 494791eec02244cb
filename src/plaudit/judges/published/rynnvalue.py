"""RynnValue: the seconds that remain until the task is done, as a distribution over bins.

    <task, two questions> [frame] <value> x 8 [frame] <relative_value> x 8 <value> x 8 ...

The hidden states of the repeated tokens lie side by side as the input of the head. Each group of equal tokens is a
slot: its tokens see each other in both directions and everything before except other slots, and nothing sees them.
All counts come from config.json and processor_config.json; the defaults of the original code are other ones.

A prompt with the wrong task was trained towards a uniform distribution. So a high entropy says that the video does not
show the task, and the episode is out of distribution.
"""

import math
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from plaudit.errors import BadFile, JudgeError
from plaudit.files import Root, brief, read_json_object
from plaudit.judges.published.clip import Clip
from plaudit.judges.published.config import RynnValueConfig
from plaudit.judges.published.frames import even_frames, fit_pixels, pixel_limits, shrink_longest
from plaudit.judges.published.judge import Picture, Reader
from plaudit.judges.published.tree import Query
from plaudit.judges.published.weights import PublishedModel, load_published
from plaudit.judges.vlm.chat_template import IntArray
from plaudit.judges.vlm.images import Size
from plaudit.types import FloatArray

DELTA_QUESTION = "Question: For each frame after the first, what is the time delta from the previous frame?"
VALUE_QUESTION = "Question: Estimate the minimum remaining time in seconds until the agent completes the task."
LONGEST = 640  # pixels, upstream
STYLE = "interleaved_history"
_ACTIVATIONS = {"relu": F.relu, "gelu": F.gelu, "silu": F.silu, "tanh": torch.tanh, "leaky_relu": F.leaky_relu}


class RynnValueReader(Reader):
    """Prompts, heads and bins of RynnValue."""

    parts = ("protocol", "max_frames", "robot", "view", "done_within_s", "horizon_s", "max_entropy")

    def __init__(self, config: RynnValueConfig, model: PublishedModel | None = None):
        """model: one that is loaded; None: that of the config's folder"""
        folder = Path(config.model)
        options = {"device": config.device, "dtype": config.dtype, "attention": config.attention}
        own = read_json_object(folder / "config.json", Root(folder)) if (folder / "config.json").is_file() else {}
        inner = own.get("model_config") if isinstance(own.get("model_config"), dict) else own
        by_words = isinstance(inner, dict) and "value_head_config" in inner and inner["value_head_config"] is None
        heads = () if by_words else ("value_heads",)
        super().__init__(config, model or load_published(folder, heads, base=config.base, **options))
        self.folder, described = folder, self.model.described
        self.value, self.relative = self.token("<value>"), self.token("<relative_value>")
        for name, token in (("value_token_id", self.value), ("relative_value_token_id", self.relative)):
            if described.get(name) not in (None, token):
                raise BadFile(folder, f"its {name} is {brief(described[name])}, and its tokenizer has {token}")
        processor = _processor_settings(folder, config.base)
        self.repeats = [
            _same_count(folder, name, described, processor)
            for name in ("value_token_repeat", "relative_value_token_repeat")
        ]
        if processor.get("conversation_style", STYLE) != STYLE:
            raise BadFile(folder, f"its conversation_style is {brief(processor['conversation_style'])}, not '{STYLE}'")
        self._about = _about(config, bool(processor.get("use_meta", False)))
        attention = described.get("attn_implementation", "pred_slot_isolated_eager")
        self.isolated = (self.value, self.relative) if attention == "pred_slot_isolated_eager" else ()
        self.cut_after = self.value
        self.least, self.most = pixel_limits(folder, config.base)
        self.centers, self.symlog = _bins(folder, described.get("value_tokenizer_config"))
        self.centers = self.centers.to(self.model.model.device)
        self._heads = [self._load_head(name) for name in self._head_names()] if heads else [self._rows_of_words()]
        self._prompt = lru_cache(maxsize=64)(self._render)

    def query(self, clip: Clip, last: int) -> Query:
        frames = even_frames(last, self.config.max_frames)
        sizes = self.sizes(clip.size)
        pictures = tuple(Picture(clip.number, (one,), sizes) for one in frames)
        return Query(self._prompt(clip.task, len(frames)), pictures, reads=self.repeats[0])

    def sizes(self, size: Size) -> tuple[Size, ...]:
        """What a frame is resized to."""
        first = (shrink_longest(size, LONGEST),) if self.config.protocol == "upstream" else ()
        try:
            return (*first, fit_pixels(first[0] if first else size, self.least, self.most))
        except ValueError as error:
            raise JudgeError(str(error)) from None

    def _render(self, task: str, frames: int) -> IntArray:
        """The tokens up to the last frame's slot."""
        texts = [*self._about, f"The agent is performing the following task: {task}.", DELTA_QUESTION, VALUE_QUESTION]
        content: list[dict[str, Any]] = [{"type": "text", "text": text} for text in texts]
        for number in range(frames):
            content.append({"type": "image"})
            content += [{"type": "text", "text": "<relative_value>"}] * (self.repeats[1] if number else 0)
            content += [{"type": "text", "text": "<value>"}] * self.repeats[0]
        ids = self.tokens(self.chat(content))
        places = (ids == self.value).nonzero()[0]
        if len(places) != frames * self.repeats[0]:
            raise JudgeError(f"the chat template of {self.folder} shows {len(places)} value tokens for {frames} frames")
        return ids[: places[-1] + 1]

    def decode(self, hidden: Tensor) -> Tensor:
        """[Q, 3] remaining seconds, the probability that little remains, and the entropy as a share of the largest."""
        side_by_side = hidden.float().flatten(1)
        probs = torch.stack([head(side_by_side) for head in self._heads]).softmax(-1)  # [heads, Q, bins]
        values = self._seconds(probs @ self.centers).mean(0)
        soon = self._seconds(self.centers) <= self.config.done_within_s
        entropy = -(probs * probs.clamp_min(1e-12).log()).sum(-1).mean(0) / math.log(len(self.centers))
        return torch.stack([values, probs[..., soon].sum(-1).mean(0), entropy], dim=1)

    def scores(self, values: FloatArray) -> tuple[FloatArray, FloatArray | None, str]:
        seconds, prob, entropy = values.T
        horizon, mean = self.config.horizon_s, float(entropy.mean())
        ood = ""
        if mean > self.config.max_entropy:
            ood = f"the distribution over remaining time is nearly uniform ({mean:.0%} of the largest entropy)"
        progress = (1 - seconds / horizon).clip(0, 1) if horizon else None
        return prob.clip(0, 1), progress, ood

    def _seconds(self, x: Tensor) -> Tensor:
        return x.sign() * x.abs().expm1() if self.symlog else x

    # Heads

    def _head_names(self) -> list[str]:
        numbers = sorted({int(key.split(".")[0]) for key in self.model.head("value_heads")})
        said = self.model.described.get("num_value_heads", 1)
        if numbers != list(range(len(numbers))) or len(numbers) != said:
            raise BadFile(self.folder, f"config.json says {brief(said)} value heads, and the weights have {numbers}")
        return [f"value_heads.{number}.proj" for number in numbers]

    def _load_head(self, name: str) -> Any:
        tensors, described = self.model.head(name), self.model.described.get("value_head_config")
        settings: dict[str, Any] = described if isinstance(described, dict) else {}
        kind = settings.get("head_type", "linear")
        width = self.model.model.config.text_config.hidden_size * self.repeats[0]
        try:
            if kind == "linear":
                shapes = {"": (len(self.centers), width)}
                head = _LinearHead(tensors)
            elif kind == "bro":
                head = _BroHead(tensors, settings.get("activation", "relu"))
                inner = tensors["input_layer.weight"].shape[0]
                shapes = {"input_layer.": (inner, width), "final_layer.": (len(self.centers), inner)}
            else:
                raise BadFile(self.folder, f"its value_head_config has the head_type {brief(kind)}, not linear or bro")
            for part, shape in shapes.items():
                if tuple(tensors[f"{part}weight"].shape) != shape:
                    raise BadFile(
                        self.folder,
                        f"its {name}.{part}weight is {list(tensors[f'{part}weight'].shape)}, and {list(shape)} fits "
                        f"{self.repeats[0]} repeated tokens and {len(self.centers)} bins",
                    )
            head(torch.zeros(1, width, device=self.model.model.device))
        except (KeyError, RuntimeError) as error:
            raise BadFile(self.folder, f"its {name} is not complete ({str(error).splitlines()[0]})") from error
        return head

    def _rows_of_words(self) -> Any:
        """Without a head of its own, the bins are the last rows of the language head."""
        if self.repeats[0] != 1:
            raise BadFile(self.folder, f"it has no value head, and {self.repeats[0]} repeated tokens need one")
        rows = self.model.model.lm_head.weight[-len(self.centers) :].float()
        return lambda x: F.linear(x, rows)


class _LinearHead:
    def __init__(self, tensors: dict[str, Tensor]):
        self._tensors = tensors

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self._tensors["weight"], self._tensors["bias"])


class _BroHead:
    """A residual network with normalizations; its depth is that of its tensors."""

    def __init__(self, tensors: dict[str, Tensor], activation: str):
        if activation not in _ACTIVATIONS:
            raise JudgeError(f"its value head has the activation {brief(activation)}; known: {', '.join(_ACTIVATIONS)}")
        self._tensors, self._act = tensors, _ACTIVATIONS[activation]
        self._depth = len({key.split(".")[1] for key in tensors if key.startswith("blocks.")})

    def __call__(self, x: Tensor) -> Tensor:
        x = self._act(self._norm(self._linear(x, "input_layer"), "input_norm"))
        for number in range(self._depth):
            block = f"blocks.{number}."
            inner = self._act(self._norm(self._linear(x, block + "fc1"), block + "ln1"))
            x = x + self._norm(self._linear(inner, block + "fc2"), block + "ln2")
        return self._linear(x, "final_layer")

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self._tensors[f"{name}.weight"], self._tensors[f"{name}.bias"])

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], self._tensors[f"{name}.weight"], self._tensors[f"{name}.bias"])


# What the files say


def _processor_settings(folder: Path, base: str) -> dict[str, Any]:
    path = folder / "processor_config.json"
    if not path.is_file():
        raise BadFile(folder, "it has no processor_config.json, which says how often the value tokens repeat")
    return read_json_object(path, Root(folder))


def _same_count(folder: Path, name: str, described: Any, processor: dict[str, Any]) -> int:
    """How often a token repeats, which the model and the processor must agree on."""
    counts = {described.get(name), processor.get(name)} - {None}
    if len(counts) != 1 or not isinstance(count := counts.pop(), int) or not 1 <= count <= 64:
        both = f"config.json: {brief(described.get(name))}, processor_config.json: {brief(processor.get(name))}"
        raise BadFile(folder, f"its {name} is not one number ({both})")
    return count


def _about(config: RynnValueConfig, uses: bool) -> list[str]:
    """What the prompt says about the robot and the camera."""
    said = [
        *([f"The agent is {config.robot}."] if config.robot else []),
        *([f"The observation is captured from {config.view}."] if config.view else []),
    ]
    if uses and not said:
        raise JudgeError(
            f"{config.model} was trained with a description of the robot and the camera; set robot= and view=, like "
            "robot='a single-arm Franka robot' view='a third-person camera'"
        )
    if said and not uses:
        raise JudgeError(
            f"{config.model} was trained without descriptions of robot and camera; leave out robot and view"
        )
    return [" ".join(said)] if said else []


def _bins(folder: Path, settings: Any) -> tuple[Tensor, bool]:
    """Centers of the bins, and whether they are symmetric logarithms."""
    if not isinstance(settings, dict) or not {"bins", "support_transform"} <= set(settings):
        raise BadFile(folder, "config.json does not describe the bins (value_tokenizer_config)")
    kind, count = settings["support_transform"], settings["bins"]
    ends: list[Any] = [settings.get(name) for name in ("min_value", "max_value")]
    if not isinstance(count, int) or not 2 <= count <= 65536:
        raise BadFile(folder, f"its value_tokenizer_config has {brief(count)} bins")
    if kind == "quantile":
        edges = settings.get("bin_edges")
        if (
            not isinstance(edges, list)
            or len(edges) != count + 1
            or not all(isinstance(e, int | float) and abs(e) < 1e9 for e in edges)
        ):
            raise BadFile(folder, f"its bin_edges are not {count + 1} numbers")
        edges = torch.tensor(edges, dtype=torch.float32)
        if not edges.isfinite().all() or (edges.diff() <= 0).any():
            raise BadFile(folder, "its bin_edges do not rise")
        return (edges[:-1] + edges[1:]) / 2, False
    if kind not in ("linear", "symlog") or not all(isinstance(end, int | float) and abs(end) < 1e9 for end in ends):
        raise BadFile(folder, f"its bins are {brief(kind)} from {brief(ends[0])} to {brief(ends[1])}")
    low, high = (torch.tensor(float(end)) for end in ends)
    if kind == "symlog":
        low, high = (end.sign() * end.abs().log1p() for end in (low, high))
    return torch.linspace(float(low), float(high), count), kind == "symlog"
