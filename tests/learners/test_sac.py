from typing import Any

import numpy as np
import pytest
import torch

from plaudit.config import parse
from plaudit.data.normalize import Normalizer
from plaudit.errors import ConfigError, TrainingError
from plaudit.learners.base import EncoderSpec
from plaudit.learners.config import SacConfig
from plaudit.learners.sac import Sac
from plaudit.policies.config import GaussianConfig, ImageEncoderConfig
from plaudit.policies.loader import load_policy, save_policy
from plaudit.types import Batch, EnvSpec, Observation

SPACES = EnvSpec(2, 1, {})


def bandit(rng: torch.Generator, size: int = 128) -> Batch[torch.Tensor]:
    """One step and out: the reward is 1 - (action - state[0])^2."""
    state = torch.rand(size, 2, generator=rng) - 0.5
    actions = torch.rand(size, 1, generator=rng) * 2 - 1
    reward = 1 - (actions[:, 0] - state[:, 0]).square()
    zero, none = torch.zeros(size), torch.zeros(size, dtype=torch.long)
    return Batch({}, state, actions, torch.ones(size, 1).bool(), reward, zero, {}, state, none, none, none)


def test_it_finds_the_best_action_of_a_bandit():
    rng, learner = torch.Generator().manual_seed(0), Sac(SacConfig(hidden_dims=(32, 32), lr=1e-2), SPACES)
    losses = [learner.update(bandit(rng))["loss/critic"] for _ in range(150)]
    state = np.array([[0.4, 0.0], [-0.4, 0.3]], np.float32)
    assert np.abs(learner.act(Observation({}, state), None)[:, 0] - state[:, 0]).max() < 0.15
    assert losses[-1] < 0.05 < losses[0]


@pytest.mark.parametrize(("part", "acts"), [(0, 0.8), (1, -0.8)])
def test_with_a_weight_the_actor_clones_demonstrations_and_nothing_else(part: int, acts: float):
    """The critics want -0.8 and the first part of the mix shows 0.8; the second shows it too, and is not cloned."""
    learner = Sac(SacConfig(hidden_dims=(32, 32), lr=1e-2, bc_weight=100.0), SPACES)
    rng = torch.Generator().manual_seed(0)
    for _ in range(100):
        batch = bandit(rng)
        shown = torch.arange(128) % 2 == 0
        actions = torch.where(shown[:, None], torch.full_like(batch.actions, 0.8), batch.actions)
        reward = 1 - (actions[:, 0] + 0.8).square()
        parts = torch.where(shown, part, 1)
        learner.update(Batch(**{**vars(batch), "actions": actions, "reward": reward, "part": parts}))
    state = np.zeros((1, 2), np.float32)
    assert learner.act(Observation({}, state), None)[0, 0] == pytest.approx(acts, abs=0.25)


def test_at_first_the_actor_may_only_clone_and_then_follows_the_critics():
    """The demonstrations show 0.6 and the critics want -0.6: what it samples is near the first, and then the second."""
    learner = Sac(SacConfig(hidden_dims=(32, 32), lr=1e-2, policy_update_freq=1, clone_updates=80), SPACES)
    rng, state, acts = torch.Generator().manual_seed(0), np.zeros((200, 2), np.float32), list[np.ndarray]()
    for _ in range(2):
        for _ in range(80):
            batch = bandit(rng)
            shown = torch.arange(128) % 2 == 0
            actions = torch.where(shown[:, None], torch.full_like(batch.actions, 0.6), batch.actions)
            reward, parts = 1 - (actions[:, 0] + 0.6).square(), (~shown).long()
            learner.update(Batch(**{**vars(batch), "actions": actions, "reward": reward, "part": parts}))
        acts.append(learner.act(Observation({}, state), learner.rng)[:, 0])
    cloned, followed = acts
    assert abs(cloned.mean() - 0.6) < 0.1 and cloned.std() < 0.15  # exploring, too
    assert abs(followed.mean() + 0.6) < 0.3


def test_nothing_of_the_future_counts_where_an_episode_ended():
    """With discount 0 the target is the reward alone, however the targets' weights lie."""
    one, other = (Sac(SacConfig(hidden_dims=(16,)), SPACES) for _ in range(2))
    for weight in other.net.target_critic.parameters():
        weight.data += 100.0
    batch = bandit(torch.Generator().manual_seed(1))
    assert one.update(batch)["loss/critic"] == other.update(batch)["loss/critic"]


def test_the_target_is_the_least_of_the_critics_times_the_discount():
    learner = Sac(SacConfig(hidden_dims=(8,), num_critics=2, num_subsample_critics=2), SPACES)
    for weight in learner.net.target_critic.weights:
        weight.data.zero_()
    learner.net.target_critic.biases[-1].data = torch.tensor([[[5.0]], [[3.0]]])  # their values, of anything
    learner.net.target_critic.biases[0].data.zero_()
    for weight in learner.net.critic.parameters():
        weight.data.zero_()
    batch = bandit(torch.Generator().manual_seed(1))
    batch = Batch(**{**vars(batch), "discount": torch.full((128,), 0.5)})
    expected = 2 * (batch.reward + 0.5 * 3.0).square().mean()  # both critics say 0
    assert learner.update(batch)["loss/critic"] == pytest.approx(float(expected), rel=1e-5)


def test_the_same_seed_learns_the_same_numbers():
    def learn(seed: int) -> list[float]:
        rng, learner = (
            torch.Generator().manual_seed(7),
            Sac(SacConfig(hidden_dims=(16, 16), num_critics=4), SPACES, seed),
        )
        return [float(learner.update(bandit(rng))["loss/critic"]) for _ in range(5)]

    assert learn(3) == learn(3) != learn(4)


def test_making_a_learner_leaves_the_callers_random_numbers_alone():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    Sac(SacConfig(), SPACES, seed=9)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.slow
def test_it_learns_from_pixels():
    """The best action is how bright the image is: nothing but the pixels tells."""
    torch.manual_seed(0)
    rng = torch.Generator().manual_seed(0)
    learner = Sac(SacConfig(hidden_dims=(32,), lr=3e-3, random_shift_pad=2), EnvSpec(0, 1, {"front": (16, 16)}))
    for _ in range(60):
        bright = torch.rand(32, generator=rng)
        images = {"front": (bright[:, None, None, None] * 255).expand(32, 16, 16, 3).to(torch.uint8)}
        actions = torch.rand(32, 1, generator=rng) * 2 - 1
        reward = 1 - (actions[:, 0] - (2 * bright - 1)).square()
        none, empty = torch.zeros(32, dtype=torch.long), torch.zeros(32, 0)
        mask = torch.ones(32, 1).bool()
        learner.update(Batch(images, empty, actions, mask, reward, torch.zeros(32), images, empty, none, none, none))
    shown = np.stack([np.full((16, 16, 3), value, np.uint8) for value in (25, 230)])
    dark, light = learner.act(Observation({"front": shown}, np.zeros((2, 0), np.float32)), None)[:, 0]
    assert light - dark > 0.8


def test_weights_for_the_robot_are_the_actors_and_count_up():
    learner = Sac(SacConfig(hidden_dims=(8,)), SPACES)
    before = learner.weights()
    learner.update(bandit(torch.Generator().manual_seed(0)))
    learner.update(bandit(torch.Generator().manual_seed(0)))
    after = learner.weights()
    assert after.version == before.version + 2
    assert all(name.startswith(("actor/", "encoder/")) for name in after.tensors)
    assert any(not np.array_equal(after.tensors[name], before.tensors[name]) for name in after.tensors)


def test_what_an_update_tells_stays_where_it_was_computed():
    learner = Sac(SacConfig(hidden_dims=(8,), policy_update_freq=1), SPACES)
    told = learner.update(bandit(torch.Generator().manual_seed(0)))
    assert {"loss/critic", "loss/actor", "policy/temperature"} <= set(told)
    assert all(isinstance(n, torch.Tensor) and n.shape == () and not n.requires_grad for n in told.values())


ARM = EnvSpec(2, 2, {})  # one joint and a gripper


def gripper_bandit(rng: torch.Generator, size: int = 128) -> Batch[torch.Tensor]:
    """As `bandit`, and 1 more for closing the gripper where state[1] < 0 and for opening it elsewhere."""
    batch = bandit(rng, size)
    gripper = torch.rand(size, 1, generator=rng) * 2 - 1
    wanted = torch.where(batch.state[:, 1] < 0, -1.0, 1.0)
    reward = batch.reward + (gripper[:, 0].round() == wanted)
    return Batch(**{**vars(batch), "actions": torch.cat([batch.actions, gripper], dim=1), "reward": reward})


def test_a_discrete_gripper_finds_the_best_action_of_a_bandit():
    config = SacConfig(hidden_dims=(32, 32), lr=1e-2, gripper="discrete")
    rng, learner = torch.Generator().manual_seed(0), Sac(config, ARM)
    for _ in range(120):
        learner.update(gripper_bandit(rng))
    state = np.array([[0.4, -0.3], [-0.4, 0.3], [0.1, -0.2]], np.float32)
    for explore in (False, True):
        assert learner.act(Observation({}, state), learner.rng if explore else None)[:, 1].tolist() == [-1, 1, -1]
    assert np.abs(learner.act(Observation({}, state), None)[:, 0] - state[:, 0]).max() < 0.2


def test_the_grasp_critic_learns_by_double_dqn():
    """The target is reward + discount * target network's value of the action that the grasp critic prefers."""
    config = SacConfig(hidden_dims=(8,), gripper="discrete", policy_update_freq=5)
    learner = Sac(config, ARM)
    networks: Any = (learner.net.grasp_critic, learner.net.target_grasp_critic)
    grasp_critic, target = networks
    for network, values in ((grasp_critic, [0.0, 2.0, 1.0]), (target, [7.0, 5.0, 9.0])):
        network[-1].weight.data.zero_()
        network[-1].bias.data = torch.tensor(values)  # whatever the state is
    batch = gripper_bandit(torch.Generator().manual_seed(1))
    gripper = torch.tensor([-1.0, -0.6, -0.4, 0.0, 0.3, 0.6, 1.0, 1.0]).repeat(16)
    actions = torch.stack([batch.actions[:, 0], gripper], dim=1)
    batch = Batch(**{**vars(batch), "actions": actions, "discount": torch.full((128,), 0.5)})
    taken = torch.tensor([0.0, 0.0, 2.0, 2.0, 2.0, 1.0, 1.0, 1.0]).repeat(16)  # values of the nearest of -1, 0, 1
    expected = (taken - (batch.reward + 0.5 * 5.0)).square().mean()
    metrics = learner.update(batch)
    assert float(metrics["loss/grasp_critic"]) == pytest.approx(float(expected), rel=1e-5)
    moved = torch.tensor([7.0, 5.0, 9.0]).lerp(grasp_critic[-1].bias.detach(), config.tau)
    assert torch.allclose(target[-1].bias, moved)


def test_a_discrete_gripper_clones_demonstrations():
    """Closing is never rewarded, and all demonstrations close."""
    config = SacConfig(hidden_dims=(16,), lr=3e-3, gripper="discrete", bc_weight=10.0)
    rng, learner = torch.Generator().manual_seed(0), Sac(config, ARM)
    for _ in range(100):
        batch = gripper_bandit(rng)
        actions = torch.cat([batch.actions[:, :1], -torch.ones(128, 1)], dim=1)
        learner.update(Batch(**{**vars(batch), "actions": actions, "reward": torch.zeros(128)}))
    state = np.float32(np.random.default_rng(0).uniform(-0.5, 0.5, (20, 2)))
    assert (learner.act(Observation({}, state), None)[:, 1] == -1).all()


@pytest.mark.parametrize("shared", [False, True])
def test_the_policy_of_a_discrete_gripper_is_saved_and_acts_as_the_learner(tmp_path, shared: bool):
    spec = EnvSpec(2, 3, {"front": (16, 16)})
    config, encoder = SacConfig(hidden_dims=(8,), gripper="discrete"), ImageEncoderConfig(shared=shared, features=8)
    learner = Sac(config, spec, encoder=EncoderSpec(encoder))
    assert any(name.startswith("grasp_critic/") for name in learner.weights().tensors)
    assert shared != any(name.startswith("critic_encoder/") for name in learner.weights().tensors)
    policy = load_policy(save_policy(tmp_path, learner.policy_config(), learner.weights())).build()
    rng = np.random.default_rng(0)
    images = {"front": rng.integers(0, 256, (30, 16, 16, 3), np.uint8)}
    seen = Observation(images, rng.normal(size=(30, 2)).astype(np.float32))
    expected = learner.act(seen, None)
    actions = np.concatenate([policy.predict(seen[n], Normalizer.identity(2, 3)) for n in range(30)])
    assert np.allclose(actions, expected, atol=1e-5) and set(actions[:, 2]) <= {-1, 0, 1}


def test_a_gripper_alone_and_chunks_with_a_discrete_one_are_refused():
    with pytest.raises(TrainingError, match="actions of two numbers or more"):
        Sac(SacConfig(gripper="discrete"), SPACES)
    for wrong in ({"action_dim": 1}, {"action_dim": 2, "horizon": 2}):
        with pytest.raises(ConfigError, match="chunks of one action"):
            parse(GaussianConfig, {"state_dim": 2, "gripper": "discrete", **wrong})
