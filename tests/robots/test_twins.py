"""The IGRIS robots against their twins, in other processes over zenoh; and each way a robot fails."""

import re
import signal

import numpy as np
import pytest

from plaudit.data.normalize import Normalizer
from plaudit.data.store import Store
from plaudit.robots.twin.frames import draw, read_stamp
from plaudit.robots.twin.log import compare
from plaudit.robots.twin.process import TwinProcess
from plaudit.rollout.loop import FAULT, run_episode
from twins import Waves, silence, zenoh_config
from waiting import stretch, wait_until


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    return zenoh_config(tmp_path_factory.mktemp("robot"), silent_after_ms=silence())


@pytest.fixture(scope="module")
def twin(config, tmp_path_factory):
    with TwinProcess(config, tmp_path_factory.mktemp("twin") / "said.jsonl", watchdog_ms=400) as made:
        yield made


def wave(robot, steps, at=-1, then=lambda: None):
    """Drive; at one step, do something else first."""
    return run_episode(robot, Waves(robot.params.start_pose, at, then), Normalizer({}), steps=steps, task="wave")


@pytest.mark.parametrize(("name", "fields"), [("igris_b", ("position",)), ("igris_c", ("position", "velocity"))])
def test_every_frame_and_state_of_an_episode_is_what_the_twin_says_it_sent(tmp_path, name, fields):
    config = zenoh_config(tmp_path, name, mono_image_resize={"width": 320, "height": 240})
    with TwinProcess(config, tmp_path / "said.jsonl") as twin, config.build() as robot:
        episode = wave(robot, steps=60)
    match = compare(episode, twin.said(), fields)
    assert (match.frames, match.states, match.wrong) == (3 * 61, 61, ())
    assert FAULT not in episode.meta and episode.steps == 60
    obeyed = {tuple(np.float32(line["target"])) for line in twin.said()}
    assert obeyed & {tuple(action) for action in episode.actions}


def test_a_picture_that_was_not_sent_is_found_out(config, twin):
    with config.build() as robot:
        episode = wave(robot, steps=2)
    episode.frames["left"][1, -1, -1, 0] ^= 1
    episode.state[2, 3] += 0.001
    wrong = compare(episode, twin.said(), ("position",)).wrong
    assert wrong == ("frame 1 of camera 'left' was never sent like this", "state 2 was never sent")


FAULTS = {
    "freeze": r"igris_b: .* has sent nothing good for \d+.\d\d s; no message since",
    "freeze=left": r"camera 'left' \(/igris_b/left/image_raw\) has sent nothing good for \d+.\d\d s; no message",
    "back=60000": r"dropped since: \d+ out of order \(the last: its stamp is [45]\d.\d+ s behind the one before\)",
    "repeat=head": r"camera 'head' .* dropped since: \d+ out of order",
    "size=right": r"camera 'right' .* dropped since: \d+ of another size \(the last: 24x32 instead of 48x64\)",
    "nan": r"\d+ not finite \(the last: the position of 'right_shoulder_pitch' is NaN or infinite\)",
    "joints": r"\d+ with other joints \(the last: it lacks left_little\)",
    "garbage=head": r"camera 'head' .* dropped since: \d+ unreadable \(the last: \d+ bytes are no Image",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_makes_the_robot_hold_and_keeps_the_episode_with_its_reason(config, twin, fault):
    assert_held(config, twin, fault, FAULTS[fault])


def test_messages_that_come_late_make_it_hold_too(tmp_path):
    """The robot calls a message late before its stream counts as silent, and the fault lies between the two."""
    late = silence()
    config = zenoh_config(tmp_path, late_after_ms=late / 2, silent_after_ms=2 * late)
    with TwinProcess(config, tmp_path / "said.jsonl", watchdog_ms=400) as twin:
        assert_held(config, twin, f"late={late:.0f}", r"dropped since: \d+ late \(the last: by \d+ ms\)")


def assert_held(config, twin, fault, sentence):
    with config.build() as robot:
        episode = wave(robot, steps=5000, at=5, then=lambda: twin.fail(fault))
        wait_until(lambda: twin.last()["holding"] or np.allclose(twin.last()["target"], robot.command, atol=1e-6))
        twin.fail("none")
    assert 5 <= episode.steps < 5000 and not episode.terminated
    assert re.search(sentence, episode.meta[FAULT]), episode.meta[FAULT]
    assert not compare(episode, twin.said(), ("position",)).wrong


def test_messages_in_another_order_are_dropped_and_counted_and_the_robot_goes_on(config, twin):
    with config.build() as robot:
        episode = wave(robot, steps=40, at=5, then=lambda: twin.fail("shuffle"))
        twin.fail("none")
        dropped = robot.sensors.dropped()["/igris_b/joint_states"]
    assert episode.steps == 40 and FAULT not in episode.meta
    assert dropped["out of order"] > 0
    assert not compare(episode, twin.said(), ("position",)).wrong


def test_a_process_that_is_stopped_and_goes_on_is_told_of_and_can_be_driven_again(config, twin):
    with config.build() as robot:
        episode = wave(robot, steps=5000, at=5, then=lambda: twin.send(signal.SIGSTOP))
        twin.send(signal.SIGCONT)
        assert "has sent nothing good for" in episode.meta[FAULT] and episode.steps >= 5
        again = wave(robot, steps=5)
    assert again.steps == 5 and FAULT not in again.meta


def test_a_twin_that_is_killed_and_started_again_can_be_driven_again_and_both_episodes_are_stored(tmp_path):
    config = zenoh_config(tmp_path, silent_after_ms=silence())
    with TwinProcess(config, tmp_path / "said.jsonl") as twin, config.build() as robot:
        killed = wave(robot, steps=5000, at=5, then=lambda: twin.fail("kill"))
        assert twin.process.wait(timeout=stretch(30)) == -signal.SIGKILL
        twin.start()
        again = wave(robot, steps=5)
    with Store.create(tmp_path / "store") as store:
        ids = store.extend([killed, again])
        assert "nothing good for" in store.episode(ids[0]).meta[FAULT] and FAULT not in store.episode(ids[1]).meta


def test_a_twin_without_commands_holds(config, twin):
    with config.build() as robot:
        wave(robot, steps=5)
    wait_until(lambda: twin.last()["holding"])
    assert not np.any(twin.last()["velocity"])


@pytest.mark.parametrize("size", [(48, 64), (240, 320), (97, 131)])
def test_a_picture_carries_its_stamp(size):
    stamp = 1_763_212_345_678_901_234
    assert read_stamp(draw(1, stamp, np.linspace(0, 1, 24, dtype=np.float32), size)) == stamp
