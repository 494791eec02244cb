"""Commands of `lerobot-record`, read by `plaudit record`."""

import shlex

import pytest
import typer

from plaudit.cli.record import translated


def test_a_command_of_lerobot_record_becomes_ours():
    line = (
        "demos --robot.type=so101_follower --robot.port /dev/a --robot.cameras='{front: {type: opencv}}' "
        "--teleop.type=so101_leader --teleop.id=blue --dataset.num_episodes=5 --dataset.single_task='Grab it' --steps 9"
    )
    assert list(translated(shlex.split(line))) == [
        *("demos", "--robot", "lerobot", "robot.robot_type=so101_follower", "robot.options.port=/dev/a"),
        *("robot.options.cameras={front: {type: opencv}}", "--teleop", "lerobot", "teleop.teleop_type=so101_leader"),
        *("teleop.options.id=blue", "--episodes", "5", "--task", "Grab it", "--steps", "9"),
    ]


def test_our_own_robots_and_flags_stay():
    assert list(translated(["--robot.type=igris_b", "--robot", "sim"])) == ["--robot", "igris_b", "--robot", "sim"]


def test_a_flag_that_is_not_needed_says_what_to_do():
    with pytest.raises(typer.BadParameter, match="in plaudit, use --steps, the number of control steps"):
        list(translated(["--dataset.episode_time_s=30"]))
