"""Chunks: continuing the previous one without a jump, by the prefix weights of arXiv 2506.07339, and several at once.

    chunk of H actions, s of them executed when the next inference begins, d more while it runs:

    previous   0 .. s-1 | s .. s+d-1 | s+d ........ H-1 |
    new                 | 0 .. d-1   | d ...... H-s-1   | H-s .. H-1
    weight              | 1: they    | decreasing with  | 0: nothing to
                        | will have  | distance         | agree with
                        | run        |                  |

Numpy only, because policies without torch use it too. How a flow uses the weights is in `flow.py`; policies without
guidance (`FixedPolicy`) blend two chunks by them.

`Sampling` is how a policy is sampled several times for one observation: what learners need that choose among chunks or
steer the noise.

A policy that can do so is a `plaudit.protocols.SampledPolicy`. `check_sampling` refuses a policy that cannot, before
the robot moves. Without torch, because a client of a policy server uses it too.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from plaudit.errors import PolicyError
from plaudit.files import brief
from plaudit.protocols import Normalizer, Policy, SampledPolicy
from plaudit.types import AnyArray, FloatArray, Observation, PolicyWeights

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
        sizes: list[Any] = [] if shape is None else [count, *shape] if isinstance(shape, list | tuple) else [None]
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


class LimitedSampling:
    """Base of policies with limits of their own: LeRobot's ACT, or a policy whose server announces them."""

    sampling: Sampling


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


@dataclass(frozen=True, eq=False)
class PreviousChunk:
    """The chunk that the robot executes while the next one is inferred."""

    actions: FloatArray  # [H, A]
    delay: int  # actions that will have run when the next chunk is there
    executed: int  # actions that have run when its inference begins


def compute_guided_prefix_weights(horizon: int, delay: int, executed: int) -> FloatArray:
    """[H] how much each action of a new chunk must agree with the previous one.

    A delay beyond the rest of the previous chunk counts as all of the rest.

    >>> compute_guided_prefix_weights(horizon=6, delay=1, executed=2).round(2).tolist()
    [1.0, 0.49, 0.19, 0.04, 0.0, 0.0]
    """
    if horizon < 1:
        raise PolicyError(f"a chunk has at least one action, horizon is {horizon}")
    if delay < 0:
        raise PolicyError(f"delay is {delay}; it counts control steps, 0 or more")
    if not 0 <= executed <= horizon:
        raise PolicyError(f"executed is {executed}; of a chunk of {horizon}, 0 to {horizon} actions can have run")
    left = horizon - executed
    delay = min(delay, left)
    step = np.arange(horizon)
    near = np.clip((left - step) / (left - delay + 1), 0, 1)  # 0 from where nothing is left
    falling = near * np.expm1(near) / np.expm1(1.0)
    return np.where(step < delay, 1.0, falling).astype(np.float32)


def shift_chunk(previous: FloatArray, executed: int) -> FloatArray:
    """[H, A] what is left of a chunk after `executed` steps, its last action repeated; weights there are 0."""
    if previous.ndim != 2 or len(previous) == 0:
        raise PolicyError(f"a chunk is [H, A] with at least one action, the previous one is {list(previous.shape)}")
    return previous[np.minimum(np.arange(len(previous)) + executed, len(previous) - 1)]


def blend(previous: FloatArray, new: FloatArray, weights: FloatArray) -> FloatArray:
    """The average of two chunks [H, A] that start at the same step, by weights [H]."""
    if previous.shape != new.shape or weights.shape != new.shape[:1]:
        raise PolicyError(
            f"chunks of {list(previous.shape)} and {list(new.shape)} cannot be blended by {list(weights.shape)} weights"
        )
    return (previous * weights[:, None] + new * (1 - weights[:, None])).astype(np.float32)


def blend_with_previous(previous: FloatArray, new: FloatArray, delay: int, executed: int) -> FloatArray:
    """A new chunk [H, A], blended with the rest of the previous one."""
    return blend(shift_chunk(previous, executed), new, compute_guided_prefix_weights(len(new), delay, executed))


class BlendedPolicy:
    """Base of policies. A derived class implements `predict`, and `guided_inference` if it can be guided."""

    def predict(self, observation: Observation, normalizer: Normalizer) -> FloatArray:
        """Actions [H, A] in the robot's units."""
        raise NotImplementedError

    def guided_inference(
        self, observation: Observation, normalizer: Normalizer, previous: FloatArray, delay: int, executed: int
    ) -> FloatArray:
        """A new chunk [H, A], blended with what is left of the previous one."""
        return blend_with_previous(previous, self.predict(observation, normalizer), delay, executed)


class FixedPolicy(BlendedPolicy):
    """A `Policy` that cannot be trained."""

    no_weights: ClassVar[str]  # the message where somebody sends weights
    counts_calls: ClassVar[bool] = True  # whether to be asked before the first episode changes what it does in it

    def __init__(self) -> None:
        self.components: Mapping[str, Any] = {}

    def warmup(self) -> None:
        """Do nothing: the first call is as fast as the others."""

    def freeze_all_model_params(self) -> None:
        """Do nothing: there are none."""

    def load_weights(self, weights: PolicyWeights) -> None:
        """Raise `PolicyError` if there are any."""
        if weights.tensors:
            raise PolicyError(self.no_weights)
