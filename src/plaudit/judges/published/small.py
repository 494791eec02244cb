"""What small reward models share: networks by the shapes of their files, frozen encoders, and the judge.

    weights.safetensors or .pth -> network        counts of layers, stages and widths come from the tensors
    folder of CLIP, DINOv2 or MiniLM -> encoder   a class of transformers, every one of whose weights is in the folder

These models see features of frozen encoders, which their folders do not contain. So a user names the encoder's folder,
and it is part of the judge's fingerprint.
"""

import hashlib
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from plaudit.data.weights import fitting, numbers_at_most, read_safetensors, read_torch
from plaudit.devices import resolve_device
from plaudit.errors import BadFile, JudgeError, PlauditError, import_extra
from plaudit.files import Root, brief, read_json_object
from plaudit.judges.published.clip import Clip, identify, make_clip, probabilities, spread
from plaudit.judges.published.config import PublishedConfig
from plaudit.judges.vlm.loading import fingerprint_of
from plaudit.types import ByteArray, Episode, FloatArray, Scores

BATCH = 64  # images or windows at a time
_DAMAGED = "this is no sound safetensors file ({}); copy it again from its source"


def count_layers(tensors: Mapping[str, Tensor], prefix: str, path: Path) -> int:
    """How many layers of a transformer a file holds, from 0 on without a gap."""
    numbers = {int(match[1]) for name in tensors if (match := re.match(rf"{re.escape(prefix)}\.layers\.(\d+)\.", name))}
    if not numbers or numbers != set(range(len(numbers))):
        raise BadFile(path, f"it has no layers {prefix}.layers.0 and so on; this is another model")
    return len(numbers)


def encoder_of(tensors: Mapping[str, Tensor], prefix: str, heads: int, path: Path) -> nn.TransformerEncoder:
    """A transformer without weights, as large as those of the file."""
    layers, first = count_layers(tensors, prefix, path), f"{prefix}.layers.0.linear1.weight"
    if first not in tensors or tensors[first].ndim != 2:
        raise BadFile(path, f"it has no {first}; this is another model")
    inner, width = tensors[first].shape
    if width % heads:
        raise BadFile(path, f"its {heads} attention heads do not divide its width of {width}")
    layer = nn.TransformerEncoderLayer(width, heads, inner, batch_first=True)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


def shape_of(tensors: Mapping[str, Tensor], name: str, path: Path) -> tuple[int, ...]:
    """Of a matrix of the file."""
    if name not in tensors or tensors[name].ndim != 2 or not tensors[name].numel():
        raise BadFile(path, f"it has no trained {name}, so its scores would be random; this is another model")
    return tuple(tensors[name].shape)


def fill(module: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Load all weights of a module; an error if one is missing, unknown, of another shape, or no number."""
    wanted = module.state_dict()
    for name in sorted(set(wanted) ^ set(tensors)):
        what = "missing, so its scores would be random" if name in wanted else "unknown"
        raise BadFile(path, f"{brief(name)} is {what}; this is another model")
    for name, tensor in tensors.items():
        if tensor.shape != wanted[name].shape:
            raise BadFile(
                path, f"{brief(name)} is {list(tensor.shape)}, and {list(wanted[name].shape)} fits the others"
            )
        if not tensor.isfinite().all():
            raise BadFile(path, f"{brief(name)} holds values that are no numbers; copy the file again")
    module.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
    module.eval().requires_grad_(False)


def load_encoder(kind: str, folder: str, what: str) -> Any:
    """A frozen encoder from its folder. kind: a class of transformers; what: the model, for the message"""
    place = Path(folder)
    if not folder or not (place / "config.json").is_file():
        raise JudgeError(
            f"{what} is not in {folder or 'any folder that was named'}. Fetch it first and name its folder"
        )
    transformers, root = import_extra("transformers", "vlm"), Root(place)
    safe, torch_file = place / "model.safetensors", place / "pytorch_model.bin"
    tensors = read_safetensors(safe, _DAMAGED, root) if safe.is_file() else read_torch(torch_file, root)
    if not isinstance(tensors, dict) or not all(isinstance(one, Tensor) for one in tensors.values()):
        raise BadFile(place, "its weights are not tensors by name; fetch the folder again")
    model_class = getattr(transformers, kind)
    try:
        config = model_class.config_class.from_dict(read_json_object(place / "config.json", root))
        with numbers_at_most(fitting(tensor.shape for tensor in tensors.values()), place / "config.json"):
            model, report = model_class.from_pretrained(  # by names: versions of transformers rename the weights
                None, config=config, state_dict=tensors, dtype=torch.float32, output_loading_info=True
            )
    except (TypeError, ValueError, KeyError, AttributeError, RuntimeError, ZeroDivisionError) as error:
        reason = str(error).splitlines()[0][:200]
        raise BadFile(place, f"its config.json and its weights are not {what} ({reason}); fetch it again") from error
    if missing := sorted(name for name in report["missing_keys"] if not name.startswith("pooler.")):  # which is unused
        raise BadFile(place, f"{brief(missing[0])} is missing: these are not the weights of {what}")
    return model.eval().requires_grad_(False)


def center_crop(frames: ByteArray, size: int) -> ByteArray:
    """[N, size, size, 3] from the middle; black where a frame is smaller."""
    height, width = frames.shape[1:3]
    if height < size or width < size:
        rows, columns = max(0, size - height), max(0, size - width)
        halves = [(0, 0), (rows // 2, rows - rows // 2), (columns // 2, columns - columns // 2), (0, 0)]
        frames = np.pad(frames, halves)
        height, width = frames.shape[1:3]
    top, left = round((height - size) / 2), round((width - size) / 2)
    return frames[:, top : top + size, left : left + size]


def resize_shortest(frames: ByteArray, size: int) -> ByteArray:
    """Resized so that the shorter edge has `size` pixels, by the bicubic filter of PIL."""
    height, width = frames.shape[1:3]
    scale = size / min(height, width)
    new = (size, int(size * width / height)) if height <= width else (int(size * height / width), size)
    if scale == 1:
        return frames
    pictures = (Image.fromarray(frame).resize((new[1], new[0]), Image.Resampling.BICUBIC) for frame in frames)
    return np.stack([np.asarray(picture) for picture in pictures])


def normalize(frames: ByteArray, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """float32 [N, 3, H, W]"""
    values = torch.from_numpy(np.ascontiguousarray(frames)).permute(0, 3, 1, 2).float() / 255
    return (values - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)


class EpisodeModel(ABC):
    """A model that is asked about one episode at a time."""

    warnings: tuple[str, ...] = ()
    layout: str  # of its files
    fingerprint: str  # of all weights that it uses
    parts: ClassVar[tuple[str, ...]]  # keys of the config that change the scores

    @abstractmethod
    def progress(self, clip: Clip, episode: Episode) -> FloatArray:
        """[F] progress from 0 to 1 of the frames that are scored."""


class SmallModel(EpisodeModel):
    """A network over frozen features, of one published kind."""

    def __init__(self, config: Any):
        self.config, self.device = config, resolve_device(config.device)
        self._texts: dict[str, Tensor] = {}

    @abstractmethod
    def encode_text(self, text: str) -> Tensor:
        """[E] features of a task."""

    @abstractmethod
    def encode_images(self, frames: ByteArray) -> Tensor:
        """[N, V] features of frames."""

    def text(self, task: str) -> Tensor:
        """[E] features of a task, computed once."""
        if task not in self._texts:
            self._texts[task] = self.encode_text(task)
        return self._texts[task]

    def images(self, frames: ByteArray, rows: Sequence[int]) -> Tensor:
        """[N, V] features of these frames, each computed once."""
        wanted, places = np.unique(rows, return_inverse=True)
        parts = [self.encode_images(frames[wanted[start : start + BATCH]]) for start in range(0, len(wanted), BATCH)]
        return torch.cat(parts)[torch.from_numpy(places.reshape(-1))]


class SmallJudge:
    """A `Judge` of whole recorded episodes."""

    trained_on = ""

    def __init__(self, config: PublishedConfig, model: EpisodeModel):
        self.config, self.model, self.rule = config, model, config.resolved().rule
        self.warnings = model.warnings
        self.uncalibrated, self.id, self._calibration = identify(config, model.parts, model.layout, model.fingerprint)

    def score(self, episodes: Sequence[Episode]) -> Sequence[Scores | PlauditError]:
        """Each episode alone: its features are most of the work."""
        return [self._score(number, episode) for number, episode in enumerate(episodes)]

    @torch.no_grad()
    def _score(self, number: int, episode: Episode) -> Scores | PlauditError:
        try:
            clip = make_clip(self.config, number, episode)
            progress = self.model.progress(clip, episode)
        except PlauditError as error:
            return error
        if not np.isfinite(progress).all():
            return JudgeError(f"the model's answer at frame {clip.shown[~np.isfinite(progress)][0]} is not a number")
        success = spread(episode, clip, probabilities(self._calibration, progress))
        return Scores(success, spread(episode, clip, progress))


def fingerprint_weights(tensors: Mapping[str, Tensor], *folders: str) -> str:
    """Of the tensors of a network, and of the folders of its encoders."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {list(tensor.shape)}".encode())
        digest.update(tensor.contiguous().view(torch.uint8).numpy().data if math.prod(tensor.shape) else b"")
    for folder in folders:
        digest.update(fingerprint_of(Path(folder), "").encode())
    return digest.hexdigest()
