"""SARM as LeRobot has it: a network says which stage a frame shows, another one how far that stage is.

    for each frame: a window of 9 frames, 4 before it and 4 after it, frame_gap apart
    features of CLIP, the task by CLIP, the normalized state        three streams, flattened stream by stream
    stage network -> the likeliest stage -> a fourth stream of the second network -> share of the stage
    progress = start of the stage + share of the stage * its part of the task

The window reaches into the future, and attention is causal only over the flattened streams: every score of a window
depends on its later frames. So this is a judge of recorded episodes. The score of a frame is that of the middle of its
window, as in LeRobot's own script. (`calculate_rewards` reads the last place by default, four frames later.)
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from plaudit.data.weights import read_safetensors
from plaudit.errors import BadFile, JudgeError, import_extra
from plaudit.files import Root, brief, read_json_object
from plaudit.judges.published import small
from plaudit.judges.published.clip import Clip
from plaudit.judges.published.config import SarmConfig
from plaudit.types import ByteArray, Episode, FloatArray

WEIGHTS, PROCESSOR = "model.safetensors", "policy_preprocessor.json"
CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
_DAMAGED = "this is no sound safetensors file ({}); copy the folder again"


class StreamNetwork(nn.Module):
    """Streams of image, task, state and perhaps stage through one transformer; a head for each annotation scheme."""

    def __init__(self, tensors: Mapping[str, Tensor], heads: int, path: Path):
        super().__init__()
        self.width, images = small.shape_of(tensors, "visual_proj.weight", path)
        self.lang_proj = nn.Linear(small.shape_of(tensors, "lang_proj.weight", path)[1], self.width)
        self.visual_proj = nn.Linear(images, self.width)
        self.state_proj = nn.Linear(small.shape_of(tensors, "state_proj.weight", path)[1], self.width)
        self.transformer = small.encoder_of(tensors, "transformer", heads, path)
        self.first_pos = nn.Parameter(torch.zeros(1, self.width))
        fused = small.shape_of(tensors, "fusion_backbone.1.weight", path)[1]
        self.streams = fused // self.width
        self.fusion_backbone = nn.Sequential(nn.LayerNorm(fused), nn.Linear(fused, self.width), nn.ReLU())
        outputs = {name: small.shape_of(tensors, f"heads.{name}.weight", path)[0] for name in ("sparse", "dense")}
        self.heads = nn.ModuleDict({name: nn.Linear(self.width, count) for name, count in outputs.items()})
        small.fill(self, tensors, path)

    def forward(self, images: Tensor, text: Tensor, state: Tensor, stage: Tensor | None, head: str) -> Tensor:
        """[B, W, outputs] from images [B, W, V], text [E], state [B, W, S] and stage [B, W, stages]."""
        batch, window = images.shape[:2]
        first = torch.zeros(window, 1, device=images.device)
        first[0] = 1
        streams = [self.visual_proj(images) + first * self.first_pos]
        streams += [self.lang_proj(text).expand(batch, window, -1), self.state_proj(state)]
        if stage is not None:
            streams.append(nn.functional.pad(stage, (0, self.width - stage.shape[-1])))
        tokens = torch.cat(streams, dim=1)  # stream by stream: the task's tokens see the images of the whole window
        causal = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        hidden = self.transformer(tokens, mask=causal).view(batch, len(streams), window, self.width)
        return self.heads[head](self.fusion_backbone(hidden.transpose(1, 2).flatten(2)))


class Sarm(small.SmallModel):
    """SARM's two networks over CLIP."""

    parts = ("head",)
    layout = "lerobot"

    def __init__(self, config: SarmConfig):
        super().__init__(config)
        folder = Path(config.model)
        if not (folder / WEIGHTS).is_file():
            raise JudgeError(f"{folder} has no {WEIGHTS}. Nothing is downloaded here: fetch the model's folder first")
        own, root = read_json_object(folder / "config.json", Root(folder)), Root(folder)
        tensors = read_safetensors(folder / WEIGHTS, _DAMAGED, root)
        heads = _count(own, "num_heads", folder)
        self._half, self._gap = _count(own, "n_obs_steps", folder) // 2, _count(own, "frame_gap", folder)
        networks = []
        for name, streams in (("stage_model", 3), ("subtask_model", 4)):
            inner = {key[len(name) + 1 :]: value for key, value in tensors.items() if key.startswith(name + ".")}
            if not inner:
                raise BadFile(folder, f"it has no trained {name}, so its scores would be random; this is another model")
            network = StreamNetwork(inner, heads, folder).to(self.device)
            if network.streams != streams:
                raise BadFile(folder, f"its {name} has {network.streams} streams; with one camera it has {streams}")
            networks.append(network)
        self._stage, self._share = networks
        self._starts = torch.tensor(_stage_starts(own, config.head, self._stage, folder), device=self.device)
        self._state = _statistics(folder, own)
        self._clip = small.load_encoder("CLIPModel", config.base, "CLIP (openai/clip-vit-base-patch32)").to(self.device)
        self._tokenizer = import_extra("transformers", "vlm").AutoTokenizer.from_pretrained(
            config.base, local_files_only=True
        )
        if (width := self._clip.config.projection_dim) != self._stage.visual_proj.in_features:
            raise BadFile(
                folder, f"it reads features of {self._stage.visual_proj.in_features} numbers; this CLIP gives {width}"
            )
        self.fingerprint = small.fingerprint_weights(tensors, config.base)
        ahead = self._half * self._gap
        self.warnings = (f"SARM looks up to {ahead} frames ahead, so its scores are those of finished episodes",)

    def encode_text(self, text: str) -> Tensor:
        given = self._tokenizer([text], return_tensors="pt", truncation=True).to(self.device)
        return self._clip.text_projection(self._clip.text_model(**given).pooler_output)[0]

    def encode_images(self, frames: ByteArray) -> Tensor:
        size = self._clip.config.vision_config.image_size
        frames = small.center_crop(small.resize_shortest(frames, size), size)
        pixels = small.normalize(frames, CLIP_MEAN, CLIP_STD).to(self.device)
        return self._clip.visual_projection(self._clip.vision_model(pixel_values=pixels).pooler_output)

    def progress(self, clip: Clip, episode: Episode) -> FloatArray:
        offsets = self._gap * np.arange(-self._half, self._half + 1)
        windows = np.clip(clip.shown[:, None] + offsets, 0, len(clip.frames) - 1)  # [F, W]
        images = self.images(clip.frames, windows.reshape(-1).tolist()).view(*windows.shape, -1)
        states = self._states(episode)[torch.from_numpy(windows)]
        parts = [
            self._windows(*part, self.text(clip.task))
            for part in zip(images.split(small.BATCH), states.split(small.BATCH), strict=True)
        ]
        return torch.cat(parts).cpu().numpy()

    def _windows(self, images: Tensor, states: Tensor, text: Tensor) -> Tensor:
        """[B] progress in the middle of each window."""
        head = self.config.head
        stage = self._stage(images, text, states, None, head).argmax(-1)
        count = len(self._starts) - 1
        share = self._share(images, text, states, nn.functional.one_hot(stage, count).float(), head).sigmoid()[..., 0]
        start, end = self._starts[stage], self._starts[stage + 1]
        return (start + share * (end - start))[:, self._half].clamp(0, 1)

    def _states(self, episode: Episode) -> Tensor:
        """[R, S] normalized states, padded with zeros or cut to the width of the network."""
        state = torch.from_numpy(np.array(episode.state[episode.observed], np.float32))
        if self._state is not None:
            mean, std = self._state
            if len(mean) != state.shape[1]:
                raise JudgeError(
                    f"the model was trained with {len(mean)} state values; this episode has {state.shape[1]}"
                )
            state = (state - mean) / (std + 1e-8)
        width = self._stage.state_proj.in_features
        return nn.functional.pad(state[:, :width], (0, max(0, width - state.shape[1]))).to(self.device)


def _count(own: Mapping[str, Any], key: str, folder: Path) -> int:
    value = own.get(key)
    if type(value) is not int or not 0 < value <= 100_000:
        raise BadFile(folder / "config.json", f"{key} is {brief(value)}; copy the folder again")
    return value


def _stage_starts(own: Mapping[str, Any], head: str, network: StreamNetwork, folder: Path) -> list[float]:
    """Progress at the start of each stage and at the end of the last, by the mean share of each stage in the task."""
    if head == "dense" and own.get("annotation_mode") == "single_stage":
        raise BadFile(folder, "its dense head was never trained (annotation_mode single_stage); use head=sparse")
    layer: Any = network.heads[head]
    count = int(layer.out_features)
    shares = own.get(f"{head}_temporal_proportions")
    if shares is None:
        shares = [1.0] * count
    if isinstance(shares, dict):
        shares = list(shares.values())
    sound = isinstance(shares, list) and all(isinstance(one, int | float) and 0 <= one <= 1e6 for one in shares)
    if not sound or len(shares) != count or not sum(shares):
        raise BadFile(
            folder, f"its {head} head has {count} stages, and {head}_temporal_proportions are {brief(shares)}"
        )
    return [0.0, *(np.cumsum(shares) / sum(shares)).tolist()[:-1], 1.0]


def _statistics(folder: Path, own: Mapping[str, Any]) -> tuple[Tensor, Tensor] | None:
    """Mean and standard deviation of the state, as saved with the model; None if it is not normalized.

    Statistics of the data set that is scored would change the scores with the data set.
    """
    mode = (own.get("normalization_mapping") or {}).get("STATE", "MEAN_STD")
    if mode == "IDENTITY":
        return None
    if mode != "MEAN_STD":
        raise BadFile(folder, f"its state is normalized by {brief(mode)}; MEAN_STD and IDENTITY are supported")
    if not (folder / PROCESSOR).is_file():
        raise BadFile(folder, f"it has no {PROCESSOR} with the statistics of the state; save it with its processors")
    steps, root = read_json_object(folder / PROCESSOR, Root(folder)).get("steps"), Root(folder)
    name = next((one.get("state_file") for one in steps or () if isinstance(one, dict) and one.get("state_file")), None)
    key = own.get("state_key", "observation.state")
    saved = read_safetensors(root.inside(name), _DAMAGED, root) if isinstance(name, str) else {}
    if f"{key}.mean" not in saved or f"{key}.std" not in saved:
        raise BadFile(folder, f"its processors have no statistics of {brief(key)}; save it with its processors")
    return saved[f"{key}.mean"].float().flatten(), saved[f"{key}.std"].float().flatten()


def build_judge(config: SarmConfig) -> small.SmallJudge:
    """The judge of a config, with its networks loaded."""
    return small.SmallJudge(config, Sarm(config))
