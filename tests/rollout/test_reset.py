"""What happens before an episode begins."""

import threading
from pathlib import Path

import numpy as np
import pytest

from plaudit.data.store import Store
from plaudit.errors import DataError, RolloutError
from plaudit.rollout.engine import InferenceConfig, RecordedReset, Sequential
from plaudit.rollout.operator import Operator, OperatorCommand, OperatorConfig
from plaudit.rollout.recording import run_episode
from plaudit.rollout.rtc import Rtc
from plaudit.rollout.run import check_attended
from plaudit.types import Episode
from puppet import CounterConfig, PuppetConfig, lines
from waiting import wait_until


def motion(folder: Path, *values: float) -> Path:
    """A store with a motion of these commands."""
    with Store.create(folder) as store:
        store.append(Episode.of(frames={}, actions=np.repeat(np.array(values, np.float32)[:, None], 2, axis=1)))
    return folder


@pytest.mark.parametrize("engine", [Sequential, pytest.param(Rtc, marks=pytest.mark.slow)])
def test_a_recorded_motion_is_played_before_the_episode_and_is_no_part_of_it(engine, tmp_path):
    reset = {"store": motion(tmp_path / "resets", 7, 8, 9), "backward": True}
    config = InferenceConfig(max_episode_steps=2, reset=reset)
    with engine(PuppetConfig(log=tmp_path / "log"), CounterConfig(), config) as running:
        (episode,) = running.episodes(1, seed=5)
    played = ["reset None", "act 9 9", "act 8 8", "act 7 7", "reset 5", "act 0 0", "act 1 0", "hold"]
    assert lines(tmp_path / "log")[: len(played)] == played
    assert episode.actions[:, 0].tolist() == [0, 1]


def test_a_motion_of_a_reset_ends_when_the_operator_says_so(tmp_path):
    log, operator, config = (
        tmp_path / "log",
        Operator(),
        InferenceConfig(max_episode_steps=2, reset={"store": motion(tmp_path / "resets", *range(9999))}),
    )
    with Rtc(PuppetConfig(log=log), CounterConfig(), config) as engine:
        thread = threading.Thread(target=lambda: operator.wait_until_ready() and [*run_episode(engine, operator)])
        thread.start()
        wait_until(lambda: operator.status.phase == "gate")
        operator.send(OperatorCommand.START)
        wait_until(lambda: len(lines(log)) > 5)
        operator.send(OperatorCommand.PAUSE)
        thread.join()
        assert lines(log)[-1] == "hold" and len(lines(log)) < 9999


def test_a_reset_that_cannot_be_is_refused(tmp_path):
    robot = PuppetConfig(log=tmp_path / "log")
    with Store.create(tmp_path / "other") as store:
        store.append(Episode.of(frames={}, actions=np.zeros((3, 7))))
    with pytest.raises(RolloutError, match="has commands of 7 numbers, and the robot takes 2"):
        Sequential(robot, CounterConfig(), InferenceConfig(reset={"store": tmp_path / "other"}))
    backward = RecordedReset(store=motion(tmp_path / "resets", 1), backward=True)
    with pytest.raises(RolloutError, match=r"velocities .* cannot be replayed backward"):
        Sequential(robot, CounterConfig(), InferenceConfig(reset=backward, idle_action="zero"))
    with pytest.raises(DataError, match="reset=person needs an operator"):
        check_attended(InferenceConfig(reset="person"), None, OperatorConfig(auto=True))
    check_attended(InferenceConfig(reset="person"), None, OperatorConfig(auto=False))
