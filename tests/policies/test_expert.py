import numpy as np
import pytest

pytest.importorskip("plaudit.envs.panda.engine", exc_type=ImportError)  # the tests below need MuJoCo 4

from plaudit.envs.panda.world import World
from plaudit.errors import EnvError
from plaudit.policies.expert import OUTCOMES, ScriptedExpert

SEEDS = 40


def succeeded(task, outcome, noise=0.05):
    """[SEEDS] whether each episode showed success at any step."""
    world = World(task, SEEDS)
    world.reset(range(SEEDS))
    expert = ScriptedExpert(world, [outcome], noise=noise)
    return np.any([world.step(expert.act())[1]["success"] for _ in range(world.max_steps)], axis=0)


@pytest.mark.parametrize("task", ["lift", "pick_place", "push"])
def test_it_succeeds(task):
    assert succeeded(task, "success").mean() >= 0.95


@pytest.mark.parametrize("outcome", [outcome for outcome in OUTCOMES if outcome != "success"])
@pytest.mark.parametrize("task", ["lift", "pick_place", "push"])
def test_it_fails_as_told(task, outcome):
    assert succeeded(task, outcome).mean() <= 0.15


def test_each_scene_has_its_own_outcome():
    world = World("lift", 4)
    world.reset([0, 0, 0, 0])
    expert = ScriptedExpert(world, ["success", "miss"])
    assert expert.outcome.tolist() == ["success", "miss"] * 2
    success = np.any([world.step(expert.act())[1]["success"] for _ in range(40)], axis=0)
    assert success.tolist() == [True, False] * 2


def test_it_begins_anew_after_a_reset():
    world = World("lift", 3)
    expert = ScriptedExpert(world)
    for seeds in ([0, 1, 2], [3, 4, 5]):
        world.reset(seeds)
        expert.start()
        assert np.any([world.step(expert.act())[1]["success"] for _ in range(40)], axis=0).all()


def test_a_miss_comes_close_and_holds_nothing():
    world = World("lift", 10)
    world.reset(range(10))
    expert = ScriptedExpert(world, ["miss"])
    gap, held = [], []
    for _ in range(40):
        held.append(world.step(expert.act())[1]["grasp"])
        gap.append(np.linalg.norm(world.facts().tip - world.facts().cube, axis=1))
    assert np.min(gap, axis=0).max() < 0.09 and not np.any(held)


def test_what_it_cannot_do_is_refused_in_a_sentence():
    world = World("lift")
    with pytest.raises(EnvError, match="there is no outcome 'mis'; did you mean 'miss'"):
        ScriptedExpert(world, ["mis"])
    with pytest.raises(EnvError, match="name at least one outcome of success, miss, drop, near_goal, wrong_place"):
        ScriptedExpert(world, [])
    with pytest.raises(EnvError, match="noise is -1; it is a standard deviation, 0 or more"):
        ScriptedExpert(world, noise=-1)
