"""Rounds: N simulated episodes side by side, from one reset to the end of the last.

An episode that ends early waits for the others. That costs a few idle scenes and buys a lot: a round begins from seeds
alone, so a run that stopped between rounds goes on exactly as it would have, with any simulator; and an episode is
whole when it is judged, stored and learned from. (Rejected: resetting each scene as it ends, which needs the state of
every simulator in every checkpoint.)
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from plaudit.protocols import Simulation
from plaudit.types import AnyArray, BoolArray, ByteArray, Episode, FloatArray, Labels, Observation, RewardSignal

Act = Callable[[Observation], FloatArray]  # observations of N scenes -> actions [N, A]
Judge = Callable[[Observation, Mapping[str, AnyArray]], RewardSignal]


@dataclass(frozen=True, eq=False)
class Round:
    """N episodes of at most T steps. What lies past an episode's length is of no meaning."""

    images: Mapping[str, ByteArray]  # camera -> [T+1, N, H, W, 3]
    state: FloatArray  # [T+1, N, S]
    actions: FloatArray  # [T, N, A]
    reward: FloatArray  # [T, N] as the judge said
    success: BoolArray  # [T, N] as the judge said
    probability: FloatArray  # [T, N] the judge's
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
                start=0.0,
                source=source,
            )
            cut.append((episode, labels))
        return cut


class SimulatorJudge:
    """Believes the simulation: what its own flag says, or its dense reward. For comparison and for demonstrations."""

    source = "simulator"

    def __init__(self, *, dense: bool = False):
        self._dense = dense

    def __call__(self, observation: Observation, known: Mapping[str, AnyArray]) -> RewardSignal:
        success = known["success"]
        probability = success.astype(np.float32)
        return RewardSignal(probability, known["reward"] if self._dense else probability, success)


def run_round(
    simulation: Simulation, act: Act, seeds: Sequence[int], judge: Judge, *, end_on_success: bool = True
) -> Round:
    """Run one episode from each seed; the judge gives the rewards and, unless told otherwise, its success ends one."""
    observation = simulation.reset(seeds)
    seen, taken, said, knew = [observation], [], [], []
    active = np.ones(simulation.num_envs, bool)
    length = np.zeros(simulation.num_envs, int)
    terminated = np.zeros(simulation.num_envs, bool)
    for _ in range(simulation.max_steps):
        actions = act(observation)
        observation, known = simulation.step(actions, active)
        signal = judge(observation, known)
        seen.append(observation)
        taken.append(actions)
        said.append(signal)
        knew.append(known)
        length += active
        over = known.get("failure", np.zeros_like(active)) | (signal.success & end_on_success)
        terminated |= active & over
        active &= ~over
        if not active.any():
            break
    return Round(
        images={camera: np.stack([o.images[camera] for o in seen]) for camera in simulation.cameras},
        state=np.stack([o.state for o in seen]),
        actions=np.stack(taken),
        reward=np.stack([signal.reward for signal in said]),
        success=np.stack([signal.success for signal in said]),
        probability=np.stack([signal.probability for signal in said]),
        privileged={name: np.stack([known[name] for known in knew]) for name in knew[0]},
        length=length,
        terminated=terminated,
        seeds=tuple(int(seed) for seed in seeds),
    )
