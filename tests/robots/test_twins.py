"""The IGRIS robots against their twins, in other processes over zenoh; and each way a robot fails."""

import re
import signal

import numpy as np
import pytest

from plaudit.data.normalize import Normalizer
from plaudit.data.store import Store
from plaudit.robots.twin.log import compare
from plaudit.robots.twin.picture import draw, read_stamp
from plaudit.rollout.loop import FAULT, run_episode
from twins import TwinProcess, Waves, wait_until


@pytest.fixture(scope="module")
def twin(tmp_path_factory):
    made = TwinProcess(tmp_path_factory.mktemp("twin"))
    yield made
    made.stop()


@pytest.mark.parametrize(("name", "fields"), [("igris_b", ("position",)), ("igris_c", ("position", "velocity"))])
def test_every_frame_and_state_of_an_episode_is_what_the_twin_says_it_sent(tmp_path, name, fields):
    twin = TwinProcess(tmp_path, name, mono_image_resize={"width": 320, "height": 240})
    with twin.driven() as (robot, _):
        episode = run_episode(robot, Waves(twin.config.params().start_pose), Normalizer({}), steps=60, task="wave")
    twin.stop()
    match = compare(episode, twin.said(), fields)
    assert (match.frames, match.states, match.wrong) == (3 * 61, 61, ())
    assert FAULT not in episode.meta and episode.steps == 60
    obeyed = [line["target"] for line in twin.said() if line["commands"] > 0 and not line["holding"]]
    assert {tuple(np.float32(target)) for target in obeyed} >= {tuple(action) for action in episode.actions[::20]}


def test_a_picture_that_was_not_sent_is_found_out(twin):
    with twin.driven() as (robot, _):
        episode = run_episode(robot, Waves(twin.config.params().start_pose), Normalizer({}), steps=2, task="wave")
    episode.frames["left"][1, -1, -1, 0] ^= 1
    episode.state[2, 3] += 0.001
    wrong = compare(episode, twin.said(), ("position",)).wrong
    assert wrong == ("frame 1 of camera 'left' was never sent like this", "state 2 was never sent")


FAULTS = {
    "freeze": r"the joint stream \(/igris_b/joint_states\) has sent nothing good for 0.\d\d s; no message since",
    "freeze=left": r"igris_b: camera 'left' \(/igris_b/left/image_raw\) has sent nothing good for 0.\d\d s; no message",
    "late=550": r"dropped since: \d+ late \(the last: by \d+ ms\)",
    "back=5000": r"dropped since: \d+ out of order \(the last: its stamp is 4.\d+ s behind the one before\)",
    "repeat=head": r"camera 'head' .* dropped since: \d+ out of order",
    "size=right": r"camera 'right' .* dropped since: \d+ of another size \(the last: 24x32 instead of 48x64\)",
    "nan": r"\d+ not finite \(the last: the position of 'right_shoulder_pitch' is NaN or infinite\)",
    "joints": r"\d+ with other joints \(the last: it lacks left_little\)",
    "garbage=head": r"camera 'head' .* dropped since: \d+ unreadable \(the last: \d+ bytes are no Image",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_makes_the_robot_hold_and_keeps_the_episode_with_its_reason(twin, fault):
    with twin.driven() as (robot, fail):
        policy = Waves(twin.config.params().start_pose, at=5, then=lambda: fail(fault))
        episode = run_episode(robot, policy, Normalizer({}), steps=5000, task="wave")
        held = robot.command
        fail("none")
        wait_until(lambda: np.allclose(twin.said()[-1]["target"], held, atol=1e-6) or twin.said()[-1]["holding"])
    assert 5 <= episode.steps < 5000 and not episode.terminated
    assert re.search(FAULTS[fault], episode.meta[FAULT]), episode.meta[FAULT]
    assert not compare(episode, twin.said(), ("position",)).wrong


def test_messages_in_another_order_are_dropped_and_counted_and_the_robot_goes_on(twin):
    with twin.driven() as (robot, fail):
        policy = Waves(twin.config.params().start_pose, at=5, then=lambda: fail("shuffle"))
        episode = run_episode(robot, policy, Normalizer({}), steps=40, task="wave")
        fail("none")
        dropped = robot.dropped()["/igris_b/joint_states"]
    assert episode.steps == 40 and FAULT not in episode.meta
    assert dropped["out of order"] > 5
    assert not compare(episode, twin.said(), ("position",)).wrong


def test_a_process_that_is_stopped_and_goes_on_is_told_of_and_can_be_driven_again(twin):
    with twin.driven() as (robot, _):
        policy = Waves(twin.config.params().start_pose, at=5, then=lambda: twin.send(signal.SIGSTOP))
        episode = run_episode(robot, policy, Normalizer({}), steps=5000, task="wave")
        twin.send(signal.SIGCONT)
        assert "has sent nothing good for" in episode.meta[FAULT] and episode.steps >= 5
        again = run_episode(robot, Waves(twin.config.params().start_pose), Normalizer({}), steps=5, task="wave")
    assert again.steps == 5 and FAULT not in again.meta


def test_a_twin_that_is_killed_and_started_again_can_be_driven_again_and_both_episodes_are_stored(tmp_path):
    twin = TwinProcess(tmp_path)
    start = twin.config.params().start_pose
    with twin.driven() as (robot, fail), Store.create(tmp_path / "store") as store:
        killed = run_episode(robot, Waves(start, 5, lambda: fail("kill")), Normalizer({}), steps=5000, task="wave")
        assert twin.process.wait(timeout=10) == -signal.SIGKILL
        twin.start()
        again = run_episode(robot, Waves(start), Normalizer({}), steps=5, task="wave")
        ids = store.extend([killed, again])
        assert "nothing good for" in store.episode(ids[0]).meta[FAULT] and FAULT not in store.episode(ids[1]).meta
    twin.stop()


def test_a_twin_without_commands_holds(twin):
    with twin.driven() as (robot, _):
        run_episode(robot, Waves(twin.config.params().start_pose), Normalizer({}), steps=5, task="wave")
    wait_until(lambda: twin.said()[-1]["holding"])
    assert not np.any(twin.said()[-1]["velocity"])


@pytest.mark.parametrize("size", [(48, 64), (240, 320), (97, 131)])
def test_a_picture_carries_its_stamp(size):
    stamp = 1_763_212_345_678_901_234
    assert read_stamp(draw(1, stamp, np.linspace(0, 1, 24, dtype=np.float32), size)) == stamp
