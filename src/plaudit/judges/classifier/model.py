"""The reward classifier: does this frame show success?

    image -> encoder -> feature map [C, h, w] -> spatial learned embeddings -> Linear, LayerNorm, Tanh -> embedding [D]
    embeddings of all cameras (and of some frames before, and the state) --> Linear, LayerNorm, ReLU, Linear --> logit

The shape is SERL's (arXiv 2401.16013). All cameras share one encoder, frozen or trained with the rest. The three stages
are methods of their own: the feature maps of a frozen encoder are computed once and trained on many times, and a robot
with a short history keeps the embeddings of the last frames instead of encoding them again.
"""

from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn

from plaudit.encoders import SpatialLearnedEmbeddings, SplitEncoder, feature_map_size, normalize, resize_images
from plaudit.errors import JudgeError
from plaudit.judges.classifier.config import ClassifierConfig, RewardTrainConfig, Size

GPU_MINI_BATCH = 256  # images of a camera that go through the encoder at a time on a GPU
# And on a CPU, which is no faster with more: 192x256 images take 0.8 GB with 32, 3.4 GB with 256.
CPU_MINI_BATCH = 32


def mini_batch(device: torch.device) -> int:
    """Images of a camera that go through the encoder at a time."""
    return GPU_MINI_BATCH if device.type == "cuda" else CPU_MINI_BATCH


def module_name(camera: str) -> str:
    """A camera's name as that of a module, which cannot have dots."""
    return camera.replace(".", "/")


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


def build_member(config: RewardTrainConfig, classifier: ClassifierConfig, number: int) -> BinaryRewardClassifier:
    """A member of the ensemble before its first step. An encoder that does not learn is the same in all of them."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed if config.frozen else config.member_seed(number))
        encoder = config.encoder.build()
        torch.manual_seed(config.member_seed(number))
        model = BinaryRewardClassifier(classifier, encoder)
    if config.frozen:
        model.freeze_encoder()
    return model
