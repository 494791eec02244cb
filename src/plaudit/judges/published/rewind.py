"""ReWiND: a small causal transformer over the task and up to 16 frames.

    for each frame: the prefix that ends there, evenly thinned out to max_length frames, or its last frame repeated
    features of DINOv2 per frame, mean of MiniLM's tokens for the task
    progress = what the head says at the last place

The checkpoint is a pickle of `argparse.Namespace` and tensors. It is read without running code. The class token of the
file takes no part in the network.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from plaudit.data.weights import read_torch
from plaudit.errors import BadFile, JudgeError, import_extra
from plaudit.files import Root, brief
from plaudit.judges.published import small
from plaudit.judges.published.clip import Clip
from plaudit.judges.published.config import RewindConfig
from plaudit.types import ByteArray, Episode, FloatArray

HEADS = 8  # of attention; no file says it
PIXELS = 224  # of an edge, cut from the middle without resizing
MAX_LENGTH = 4096


class RewindNetwork(nn.Module):
    """Task and frames through one causal transformer."""

    def __init__(self, tensors: Mapping[str, Tensor], path: Path):
        super().__init__()
        width, images = small.shape_of(tensors, "video_proj.weight", path)
        self.video_proj = nn.Linear(images, width)
        self.text_proj = nn.Linear(small.shape_of(tensors, "text_proj.weight", path)[1], width)
        self.first_pos_embed = nn.Parameter(torch.zeros(1, width))
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.transformer = small.encoder_of(tensors, "transformer", HEADS, path)
        inner = small.shape_of(tensors, "progress_head.0.weight", path)[0]
        self.progress_head = nn.Sequential(
            nn.Linear(width, inner), nn.LayerNorm(inner), nn.GELU(), nn.Dropout(0.1), nn.Linear(inner, 1), nn.Sigmoid()
        )
        small.fill(self, tensors, path)

    def forward(self, images: Tensor, text: Tensor) -> Tensor:
        """[B] progress at the last of the frames [B, L, V], for a task [E]."""
        frames = self.video_proj(images)
        frames = torch.cat([frames[:, :1] + self.first_pos_embed, frames[:, 1:]], dim=1)
        tokens = torch.cat([self.text_proj(text).expand(len(frames), 1, -1), frames], dim=1)
        causal = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        return self.progress_head(self.transformer(tokens, mask=causal)[:, -1])[:, 0]


class Rewind(small.SmallModel):
    """ReWiND's network over DINOv2 and MiniLM."""

    parts = ()
    layout = "upstream"

    def __init__(self, config: RewindConfig):
        super().__init__(config)
        path = Path(config.model)
        if not path.is_file():
            raise JudgeError(f"{path} is not a file. Nothing is downloaded: fetch ReWiND's checkpoint (.pth) first")
        tree = read_torch(path, Root.of_named_file(path))
        tensors = tree.get("model_state_dict") if isinstance(tree, dict) else None
        arguments = tree.get("args") if isinstance(tree, dict) else None
        if not isinstance(tensors, dict) or not all(isinstance(one, Tensor) for one in tensors.values()):
            raise BadFile(path, "it has no model_state_dict of tensors; this is no checkpoint of ReWiND")
        length = arguments.get("max_length") if isinstance(arguments, dict) else None
        if type(length) is not int or not 0 < length <= MAX_LENGTH:
            raise BadFile(path, f"its args have max_length {brief(length)}; this is no checkpoint of ReWiND")
        self.length = length
        self._network = RewindNetwork(tensors, path).to(self.device)
        self._dino = small.load_encoder("Dinov2Model", config.base, "DINOv2 (facebook/dinov2-base)").to(self.device)
        minilm = "MiniLM (sentence-transformers/all-MiniLM-L12-v2)"
        self._minilm = small.load_encoder("BertModel", config.text_model, minilm).to(self.device)
        self._tokenizer = import_extra("transformers", "vlm").AutoTokenizer.from_pretrained(
            config.text_model, local_files_only=True
        )
        for name, wide, model in (
            ("images", self._network.video_proj.in_features, self._dino),
            ("text", self._network.text_proj.in_features, self._minilm),
        ):
            if model.config.hidden_size != wide:
                raise BadFile(
                    path, f"it reads {name} as {wide} numbers, and the encoder gives {model.config.hidden_size}"
                )
        self.fingerprint = small.fingerprint_weights(tensors, config.base, config.text_model)

    def encode_text(self, text: str) -> Tensor:
        given = self._tokenizer([text], return_tensors="pt", truncation=True).to(self.device)
        mask = given["attention_mask"][..., None].float()
        return ((self._minilm(**given).last_hidden_state * mask).sum(1) / mask.sum(1))[0]

    def encode_images(self, frames: ByteArray) -> Tensor:
        pixels = small.normalize(small.center_crop(frames, PIXELS), (0.5,) * 3, (0.5,) * 3).to(self.device)
        return self._dino(pixel_values=pixels).last_hidden_state[:, 0]

    def progress(self, clip: Clip, episode: Episode) -> FloatArray:
        windows = np.stack([prefix_frames(int(last), self.length) for last in clip.shown])  # [F, L]
        images = self.images(clip.frames, windows.reshape(-1).tolist()).view(*windows.shape, -1)
        text = self.text(clip.task)
        parts = [self._network(part, text) for part in images.split(small.BATCH)]
        return torch.cat(parts).cpu().numpy()


def prefix_frames(last: int, length: int) -> np.ndarray:
    """Frames of the prefix that ends at `last`: evenly thinned out, rounded down, or the last one repeated.

    >>> prefix_frames(2, 5).tolist(), prefix_frames(9, 4).tolist()
    ([0, 1, 2, 2, 2], [0, 3, 6, 9])
    """
    if last < length:
        return np.minimum(np.arange(length), last)
    return np.linspace(0, last, length).astype(int)


def build_judge(config: RewindConfig) -> small.SmallJudge:
    """The judge of a config, with its networks loaded."""
    return small.SmallJudge(config, Rewind(config))
