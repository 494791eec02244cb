from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from counting import CountingSimulation
from driving import Existing, drive
from plaudit.contracts import check_robot
from plaudit.errors import InvalidCommand, RobotError
from plaudit.judges.labeling import SuccessDetector
from plaudit.judges.simulator import SimulatorJudge
from plaudit.registry import ROBOT_REGISTRY
from plaudit.robots.limits import WORKSPACE, connect_robot
from plaudit.robots.sim import SimRobot
from plaudit.rollout.engine import InferenceConfig, Sequential
from plaudit.rollout.vector import collect_rollout
from twins import Waves

LIFT = {"type": "lift", "obs": "both", "cameras": ["front", "wrist"], "image_size": [16, 20], "num_threads": 1}


@pytest.mark.parametrize("env", [LIFT, {"type": "gymnasium", "id": "Pendulum-v1", "fps": 20.0}])
def test_a_simulated_task_keeps_the_robots_contract(env):
    config: Any = ROBOT_REGISTRY.parse({"type": "sim", "env": env, "realtime": False})
    with config.build() as robot:
        check_robot(robot)


def test_the_hand_of_the_panda_stays_within_its_workspace():
    box = {"lower": [0.3, -0.2, 0.05], "upper": [0.55, 0.2, 0.4]}
    tree = {"type": "sim", "env": {"type": "lift", "num_threads": 1}, "realtime": False, "safety": {"workspace": box}}
    config: Any = ROBOT_REGISTRY.parse(tree)
    with ExitStack() as stack:
        robot: Any = connect_robot(config, stack)
        robot.reset(seed=0)
        for _ in range(30):
            robot.act(np.array([1.0, 0.0, 0.0, 1.0], np.float32))  # forward, to the end of the table
            robot.observe()
            assert robot.robot.forward_kinematics(np.zeros(4))[0] < 0.56
        assert robot.limiter.limited == WORKSPACE
        pendulum = {**tree, "env": {"type": "gymnasium", "id": "Pendulum-v1", "fps": 20.0}}
        with pytest.raises(RobotError, match=r"safety\.workspace needs forward kinematics, and those of this robot"):
            connect_robot(ROBOT_REGISTRY.parse(pendulum), stack)


def test_privileged_values_are_recorded_and_may_end_the_episode():
    robot = SimRobot(CountingSimulation(1), realtime=False)
    episode, _ = drive(robot, Waves([0.0]), max_steps=9, seed=3, stop_on="success")
    assert episode.steps == 3 and episode.terminated
    assert episode.success.tolist() == [False, False, True] and episode.state[:, 1].tolist() == [0, 1, 2, 3]


def test_the_failure_of_a_simulation_ends_the_episode_as_terminated():
    """As in `collect_rollout`, which `plaudit train` uses."""
    robot = SimRobot(CountingSimulation(1), realtime=False)
    episode, _ = drive(robot, Waves([0.0]), max_steps=9, seed=-3)
    assert (episode.steps, episode.terminated, episode.meta["ended"]) == (3, True, "failure")
    rollout = collect_rollout(
        CountingSimulation(1), lambda _: np.zeros((1, 1), np.float32), [-3], SuccessDetector(SimulatorJudge(), 1)
    )
    assert (rollout.length.tolist(), rollout.terminated.tolist()) == ([3], [True])


def test_a_simulation_that_has_failed_is_not_stepped_before_its_reset():
    robot = SimRobot(CountingSimulation(1), realtime=False)
    robot.reset(seed=-2)
    counts = []
    for _ in range(4):
        robot.act(np.zeros(1, np.float32))
        counts.append(robot.observe().state[1])
    assert counts == [1, 2, 2, 2]
    robot.reset(seed=-2)
    robot.act(np.zeros(1, np.float32))
    assert robot.observe().state[1] == 1


@pytest.mark.parametrize(("asked", "steps"), [(None, 200), (7, 7)])
def test_an_episode_is_as_long_as_the_simulations_time_limit_unless_another_is_set(asked, steps):
    env = {"type": "gymnasium", "id": "Pendulum-v1", "fps": 20.0}  # it has 200 steps
    robot: Any = ROBOT_REGISTRY.parse({"type": "sim", "env": env, "realtime": False})
    config = InferenceConfig(realtime=False, max_episode_steps=asked)
    with Sequential(robot, Existing(thing=Waves([0.0])), config) as engine:
        (episode,) = engine.episodes(1, seed=0)
    assert (episode.steps, episode.terminated, episode.meta["ended"]) == (steps, False, "steps")


def test_time_passes_with_actions_only():
    robot = SimRobot(CountingSimulation(1), realtime=False)
    robot.reset(seed=9)
    robot.act(np.zeros(1, np.float32))
    assert [robot.observe().state[1] for _ in range(3)] == [1, 1, 1]
    robot.act(np.zeros(1, np.float32))
    robot.hold()
    assert robot.observe().state[1] == 1


def test_what_cannot_be_driven_is_refused():
    robot = SimRobot(CountingSimulation(1), realtime=False)
    with pytest.raises(InvalidCommand, match="takes 1 finite numbers"):
        robot.act(np.array([np.nan], np.float32))
    with pytest.raises(RobotError, match="one environment, this one has 2"):
        SimRobot(CountingSimulation(2))
    timeless = CountingSimulation(1)
    timeless.fps = 0.0
    with pytest.raises(RobotError, match="has no control rate of its own; set hz"):
        SimRobot(timeless)
