"""Rollouts of a vectorized environment: N episodes side by side, from one reset to the end of the last.

An episode that ends early waits for the others. That costs a few idle environments, and a rollout depends only on its
seeds, so a run that stopped between two of them resumes exactly, with any simulator. (Rejected: resetting each
environment as its episode ends, which needs the state of every simulator in every checkpoint.)
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from plaudit.data.rewards import Decisions, RewardConfig, learning_signal
from plaudit.judges.labeling import SuccessDetector
from plaudit.protocols import Judge, VecEnv
from plaudit.rule import begins_with_success, labels_from_scores
from plaudit.types import AnyArray, BoolArray, ByteArray, Episode, FloatArray, Labels, Observation, Scores

ActFn = Callable[[Observation], FloatArray]  # observations of N environments -> actions [N, A]


@dataclass(frozen=True, eq=False)
class RolloutBatch:
    """N episodes of at most T steps. What lies past an episode's length has no meaning."""

    images: Mapping[str, ByteArray]  # camera -> [T+1, N, H, W, 3]
    state: FloatArray  # [T+1, N, S]
    actions: FloatArray  # [T, N, A]
    reward: FloatArray  # [T, N] computed from success; 0 where a step is not used
    used: BoolArray  # [T, N] which steps may be learned from
    success: BoolArray  # [T+1, N] as the judge's rule decided
    success_prob: FloatArray  # [T+1, N] as the judge scored
    progress: FloatArray | None  # [T+1, N] where the judge measures it
    privileged: Mapping[str, AnyArray]  # name -> [T, N]
    length: AnyArray  # [N] steps of each episode
    terminated: BoolArray  # [N] ended by success or failure, not by the time limit
    seeds: tuple[int, ...]
    first_true: tuple[int | None, ...]  # [N] first frame of true success, up to `steps_after_end` past the end
    ood: tuple[str, ...] = ()  # [N] why an episode is out of distribution, where it was asked

    @property
    def steps(self) -> int:
        """Of all episodes."""
        return int(self.length.sum())

    @property
    def valid(self) -> BoolArray:
        """[T, N] which steps belong to an episode."""
        return np.less(np.arange(len(self.actions))[:, None], self.length)

    @property
    def first_success(self) -> list[int | None]:
        """[N] the first frame of success by the judge; None: never."""
        onsets = np.argmax(self.success, axis=0).tolist()
        return [onset if once else None for onset, once in zip(onsets, self.success_once, strict=True)]

    @property
    def success_once(self) -> BoolArray:
        """[N] which episodes the judge saw succeed at any frame."""
        recorded = np.less_equal(np.arange(len(self.success))[:, None], self.length)
        return np.any(self.success & recorded, axis=0)

    def episodes(self, env: VecEnv, judge: Judge, **meta: Any) -> list[tuple[Episode, Labels]]:
        """The episodes, with the labels of the judge that scored them. meta: of each, beside its seed"""
        cut: list[tuple[Episode, Labels]] = []
        for n, (steps, seed) in enumerate(zip(self.length.tolist(), self.seeds, strict=True)):
            episode = Episode.of(
                frames={camera: frames[: steps + 1, n] for camera, frames in self.images.items()},
                state=self.state[: steps + 1, n],
                actions=self.actions[:steps, n],
                privileged={name: values[:steps, n] for name, values in self.privileged.items()},
                task=env.task,
                fps=env.fps,
                robot=type(env).__name__,
                terminated=bool(self.terminated[n]),
                meta={"seed": seed, **meta},
            )
            progress = None if self.progress is None else self.progress[: steps + 1, n].copy()
            ood = self.ood[n] if self.ood else ""
            scores = Scores(self.success_prob[: steps + 1, n].copy(), progress, ood=ood)
            cut.append((episode, labels_from_scores(judge.id, judge.rule, episode, scores)))
        return cut


def stack_scores(scores: Sequence[Scores]) -> tuple[FloatArray, FloatArray | None]:
    """P(success) [T+1, N] of the frames of N environments, and progress where the judge measures it."""
    progress = [score.progress for score in scores if score.progress is not None]
    return np.stack([score.success_prob for score in scores]), np.stack(progress) if progress else None


def collect_rollout(
    env: VecEnv,
    act: ActFn,
    seeds: Sequence[int],
    detector: SuccessDetector,
    *,
    reward: RewardConfig | None = None,
    gamma: float = 0.99,
    terminate_on_success: bool = True,
    steps_after_success: int = 0,
    steps_after_end: int = 0,
) -> RolloutBatch:
    """Run one episode from each seed.

    detector: decides which have succeeded
    reward: computes rewards from that; None: 1 where an episode has succeeded
    gamma: of the reward's shaping
    terminate_on_success: whether success ends an episode
    steps_after_success: before it does, so that there is more than one frame of success
    steps_after_end: of the simulation after success has ended an episode that is not true yet, to see whether it
        becomes true a little later; they are not part of the episode
    """
    observation = env.reset(seeds)
    success = [detector.reset(observation)]
    observations, scores, taken, infos = [observation], [detector.scores], [], []
    active = np.ones(env.num_envs, bool)
    since_end = np.zeros(env.num_envs, int)  # steps
    first_true: list[int | None] = [None] * env.num_envs
    length = np.zeros(env.num_envs, int)
    terminated = np.zeros(env.num_envs, bool)  # also during the steps after success, which a time limit may cut short
    since_terminated = np.zeros(env.num_envs, int)  # steps
    lost = np.zeros(env.num_envs, bool)  # ended by failure
    confirmed = np.zeros(env.num_envs, bool)  # true success was seen
    for _ in range(env.max_steps):
        # Act, step, and let the judge decide.
        taken.append(act(observation))
        watched = active | (terminated & ~lost & ~confirmed & (since_end < steps_after_end))
        following, info = env.step(taken[-1], watched)
        observation = replace(following, previous=partial(observations.__getitem__, len(taken) - 1))
        success.append(detector.step(observation, info))
        observations.append(observation)
        scores.append(detector.scores)
        infos.append(info)
        is_true = watched & info.get("success", np.zeros_like(active))
        for n in np.flatnonzero(is_true & ~confirmed).tolist():
            first_true[n] = len(taken)
        confirmed |= is_true
        # End episodes: by failure at once, by success after `steps_after_success`.
        length += active
        since_terminated += terminated
        failed = info.get("failure", np.zeros_like(active))
        lost |= active & failed
        terminated |= active & (failed | (success[-1] & terminate_on_success))
        since_end = np.where(failed & ~active, steps_after_end, since_end + ~active)
        active &= ~(failed | (terminated & (since_terminated >= steps_after_success)))
        if not (active | (terminated & ~lost & ~confirmed & (since_end < steps_after_end))).any():
            break
    privileged = {name: np.stack([info[name] for info in infos]) for name in infos[0]}
    success_prob, progress = stack_scores(scores)
    decided = np.stack(success)
    valid = np.less(np.arange(len(taken))[:, None], length)
    last = np.arange(len(taken))[:, None] == length - 1
    judge = detector.judge
    reviewed = np.array(
        [begins_with_success(decided[: end + 1, n], judge.rule, judge.id) for n, end in enumerate(length.tolist())]
    )
    signal = learning_signal(
        Decisions(decided, success_prob, progress, ~reviewed & np.ones_like(decided)),
        last & lost,
        privileged,
        reward or RewardConfig(),
        gamma,
        terminate_on_success=terminate_on_success,
        last=last,
    )
    used = signal.used & valid
    return RolloutBatch(
        images={camera: np.stack([o.images[camera] for o in observations]) for camera in env.cameras},
        state=np.stack([o.state for o in observations]),
        actions=np.stack(taken),
        reward=np.where(used, signal.reward, np.float32(0)),
        used=used,
        success=decided,
        success_prob=success_prob,
        progress=progress,
        privileged=privileged,
        length=length,
        terminated=terminated,
        seeds=tuple(int(seed) for seed in seeds),
        first_true=tuple(first_true),
    )
