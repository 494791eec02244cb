"""Rounds: N simulated episodes side by side, from one reset to the end of the last.

An episode that ends early waits for the others. That costs a few idle scenes and buys a lot: a round begins from seeds
alone, so a run that stopped between rounds goes on exactly as it would have, with any simulator; and an episode is
whole when it is labeled, stored and learned from. (Rejected: resetting each scene as it ends, which needs the state of
every simulator in every checkpoint.)
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from plaudit.data.rewards import Decisions, RewardConfig, compute_rewards
from plaudit.judges.detector import SuccessDetector
from plaudit.protocols import Judge, VecEnv
from plaudit.rule import labels_from_scores
from plaudit.types import AnyArray, BoolArray, ByteArray, Episode, FloatArray, Labels, Observation, Scores

ActFn = Callable[[Observation], FloatArray]  # observations of N scenes -> actions [N, A]


@dataclass(frozen=True, eq=False)
class RolloutBatch:
    """N episodes of at most T steps. What lies past an episode's length is of no meaning."""

    images: Mapping[str, ByteArray]  # camera -> [T+1, N, H, W, 3]
    state: FloatArray  # [T+1, N, S]
    actions: FloatArray  # [T, N, A]
    reward: FloatArray  # [T, N] computed from what was decided
    success: BoolArray  # [T+1, N] as the judge's rule decided
    success_prob: FloatArray  # [T+1, N] as the judge scored
    progress: FloatArray | None  # [T+1, N] of a judge that measures it
    privileged: Mapping[str, AnyArray]  # name -> [T, N]
    length: AnyArray  # [N] steps of each episode
    terminated: BoolArray  # [N] ended by success or failure, not by the time limit
    seeds: tuple[int, ...]

    @property
    def steps(self) -> int:
        """Of all episodes together."""
        return int(self.length.sum())

    @property
    def valid(self) -> BoolArray:
        """[T, N] which steps belong to an episode."""
        return np.less(np.arange(len(self.actions))[:, None], self.length)

    @property
    def success_once(self) -> BoolArray:
        """[N] which episodes the judge saw succeed at any frame."""
        seen = np.less_equal(np.arange(len(self.success))[:, None], self.length)
        return np.any(self.success & seen, axis=0)

    def episodes(self, simulation: VecEnv, judge: Judge, **meta: Any) -> list[tuple[Episode, Labels]]:
        """Cut into episodes, with the labels of the judge that scored them."""
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
            progress = None if self.progress is None else self.progress[: steps + 1, n].copy()
            scores = Scores(self.success_prob[: steps + 1, n].copy(), progress)
            cut.append((episode, labels_from_scores(judge.id, judge.rule, episode, scores)))
        return cut


def collect_rollout(
    simulation: VecEnv,
    act: ActFn,
    seeds: Sequence[int],
    detector: SuccessDetector,
    *,
    reward: RewardConfig | None = None,
    gamma: float = 0.99,
    terminate_on_success: bool = True,
    linger: int = 0,
) -> RolloutBatch:
    """Run one episode from each seed; the detector says which have succeeded and, unless told otherwise, ends them.

    reward: how rewards follow from that; None: 1 where success was decided
    gamma: of the reward's shaping
    linger: steps that an episode goes on for after its first success, so that there is more than one frame of it
    """
    observation = simulation.reset(seeds)
    decided = [detector.reset(observation)]
    seen, scores, taken, knew = [observation], [detector.scores], [], []
    active = np.ones(simulation.num_envs, bool)
    length = np.zeros(simulation.num_envs, int)
    terminated = np.zeros(simulation.num_envs, bool)  # also while it lingers, which a time limit may cut short
    waited = np.zeros(simulation.num_envs, int)  # steps since the success that ends it
    for _ in range(simulation.max_steps):
        actions = act(observation)
        observation, known = simulation.step(actions, active)
        success = detector.step(observation, known)
        seen.append(observation)
        taken.append(actions)
        decided.append(success)
        scores.append(detector.scores)
        knew.append(known)
        length += active
        waited += terminated
        failed = known.get("failure", np.zeros_like(active))
        terminated |= active & (failed | (success & terminate_on_success))
        active &= ~(failed | (terminated & (waited >= linger)))
        if not active.any():
            break
    privileged = {name: np.stack([known[name] for known in knew]) for name in knew[0]}
    decisions = _stacked(decided, scores)
    last = np.arange(len(taken))[:, None] == length - 1
    return RolloutBatch(
        images={camera: np.stack([o.images[camera] for o in seen]) for camera in simulation.cameras},
        state=np.stack([o.state for o in seen]),
        actions=np.stack(taken),
        reward=compute_rewards(decisions, privileged, reward or RewardConfig(), gamma, last),
        success=decisions.success,
        success_prob=np.stack([score.success_prob for score in scores]),
        progress=decisions.progress,
        privileged=privileged,
        length=length,
        terminated=terminated,
        seeds=tuple(int(seed) for seed in seeds),
    )


def _stacked(decided: Sequence[BoolArray], scores: Sequence[Scores]) -> Decisions:
    """[T+1, N]"""
    progress = [score.progress for score in scores if score.progress is not None]
    prob = np.stack([score.success_prob for score in scores])
    return Decisions(np.stack(decided), prob, np.stack(progress) if progress else None)
