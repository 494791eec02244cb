"""A puppet that is driven within limits, and stopped: what it receives, and what its episodes tell of it."""

import threading
import time
from pathlib import Path

import numpy as np
import pytest

from plaudit.data.store import Store
from plaudit.errors import RobotError, RolloutError
from plaudit.robots.config import SafetyConfig
from plaudit.rollout.engine import InferenceConfig, Sequential
from plaudit.rollout.rtc import Rtc
from plaudit.rollout.run import record_episodes
from plaudit.types import HUMAN, Observation
from puppet import CounterConfig, HandConfig, Puppet, PuppetConfig, WalkerConfig, lines, received
from waiting import wait_until

both = pytest.mark.parametrize("kind", [Rtc, Sequential])


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@both
def test_what_was_limited_is_in_the_episode_and_in_the_table(kind, log, tmp_path):
    robot = PuppetConfig(log=log, safety=SafetyConfig(upper=(4.0, 9.0)))
    with kind(robot, CounterConfig(), InferenceConfig(max_episode_steps=8)) as engine:
        with Store.create(tmp_path / "store") as store:
            list(record_episodes(engine, store, 1))
            episode = store.episode(0)
        table = dict(engine.latency.table())
    assert episode.actions[:, 0].tolist() == [0, 1, 2, 3, 4, 4, 4, 4]
    assert np.array_equal(episode.actions, received(log))
    assert episode.meta["limited"] == {"position": [[5, 7]]}
    assert table["limited"] == "3 (position 3)"


def test_a_persons_commands_are_limited_as_well(log):
    robot = PuppetConfig(log=log, safety=SafetyConfig(max_velocity=(200.0, 1e6)))  # 2 a step
    hand = HandConfig(first=2, last=3)
    with Sequential(robot, CounterConfig(), InferenceConfig(max_episode_steps=6), hand) as engine:
        (episode,) = engine.episodes(1)
    assert episode.actions[:, 0].tolist() == [0, 1, 3, 5, 4, 5]
    assert episode.control_mode.tolist()[2:4] == [HUMAN] * 2 and episode.meta["limited"] == {"velocity": [[2, 3]]}


@both
def test_an_emergency_stop_ends_the_episode_and_nothing_moves_until_it_is_released(kind, log):
    hand = HandConfig(first=0, last=10**9)  # a person teleoperates all the time, and does not get through either
    with kind(PuppetConfig(log=log), CounterConfig(), InferenceConfig(max_episode_steps=300), hand) as engine:

        def press_when_it_moves() -> None:
            wait_until(lambda: len(lines(log, "act")) > 3)
            engine.emergency_stop.engage("operator")

        presser = threading.Thread(target=press_when_it_moves)
        presser.start()
        episodes = engine.episodes(2)
        first = next(episodes)
        presser.join()
        sent = len(lines(log, "act"))
        assert first.meta["ended"] == "emergency stop (operator)" and not first.terminated
        assert 3 < first.steps <= sent < 300 and lines(log)[-1] == "hold"
        second: list = []
        waiting = threading.Thread(target=lambda: second.append(next(episodes)))
        waiting.start()
        waiting.join(0.3)
        assert len(lines(log, "act")) == sent  # held: neither the policy nor the person moves it
        engine.emergency_stop.release()
        wait_until(lambda: len(lines(log, "act")) > sent)
        engine.stop()
        waiting.join()
        assert second[0].meta["ended"] == "stopped"


@both
def test_an_emergency_stop_on_the_way_to_the_start_pose_begins_the_same_episode_again(kind, log):
    with kind(WalkerConfig(log=log), CounterConfig(), InferenceConfig(max_episode_steps=3)) as engine:
        done: list = []
        driving = threading.Thread(target=lambda: done.extend(engine.episodes(2, seed=7)))
        driving.start()
        wait_until(lambda: lines(log, "move"))
        engine.emergency_stop.engage("operator")
        wait_until(lambda: lines(log, "hold"))
        moved = len(lines(log, "move"))
        driving.join(0.3)
        assert len(lines(log, "move")) == moved < 30  # held
        engine.emergency_stop.release()
        driving.join()
    assert [(episode.meta["seed"], episode.steps) for episode in done] == [(7, 3), (8, 3)]
    assert lines(log, "reset") == ["reset 7", "reset 8"] and len(lines(log, "move")) == moved + 2 * 30


def test_a_run_that_is_stopped_while_the_robot_is_held_ends(log):
    with Sequential(PuppetConfig(log=log), CounterConfig(), InferenceConfig(max_episode_steps=3)) as engine:
        engine.emergency_stop.engage("program")
        threading.Timer(0.1, engine.stop).start()
        assert list(engine.episodes(5)) == [] and not lines(log, "act")


def test_commands_of_a_chunk_that_is_too_old_are_not_sent(log):
    robot = PuppetConfig(log=log, safety=SafetyConfig(stale_chunk_s=0.05))  # 5 steps at 100 Hz
    config = InferenceConfig(max_episode_steps=12, execution_horizon=2)
    with Rtc(robot, CounterConfig(stuck_after=1), config) as engine:
        (episode,) = engine.episodes(1)
    assert episode.actions[:, 0].tolist() == [0, 1, 2, 3, 4, 5] + [5] * 6
    assert episode.meta["limited"] == {"stale chunk": [[6, 11]]}


class SlowEye(Puppet):
    """Its camera takes longer than it may."""

    def observe(self) -> Observation:
        time.sleep(0.05 if self._count == 3 else 0.0)
        return super().observe()


class SlowEyeConfig(PuppetConfig):
    def build(self) -> SlowEye:
        return SlowEye(self)


def test_an_observation_that_is_too_old_ends_the_episode_and_the_robot_holds(log):
    robot = SlowEyeConfig(log=log, fps=1000.0, safety=SafetyConfig(stale_observation_s=0.02))
    with Sequential(robot, CounterConfig(), InferenceConfig(max_episode_steps=9, realtime=False)) as engine:
        episodes = engine.episodes(1)
        assert next(episodes).steps == 2
        with pytest.raises(RolloutError, match=r"an observation took 0\.\d\d s, more than 0\.02 s: it is stale"):
            next(episodes)
    assert lines(log)[-1] == "hold" and len(lines(log, "act")) == 3


def test_a_sequential_policy_infers_again_before_its_chunk_is_too_old(log):
    robot = PuppetConfig(log=log, safety=SafetyConfig(stale_chunk_s=0.05))
    with Sequential(robot, CounterConfig(), InferenceConfig(max_episode_steps=12)) as engine:
        (episode,) = engine.episodes(1)
        assert len(engine.latency.took) == 3
    assert "limited" not in episode.meta


def test_limits_that_do_not_fit_the_robot_are_told_before_anything_moves(log):
    robot = PuppetConfig(log=log, safety=SafetyConfig(max_velocity=(1.0, 1.0, 1.0)))
    with pytest.raises(RobotError, match=r"safety\.max_velocity has 3 numbers for 2 joints"):
        Sequential(robot, CounterConfig())
    assert not lines(log)
