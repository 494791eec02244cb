"""Image encoders of policies that were trained before the policy, frozen or fine-tuned.

    frozen = FrozenEncoder(config.encoder, cameras)
    features = frozen.encode({"front": frames})          # uint8 [N, H, W, 3] to f32 [N, ...], once for each frame

A frozen encoder turns a frame into features once. Acting and replay share the result, and updates read features
instead of pixels.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from plaudit.devices import allows_tf32
from plaudit.encoders import EncodedFrames, KeypointsEncoder, SpatialLearnedEmbeddings, features_of, normalize
from plaudit.errors import PolicyError
from plaudit.policies.config import CLONED, ImageEncoderConfig
from plaudit.types import ByteArray, FloatArray

KEYPOINT_WIDTHS = (16, 32, 32)  # channels of an encoder that is trained by cloning; the last is the keypoints'
SPATIAL_BLOCKS = 8  # weighted sums over the grid for each channel, as in HIL-SERL


class FrozenEncoder(nn.Module):
    """Encodes the images of each camera. `cloned` has a network per camera, all others share one."""

    def __init__(self, config: ImageEncoderConfig, cameras: Mapping[str, tuple[int, int]], *, pretrained: bool = True):
        """pretrained: False: random weights, to be loaded"""
        super().__init__()
        self.config, self.image_sizes = config, dict(sorted(cameras.items()))
        if config.type == CLONED:
            self.networks = nn.ModuleDict({camera: KeypointsEncoder(KEYPOINT_WIDTHS) for camera in self.image_sizes})
        else:
            self.networks = nn.ModuleDict({"all": config.pretrained_config().build(pretrained=pretrained)})
        self.shapes = {camera: self._shape(camera) for camera in self.image_sizes}  # of the features of one frame
        # What makes features of the demonstrations zero on average, with a deviation of one.
        self.offset = nn.ParameterDict({camera: torch.zeros(shape) for camera, shape in self.shapes.items()})
        self.scale = nn.ParameterDict({camera: torch.ones(shape) for camera, shape in self.shapes.items()})
        self.requires_grad_(False).eval()
        self._encoded: dict[nn.Module, EncodedFrames] = {}
        self.register_load_state_dict_post_hook(lambda *_: self.forget())

    def _network(self, camera: str) -> nn.Module:
        return self.networks[camera if self.config.type == CLONED else "all"]

    def _shape(self, camera: str) -> tuple[int, ...]:
        _, channels, height, width = features_of(self._network(camera), self.image_sizes[camera])
        if height * width == 1:
            return (channels,)
        return (2 * channels,) if self.config.pooling == "spatial_softmax" else (channels, height, width)

    def forward(self, images: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Features of frames uint8 [B, H, W, 3] of each camera."""
        return {camera: self._features(camera, images[camera]) for camera in self.shapes}

    def _features(self, camera: str, images: Tensor) -> Tensor:
        return self._pooled(camera, self._maps(camera, images))

    def _maps(self, camera: str, images: Tensor) -> Tensor:
        size = self.image_sizes[camera]
        if tuple(images.shape[1:]) != (*size, 3):
            height, width = images.shape[1:3]
            raise PolicyError(
                f"camera '{camera}' gives images of {height}x{width}, and the policy's encoder takes "
                f"{size[0]}x{size[1]}; set that size"
            )
        network = self._network(camera)
        mean, std = (torch.tensor(value, device=images.device) for value in (network.mean, network.std))
        return network(normalize(images, mean, std))

    def _pooled(self, camera: str, maps: Tensor) -> Tensor:
        if len(self.shapes[camera]) == 1:
            maps = maps.flatten(1) if maps.shape[2:].numel() == 1 else spatial_softmax(maps)
        return (maps - self.offset[camera]) / self.scale[camera]

    def encode(self, frames: Mapping[str, ByteArray]) -> dict[str, FloatArray]:
        """Features of frames uint8 [..., H, W, 3] of each camera. Features of the newest frames are remembered."""
        encoded: dict[str, FloatArray] = {}
        for camera, shape in self.shapes.items():
            images = frames[camera]
            features = self._encode(camera, images.reshape(-1, *images.shape[-3:]))
            encoded[camera] = features.reshape(*images.shape[:-3], *shape)
        return encoded

    def _encode(self, camera: str, frames: ByteArray) -> FloatArray:
        network = self._network(camera)
        if network not in self._encoded:
            self._encoded[network] = EncodedFrames.of(network)
        with torch.inference_mode():
            maps = self._encoded[network](frames, lambda new: self._maps(camera, torch.from_numpy(new).to(self.device)))
            return self._pooled(camera, maps.to(self.device)).cpu().numpy()

    def forget(self) -> None:
        """Drop what was encoded, after the weights have changed."""
        self._encoded.clear()

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def fingerprint(self) -> str:
        """Of its config, its inputs and its weights. Features of encoders with another fingerprint differ."""
        about = [self.config.model_dump(mode="json", include={"type", "pooling"}), self.image_sizes]
        digest = hashlib.blake2b(json.dumps(about, sort_keys=True).encode(), digest_size=8)
        for name, tensor in sorted(self.state_dict().items()):
            digest.update(name.encode())
            digest.update(tensor.cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()


class FineTunedEncoder(nn.Module):
    """A pretrained encoder of judges that is trained further, and a projection.

    On a GPU the encoder runs in bfloat16 where TF32 is allowed; its weights stay in 32 bits.
    """

    def __init__(self, config: ImageEncoderConfig, size: tuple[int, int], *, pretrained: bool):
        super().__init__()
        self.encoder: Any = config.pretrained_config().build(pretrained=pretrained)
        mean, std = (torch.tensor(value)[:, None, None] / 255 for value in (self.encoder.mean, self.encoder.std))
        self.mean, self.std = nn.Buffer(mean - 0.5, persistent=False), nn.Buffer(std, persistent=False)
        shape = features_of(self.encoder, size)[1:]
        self._softmax = config.pooling == "spatial_softmax" and shape[1:] != (1, 1)
        flat = (2 * shape[0],) if self._softmax else (shape[0],) if shape[1:] == (1, 1) else shape
        self.projection = projection(flat, config.features)

    def forward(self, images: Tensor) -> Tensor:
        """images: pixels minus 0.5, [B, 3, H, W]"""
        with torch.autocast("cuda", torch.bfloat16, enabled=images.is_cuda and allows_tf32()):
            features = self.encoder((images - self.mean) / self.std)
        features = features.float()
        if self._softmax:
            features = spatial_softmax(features)
        return self.projection(features.flatten(1) if features.shape[2:].numel() == 1 else features)


def projection(shape: tuple[int, ...], features: int) -> nn.Sequential:
    """From features of a pretrained encoder, a vector or a map, to a few numbers."""
    pool: list[nn.Module] = []
    if len(shape) == 3:
        pool = [SpatialLearnedEmbeddings(shape[0], shape[1:], SPATIAL_BLOCKS)]
        shape = (shape[0] * SPATIAL_BLOCKS,)
    return nn.Sequential(*pool, nn.Linear(shape[0], features), nn.LayerNorm(features), nn.Tanh())


def spatial_softmax(features: Tensor) -> Tensor:
    """Where each channel is strongest: x and y in [-1, 1], [B, C, h, w] to [B, 2 * C]."""
    height, width = features.shape[2:]
    share = features.flatten(2).softmax(dim=2).unflatten(2, (height, width))
    x, y = (torch.linspace(-1, 1, count, device=features.device, dtype=features.dtype) for count in (width, height))
    return torch.cat([(share.sum(2) * x).sum(2), (share.sum(3) * y).sum(2)], dim=1)
