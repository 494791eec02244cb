"""Episodes for a judge to learn from, out of a script: successes, near misses and random walks in a built-in task.

An episode that came out otherwise than it was told to is as good as any here: the simulator's label says what
happened. Successes linger, so that a judge sees more than the first frame of one; failures run to the time limit.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from plaudit.data.store import Store
from plaudit.envs.panda.config import PandaConfig
from plaudit.envs.panda.tasks import TASKS
from plaudit.errors import EnvError
from plaudit.judges.detector import SuccessDetector
from plaudit.judges.simulator import SimulatorJudge
from plaudit.policies.expert import OUTCOMES, check_script, expert_act_fn
from plaudit.protocols import VecEnv
from plaudit.rollout.collector import EpisodeQuota, EpisodeTargets
from plaudit.rollout.vector import collect_rollout
from plaudit.types import Episode, FloatArray, Labels, Observation, ProgressFn

SIDE_BY_SIDE = 16  # episodes at a time
PATIENCE = 20  # rounds that bring nothing wanted before giving up
RANDOM = "random"  # the outcome that a random walk is told
WALK = 0.7  # how much of an action a random walk keeps for the next


def check_collect(
    env: Any, targets: EpisodeTargets, outcomes: Sequence[str], noise: float, random_share: float
) -> None:
    """Whether a script can reach these targets."""
    if not isinstance(env, PandaConfig):
        raise EnvError(f"there is no scripted expert for '{env.type}'; there is for: {', '.join(TASKS)}")
    if env.obs == "state":
        raise EnvError("a judge learns from images; set obs to 'both' or 'pixels'")
    check_script(outcomes, noise)
    if not 0 <= random_share <= 1:
        raise EnvError(f"random_share is {random_share:g}; it is a share of the failures, from 0 to 1")
    if targets.success is None or targets.failure is None:
        raise EnvError("a script needs both targets: it would go on for ever")
    if targets.success and "success" not in outcomes:
        raise EnvError("no outcome succeeds; add success to the outcomes, or set the target of success to 0")
    if targets.failure and not _failures(outcomes) and not random_share:
        raise EnvError("no outcome fails; add some, a share of random walks, or set the target of failure to 0")


def collect(
    env: PandaConfig,
    store: Store,
    targets: EpisodeTargets,
    *,
    outcomes: Sequence[str] = OUTCOMES,
    noise: float = 0.2,
    random_share: float = 0.2,
    linger: int = 8,
    seed: int = 0,
    progress: ProgressFn = iter,
) -> EpisodeQuota:
    """Add what a store lacks to reach its targets, each episode as soon as its round is over; returns the counts.

    outcomes: what the expert is told; the failures among them take turns
    noise: on its actions, of which 1 is the most
    random_share: of the failures, how many are random walks
    linger: steps that an episode goes on for after its success
    seed: of the first episode; where the store has higher ones already, they go on from there
    """
    check_collect(env, targets, outcomes, noise, random_share)
    intake = EpisodeQuota(store, targets)
    missing = (intake.missing("success") or 0) + (intake.missing("failure") or 0)
    played = _episodes(env, intake, outcomes, noise, random_share, linger, max(seed, _next_seed(store)))
    for _, (episode, labels) in zip(progress(range(missing)), played, strict=False):
        intake.add(episode, labels)
    return intake


class RandomWalkPolicy:
    """Actions that change a little each step: the arm wanders."""

    def __init__(self, simulation: VecEnv, seed: int):
        self._rng = np.random.default_rng([seed, 1])
        self._action = self._rng.uniform(-1, 1, (simulation.num_envs, simulation.action_dim))

    def __call__(self, observation: Observation) -> FloatArray:
        new = self._rng.uniform(-1, 1, self._action.shape)
        self._action = np.clip(WALK * self._action + (1 - WALK**2) ** 0.5 * new, -1, 1)
        return self._action.astype(np.float32)


def _episodes(
    env: PandaConfig,
    intake: EpisodeQuota,
    outcomes: Sequence[str],
    noise: float,
    random_share: float,
    linger: int,
    seed: int,
) -> Iterator[tuple[Episode, Labels]]:
    """Those that are wanted, for as long as any are; whoever takes one adds it to the intake before the next."""
    missing = (intake.missing("success") or 0) + (intake.missing("failure") or 0)
    world, judge, idle = env.build(max(1, min(SIDE_BY_SIDE, missing))), SimulatorJudge(), 0
    detector = SuccessDetector(judge, world.num_envs)
    try:
        while not intake.done and idle < PATIENCE:
            told = _told(intake, world.num_envs, outcomes, random_share)
            act = _actor(world, told, noise, seed)
            played = collect_rollout(world, act, range(seed, seed + world.num_envs), detector, linger=linger)
            seed, idle = seed + world.num_envs, idle + 1
            for outcome, (episode, labels) in zip(told, played.episodes(world, judge, noise=noise), strict=True):
                if intake.missing("success" if labels.success_once else "failure"):
                    policy = "random walk" if outcome == RANDOM else "scripted"
                    yield replace(episode, meta={**episode.meta, "policy": policy, "outcome": outcome}), labels
                    idle = 0
    finally:
        world.close()


def _told(intake: EpisodeQuota, count: int, outcomes: Sequence[str], random_share: float) -> list[str]:
    """What the scenes of the next round are to do: successes and failures as they are wanted, the failures in turn."""
    good, bad = intake.missing("success") or 0, intake.missing("failure") or 0
    succeed = round(count * good / (good + bad)) if good and bad else count * bool(good)
    failures, told = _failures(outcomes), ["success"] * min(max(succeed, int(good > 0)), count)
    for i in range(intake.kept["failure"], intake.kept["failure"] + count - len(told)):
        wander = not failures or int((i + 1) * random_share) > int(i * random_share)
        told.append(RANDOM if wander else failures[i % len(failures)])
    return told


def _actor(world: Any, told: Sequence[str], noise: float, seed: int) -> Callable[[Observation], FloatArray]:
    wanders = np.array([outcome == RANDOM for outcome in told])[:, None]
    expert = expert_act_fn(world, ["success" if o == RANDOM else o for o in told], noise, seed)
    walk = RandomWalkPolicy(world, seed)
    return lambda observation: np.where(wanders, walk(observation), expert(observation))


def _failures(outcomes: Sequence[str]) -> list[str]:
    return [outcome for outcome in outcomes if outcome != "success"]


def _next_seed(store: Store) -> int:
    """Past every seed that an episode of the store was made from."""
    return max((store.entry(i).line["meta"].get("seed", -1) for i in store.ids), default=-1) + 1
