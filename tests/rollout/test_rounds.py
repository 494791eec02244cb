import numpy as np
import pytest

from counting import CountingSimulation
from plaudit.rollout.rounds import SimulatorJudge, run_round


def ones(observation):
    return np.ones((len(observation.state), 1), np.float32)


def test_an_episode_ends_with_its_success_and_the_others_go_on():
    played = run_round(CountingSimulation(3), ones, [2, 4, 9], SimulatorJudge())
    assert played.length.tolist() == [2, 4, 5]  # the last one runs into the time limit
    assert played.terminated.tolist() == [True, True, False]
    assert played.succeeded.tolist() == [True, True, False]
    assert played.valid.sum(axis=0).tolist() == [2, 4, 5]


def test_a_round_is_over_with_its_last_episode():
    assert len(run_round(CountingSimulation(2), ones, [2, 3], SimulatorJudge()).actions) == 3


def test_a_failure_of_the_simulator_ends_an_episode_without_success():
    played = run_round(CountingSimulation(1), ones, [-2], SimulatorJudge())
    assert (played.length.tolist(), played.terminated.tolist(), played.succeeded.tolist()) == ([2], [True], [False])


def test_success_need_not_end_an_episode():
    played = run_round(CountingSimulation(2), ones, [2, 3], SimulatorJudge(dense=True), end_on_success=False)
    assert played.length.tolist() == [5, 5] and not played.terminated.any()
    assert played.succeeded.tolist() == [True, True]
    assert played.reward[:, 0].tolist() == [1, 2, 3, 4, 5]


def test_a_round_is_cut_into_episodes_with_their_verdicts():
    simulation = CountingSimulation(2)
    (short, said), (long, _) = run_round(simulation, ones, [2, 9], SimulatorJudge()).episodes(simulation, "simulator")
    assert (short.steps, long.steps) == (2, 5)
    assert short.frames["front"][:, 0, 0, 0].tolist() == [0, 1, 2]
    assert said.reward.tolist() == [0, 1] and said.success.tolist() == [False, True] and said.source == "simulator"
    assert (short.terminated, long.terminated) == (True, False)
    assert (short.task, short.fps, short.meta["seed"]) == ("count", 10.0, 2)


def test_the_judge_in_charge_decides_reward_and_end_not_the_simulator():
    class Stranger(SimulatorJudge):
        def __call__(self, observation, known):
            return super().__call__(observation, {**known, "success": observation.state[:, 1] == 1})

    played = run_round(CountingSimulation(1), ones, [3], Stranger())
    assert played.length.tolist() == [1] and played.reward.tolist() == [[1.0]]
    assert played.privileged["success"].tolist() == [[False]]  # kept for measuring


def test_an_episode_may_linger_after_its_success_and_is_terminated_all_the_same():
    played = run_round(CountingSimulation(3), ones, [1, 4, 9], SimulatorJudge(), linger=2)
    assert played.length.tolist() == [3, 5, 5]  # the second's last step is cut by the time limit
    assert played.terminated.tolist() == [True, True, False]
    assert played.success[:3, 0].tolist() == [True, False, False]  # judged on, whatever it shows


def test_the_simulators_failure_ends_an_episode_that_lingers():
    class Doomed(CountingSimulation):
        def step(self, actions, active):
            seen, known = super().step(actions, active)
            return seen, {**known, "failure": self._count == self._seeds + 1}

    played = run_round(Doomed(1), ones, [2], SimulatorJudge(), linger=3)
    assert played.length.tolist() == [3] and played.terminated.tolist() == [True]


def test_the_judge_is_told_of_a_new_round_and_judges_its_first_frames():
    class Remembering(SimulatorJudge):
        starts = 0

        def start(self, observation):
            self.starts += 1
            return np.array([0.25, 0.75], np.float32)

    simulation, judge = CountingSimulation(2), Remembering()
    pairs = run_round(simulation, ones, [2, 3], judge).episodes(simulation, "simulator")
    assert [labels.start for _, labels in pairs] == [0.25, 0.75] and judge.starts == 1


@pytest.mark.parametrize("count", [1, 4])
def test_as_many_episodes_as_seeds(count):
    assert run_round(CountingSimulation(count), ones, [3] * count, SimulatorJudge()).steps == 3 * count
