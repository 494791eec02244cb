"""The robot's side of the loop: in real time, with weights that come while it moves, and when it fails."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import glow
from plaudit.data.store import Store, is_store
from plaudit.errors import RolloutError, WorkerLost
from plaudit.learners.config import QChunkConfig, SacConfig
from plaudit.policies.loader import PolicySpec
from plaudit.policies.scripted import Outcome
from plaudit.rollout.scripted_teleop import ScriptedTeleop, ScriptedTeleopConfig
from plaudit.training.config import TrainingConfig
from plaudit.training.config_file import load_training_config
from plaudit.training.replay_buffer import ReplayBuffer, StateManager, StoreLocation, seconds_of
from plaudit.training.workers.env import EnvWorker
from plaudit.training.workers.handles import SerialHandle
from plaudit.types import EnvSpec, Episode, FloatArray, PolicyWeights
from waiting import wait_until

LEARNER = QChunkConfig(horizon=4, num_samples=2, hidden_dims=(8,)).build(EnvSpec(2, 1, {}), 0, "cpu")
POLICY = PolicySpec(policy=LEARNER.policy_config().model_dump(mode="json"))


class FlakyReplayBuffer(ReplayBuffer):
    """Keeps what it is given; the first `failures` times it does not answer."""

    def __init__(self, failures: int = 0):
        self.kept: dict[str, Episode] = {}
        self.failures = failures

    def location(self) -> StoreLocation:
        return StoreLocation("episodes", None, None, ("", 0, 0), "0123456789abcdef")

    def add(self, episode: Episode, key: str) -> int:
        if self.failures:
            self.failures -= 1
            raise WorkerLost("replay buffer")
        self.kept[key] = episode
        return len(self.kept) - 1

    def person_s(self) -> dict[str, float]:
        total: Counter[str] = Counter()
        for episode in self.kept.values():
            total.update(seconds_of(episode))
        return dict(total)


class LampPersonConfig(ScriptedTeleopConfig):
    """A simulated person who turns the lamp up as long as they have time."""

    def build(self, action_dim: int) -> "LampPerson":
        return LampPerson(self)


class LampPerson(ScriptedTeleop):
    def watch(self, env: Any) -> None: ...

    def progress(self) -> float:
        return 0.0

    def plan(self, outcome: Outcome, noise: float, seed: int) -> Callable[[], FloatArray]:
        return lambda: np.full(1, 0.5, np.float32)


class FlakyStateManager(StateManager):
    """Has version 1, does not answer the second time, and has version 2 once the robot has moved.

    moved: a file that says so
    """

    def __init__(self, moved: Path | None = None) -> None:
        self._moved, self._num_asked = moved, 0

    def count_start(self, reader: str) -> int:
        return 0

    def get_weights(self, newer_than: int) -> PolicyWeights | None:
        self._num_asked += 1
        if self._num_asked == 1:
            return PolicyWeights(1, LEARNER.weights().tensors)
        if self._num_asked == 2:
            raise WorkerLost("state manager")
        moving = self._moved is not None and self._moved.exists()
        return PolicyWeights(2, LEARNER.weights().tensors) if moving and newer_than < 2 else None


def make_config(tmp_path: Path, *words: str) -> TrainingConfig:
    glow.saved(glow.bright_model(0.8), tmp_path / "judge")
    return load_training_config(
        "online", None, [*glow.online(tmp_path / "judge"), "policy.inference.name=lamp", *words]
    )


@contextmanager
def worker(
    asked: TrainingConfig, replay: FlakyReplayBuffer, state: StateManager, policy: PolicySpec = POLICY, **options: bool
) -> Iterator[EnvWorker]:
    env = EnvWorker(asked, SerialHandle("replay buffer", replay), SerialHandle("state manager", state), **options)
    env.load_policy(policy)
    try:
        yield env
    finally:
        env.close()


@pytest.mark.parametrize("algorithm", ["sequential", pytest.param("rtc", marks=pytest.mark.slow)])
def test_weights_that_come_while_it_moves_are_acted_with_in_the_same_episode(tmp_path, algorithm):
    replay = FlakyReplayBuffer()
    chunks = (
        "learner=qchunk",
        "learner.critic_horizon=2",  # all that rtc executes of a chunk
        "policy.inference.realtime=true",
        f"policy.inference={algorithm}",
        "policy.update_within_episode=true",
        f"env.moved={tmp_path / 'moved'}",
    )
    with worker(make_config(tmp_path, *chunks), replay, FlakyStateManager(tmp_path / "moved")) as env:
        played = env.rollout(seed=3)
    (episode,) = replay.kept.values()
    assert (played.version, played.steps, played.ended) == (1, 12, "steps")
    ((step, version),) = episode.meta["weights_changed"]
    assert version == 2 and 1 <= step <= 11


def test_a_simulated_person_has_the_rest_of_their_time_after_a_resume(tmp_path):
    person = (f"teleop={__name__}:LampPersonConfig", "teleop.patience=1", "teleop.delay=0", "teleop.budget_s=1")
    config, replay = make_config(tmp_path, *person), FlakyReplayBuffer()
    for _ in range(4):  # each start of the run plays one episode
        with worker(config, replay, FlakyStateManager()) as env:
            env.rollout(seed=3)
    acted = [seconds_of(episode)["person/time_correcting_s"] for episode in replay.kept.values()]
    assert sum(acted) == pytest.approx(1, abs=0.11) and acted[-1] == 0


def test_a_robot_is_connected_once_to_be_described_and_driven(tmp_path, monkeypatch):
    built, build = [], glow.GlowConfig.build
    monkeypatch.setattr(glow.GlowConfig, "build", lambda config, count: built.append(count) or build(config, count))
    config, replay = make_config(tmp_path), FlakyReplayBuffer()
    env = EnvWorker(config, SerialHandle("replay buffer", replay), SerialHandle("state manager", FlakyStateManager()))
    try:
        assert (env.describe().state_dim, env.describe().action_dim) == (2, 1)
        with pytest.raises(WorkerLost):
            env.rollout(seed=3)
        env.load_policy(POLICY)
        assert env.rollout(seed=3).steps == 12 and built == [1]
    finally:
        env.close()


def test_an_episode_that_could_not_be_handed_over_is_handed_over_next(tmp_path):
    replay = FlakyReplayBuffer(failures=2)
    with worker(make_config(tmp_path), replay, FlakyStateManager()) as env:
        for _ in range(2):
            with pytest.raises(WorkerLost):
                env.rollout(seed=3)
        assert env.rollout(seed=4).id == 0
    (episode,) = replay.kept.values()
    assert episode.meta["seed"] == 3  # the one that was played, and no other


def test_an_episode_that_could_not_be_handed_over_outlives_the_robots_process(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    away, back, config = FlakyReplayBuffer(failures=1), FlakyReplayBuffer(), make_config(tmp_path)
    with worker(config, away, FlakyStateManager(), outbox_on_disk=True) as env, pytest.raises(WorkerLost):
        env.rollout(seed=3)
    with worker(config, back, FlakyStateManager(), outbox_on_disk=True):
        ((key, episode),) = back.kept.items()
    assert (episode.steps, episode.meta["seed"], len(key)) == (12, 3, 32) and "outbox" not in episode.meta
    with worker(config, again := FlakyReplayBuffer(), FlakyStateManager(), outbox_on_disk=True) as env:
        assert not again.kept
        env.rollout(seed=4)
    assert not list((tmp_path / ".plaudit/unsent").glob("*/*"))


def test_an_episode_is_written_down_while_handing_it_over_takes_long(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("plaudit.training.workers.env.KEEP_AFTER_S", 0.01)
    replay, written = FlakyReplayBuffer(), []
    add, here = replay.add, tmp_path / ".plaudit/unsent"

    def slow(episode, key):
        wait_until(lambda: any(len(Store.open(path)) for path in here.glob("*/*") if is_store(path)))
        written.append(key)
        return add(episode, key)

    monkeypatch.setattr(replay, "add", slow)
    with worker(make_config(tmp_path), replay, FlakyStateManager(), outbox_on_disk=True) as env:
        env.rollout(seed=3)
    assert list(replay.kept) == written and not list(here.glob("*/*"))


@pytest.mark.parametrize("failures", [0, 2])
def test_when_the_robot_fails_what_there_is_of_the_episode_and_the_reason_are_kept(tmp_path, monkeypatch, failures):
    """Also where the episode cannot be handed over at once."""
    replay, steps = FlakyReplayBuffer(failures), iter(range(100))
    works = glow.Glow.step

    def fails(self, actions, active):
        if next(steps) == 5:
            raise OSError("the lamp fell off the table")
        return works(self, actions, active)

    monkeypatch.setattr(glow.Glow, "step", fails)
    with worker(make_config(tmp_path), replay, FlakyStateManager()) as env:
        for _ in range(failures):
            with pytest.raises(WorkerLost):
                env.rollout(seed=3)
        with pytest.raises(RolloutError, match="the lamp fell off the table"):
            env.rollout(seed=3)
    (episode,) = replay.kept.values()
    assert episode.steps == 5
    assert "the lamp fell off the table" in episode.meta["ended"]


def test_an_episode_that_is_stopped_before_it_begins_is_none(tmp_path, monkeypatch):
    replay, resets = FlakyReplayBuffer(), glow.Glow.reset
    with worker(make_config(tmp_path), replay, FlakyStateManager()) as env:

        def stopped(self, *arguments):
            env.stop()
            return resets(self, *arguments)

        monkeypatch.setattr(glow.Glow, "reset", stopped)
        assert env.rollout(seed=3) is None
    assert not replay.kept


@pytest.mark.parametrize(
    "config",
    [SacConfig(hidden_dims=(8,)), QChunkConfig(horizon=4, num_samples=2, hidden_dims=(8,))],
    ids=["sac", "qchunk"],
)
def test_what_it_explores_is_new_after_every_start_and_the_same_for_the_same_seed(tmp_path: Path, config: Any):
    asked = make_config(tmp_path)
    same = config.build(EnvSpec(2, 1, {}), 0, "cpu").weights()

    def explored(folder: str, seed: int) -> list[float]:
        """The actions of the first episode after a start of the robot's process, from the same light."""
        state, replay = StateManager(tmp_path / folder), FlakyReplayBuffer()
        if not state.version:
            state.publish(same)
        policy = config.build(EnvSpec(2, 1, {}), seed, "cpu").policy_config(explore=True)
        with worker(asked, replay, state, PolicySpec(policy=policy.model_dump(mode="json"))) as env:
            env.rollout(seed=3)
        (episode,) = replay.kept.values()
        return episode.actions[:, 0].tolist()

    first, restarted, restarted_again = (explored("run", 0) for _ in range(3))
    assert first != restarted != restarted_again != first
    assert [explored("again", 0) for _ in range(3)] == [first, restarted, restarted_again]
    assert explored("other", 1) != first
