"""Everything that can end an engine: the robot is told to hold, what was record_episodes comes out, nobody is left."""

import _thread
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from plaudit.data.store import Store
from plaudit.errors import RolloutError
from plaudit.rollout.engine import InferenceConfig, Sequential
from plaudit.rollout.rtc import Rtc
from plaudit.rollout.run import record_episodes
from plaudit.types import Episode
from processes import Forked
from puppet import CounterConfig, PuppetConfig, WalkerConfig, lines, received
from waiting import stretch, wait_until

LONG = InferenceConfig(max_episode_steps=100_000)
PROGRAM = """
import sys
from pathlib import Path
from test_rtc_failures import record
record(Path(sys.argv[1]))
"""


def record(folder: Path) -> None:
    """In a child process, until it is killed or interrupted."""
    with Rtc(PuppetConfig(log=folder / "log"), CounterConfig(), LONG) as engine:
        print(*engine.pids.values(), flush=True)
        with Store.create(folder / "store") as store:
            print(*(done.id for done in record_episodes(engine, store, 3)))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def driven(engine: Rtc | Sequential) -> tuple[Episode, str]:
    """The episode that came out, and the sentence of the error that came after it."""
    episodes = engine.episodes(2)
    episode = next(episodes)
    with pytest.raises(RolloutError) as error:
        next(episodes)
    return episode, str(error.value)


def gone(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rsplit(")", 1)[1].split()[0] == "Z"


def assert_kept_and_held(episode: Episode, log: Path) -> None:
    """Every command but the last, whose result nobody saw."""
    told = received(log)
    assert len(told) - 1 <= episode.steps <= len(told) and not episode.terminated
    assert np.array_equal(episode.actions, told[: episode.steps])
    assert lines(log)[-1] == "hold"


both = pytest.mark.parametrize("kind", [Rtc, Sequential])


@both
def test_a_robot_that_fails(kind, log):
    with kind(PuppetConfig(log=log, fails_at=6), CounterConfig(), LONG) as engine:
        episode, said = driven(engine)
    assert said == episode.meta["ended"] == "OSError: a wire came off"
    assert episode.steps == 6
    assert_kept_and_held(episode, log)


@pytest.mark.parametrize(("fails_at", "ended"), [(-1, "steps"), (3, "OSError: a wire came off")])
def test_the_episode_of_a_robot_that_cannot_be_told_to_hold_is_kept(fails_at, ended, log):
    robot = PuppetConfig(log=log, fails_at=fails_at, deaf=1)
    with Sequential(robot, CounterConfig(), InferenceConfig(max_episode_steps=6)) as engine:
        episode, said = driven(engine)
    assert said == episode.meta["ended"] == f"{ended}; and the robot could not be told to hold: OSError: nobody answers"
    assert_kept_and_held(episode, log)  # it was told again at the end


@both
def test_a_robot_that_measures_nothing(kind, log):
    with kind(PuppetConfig(log=log, nan_at=3), CounterConfig(), LONG) as engine:
        episode, said = driven(engine)
    assert said == "the robot's state holds NaN or infinity after 3 commands"
    assert episode.steps == 2
    assert_kept_and_held(episode, log)


@both
def test_a_policy_that_fails(kind, log):
    config = InferenceConfig(max_episode_steps=100_000, execution_horizon=5)
    with kind(PuppetConfig(log=log), CounterConfig(fails_after=1), config) as engine:
        episode, said = driven(engine)
    assert said == episode.meta["ended"] == "ZeroDivisionError: a hole in the net"
    assert_kept_and_held(episode, log)


@both
def test_a_policy_that_says_nan_is_not_obeyed(kind, log):
    config = InferenceConfig(max_episode_steps=100_000, execution_horizon=5)
    with kind(PuppetConfig(log=log), CounterConfig(nan_after=1), config) as engine:
        episode, said = driven(engine)
    assert "NaN or infinity in action 2 of 100; nothing of it was sent" in said
    assert_kept_and_held(episode, log)


def test_chunks_that_are_too_short_to_infer_meanwhile_are_refused(log):
    with pytest.raises(RolloutError, match=r"^a chunk of one action is over before the next is there"):
        Rtc(PuppetConfig(log=log), CounterConfig(horizon=1), LONG)
    assert received(log).size == 0 and lines(log)[-1] == "hold"


@pytest.mark.parametrize("who", ["control", "inference"])
def test_a_process_that_is_killed(who, log):
    def kill() -> None:
        wait_until(lambda: len(lines(log, "act")) > 3)
        os.kill(engine.pids[who], signal.SIGKILL)

    with Rtc(PuppetConfig(log=log), CounterConfig(), LONG) as engine:
        pids = engine.pids
        threading.Thread(target=kill).start()
        episode, said = driven(engine)
        assert gone(pids[who])
    assert all(map(gone, pids.values()))
    assert said == episode.meta["ended"] == f"the {who} process was killed by SIGKILL"
    assert_kept_and_held(episode, log)


def test_a_policy_that_hangs_lets_the_robot_be_stopped(log):
    def stop() -> None:
        wait_until(lambda: len(lines(log, "act")) > 6)
        engine.stop()

    config = InferenceConfig(max_episode_steps=100_000, execution_horizon=1)
    with Rtc(PuppetConfig(log=log), CounterConfig(horizon=4, stuck_after=1), config) as engine:
        pids = engine.pids
        threading.Thread(target=stop).start()
        (episode,) = engine.episodes(1)
    assert episode.meta["ended"] == "stopped" and engine.latency.held.sum() > 0
    assert_kept_and_held(episode, log)
    assert all(map(gone, pids.values()))


def test_the_program_that_is_killed(log, tmp_path):
    with Forked(record, tmp_path) as program:
        pids = [int(pid) for pid in program.readline().split()]
        wait_until(lambda: len(lines(log, "act")) > 3)
    assert pids
    wait_until(lambda: all(map(gone, pids)))
    assert lines(log)[-1] == "hold"


@pytest.mark.slow
def test_the_program_that_is_interrupted(log, tmp_path):
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert program.stdout is not None
    pids = [int(pid) for pid in program.stdout.readline().split()]
    wait_until(lambda: len(lines(log, "act")) > 3)
    os.killpg(program.pid, signal.SIGINT)  # as a terminal does
    program.wait(stretch(60))
    program.stdout.close()
    wait_until(lambda: all(map(gone, pids)))
    episode = Store.open(tmp_path / "store").episode(0)
    assert episode.meta["ended"] == "interrupted"
    assert_kept_and_held(episode, log)


def test_ctrl_c_stops_a_robot_on_its_way_to_the_start_pose(log):
    def interrupt() -> None:
        wait_until(lambda: len(lines(log, "move")) > 3)
        _thread.interrupt_main()

    with Rtc(WalkerConfig(log=log, way=10_000, tells_builds=True), CounterConfig(), LONG) as engine:
        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            next(engine.episodes(1), None)
    assert lines(log)[-1] == "hold" and not received(log).size
    assert lines(log).count("built") == 1, "its own process was killed, and another one told it to hold"


def test_what_cannot_be_built_is_said(log, tmp_path):
    with pytest.raises(RolloutError, match=r"the robot could not be made: .*front"):
        Rtc(PuppetConfig(log=log, size=(-1, 2)), CounterConfig())
    with pytest.raises(RolloutError, match=r"the policy could not be made: .*horizon"):
        Rtc(PuppetConfig(log=log), CounterConfig(horizon=0))
    with pytest.raises(RolloutError, match="max_action_delta must be one number, or one for each of 2 joints"):
        Sequential(PuppetConfig(log=log), CounterConfig(), InferenceConfig(max_action_delta=(1.0, 1.0, 1.0)))
