"""The reward classifier: does this frame show success?

    image -> encoder -> feature map [C, h, w] -> spatial learned embeddings -> Linear, LayerNorm, Tanh -> embedding [D]
    embeddings of all cameras (and of some frames before, and the state) --> Linear, LayerNorm, ReLU, Linear --> logit

The shape is SERL's (arXiv 2401.16013). All cameras share one encoder, frozen or trained with the rest. The three stages
are methods of their own: the feature maps of a frozen encoder are computed once and trained on many times, and a robot
with a short history keeps the embeddings of the last frames instead of encoding them again.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from plaudit.config import Config, Edge, Width
from plaudit.errors import JudgeError
from plaudit.judges.classifier.encoders import Channels, SplitEncoder, feature_map_size, normalize
from plaudit.judges.images import Resampling, resize_images
from plaudit.registry import ENCODER_REGISTRY

Size = tuple[Edge, Edge]  # height, width


class NetworkConfig(Config):
    """The size of the network, and what it sees and predicts besides the newest images."""

    encoder: Annotated[Any, ENCODER_REGISTRY.field]
    image_size: Size | None = None  # (height, width) that frames are resized to; None: as they are
    hidden_dim: Width = 256
    latent_dim: Width = 256  # of the embedding of one camera's image
    num_spatial_blocks: Width = 8  # embeddings of each channel
    dropout: float = Field(default=0.1, ge=0, lt=1)
    num_history_frames: int = Field(default=0, ge=0, le=1000)  # frames before this one that it sees too
    history_stride: int = Field(default=1, ge=1, le=10_000)  # steps between them; as many embeddings are kept
    predict_progress: bool = False  # whether it also predicts how far the task has come, for shaping
    predict_success: bool = True  # False: progress alone, learned from successes (training.py)
    # Whether the grid is averaged to one cell first, as the recipes do with `use_pretrain: false`.
    global_pool_features: bool = False
    # What comes after the encoder: SERL's embeddings and head; or, of the averaged grid, Linear, ReLU, Linear ("mlp")
    # or a single Linear ("linear"), as RLinf's ResNet has it.
    head: Literal["serl", "mlp", "linear"] = "serl"

    @model_validator(mode="after")
    def _judges_single_frames_of_progress(self) -> Self:
        if self.predict_success:
            return self
        if not self.predict_progress:
            raise ValueError("predict_success=false leaves nothing to learn; set predict_progress=true")
        if self.num_history_frames:
            raise ValueError("progress alone is learned from single frames; set num_history_frames=0")
        return self


class ClassifierConfig(NetworkConfig):
    """Everything needed to build the network."""

    cameras: dict[str, Size]  # the frames that come in
    state_dim: int = Field(default=0, ge=0, le=65_536)  # of the robot's state that it also sees; 0: none
    # Whether the first part of the encoder is frozen and the rest learns. The grid between the two is then cached.
    freeze_stem: bool = False
    # Of models that were trained elsewhere. Frames of any size are taken: resized where `image_size` is set, as they
    # are where it is not.
    any_size: bool = False
    resampling: Resampling = "antialias"  # how frames are resized
    # Mean and deviation of each camera's pixels, 0 to 255, in place of the encoder's own.
    pixel_stats: dict[str, tuple[Channels, Channels]] | None = None

    @model_validator(mode="after")
    def _averaged(self) -> Self:
        if self.any_size and self.image_size is None and not self.global_pool_features:
            raise ValueError("any_size takes an image_size or an averaged grid: a kernel pools grids of one size")
        if self.pixel_stats is not None and set(self.pixel_stats) != set(self.cameras):
            raise ValueError(f"pixel_stats is of {sorted(self.pixel_stats)}, the cameras are {sorted(self.cameras)}")
        if self.head != "serl" and (not self.global_pool_features or self.freeze_stem):
            raise ValueError(f"head '{self.head}' takes an averaged grid; set global_pool_features, not freeze_stem")
        return self

    @property
    def num_frames(self) -> int:
        """Frames that it sees of each camera: this one and its history."""
        return 1 + self.num_history_frames

    @property
    def outputs(self) -> int:
        """Logits of a frame: of success first, of progress last."""
        return self.predict_success + self.predict_progress

    @property
    def history_span(self) -> int:
        """Frames before the newest that its history reaches back."""
        return self.num_history_frames * self.history_stride


def module_name(camera: str) -> str:
    """A camera's name as that of a module, which cannot have dots."""
    return camera.replace(".", "/")


class SpatialLearnedEmbeddings(nn.Module):
    """F weighted sums over the grid, learned for each channel: [B, C, h, w] to [B, C * F]."""

    def __init__(self, channels: int, grid: tuple[int, int], features: int):
        super().__init__()
        cells = grid[0] * grid[1]
        spread = 1 / math.sqrt(channels * cells)  # lecun normal, as flax counts the fan-in of this kernel
        self.kernel = nn.Parameter(torch.randn(channels, *grid, features) * spread)

    def forward(self, x: Tensor) -> Tensor:
        channels, cells = x.shape[1], x.shape[2] * x.shape[3]
        # One small product a channel: [C, B, cells] x [C, cells, F].
        sums = x.reshape(len(x), channels, cells).transpose(0, 1) @ self.kernel.reshape(channels, cells, -1)
        return sums.transpose(0, 1).reshape(len(x), -1)


class BinaryRewardClassifier(nn.Module):
    """Frames in, one logit each out."""

    pixel_mean: Tensor  # [3] the encoder's
    pixel_std: Tensor
    state_mean: Tensor  # [S]
    state_std: Tensor

    def __init__(self, config: ClassifierConfig, encoder: Any = None):
        """encoder: the module, where it is there already; None: as its config builds it"""
        super().__init__()
        self.config = config
        self._frozen = False
        self.encoder: Any = config.encoder.build() if encoder is None else encoder
        self.register_buffer("pixel_mean", torch.tensor(self.encoder.mean), persistent=False)
        self.register_buffer("pixel_std", torch.tensor(self.encoder.std), persistent=False)
        self._cameras = sorted(config.cameras)
        self.squeezes = nn.ModuleDict({module_name(c): self._camera_head(config.cameras[c]) for c in self._cameras})
        width = (config.latent_dim if config.head == "serl" else self.encoder.channels) * len(config.cameras)
        self.feel = None
        if config.state_dim:
            self.register_buffer("state_mean", torch.zeros(config.state_dim))
            self.register_buffer("state_std", torch.ones(config.state_dim))
            self.feel = nn.Sequential(nn.Linear(config.state_dim, 64), nn.LayerNorm(64), nn.Tanh())
            width += 64
        self.head = self._head(width * config.num_frames)

    def _head(self, inputs: int) -> nn.Module:
        config, outputs = self.config, self.config.outputs
        if config.head == "linear":
            return nn.Sequential(nn.Linear(inputs, outputs))
        if config.head == "mlp":
            hidden = nn.Linear(inputs, config.hidden_dim)
            return nn.Sequential(hidden, nn.ReLU(), nn.Dropout(config.dropout), nn.Linear(config.hidden_dim, outputs))
        return nn.Sequential(
            nn.Linear(inputs, config.hidden_dim),
            nn.Dropout(config.dropout),
            nn.LayerNorm(config.hidden_dim),
            nn.ReLU(),
            nn.Linear(config.hidden_dim, outputs),
        )

    def _camera_head(self, size: Size) -> nn.Module:
        config, encoder = self.config, self.encoder
        if config.head != "serl":
            return nn.Flatten()
        grid = (1, 1) if config.global_pool_features else feature_map_size(encoder, config.image_size or size)
        return nn.Sequential(
            SpatialLearnedEmbeddings(encoder.channels, grid, config.num_spatial_blocks),
            nn.Dropout(config.dropout),
            nn.Linear(encoder.channels * config.num_spatial_blocks, config.latent_dim),
            nn.LayerNorm(config.latent_dim),
            nn.Tanh(),
        )

    def freeze_encoder(self) -> None:
        """Freeze the encoder, or its first part where it is split, and its running statistics."""
        self._frozen = True
        self.encoder.requires_grad_(False)
        for module in self._learning():
            module.requires_grad_(True)
        self.train(self.training)

    def _learning(self) -> list[nn.Module]:
        """The modules of a frozen encoder that still learn."""
        encoder: SplitEncoder = self.encoder
        return encoder.head_modules() if self.config.freeze_stem else []

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if self._frozen:
            self.encoder.eval()
            for module in self._learning():
                module.train(mode)
        return self

    def encode(self, images: Tensor, camera: str) -> Tensor:
        """Pixels [B, H, W, 3], 0 to 255, to the encoder's grid [B, C, h, w], or to the one in its middle."""
        encoder: Any = self.encoder
        if self.config.image_size is not None:
            images = resize_images(images, self.config.image_size, self.config.resampling)
        mean, std = self.pixel_mean, self.pixel_std
        if self.config.pixel_stats is not None:
            mean, std = torch.tensor(self.config.pixel_stats[camera], device=mean.device)
        x = normalize(images, mean, std).to(self._encoder_type)
        return encoder.stem(x) if self.config.freeze_stem else self._averaged(encoder(x))

    @property
    def _encoder_type(self) -> torch.dtype:
        """Half precision in a model that only runs, on a GPU."""
        return next(self.encoder.parameters()).dtype

    def _averaged(self, grid: Tensor) -> Tensor:
        grid = grid.float()
        return grid.mean(dim=(2, 3), keepdim=True) if self.config.global_pool_features else grid

    def embed(self, grids: Mapping[str, Tensor], state: Tensor | None = None) -> Tensor:
        """The embedding of one frame of all cameras, [B, D], of their feature maps and the state [B, S]."""
        if self.config.freeze_stem:
            dtype = self._encoder_type
            grids = {camera: self._averaged(self.encoder.head(grid.to(dtype))) for camera, grid in grids.items()}
        parts = [self.squeezes[module_name(camera)](grids[camera]) for camera in self._cameras]
        if self.feel is not None:
            if state is None:
                raise JudgeError(f"this model sees {self.config.state_dim} numbers of the robot's state; give them")
            parts.append(self.feel((state - self.state_mean) / self.state_std))
        return torch.cat(parts, dim=-1)

    def classify(self, embeddings: Tensor) -> Tensor:
        """Logits [B, 1], or [B, 2] of success and progress, of embeddings [B, num_frames, D], the newest first."""
        return self.head(embeddings.flatten(1))

    def forward(self, images: Mapping[str, Tensor], state: Tensor | None = None) -> Tensor:
        """Logits [B, 1] or [B, 2] of pixels, camera -> [B, H, W, 3]; with a history [B, num_frames, H, W, 3]."""
        if self.config.num_frames > 1:
            images = {camera: pixels.flatten(0, 1) for camera, pixels in images.items()}
            state = None if state is None else state.flatten(0, 1)
        embeddings = self.embed({camera: self.encode(pixels, camera) for camera, pixels in images.items()}, state)
        return self.classify(embeddings.unflatten(0, (-1, self.config.num_frames)))
