"""Scripted episodes of the built-in tasks: demonstrations for a policy, successes and failures for a judge.

`record_demos` records episodes with given outcomes. Noise sometimes gives one another outcome than planned; it is
dropped and tried again from another seed. `collect_scripted` fills a store with successes, near misses and random walks
until its targets are reached, and keeps an episode with another outcome than planned. Successes continue for a few
steps, so that a judge has more than one frame of success to learn from; failures run to the time limit.
"""

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from plaudit.data.store import Store
from plaudit.envs.panda import PandaConfig
from plaudit.envs.panda.scene import TASKS
from plaudit.errors import EnvError
from plaudit.judges.labeling import SuccessDetector
from plaudit.judges.simulator import SimulatorJudge
from plaudit.policies.scripted import OUTCOMES, SUCCESSES, check_script, expert_act_fn
from plaudit.protocols import VecEnv
from plaudit.rollout.collector import EpisodeQuota, EpisodeTargets, outcome_of
from plaudit.rollout.vector import ActFn, collect_rollout
from plaudit.types import Episode, FloatArray, Labels, Observation, ProgressFn

NUM_ENVS = 16  # episodes at a time
MAX_TRIES = 10  # for each demonstration, on average, before giving up
YIELD_ROLLOUTS, MIN_YIELD = 20, 0.05  # give up when fewer of the episodes of the last rollouts were needed ones
RANDOM = "random"  # the outcome of a random walk
SMOOTHNESS = 0.7  # correlation of consecutive actions of a random walk

Scripted = tuple[str, Episode, Labels]  # with the planned outcome


@dataclass(frozen=True)
class DemoStats:
    """How many episodes were recorded."""

    ids: tuple[int, ...]  # in the store
    kept: Counter[str]  # by their outcomes
    left_out: Counter[str]  # by their planned outcomes, which they did not have
    missing: int  # after all tries


def record_demos(
    env: PandaConfig,
    store: Store,
    *,
    episodes: int,
    outcomes: Sequence[str] = ("success",),
    noise: float = 0.2,
    seed: int = 0,
    keep_all: bool = False,
    steps_after_success: int = 0,
    progress: ProgressFn = iter,
) -> DemoStats:
    """Append scripted episodes with the simulator's labels, each as soon as it is complete.

    outcomes: to plan, in turn
    noise: standard deviation of the noise on actions, whose largest value is 1
    seed: of the first episode; the next ones follow
    keep_all: also keep episodes with another outcome than planned
    steps_after_success: before an episode ends
    """
    _check_env(env)
    ids: list[int] = []
    kept: Counter[str] = Counter()
    left_out: Counter[str] = Counter()
    planned = [outcomes[i % len(outcomes)] for i in range(episodes)]
    with closing(ScriptedRollouts(env, episodes, noise, steps_after_success, seed)) as rollouts:
        recorded = _with_outcomes(rollouts, planned, keep_all, left_out)
        for _, (outcome, episode, labels) in zip(progress(range(episodes)), recorded, strict=False):
            ids.append(store.append(episode))
            store.ledger.append(ids[-1], labels)
            kept[outcome] += 1
    return DemoStats(tuple(ids), kept, left_out, episodes - len(ids))


def check_targets(
    env: Any, targets: EpisodeTargets, outcomes: Sequence[str], noise: float, random_fraction: float
) -> None:
    """Raise `EnvError` unless a script can reach these targets."""
    _check_env(env)
    if env.obs == "state":
        raise EnvError("a judge learns from images; set obs to 'both' or 'pixels'")
    check_script(outcomes, noise)
    if not 0 <= random_fraction <= 1:
        raise EnvError(f"random_fraction is {random_fraction:g}; it is a share of the failures, from 0 to 1")
    if targets.success is None or targets.failure is None:
        raise EnvError("a script needs both targets: it would never end")
    if targets.success and not set(outcomes) & set(SUCCESSES):
        raise EnvError("no outcome succeeds; add success to the outcomes, or set the target of success to 0")
    if targets.failure and set(outcomes) <= set(SUCCESSES) and not random_fraction:
        raise EnvError("no outcome fails; add some, a share of random walks, or set the target of failure to 0")


def collect_scripted(
    env: PandaConfig,
    store: Store,
    targets: EpisodeTargets,
    *,
    outcomes: Sequence[str] = OUTCOMES,
    noise: float = 0.2,
    random_fraction: float = 0.2,
    steps_after_success: int = 8,
    seed: int = 0,
    progress: ProgressFn = iter,
) -> EpisodeQuota:
    """Add the episodes that a store needs to reach its targets, after each rollout; returns the counts.

    It gives up, and the counts are not `done`, where next to no episode is of a kind that is missing. Other arguments
    are as for `record_demos`.

    random_fraction: of the failures that are random walks
    seed: of the first episode, or the first one after those in the store
    """
    check_targets(env, targets, outcomes, noise, random_fraction)
    quota = EpisodeQuota(store, targets)
    if quota.done:
        return quota
    missing = (quota.missing("success") or 0) + (quota.missing("failure") or 0)
    seed = max([seed, *(store.entry(i).line["meta"].get("seed", -1) + 1 for i in store.ids)])
    with closing(ScriptedRollouts(env, missing, noise, steps_after_success, seed)) as rollouts:
        needed = _until_done(rollouts, quota, outcomes, random_fraction)
        for _, (episode, labels) in zip(progress(range(missing)), needed, strict=False):
            quota.add(episode, labels)
    return quota


def play_episode(env: Any, *, seed: int, outcome: str = "success", noise: float = 0.0) -> tuple[Episode, Labels]:
    """Run one episode of any environment: by the expert in a built-in task, with random actions in others."""
    judge = SimulatorJudge()
    with closing(env.build(1)) as vec_env:
        rng, dim = np.random.default_rng(seed), vec_env.action_dim
        act = (
            expert_act_fn(vec_env, [outcome], noise, seed)
            if isinstance(env, PandaConfig)
            else lambda _: rng.uniform(-1, 1, (1, dim)).astype(np.float32)
        )
        rollout = collect_rollout(vec_env, act, [seed], SuccessDetector(judge, 1))
        return rollout.episodes(vec_env, judge)[0]


class ScriptedRollouts:
    """Rollouts of a built-in task with planned outcomes, from consecutive seeds."""

    def __init__(self, env: PandaConfig, max_episodes: int, noise: float, steps_after_success: int, seed: int):
        self._env = env.build(max(1, min(NUM_ENVS, max_episodes)))
        self.num_envs = self._env.num_envs  # episodes of a rollout
        self._judge = SimulatorJudge()
        self._detector = SuccessDetector(self._judge, self.num_envs)
        self._noise, self._steps_after_success, self._seed = noise, steps_after_success, seed
        self.num_episodes = 0  # so far

    def run(self, outcomes: Sequence[str]) -> list[Scripted]:
        """One rollout, with at most `num_envs` outcomes."""
        seeds = range(self._seed + self.num_episodes, self._seed + self.num_episodes + self.num_envs)
        expert = expert_act_fn(self._env, ["success" if o == RANDOM else o for o in outcomes], self._noise, seeds[0])
        walk = random_walk_act_fn(self._env, seeds[0])
        is_random = np.resize([outcome == RANDOM for outcome in outcomes], self.num_envs)[:, None]

        def act(observation: Observation) -> FloatArray:
            return np.where(is_random, walk(observation), expert(observation))

        rollout = collect_rollout(self._env, act, seeds, self._detector, steps_after_success=self._steps_after_success)
        self.num_episodes += self.num_envs
        episodes: list[Scripted] = []
        for outcome, (episode, labels) in zip(outcomes, rollout.episodes(self._env, self._judge, noise=self._noise)):
            policy = "random walk" if outcome == RANDOM else "scripted"
            meta = {**episode.meta, "policy": policy, "outcome": outcome}
            episodes.append((outcome, replace(episode, meta=meta), labels))
        return episodes

    def close(self) -> None:
        """Close the environment."""
        self._env.close()


def random_walk_act_fn(env: VecEnv, seed: int) -> ActFn:
    """Random actions that change a little each step."""
    rng = np.random.default_rng([seed, 1])
    action = rng.uniform(-1, 1, (env.num_envs, env.action_dim))

    def act(_: Observation) -> FloatArray:
        noise = rng.uniform(-1, 1, action.shape)
        action[:] = np.clip(SMOOTHNESS * action + (1 - SMOOTHNESS**2) ** 0.5 * noise, -1, 1)
        return action.astype(np.float32)

    return act


def _with_outcomes(
    rollouts: ScriptedRollouts, planned: Sequence[str], keep_all: bool, left_out: Counter[str]
) -> Iterator[Scripted]:
    """Episodes with the planned outcomes; one with another outcome is counted and tried again."""
    queue, max_episodes = list(planned), MAX_TRIES * len(planned) + rollouts.num_envs
    while queue and rollouts.num_episodes < max_episodes:
        batch, queue = queue[: rollouts.num_envs], queue[rollouts.num_envs :]
        for outcome, episode, labels in rollouts.run(batch):
            if keep_all or labels.success_once == (outcome in SUCCESSES):
                yield outcome, episode, labels
            else:
                left_out[outcome] += 1
                queue.append(outcome)


def _until_done(
    rollouts: ScriptedRollouts, quota: EpisodeQuota, outcomes: Sequence[str], random_fraction: float
) -> Iterator[tuple[Episode, Labels]]:
    """Episodes that the quota still needs; the caller adds each before it takes the next."""
    needed: deque[int] = deque(maxlen=YIELD_ROLLOUTS)  # episodes of the last rollouts
    fewest = MIN_YIELD * YIELD_ROLLOUTS * rollouts.num_envs
    while not quota.done and (len(needed) < YIELD_ROLLOUTS or sum(needed) >= fewest):
        needed.append(0)
        for _, episode, labels in rollouts.run(_choose_outcomes(quota, rollouts.num_envs, outcomes, random_fraction)):
            outcome = outcome_of(labels)
            if quota.missing(outcome):
                yield episode, labels
                needed[-1] += 1
            else:
                quota.surplus[outcome] += 1


def _choose_outcomes(quota: EpisodeQuota, count: int, outcomes: Sequence[str], random_fraction: float) -> list[str]:
    """For the next rollout: successes and failures in the ratio of what is missing, each kind in turn."""
    success, failure = quota.missing("success") or 0, quota.missing("failure") or 0
    num_success = round(count * success / (success + failure)) if success and failure else count * bool(success)
    successes, done = [outcome for outcome in outcomes if outcome in SUCCESSES], quota.kept["success"]
    chosen = [successes[(done + i) % len(successes)] for i in range(min(max(num_success, int(success > 0)), count))]
    failures, kept = [outcome for outcome in outcomes if outcome not in SUCCESSES], quota.kept["failure"]
    for i in range(kept, kept + count - len(chosen)):
        is_random = not failures or int((i + 1) * random_fraction) > int(i * random_fraction)
        chosen.append(RANDOM if is_random else failures[i % len(failures)])
    return chosen


def _check_env(env: Any) -> None:
    if not isinstance(env, PandaConfig):
        raise EnvError(f"there is no scripted expert for '{env.type}'; there is for: {', '.join(TASKS)}")
