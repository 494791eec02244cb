import numpy as np
import pytest

pytest.importorskip("plaudit.envs.panda.engine", exc_type=ImportError)  # the tests below need MuJoCo 4

from plaudit.envs.panda.scene import CENTER, CUBE
from plaudit.envs.panda.tasks import AREA, TASKS, Facts
from plaudit.envs.panda.world import World
from plaudit.policies.expert import ScriptedExpert


def facts(cube, goal=(0.5, 0.0, 0.0), tip=(0.5, 0.0, 0.2), speed=0.0, grasped=False):
    rows = [np.array([values], float) for values in (tip, cube)]
    return Facts(*rows, speed=np.array([speed]), goal=np.array([goal], float), grasped=np.array([grasped]))


def test_lift_is_to_hold_the_cube_ten_centimetres_up():
    lift = TASKS["lift"]
    assert lift.success(facts((0.5, 0, CUBE + 0.11), grasped=True))
    assert not lift.success(facts((0.5, 0, CUBE + 0.09), grasped=True))
    assert not lift.success(facts((0.5, 0, CUBE + 0.11)))


def test_pick_place_is_to_have_the_cube_at_the_marker_and_still():
    pick_place = TASKS["pick_place"]
    assert pick_place.success(facts((0.5, 0.02, 0.1), goal=(0.5, 0, 0.1)))
    assert not pick_place.success(facts((0.5, 0.03, 0.1), goal=(0.5, 0, 0.1)))
    assert not pick_place.success(facts((0.5, 0.02, 0.1), goal=(0.5, 0, 0.1), speed=0.2))


def test_push_is_to_have_the_cube_on_the_marker_and_on_the_table():
    push = TASKS["push"]
    assert push.success(facts((0.52, 0.02, CUBE)))
    assert not push.success(facts((0.52, 0.03, CUBE)))
    assert not push.success(facts((0.52, 0.02, 0.1)))


@pytest.mark.parametrize("name", TASKS)
def test_starts_lie_in_reach_and_none_is_a_success(name):
    world = World(name, 200)
    world.reset(range(200))
    now = world.facts()
    assert np.abs(now.cube - CENTER)[:, :2].max() <= AREA and len(np.unique(now.cube[:, 0])) == 200
    assert not TASKS[name].success(now).mean() > 0.02  # a cube may be put at its marker by chance


@pytest.mark.parametrize("name", TASKS)
def test_the_dense_reward_rises_along_an_experts_episode_and_is_one_at_success(name):
    world = World(name, 10)
    world.reset(range(10))
    expert = ScriptedExpert(world)
    rewards, successes = [], []
    for _ in range(world.max_steps):
        _, known = world.step(expert.act())
        rewards.append(known["reward"])
        successes.append(known["success"])
    reward, success = np.array(rewards), np.array(successes)
    assert (reward[success] == 1).all() and (reward[~success] < 1).all() and reward.min() >= 0
    for scene in range(10):
        path = reward[: success[:, scene].argmax() + 1, scene]
        thirds = [part.mean() for part in np.array_split(path, 3)]
        assert thirds[0] < thirds[1] < thirds[2]
