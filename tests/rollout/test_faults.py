"""Faults that pass: the episode is kept and says why it ended, the robot holds, and the same engine goes on."""

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plaudit.data.store import Store
from plaudit.errors import RobotSilent, RolloutError, RolloutFault
from plaudit.rollout.engine import InferenceConfig, Sequential
from plaudit.rollout.operator import Operator, OperatorCommand
from plaudit.rollout.rtc import Rtc
from plaudit.rollout.run import record_episodes
from plaudit.types import Episode, Observation, PolicyWeights
from puppet import CounterConfig, Puppet, PuppetConfig, lines
from slow import slow_but
from waiting import wait_until

LONG = InferenceConfig(max_episode_steps=100_000, execution_horizon=5)
both = pytest.mark.parametrize("kind", [Rtc, Sequential])


def when_moving(log: Path, then: Callable[[], object]) -> None:
    """Call something once the robot has moved a little, from another thread."""
    before = len(lines(log, "act"))

    def wait() -> None:
        wait_until(lambda: len(lines(log, "act")) > before + 3)
        then()

    threading.Thread(target=wait).start()


def interrupted(engine: Any, log: Path, fault: Callable[[], object]) -> tuple[Episode, str]:
    """The episode in which a fault begins, and what is told of it."""
    when_moving(log, fault)
    episodes = engine.episodes(2)
    episode = next(episodes)
    with pytest.raises(RolloutFault) as told:
        next(episodes)
    assert str(told.value) == episode.meta["ended"] and episode.steps > 0
    assert lines(log)[-1] == "hold"
    return episode, str(told.value)


def assert_goes_on(engine: Any, log: Path) -> None:
    """It drives, with the weights that it had."""
    when_moving(log, engine.stop)
    (episode,) = engine.episodes(1)
    assert episode.meta["ended"] == "stopped" and episode.meta["weights"] == 3
    assert episode.actions[0, 1] >= 3000  # as the policy acts with version 3


def weights() -> PolicyWeights:
    return PolicyWeights(3, {"net/version": np.array([3.0], np.float32)})


@both
@pytest.mark.parametrize(
    ("what", "told"),
    [("silent", "camera 'front' is silent"), pytest.param("away", "the server is away", marks=pytest.mark.slow)],
)
def test_a_silent_robot_or_policy_that_is_back_is_driven_again(kind, what, told, tmp_path):
    log, fault = tmp_path / "log", tmp_path / "fault"
    robot = PuppetConfig(log=log, silent=fault if what == "silent" else None)
    with kind(robot, CounterConfig(away=fault if what == "away" else None), LONG) as engine:
        engine.push(weights())
        _, said = interrupted(engine, log, fault.touch)
        assert said == told
        with pytest.raises(RolloutFault, match=f"^{told}$"):
            engine.recover()
        fault.unlink()
        engine.recover()
        assert_goes_on(engine, log)


@pytest.mark.parametrize("who", slow_but("control", of=["control", "inference"]))
def test_a_process_that_was_killed_is_started_again(who, tmp_path):
    log = tmp_path / "log"
    with Rtc(PuppetConfig(log=log), CounterConfig(), LONG) as engine:
        engine.push(weights())
        _, said = interrupted(engine, log, lambda: os.kill(engine.pids[who], signal.SIGKILL))
        assert said == f"the {who} process was killed by SIGKILL"
        with pytest.raises(RolloutFault, match="recover"):
            next(engine.episodes(1))
        engine.recover()
        assert_goes_on(engine, log)


def test_a_command_goes_on_by_itself_and_every_episode_is_stored(tmp_path):
    fault, told = tmp_path / "fault", []
    config = InferenceConfig(max_episode_steps=20, realtime=False)

    def on_fault(sentence: str) -> None:
        told.append(sentence)
        fault.unlink()

    with (
        Sequential(PuppetConfig(log=tmp_path / "log", silent=fault), CounterConfig(), config) as engine,
        Store.create(tmp_path / "store") as store,
    ):
        ids = (done.id for done in record_episodes(engine, store, 3, seed=7, patience_s=60, on_fault=on_fault))
        next(ids)
        fault.touch()  # the second episode begins with it, so there is nothing of it to keep
        assert list(ids) == [1, 2] and told == ["camera 'front' is silent"]
        assert [episode.meta["seed"] for _, episode in store] == [7, 8, 9]


def test_a_robot_that_stays_silent_ends_the_command_with_a_sentence(tmp_path):
    fault = tmp_path / "fault"
    fault.touch()
    robot = PuppetConfig(log=tmp_path / "log", silent=fault)
    with (
        Sequential(robot, CounterConfig(), InferenceConfig(max_episode_steps=5, realtime=False)) as engine,
        Store.create(tmp_path / "store") as store,
        pytest.raises(RolloutError, match=r"^camera 'front' is silent; it did not recover within 0.1 s$"),
    ):
        list(record_episodes(engine, store, 3, patience_s=0.1))


def test_an_operator_stops_a_run_that_waits_for_a_silent_robot(tmp_path):
    fault, operator = tmp_path / "fault", Operator(gate=False)
    fault.touch()

    class Watched(Sequential):
        def recover(self) -> None:
            operator.send(OperatorCommand.STOP)
            super().recover()

    robot, config = PuppetConfig(log=tmp_path / "log", silent=fault), InferenceConfig(realtime=False)
    with Watched(robot, CounterConfig(), config) as engine, Store.create(tmp_path / "store") as store:
        assert list(record_episodes(engine, store, 3, operator=operator, patience_s=1e6)) == []


class Flaky(Puppet):
    """Sends nothing after its third command, until it is connected again."""

    def observe(self) -> Observation:
        if self._count == 3:
            raise RobotSilent("camera 'front' is silent")
        return super().observe()


class FlakyConfig(PuppetConfig):
    def build(self) -> Flaky:
        return Flaky(self)


def test_a_robot_that_faults_in_every_episode_ends_the_command(tmp_path):
    config = InferenceConfig(max_episode_steps=5, realtime=False)
    with (
        Sequential(FlakyConfig(log=tmp_path / "log"), CounterConfig(), config) as engine,
        Store.create(tmp_path / "store") as store,
        pytest.raises(RolloutError, match=r"^camera 'front' is silent; it did not recover within 0.05 s$"),
    ):
        list(record_episodes(engine, store, 10_000, patience_s=0.05))


def test_a_command_that_was_stopped_begins_no_other_episode(tmp_path):
    config = InferenceConfig(max_episode_steps=5, realtime=False)
    with (
        Sequential(PuppetConfig(log=tmp_path / "log"), CounterConfig(), config) as engine,
        Store.create(tmp_path / "store") as store,
    ):
        ids = (done.id for done in record_episodes(engine, store, 10))
        assert next(ids) == 0
        engine.stop()
        assert list(ids) == []
