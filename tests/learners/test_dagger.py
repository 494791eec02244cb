"""HG-DAgger: what is cloned, and that another learner continues from it."""

from typing import Any

import numpy as np
import pytest
import torch

from conftest import counting_episode, labeled_store
from plaudit.config import parse
from plaudit.data.batch import to_torch
from plaudit.data.demonstrations import InterventionConfig
from plaudit.data.replay import ReplaySampler
from plaudit.errors import ConfigError
from plaudit.learners.config import DaggerConfig, QChunkConfig
from plaudit.learners.dagger import Dagger
from plaudit.policies.config import VelocityNetConfig
from plaudit.training.config_file import load_training_config
from plaudit.training.workers.learner import check_policy_fits
from plaudit.types import Batch, EnvSpec, Observation

SPACES = EnvSpec(2, 1, {})
TINY: dict[str, Any] = {"horizon": 2, "velocity_net": VelocityNetConfig(width=32, depth=1)}


def windows(rng: torch.Generator, part: int, action: float, size: int = 64) -> Batch[torch.Tensor]:
    """Two equal actions, whatever is seen."""
    state, zero, none = torch.rand(size, 2, generator=rng), torch.zeros(size), torch.zeros(size, dtype=torch.long)
    actions, mask = torch.full((size, 2, 1), action), torch.ones(size, 2).bool()
    return Batch({}, state, actions, mask, zero, zero, {}, state, none, none, none + part)


def both(one: Batch[torch.Tensor], other: Batch[torch.Tensor]) -> Batch[torch.Tensor]:
    fields = {name: torch.cat([getattr(one, name), getattr(other, name)]) for name in vars(one) if "images" not in name}
    return Batch(images={}, next_images={}, **fields)


def test_it_clones_what_people_did_and_not_what_the_policy_did():
    rng, learner = torch.Generator().manual_seed(0), Dagger(DaggerConfig(**TINY, lr=3e-3), SPACES)
    for _ in range(300):
        learner.update(both(windows(rng, 0, 0.6), windows(rng, 1, -0.9)))
    chunks = learner.plan(Observation({}, np.random.default_rng(0).random((50, 2), np.float32)), learner.rng)
    assert chunks.shape == (50, 2, 1)
    assert np.abs(chunks - 0.6).mean() < 0.1


def test_a_batch_without_people_changes_nothing_for_the_worse():
    rng, learner = torch.Generator().manual_seed(0), Dagger(DaggerConfig(**TINY), SPACES)
    assert float(learner.update(windows(rng, 1, 0.5))["loss/flow"]) == 0
    assert all(torch.isfinite(weight).all() for weight in learner.net.parameters())


def test_from_replay_only_the_persons_actions_of_a_window_count(tmp_path):
    modes = np.array([0, 0, 1, 1, 0, 0], np.uint8)
    own = labeled_store(tmp_path / "own", counting_episode(6, control_mode=modes))
    learner = Dagger(DaggerConfig(**{**TINY, "horizon": 3}), SPACES)
    replay = ReplaySampler(
        own, shares=(1, 0), interventions=InterventionConfig(), seed=0, **{**learner.replay_options, "cameras": ()}
    )
    batch = to_torch(replay.sample(64), "cpu")
    assert set(batch.step.tolist()) == {2, 3} and (batch.part == 0).all()
    assert batch.action_mask.sum(dim=1).tolist() == [2 if step == 2 else 1 for step in batch.step.tolist()]


def test_q_chunking_continues_from_its_policy(tmp_path):
    from plaudit.config import dump_yaml
    from plaudit.policies.loader import write_weights
    from plaudit.registry import POLICY_REGISTRY
    from plaudit.training.workers.learner import load_pretrained

    learner = Dagger(DaggerConfig(**TINY), SPACES, seed=3)
    write_weights(tmp_path / "weights.safetensors", learner.weights())
    tree = {"policy": POLICY_REGISTRY.dump(learner.policy_config()), "weights": "weights.safetensors"}
    (tmp_path / "policy.yaml").write_text(dump_yaml(tree))
    config = load_training_config(
        "online", None, ["env=lift", "learner=qchunk", f"policy.path={tmp_path / 'policy.yaml'}"]
    )
    next_one = QChunkConfig(**TINY).build(SPACES, 0, "cpu")
    check_policy_fits(config, next_one)
    load_pretrained(config, next_one)
    for name, tensor in learner.net.velocity_net.state_dict().items():
        assert torch.equal(next_one.net.velocity_net.state_dict()[name], tensor)


def test_it_needs_somebody_to_learn_from():
    with pytest.raises(ConfigError, match="learner=dagger needs demonstrations to clone; name a store of them"):
        load_training_config("online", None, ["env=lift", "learner=dagger"])
    load_training_config("online", None, ["env=lift", "learner=dagger", "teleop.type=scripted"])
    with pytest.raises(ConfigError, match="greater than 0"):
        parse(DaggerConfig, {"demo_ratio": 0})
