import numpy as np
import pytest

from counting import CountingSimulation
from plaudit.data.rewards import RewardConfig
from plaudit.judges.labeling import SuccessDetector
from plaudit.judges.simulator import SimulatorJudge
from plaudit.rollout.vector import RolloutBatch, collect_rollout
from plaudit.types import Scores


def ones(observation):
    return np.ones((len(observation.state), 1), np.float32)


def play(simulation, seeds, judge=None, **options) -> RolloutBatch:
    return collect_rollout(simulation, ones, seeds, SuccessDetector(judge or SimulatorJudge(), len(seeds)), **options)


def test_an_episode_ends_with_its_success_and_the_others_go_on():
    played = play(CountingSimulation(3), [2, 4, 9])
    assert played.length.tolist() == [2, 4, 5]  # the last one runs into the time limit
    assert played.terminated.tolist() == [True, True, False]
    assert played.success_once.tolist() == [True, True, False]
    assert played.valid.sum(axis=0).tolist() == [2, 4, 5]


def test_a_round_is_over_with_its_last_episode():
    assert len(play(CountingSimulation(2), [2, 3]).actions) == 3


def test_a_failure_of_the_simulator_ends_an_episode_without_success():
    played = play(CountingSimulation(1), [-2])
    assert (played.length.tolist(), played.terminated.tolist(), played.success_once.tolist()) == ([2], [True], [False])


def test_success_need_not_end_an_episode():
    played = play(CountingSimulation(2), [2, 3], reward=RewardConfig(env_reward="dense"), terminate_on_success=False)
    assert played.length.tolist() == [5, 5] and not played.terminated.any()
    assert played.success_once.tolist() == [True, True]
    assert played.reward[:, 0].tolist() == [1, 2, 3, 4, 5]


def test_a_round_is_cut_into_episodes_with_their_labels():
    simulation = CountingSimulation(2)
    (short, said), (long, _) = play(simulation, [2, 9]).episodes(simulation, SimulatorJudge())
    assert (short.steps, long.steps) == (2, 5)
    assert short.frames["front"][:, 0, 0, 0].tolist() == [0, 1, 2]
    assert said.targets.tolist() == [0, 0, 1] and said.judge == SimulatorJudge().id
    assert (short.terminated, long.terminated) == (True, False)
    assert (short.task, short.fps, short.meta["seed"]) == ("count", 10.0, 2)


def test_the_judge_decides_reward_and_end_not_the_simulator():
    class Stranger(SimulatorJudge):
        def stream(self, num_envs):
            stream = super().stream(num_envs)
            stream.step = lambda observation, info: Scores(np.float32(observation.state[:, 1] == 1))
            return stream

    played = play(CountingSimulation(1), [3], Stranger())
    assert played.length.tolist() == [1] and played.reward.tolist() == [[1.0]]
    assert played.privileged["success"].tolist() == [[False]]  # kept for measuring


def test_an_episode_may_linger_after_its_success_and_is_terminated_all_the_same():
    played = play(CountingSimulation(3), [1, 4, 9], steps_after_success=2)
    assert played.length.tolist() == [3, 5, 5]  # the second's last step is cut by the time limit
    assert played.terminated.tolist() == [True, True, False]
    assert played.success[1:4, 0].tolist() == [True, False, False]  # judged on, whatever it shows


def test_the_simulators_failure_ends_an_episode_that_lingers():
    class Doomed(CountingSimulation):
        def step(self, actions, active):
            seen, known = super().step(actions, active)
            return seen, {**known, "failure": self._count == self._seeds + 1}

    played = play(Doomed(1), [2], steps_after_success=3)
    assert played.length.tolist() == [3] and played.terminated.tolist() == [True]


@pytest.mark.parametrize("count", [1, 4])
def test_as_many_episodes_as_seeds(count):
    assert play(CountingSimulation(count), [3] * count).steps == 3 * count


def test_after_an_early_success_the_simulation_goes_on_until_it_is_true():
    class AtOnce(SimulatorJudge):
        def stream(self, num_envs):
            stream = super().stream(num_envs)
            stream.step = lambda observation, info: Scores(np.ones(num_envs, np.float32))
            return stream

    played = play(CountingSimulation(2), [3, 9], AtOnce(), steps_after_end=5)
    assert played.length.tolist() == [1, 1] and played.first_true == (3, None)
    assert played.state[-1, :, 1].tolist() == [3, 5]  # the first needs no more steps, the second is watched to the end
