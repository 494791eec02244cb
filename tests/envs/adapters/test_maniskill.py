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
from plaudit.envs.adapters import SyncVecEnv
from plaudit.envs.adapters.maniskill import BatchVecEnv, ManiSkillConfig, flatten, unbatch
from plaudit.errors import EnvError, InvalidAction, UnknownName
from plaudit.judges.labeling import SuccessDetector
from plaudit.judges.simulator import SimulatorJudge
from plaudit.rollout.vector import collect_rollout

pytestmark = pytest.mark.filterwarnings(INFINITE_STATE)


class PickCube(gym.Env):
    """A batch of environments: nested dictionaries of tensors, as the task PickCube-v1 has them.

    Environment i has succeeded after i + 2 steps; it shows its steps, and in its last number its seed.
    """

    control_freq = 20
    single_action_space = action_space = spaces.Box(-1, 1, (4,))

    def __init__(self, obs_mode, size=(8, 8), num_envs=1, **_):
        self.obs_mode, self.size, self.n, self.elapsed, self.seeds = obs_mode, size, num_envs, 0, [0] * num_envs

    def _observe(self):
        state = torch.full((self.n, 42), float(self.elapsed))
        state[:, -1] = torch.tensor(self.seeds)
        if self.obs_mode == "state":
            return state
        image = torch.arange(self.size[0] * self.size[1] * 3).reshape(1, *self.size, 3) + self.elapsed
        sensors = {"sensor_param": {"base_camera": {"extrinsic_cv": torch.eye(4)[None, :3]}}}
        sensors["sensor_data"] = {"base_camera": {"rgb": image.to(torch.uint8).repeat(self.n, 1, 1, 1)}}
        if self.obs_mode == "rgb+state":
            return {**sensors, "state": state}
        zeros = torch.zeros(self.n, 20)
        agent = {"qpos": state[:, :9], "qvel": zeros[:, :9]}
        extra = {"is_grasped": zeros[:, 0] == 0, "tcp_pose": zeros[:, :7], "goal_pos": zeros[:, :3]}
        return {"agent": agent, "extra": extra, **sensors}

    def reset(self, *, seed=None, options=None):
        if not isinstance(seed, list):
            super().reset(seed=seed)
        self.elapsed, self.seeds = 0, seed if isinstance(seed, list) else [seed or 0] * self.n
        return self._observe(), {"reconfigure": False}

    def step(self, action):
        assert action.shape == ((4,) if self.n == 1 else (self.n, 4))
        self.action = action
        self.elapsed += 1
        success = self.elapsed >= torch.arange(self.n) + 2
        info = {"elapsed_steps": torch.full((self.n,), self.elapsed), "success": success}
        return self._observe(), torch.full((self.n,), 0.5), success.clone(), torch.zeros(self.n, dtype=torch.bool), info


class BatchTimeLimit(gym.Wrapper):
    """ManiSkill's own time limit, which gymnasium does not know of: `spec.max_episode_steps` stays None."""

    def __init__(self, env, max_episode_steps):
        super().__init__(env)
        self._max_episode_steps = max_episode_steps


def pick_cube(obs_mode, num_envs=1):
    return BatchTimeLimit(PickCube(obs_mode, num_envs=num_envs), max_episode_steps=50)


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
    assert steps[1][0]["state"].tolist() == [2.0] * 41 + [0]


def test_numbers_keep_the_order_of_the_dictionaries():
    tree = {"agent": {"qpos": torch.tensor([[1.0, 2.0]])}, "extra": {"is_grasped": torch.tensor([True])}}
    assert flatten(unbatch(tree)).tolist() == [1, 2, 1]


def test_a_camera_that_the_task_has_not_is_answered_with_those_it_has():
    with pytest.raises(UnknownName, match="PickCube-v1 has no camera 'wrist'; known: front"):
        ManiSkillConfig(obs="pixels", cameras=("wrist",)).adapt(pick_cube("rgb"))


@pytest.mark.parametrize(("obs", "mode", "size"), [("state", "state", 42), ("pixels", "rgb", 29)])
def test_a_batch_is_stepped_at_once_and_who_is_done_keeps_its_last_values(obs, mode, size):
    env = BatchVecEnv(pick_cube(mode, 3), ManiSkillConfig(obs=obs, image_size=(8, 8)), 3)
    assert (env.num_envs, env.state_dim, env.action_dim, env.fps, env.max_steps) == (3, size, 4, 20, 50)
    first = env.reset([7, 8, 9])
    assert first.state.shape == (3, size) and first.state.dtype == np.float32
    assert obs != "state" or first.state[:, -1].tolist() == [7, 8, 9]
    assert {name: image.shape for name, image in first.images.items()} == dict.fromkeys(env.cameras, (3, 8, 8, 3))
    active = np.ones(3, bool)
    for _ in range(2):
        active &= ~env.step(np.full((3, 4), 2.0), active)[1]["success"]
    seen, info = env.step(np.full((3, 4), 2.0), active)
    assert info["success"].tolist() == [True, True, False] and info["reward"].tolist() == [0.5] * 3
    assert not info["failure"].any()
    assert seen.state[:, 0].tolist() == [2, 3, 3] and first.state[0, 0] == 0
    assert all(image[:, 0, 0, 0].tolist() == [2, 3, 3] for image in seen.images.values())
    with pytest.raises(InvalidAction, match=r"must be finite \[3, 4\]"):
        env.step(np.zeros((2, 4)), active)


def test_a_rollout_of_a_batch_has_an_episode_of_each(registered):
    env = ManiSkillConfig(sim_backend="physx_cuda").build(3)
    assert isinstance(env, BatchVecEnv)
    batch = collect_rollout(
        env, lambda seen: np.zeros((len(seen.state), 4)), [1, 2, 3], SuccessDetector(SimulatorJudge(), 3)
    )
    assert batch.length.tolist() == [2, 3, 4] and batch.terminated.all()


def test_without_a_gpu_environments_are_stepped_one_after_the_other(registered):
    assert isinstance(ManiSkillConfig().build(2), SyncVecEnv)


def test_a_number_that_is_none_is_told_with_its_environment():
    simulator = pick_cube("state", 2)
    env = BatchVecEnv(simulator, ManiSkillConfig(), 2)
    env.reset([0, 0])
    simulator.unwrapped.__dict__["seeds"][1] = float("nan")
    with pytest.raises(EnvError, match="PickCube-v1: number 41 of the state of environment 1 is not finite"):
        env.step(np.zeros((2, 4)), np.ones(2, bool))
