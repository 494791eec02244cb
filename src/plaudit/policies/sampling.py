"""Sampling a policy several times for one observation: what learners need that choose among chunks or steer the noise.

A policy that can do so is a `plaudit.protocols.SampledPolicy`. `check_sampling` refuses a policy that cannot, before
the robot moves. Without torch, because a client of a policy server uses it too.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from plaudit.errors import PolicyError
from plaudit.files import brief
from plaudit.protocols import Policy, SampledPolicy
from plaudit.types import AnyArray, FloatArray

MAX_SAMPLES = 256  # chunks for one observation


@dataclass(frozen=True)
class Sampling:
    """How a policy can be sampled for one observation."""

    max_samples: int = 1  # chunks at a time; 1: it cannot be resampled
    noise_shape: tuple[int, int] | None = None  # [H, D] of the noise of a chunk; None: it takes no noise

    @classmethod
    def of_metadata(cls, metadata: Mapping[str, Any]) -> "Sampling":
        """As the metadata of a policy server announces it; a server that announces nothing gives one chunk."""
        count, shape = metadata.get("num_samples", 1), metadata.get("noise_shape")
        sizes = [] if shape is None else [count, *shape] if isinstance(shape, list | tuple) else [None]
        if not all(isinstance(n, int) and 0 < n <= 65_536 for n in (count, *sizes)) or len(sizes) not in (0, 3):
            raise PolicyError(
                f"the server announces num_samples {brief(count)} and noise_shape {brief(shape)}, which are not sizes"
            )
        return cls(min(count, MAX_SAMPLES), None if shape is None else (sizes[1], sizes[2]))

    def metadata(self) -> dict[str, Any]:
        """As a policy server announces it."""
        samples = {"num_samples": self.max_samples} if self.max_samples > 1 else {}
        return samples | ({"noise_shape": list(self.noise_shape)} if self.noise_shape else {})

    def check(self, who: str, count: int, noise: AnyArray | None = None) -> FloatArray | None:
        """Refuse what the policy cannot do; returns the noise as f32 [count, H, D]. who: the policy, for the message"""
        if not 1 <= count <= max(self.max_samples, 1):
            if self.max_samples <= 1:
                raise PolicyError(
                    f"{who} cannot be resampled: it gives one chunk for an observation; set num_samples=1"
                )
            raise PolicyError(f"{who} gives 1 to {self.max_samples} chunks at a time, and {count} were asked for")
        if noise is None:
            return None
        if self.noise_shape is None:
            raise PolicyError(f"{who} is a base without noise input; leave out the noise, or use a flow policy")
        given = np.asarray(noise)
        if given.shape != (count, *self.noise_shape) or given.dtype.kind not in "fiu":
            raise PolicyError(
                f"{who} takes noise of {[count, *self.noise_shape]}, got {list(given.shape)} of {given.dtype}"
            )
        if not np.isfinite(given).all():
            raise PolicyError(f"the noise for {who} contains NaN or infinity")
        return given.astype(np.float32)


@runtime_checkable
class LimitedSampling(Protocol):
    """A policy with limits of its own: LeRobot's ACT, or a policy whose server announces them."""

    @property
    def sampling(self) -> Sampling:
        """The limits."""
        ...


def sampling_of(policy: Policy) -> Sampling:
    """How a policy can be sampled."""
    if isinstance(policy, LimitedSampling):
        return policy.sampling
    return Sampling(MAX_SAMPLES, policy.noise_shape) if isinstance(policy, SampledPolicy) else Sampling()


def check_sampling(policy: Policy, name: str, *, samples: int = 1, noise: bool = False) -> SampledPolicy:
    """The policy, if it can give so many chunks at a time, and takes noise if that is needed. name: for the message"""
    sampling = sampling_of(policy)
    shape = sampling.noise_shape or (1, 1)
    sampling.check(name, samples, np.zeros((samples, *shape), np.float32) if noise else None)
    if not isinstance(policy, SampledPolicy):
        raise PolicyError(f"{name} cannot be resampled: it has no sample(); use a flow, LeRobot or openpi policy")
    return policy
