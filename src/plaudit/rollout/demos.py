"""Scripted demonstrations, and failures on demand, into a store with the simulator's verdict on each step."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from plaudit.data.store import Store
from plaudit.envs.panda.config import PandaConfig
from plaudit.policies.expert import ScriptedExpert
from plaudit.rollout.rounds import SimulatorJudge, run_round
from plaudit.types import FloatArray, Observation


@dataclass(frozen=True)
class DemoReport:
    kept: int
    left_out: int  # whose outcome was not the one that was wanted


def record_demos(
    env: PandaConfig,
    store: Store,
    *,
    episodes: int,
    outcomes: Sequence[str] = ("success",),
    noise: float = 0.2,
    seed: int = 0,
    keep_all: bool = False,
    track: Callable[[Sequence[int]], Iterable[int]] = lambda items: items,
) -> DemoReport:
    """Record until `episodes` turned out as wanted, outcomes in turn."""
    world = env.build(1)
    judge = SimulatorJudge()
    left_out = 0
    attempt = 0
    for number in track(range(episodes)):
        outcome = outcomes[number % len(outcomes)]
        while True:
            expert = ScriptedExpert(world, [outcome], noise, seed=seed + attempt)
            played = run_round(world, _from_start(expert), [seed + attempt], judge)
            attempt += 1
            if keep_all or bool(played.succeeded[0]) == (outcome == "success"):
                break
            left_out += 1
        [(episode, labels)] = played.episodes(world, judge.source, outcome=outcome)
        store.ledger.append(store.append(episode), labels)
    return DemoReport(episodes, left_out)


def _from_start(expert: ScriptedExpert) -> Any:
    started = False

    def act(observation: Observation) -> FloatArray:
        nonlocal started
        if not started:
            expert.start()
            started = True
        return expert.act(observation)

    return act
