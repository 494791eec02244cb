import numpy as np
import pytest

from envs.adapters.contract import INFINITE_STATE, check_adapted, needs, rollout, state_size
from plaudit.envs.adapters.mujoco import MetaWorldConfig
from plaudit.errors import UnknownName

pytestmark = [needs("metaworld", "metaworld"), pytest.mark.filterwarnings(INFINITE_STATE)]


def test_states_keep_the_contract():
    env = MetaWorldConfig(id="reach-v3", max_steps=9).make()
    check_adapted(env)
    assert state_size(env) == 39
    assert (env.task, env.fps, env.max_steps) == ("reach", 80, 9)
    env.close()


@pytest.mark.slow
def test_images_keep_the_contract():
    env = MetaWorldConfig(id="reach-v3", obs="pixels", cameras=("front", "wrist"), image_size=(32, 32)).make()
    check_adapted(env, cameras=("front", "wrist"))
    assert state_size(env) == 4
    env.close()


def test_the_goal_follows_from_the_seed():
    env = MetaWorldConfig(id="reach-v3").make()
    assert np.array_equal(rollout(env, 1), rollout(env, 1))
    goals = {tuple(env.reset(seed=seed)[0]["state"][-3:]) for seed in range(5)}
    assert len(goals) > 1


def test_reaching_the_goal_is_success():
    env = MetaWorldConfig(id="reach-v3").make()
    state, info = env.reset(seed=0)[0]["state"], {}
    for _ in range(100):
        towards = np.append(10 * (state[-3:] - state[:3]), 0).astype(np.float32)
        observation, *_, info = env.step(towards)
        state = observation["state"]
    assert info["success"]


def test_an_unknown_task_is_answered_with_the_nearest():
    with pytest.raises(UnknownName, match="there is no environment 'pick-place'; did you mean 'pick-place-v3'"):
        MetaWorldConfig(id="pick-place").make()
