"""Critics that start anew: which weights change, who may follow them, and which labels are a reason."""

from typing import Any

import pytest
import torch

from conftest import counting_episode
from plaudit.config import parse
from plaudit.data.store import Store
from plaudit.errors import ConfigError
from plaudit.learners.config import QChunkConfig, ResetConfig, SacConfig
from plaudit.learners.qchunk import QChunk
from plaudit.learners.sac import Sac
from plaudit.policies.config import VelocityNetConfig
from plaudit.training.audit import LabelChanges
from plaudit.types import Batch, EnvSpec, Labels

SPACES = EnvSpec(2, 2, {})
QUICK = ResetConfig(every=6, relearn_updates=4)
NONE = torch.zeros(16, dtype=torch.long)


def batch(seed: int, horizon: int | None = None) -> Batch[torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    shape = (16, 2) if horizon is None else (16, horizon, 2)
    state, actions = torch.rand(16, 2, generator=rng), torch.rand(shape, generator=rng)
    mask = torch.ones(16, horizon or 1).bool()
    return Batch({}, state, actions, mask, state[:, 0], state[:, 1], {}, state, NONE, NONE, NONE)


def sac(**settings: Any) -> Sac:
    return Sac(SacConfig(hidden_dims=(8,), policy_update_freq=1, **settings), SPACES)


def qchunk(**settings: Any) -> QChunk:
    tiny = {"horizon": 2, "num_samples": 2, "velocity_net": VelocityNetConfig(width=8, depth=1), "hidden_dims": (8,)}
    return QChunk(QChunkConfig(**tiny, **settings), SPACES)


def copied(module: torch.nn.Module) -> list[torch.Tensor]:
    return [tensor.clone() for tensor in module.parameters()]


def differ(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return any(not torch.equal(*pair) for pair in zip(one, other, strict=True))


@pytest.mark.parametrize("learner", [sac(gripper="discrete"), qchunk()], ids=["sac", "qchunk"])
def test_a_reset_changes_the_critics_and_their_moments_and_nothing_else(learner):
    horizon = None if isinstance(learner, Sac) else 2
    for i in range(3):
        learner.update(batch(i, horizon))
    critics = {id(tensor) for critic, _ in learner.critics for tensor in critic.parameters()}
    policy = {name: copied(part) for name, part in learner.components.items() if "critic" not in name}
    before = [copied(critic) for critic, _ in learner.critics]
    learner.reset_critics()
    for (critic, target), old in zip(learner.critics, before, strict=True):
        assert differ(copied(critic), old) and not differ(copied(critic), copied(target))
    assert not any(differ(copied(learner.components[name]), old) for name, old in policy.items())
    for parameter, moments in learner.optimizers["critic"].state.items():
        assert id(parameter) not in critics or not any(tensor.any() for tensor in moments.values())
    assert learner.relearning
    assert torch.isfinite(learner.update(batch(9, horizon))["loss/critic"])


def test_the_actor_waits_until_the_new_critics_have_learned():
    learner = sac(resets=QUICK)
    moved = []
    for i in range(12):
        before = copied(learner.net.actor)
        learner.update(batch(i))
        moved.append(differ(copied(learner.net.actor), before))
    assert moved == [True] * 6 + [False] * 4 + [True] * 2


@pytest.mark.parametrize("make", [sac, qchunk])
def test_a_learner_that_continues_from_a_checkpoint_makes_the_same_resets(make):
    learner, horizon = make(resets=QUICK), None if make is sac else 2
    learner.take_label_changes(1, 5)
    for i in range(8):  # in the middle of relearning
        learner.update(batch(i, horizon))
    other = make(resets=QUICK)
    other.load_state_dict(learner.state_dict())
    for i in range(8, 20):
        one, two = learner.update(batch(i, horizon)), other.update(batch(i, horizon))
        assert {name: float(value) for name, value in one.items()} == {name: float(v) for name, v in two.items()}
    assert not differ(copied(learner.net), copied(other.net))


def test_a_checkpoint_of_an_earlier_version_can_be_loaded():
    state = dict(sac().state_dict())
    del state["resets"]
    learner = sac()
    learner.load_state_dict(state)
    assert not learner.relearning and learner.extra_updates == 0


def test_enough_corrected_labels_reset_the_critics_once():
    learner = sac(resets=ResetConfig(relabeled=0.1, relearn_updates=7))
    learner.update(batch(0))
    learner.take_label_changes(4, 50)
    assert not learner.relearning
    learner.take_label_changes(5, 50)
    assert learner.relearning and learner.extra_updates == 7
    learner.take_label_changes(9, 50)  # four since then
    assert learner.extra_updates == 7
    learner.take_label_changes(10, 50)
    assert learner.extra_updates == 14


def test_labels_reset_nothing_where_the_key_is_not_set_or_nothing_was_learned():
    for learner in (sac(), sac(resets=ResetConfig(relabeled=0))):
        learner.take_label_changes(3, 10)
        assert not learner.relearning and learner.extra_updates == 0


def test_an_interval_that_leaves_the_policy_no_update_is_refused():
    with pytest.raises(ConfigError, match="so the policy would never learn"):
        parse(SacConfig, {"resets": {"every": 500}})


def test_only_labels_that_count_and_change_the_success_are_changes(tmp_path):
    store = Store.create(tmp_path / "store")
    store.extend([counting_episode(4), counting_episode(4)])

    def label(episode: int, cutoff: int | None, source: str) -> tuple[int, int]:
        store.ledger.append(episode, Labels.from_cutoff(steps=4, cutoff=cutoff, source=source))
        return changes.read(store.ledger)

    changes = LabelChanges("classifier")
    assert label(0, 2, "classifier") == (0, 1)
    assert label(0, 3, "classifier") == (0, 1)  # a success still
    assert label(0, None, "simulator") == (0, 1)  # an audit, which nothing is learned from
    assert label(0, None, "human") == (1, 1)
    assert label(0, 2, "classifier") == (1, 1)  # the person's label counts
    assert label(1, None, "classifier") == (1, 2)
    assert label(1, 4, "classifier") == (2, 2)  # another version of the judge
    assert LabelChanges("classifier").read(Store.open(tmp_path / "store").ledger) == (2, 2)  # in the next session
