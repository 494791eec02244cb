"""The limits of commands, one joint at a time or a few."""

import os

import numpy as np
import pytest

from plaudit.config import parse
from plaudit.errors import ConfigError, RobotError
from plaudit.robots.config import SafetyConfig, SafetyLimits
from plaudit.robots.limits import (
    ACCELERATION,
    POSITION,
    VELOCITY,
    WORKSPACE,
    CommandLimiter,
    EmergencyStop,
    EmergencyStopped,
    limited_steps,
)

HZ = 10


def limiter(joints=1, kinematics=None, names=None, **block):
    config = parse(SafetyConfig, block)
    return CommandLimiter(SafetyLimits.of(config, joints, names=names), HZ, kinematics)


def follow(limits, goals, start=0.0):
    """What is sent for a sequence of goals [T, A], and what limited each."""
    limits.restart(np.full(len(goals[0]), start))
    sent, limited = [], []
    for goal in np.asarray(goals, np.float32):
        sent.append(limits.limit(goal))
        limits.sent(sent[-1])
        limited.append(limits.limited)
    return np.stack(sent), limited


def test_a_joint_stays_within_its_positions():
    sent, limited = follow(limiter(lower=-1.0, upper=2.0), [[3.0], [-5.0], [1.5]])
    assert sent.ravel().tolist() == [2.0, -1.0, 1.5]
    assert limited == [POSITION, POSITION, 0]


def test_one_side_may_be_limited_alone():
    sent, limited = follow(limiter(upper=2.0), [[-5.0], [2.00001], [2.0]])
    assert sent.ravel().tolist() == [-5.0, 2.0, 2.0] and limited == [0, POSITION, 0]


def test_a_joint_is_no_faster_than_it_may_be():
    sent, limited = follow(limiter(max_velocity=5.0), [[2.0]] * 5)
    assert sent.ravel().tolist() == [0.5, 1.0, 1.5, 2.0, 2.0]
    assert limited == [VELOCITY, VELOCITY, VELOCITY, 0, 0]


def test_a_joint_speeds_up_and_brakes_with_its_acceleration_and_does_not_pass_its_goal():
    sent, limited = follow(limiter(max_acceleration=10.0), [[0.9]] * 8)
    assert sent.ravel() == pytest.approx([0.1, 0.3, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9], abs=1e-6)
    assert limited[:4] == [ACCELERATION] * 4 and not any(limited[4:])


def test_a_joint_brakes_in_time_for_its_position_limit():
    goals = [[0.1], [0.3], [0.6], [1.0], [1.4], [1.8]]  # within the speed and the acceleration, up to the limit
    sent, _ = follow(limiter(upper=1.0, max_acceleration=10.0), goals)
    steps = np.diff(np.concatenate([[0.0], sent.ravel()]))
    assert sent.max() <= 1.0 and sent[-1] == pytest.approx(1.0)
    assert np.abs(np.diff(np.concatenate([[0.0], steps]))).max() <= 0.1 + 1e-6


def test_commands_that_keep_the_limits_pass_unchanged():
    goals = 0.3 * (1 - np.cos(0.15 * np.arange(100)))[:, None] * [1.0, -1.0]
    sent, limited = follow(limiter(2, lower=-1.0, upper=1.0, max_velocity=0.6, max_acceleration=0.8), goals)
    assert np.array_equal(sent, goals.astype(np.float32)) and not any(limited)


def test_whatever_is_wanted_no_limit_is_passed():
    rng = np.random.default_rng(0)
    limits = limiter(8, lower=-1.0, upper=1.0, max_velocity=1.5, max_acceleration=10.0)
    goals = np.where(rng.random((400, 8)) < 0.2, rng.uniform(-2, 2, (400, 8)), np.nan)
    goals[0] = 0.0
    for row in range(1, 400):
        goals[row] = np.where(np.isnan(goals[row]), goals[row - 1] + rng.normal(0, 0.1, 8), goals[row])
    sent, _ = follow(limits, np.concatenate([goals, np.zeros((60, 8))]))
    steps = np.diff(sent.astype(np.float64), axis=0, prepend=0.0)
    assert np.abs(sent).max() <= 1.0
    assert np.abs(steps).max() <= 1.5 / HZ + 2e-6
    assert np.abs(np.diff(steps, axis=0, prepend=0.0)).max() <= 10.0 / HZ**2 + 4e-6
    assert np.abs(sent[-1]).max() < 1e-6  # it comes to where it was sent in the end


def test_the_first_command_ramps_from_where_the_joints_are():
    sent, _ = follow(limiter(max_velocity=1.0, max_acceleration=5.0), [[3.0]] * 3, start=2.0)
    assert sent.ravel() == pytest.approx([2.05, 2.15, 2.25])


def test_a_hand_stays_in_its_box_and_may_come_back_from_outside():
    box = {"lower": [-1.0, -1.0, 0.0], "upper": [1.0, 1.0, 1.0]}

    def hand(command):
        return np.array([command[0], 0.0, 0.5])

    limits = limiter(1, hand, workspace=box, max_velocity=4.0, max_acceleration=10.0)
    sent, limited = follow(limits, [[3.0]] * 12)
    assert sent.max() <= 1.0 and sent[-1] > 0.8
    assert any(bits & WORKSPACE for bits in limited)
    back, limited = follow(limits, [[0.0]] * 12, start=2.0)
    assert back[-1] == pytest.approx(0.0) and not any(bits & WORKSPACE for bits in limited)


def test_nothing_gets_through_an_emergency_stop_until_it_is_released():
    limits = limiter()
    limits.restart(np.zeros(1))
    limits.emergency_stop.engage("operator")
    limits.emergency_stop.engage("topic")
    limits.emergency_stop.release("topic")  # a node that says "false" does not overrule the person
    with pytest.raises(EmergencyStopped, match=r"emergency stop \(operator\)"):
        limits.limit(np.zeros(1, np.float32))
    limits.emergency_stop.release()
    assert limits.limit(np.ones(1, np.float32)) == 1.0


def test_an_emergency_stop_is_one_latch_for_all_who_share_it():
    stop = EmergencyStop()
    there = EmergencyStop(os.dup(stop.descriptor))
    there.engage("program")
    assert stop.engaged and stop.sources == ("program",)
    stop.release()
    assert not there.engaged


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ({"max_velocity": [1.0, 2.0, 3.0]}, "safety.max_velocity has 3 numbers for 2 joints; write one, or one for"),
        ({"upper": {"ellbow": 1.0}}, "safety.upper names joint 'ellbow', which .* not have; did you mean 'elbow'"),
        ({"lower": 1.0, "upper": {"wrist": 0.5}}, "joint 'wrist' may be nowhere: its lower limit is 1, its upper 0.5"),
        ({"workspace": {"lower": [0, 0, 0], "upper": [1, 1, 1]}}, "safety.workspace needs forward kinematics, and "),
    ],
)
def test_a_limit_that_cannot_be_is_said(block, message):
    with pytest.raises(RobotError, match=message):
        limiter(2, names=("elbow", "wrist"), **block)


def test_joints_without_names_are_not_named():
    with pytest.raises(RobotError, match=r"safety\.upper names joints, and those of this robot have no names; write 2"):
        limiter(2, upper={"elbow": 1.0})


def test_a_box_whose_sides_are_swapped_is_said():
    with pytest.raises(ConfigError, match=r"workspace's z goes from 1\.0 to 0\.0; lower must be below upper"):
        limiter(1, workspace={"lower": [0, 0, 1], "upper": [1, 1, 0]})


def test_the_steps_that_were_limited_are_told_as_spans():
    bits = [0, VELOCITY, VELOCITY, 0, VELOCITY | POSITION]
    assert limited_steps(bits) == {"velocity": [[1, 2], [4, 4]], "position": [[4, 4]]}
