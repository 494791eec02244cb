"""Q-chunking against its formulas, on windows small enough to follow."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conftest import counting_episode, labeled_store
from plaudit.config import parse
from plaudit.data.batch import to_torch
from plaudit.data.normalize import Normalizer
from plaudit.data.replay import ReplaySampler
from plaudit.data.weights import load_checkpoint, save_checkpoint
from plaudit.errors import ConfigError, DataError
from plaudit.learners.config import QChunkConfig, SacConfig
from plaudit.learners.qchunk import QChunk
from plaudit.learners.sac import Sac
from plaudit.policies.config import VelocityNetConfig
from plaudit.types import Batch, EnvSpec, Observation

SPACES = EnvSpec(2, 1, {})
TINY: dict[str, Any] = {
    "horizon": 2,
    "num_samples": 8,
    "velocity_net": VelocityNetConfig(width=16, depth=1),
    "hidden_dims": (16,),
}


def windows(rng: torch.Generator, size: int = 64, **changed: Any) -> Batch[torch.Tensor]:
    """One chunk of two actions and out: the reward is 1 - the square of how far they add up from state[0]."""
    state = torch.rand(size, 2, generator=rng) - 0.5
    actions = torch.rand(size, 2, 1, generator=rng) * 2 - 1
    reward = 1 - (actions.sum(dim=(1, 2)) - state[:, 0]).square()
    zero, none = torch.zeros(size), torch.zeros(size, dtype=torch.long)
    batch = Batch({}, state, actions, torch.ones(size, 2).bool(), reward, zero, {}, state, none, none, none)
    return Batch(**{**vars(batch), **changed})


def says(learner: QChunk, part: str, *values: float) -> None:
    """Let each critic of a part say one number of anything."""
    critics = getattr(learner.net, part)
    for weight in critics.parameters():
        weight.data.zero_()
    critics.biases[-1].data = torch.tensor(values)[:, None, None]


def loss(learner: QChunk, batch: Batch[torch.Tensor]) -> float:
    return float(learner.update(batch)["loss/critic"])


@pytest.mark.slow
def test_it_finds_chunks_that_add_up_to_what_pays():
    """Cloned from chunks of any kind: only choosing can make them good."""
    rng, learner = (
        torch.Generator().manual_seed(0),
        QChunk(QChunkConfig(**{**TINY, "num_samples": 32}, lr=5e-3), SPACES),
    )
    for _ in range(150):
        learner.update(windows(rng, 128))
    state = np.array([[0.4, 0.0], [-0.4, 0.3]] * 20, np.float32)
    act = learner.act_fn(explore=True)
    total = sum(act(Observation({}, state)).clip(-1, 1)[:, 0] for _ in range(2))
    assert np.abs(total - state[:, 0]).mean() < 0.2


def test_the_target_is_the_least_of_the_critics_times_the_discount():
    learner = QChunk(QChunkConfig(**TINY, num_subsample_critics=2), SPACES)
    says(learner, "target_critic", 5.0, 3.0)
    says(learner, "critic", 0.0, 0.0)
    batch = windows(torch.Generator().manual_seed(1), discount=torch.full((64,), 0.9**2))
    expected = 2 * (batch.reward + 0.81 * 3.0).square().mean()
    assert loss(learner, batch) == pytest.approx(float(expected), rel=1e-5)


def test_the_target_values_the_best_of_the_chunks_that_the_critics_see_there():
    """A flow that has learned nothing hands out its noise; the target is what the target critics say of the best."""
    learner = QChunk(QChunkConfig(**TINY, num_critics=1, num_subsample_critics=1), SPACES)
    batch = windows(torch.Generator().manual_seed(1), size=4, discount=torch.ones(4))
    seed = torch.Generator().manual_seed(0)  # the learner's
    noise = torch.randn(4, 8, 2, 1, generator=seed).clamp(-1, 1)
    features = batch.next_state.repeat_interleave(8, dim=0)
    values = learner.net.critic(features, noise.reshape(32, 2)).view(4, 8)
    best = noise[torch.arange(4), values.argmax(dim=1)].flatten(1)
    with torch.no_grad():
        target = batch.reward + learner.net.target_critic(batch.next_state, best)[0]
        expected = (learner.net.critic(batch.state, batch.actions.flatten(1))[0] - target).square().mean()
    assert loss(learner, batch) == pytest.approx(float(expected), rel=1e-5)


def test_critics_value_only_the_actions_that_are_executed():
    """Chunks of two actions of which one is executed: the second changes no value and no target."""
    learner = QChunk(QChunkConfig(**TINY, critic_horizon=1), SPACES)
    assert (learner.replay_options["n_step"], learner.replay_options["horizon"]) == (1, 2)
    one, other = (QChunk(learner.config, SPACES) for _ in range(2))
    batch = windows(torch.Generator().manual_seed(1), discount=torch.ones(64))
    changed = batch.actions * torch.tensor([1.0, -1.0])[:, None]
    assert loss(one, batch) == loss(other, Batch(**{**vars(batch), "actions": changed}))
    act, seen = learner.act_fn(explore=False), Observation({}, np.zeros((3, 2), np.float32))
    first = learner.plan(seen, torch.Generator().manual_seed(0))[:, 0]
    assert np.array_equal(act(seen), first) and not np.array_equal(act(seen), first)  # planned anew at every step


def test_a_policy_of_shorter_critics_takes_the_learners_weights():
    learner = QChunk(QChunkConfig(**TINY, critic_horizon=1), SPACES)
    policy = learner.policy_config().build()
    policy.load_weights(learner.weights())
    assert policy.predict(Observation({}, np.zeros(2, np.float32)), Normalizer.identity(2, 1)).shape == (2, 1)


def test_nothing_of_the_future_counts_where_an_episode_ended():
    one, other = (QChunk(QChunkConfig(**TINY), SPACES) for _ in range(2))
    says(other, "target_critic", 100.0, 100.0)
    batch = windows(torch.Generator().manual_seed(1))
    assert loss(one, batch) == loss(other, batch)


def test_no_critic_learns_from_a_chunk_that_the_time_limit_cut():
    """Of four windows the last two are cut; in the third the episode ended, and what it would have done is all one."""
    learner = QChunk(QChunkConfig(**TINY), SPACES)
    says(learner, "critic", 0.0, 0.0)
    says(learner, "target_critic", 0.0, 0.0)
    mask = torch.tensor([[True, True], [True, True], [True, False], [True, False]])
    reward, discount = torch.tensor([1.0, 2.0, 3.0, 100.0]), torch.tensor([0.9, 0.0, 0.0, 0.9])
    batch = windows(torch.Generator().manual_seed(1), 4, action_mask=mask, reward=reward, discount=discount)
    assert loss(learner, batch) == pytest.approx(2 * (1 + 4 + 9) / 3, rel=1e-5)


def test_the_flow_clones_what_was_done_and_nothing_beyond_the_end():
    def flow_loss(beyond: float) -> float:
        learner = QChunk(QChunkConfig(**TINY), SPACES)
        actions = torch.tensor([[0.5], [beyond]]).expand(64, 2, 1)
        mask = torch.tensor([[True, False]]).expand(64, 2)
        return float(learner.update(windows(torch.Generator(), actions=actions, action_mask=mask))["loss/flow"])

    assert flow_loss(0.0) == flow_loss(0.9)


def test_windows_of_a_store_are_what_it_learns_from(tmp_path: Path):
    """Five steps, success at the fourth: chunks of three that reach it are paid, discounted, and nothing follows."""
    store = labeled_store(tmp_path / "store", counting_episode(steps=5), cutoff=4)
    learner = QChunk(QChunkConfig(**{**TINY, "horizon": 3}, gamma=0.5), SPACES)
    batch = ReplaySampler(store, **learner.replay_options, seed=0).sample(100)
    found = {t: (r, d, m.tolist()) for t, r, d, m in zip(batch.step, batch.reward, batch.discount, batch.action_mask)}
    assert found[0] == (0, 0.125, [True, True, True])
    assert found[1] == (0.25, 0, [True, True, True])
    assert found[2] == (0.5, 0, [True, True, True])
    assert found[3] == (1, 0, [True, True, False])
    learner.update(to_torch(batch, "cpu"))


def test_a_round_executes_each_chunk_to_its_end():
    """It looks every second step, and what it does in between was decided before."""
    learner, looks = QChunk(QChunkConfig(**TINY), SPACES), []
    plan = learner.plan
    learner.plan = lambda seen, rng, explore: looks.append(seen.state[0, 0]) or plan(seen, rng)  # type: ignore[method-assign]
    act = learner.act_fn(explore=True)
    done = [act(Observation({}, np.full((3, 2), step, np.float32))) for step in range(5)]
    assert looks == [0, 2, 4] and all(actions.shape == (3, 1) for actions in done)
    again = learner.act_fn(explore=True)  # the next round begins with a encode
    again(Observation({}, np.full((3, 2), 9, np.float32)))
    assert looks[-1] == 9


def test_being_counted_changes_nothing_of_what_is_learned_later():
    one, other = (QChunk(QChunkConfig(**TINY), SPACES) for _ in range(2))
    here = Observation({}, np.zeros((3, 2), np.float32))
    assert np.array_equal(one.act_fn(explore=False)(here), one.act_fn(explore=False)(here))
    batch = windows(torch.Generator().manual_seed(1))
    assert one.update(batch) == other.update(batch)


def test_the_same_seed_learns_the_same_numbers():
    def learn(seed: int) -> list[float]:
        rng, learner = torch.Generator().manual_seed(7), QChunk(QChunkConfig(**TINY), SPACES, seed)
        return [loss(learner, windows(rng)) for _ in range(5)]

    assert learn(3) == learn(3) != learn(4)


@pytest.mark.slow
def test_it_learns_from_pixels():
    """The best chunk is how bright the image is: nothing but the pixels tells."""
    rng = torch.Generator().manual_seed(0)
    learner = QChunk(
        QChunkConfig(**{**TINY, "num_samples": 16}, lr=3e-3, random_shift_pad=2), EnvSpec(0, 1, {"front": (16, 16)})
    )
    for _ in range(100):
        bright = torch.rand(32, generator=rng)
        images = {"front": (bright[:, None, None, None] * 255).expand(32, 16, 16, 3).to(torch.uint8)}
        actions = torch.rand(32, 2, 1, generator=rng) * 2 - 1
        reward = 1 - (actions[:, :, 0].mean(dim=1) - (2 * bright - 1)).square()
        empty = torch.zeros(32, 0)
        learner.update(
            windows(
                rng,
                32,
                images=images,
                state=empty,
                actions=actions,
                reward=reward,
                next_images=images,
                next_state=empty,
            )
        )
    shown = np.stack([np.full((16, 16, 3), value, np.uint8) for value in [25] * 10 + [230] * 10])
    act = learner.act_fn(explore=True)
    done = act(Observation({"front": shown}, np.zeros((20, 0), np.float32)))[:, 0]
    assert done[10:].mean() - done[:10].mean() > 0.5


def test_a_learner_that_was_saved_goes_on_as_the_one_that_was_not(tmp_path: Path):
    rng, one = torch.Generator().manual_seed(0), QChunk(QChunkConfig(**TINY), SPACES, seed=2)
    for _ in range(4):
        one.update(windows(rng))
    save_checkpoint(tmp_path / "c", one, {"step": 4})
    other = QChunk(QChunkConfig(**TINY), SPACES, seed=99)
    assert load_checkpoint(tmp_path / "c", other)["step"] == 4
    batches = [windows(torch.Generator().manual_seed(n)) for n in range(4)]
    assert [one.update(b) for b in batches] == [other.update(b) for b in batches]
    here = Observation({}, np.zeros((3, 2), np.float32))
    assert np.array_equal(one.act_fn(explore=True)(here), other.act_fn(explore=True)(here))
    assert one.weights().version == other.weights().version == 8


@pytest.mark.parametrize(
    "learner",
    [QChunk(QChunkConfig(**TINY), SPACES), Sac(SacConfig(hidden_dims=(8,), policy_update_freq=1), SPACES)],
    ids=["qc", "sac"],
)
def test_gradients_can_be_exchanged_before_they_are_used(learner: Any):
    """Whoever is told may change them: here nothing is to be learned."""
    told: list[torch.nn.Parameter] = []

    def sync(parameters: list[torch.nn.Parameter]) -> None:
        told.extend(parameters)
        for parameter in parameters:
            assert parameter.grad is not None
            parameter.grad.zero_()

    learner.sync = sync
    before = learner.weights().tensors
    batch = windows(torch.Generator().manual_seed(0))
    if isinstance(learner, Sac):
        batch = Batch(**{**vars(batch), "actions": batch.actions[:, 0]})
    learner.update(batch)
    assert all(np.array_equal(before[name], array) for name, array in learner.weights().tensors.items())
    assert {id(p) for o in learner.optimizers.values() for g in o.param_groups for p in g["params"]} == set(
        map(id, told)
    )


def test_windows_of_another_length_are_named():
    with pytest.raises(DataError, match=r"takes windows of \[3, 1\] actions, the batch has \[2, 1\]"):
        QChunk(QChunkConfig(**{**TINY, "horizon": 3}), SPACES).update(windows(torch.Generator()))


def test_more_critics_in_the_target_than_there_are_is_refused():
    with pytest.raises(ConfigError, match="num_subsample_critics is 3, but there are 2 critics"):
        parse(QChunkConfig, {"num_subsample_critics": 3})


def test_what_an_update_tells_stays_where_it_was_computed():
    told = QChunk(QChunkConfig(**TINY), SPACES).update(windows(torch.Generator()))
    assert all(isinstance(n, torch.Tensor) and n.shape == () and not n.requires_grad for n in told.values())
