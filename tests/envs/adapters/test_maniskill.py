"""ManiSkill is not built for every machine: its adapter is tested on a fake with the outputs of ManiSkill 3.0.1."""

import sys
from types import ModuleType

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.envs.registration import WrapperSpec

from envs.adapters.contract import INFINITE_STATE, check_adapted, state_size
from plaudit.envs.adapters.maniskill import ManiSkillConfig, flatten, unbatch
from plaudit.errors import UnknownName

pytestmark = pytest.mark.filterwarnings(INFINITE_STATE)


class PickCube(gym.Env):
    """One environment in a batch: nested dictionaries of tensors, as the task PickCube-v1 has them."""

    control_freq = 20
    single_action_space = action_space = spaces.Box(-1, 1, (4,))

    def __init__(self, obs_mode, size=(8, 8), **_):
        self.obs_mode, self.size, self.elapsed = obs_mode, size, 0

    def _observe(self):
        if self.obs_mode == "state":
            return torch.full((1, 42), float(self.elapsed))
        image = torch.arange(self.size[0] * self.size[1] * 3).reshape(1, *self.size, 3).to(torch.uint8)
        sensors = {"sensor_param": {"base_camera": {"extrinsic_cv": torch.eye(4)[None, :3]}}}
        sensors["sensor_data"] = {"base_camera": {"rgb": image}}
        if self.obs_mode == "rgb+state":
            return {**sensors, "state": torch.full((1, 42), float(self.elapsed))}
        agent = {"qpos": torch.full((1, 9), float(self.elapsed)), "qvel": torch.zeros(1, 9)}
        extra = {"is_grasped": torch.tensor([True]), "tcp_pose": torch.zeros(1, 7), "goal_pos": torch.zeros(1, 3)}
        return {"agent": agent, "extra": extra, **sensors}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.elapsed = 0
        return self._observe(), {"reconfigure": False}

    def step(self, action):
        assert action.shape == (4,)
        self.elapsed += 1
        success = torch.tensor([self.elapsed >= 2])
        info = {"elapsed_steps": torch.tensor([self.elapsed], dtype=torch.int32), "success": success}
        return self._observe(), torch.tensor([0.5]), success.clone(), torch.tensor([False]), info


class BatchTimeLimit(gym.Wrapper):
    """ManiSkill's own time limit, which gymnasium does not know of: `spec.max_episode_steps` stays None."""

    def __init__(self, env, max_episode_steps):
        super().__init__(env)
        self._max_episode_steps = max_episode_steps


def pick_cube(obs_mode):
    return BatchTimeLimit(PickCube(obs_mode), max_episode_steps=50)


@pytest.fixture
def registered(monkeypatch):
    """PickCube-v1 in gymnasium's registry as `import mani_skill.envs` puts it there."""
    monkeypatch.setitem(sys.modules, "mani_skill", ModuleType("mani_skill"))
    monkeypatch.setitem(sys.modules, "mani_skill.envs", ModuleType("mani_skill.envs"))
    limit = WrapperSpec("BatchTimeLimit", f"{__name__}:BatchTimeLimit", {"max_episode_steps": 50})
    kept = dict(gym.registry)
    gym.register("PickCube-v1", entry_point=PickCube, disable_env_checker=True, additional_wrappers=(limit,))
    yield
    gym.registry.clear()
    gym.registry.update(kept)


def test_the_time_limit_is_the_simulators_own(registered):
    made = gym.make("PickCube-v1", obs_mode="state")
    assert made.spec.max_episode_steps is None
    env = ManiSkillConfig(obs="state").make()
    assert (env.max_steps, env.fps) == (50, 20)
    env.reset(seed=0)


@pytest.mark.parametrize(
    ("obs", "mode", "state", "cameras"),
    [("state", "state", 42, ()), ("pixels", "rgb", 29, ("front",)), ("both", "rgb+state", 42, ("front",))],
)
def test_each_observation_mode_keeps_the_contract(obs, mode, state, cameras):
    env = ManiSkillConfig(obs=obs, image_size=(8, 8)).adapt(pick_cube(mode))
    check_adapted(env, cameras=cameras)
    assert state_size(env) == state
    assert (env.fps, env.max_steps) == (20, 50)


def test_success_reward_and_end_are_plain_values():
    env = ManiSkillConfig().adapt(pick_cube("state"))
    env.reset(seed=0)
    steps = [env.step(np.zeros(4, np.float32)) for _ in range(2)]
    assert [step[4]["success"] for step in steps] == [False, True]
    assert steps[1][1:4] == (0.5, True, False)
    assert steps[1][0]["state"].tolist() == [2.0] * 42


def test_numbers_keep_the_order_of_the_dictionaries():
    tree = {"agent": {"qpos": torch.tensor([[1.0, 2.0]])}, "extra": {"is_grasped": torch.tensor([True])}}
    assert flatten(unbatch(tree)).tolist() == [1, 2, 1]


def test_a_camera_that_the_task_has_not_is_answered_with_those_it_has():
    with pytest.raises(UnknownName, match="PickCube-v1 has no camera 'wrist'; known: front"):
        ManiSkillConfig(obs="pixels", cameras=("wrist",)).adapt(pick_cube("rgb"))
