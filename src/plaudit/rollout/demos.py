"""Scripted episodes of the built-in tasks, into a store: demonstrations to learn from, failures to judge by.

Noise makes no two alike, and now and then makes one come out otherwise than it was told to. Such an episode would carry
the wrong name, so it is left out and tried again from another seed, and the report counts it.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from plaudit.data.store import Store
from plaudit.envs.panda.config import PandaConfig
from plaudit.envs.panda.tasks import TASKS
from plaudit.errors import EnvError
from plaudit.judges.detector import SuccessDetector
from plaudit.judges.simulator import SimulatorJudge
from plaudit.policies.expert import expert_act_fn
from plaudit.protocols import VecEnv
from plaudit.rollout.vector import collect_rollout
from plaudit.types import Episode, FloatArray, Labels, Observation, ProgressFn

SIDE_BY_SIDE = 16  # episodes at a time
TRIES = 10  # for each episode, on the average, before giving up


@dataclass(frozen=True)
class DemoStats:
    """What was recorded."""

    ids: tuple[int, ...]  # in the store
    kept: Counter[str]  # outcome -> episodes
    left_out: Counter[str]  # outcome -> episodes that were to end so and did not
    missing: int  # episodes asked for that no try gave


def record_demos(
    env: PandaConfig,
    store: Store,
    *,
    episodes: int,
    outcomes: Sequence[str] = ("success",),
    noise: float = 0.2,
    seed: int = 0,
    keep_all: bool = False,
    linger: int = 0,
    progress: ProgressFn = iter,
) -> DemoStats:
    """Append scripted episodes with the simulator's labels, each as soon as it is whole.

    outcomes: how they are to end, in turn
    noise: on the actions, of which 1 is the most
    seed: of the first episode, the others count up from it
    keep_all: whether to keep those that ended otherwise
    linger: steps that an episode goes on for after its success
    """
    if not isinstance(env, PandaConfig):
        raise EnvError(f"there is no scripted expert for '{env.type}'; there is for: {', '.join(TASKS)}")
    ids: list[int] = []
    kept: Counter[str] = Counter()
    left_out: Counter[str] = Counter()
    wanted = [outcomes[i % len(outcomes)] for i in range(episodes)]
    found = _as_told(env, wanted, noise, seed, keep_all, linger, left_out)
    for _, (outcome, episode, labels) in zip(progress(range(episodes)), found, strict=False):
        ids.append(store.append(episode))
        store.ledger.append(ids[-1], labels)
        kept[outcome] += 1
    return DemoStats(tuple(ids), kept, left_out, episodes - len(ids))


def play(
    env: Any, *, seed: int, outcome: str = "success", noise: float = 0.0, linger: int = 0
) -> tuple[Episode, Labels]:
    """One episode of any environment, to look at: the expert acts in a built-in task, chance in others."""
    simulation = env.build(1)
    scripted = isinstance(env, PandaConfig)
    act = expert_act_fn(simulation, [outcome], noise, seed) if scripted else RandomPolicy(simulation, seed)
    judge = SimulatorJudge()
    played = collect_rollout(simulation, act, [seed], SuccessDetector(judge, 1), linger=linger)
    shown = played.episodes(simulation, judge)[0]
    simulation.close()
    return shown


class RandomPolicy:
    """For environments that have no expert."""

    def __init__(self, simulation: VecEnv, seed: int):
        self._shape, self._rng = (simulation.num_envs, simulation.action_dim), np.random.default_rng(seed)

    def __call__(self, observation: Observation) -> FloatArray:
        return self._rng.uniform(-1, 1, self._shape).astype(np.float32)


def _as_told(
    env: PandaConfig,
    wanted: Sequence[str],
    noise: float,
    seed: int,
    keep_all: bool,
    linger: int,
    left_out: Counter[str],
) -> Iterator[tuple[str, Episode, Labels]]:
    """Episodes with the wanted outcomes, those of a round together; one that came out otherwise is wanted again."""
    world, judge = env.build(min(SIDE_BY_SIDE, len(wanted))), SimulatorJudge()
    detector = SuccessDetector(judge, world.num_envs)
    told: dict[str, Any] = {"policy": "scripted", "noise": noise}
    waiting, first = list(wanted), seed
    while waiting and first < seed + TRIES * len(wanted) + world.num_envs:
        now, waiting = waiting[: world.num_envs], waiting[world.num_envs :]
        act = expert_act_fn(world, now, noise, seed=first)
        round = collect_rollout(world, act, range(first, first + world.num_envs), detector, linger=linger)
        first += world.num_envs
        for outcome, (episode, labels) in zip(now, round.episodes(world, judge, **told), strict=False):
            if keep_all or labels.success_once == (outcome == "success"):
                yield outcome, replace(episode, meta={**episode.meta, "outcome": outcome}), labels
            else:
                left_out[outcome] += 1
                waiting.append(outcome)
