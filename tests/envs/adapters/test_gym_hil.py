import numpy as np
import pytest

from envs.adapters.contract import INFINITE_STATE, check_adapted, needs, rollout, state_size
from plaudit.envs.adapters.mujoco import GymHilConfig

pytestmark = [needs("gym_hil", "gym-hil"), pytest.mark.filterwarnings(INFINITE_STATE)]


@pytest.mark.parametrize(
    ("id", "actions"),
    [("gym_hil/PandaPickCube-v0", 4), pytest.param("gym_hil/PandaPickCubeBase-v0", 7, marks=pytest.mark.slow)],
)
def test_states_keep_the_contract(id, actions):
    env = GymHilConfig(id=id, max_steps=30).make()
    check_adapted(env)
    assert env.action_space.shape == (actions,) and state_size(env) == 21
    assert (env.task, env.fps, env.max_steps) == ("pick up the cube", 10, 30)
    env.close()


def test_images_of_both_cameras_are_there():  # without check_env, as a step takes seconds where no GPU draws
    env = GymHilConfig(obs="pixels", image_size=(32, 48)).make()
    observation, _ = env.reset(seed=0)
    assert env.observation_space.contains(observation)
    assert observation["state"].shape == (18,)
    assert observation["front"].std() > 1 and not np.array_equal(observation["front"], observation["wrist"])
    env.close()


def test_the_cube_starts_where_the_seed_says_and_numpys_generator_is_left_alone():
    env = GymHilConfig().make()
    np.random.seed(5)
    before = np.random.get_state()[1].tolist()
    assert np.array_equal(rollout(env, 1), rollout(env, 1))
    assert not np.array_equal(rollout(env, 1)[0, -3:], rollout(env, 2)[0, -3:])
    assert np.random.get_state()[1].tolist() == before
    env.close()


def test_boxes_can_be_arranged():
    env = GymHilConfig(id="gym_hil/PandaArrangeBoxes-v0").make()
    assert np.array_equal(rollout(env, 1), rollout(env, 1))
    env.close()


def test_lifting_the_cube_is_success():
    env = GymHilConfig(random_block=False).make()
    state, info, terminated = env.reset(seed=0)[0]["state"], {}, False
    for t in range(60):
        over, lifting = t < 25, t >= 35
        target = state[-3:] + np.array([0, 0, 0.3 if lifting else 0.0])
        move = np.clip((target - state[15:18]) / 0.025, -1, 1)
        state, _, terminated, _, info = env.step(np.array([*move, -1.0 if over else 1.0], np.float32))
        state = state["state"]
        if terminated:
            break
    assert info["success"] and terminated
    env.close()
