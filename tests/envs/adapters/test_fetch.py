import numpy as np
import pytest

from envs.adapters.contract import INFINITE_STATE, check_adapted, needs, rollout, state_size
from plaudit.envs.adapters.mujoco import FetchConfig
from plaudit.errors import UnknownName

pytestmark = [needs("gymnasium_robotics", "fetch"), pytest.mark.filterwarnings(INFINITE_STATE)]


@pytest.mark.parametrize(
    ("id", "obs", "state"),
    [
        pytest.param("FetchPickAndPlace-v4", "state", 28, marks=pytest.mark.slow),
        ("FetchPickAndPlace-v4", "both", 28),
        ("FetchPushDense-v4", "pixels", 13),
        pytest.param("FetchReach-v4", "both", 13, marks=pytest.mark.slow),
    ],
)
def test_a_task_keeps_the_contract(id, obs, state):
    env = FetchConfig(id=id, obs=obs, cameras=("front", "side"), image_size=(32, 48), max_steps=20).make()
    check_adapted(env, cameras=() if obs == "state" else ("front", "side"))
    assert state_size(env) == state
    assert (env.fps, env.max_steps) == (25, 20)
    env.close()


def test_the_goal_is_in_the_state_and_reaching_it_is_success():
    env = FetchConfig(id="FetchReach-v4").make()
    state, reward, info = env.reset(seed=0)[0]["state"], -1.0, {}
    for _ in range(30):
        towards = np.append(10 * (state[-3:] - state[:3]), 0).astype(np.float32)
        observation, reward, *_, info = env.step(towards)
        state = observation["state"]
    assert info["success"] and reward == 0
    assert np.linalg.norm(state[-3:] - state[:3]) < 0.05


def test_seeds_reproduce():
    env = FetchConfig().make()
    assert np.array_equal(rollout(env, 1), rollout(env, 1)) and not np.array_equal(rollout(env, 1), rollout(env, 2))


def test_episodes_without_a_seed_differ_from_one_maker_to_the_next():
    first, second = (FetchConfig(obs="both", image_size=(16, 16)).make() for _ in range(2))
    assert not np.array_equal(first.reset()[0]["state"], second.reset()[0]["state"])
    first.close()
    second.close()


def test_an_unknown_task_is_answered_with_the_nearest():
    with pytest.raises(UnknownName, match="there is no environment 'FetchPush'; did you mean 'FetchPush-v4'"):
        FetchConfig(id="FetchPush").make()
