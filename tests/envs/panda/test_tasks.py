import numpy as np
import pytest

pytest.importorskip("plaudit.envs.panda.cameras", exc_type=ImportError)  # the tests below need MuJoCo 4

from plaudit.envs.panda.scene import CUBE_HALF_SIZE, START_RANGE, TABLE_CENTER, TASKS, TaskState
from plaudit.envs.panda.vec_env import PandaVecEnv
from plaudit.policies.scripted import ScriptedExpert


def task_state(cube, goal=(0.5, 0.0, 0.0), tip=(0.5, 0.0, 0.2), speed=0.0, grasped=False):
    rows = [np.array([values], float) for values in (tip, cube)]
    return TaskState(
        *rows, cube_speed=np.array([speed]), goal_pos=np.array([goal], float), is_grasped=np.array([grasped])
    )


def test_lift_is_done_with_the_cube_held_ten_centimeters_up():
    lift = TASKS["lift"]
    assert lift.success(task_state((0.5, 0, CUBE_HALF_SIZE + 0.11), grasped=True))
    assert not lift.success(task_state((0.5, 0, CUBE_HALF_SIZE + 0.09), grasped=True))
    assert not lift.success(task_state((0.5, 0, CUBE_HALF_SIZE + 0.11)))


def test_pick_place_is_done_with_the_cube_still_at_the_marker():
    pick_place = TASKS["pick_place"]
    assert pick_place.success(task_state((0.5, 0.02, 0.1), goal=(0.5, 0, 0.1)))
    assert not pick_place.success(task_state((0.5, 0.03, 0.1), goal=(0.5, 0, 0.1)))
    assert not pick_place.success(task_state((0.5, 0.02, 0.1), goal=(0.5, 0, 0.1), speed=0.2))


def test_push_is_done_with_the_cube_at_the_marker_on_the_table():
    push = TASKS["push"]
    assert push.success(task_state((0.52, 0.02, CUBE_HALF_SIZE)))
    assert not push.success(task_state((0.52, 0.03, CUBE_HALF_SIZE)))
    assert not push.success(task_state((0.52, 0.02, 0.1)))


@pytest.mark.parametrize("name", TASKS)
def test_starts_are_within_reach_and_are_no_success(name):
    env = PandaVecEnv(name, 200)
    env.reset(range(200))
    now = env.task_state()
    assert np.abs(now.cube_pos - TABLE_CENTER)[:, :2].max() <= START_RANGE and len(np.unique(now.cube_pos[:, 0])) == 200
    assert not TASKS[name].success(now).mean() > 0.02  # a cube may be put at its marker by chance


@pytest.mark.parametrize("name", TASKS)
def test_the_dense_reward_rises_along_an_experts_episode_and_is_one_at_success(name):
    env = PandaVecEnv(name, 10)
    env.reset(range(10))
    expert = ScriptedExpert(env.task_name, env.num_envs)
    rewards, successes = [], []
    for _ in range(env.max_steps):
        _, info = env.step(expert.act(env.task_state()))
        rewards.append(info["reward"])
        successes.append(info["success"])
    reward, success = np.array(rewards), np.array(successes)
    assert (reward[success] == 1).all() and (reward[~success] < 1).all() and reward.min() >= 0
    for i in range(10):
        path = reward[: success[:, i].argmax() + 1, i]
        thirds = [part.mean() for part in np.array_split(path, 3)]
        assert thirds[0] < thirds[1] < thirds[2]
