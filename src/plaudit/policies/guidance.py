"""Continuing the previous chunk without a jump: the prefix weights of real-time chunking (arXiv 2506.07339).

    chunk of H actions, s of them executed when the next inference begins, d more while it runs:

    previous   0 .. s-1 | s .. s+d-1 | s+d ........ H-1 |
    new                 | 0 .. d-1   | d ...... H-s-1   | H-s .. H-1
    weight              | 1: they    | decreasing with  | 0: nothing to
                        | will have  | distance         | agree with
                        | run        |                  |

Numpy only, because policies without torch use it too. How a flow uses the weights is in `flow.py`; policies without
guidance (`FixedPolicy`) blend two chunks by them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from plaudit.errors import PolicyError
from plaudit.protocols import Normalizer
from plaudit.types import FloatArray, Observation, PolicyWeights


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


class FixedPolicy:
    """A `Policy` that cannot be trained; a derived class implements `predict`."""

    no_weights: ClassVar[str]  # the message where somebody sends weights
    counts_calls: ClassVar[bool] = True  # whether to be asked before the first episode changes what it does in it

    def __init__(self) -> None:
        self.components: Mapping[str, Any] = {}

    def predict(self, observation: Observation, normalizer: Normalizer) -> FloatArray:
        """Actions [H, A] in the robot's units."""
        raise NotImplementedError

    def guided_inference(
        self, observation: Observation, normalizer: Normalizer, previous: FloatArray, delay: int, executed: int
    ) -> FloatArray:
        """A new chunk [H, A], blended with what is left of the previous one."""
        return blend_with_previous(previous, self.predict(observation, normalizer), delay, executed)

    def warmup(self) -> None:
        """Do nothing: the first call is as fast as the others."""

    def freeze_all_model_params(self) -> None:
        """Do nothing: there are none."""

    def load_weights(self, weights: PolicyWeights) -> None:
        """Raise `PolicyError` if there are any."""
        if weights.tensors:
            raise PolicyError(self.no_weights)
