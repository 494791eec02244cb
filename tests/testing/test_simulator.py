"""Simulated runs: some seeds in which nothing is violated, and violations that are put there and must be found."""

import multiprocessing
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from plaudit.contracts import check_learner, check_vec_env
from plaudit.data.batch import FeatureCache
from plaudit.data.demonstrations import steps_to_clone
from plaudit.data.replay import ReplaySampler
from plaudit.data.step_table import StepTable
from plaudit.data.store import Store
from plaudit.testing.env import SimulatedEnvConfig
from plaudit.testing.keys import NEVER, any_value, belongs, leaves
from plaudit.testing.learner import ENCODER, SimulatedLearnerConfig
from plaudit.testing.people import TELEOP
from plaudit.testing.runner import Result, simulate
from plaudit.testing.scenario import FIXED, INTERVENTIONS, KEYS, RECORDING, SETTINGS, Event, Scenario, draw, every_key
from plaudit.testing.studies import Rate, describe, shrink
from plaudit.training.monitor import JudgeMonitor
from plaudit.training.online import OnlineSchedule
from plaudit.training.replay_buffer import StateManager
from plaudit.types import EnvSpec

# Drawn before there were keys of a person who takes over, which are left out. They were killed with a full store,
# between an alarm and its checkpoint, and while a store was created. In 820278 an operator repeats episodes of a silent
# robot, in 901162 the disk is full when a session starts, and 913174 is killed before the checkpoint of the policy that
# has reached the success rate to stop at. 920996 is resumed after an alarm.
BEFORE_TELEOP = (600338, 600653, 800095, 820278, 901162, 913174, 920996)
LATER = (  # these neither
    *(RECORDING, "learner.real", "policy.cameras", "policy.encoder.", "learner.interventions.successes"),
    *("run.store_images", "run.compress_old", "audit.onset_tolerance", "collect.target_failure"),
    *("policy.behavior", SETTINGS),
)
NO_DEMOS = 20_002_617  # people excluded some demonstrations, and the judge cannot label the others
# Short runs that together have every schedule, judge and kind of fault, and those that take longer.
FEW = (2, 3, 4, 5, 10, 13, 14, 15, 18, 44, 55, 60, 83, 87, 111, 119, *BEFORE_TELEOP[3:6], NO_DEMOS)
MANY = (*sorted({*range(24), 438, *BEFORE_TELEOP} - {*FEW}), *range(1000, 4000))
PLAIN = Scenario(5, "online", "simulator", {"env.fails": False}, episodes=8)


def run(seed: int) -> Result:
    if seed not in BEFORE_TELEOP:
        return simulate(draw(seed))
    scenario, later = draw(seed, without=LATER), ("teleop", INTERVENTIONS)
    return simulate(replace(scenario, keys={k: v for k, v in scenario.keys.items() if not k.startswith(later)}))


@pytest.mark.parametrize("seed", FEW)
def test_nothing_is_violated(seed):
    result = run(seed)
    assert result.violation is None, describe(result)


@pytest.mark.slow
def test_nothing_is_violated_in_many_runs():
    with multiprocessing.get_context("fork").Pool(2) as pool:
        broken = [result for result in pool.imap_unordered(run, MANY, chunksize=4) if result.violation is not None]
    assert not broken, "\n\n".join(describe(result) for result in broken[:3])


def test_the_same_seed_is_the_same_run():
    one, other = (simulate(replace(PLAIN, events=(Event("kill", 60), Event("stop", 9)))) for _ in range(2))
    assert one.log == other.log and one.counts == other.counts and one.counts["kills"] == 1


def test_the_simulated_parts_keep_their_contracts():
    check_vec_env(SimulatedEnvConfig().build(3))
    check_learner(SimulatedLearnerConfig(), EnvSpec(4, 2, {}))


def violated(scenario: Scenario) -> str:
    found = simulate(scenario).violation
    return "" if found is None else found.invariant


def test_a_wrong_reward_is_found(monkeypatch):
    sample = ReplaySampler.sample
    monkeypatch.setattr(ReplaySampler, "sample", lambda *args: _more(sample(*args)))
    assert violated(PLAIN) == "paid_right"


def _more(batch):
    batch.reward[0] += 0.5
    return batch


def test_an_episode_that_is_lost_by_a_stop_is_found(monkeypatch):
    close = Store.close

    def forgetful(store):
        if store._lock is not None and len(store) > 2:
            store._journal.append([{"op": "drop", "ids": [1]}], exclusive=True)
        close(store)

    scenario = replace(PLAIN, events=(Event("stop", 8),))
    assert violated(scenario) == ""
    monkeypatch.setattr(Store, "close", forgetful)
    assert violated(scenario) == "no_loss"


def test_weights_that_go_back_are_found(monkeypatch):
    real = StateManager.status

    def status(self):
        told = real(self)
        return replace(told, version=told.version if told.version < 3 else 1)

    monkeypatch.setattr(StateManager, "status", status)
    assert violated(replace(PLAIN, keys={**PLAIN.keys, "run.publish_freq": 1})) == "versions_grow"


def test_labels_of_a_stopped_judge_are_found_where_they_are_sampled(monkeypatch):
    keys, errors = {**PLAIN.keys, "audit.first_episodes": 5}, {"false": 1.0}
    events = (Event("replace", 300, "model"), Event("slow", 0, "judge", 2))
    scenario = replace(PLAIN, judge="classifier", keys=keys, errors=errors, events=events, episodes=12)
    assert violated(scenario) == ""
    monkeypatch.setattr(JudgeMonitor, "rejected", frozenset())
    unblocked = property(lambda schedule: schedule.has_samples and not schedule.monitor.blocks_learning)
    monkeypatch.setattr(OnlineSchedule, "can_learn", unblocked)
    assert violated(scenario) == "stopped_judge"


HELPED = replace(PLAIN, keys={**PLAIN.keys, "teleop": {"type": TELEOP}, "demos.made": 2}, episodes=6)


def test_interventions_are_sampled_and_one_of_another_step_is_found(monkeypatch):
    result = simulate(HELPED)
    assert result.violation is None, describe(result)
    assert result.counts["sampled interventions"] > 20

    def shifted(control_mode, *, demonstrations):  # as if a row were one too late
        return np.roll(steps_to_clone(control_mode, demonstrations=demonstrations), 1)

    monkeypatch.setattr("plaudit.data.step_table.steps_to_clone", shifted)
    assert violated(HELPED) == "interventions"


def test_the_successes_of_a_run_are_imitated_and_a_failure_that_is_imitated_is_found(monkeypatch):
    steps = {"env.max_steps": 6, "policy.inference.max_episode_steps": 6}
    keys = {**PLAIN.keys, **steps, "learner.real": "weighted_bc", "learner.utd_ratio": 1.0}
    scenario = replace(PLAIN, keys=keys)
    result = simulate(scenario)
    assert result.violation is None, describe(result)
    assert result.counts["sampled interventions"] > 5
    every = lambda control_mode, **_: np.arange(len(control_mode), 0, -1, dtype=np.int32)  # noqa: E731
    monkeypatch.setattr("plaudit.data.step_table.steps_to_clone", every)
    assert violated(scenario) == "interventions"


def test_an_intervention_that_a_person_excluded_is_found_where_it_is_sampled(monkeypatch):
    cloned: Any = StepTable.cloned.fget
    forgotten = property(lambda table: (np.flatnonzero(table._rows["cloned"][: table._used]), cloned(table)[1]))
    keys = {**HELPED.keys, "teleop": {"type": TELEOP, "helps": 1.0}}
    excluded = (Event("person", 8, "exclude", 0), Event("person", 9, "exclude", 1))
    scenario = replace(HELPED, keys=keys, events=excluded, episodes=12)
    assert violated(scenario) == ""
    monkeypatch.setattr(StepTable, "cloned", forgotten)
    assert violated(scenario) == "paid_right"


ENCODED = {"demos.made": 2, "policy.cameras": ("front",), "policy.encoder.type": ENCODER}


@pytest.mark.parametrize("schedule", [pytest.param("train", marks=pytest.mark.slow), "online"])
def test_features_of_another_frame_are_found_whatever_learns_from_them(schedule, monkeypatch):
    keys = {**PLAIN.keys, **ENCODED, "learner.real": "dagger"}
    scenario = replace(PLAIN, schedule=schedule, keys=keys, events=(Event("kill", 60),), episodes=6)
    result = simulate(scenario)
    assert result.violation is None, describe(result)
    assert result.counts["sampled features"] > 5 and result.counts["kills"] == 1
    features = FeatureCache.features
    late = lambda *args: {camera: np.roll(rows, 1, axis=0) for camera, rows in features(*args).items()}  # noqa: E731
    monkeypatch.setattr(FeatureCache, "features", late)
    assert violated(scenario) == "images"


MARKED = tuple(Event("operator", n, mark, 2) for n, mark in enumerate(("discard", "success", "failure", "repeat")))
RECORDED = Scenario(5, RECORDING, "simulator", events=MARKED, episodes=4)


@pytest.mark.parametrize("kill", [20, 35, 50, *(pytest.param(n, marks=pytest.mark.slow) for n in range(23, 60, 6))])
def test_a_recording_that_is_killed_keeps_marks_and_begins_each_episode_differently(kill):
    result = simulate(replace(RECORDED, events=(*MARKED, Event("kill", kill))))
    assert result.violation is None, describe(result)
    assert result.counts["kills"] == 1 and result.counts["operator commands"] > 3


def test_a_discarded_episode_that_is_kept_is_found(monkeypatch):
    monkeypatch.setattr("plaudit.rollout.run.is_discarded", lambda _: False)
    assert violated(RECORDED) == "recorded"


def test_a_scenario_is_shrunk_to_what_matters(monkeypatch):
    sample = ReplaySampler.sample
    monkeypatch.setattr(ReplaySampler, "sample", lambda *args: _more(sample(*args)))
    large = replace(PLAIN, events=(Event("stop", 40), Event("unreachable", 30, number=5)), episodes=20)
    small = shrink(simulate(large), max_runs=8).scenario
    assert small.events == () and len(small.keys) < len(large.keys) and small.episodes == 5


def test_a_rate_is_broken_only_beyond_chance():
    assert Rate("a", 0.05, 6, 100).holds and not Rate("a", 0.05, 15, 100).holds
    low, high = Rate("a", 0.05, 0, 100).bound(0.95)
    assert low == 0 and high == pytest.approx(1 - 0.05**0.01, abs=1e-6)


def test_a_scenario_draws_what_validation_accepts():
    keys = {key for seed in range(60) for key in draw(seed).keys}
    assert len(keys) > 70 and np.mean([len(draw(seed).keys) for seed in range(20)]) > 4


def test_every_key_of_the_configs_is_drawn_or_has_a_reason_not_to_be():
    keys = every_key()
    drawn = {*FIXED, *KEYS, *(key for key in keys for n in range(9) if any_value(keys[key], key, n) != keys[key][1])}
    assert not [key for key in keys if not belongs(key, {*drawn, *NEVER})]
    assert not [name for name in NEVER if not any(belongs(key, [name]) for key in keys)]


def test_a_value_lies_within_its_bounds_and_is_no_larger_than_is_fast():
    keys = leaves(PLAIN.accepted())
    for n in range(200):
        assert 0 < any_value(keys["learner.utd_ratio"], "learner.utd_ratio", n) <= 2
        assert 0 <= any_value(keys["learner.gamma"], "learner.gamma", n) <= 1
        assert 1 <= any_value(keys["learner.batch_size"], "learner.batch_size", n) <= 32
