"""The robot's side of the loop: in real time, with weights that come while it moves, and when it fails."""

import time
from pathlib import Path
from typing import Any

import pytest

import glow
from plaudit.errors import PartLost, RolloutError
from plaudit.learners.qchunk import QChunkConfig
from plaudit.learners.sac import SacConfig
from plaudit.policies.loader import PolicySpec
from plaudit.policies.networks import Spaces
from plaudit.robots.sim import SimRobotConfig
from plaudit.rollout.executor import ExecutorConfig
from plaudit.rollout.run import RunConfig
from plaudit.training.state_manager import StateManager
from plaudit.training.workers.env import EnvSide
from plaudit.types import Episode, Weights

LEARNER = QChunkConfig(horizon=4, samples=2, hidden=(8,)).build(Spaces(2, 1, {}), 0, "cpu")
POLICY = PolicySpec(policy=LEARNER.policy_config().model_dump(mode="json"))


class Shelf:
    """Keeps what it is given; the first `failures` times it does not answer."""

    def __init__(self, failures: int = 0):
        self.episodes: dict[str, Episode] = {}
        self.failures = failures

    def append(self, episode: Episode, key: str) -> int:
        if self.failures:
            self.failures -= 1
            raise PartLost("the replay service does not answer")
        self.episodes[key] = episode
        return len(self.episodes) - 1


class Publisher:
    """Has version 1, and version 2 a moment after it was first asked; in between it does not answer once."""

    def __init__(self) -> None:
        self._asked: float | None = None
        self._lost = False

    def count_start(self, reader: str) -> int:
        return 0

    def newer_than(self, version: int, reader: str) -> Weights | None:
        if self._asked is None:
            self._asked = time.monotonic()
            return Weights(1, LEARNER.weights().tensors)
        if not self._lost:
            self._lost = True
            raise PartLost("the state manager does not answer")
        later = time.monotonic() - self._asked > 0.5
        return Weights(2, LEARNER.weights().tensors) if later and version < 2 else None


def side(shelf: Shelf, algorithm: str = "sequential", *, realtime: bool = True, during: bool = False) -> EnvSide:
    robot = SimRobotConfig(env=glow.GlowConfig(), realtime=False)
    how = ExecutorConfig(name="lamp", steps=12, realtime=realtime)
    run = RunConfig(robot=robot, algorithm=algorithm, executor=how)
    return EnvSide(run, POLICY, shelf, Publisher(), weights_during=during)


@pytest.mark.parametrize("algorithm", ["sequential", pytest.param("rtc", marks=pytest.mark.slow)])
def test_weights_that_come_while_it_moves_are_acted_with_in_the_same_episode(algorithm):
    shelf = Shelf()
    with side(shelf, algorithm, during=True) as env:
        played = env.step(seed=3)
    (episode,) = shelf.episodes.values()
    assert (played.version, played.steps, played.ended) == (1, 12, "steps")
    ((step, version),) = episode.meta["weights_changed"]
    assert version == 2 and 4 <= step <= 11  # 0.5 s and a look later, at 10 Hz


def test_an_episode_that_could_not_be_handed_over_is_handed_over_next():
    shelf = Shelf(failures=2)
    with side(shelf, realtime=False) as env:
        for _ in range(2):
            with pytest.raises(PartLost):
                env.step(seed=3)
        assert env.step(seed=4).id == 0
    (episode,) = shelf.episodes.values()
    assert episode.meta["seed"] == 3  # the one that was played, and no other


@pytest.mark.parametrize("failures", [0, 2])
def test_when_the_robot_fails_what_there_is_of_the_episode_and_the_reason_are_kept(monkeypatch, failures):
    """Also where the episode cannot be handed over at once."""
    shelf, steps = Shelf(failures), iter(range(100))
    works = glow.Glow.step

    def fails(self, actions, active):
        if next(steps) == 5:
            raise OSError("the lamp fell off the table")
        return works(self, actions, active)

    monkeypatch.setattr(glow.Glow, "step", fails)
    with side(shelf, realtime=False) as env:
        for _ in range(failures):
            with pytest.raises(PartLost):
                env.step(seed=3)
        with pytest.raises(RolloutError, match="the lamp fell off the table"):
            env.step(seed=3)
    (episode,) = shelf.episodes.values()
    assert episode.steps == 5
    assert "the lamp fell off the table" in episode.meta["ended"]


def test_an_episode_that_is_stopped_before_it_begins_is_none(monkeypatch):
    shelf, resets = Shelf(), glow.Glow.reset
    with side(shelf, realtime=False) as env:

        def stopped(self, *arguments):
            env.stop()
            return resets(self, *arguments)

        monkeypatch.setattr(glow.Glow, "reset", stopped)
        assert env.step(seed=3) is None
    assert not shelf.episodes


@pytest.mark.parametrize(
    "config", [SacConfig(hidden=(8,)), QChunkConfig(horizon=4, samples=2, hidden=(8,))], ids=["sac", "qchunk"]
)
def test_what_it_explores_is_new_after_every_start_and_the_same_for_the_same_seed(tmp_path: Path, config: Any):
    robot, how = SimRobotConfig(env=glow.GlowConfig(), realtime=False), ExecutorConfig(steps=12, realtime=False)
    run = RunConfig(robot=robot, algorithm="sequential", executor=how)
    same = config.build(Spaces(2, 1, {}), 0, "cpu").weights()

    def explored(folder: str, seed: int) -> list[float]:
        """The actions of the first episode after a start of the robot's process, from the same light."""
        state, shelf = StateManager(tmp_path / folder), Shelf()
        if not state.version:
            state.push(same)
        policy = config.build(Spaces(2, 1, {}), seed, "cpu").policy_config(explore=True)
        with EnvSide(run, PolicySpec(policy=policy.model_dump(mode="json")), shelf, state) as env:
            env.step(seed=3)
        (episode,) = shelf.episodes.values()
        return episode.actions[:, 0].tolist()

    first, restarted, restarted_again = (explored("run", 0) for _ in range(3))
    assert first != restarted != restarted_again != first
    assert [explored("again", 0) for _ in range(3)] == [first, restarted, restarted_again]
    assert explored("other", 1) != first
