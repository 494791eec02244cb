"""The block that an episode is recorded in, and the chunk_slot for chunks, between processes that may die."""

import os
import signal

import numpy as np

from plaudit.rollout.recording import ActionChunk, EpisodeBuffer, LatencyStats
from plaudit.types import HUMAN, POLICY, EnvSpec, Observation

SPEC = EnvSpec(state_dim=1, action_dim=2, cameras={"front": (2, 3)}, fps=10.0, name="robot")


def seen(number: int) -> Observation:
    return Observation({"front": np.full((2, 3, 3), number, np.uint8)}, np.float32([number]))


def chunk(row: int, length: int = 3) -> ActionChunk:
    return ActionChunk(np.float32([[row + i, 0] for i in range(length)]), row)


def test_an_episode_is_what_was_seen_and_sent_so_far():
    buffer = EpisodeBuffer.allocate(SPEC, max_steps=5)
    buffer.add_observation(0, seen(0), 0.0)
    assert buffer.episode({}) is None
    for step in range(2):
        buffer.add_command(step, np.float32([step, 7]), POLICY if step else HUMAN, 0, 0.0, 0)
        buffer.add_observation(step + 1, seen(step + 1), 0.1)
    buffer.add_command(2, np.float32([2, 7]), POLICY, 0, 0.0, 0)  # and nobody saw what it led to
    episode = buffer.episode({"grasp": np.array([0, 1])}, task="count")
    assert episode is not None and episode.steps == 2
    assert episode.actions.tolist() == [[0, 7], [1, 7]]
    assert episode.control_mode.tolist() == [HUMAN, POLICY]
    assert episode.frames["front"][:, 0, 0, 0].tolist() == [0, 1, 2]


def test_another_process_sees_the_same_memory_and_an_episode_outlives_it():
    buffer = EpisodeBuffer.allocate(SPEC, max_steps=5)
    other = EpisodeBuffer.attach(os.dup(buffer.block.descriptor), SPEC, max_steps=5)
    other.add_observation(0, seen(0), 0.0)
    other.add_command(0, np.float32([3, 4]), POLICY, 0, 0.0, 0)
    other.add_observation(1, seen(9), 0.1)
    assert np.shares_memory(buffer.observation(1).images["front"], buffer.frames["front"])
    episode = buffer.episode({})
    del buffer, other
    assert episode is not None and (episode.frames["front"][1] == 9).all()


def test_the_newest_chunk_is_taken_once():
    chunk_slot = EpisodeBuffer.allocate(SPEC, max_steps=5).chunk_slot
    assert chunk_slot.take() is None
    chunk_slot.put(chunk(row=0))
    chunk_slot.put(chunk(row=4))
    taken = chunk_slot.take()
    assert taken is not None and (taken.start_step, taken.actions[:, 0].tolist()) == (4, [4, 5, 6])
    assert chunk_slot.take() is None
    first, beyond = taken.action_at(5), taken.action_at(7)
    assert first is not None and first[0] == 5 and beyond is None


def test_who_dies_while_writing_a_chunk_neither_locks_it_nor_is_believed():
    buffer = EpisodeBuffer.allocate(SPEC, max_steps=5)
    buffer.chunk_slot.put(chunk(row=1))
    writer = os.fork()
    if writer == 0:
        buffer.chunk_slot._values = Dying()  # type: ignore[assignment] - in the middle of its copy, with the lock held
        buffer.chunk_slot.put(chunk(row=2))
        os._exit(0)
    _, status = os.waitpid(writer, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    assert buffer.chunk_slot.take() is None
    buffer.chunk_slot.put(chunk(row=3))
    taken = buffer.chunk_slot.take()
    assert taken is not None and taken.start_step == 3


class Dying:
    def __setitem__(self, *_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def test_timing_is_read_from_what_was_recorded():
    buffer = EpisodeBuffer.allocate(SPEC, max_steps=5)
    buffer.add_observation(0, seen(0), 0.0)
    for row, late, guided in ((0, 0.1, None), (2, 0.2, True), (4, 0.3, False)):
        buffer.add_inference(row, late, took=0.5, weights=row, guided=guided)
    for step, source in enumerate([0, 0, -1, 2, -1]):
        buffer.add_command(step, np.float32([0, 0]), POLICY, source, late=0.001 * step, missed=step == 4)
    timing = LatencyStats.concatenate([LatencyStats.of(buffer), LatencyStats.of(buffer)])
    assert timing.ticks == 10 and timing.missed.sum() == 2 and timing.held.sum() == 4
    assert LatencyStats.of(buffer).meta() == {
        "missed_ticks": 1,
        "held_ticks": 2,
        "starved_chunks": 2,
        "guided_fraction": 0.5,
        "timing": {"late_ms": 2.0, "inference_ms": 500.0, "observation_age_ms": 0.0},
    }
    assert (timing.held_fraction, timing.guided_fraction) == (0.4, 0.5)
    assert timing.delay.tolist() == [0, 1, 0, 1]  # row 2 was first used at step 3
    assert buffer.weights_meta() == {"weights": 0, "weights_changed": [[2, 2], [4, 4]]}
    assert dict(timing.table())["late, ms"] == "p50 2.00, p99 4.00, p99.9 4.00, max 4.00"
    assert dict(timing.histogram())["0 to 0.05 ms"] == 2
