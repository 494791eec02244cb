"""Learners that improve a trained policy, against their formulas, on windows small enough to follow."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conftest import counting_episode, labeled_store
from plaudit.config import parse
from plaudit.contracts import check_learner
from plaudit.data.batch import to_torch
from plaudit.data.demonstrations import InterventionConfig
from plaudit.data.normalize import ACTION, STATE, Normalizer, Stats
from plaudit.data.replay import ReplaySampler
from plaudit.errors import ConfigError, DataError, PolicyError, TrainingError
from plaudit.learners.config import DsrlConfig, ExpoConfig, SteerConfig, WeightedBcConfig
from plaudit.learners.dsrl import Dsrl
from plaudit.learners.expo import Expo
from plaudit.learners.steer import Steer
from plaudit.learners.weighted_bc import WeightedBC
from plaudit.policies.config import FlowConfig, GaussianConfig, VelocityNetConfig
from plaudit.policies.flow import FlowPolicy, matching_loss
from plaudit.policies.loader import load_policy, save_policy
from plaudit.policies.networks import CriticEnsemble, weights_of
from plaudit.policies.steering import EditedChunks
from plaudit.training.config_file import load_training_config
from plaudit.training.evaluation import check_noise
from plaudit.types import Batch, EnvSpec, Labels, Observation

SPACES = EnvSpec(2, 1, {})
STATS = Normalizer(
    {STATE: Stats(*np.array([[1, 2], [2, 4]], np.float32)), ACTION: Stats(*np.array([[0.1], [0.5]], np.float32))}
)
ALL: list[tuple[type, dict[str, Any]]] = [
    *((WeightedBcConfig, {"method": method}) for method in ("success", "advantage", "progress", "conditioned")),
    (WeightedBcConfig, {"method": "conditioned", "advantage_steps": 2}),
    (ExpoConfig, {"edit_warmup": 0}),
    (ExpoConfig, {"critic_horizon": 1, "finetune_lr": 1e-3}),
    (ExpoConfig, {"select": False, "num_samples": 1}),
    (DsrlConfig, {}),
    (DsrlConfig, {"repeat_noise": True, "critic_horizon": 1}),
    (SteerConfig, {}),
    (SteerConfig, {"critic_horizon": 1}),
]
NAMES = [f"{config.__name__}-{'-'.join(map(str, options.values()))}" for config, options in ALL]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A flow of random weights over windows of two actions, with statistics."""
    config = FlowConfig(state_dim=2, action_dim=1, horizon=2, velocity_net=VelocityNetConfig(width=16, depth=1), seed=5)
    policy = FlowPolicy(config)
    with torch.no_grad():
        for parameter in policy.velocity_net.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    return save_policy(tmp_path / "base", config, weights_of(3, policy.components), STATS)


def windows(size: int = 64, horizon: int = 2, **changed: Any) -> Batch[torch.Tensor]:
    rng = torch.Generator().manual_seed(1)
    state, following = (torch.rand(size, 2, generator=rng) - 0.5 for _ in range(2))
    actions, reward = torch.rand(size, horizon, 1, generator=rng) * 2 - 1, torch.rand(size, generator=rng)
    none, mask = torch.zeros(size, dtype=torch.long), torch.ones(size, horizon).bool()
    batch = Batch({}, state, actions, mask, reward, torch.full((size,), 0.9), {}, following, none, none, none + 1)
    return Batch(**{**vars(batch), **changed})


def says(critic: CriticEnsemble, *values: float) -> None:
    """Let each critic say one number of anything."""
    for weight in critic.parameters():
        weight.data.zero_()
    critic.biases[-1].data = torch.tensor(values)[:, None, None]


class FirstAction(torch.nn.Module):
    """Three critics that value a chunk by its first action."""

    def forward(
        self, features: torch.Tensor, actions: torch.Tensor, members: torch.Tensor | None = None
    ) -> torch.Tensor:
        return actions[:, 0].expand(3 if members is None else len(members), -1)


class SumOfActions(torch.nn.Module):
    """Critics that value a chunk by the sum of its actions."""

    def forward(self, features: torch.Tensor, actions: torch.Tensor, members: torch.Tensor | None) -> torch.Tensor:
        return actions.sum(dim=1)[None]


@pytest.mark.parametrize(("config", "options"), ALL, ids=NAMES)
def test_each_keeps_the_contract_of_learners(base: Path, config: type, options: dict[str, Any]):
    check_learner(config(base=base, **options), SPACES)


# The base within a learner


def test_the_base_acts_in_a_learner_as_it_does_alone_in_other_units(base: Path):
    """Around it is a run whose -1 to 1 are other numbers of the robot."""
    around = Normalizer(
        {STATE: Stats(*np.array([[3, 0], [1, 2]], np.float32)), ACTION: Stats(*np.array([[-0.2], [4]], np.float32))}
    )
    robot, noise = np.float32([0.3, -0.7]), np.random.default_rng(0).normal(size=(3, 2, 1)).astype(np.float32)
    policy: Any = load_policy(base).build()
    expected = policy.sample(Observation({}, robot), STATS, 3, noise)
    learner = DsrlConfig(base=base, hidden_dims=(8,)).build(SPACES, 0, "cpu", around=around)
    seen = torch.from_numpy(around.normalize_state(robot)[None])
    flow = learner.net.policy.base
    with torch.no_grad():
        chunks = flow.chunks(
            flow.features(learner.tensors(Observation({}, seen.numpy()))), torch.from_numpy(noise[None])
        )
    assert np.allclose(around.denormalize_action(chunks[0].numpy()), expected, atol=1e-5)


def test_a_base_without_statistics_of_its_state_is_refused(base: Path):
    Normalizer({ACTION: STATS.stats[ACTION]}).save(base.parent / "normalizer.json")
    with pytest.raises(DataError, match=r"no statistics of 'observation\.state'"):
        WeightedBcConfig(base=base).build(SPACES, 0, "cpu")


@pytest.mark.parametrize(("config", "options"), ALL, ids=NAMES)
def test_before_any_update_each_acts_as_its_base(base: Path, config: type, options: dict[str, Any]):
    """Whatever its critics and actors say, which have learned nothing."""
    learner = config(base=base, **options).build(SPACES, 0, "cpu")
    seen = np.random.default_rng(2).normal(size=(1, 2)).astype(np.float32)
    rows = learner.config.num_samples if isinstance(learner, Expo | Steer) else 1
    noise = torch.randn(rows, 2, 1, generator=torch.Generator().manual_seed(0)).numpy()
    acting: Any = load_policy(base).build()
    expected = acting.sample(Observation({}, seen[0]), STATS, rows, noise).clip(-1, 1)
    assert np.allclose(learner.act_fn(explore=False)(Observation({}, seen))[0], expected[0][0], atol=1e-5)


def test_what_imitation_has_learned_is_the_base_of_the_next_run(base: Path, tmp_path: Path):
    """Also with the flag, and through the file that a run writes."""
    learner = WeightedBcConfig(base=base, method="conditioned").build(SPACES, 0, "cpu")
    for _ in range(3):
        learner.update(windows())
    file = save_policy(tmp_path / "next", learner.policy_config(), learner.weights())
    following = ExpoConfig(base=file.parent, num_samples=2).build(SPACES, 0, "cpu")
    seen = np.random.default_rng(2).normal(size=(5, 2)).astype(np.float32)
    noise = torch.randn(5, 1, 2, 1, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        one, other = (
            flow.chunks(flow.features(learner.tensors(Observation({}, seen))), noise)
            for flow in (learner.net.base, following.net.policy.base)
        )
    assert torch.allclose(one, other, atol=1e-5)


# Weighted behavior cloning


def flow_loss(learner: WeightedBC, batch: Batch[torch.Tensor], weight: torch.Tensor) -> float:
    """The weighted loss, with the noise that the learner will draw next."""
    rng = torch.Generator().manual_seed(0)
    rng.set_state(learner.rng.get_state())
    flow = learner.net.base
    features = learner.net.base.features(learner.augment_batch(batch, 0)[0])
    mask = batch.action_mask * weight[:, None]
    loss = matching_loss(flow.velocity_net, features, flow.units.action(batch.actions), mask, rng)
    return float(loss.detach())


def test_only_people_and_successes_are_imitated(base: Path):
    learner = WeightedBC(WeightedBcConfig(base=base), SPACES)
    batch = windows(part=torch.arange(64) % 2)
    expected = flow_loss(learner, batch, (batch.part == 0).float())
    assert float(learner.update(batch)["loss/flow"]) == pytest.approx(expected, rel=1e-5)


def test_windows_in_which_progress_grows_are_imitated(base: Path):
    learner = WeightedBC(WeightedBcConfig(base=base, method="progress", min_gain=0.4), SPACES)
    batch = windows()
    expected = flow_loss(learner, batch, (batch.reward > 0.4).float())
    assert learner.replay_options["n_step"] == 2
    assert float(learner.update(batch)["loss/flow"]) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("steps", [None, 2])
def test_weights_grow_exponentially_with_the_advantage_up_to_a_limit(base: Path, steps: int | None):
    config = WeightedBcConfig(base=base, method="advantage", temperature=0.2, max_weight=3.0, advantage_steps=steps)
    learner, batch = WeightedBC(config, SPACES), windows(part=torch.tensor([0] * 4 + [1] * 60))
    with torch.no_grad():
        states = map(learner.net.base.units.state, (batch.state, batch.next_state))
        now, after = (learner.net.value(state)[:, 0] for state in states)
    returns = batch.reward + (0 if steps is None else 0.9 * after)
    weight = ((returns - now) / 0.2).exp().clamp(max=3)
    weight[:4] = 1
    expected = flow_loss(learner, batch, weight)
    metrics = learner.update(batch)
    assert float(metrics["loss/flow"]) == pytest.approx(expected, rel=1e-4)
    assert float(metrics["loss/value"]) == pytest.approx(float((returns - now).square().mean()), rel=1e-4)


def test_the_flag_is_set_for_the_best_of_the_run_and_for_people(base: Path):
    config = WeightedBcConfig(base=base, method="conditioned", positive_share=0.25, flag_dropout=0.0)
    learner, part = WeightedBC(config, SPACES), torch.tensor([0, 0] + [1] * 8)
    advantage = torch.tensor([-9.0, -9.0, *range(8)])
    flags = learner._flags(windows(10, part=part), advantage)
    assert flags.tolist() == [1, 1] + [0] * 6 + [1, 1]
    forgetful = WeightedBC(config.model_copy(update={"flag_dropout": 1.0}), SPACES)
    assert set(forgetful._flags(windows(10, part=part), advantage).tolist()) == {-1}


@pytest.mark.parametrize("method", ["advantage", "conditioned"])
def test_actions_that_pay_become_more_frequent(base: Path, method: str):
    """Recorded actions are of all kinds, and high ones pay."""
    learner = WeightedBC(WeightedBcConfig(base=base, method=method, lr=1e-2, hidden_dims=(16,)), SPACES)
    seen = Observation({}, np.random.default_rng(0).uniform(-0.5, 0.5, (200, 2)).astype(np.float32))
    rng = torch.Generator().manual_seed(0)
    for _ in range(100):
        actions = torch.rand(128, 2, 1, generator=rng) * 2 - 1
        state = torch.rand(128, 2, generator=rng) - 0.5
        batch = windows(128, actions=actions, state=state, reward=(actions.mean(dim=(1, 2)) > 0.2).float())
        learner.update(batch)
    assert learner.plan(seen, learner.rng).mean() > 0.25


def test_guidance_goes_beyond_the_flag(base: Path):
    learner = WeightedBC(WeightedBcConfig(base=base, method="conditioned", guidance=2.0), SPACES)
    for _ in range(5):
        learner.update(windows())
    flow, chunks, tau = learner.net.base, torch.randn(4, 1, 2, 1), torch.full((1,), 0.3)
    features = flow.features(learner.augment_batch(windows(4), 0)[0])[:, None]
    flags = {
        flag: torch.cat([features, torch.tensor(flag).expand(4, 1, 2)], dim=-1) for flag in ((0.0, 0.0), (0.0, 1.0))
    }
    with torch.no_grad():
        unsaid, improving = (flow.velocity_net(chunks, tau, each) for each in flags.values())
        steps = flow.config.model_copy(update={"num_inference_steps": 1})
        flow.config = steps
        start = torch.full((1,), 0.0)
        unsaid, improving = (flow.velocity_net(chunks, start, each) for each in flags.values())
        expected = flow.units.from_action(chunks + 2 * improving - unsaid).clamp(-1, 1)
        assert not torch.allclose(unsaid, improving, atol=1e-4)
        assert torch.allclose(flow.chunks(features[:, 0], chunks), expected, atol=1e-5)


def test_successes_of_the_run_count_as_demonstrations_until_they_are_corrected(tmp_path: Path):
    store = labeled_store(tmp_path / "won", counting_episode(4), cutoff=4)
    lost = store.append(counting_episode(5, first=20))
    store.ledger.append(lost, Labels.from_cutoff(steps=5, cutoff=None, source="human"))
    own = {"shares": (1, 0), "interventions": InterventionConfig(successes=True), "horizon": 2, "cameras": ()}
    batch = ReplaySampler(store, **own, seed=0).sample(100)
    assert set(batch.episode.tolist()) == {0} and set(batch.step.tolist()) == {0, 1, 2, 3}
    assert batch.action_mask[batch.step == 3].tolist()[0] == [True, False]
    store.ledger.append(0, Labels.from_cutoff(steps=4, cutoff=None, source="human"))
    store.ledger.append(lost, Labels.from_cutoff(steps=5, cutoff=2, source="human"))
    again = ReplaySampler(store, **own, seed=0)
    assert set(again.sample(100).episode.tolist()) == {lost}
    options = WeightedBcConfig(base=_untouched(tmp_path)).imitates_successes
    assert options


def _untouched(folder: Path) -> Path:
    config = FlowConfig(state_dim=2, action_dim=1, horizon=2, velocity_net=VelocityNetConfig(width=8, depth=1))
    return save_policy(folder / "another", config, weights_of(0, FlowPolicy(config).components))


# EXPO and residual learning


def expo(base: Path, **options: Any) -> Expo:
    return Expo(
        ExpoConfig(**{"base": base, "num_samples": 3, "hidden_dims": (16,), "edit_warmup": 0, **options}), SPACES
    )


def test_the_target_of_expo_is_the_least_of_a_pair_at_the_best_candidate(base: Path):
    learner = expo(base, num_critics=2)
    says(learner.net.policy.critic, 0.0, 0.0)
    says(learner.net.target_critic, 5.0, 3.0)
    batch = windows()
    expected = 2 * (batch.reward + 0.9 * 3.0).square().mean()
    assert float(learner.update(batch)["loss/critic"]) == pytest.approx(float(expected), rel=1e-5)


def test_windows_that_end_early_with_success_keep_their_loss(base: Path):
    """Of four windows the last two are cut: the third by success, the fourth by the time limit."""
    learner = expo(base)
    for critic in (learner.net.policy.critic, learner.net.target_critic):
        says(critic, 0.0, 0.0, 0.0, 0.0)
    mask = torch.tensor([[True, True], [True, True], [True, False], [True, False]])
    reward, discount = torch.tensor([1.0, 2.0, 3.0, 100.0]), torch.tensor([0.9, 0.0, 0.0, 0.9])
    loss = learner.update(windows(4, action_mask=mask, reward=reward, discount=discount))["loss/critic"]
    assert float(loss) == pytest.approx(4 * (1 + 4 + 9) / 3, rel=1e-5)


def test_edits_stay_within_their_scale_and_grow_with_the_updates(base: Path):
    learner = expo(base, edit_scale=0.3, edit_warmup=4, critic_horizon=1)
    policy: EditedChunks = learner.net.policy
    features = torch.zeros(50, 2)
    chunks, noise = torch.zeros(50, 1, 1, 1), 5 * torch.randn(50, 1, 1)
    for largest in (0.075, 0.15, 0.225, 0.3, 0.3):
        learner.update(windows())
        edited, _ = policy.editor(features, chunks, noise)
        assert edited.abs().max() <= largest + 1e-6 and edited.abs().max() > 0.7 * largest


def test_a_penalty_keeps_edits_small(base: Path):
    sizes = []
    for penalty in (0.0, 100.0):
        learner, batch = expo(base, edit_penalty=penalty, temperature_init=1e-6, lr=1e-2), windows()
        for _ in range(150):
            learner.update(batch)
        obs, policy = learner.augment_batch(batch, 0)[0], learner.net.policy
        features, chunks = policy.features(obs), policy.base.sample(obs, learner.rng)[:, None]
        noise = torch.zeros(chunks.flatten(2).shape)
        sizes.append(policy.editor.edits(features, chunks, noise)[0].abs().mean().item())
    assert sizes[1] < 0.1 < sizes[0]


def test_candidates_are_the_bases_chunks_and_the_same_edited_in_their_first_actions(base: Path):
    learner = expo(base, critic_horizon=1, edit_scale=0.5)
    learner.update(windows())
    policy, obs = learner.net.policy, learner.tensors(Observation({}, np.zeros((4, 2), np.float32)))
    with torch.no_grad():
        candidates = policy.candidates(obs, policy.features(obs), torch.Generator().manual_seed(3))
    chunks, edited = candidates[:, :3], candidates[:, 3:]
    assert candidates.shape == (4, 6, 2, 1)
    assert torch.equal(chunks[:, :, 1], edited[:, :, 1])
    assert 0 < (chunks[:, :, 0] - edited[:, :, 0]).abs().max() <= 0.5


def test_the_candidate_that_critics_value_most_is_executed(base: Path):
    learner = expo(base, num_critics=3)
    policy, obs = learner.net.policy, learner.tensors(Observation({}, np.zeros((4, 2), np.float32)))
    policy.critic = FirstAction()  # type: ignore[assignment]
    policy.learned.fill_(True)
    with torch.no_grad():
        candidates = policy.candidates(obs, policy.features(obs), torch.Generator().manual_seed(3))
        chosen = policy(obs, torch.Generator().manual_seed(3))
    assert torch.equal(chosen[:, 0], candidates[:, :, 0].amax(dim=1))


def test_residual_learning_executes_the_edited_chunk(base: Path):
    learner = expo(base, num_samples=1, select=False)
    learner.update(windows())
    policy, obs = learner.net.policy, learner.tensors(Observation({}, np.zeros((4, 2), np.float32)))
    with torch.no_grad():
        candidates = policy.candidates(obs, policy.features(obs), torch.Generator().manual_seed(3))
        assert candidates.shape == (4, 1, 2, 1)
        assert torch.equal(policy(obs, torch.Generator().manual_seed(3)), candidates[:, 0])


@pytest.mark.parametrize("rate", [0.0, 1e-2])
def test_the_base_changes_only_where_it_is_fine_tuned_and_only_by_successes(base: Path, rate: float):
    def moved(part: int) -> bool:
        learner = expo(base, finetune_lr=rate)
        before = [parameter.clone() for parameter in learner.net.policy.base.parameters()]
        learner.update(windows(part=torch.full((64,), part)))
        return any(not torch.equal(*pair) for pair in zip(before, learner.net.policy.base.parameters()))

    assert (moved(0), moved(1)) == (rate > 0, False)


# DSRL


def test_the_target_of_dsrl_values_what_the_flow_makes_of_the_actors_noise(base: Path):
    learner = Dsrl(DsrlConfig(base=base, hidden_dims=(16,), num_critics=2), SPACES)
    batch, rng = windows(), torch.Generator().manual_seed(0)
    policy, net = learner.net.policy, learner.net
    with torch.no_grad():
        now, after = map(policy.base.units.state, (batch.state, batch.next_state))
        mean, log_std = policy.actor.head(policy.actor.trunk(after)).chunk(2, dim=-1)
        noise = 1.5 * (mean + log_std.clamp(-5, 2).exp() * torch.randn(64, 2, generator=rng)).tanh()
        flow = policy.base
        chunks = flow.chunks(flow.features(learner.augment_batch(batch, 0)[1]), noise.view(64, 1, 2, 1))
        target = batch.reward + 0.9 * net.target_critic(after, chunks.flatten(1)).amin(dim=0)
        expected = (net.critic(now, batch.actions.flatten(1)) - target).square().mean(dim=1).sum()
    assert float(learner.update(batch)["loss/critic"]) == pytest.approx(float(expected), rel=1e-5)


def test_noise_stays_within_its_bound_and_may_be_the_same_for_a_whole_chunk(base: Path):
    for repeat in (False, True):
        learner = Dsrl(DsrlConfig(base=base, noise_bound=0.5, repeat_noise=repeat), SPACES)
        policy = learner.net.policy
        chosen, _ = policy.sample(100 * torch.randn(200, 2), learner.rng)
        noise = policy.noise(chosen)
        assert noise.shape == (200, 2, 1) and 0.45 < noise.abs().max() <= 0.5
        assert torch.equal(noise[:, 0], noise[:, 1]) == repeat
        assert learner.random_noise(500, learner.rng).abs().max() == 0.5


def test_dsrl_leaves_its_base_as_it_is(base: Path):
    learner = Dsrl(DsrlConfig(base=base), SPACES)
    before = {name: tensor.clone() for name, tensor in learner.net.policy.base.state_dict().items()}
    for _ in range(3):
        learner.update(windows())
    assert all(torch.equal(before[name], tensor) for name, tensor in learner.net.policy.base.state_dict().items())


def test_a_reset_renews_the_critics_of_actions_and_those_of_noise(base: Path):
    learner = Dsrl(DsrlConfig(base=base), SPACES)
    learner.update(windows())
    critics = (learner.net.critic, learner.net.noise_critic)
    before = [weight.clone() for critic in critics for weight in critic.weights]
    learner.reset_critics()
    weights = [weight for critic in critics for weight in critic.weights]
    assert not any(torch.equal(old, new) for old, new in zip(before, weights, strict=True))
    for weight in weights:
        moments = [one.state[weight] for one in learner.optimizers.values() if weight in one.state]
        assert len(moments) == 1 and not any(tensor.any() for tensor in moments[0].values())


class Corridor:
    """Success for whoever acts as `wins` says, in one step."""

    num_envs, max_steps, fps, task, cameras = 10, 1, 10.0, "", {}
    state_dim, action_dim = 2, 1

    def __init__(self, wins: Callable[[np.ndarray], np.ndarray]):
        self._wins = wins

    def reset(self, seeds: Any) -> Observation:
        return Observation({}, np.zeros((10, 2), np.float32))

    def step(self, actions: np.ndarray, active: np.ndarray) -> Any:
        return Observation({}, np.zeros((10, 2), np.float32)), {"success": self._wins(actions)}

    def close(self) -> None: ...


def test_a_base_that_such_noise_breaks_is_refused_before_the_run(base: Path):
    config = load_training_config("train", None, ["env=push", f"learner.base={base}", "learner=dsrl"])
    config = config.model_copy(update={"learner": config.learner.model_copy(update={"noise_bound": 1e-3})})
    learner = config.learner.build(SPACES, 0, "cpu")
    alike = learner.act_at_random(normal=False)(Observation({}, np.zeros((1, 2), np.float32)))[0, 0]
    shown: list[str] = []

    def bar(what: str) -> Any:
        shown.append(what)
        return iter

    check_noise(config, learner, Corridor(lambda actions: actions[:, 0] > -2), bar)  # type: ignore[arg-type]
    assert shown == [f"checking the base: 50 episodes from {kind} noise" for kind in ("normal", "the actor's")]
    with pytest.raises(
        TrainingError, match=r"the base succeeds in \d+% of 50 episodes, and in 0% from random noise of"
    ):
        check_noise(config, learner, Corridor(lambda a: np.abs(a[:, 0] - alike) > 0.02), bar)  # type: ignore[arg-type]
    with pytest.raises(TrainingError, match="the base never succeeds in 50 episodes"):
        check_noise(config, learner, Corridor(lambda actions: actions[:, 0] > 2), bar)  # type: ignore[arg-type]


# Steering


def test_the_target_of_steering_values_the_actions_that_followed(base: Path):
    learner = Steer(SteerConfig(base=base, hidden_dims=(16,), num_subsample_critics=4), SPACES)
    batch, net = windows(horizon=4), learner.net
    with torch.no_grad():
        now, after = map(net.policy.units.state, (batch.state, batch.next_state))
        following = net.target_critic(after, batch.actions[:, 2:].flatten(1)).mean(dim=0)
        values = net.policy.critic(now, batch.actions[:, :2].flatten(1))
        expected = (values - batch.reward - 0.9 * following).square().mean(dim=1).sum()
    assert (learner.replay_options["n_step"], learner.replay_options["horizon"]) == (2, 4)
    assert float(learner.update(batch)["loss/critic"]) == pytest.approx(float(expected), rel=1e-5)


def test_steering_values_no_action_that_the_time_limit_cut_off(base: Path, tmp_path: Path):
    actions = np.arange(6, dtype=np.float32)[:, None] / 10
    store = labeled_store(tmp_path / "s", replace(counting_episode(6), actions=actions))  # without a success
    learner = Steer(SteerConfig(base=base, gamma=0.9, num_critics=2, num_subsample_critics=2), SPACES)
    says(learner.net.policy.critic, 0.0, 0.0)
    learner.net.target_critic = SumOfActions()  # type: ignore[assignment]
    batch = ReplaySampler(store, **{**learner.replay_options, "cameras": ()}, seed=0).sample(64)
    assert set(batch.step.tolist()) == {0, 1, 2}  # two actions, and two that were executed after them
    targets = 0.81 * (2 * batch.step + 5) / 10  # a_(t+2) + a_(t+3)
    loss = learner.update(to_torch(batch, "cpu"))["loss/critic"]
    assert float(loss) == pytest.approx(2 * float(np.mean(targets**2)), rel=1e-5)


def test_steering_executes_the_best_of_the_policys_own_chunks(base: Path):
    learner = Steer(SteerConfig(base=base, num_samples=5), SPACES)
    learner.net.policy.critic = FirstAction()  # type: ignore[assignment]
    learner.net.policy.learned.fill_(True)
    seen = np.array([[0.2, -0.1]], np.float32)
    policy: Any = load_policy(base, ["policy.seed=0"]).build()
    chunks = policy.sample(Observation({}, seen[0]), STATS, 5).clip(-1, 1)
    assert learner.act_fn(explore=False)(Observation({}, seen))[0] == pytest.approx(chunks[:, 0].max(), abs=1e-6)


# What is refused


def test_a_policy_that_gives_one_chunk_cannot_be_steered(tmp_path: Path):
    config = GaussianConfig(state_dim=2, action_dim=1)
    file = save_policy(tmp_path, config, weights_of(0, config.build().components))
    learner = SteerConfig(base=file).build(SPACES, 0, "cpu")
    with pytest.raises(PolicyError, match="a 'gaussian' policy gives one chunk for an observation"):
        learner.act_fn(explore=False)
    with pytest.raises(ConfigError, match="is a 'gaussian' policy, and this learner needs a flow"):
        parse(DsrlConfig, {"base": str(file)})


def test_a_base_that_is_not_there_or_not_trained_is_refused(base: Path, tmp_path: Path):
    with pytest.raises(ConfigError, match="nowhere"):
        parse(ExpoConfig, {"base": "nowhere/policy.yaml"})
    with pytest.raises(ConfigError, match="'base'"):
        parse(ExpoConfig, {})
    (tmp_path / "policy.yaml").write_text("policy: {type: flow, state_dim: 2, action_dim: 1}\n")
    with pytest.raises(ConfigError, match="names no weights: it is untrained"):
        parse(ExpoConfig, {"base": str(tmp_path)})


def test_numbers_that_do_not_fit_the_base_are_refused(base: Path):
    with pytest.raises(ConfigError, match="critic_horizon is 3, but chunks have 2 actions"):
        parse(ExpoConfig, {"base": str(base), "critic_horizon": 3})
    with pytest.raises(ConfigError, match="without a choice one chunk is sampled"):
        parse(ExpoConfig, {"base": str(base), "select": False})
    with pytest.raises(PolicyError, match="made for a state of 2 numbers, and that of the environment has 3"):
        ExpoConfig(base=base).build(EnvSpec(3, 1, {}), 0, "cpu")
    words = ["env=push", "learner=weighted_bc", f"learner.base={base}", "learner.method=progress"]
    with pytest.raises(ConfigError, match=r"learner\.method=progress"):
        load_training_config("train", None, words)
    with pytest.raises(ConfigError, match=r"write policy\.history=0"):
        load_training_config("train", None, [*words[:3], "policy.history=1"])
