from pathlib import Path

import numpy as np
import pytest
import torch

from plaudit.data.weights import load_checkpoint, save_checkpoint
from plaudit.learners.config import PpoConfig
from plaudit.learners.ppo import Ppo, gae
from plaudit.rollout.vector import RolloutBatch
from plaudit.types import Batch, EnvSpec, Observation


def round_of(reward, length, terminated, state=None, actions=None) -> RolloutBatch:
    reward = np.asarray(reward, np.float32)
    steps, count = reward.shape
    return RolloutBatch(
        images={},
        state=np.zeros((steps + 1, count, 1), np.float32) if state is None else state,
        actions=np.zeros((steps, count, 1), np.float32) if actions is None else actions,
        reward=reward,
        used=np.arange(steps)[:, None] < np.array(length),
        success=np.zeros((steps + 1, count), bool),
        success_prob=np.zeros((steps + 1, count), np.float32),
        progress=None,
        privileged={},
        length=np.array(length),
        terminated=np.array(terminated),
        seeds=tuple(range(count)),
        first_true=(None,) * count,
    )


@pytest.mark.parametrize("terminated", [True, False])
def test_advantages_are_the_sum_of_discounted_errors(terminated):
    """Against the definition, written out: A_t = sum over k of (gamma lam)^k (r + gamma V' - V)."""
    rng = np.random.default_rng(0)
    length, gamma, lam = 4, 0.9, 0.8
    reward, values = rng.normal(size=(6, 1)), rng.normal(size=(7, 1)).astype(np.float32)
    advantages = gae(round_of(reward, [length], [terminated]), values, gamma, lam)
    for t in range(length):
        total = 0.0
        for k in range(t, length):
            follows = 0.0 if (k == length - 1 and terminated) else float(values[k + 1, 0])
            total += (gamma * lam) ** (k - t) * (float(reward[k, 0]) + gamma * follows - float(values[k, 0]))
        assert advantages[t, 0] == pytest.approx(total, abs=1e-5)
    assert not advantages[length:].any()


def test_it_learns_to_answer_the_state():
    """Reward is 1 - (action - state)^2 at every step."""
    rng, learner = (
        np.random.default_rng(0),
        Ppo(PpoConfig(hidden_dims=(32,), lr=1e-2, num_minibatches=4), EnvSpec(1, 1, {})),
    )
    rewards = []
    for _ in range(12):
        state = rng.uniform(-0.5, 0.5, (6, 64, 1)).astype(np.float32)
        actions = np.stack([learner.act(Observation({}, s), learner.rng) for s in state[:-1]])
        reward = 1 - (actions - state[:-1])[..., 0] ** 2
        learner.update(round_of(reward, [5] * 64, [False] * 64, state, actions))
        rewards.append(reward.mean())
    told = learner.act(Observation({}, np.array([[0.4], [-0.4]], np.float32)), None)[:, 0]
    assert rewards[-1] > rewards[0] + 0.2
    assert told[0] > 0.15 and told[1] < -0.15


def test_steps_past_an_episodes_end_teach_nothing():
    def learn(garbage: float) -> float:
        learner = Ppo(PpoConfig(hidden_dims=(8,), update_epochs=1, num_minibatches=1), EnvSpec(1, 1, {}), seed=1)
        reward, state = np.ones((4, 2)), np.zeros((5, 2, 1), np.float32)
        reward[2:, 0], state[3:, 0] = garbage, garbage
        return learner.update(round_of(reward, [2, 4], [True, False], state))["loss/value"]

    assert learn(0.0) == learn(1000.0)


def test_the_same_seed_learns_the_same_numbers():
    def learn(seed: int) -> float:
        learner = Ppo(PpoConfig(hidden_dims=(8,)), EnvSpec(1, 1, {}), seed)
        played = round_of(np.ones((4, 8)), [4] * 8, [False] * 8, np.ones((5, 8, 1), np.float32))
        return learner.update(played)["loss/value"]

    assert learn(0) == learn(0) != learn(1)


def test_an_update_stops_when_the_policy_has_moved_far_enough():
    rng = np.random.default_rng(0)
    actions = rng.normal(size=(4, 64, 1)).astype(np.float32)

    def minibatches(target_kl: float | None) -> float:
        learner = Ppo(PpoConfig(hidden_dims=(16,), lr=0.03, update_epochs=5, target_kl=target_kl), EnvSpec(1, 1, {}))
        played = round_of(actions[..., 0], [4] * 64, [False] * 64, np.ones((5, 64, 1), np.float32), actions)
        return learner.update(played)["policy/num_minibatches"]

    assert minibatches(0.01) < minibatches(None) == 5 * 4


def test_what_an_update_tells_are_plain_numbers():
    learner = Ppo(PpoConfig(hidden_dims=(8,), update_epochs=1, num_minibatches=2), EnvSpec(1, 1, {}))
    told = learner.update(round_of(np.ones((4, 8)), [4] * 8, [False] * 8))
    assert {type(number) for number in told.values()} == {float, int}
    assert told["policy/num_minibatches"] == 2 and told["loss/value"] > 0


def batch_of(state: torch.Tensor, actions: torch.Tensor, images: dict[str, torch.Tensor]) -> Batch[torch.Tensor]:
    unused = torch.zeros(len(state))
    return Batch(
        images=images,
        state=state,
        actions=actions,
        action_mask=unused,
        reward=unused,
        discount=unused,
        next_images=images,
        next_state=state,
        episode=unused,
        step=unused,
        part=unused,
    )


def demonstrated(rng: np.random.Generator, size: int = 64) -> Batch[torch.Tensor]:
    """Somebody who does half of what the state says; the second action is always all the way up, and beyond."""
    state = torch.from_numpy(rng.uniform(-1, 1, (size, 1)).astype(np.float32))
    return batch_of(state, torch.cat([0.5 * state, torch.full((size, 1), 1.5)], dim=1), {})


def test_cloning_approaches_the_demonstrated_actions_and_explores_less():
    rng, learner = np.random.default_rng(0), Ppo(PpoConfig(hidden_dims=(16,), pretrain_lr=1e-2), EnvSpec(1, 2, {}))
    before = {name: tensor.clone() for name, tensor in learner.net.state_dict().items()}
    losses = [learner.bc_update(demonstrated(rng)) for _ in range(200)]
    told = learner.act(Observation({}, np.array([[0.8], [-0.8]], np.float32)), None)
    after = learner.net.state_dict()
    assert losses[-1] < losses[0]
    assert told[:, 0] == pytest.approx([0.4, -0.4], abs=0.1)
    assert told[:, 1] == pytest.approx([1, 1], abs=0.1)  # as the robot would have clipped it
    assert (after["log_std"] < before["log_std"] - 0.5).all()
    assert all(torch.equal(after[n], before[n]) for n in after if n.startswith("critic"))  # it says nothing of values


def test_cloning_pixels_looks_at_images_moved_at_random():
    learner = Ppo(PpoConfig(hidden_dims=(8,)), EnvSpec(1, 1, {"front": (16, 16)}))
    batch = batch_of(torch.zeros(4, 1), torch.ones(4, 1), {"front": torch.zeros(4, 16, 16, 3, dtype=torch.uint8)})
    before = learner.rng.get_state()
    assert np.isfinite(float(learner.bc_update(batch))) and not torch.equal(learner.rng.get_state(), before)


def test_after_cloning_the_value_learns_before_the_policy_does():
    rng, learner = (
        np.random.default_rng(0),
        Ppo(PpoConfig(hidden_dims=(8,), critic_warmup_iterations=1), EnvSpec(1, 2, {})),
    )
    learner.bc_update(demonstrated(rng))
    actions = rng.normal(size=(4, 8, 2)).astype(np.float32)
    played = round_of(rng.normal(size=(4, 8)), [4] * 8, [False] * 8, actions=actions)

    def learned() -> set[str]:
        before = {name: tensor.clone() for name, tensor in learner.net.state_dict().items()}
        learner.update(played)
        return {name.split(".")[0] for name, t in learner.net.state_dict().items() if not torch.equal(t, before[name])}

    assert learned() == {"critic"}
    assert learned() == {"critic", "actor", "log_std"}


def test_a_checkpoint_between_cloning_and_the_first_rounds_goes_on_as_if_there_had_been_none(tmp_path: Path):
    rng, config = (
        np.random.default_rng(0),
        PpoConfig(hidden_dims=(8,), update_epochs=1, num_minibatches=2, critic_warmup_iterations=2),
    )
    one, other = Ppo(config, EnvSpec(1, 2, {})), Ppo(config, EnvSpec(1, 2, {}), seed=9)
    one.bc_update(demonstrated(rng))
    save_checkpoint(tmp_path / "c", one, {})
    load_checkpoint(tmp_path / "c", other)
    actions = rng.normal(size=(4, 8, 2)).astype(np.float32)
    played = round_of(rng.normal(size=(4, 8)), [4] * 8, [False] * 8, actions=actions)
    for _ in range(3):
        assert one.update(played) == other.update(played)
    assert all(torch.equal(t, other.net.state_dict()[name]) for name, t in one.net.state_dict().items())
