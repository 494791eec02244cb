"""Trying a policy out before the robot moves: how long its inferences take, and whether its chunks fit.

The first inferences of a network are slow, on a GPU by seconds, and none of them should be an episode's. The policy
infers a few times from blank observations of the robot's own shapes, in the process and the memory that it will infer
in. The slowest of these inferences is the first estimate of the delay. The fastest decides whether chunks fit: where
that is too slow, so is every other; a machine that was busy for a moment is no reason to refuse.
"""

import time
from dataclasses import dataclass
from math import ceil

from plaudit.policies.guidance import FixedPolicy
from plaudit.protocols import Policy
from plaudit.rollout.chunks import EXECUTION_HORIZON, chunk_problem, executed_steps
from plaudit.rollout.engine import InferenceConfig, validate_chunk
from plaudit.rollout.memory import EpisodeBuffer
from plaudit.types import EnvSpec

NUM_INFERENCES = 5  # that are timed, after one that is not


@dataclass(frozen=True)
class Warmup:
    """What it has shown."""

    fps: float  # control steps per second
    horizon: int  # actions of a chunk
    executed: int  # of these, before the next inference begins
    took: tuple[float, ...]  # s, of each inference; none where chunks do not fit however fast it is
    device: str  # of the policy's networks; "" where it has none

    @property
    def delay(self) -> int:
        """Control steps that the slowest inference took."""
        return self._steps(max(self.took, default=0.0))

    def problem(self, stale_chunk_s: float | None = None) -> str:
        """Why chunks do not fit; "" where they do. stale_chunk_s: how old a command's observation may be"""
        fastest = min(self.took, default=0.0)
        latency, delay = f"{1e3 * fastest:.0f} ms at {self.fps:g} Hz" if self.took else "", self._steps(fastest)
        if problem := chunk_problem(self.horizon, self.executed, delay, latency):
            return problem
        last = self.executed + delay - 1  # command of a chunk that is sent before the next is there
        if stale_chunk_s is None or last <= stale_chunk_s * self.fps:
            return ""
        return (
            f"{self.executed} steps of a chunk are executed ({EXECUTION_HORIZON}), the last of them "
            f"{last / self.fps:.1f} s after its observation, and commands are not sent after {stale_chunk_s:g} s "
            "(robot.safety.stale_chunk_s); lower the first, or raise the second"
        )

    @property
    def summary(self) -> str:
        """For people: 12 ms (at most 15) on cpu, 1 step; 10 of 20 actions executed, so 10 steps fit"""
        fastest, slowest = 1e3 * min(self.took), 1e3 * max(self.took)
        where = f" on {self.device}" if self.device else ""
        steps = f"{self.delay} step{'s' if self.delay > 1 else ''}"
        fits = min(self.executed, self.horizon - self.executed)
        return (
            f"{fastest:.0f} to {slowest:.0f} ms{where}, {steps}; {self.executed} of {self.horizon} actions executed, "
            f"{fits} steps fit"
        )

    def _steps(self, seconds: float) -> int:
        return max(1, ceil(seconds * self.fps))


def warm_up(policy: Policy, env_spec: EnvSpec, config: InferenceConfig) -> Warmup | None:
    """Infer a few times; None for a script or a recording, which may count how often it was asked."""
    if isinstance(policy, FixedPolicy) and policy.counts_calls:
        return None
    blank, normalizer = EpisodeBuffer.allocate(env_spec, 1).observation(0), config.load_normalizer(env_spec)
    chunk = validate_chunk(policy.predict(blank, normalizer), env_spec.action_dim)
    executed, took = executed_steps(len(chunk), config.execution_horizon), list[float]()
    for _ in range(0 if chunk_problem(len(chunk), executed) else NUM_INFERENCES):
        began = time.monotonic()
        if config.guidance:
            policy.guided_inference(blank, normalizer, chunk, 1, executed)
        else:
            policy.predict(blank, normalizer)
        took.append(time.monotonic() - began)
    return Warmup(env_spec.fps, len(chunk), executed, tuple(took), _device(policy))


def _device(policy: Policy) -> str:
    for component in policy.components.values():
        for parameter in component.parameters():
            return str(parameter.device)
    return ""
