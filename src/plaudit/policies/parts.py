"""What policies with networks share: tensors of arrays, components that are frozen or take new weights."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from plaudit.errors import PolicyError, nearest
from plaudit.policies.networks import Encoder
from plaudit.protocols import Normalizer
from plaudit.types import AnyArray, Observation, Weights


def tensor_of(array: AnyArray, device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)


def look(eye: Encoder, observation: Observation, normalizer: Normalizer, device: torch.device) -> Tensor:
    """Features [1, size] of one observation, or [N, size] of N; this is where a policy normalises what it sees."""
    one = observation.state.ndim == 1
    images = {camera: normalizer.normalize_image(observation.images[camera]) for camera in eye.eyes}
    state = normalizer.normalize_state(observation.state) if observation.state.shape[-1] else observation.state
    with torch.no_grad():
        tensors = {camera: tensor_of(image[None] if one else image, device) for camera, image in images.items()}
        return eye.normalized(tensors, tensor_of(state[None] if one else state, device))


def freeze(components: Mapping[str, nn.Module]) -> None:
    for component in components.values():
        component.requires_grad_(False).eval()


def take(components: Mapping[str, nn.Module], weights: Weights) -> None:
    """Put weights into components: all of them, or none with a sentence about the first that does not fit."""
    mine = {f"{part}/{name}": t for part, module in components.items() for name, t in module.state_dict().items()}
    who = f"weights of version {weights.version}"
    for name in mine:
        if name not in weights.tensors:
            raise PolicyError(f"{who} lack '{name}' of this policy; {nearest(name, weights.tensors)}")
    for name, array in weights.tensors.items():
        if name not in mine:
            raise PolicyError(f"{who} have '{name}', which this policy has no place for; {nearest(name, mine)}")
        if array.shape != tuple(mine[name].shape):
            raise PolicyError(f"{who}: '{name}' is {list(array.shape)}, this policy's is {list(mine[name].shape)}")
        if not np.isfinite(array).all():
            raise PolicyError(f"{who}: '{name}' holds NaN or infinity; a robot must not act by it")
    with torch.no_grad():
        for name, tensor in mine.items():
            tensor.copy_(torch.from_numpy(np.array(weights.tensors[name])))
