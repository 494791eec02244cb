from collections.abc import Mapping

import numpy as np
import pytest

from driving import drive
from plaudit.errors import RobotError
from plaudit.types import Observation
from tabletop import ScriptedLift, Tabletop


class Counter:
    """A robot whose state is the number of actions so far."""

    cameras: Mapping[str, tuple[int, int]] = {"front": (4, 4)}
    state_dim, action_dim, fps = 1, 1, 10.0

    def __init__(self) -> None:
        self.count, self.held, self.last_command = 0, 0, None

    def reset(self, seed=None):
        self.count = 0
        return self.observe()

    def act(self, action):
        self.count, self.last_command = self.count + 1, action

    def observe(self):
        return Observation({"front": np.full((4, 4, 3), self.count, np.uint8)}, np.array([self.count], np.float32))

    def privileged(self):
        return {"success": np.array(self.count >= 5)}

    def hold(self):
        self.held = self.count


class Chunks(ScriptedLift):
    def predict(self, observation, normalizer=None):
        return np.full((3, 1), observation.state[0], np.float32)


class Failing(ScriptedLift):
    def predict(self, observation, normalizer=None):
        raise RuntimeError("the policy broke")


def test_actions_and_observations_alternate_and_a_chunk_runs_to_its_end():
    robot = Counter()
    episode, _ = drive(robot, Chunks(), max_steps=7)
    assert episode.state[:, 0].tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert episode.actions[:, 0].tolist() == [0, 0, 0, 3, 3, 3, 6]  # what the policy saw when the chunk began
    assert episode.success.tolist() == [False] * 4 + [True] * 3
    assert not episode.terminated and robot.held == 7


def test_an_episode_ends_with_the_flag_it_is_to_stop_on():
    episode, _ = drive(Counter(), Chunks(), max_steps=50, stop_on="success")
    assert episode.steps == 5
    assert episode.terminated


def test_a_robot_is_told_to_hold_when_the_policy_fails():
    robot = Counter()
    robot.held = -1
    assert drive(robot, Failing(), max_steps=5) == (None, "RuntimeError: the policy broke")
    assert robot.held == 0


@pytest.mark.parametrize(
    ("outcome", "succeeds", "grasps"), [("success", True, True), ("miss", False, False), ("drop", False, True)]
)
def test_scripted_episodes_end_as_their_name_says(outcome, succeeds, grasps):
    for seed in range(20):
        episode, _ = drive(Tabletop(), ScriptedLift(outcome), max_steps=40, seed=seed)
        assert bool(episode.success[-1]) == succeeds
        assert bool(episode.privileged["grasp"].any()) == grasps


class Failing4(Counter):
    """Its camera breaks at the fourth look."""

    def observe(self):
        if self.count == 4:
            raise RobotError("the camera is gone")
        return super().observe()


def test_an_episode_that_the_robot_cuts_short_is_kept_up_to_there_with_the_reason():
    robot = Failing4()
    episode, failure = drive(robot, Chunks(), max_steps=50, seed=7)
    assert episode.state[:, 0].tolist() == [0, 1, 2, 3] and episode.steps == 3
    assert episode.meta["ended"] == failure == "the camera is gone" and episode.meta["seed"] == 7
    assert not episode.terminated and robot.held == 4


def test_a_robot_that_cannot_be_told_to_hold_does_not_lose_the_episode():
    class Gone(Failing4):
        deaf = True

        def hold(self):
            if self.deaf:
                self.deaf = False
                raise RobotError("no answer")

    episode, failure = drive(Gone(), Chunks(), max_steps=50)
    assert episode.steps == 3
    assert failure == "the camera is gone; and the robot could not be told to hold: no answer"


def test_a_robot_that_fails_before_the_first_step_leaves_no_episode_and_holds():
    class Broken(Counter):
        def reset(self, seed=None):
            raise RobotError("nobody is there")

    robot = Broken()
    robot.held = -1
    assert drive(robot, Chunks(), max_steps=5) == (None, "nobody is there")
    assert robot.held == 0
