import json
import subprocess
import sys
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from conftest import counting_episode, labeled_store
from plaudit.config import parse
from plaudit.contracts import check_policy
from plaudit.data.demonstrations import Demonstrations
from plaudit.data.normalize import Normalizer
from plaudit.data.replay import ReplaySampler
from plaudit.data.weights import load_checkpoint, save_checkpoint
from plaudit.errors import ConfigError, PolicyError
from plaudit.learners.bc import ActionWindows, FlowBC, train_flow, train_flow_from_store
from plaudit.learners.config import BCConfig
from plaudit.policies.config import FlowConfig, VelocityNetConfig
from plaudit.policies.flow import FlowPolicy, guidance_weight, matching_loss
from plaudit.policies.guidance import compute_guided_prefix_weights, shift_chunk
from plaudit.policies.networks import encode, weights_of
from plaudit.types import Labels, Observation, PolicyWeights

TINY = VelocityNetConfig(width=32, depth=1)
HERE = Observation({}, np.float32([0.5]))


@cache
def fork() -> tuple[FlowPolicy, Normalizer]:
    """Taught that one may go left or right, but not straight on: chunks rise to 1 or fall to -1, by a coin."""
    side = np.random.default_rng(0).choice([-1, 1], 1000)
    chunks = (side[:, None] * np.linspace(0.3, 1, 6)).astype(np.float32)[:, :, None]
    state = np.full((1000, 1), 0.5, np.float32)
    config = FlowConfig(state_dim=1, action_dim=1, horizon=6, velocity_net=VelocityNetConfig(width=48, depth=2))
    policy, normalizer = config.build(), Normalizer.of(np.float32([[0], [1]]), chunks)
    train_flow(policy, Observation({}, state), chunks, normalizer, steps=250, batch_size=96, lr=4e-3)
    return policy, normalizer


def guided_by(kind: str) -> FlowPolicy:
    policy, _ = fork()
    other = policy.config.model_copy(update={"guidance": kind}).build()
    other.load_weights(weights_of(1, policy.components))
    return other


RIGHT = np.linspace(0.3, 1, 6, dtype=np.float32)[:, None]


def test_it_learns_both_ways_of_a_fork_and_not_their_middle():
    policy, normalizer = fork()
    ends = np.array([policy.predict(HERE, normalizer)[-1, 0] for _ in range(60)])
    assert 0.25 < (ends > 0).mean() < 0.75
    assert (np.abs(np.abs(ends) - 1) < 0.3).mean() > 0.75
    assert (np.abs(ends) < 0.3).mean() < 0.1  # where a policy of averages would always go


@pytest.mark.parametrize(("kind", "tolerance"), [("vjp", 0.05), ("identity", 0.01), ("blend", 1e-6)])
def test_at_weight_one_guided_inference_reproduces_the_previous_actions(kind: str, tolerance: float):
    """Of actions between -1 and 1: 0.018 off through the Jacobian, 0.55 when nothing guides."""
    policy, (_, normalizer) = guided_by(kind), fork()
    chunks = [policy.guided_inference(HERE, normalizer, RIGHT, delay=6, executed=0) for _ in range(20)]
    assert np.abs(np.stack(chunks) - RIGHT).mean() < tolerance


def test_through_the_jacobian_bound_actions_pull_the_free_ones_along():
    """The first two actions go right; of the network's two ways only one goes on from there."""
    _, normalizer = fork()
    previous = np.concatenate([RIGHT[2:], RIGHT[:2]])  # of which the last two are left after four
    end = {}
    for kind in ("vjp", "identity", "blend"):
        policy = guided_by(kind)
        chunks = [policy.guided_inference(HERE, normalizer, previous, 2, 4) for _ in range(80)]
        end[kind] = np.mean([chunk[-1, 0] for chunk in chunks])
    assert end["vjp"] > end["identity"] + 0.03 and end["identity"] > end["blend"] + 0.2


def test_without_weights_guidance_changes_nothing():
    one, other, normalizer = guided_by("vjp"), guided_by("vjp"), fork()[1]
    guided = one.guided_inference(HERE, normalizer, RIGHT, delay=0, executed=6)
    assert np.allclose(guided, other.predict(HERE, normalizer), atol=1e-6)


def test_one_step_of_guidance_is_the_papers_formula():
    """From noise A at tau = 0 straight to the end: A + v + 5 J^T[(Y - A - v) W], J by finite differences."""
    policy, normalizer = fork()
    once = policy.config.model_copy(update={"num_inference_steps": 1}).build()
    once.load_weights(weights_of(1, policy.components))
    features = encode(once.encoder, HERE, normalizer, once.device)
    noise = torch.randn((1, 6, 1), generator=torch.Generator().manual_seed(0))

    def heading(actions: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return actions + once.velocity_net(actions, torch.zeros(1), features)

    basis = 1e-2 * torch.eye(6)[:, None, :, None]  # row j moves action j
    jacobian = torch.stack([(heading(noise + e) - heading(noise - e)).flatten() / 2e-2 for e in basis])
    target = torch.from_numpy(normalizer.normalize_action(shift_chunk(RIGHT, 2)))
    weights = torch.from_numpy(compute_guided_prefix_weights(6, 1, 2))
    pull = jacobian @ ((target - heading(noise)[0])[:, 0] * weights)
    expected = normalizer.denormalize_action((heading(noise)[0] + 5 * pull[:, None]).numpy())
    assert np.allclose(once.guided_inference(HERE, normalizer, RIGHT, 1, 2), expected, atol=0.02)


def test_the_gradient_flows_with_frozen_parameters_too():
    one, other, normalizer = guided_by("vjp"), guided_by("vjp"), fork()[1]
    other.freeze_all_model_params()
    with torch.no_grad():
        frozen = other.guided_inference(HERE, normalizer, RIGHT, 2, 2)
    assert np.array_equal(one.guided_inference(HERE, normalizer, RIGHT, 2, 2), frozen)


def test_the_weight_of_guidance_is_the_papers_and_clipped():
    assert guidance_weight(0.0, 5.0) == 5.0
    assert guidance_weight(0.1, 5.0) == 5.0  # 9.1 without the clip
    assert guidance_weight(0.5, 5.0) == pytest.approx(2.0)  # 0.5 / (0.5 * 0.5)
    assert guidance_weight(0.8, 5.0) == pytest.approx(4.25)


def test_the_same_seed_learns_and_draws_the_same():
    def drawn(seed: int) -> list[float]:
        policy = FlowConfig(state_dim=1, action_dim=1, horizon=3, velocity_net=TINY, seed=seed).build()
        state, chunks = np.ones((8, 1), np.float32), np.ones((8, 3, 1), np.float32)
        normalizer = Normalizer.identity(1, 1)
        train_flow(policy, Observation({}, state), chunks, normalizer, steps=3, batch_size=4, seed=seed)
        policy.warmup()
        return policy.predict(HERE, normalizer)[:, 0].tolist()

    assert drawn(1) == drawn(1) != drawn(2)


def test_a_trainer_goes_on_from_its_checkpoint_as_if_it_had_not_stopped(tmp_path):
    config = FlowConfig(state_dim=2, action_dim=1, horizon=3, velocity_net=TINY)
    rng = np.random.default_rng(0)
    state, chunks = rng.normal(size=(8, 2)).astype("f4"), rng.normal(size=(8, 3, 1)).astype("f4")
    windows = ActionWindows(Observation({}, state), chunks, np.ones((8, 3), bool))
    trainer = FlowBC(config.build(), Normalizer.identity(2, 1), BCConfig(steps=6))
    losses = []
    for step in range(6):
        losses.append(trainer.update(windows)["loss/flow"])
        if step == 2:
            save_checkpoint(tmp_path / "three", trainer, {})
    resumed = FlowBC(config.model_copy(update={"seed": 9}).build(), Normalizer.identity(2, 1), BCConfig(steps=6))
    load_checkpoint(tmp_path / "three", resumed)
    assert [resumed.update(windows)["loss/flow"] for _ in range(3)] == losses[3:]
    assert resumed.weights().version == 6


def test_nothing_is_learned_from_beyond_the_end_of_an_episode():
    config = FlowConfig(state_dim=1, action_dim=1, horizon=2, velocity_net=TINY)
    state, mask = np.zeros((4, 1), np.float32), np.array([[True, False]] * 4)

    def loss(beyond: float) -> float:
        chunks = np.array([[[1.0], [beyond]]] * 4, np.float32)
        policy = config.build()  # an untrained one says 0 everywhere, so what it is fed does not matter
        trainer = FlowBC(policy, Normalizer.identity(1, 1), BCConfig(steps=1))
        return trainer.update(ActionWindows(Observation({}, state), chunks, mask))["loss/flow"]

    assert loss(0.0) == loss(1000.0)


def test_it_learns_from_the_windows_and_images_of_a_store(tmp_path):
    store = labeled_store(tmp_path / "store", *(counting_episode(steps=6, first=i) for i in range(3)), cutoff=6)
    config = FlowConfig(state_dim=2, action_dim=1, horizon=4, cameras={"front": (8, 10)}, velocity_net=TINY)
    policy, normalizer = config.build(), Normalizer.from_store(store)
    losses: list[float] = []

    def watch(step: int, loss: float) -> bool:
        losses.append(loss)
        return step < 60

    train_flow_from_store(policy, store, normalizer, callback=watch, batch_size=32, lr=5e-3, steps=100)
    assert len(losses) == 60 and np.mean(losses[-10:]) < 0.7 * np.mean(losses[:10])
    check_policy(policy, store.episode(0).observation(2), normalizer, action_dim=1)


def test_it_clones_successes_and_unlabeled_episodes_and_failures_only_where_asked(store):
    for first, cutoff in ((10, 2), (20, None)):
        store.ledger.append(
            store.append(counting_episode(4, first=first)), Labels.from_cutoff(steps=4, cutoff=cutoff, source="human")
        )
    store.append(counting_episode(4, first=30))

    def cloned(**options: bool) -> list[int]:
        with Demonstrations.of(store, **options).open(store) as chosen:
            batch = ReplaySampler(chosen, cameras=(), seed=0).sample(500)
        return sorted(set((10 * batch.episode + batch.step).tolist()))

    assert cloned() == [0, 1, 20, 21, 22, 23]  # episode 0 up to its success, episode 2 to its end
    assert cloned(include_failures=True) == [0, 1, 10, 11, 12, 13, 20, 21, 22, 23]
    assert len(store.ledger) == 2


def test_training_leaves_out_labeled_failures(tmp_path):
    """Their actions are huge, which would show in the loss."""
    good, bad = counting_episode(4), replace(counting_episode(4), actions=np.full((4, 1), 1e30, np.float32))
    store = labeled_store(tmp_path / "store", good, cutoff=4)
    store.ledger.append(store.append(bad), Labels.from_cutoff(steps=4, cutoff=None, source="human"))
    policy, losses = FlowConfig(state_dim=2, action_dim=1, horizon=2, velocity_net=TINY).build(), list[float]()
    note = lambda step, loss: losses.append(loss) is None  # noqa: E731
    train_flow_from_store(policy, store, Normalizer.identity(2, 1), callback=note, batch_size=64, steps=3)
    assert max(losses) < 1e9


def test_data_of_another_shape_is_named():
    policy = FlowConfig(state_dim=2, action_dim=1, horizon=4, velocity_net=TINY).build()
    with pytest.raises(PolicyError, match=r"learns from chunks \[3, 4, 1\], not \[3, 5, 1\]"):
        train_flow(
            policy, Observation({}, np.zeros((3, 2), "f4")), np.zeros((3, 5, 1), "f4"), Normalizer.identity(2, 1)
        )


def test_an_observation_it_does_not_know_is_named():
    policy = FlowConfig(state_dim=2, action_dim=1, cameras={"front": (4, 4)}, velocity_net=TINY).build()
    normalizer, state = Normalizer.identity(2, 1), np.zeros(2, np.float32)
    with pytest.raises(PolicyError, match=r"camera 'front', which the observation lacks; known: wrist"):
        policy.predict(Observation({"wrist": np.zeros((4, 4, 3), "u1")}, state), normalizer)
    with pytest.raises(PolicyError, match=r"camera 'front' has images of \[4, 5, 3\], this policy takes \[4, 4, 3\]"):
        policy.predict(Observation({"front": np.zeros((4, 5, 3), "u1")}, state), normalizer)
    with pytest.raises(PolicyError, match=r"states of \[2\], the observation's is \[3\]"):
        policy.predict(Observation({"front": np.zeros((4, 4, 3), "u1")}, np.zeros(3, "f4")), normalizer)


def test_a_previous_chunk_of_another_length_is_named():
    with pytest.raises(PolicyError, match=r"the previous chunk is \[5, 1\], this policy's are \[6, 1\]"):
        guided_by("vjp").guided_inference(HERE, fork()[1], RIGHT[:5], 1, 1)


def test_weights_that_do_not_fit_are_named_and_none_is_taken():
    policy = FlowConfig(state_dim=2, action_dim=1, velocity_net=TINY).build()
    mine = weights_of(7, policy.components).tensors
    fresh = {name: array + 1 for name, array in mine.items()}
    bad = {"velocity_net/enter.bias": np.zeros(3, np.float32)}
    with pytest.raises(PolicyError, match=r"version 7: 'velocity_net/enter.bias' is \[3\], this policy's is \[32\]"):
        policy.load_weights(PolicyWeights(7, {**fresh, **bad}))
    with pytest.raises(PolicyError, match=r"have 'velocity_net/enter.bios', which this policy does not have; did you"):
        policy.load_weights(PolicyWeights(7, {**fresh, "velocity_net/enter.bios": np.zeros(3, np.float32)}))
    with pytest.raises(PolicyError, match=r"lack 'velocity_net/time.0.weight'"):
        policy.load_weights(PolicyWeights(7, {}))
    with pytest.raises(PolicyError, match="contains NaN"):
        policy.load_weights(PolicyWeights(7, {**fresh, "velocity_net/enter.bias": np.full(32, np.nan, "f4")}))
    assert all(np.array_equal(mine[n], a) for n, a in weights_of(7, policy.components).tensors.items())


def test_a_policy_that_would_see_nothing_is_refused():
    with pytest.raises(ConfigError, match="something to see"):
        parse(FlowConfig, {"state_dim": 0, "action_dim": 1})


@pytest.mark.slow
def test_another_process_builds_the_same_policy_from_json():
    config = FlowConfig(state_dim=1, action_dim=1, horizon=2, velocity_net=TINY, seed=3)
    program = """
import json, sys, numpy as np
from plaudit.data.normalize import Normalizer
from plaudit.data.replay import ReplaySampler
from plaudit.registry import POLICY_REGISTRY
from plaudit.types import Observation
policy = POLICY_REGISTRY.parse(json.loads(sys.argv[1])).build()
print(json.dumps(policy.predict(Observation({}, np.float32([0.5])), Normalizer.identity(1, 1)).tolist()))
"""
    said = subprocess.run(
        [sys.executable, "-c", program, config.model_dump_json()], capture_output=True, text=True, check=True
    )
    assert json.loads(said.stdout) == config.build().predict(HERE, Normalizer.identity(1, 1)).tolist()


@cache
def prefixed_fork() -> tuple[FlowPolicy, Normalizer]:
    """The fork, taught with up to three given actions."""
    side = np.random.default_rng(0).choice([-1, 1], 1000)
    chunks = (side[:, None] * np.linspace(0.3, 1, 6)).astype(np.float32)[:, :, None]
    state = np.full((1000, 1), 0.5, np.float32)
    net, kind = VelocityNetConfig(width=48, depth=2), {"guidance": "prefix", "max_prefix": 3}
    policy = FlowConfig(state_dim=1, action_dim=1, horizon=6, velocity_net=net, **kind).build()
    normalizer = Normalizer.of(np.float32([[0], [1]]), chunks)
    train_flow(policy, Observation({}, state), chunks, normalizer, steps=250, batch_size=96, lr=4e-3)
    return policy, normalizer


def test_a_given_prefix_is_kept_and_decides_the_rest_without_a_gradient(monkeypatch):
    policy, normalizer = prefixed_fork()
    monkeypatch.setattr(torch.autograd, "grad", lambda *args, **kwargs: pytest.fail("a gradient at inference"))
    ends = np.array([policy.predict(HERE, normalizer)[-1, 0] for _ in range(60)])
    assert 0.25 < (ends > 0).mean() < 0.75  # without a prefix, both ways
    for side in (1, -1):
        chunks = [policy.guided_inference(HERE, normalizer, side * RIGHT, 2, 0) for _ in range(20)]
        for chunk in chunks:
            np.testing.assert_allclose(chunk[:2], side * RIGHT[:2], atol=1e-5)
        assert np.mean([side * chunk[-1, 0] > 0.7 for chunk in chunks]) > 0.9
    # After three executed actions, what is left of the previous chunk is given; never more than in training.
    chunk = policy.guided_inference(HERE, normalizer, RIGHT, 5, 1)
    np.testing.assert_allclose(chunk[:3], RIGHT[1:4], atol=1e-5)
    assert not np.allclose(chunk[3], RIGHT[4], atol=1e-6)


def test_given_actions_have_no_loss():
    policy = FlowConfig(state_dim=1, action_dim=1, horizon=6, max_prefix=5, velocity_net=TINY).build()
    chunks, mask = torch.randn(256, 6, 1), torch.ones(256, 6, dtype=torch.bool)
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []

    def spy(actions, tau, features, given):
        seen.append((actions, given))
        return torch.zeros_like(actions)

    spied: Any = spy
    spied.max_prefix = 5
    loss = matching_loss(spied, torch.zeros(256, 1), chunks, mask, torch.Generator().manual_seed(0))
    ((actions, given),) = seen
    lengths = given.sum(dim=1)
    assert set(lengths.tolist()) == {0, 1, 2, 3, 4, 5}
    assert torch.equal(actions[given], chunks[given]) and not torch.isclose(actions[~given], chunks[~given]).any()
    torch.manual_seed(0)
    noise = torch.randn(chunks.shape, generator=torch.Generator().manual_seed(0))
    expected = ((chunks - noise).square()[:, :, 0] * ~given).sum() / (~given).sum()
    assert torch.isclose(loss, expected)
    assert policy.velocity_net.prefix.weight.abs().max() == 0  # an untrained input changes nothing


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"guidance": "prefix"}, "guidance=prefix needs a policy that was trained with max_prefix"),
        ({"max_prefix": 6}, "max_prefix is 6, and must be below the horizon, 6"),
    ],
)
def test_a_prefix_that_was_not_trained_is_refused(keys, problem):
    with pytest.raises(ConfigError, match=problem):
        parse(FlowConfig, {"state_dim": 1, "action_dim": 1, "horizon": 6, **keys})


def test_the_instruction_decides_between_the_ways_of_a_fork():
    tasks = np.random.default_rng(0).choice(["go left", "go right"], 1000)
    chunks = (np.where(tasks == "go right", 1, -1)[:, None] * np.linspace(0.3, 1, 6)).astype(np.float32)[:, :, None]
    net = VelocityNetConfig(width=48, depth=2)
    config = FlowConfig(state_dim=1, action_dim=1, horizon=6, velocity_net=net, tasks=("go left", "go right"))
    policy, normalizer = config.build(), Normalizer.of(np.float32([[0], [1]]), chunks)
    state = Observation({}, np.full((1000, 1), 0.5, np.float32))
    train_flow(policy, state, chunks, normalizer, tasks=tasks.tolist(), steps=250, batch_size=96, lr=4e-3)
    for task, side in (("go left", -1), ("go right", 1)):
        asked = replace(HERE, task=task)
        ends = np.array([policy.predict(asked, normalizer)[-1, 0] for _ in range(20)])
        assert (side * ends > 0).all() and (side * ends > 0.7).mean() > 0.75
        assert side * policy.guided_inference(asked, normalizer, side * RIGHT, 1, 0)[-1, 0] > 0.7
    policy.warmup()  # of no task in particular
    with pytest.raises(PolicyError, match="does not know the task 'go up'; it was trained for 'go left', 'go right'"):
        policy.predict(replace(HERE, task="go up"), normalizer)
    with pytest.raises(PolicyError, match="this policy needs a task"):
        policy.predict(HERE, normalizer)
    other = config.build()
    other.load_weights(weights_of(1, policy.components))
    assert set(policy.components) == {"encoder", "velocity_net", "task"}
    assert other.sample(replace(HERE, task="go left"), normalizer, 8)[:, -1, 0].mean() < -0.5


def test_low_rank_training_changes_the_chunks_and_leaves_an_ordinary_policy():
    left = (-np.ones((1000, 1)) * np.linspace(0.3, 1, 6)).astype(np.float32)[:, :, None]
    before, normalizer = fork()
    policy = before.config.build()
    policy.load_weights(weights_of(1, before.components))
    names = set(policy.velocity_net.state_dict())
    state = Observation({}, np.full((1000, 1), 0.5, np.float32))
    options = {"lora_rank": 4, "precision": "bfloat16", "batch_size": 96, "steps": 120, "lr": 4e-3}
    trainer = train_flow(policy, state, left, normalizer, **options)
    learned = trainer.optimizers["all"].param_groups[0]["params"]
    assert sum(p.numel() for p in learned) < 0.5 * sum(p.numel() for p in before.velocity_net.parameters())
    weights = trainer.weights()
    assert set(policy.velocity_net.state_dict()) == names
    other = before.config.build()
    other.load_weights(weights)
    ends = other.sample(HERE, normalizer, 40)[:, -1, 0]
    assert (ends < 0).mean() > 0.9  # the fork's policy goes both ways
