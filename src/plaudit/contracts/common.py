"""What the checks of several protocols share."""

from collections.abc import Mapping
from inspect import get_annotations
from typing import Any

import numpy as np

from plaudit.errors import ContractError
from plaudit.types import Observation


def missing_members(thing: Any, protocol: type) -> list[str]:
    """What a thing lacks of a protocol of `plaudit.protocols`, by name."""
    bases = [base for base in protocol.__mro__ if base.__module__ == protocol.__module__]
    names = {name for base in bases for name in (*vars(base), *get_annotations(base)) if not name.startswith("_")}
    return sorted(name for name in names if not hasattr(thing, name))


def check_members(thing: Any, protocol: type) -> None:
    """Raise `ContractError` unless a thing has all members of a protocol."""
    missing = missing_members(thing, protocol)
    if missing:
        raise ContractError(f"{type(thing).__name__} is not a {protocol.__name__}: it lacks {', '.join(missing)}")


def check_observation(
    observation: Any, cameras: Mapping[str, tuple[int, int]], state_dim: int, where: str, *lead: int
) -> None:
    """Whether an observation has these cameras and this state. lead: the leading dimensions, (N,) of N environments"""
    if not isinstance(observation, Observation):
        raise ContractError(f"{where} must return an Observation, got {type(observation).__name__}")
    if set(observation.images) != set(cameras):
        raise ContractError(f"{where} returned cameras {sorted(observation.images)}, not {sorted(cameras)}")
    for camera, size in cameras.items():
        image, shape = observation.images[camera], (*lead, *size, 3)
        if image.dtype != np.uint8 or image.shape != shape:
            raise ContractError(
                f"{where}: camera '{camera}' must be uint8 {list(shape)}, got {image.dtype} {list(image.shape)}"
            )
    state, shape = observation.state, (*lead, state_dim)
    if state.dtype != np.float32 or state.shape != shape or not np.isfinite(state).all():
        raise ContractError(
            f"{where}: state must be finite float32 {list(shape)}, got {state.dtype} {list(state.shape)}"
        )


def copy_observation(observation: Observation) -> Observation:
    """A copy, of an observation that is made of numpy arrays."""
    for name, array in (("state", observation.state), *observation.images.items()):
        if not isinstance(array, np.ndarray):
            raise ContractError(f"a policy is shown numpy arrays, '{name}' is a {type(array).__name__}")
    return Observation({camera: image.copy() for camera, image in observation.images.items()}, observation.state.copy())


def same_observation(one: Observation, other: Observation) -> bool:
    """Whether all images and states are equal."""
    pairs = [(one.state, other.state), *((one.images[camera], other.images[camera]) for camera in other.images)]
    return set(one.images) == set(other.images) and all(np.array_equal(a, b) for a, b in pairs)
