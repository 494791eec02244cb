"""What policies with networks share: tensors of arrays, components that are frozen or take new weights."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from plaudit.data.normalize import Normalizer as Plain
from plaudit.errors import PolicyError, nearest
from plaudit.policies.networks import Encoder, Spaces
from plaudit.protocols import Normalizer
from plaudit.types import AnyArray, Observation, Weights


def tensor_of(array: AnyArray, device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)


def look(eye: Encoder, observation: Observation, normalizer: Normalizer, device: torch.device) -> Tensor:
    """Features [1, size] of one observation, or [N, size] of N; this is where a policy normalises what it sees."""
    _check_seen(eye, observation)
    one = observation.state.ndim == 1
    images = {camera: normalizer.normalize_image(observation.images[camera]) for camera in eye.eyes}
    state = normalizer.normalize_state(observation.state) if observation.state.shape[-1] else observation.state
    with torch.no_grad():
        tensors = {camera: tensor_of(image[None] if one else image, device) for camera, image in images.items()}
        return eye.normalized(tensors, tensor_of(state[None] if one else state, device))


def _check_seen(eye: Encoder, observation: Observation) -> None:
    spaces = eye.spaces
    if observation.state.shape[-1] != spaces.state_dim:
        raise PolicyError(
            f"this policy knows states of {spaces.state_dim} numbers, the observation has {observation.state.shape[-1]}"
        )
    for camera, size in spaces.cameras.items():
        if camera not in observation.images:
            raise PolicyError(
                f"this policy looks at camera '{camera}', which the observation lacks; "
                f"{nearest(camera, observation.images)}"
            )
        found = observation.images[camera].shape[-3:-1]
        if found != tuple(size):
            raise PolicyError(f"camera '{camera}' is {list(found)} pixels, this policy learned with {list(size)}")


def nothing_seen(spaces: Spaces) -> tuple[Observation, Normalizer]:
    """A black picture of each camera and a state of zeros, to warm up with."""
    images = {camera: np.zeros((*size, 3), np.uint8) for camera, size in spaces.cameras.items()}
    state = np.zeros(spaces.state_dim, np.float32)
    return Observation(images, state), Plain.identity(spaces.state_dim, spaces.action_dim)


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
