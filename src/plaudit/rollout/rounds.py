"""Rounds: N simulated episodes side by side, from one reset to the end of the last.

An episode that ends early waits for the others. That costs a few idle scenes and buys a lot: a round begins from seeds
alone, so a run that stopped between rounds goes on exactly as it would have, with any simulator; and an episode is
whole when it is judged, stored and learned from. (Rejected: resetting each scene as it ends, which needs the state of
every simulator in every checkpoint.)
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from plaudit.protocols import Simulation
from plaudit.types import AnyArray, BoolArray, ByteArray, Episode, FloatArray, Labels, Observation, RewardSignal

Act = Callable[[Observation], FloatArray]  # observations of N scenes -> actions [N, A]


class Judge(Protocol):
    """Who gives the rewards of a round and says when an episode has succeeded.

    start = judge.start(observation)            # after the reset
    signal = judge(observation, known)          # after each step
    """

    def start(self, observation: Observation) -> FloatArray:
        """P(success) [N] of the first frames. A new round begins: whatever was remembered of the last is forgotten."""
        ...

    def __call__(self, observation: Observation, known: Mapping[str, AnyArray]) -> RewardSignal:
        """The verdict on what is seen of all N scenes; `known` is what only the simulation knows, [N] each.

        All of it is stored with the episode; a judge that stands in for a simulator uses nothing but `shaping` and
        `failure`, which ends an episode whoever judges.
        """
        ...


@dataclass(frozen=True, eq=False)
class Round:
    """N episodes of at most T steps. What lies past an episode's length is of no meaning."""

    images: Mapping[str, ByteArray]  # camera -> [T+1, N, H, W, 3]
    state: FloatArray  # [T+1, N, S]
    actions: FloatArray  # [T, N, A]
    reward: FloatArray  # [T, N] as the judge said
    success: BoolArray  # [T, N] as the judge said
    probability: FloatArray  # [T, N] the judge's
    start: FloatArray  # [N] the judge's probability for the first frames
    privileged: Mapping[str, AnyArray]  # name -> [T, N]
    length: AnyArray  # [N] steps of each episode
    terminated: BoolArray  # [N] ended by success or failure, not by the time limit
    seeds: tuple[int, ...]

    @property
    def steps(self) -> int:
        return int(self.length.sum())

    @property
    def valid(self) -> BoolArray:
        """[T, N] which steps belong to an episode."""
        return np.less(np.arange(len(self.actions))[:, None], self.length)

    @property
    def succeeded(self) -> BoolArray:
        """[N] which episodes the judge saw succeed at any step."""
        return np.any(self.success & self.valid, axis=0)

    def episodes(self, simulation: Simulation, source: str, **meta: Any) -> list[tuple[Episode, Labels]]:
        """Cut into episodes and what the judge said of each."""
        cut: list[tuple[Episode, Labels]] = []
        for n, (steps, seed) in enumerate(zip(self.length.tolist(), self.seeds, strict=True)):
            episode = Episode.of(
                frames={camera: frames[: steps + 1, n] for camera, frames in self.images.items()},
                state=self.state[: steps + 1, n],
                actions=self.actions[:steps, n],
                privileged={name: values[:steps, n] for name, values in self.privileged.items()},
                task=simulation.task,
                fps=simulation.fps,
                robot=type(simulation).__name__,
                terminated=bool(self.terminated[n]),
                meta={"seed": seed, **meta},
            )
            labels = Labels(
                reward=self.reward[:steps, n].copy(),
                success=self.success[:steps, n].copy(),
                probability=self.probability[:steps, n].copy(),
                start=float(self.start[n]),
                source=source,
            )
            cut.append((episode, labels))
        return cut


class SimulatorJudge:
    """Believes the simulation: what its own flag says, or its dense reward. For comparison and for demonstrations."""

    source = "simulator"

    def __init__(self, *, dense: bool = False):
        self._dense = dense

    def start(self, observation: Observation) -> FloatArray:
        return np.zeros(len(observation.state), np.float32)

    def __call__(self, observation: Observation, known: Mapping[str, AnyArray]) -> RewardSignal:
        success = known["success"]
        probability = success.astype(np.float32)
        return RewardSignal(probability, known["reward"] if self._dense else probability, success)


def run_round(
    simulation: Simulation,
    act: Act,
    seeds: Sequence[int],
    judge: Judge,
    *,
    end_on_success: bool = True,
    linger: int = 0,
) -> Round:
    """Run one episode from each seed; the judge gives the rewards and, unless told otherwise, its success ends one.

    linger: steps that an episode goes on for after its first success, so that there is more than one frame of it
    """
    observation = simulation.reset(seeds)
    start = judge.start(observation)
    seen, taken, said, knew = [observation], [], [], []
    active = np.ones(simulation.num_envs, bool)
    length = np.zeros(simulation.num_envs, int)
    terminated = np.zeros(simulation.num_envs, bool)  # also while it lingers, which a time limit may cut short
    waited = np.zeros(simulation.num_envs, int)  # steps since the success that ends it
    for _ in range(simulation.max_steps):
        actions = act(observation)
        observation, known = simulation.step(actions, active)
        signal = judge(observation, known)
        seen.append(observation)
        taken.append(actions)
        said.append(signal)
        knew.append(known)
        length += active
        waited += terminated
        failed = known.get("failure", np.zeros_like(active))
        terminated |= active & (failed | (signal.success & end_on_success))
        active &= ~(failed | (terminated & (waited >= linger)))
        if not active.any():
            break
    return Round(
        images={camera: np.stack([o.images[camera] for o in seen]) for camera in simulation.cameras},
        state=np.stack([o.state for o in seen]),
        actions=np.stack(taken),
        reward=np.stack([signal.reward for signal in said]),
        success=np.stack([signal.success for signal in said]),
        probability=np.stack([signal.probability for signal in said]),
        start=start,
        privileged={name: np.stack([known[name] for known in knew]) for name in knew[0]},
        length=length,
        terminated=terminated,
        seeds=tuple(int(seed) for seed in seeds),
    )
