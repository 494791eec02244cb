"""A simulated person who corrects a policy, in a real simulation and both engines."""

import numpy as np
import pytest

from plaudit.envs.panda import PandaConfig
from plaudit.envs.panda.scene import TaskState
from plaudit.errors import RolloutError
from plaudit.policies.scripted import ScriptedConfig, ScriptedExpert
from plaudit.robots.sim import SimRobotConfig
from plaudit.rollout.engine import InferenceConfig, Sequential
from plaudit.rollout.rtc import Rtc
from plaudit.rollout.scripted_teleop import ScriptedTeleopConfig
from plaudit.types import HUMAN, Episode


def stand_still(observation):
    return np.zeros((8, 4), np.float32)


STILL = ScriptedConfig(function=f"{__name__}:stand_still", horizon=8)
LIFT = SimRobotConfig(env=PandaConfig(type="lift", obs="state"), realtime=False)


def play(kind=Sequential, count: int = 1, policy=STILL, **person) -> list[Episode]:
    config = InferenceConfig(max_episode_steps=50, realtime=kind is Rtc, guidance=False)
    with kind(LIFT, policy, config, ScriptedTeleopConfig(**person)) as engine:
        return list(engine.episodes(count, seed=5))


def runs_of(mode: np.ndarray) -> list[int]:
    """The lengths of the interventions."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], mode, [0]])))
    return (edges[1::2] - edges[::2]).tolist()


@pytest.mark.parametrize("kind", [Sequential, Rtc])
def test_the_person_helps_where_the_policy_makes_no_progress_and_control_mode_says_so(kind):
    (episode,) = play(kind, patience=4, delay=2, duration=40, noise=0)
    mode = episode.control_mode
    assert runs_of(mode) and not mode[:6].any()  # patience and delay first
    assert episode.success.any()
    assert (episode.actions[mode != HUMAN] == 0).all()  # the policy's own
    assert np.abs(episode.actions[mode == HUMAN]).sum(axis=1).min() > 0
    done = int(np.argmax(np.asarray(episode.success)))  # the flag after action `done`
    assert mode[done] == HUMAN and mode[done + 1] != HUMAN  # they let go when it is done


def test_an_intervention_is_at_most_as_long_as_it_may_be():
    (episode,) = play(patience=3, delay=0, duration=5)
    assert max(runs_of(episode.control_mode)) <= 5 and len(runs_of(episode.control_mode)) > 1


def test_their_time_is_limited_over_all_episodes():
    episodes = play(count=3, patience=2, delay=0, budget_s=0.4)
    acted = sum(episode.control_mode.sum() / episode.fps for episode in episodes)
    assert 0.4 <= acted < 0.4 + 2 / episodes[0].fps


def test_without_skill_they_do_not_help():
    (episode,) = play(patience=3, delay=0, duration=50, skill=0)
    assert episode.control_mode.any() and not episode.success.any()


def test_whoever_takes_over_a_grasped_cube_does_not_drop_it():
    at, goal = np.array([[0.5, 0.0, 0.15]]), np.array([[0.6, 0.1, 0.2]])
    held, free = (TaskState(at, at, np.zeros(1), goal, np.array([grasped])) for grasped in (True, False))
    action = ScriptedExpert("pick_place").act(held)[0]
    assert action[3] == -1 and action[:3] @ (goal - at)[0] > 0  # closed, and on the way to the goal
    assert ScriptedExpert("pick_place").act(free)[0][3] == 1


def test_they_do_not_act_again_after_the_task_has_succeeded():
    (episode,) = play(patience=4, delay=2, duration=40, noise=0)
    done = int(np.argmax(np.asarray(episode.success)))
    assert episode.control_mode[:done].any() and not episode.control_mode[done + 1 :].any()


def test_a_policy_that_makes_progress_is_left_alone():
    expert = ScriptedConfig(expert="lift")
    (episode,) = play(policy=expert, patience=15)
    assert episode.success.any() and not episode.control_mode.any()


def test_a_robot_without_a_built_in_task_is_refused():
    person = ScriptedTeleopConfig().build(4)
    with pytest.raises(RolloutError, match="helps in a built-in task"):
        person.begin_episode(object())
