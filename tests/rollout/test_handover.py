"""A person takes over from a policy and hands back, in both engines, with a simulated arm."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

from plaudit.data.store import Store
from plaudit.errors import RolloutFault
from plaudit.policies.scripted import ScriptedConfig
from plaudit.robots.config import RobotConfig, SafetyConfig
from plaudit.rollout.engine import InferenceConfig, Sequential
from plaudit.rollout.recording import EpisodeBuffer
from plaudit.rollout.rtc import Rtc
from plaudit.rollout.run import record_episodes
from plaudit.rollout.teleop import TeleopConfig
from plaudit.types import HUMAN, POLICY, FloatArray, Observation
from waiting import wait_until

FPS, LIMIT, HORIZON = 50.0, 0.02, 40  # LIMIT: of a command, from one tick to the next
FIRST, LAST, STEPS = 10, 24, 50  # the person acts at ticks 10 to 24


class ArmConfig(RobotConfig):
    safety: SafetyConfig = SafetyConfig(max_velocity=LIMIT * FPS)
    log: Path

    def build(self) -> "Arm":
        return Arm(self)


class Arm:
    """Its two joints are where they were commanded to be."""

    cameras: Mapping[str, tuple[int, int]] = MappingProxyType({})
    state_dim, action_dim, fps = 2, 2, FPS

    def __init__(self, config: ArmConfig):
        self._log, self.last_command = config.log, None
        self._joints = np.zeros(2, np.float32)

    def reset(self, seed=None) -> Observation:
        return self.observe()

    def act(self, action: FloatArray) -> None:
        self._joints, self.last_command = action, action

    def observe(self) -> Observation:
        return Observation({}, self._joints)

    def joint_position(self) -> FloatArray:
        return self._joints

    def privileged(self) -> dict:
        return {}

    def hold(self) -> None:
        with self._log.open("a") as log:
            log.write(f"hold {self._joints.tolist()}\n")


class LeaderConfig(TeleopConfig):
    """A leader arm far away, and a file with the ticks at which it commanded."""

    log: Path
    pulled_at: int | None = None  # the tick at which its cable is pulled, once

    def build(self, action_dim: int) -> "Leader":
        return Leader(self)


class Leader:
    relative = False

    def __init__(self, config: LeaderConfig):
        self._config, self._tick = config, -1

    def begin_episode(self, robot: object) -> None: ...

    def command(self) -> FloatArray | None:
        self._tick += 1
        cable = self._config.log.with_name("cable")
        if self._tick == self._config.pulled_at and not cable.exists():
            cable.touch()
            raise RolloutFault("the leader is gone; connect it again")
        if not FIRST <= self._tick <= LAST:
            return None
        with self._config.log.open("a") as log:
            log.write(f"{self._tick}\n")
        return np.full(2, 3.0, np.float32)

    def close(self) -> None: ...


def stay_where_it_is(observation: Observation) -> FloatArray:
    """The plan of a policy: from the observed joints slowly forward."""
    return observation.state + np.linspace(0.001, 0.04, HORIZON, dtype=np.float32)[:, None]


POLICY_CONFIG = ScriptedConfig(function=f"{__name__}:stay_where_it_is", horizon=HORIZON)


def engine(kind, folder: Path, **leader):
    config = InferenceConfig(max_episode_steps=STEPS, guidance=False, patience_s=60)
    return kind(ArmConfig(log=folder / "arm"), POLICY_CONFIG, config, LeaderConfig(log=folder / "leader", **leader))


@pytest.mark.parametrize("kind", [Sequential, Rtc])
def test_takeover_and_return_keep_the_limit_lose_no_step_and_record_who_acted(kind, tmp_path):
    with engine(kind, tmp_path) as running:
        (episode,) = running.episodes(1)
    acted = [int(tick) for tick in (tmp_path / "leader").read_text().split()]
    assert acted == list(range(FIRST, LAST + 1))
    assert episode.steps == STEPS  # one for each tick
    assert [step for step, mode in enumerate(episode.control_mode) if mode == HUMAN] == acted
    jumps = np.abs(np.diff(episode.actions, axis=0, prepend=np.zeros((1, 2), np.float32)))
    assert jumps.max() <= LIMIT + 1e-6
    assert (jumps[FIRST : LAST + 1] >= LIMIT - 1e-6).all()  # the person's goal is far away
    # The policy continues from where the person left the robot. The rest of its plan from before lies 0.3 behind.
    left, after = episode.actions[LAST, 0], episode.actions[LAST + 1 :, 0]
    late = 5 * LIMIT if kind is Rtc else 0.0  # the newest plan was made while the person moved the robot
    assert after.min() > left - late and episode.control_mode[-1] == POLICY


@pytest.mark.parametrize("kind", [Sequential, Rtc])
def test_a_device_that_is_pulled_ends_the_episode_holds_the_robot_and_the_run_goes_on(kind, tmp_path):
    faults: list[str] = []
    with engine(kind, tmp_path, pulled_at=15) as running, Store.create(tmp_path / "store") as store:
        first, second = record_episodes(running, store, 2, patience_s=60, on_fault=faults.append)
    assert faults == ["the leader is gone; connect it again"]
    assert first.episode.steps == 15 and first.episode.meta["ended"] == faults[0]
    held = (tmp_path / "arm").read_text().splitlines()[0]
    assert held == f"hold {first.episode.actions[-1].tolist()}"  # where the last command left it
    assert second.episode.steps == STEPS and second.episode.meta["ended"] == "steps"


@pytest.mark.parametrize("kind", [Sequential, Rtc])
def test_while_no_episode_runs_a_page_sees_what_the_robot_sees_now(kind, tmp_path):
    with engine(kind, tmp_path) as running:
        running.look()  # nobody wants to see it
        running.preview = preview = EpisodeBuffer.allocate(running.env_spec, 0)
        for _ in range(2):
            seen_at = float(preview.observed_at[0])
            running.look()
            wait_until(lambda seen_at=seen_at: running.look() or preview.observed_at[0] > seen_at)
            (episode,) = running.episodes(1)
            assert episode.steps == STEPS
            running.look()
            wait_until(lambda episode=episode: running.look() or (preview.state[0] == episode.state[-1]).all())
