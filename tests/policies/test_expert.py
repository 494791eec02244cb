import numpy as np
import pytest

pytest.importorskip("plaudit.envs.panda.cameras", exc_type=ImportError)  # the tests below need MuJoCo 4

from plaudit.envs.panda.vec_env import PandaVecEnv
from plaudit.errors import EnvError
from plaudit.policies.scripted import OUTCOMES, SUCCESSES, ScriptedExpert

SEEDS = pytest.mark.parametrize("seeds", [14, pytest.param(20, marks=pytest.mark.slow)])


def succeeded(task, outcome, seeds, noise=0.05):
    """[seeds] whether each episode showed success at any step."""
    env = PandaVecEnv(task, seeds)
    env.reset(range(seeds))
    expert = ScriptedExpert(env.task_name, env.num_envs, [outcome], noise=noise)
    return np.any([env.step(expert.act(env.task_state()))[1]["success"] for _ in range(env.max_steps)], axis=0)


@pytest.mark.parametrize("outcome", SUCCESSES)
@pytest.mark.parametrize("task", ["lift", "pick_place", "push"])
@SEEDS
def test_it_succeeds(task, outcome, seeds):
    assert succeeded(task, outcome, seeds).mean() >= 0.95


@pytest.mark.parametrize("outcome", [outcome for outcome in OUTCOMES if outcome not in SUCCESSES])
@pytest.mark.parametrize("task", ["lift", "pick_place", "push"])
@SEEDS
def test_it_fails_as_told(task, outcome, seeds):
    assert succeeded(task, outcome, seeds).mean() <= 0.15


def test_each_scene_has_its_own_outcome():
    env = PandaVecEnv("lift", 4)
    env.reset([0, 0, 0, 0])
    expert = ScriptedExpert(env.task_name, env.num_envs, ["success", "miss"])
    assert expert.outcome.tolist() == ["success", "miss"] * 2
    success = np.any([env.step(expert.act(env.task_state()))[1]["success"] for _ in range(40)], axis=0)
    assert success.tolist() == [True, False] * 2


def test_it_begins_anew_after_a_reset():
    env = PandaVecEnv("lift", 3)
    expert = ScriptedExpert(env.task_name, env.num_envs)
    for seeds in ([0, 1, 2], [3, 4, 5]):
        env.reset(seeds)
        expert.reset()
        assert np.any([env.step(expert.act(env.task_state()))[1]["success"] for _ in range(40)], axis=0).all()


def test_a_miss_comes_close_and_holds_nothing():
    env = PandaVecEnv("lift", 10)
    env.reset(range(10))
    expert = ScriptedExpert(env.task_name, env.num_envs, ["miss"])
    gap, held = [], []
    for _ in range(40):
        held.append(env.step(expert.act(env.task_state()))[1]["grasp"])
        gap.append(np.linalg.norm(env.task_state().tip_pos - env.task_state().cube_pos, axis=1))
    assert np.min(gap, axis=0).max() < 0.09 and not np.any(held)


def test_what_it_cannot_do_is_refused_in_a_sentence():
    env = PandaVecEnv("lift")
    with pytest.raises(EnvError, match="there is no outcome 'mis'; did you mean 'miss'"):
        ScriptedExpert(env.task_name, env.num_envs, ["mis"])
    with pytest.raises(
        EnvError, match="name at least one outcome of success, off_center, miss, drop, near_goal, wrong_place"
    ):
        ScriptedExpert(env.task_name, env.num_envs, [])
    with pytest.raises(EnvError, match="noise is -1; it is a standard deviation, 0 or more"):
        ScriptedExpert(env.task_name, env.num_envs, noise=-1)
