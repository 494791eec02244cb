"""The IGRIS robots against their twins, in other processes over zenoh; and each way in which a robot fails."""

import re
import signal

import numpy as np
import pytest

from driving import drive
from plaudit.data.store import Store
from plaudit.robots.twin import TwinProcess
from plaudit.robots.twin.log import compare_episode, read_stamp, render_frame
from slow import slow_but
from twins import Waves, wait_for_silence, zenoh_config
from waiting import wait_until


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    return zenoh_config(tmp_path_factory.mktemp("robot"))


@pytest.fixture(scope="module")
def twin(config, tmp_path_factory):
    with TwinProcess(config, tmp_path_factory.mktemp("twin") / "sent.jsonl", watchdog_ms=400) as twin:
        yield twin


def wave(robot, steps, at=-1, then=lambda: None):
    """Drive the robot for so many steps; before step `at`, call `then`."""
    episode, _ = drive(robot, Waves(robot.params.start_pose, at, then), max_steps=steps, task="wave")
    return episode


@pytest.mark.parametrize(
    ("name", "fields"),
    [("igris_b", ("position",)), pytest.param("igris_c", ("position", "velocity"), marks=pytest.mark.slow)],
)
def test_every_frame_and_state_of_an_episode_is_in_the_twins_log(tmp_path, name, fields):
    config = zenoh_config(tmp_path, name, mono_image_resize={"width": 320, "height": 240})
    with TwinProcess(config, tmp_path / "sent.jsonl") as twin, config.build() as robot:
        episode = wave(robot, steps=60)
    comparison = compare_episode(episode, twin.log(), fields)
    assert (comparison.num_frames, comparison.num_states, comparison.mismatches) == (3 * 61, 61, ())
    assert episode.meta["ended"] == "steps" and episode.steps == 60
    targets = {tuple(np.float32(entry["target"])) for entry in twin.log()}
    assert targets & {tuple(action) for action in episode.actions}


def test_an_image_that_was_not_sent_is_a_mismatch(config, twin):
    with config.build() as robot:
        episode = wave(robot, steps=2)
    episode.frames["left"][1, -1, -1, 0] ^= 1
    episode.state[2, 3] += 0.001
    mismatches = compare_episode(episode, twin.log(), ("position",)).mismatches
    assert mismatches == ("frame 1 of camera 'left' was never sent like this", "state 2 was never sent")


FAULTS = {
    "freeze": r"igris_b: .* has sent no valid message for \d+.\d\d s; nothing arrived since",
    "freeze=left": r"camera 'left' \(/igris_b/left/image_raw\) has sent no valid message for \d+.\d\d s; nothing",
    "back=60000": r"dropped since: \d+ out of order \(the last: its stamp is [45]\d.\d+ s behind the one before\)",
    "repeat=head": r"camera 'head' .* dropped since: \d+ out of order",
    "size=right": r"camera 'right' .* dropped since: \d+ wrong size \(the last: 24x32 instead of 48x64\)",
    "nan": r"\d+ not finite \(the last: the position of 'right_shoulder_pitch' is NaN or infinite\)",
    "joints": r"\d+ missing joints \(the last: it lacks left_little; ",
    "garbage=head": r"camera 'head' .* dropped since: \d+ unreadable \(the last: \d+ bytes are not a valid Image",
}


@pytest.mark.parametrize("fault", slow_but("freeze", "nan", of=FAULTS))
def test_a_fault_makes_the_robot_hold_and_keeps_the_episode_with_its_reason(config, twin, fault):
    check_fault(config, twin, fault, FAULTS[fault])


@pytest.mark.slow
def test_messages_that_arrive_late_make_it_hold_too(tmp_path):
    config = zenoh_config(tmp_path, late_after_ms=500.0)
    with TwinProcess(config, tmp_path / "sent.jsonl", watchdog_ms=400) as twin:
        check_fault(config, twin, "late=2000", r"dropped since: \d+ late \(the last: by \d+ ms\)")


def check_fault(config, twin, fault, message):
    with config.build() as robot:

        def fail():
            twin.inject(fault)
            wait_for_silence(robot, message)

        episode = wave(robot, steps=5000, at=5, then=fail)
        wait_until(lambda: twin.last_entry()["holding"] or commanded(twin, robot))
        twin.inject("none")
    assert 5 <= episode.steps < 5000 and not episode.terminated
    assert re.search(message, episode.meta["ended"]), episode.meta["ended"]
    assert not compare_episode(episode, twin.log(), ("position",)).mismatches


def commanded(twin, robot):
    return np.allclose(twin.last_entry()["target"], robot.last_command, atol=1e-6)


def test_messages_out_of_order_are_dropped_and_counted_and_the_robot_goes_on(config, twin):
    with config.build() as robot:
        episode = wave(robot, steps=40, at=5, then=lambda: twin.inject("shuffle"))
        twin.inject("none")
        dropped = robot.sensors.dropped()["/igris_b/joint_states"]
    assert episode.steps == 40 and episode.meta["ended"] == "steps"
    assert dropped["out of order"] > 0
    assert not compare_episode(episode, twin.log(), ("position",)).mismatches


def test_a_process_that_is_stopped_and_continues_is_reported_and_can_be_driven_again(config, twin):
    with config.build() as robot:

        def suspend():
            twin.send_signal(signal.SIGSTOP)
            wait_for_silence(robot, "nothing arrived since")

        patience = robot.sensors.silent_after
        episode = wave(robot, steps=5000, at=5, then=suspend)
        twin.send_signal(signal.SIGCONT)
        assert "has sent no valid message for" in episode.meta["ended"] and episode.steps >= 5
        robot.sensors.silent_after = patience
        again = wave(robot, steps=5)
    assert again.steps == 5 and again.meta["ended"] == "steps"


@pytest.mark.slow
def test_a_twin_that_is_killed_and_started_again_can_be_driven_again_and_both_episodes_are_stored(tmp_path):
    config = zenoh_config(tmp_path)
    with TwinProcess(config, tmp_path / "sent.jsonl") as twin, config.build() as robot:

        def kill():
            twin.inject("kill")
            wait_for_silence(robot, "nothing arrived since")

        patience = robot.sensors.silent_after
        killed = wave(robot, steps=5000, at=5, then=kill)
        assert "SIGKILL" in twin.process.exit_reason()
        twin.start()
        robot.sensors.silent_after = patience
        again = wave(robot, steps=5)
    with Store.create(tmp_path / "store") as store:
        ids = store.extend([killed, again])
        assert (
            "no valid message for" in store.episode(ids[0]).meta["ended"]
            and store.episode(ids[1]).meta["ended"] == "steps"
        )


def test_a_twin_without_commands_holds(config, twin):
    with config.build() as robot:
        wave(robot, steps=5)
    wait_until(lambda: twin.last_entry()["holding"])
    assert not np.any(twin.last_entry()["velocity"])


@pytest.mark.parametrize("size", [(48, 64), (240, 320), (97, 131)])
def test_an_image_carries_its_stamp(size):
    stamp = 1_763_212_345_678_901_234
    assert read_stamp(render_frame(1, stamp, np.linspace(0, 1, 24, dtype=np.float32), size)) == stamp
