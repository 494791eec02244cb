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
    """Features [1, size] of one observation; this is where a policy normalises what it sees."""
    _check_seen(eye.spaces, observation)
    images = {camera: normalizer.normalize_image(observation.images[camera]) for camera in eye.eyes}
    state = normalizer.normalize_state(observation.state) if eye.spaces.state_dim else observation.state
    with torch.no_grad():
        tensors = {camera: tensor_of(image[None], device) for camera, image in images.items()}
        return eye.normalized(tensors, tensor_of(state[None], device))


def _check_seen(spaces: Spaces, observation: Observation) -> None:
    if observation.state.shape != (spaces.state_dim,):
        raise PolicyError(
            f"this policy knows states of [{spaces.state_dim}], the observation's is {list(observation.state.shape)}"
        )
    for camera, size in spaces.cameras.items():
        if camera not in observation.images:
            raise PolicyError(
                f"this policy looks at camera '{camera}', which the observation lacks; "
                f"{nearest(camera, observation.images)}"
            )
        found = observation.images[camera].shape
        if found != (*size, 3):
            raise PolicyError(f"camera '{camera}' shows {list(found)}, this policy knows it as {[*size, 3]}")


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
