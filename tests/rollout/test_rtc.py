"""Two processes that drive a puppet: what is sent, recorded and measured while nothing goes wrong."""

import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from plaudit.data.store import Store
from plaudit.errors import RolloutError
from plaudit.rollout.engine import InferenceConfig, Sequential
from plaudit.rollout.rtc import Rtc
from plaudit.rollout.run import record_episodes
from plaudit.types import HUMAN, POLICY, PolicyWeights
from puppet import CounterConfig, HandConfig, PuppetConfig, lines, received
from waiting import wait_until


def version(number: int) -> PolicyWeights:
    return PolicyWeights(number, {"net/version": np.array([number])})


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


both = pytest.mark.parametrize("kind", [Rtc, Sequential])
both_but_slowly = pytest.mark.parametrize("kind", [pytest.param(Rtc, marks=pytest.mark.slow), Sequential])


@both
def test_an_episode_is_what_the_robot_says_it_received(kind, log):
    with kind(PuppetConfig(log=log), CounterConfig(), InferenceConfig(max_episode_steps=20)) as engine:
        (episode,) = engine.episodes(1, task="count", seed=7)
    assert np.array_equal(episode.actions, received(log))
    assert episode.actions[:, 0].tolist() == list(range(20))
    assert episode.state[:, 0].tolist() == list(range(21))
    assert (episode.frames["wrist"][5] == 6).all()
    assert (episode.control_mode == POLICY).all()
    assert (episode.task, episode.fps, episode.robot, episode.terminated) == ("count", 100.0, "Puppet", False)
    assert episode.meta["ended"] == "steps" and episode.meta["seed"] == 7
    assert log.read_text().startswith("reset 7") and log.read_text().endswith("hold\n")


@both_but_slowly
def test_episodes_go_on_from_seed_to_seed_and_earlier_ones_stay_what_they_were(kind, log, tmp_path):
    with kind(PuppetConfig(log=log), CounterConfig(), InferenceConfig(max_episode_steps=4)) as engine:
        episodes = list(engine.episodes(2, seed=3))
        with Store.create(tmp_path / "store") as store:
            assert [done.id for done in record_episodes(engine, store, 1)] == [0]
            assert store.episode(0).actions[:, 0].tolist() == [0, 1, 2, 3]
    assert [episode.meta["seed"] for episode in episodes] == [3, 4]
    assert all(episode.state[:, 0].tolist() == [0, 1, 2, 3, 4] for episode in episodes)
    assert engine.latency.ticks == 12


@both_but_slowly
def test_what_only_a_simulation_knows_is_recorded_and_may_end_the_episode(kind, log):
    config = InferenceConfig(max_episode_steps=20, stop_on="success")
    with kind(PuppetConfig(log=log, succeeds_at=6), CounterConfig(), config) as engine:
        (episode,) = engine.episodes(1)
    assert episode.success is not None and episode.success.tolist() == [False] * 5 + [True]
    assert episode.terminated and episode.meta["ended"] == "success"


@both_but_slowly
def test_the_failure_of_a_simulation_ends_the_episode(kind, log):
    config = InferenceConfig(max_episode_steps=20)
    with kind(PuppetConfig(log=log, loses_at=6), CounterConfig(), config) as engine:
        (episode,) = engine.episodes(1)
    assert (episode.steps, episode.terminated, episode.meta["ended"]) == (6, True, "failure")
    assert len(received(log)) == 6


@both_but_slowly
def test_no_command_is_further_from_the_last_than_it_may_be(kind, log):
    config = InferenceConfig(max_episode_steps=8, max_action_delta=(0.25, 1.0))
    with kind(PuppetConfig(log=log), CounterConfig(amount=-1.0), config) as engine:
        (episode,) = engine.episodes(1)
    assert episode.actions[:, 0].tolist() == [0, -0.25, -0.5, -0.75, -1, -1.25, -1.5, -1.75]
    assert np.array_equal(episode.actions, received(log))


@both
def test_a_person_takes_over_and_gives_back(kind, log):
    hand = HandConfig(first=5, last=34)
    with kind(PuppetConfig(log=log), CounterConfig(), InferenceConfig(max_episode_steps=38), hand) as engine:
        (episode,) = engine.episodes(1)
    assert episode.control_mode.tolist() == [POLICY] * 5 + [HUMAN] * 30 + [POLICY] * 3
    assert episode.actions[:, 0].tolist() == [0, 1, 2, 3, 4, *[500] * 30, 35, 36, 37]
    assert np.array_equal(episode.actions, received(log))


def test_a_person_may_add_to_what_was_sent_before(log):
    hand = HandConfig(first=2, last=4, command=10, relative=True)
    with Sequential(PuppetConfig(log=log), CounterConfig(), InferenceConfig(max_episode_steps=6), hand) as engine:
        (episode,) = engine.episodes(1)
    assert episode.actions[:, 0].tolist() == [0, 1, 11, 21, 31, 5]


@both
def test_new_weights_wait_for_the_next_episode_unless_told_otherwise(kind, log):
    config = InferenceConfig(max_episode_steps=12, execution_horizon=2)
    with kind(PuppetConfig(log=log), CounterConfig(), config) as engine:
        episodes = engine.episodes(3)
        first = next(episodes)
        engine.push(version(2))
        second = next(episodes)
        engine.push(version(3), now=True)
        third = next(episodes)
    assert [episode.meta["weights"] for episode in (first, second, third)] == [0, 2, 3]
    assert (second.actions[:, 1] // 1000 == 2).all()


@pytest.mark.slow
def test_weights_pushed_at_once_change_an_episode_that_is_under_way(log):
    def push() -> None:
        wait_until(lambda: lines(log, "act"))
        engine.push(version(5), now=True)
        wait_until(lambda: received(log)[-1, 1] >= 5000)
        engine.stop()

    with Rtc(
        PuppetConfig(log=log), CounterConfig(), InferenceConfig(max_episode_steps=10_000, execution_horizon=2)
    ) as engine:
        threading.Thread(target=push).start()
        (episode,) = engine.episodes(1)
    assert episode.meta["weights"] == 0 and episode.meta["ended"] == "stopped"
    ((step, new),) = episode.meta["weights_changed"]
    assert new == 5 and (episode.actions[:step, 1] < 1000).all() and episode.actions[-1, 1] >= 5000


def test_the_delay_is_measured_in_steps_and_told_to_the_policy(log):
    config = InferenceConfig(max_episode_steps=60, execution_horizon=10)
    with Rtc(PuppetConfig(log=log), CounterConfig(took=0.2), config) as engine:
        (episode,) = engine.episodes(1)
    assert engine.latency.delay[1:].min() >= 4  # of 20 on a quiet machine, whose ticks are 10 ms
    assert episode.actions[-1, 1] >= 5
    assert episode.actions[:, 0].tolist() == list(range(60))  # and each command stands at its step all the same


def test_a_policy_that_is_too_slow_for_its_chunks_is_refused_before_anything_moves(log):
    sentence = r"takes \d+ control steps \(\d+ ms at 100 Hz\): .* a horizon of at least \d+, or an inference within 5"
    with pytest.raises(RolloutError, match=sentence):
        Rtc(PuppetConfig(log=log), CounterConfig(horizon=10, warmup_took=0.1))
    assert set(lines(log)) == {"hold"}
    with Rtc(PuppetConfig(log=log), None) as engine, pytest.raises(RolloutError, match=sentence):
        engine.load_policy(CounterConfig(horizon=10, warmup_took=0.1))


@pytest.mark.slow
def test_the_first_delay_that_a_policy_is_told_is_that_of_its_warm_up(log):
    config = InferenceConfig(max_episode_steps=30, execution_horizon=20)
    with Rtc(PuppetConfig(log=log), CounterConfig(warmup_took=0.1), config) as engine:
        assert "20 of 100 actions executed, 20 steps fit" in engine.inference_summary
        (episode,) = engine.episodes(1)
    assert episode.actions[-1, 1] >= 10  # of 10 ms each
    assert episode.meta["guided_fraction"] == 1


@pytest.mark.slow
def test_without_guidance_each_chunk_is_the_policys_own(log):
    config = InferenceConfig(max_episode_steps=30, execution_horizon=5, guidance=False)
    with Rtc(PuppetConfig(log=log), CounterConfig(), config) as engine:
        (episode,) = engine.episodes(1)
    assert (episode.actions[:, 1] == 0).all()


@pytest.mark.parametrize(("idle", "sent"), [("repeat", 3.0), pytest.param("zero", 0.0, marks=pytest.mark.slow)])
def test_where_a_chunk_runs_out_the_robot_gets_what_is_safe(log, idle, sent):
    config = InferenceConfig(max_episode_steps=7, idle_action=idle)
    with Rtc(PuppetConfig(log=log), CounterConfig(horizon=4, took=2.0), config) as engine:
        (episode,) = engine.episodes(1)
    assert engine.latency.held.tolist() == [False] * 4 + [True] * 3
    assert (episode.meta["held_ticks"], episode.meta["starved_chunks"]) == (3, 1)
    assert episode.actions[:, 0].tolist() == [0, 1, 2, 3, sent, sent, sent]
    assert np.array_equal(episode.actions, received(log))


def test_the_process_that_controls_has_no_torch(log, monkeypatch, fresh_interpreters):
    monkeypatch.setitem(sys.modules, "torch", sys)  # whoever starts it may have
    with Rtc(
        PuppetConfig(log=log, tells_modules=True), CounterConfig(), InferenceConfig(max_episode_steps=2)
    ) as engine:
        list(engine.episodes(1))
    (modules,) = lines(log, "modules")
    assert "numpy" in modules.split() and "torch" not in modules.split()


def test_frames_reach_the_policy_without_a_copy(log):
    with Rtc(
        PuppetConfig(log=log), CounterConfig(refuses_copies=True), InferenceConfig(max_episode_steps=10)
    ) as engine:
        (episode,) = engine.episodes(1)
    assert episode.steps == 10


def test_a_config_that_no_other_process_finds_is_refused(log, monkeypatch):
    monkeypatch.setattr(PuppetConfig, "__module__", "__main__")
    with pytest.raises(RuntimeError, match="put it into a module of its own"):
        Rtc(PuppetConfig(log=log), CounterConfig())


@both
def test_a_policy_may_come_after_the_robot_which_is_connected_once(log, kind):
    config = PuppetConfig(log=log, tells_builds=True)
    with kind(config, None, InferenceConfig(max_episode_steps=3)) as engine:
        assert (engine.env_spec.state_dim, engine.env_spec.action_dim) == (1, 2)
        with pytest.raises(RolloutError, match="has no policy yet"):
            next(engine.episodes(1))
        engine.load_policy(CounterConfig())
        (episode,) = engine.episodes(1)
    assert episode.steps == 3 and lines(log, "built") == ["built"]
