import numpy as np
import pytest

from conftest import counting_episode
from plaudit.config import parse
from plaudit.contracts import check_policy
from plaudit.data.normalize import Normalizer
from plaudit.envs.panda import PandaConfig
from plaudit.errors import ConfigError, PolicyError
from plaudit.policies.scripted import ReplayConfig, ReplayPolicy, ScriptedConfig, ScriptedPolicy
from plaudit.types import Observation, PolicyWeights

NOTHING = Observation({}, np.float32([1, 2]))
IDENTITY = Normalizer.identity(2, 1)
TEN = np.arange(10, dtype=np.float32)[:, None]  # action = step


def double(observation):
    return 2 * observation.state


def test_a_function_is_a_policy_by_its_dotted_path(monkeypatch):
    policy = ScriptedConfig(function=f"{__name__}:double", horizon=3).build()
    assert policy.predict(NOTHING, IDENTITY).tolist() == [[2, 4]] * 3
    check_policy(policy, NOTHING, IDENTITY, action_dim=2)


def test_a_script_that_is_not_there_or_returns_something_else_is_named():
    with pytest.raises(PolicyError, match="script 'nowhere:wave' could not be loaded"):
        ScriptedConfig(function="nowhere:wave").build()
    with pytest.raises(PolicyError, match=r"the script returned \[4, 2\]; it is to return \[A\] or \[3, A\]"):
        ScriptedPolicy(lambda _: np.zeros((4, 2)), horizon=3).predict(NOTHING, IDENTITY)
    with pytest.raises(ConfigError, match="a 'function' or an 'expert', and not both"):
        parse(ScriptedConfig, {"type": "scripted"})


@pytest.mark.parametrize("task", ["lift", "pick_place", "push"])
def test_the_expert_solves_its_task_from_the_state_alone_episode_after_episode(task):
    world = PandaConfig(type=task, obs="state").build(1)
    policy = ScriptedConfig(expert=task).build()
    normalizer = Normalizer.identity(world.state_dim, world.action_dim)
    solved = 0
    for seed in range(3):
        seen, success = world.reset([seed]), np.array([False])
        for _ in range(world.max_steps):
            actions = policy.predict(Observation({}, seen.state[0]), normalizer)
            seen, known = world.step(actions, ~success)
            success |= known["success"]
        solved += success.item()
    world.close()
    assert solved == 3


def test_an_expert_that_cannot_see_the_scene_says_so():
    with pytest.raises(PolicyError, match=r"needs the 32 numbers .* the observation has \[2\]"):
        ScriptedConfig(expert="lift").build().predict(NOTHING, IDENTITY)


def test_recorded_actions_are_done_again_chunk_by_chunk_and_then_once_more():
    policy = ReplayPolicy(TEN, horizon=4)
    starts = [policy.predict(NOTHING, IDENTITY)[:, 0].tolist() for _ in range(4)]
    assert starts == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 9, 9], [0, 1, 2, 3]]


def test_guided_they_go_on_from_what_was_executed():
    policy = ReplayPolicy(TEN, horizon=4)
    chunk = policy.predict(NOTHING, IDENTITY)
    for start in (3, 6, 9):
        chunk = policy.guided_inference(NOTHING, IDENTITY, chunk, delay=1, executed=3)
        assert chunk[:, 0].tolist() == [min(start + i, 9) for i in range(4)]


def test_an_episode_of_a_store_is_a_policy(store):
    policy = ReplayConfig(store=store.folder, episode=store.append(counting_episode(steps=6)), horizon=3).build()
    assert policy.predict(NOTHING, IDENTITY)[:, 0].tolist() == [0, 1, 2]
    check_policy(policy, NOTHING, IDENTITY, action_dim=1)


@pytest.mark.parametrize("policy", [ReplayPolicy(TEN), ScriptedPolicy(double)])
def test_there_is_nothing_to_load(policy):
    policy.load_weights(PolicyWeights(1, {}))
    with pytest.raises(PolicyError, match="no weights to load"):
        policy.load_weights(PolicyWeights(1, {"a/b": np.zeros(1)}))
