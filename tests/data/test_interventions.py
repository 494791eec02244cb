import numpy as np
import pytest

from conftest import counting_episode, labeled_store
from plaudit.data.demonstrations import InterventionConfig, sampling_weights
from plaudit.data.replay import ReplaySampler
from plaudit.data.store import Store
from plaudit.errors import DataError
from plaudit.types import Labels

MODES = [0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 0, 0]  # a person acts in steps 2 to 4 and 8 and 9
BY_PERSON = [2, 3, 4, 8, 9]


def helped_store(folder, count: int = 2, first: int = 100) -> Store:
    episodes = (
        counting_episode(len(MODES), first=first + 20 * i, control_mode=np.array(MODES, np.uint8)) for i in range(count)
    )
    return labeled_store(folder, *episodes)


def sampler(tmp_path, share=None, ratio: float = 0.5, demos: int = 1, count: int = 2, **options) -> ReplaySampler:
    names = ("share", "half_life", "drop_before")
    config = InterventionConfig(share=share, **{name: options.pop(name) for name in names if name in options})
    stores = [labeled_store(tmp_path / "demos", *(counting_episode(10) for _ in range(demos)))] if demos else []
    stores.append(helped_store(tmp_path / "own", count))
    return ReplaySampler(*stores, shares=(ratio, 1 - ratio), interventions=config, seed=0, **options)


def is_own(batch) -> np.ndarray:
    return batch.state[:, 0] >= 1000


def test_interventions_join_the_demonstrations_and_stay_experience(tmp_path):
    batch = sampler(tmp_path).sample(4000)
    shown, own = batch.part == 0, is_own(batch)
    assert shown.sum() == 2000
    assert set(batch.step[shown & own].tolist()) == set(BY_PERSON)
    assert abs((shown & own).sum() / shown.sum() - 0.5) < 0.01  # 10 steps of demonstrations, 10 by a person
    assert own[~shown].all() and set(batch.step[~shown].tolist()) == set(range(len(MODES)))


@pytest.mark.parametrize(("share", "expected"), [(0.0, 0), (0.2, 200), (1.0, 1000)])
def test_their_share_of_the_demonstrations_can_be_set(tmp_path, share, expected):
    batch = sampler(tmp_path, share).sample(2000)
    assert ((batch.part == 0) & is_own(batch)).sum() == expected
    assert (batch.part == 0).sum() == 1000


def test_without_demonstrations_they_are_the_only_ones(tmp_path):
    batch = sampler(tmp_path, share=0.1, ratio=0.25, demos=0).sample(400)
    assert set(batch.step[batch.part == 0].tolist()) == set(BY_PERSON)
    assert np.bincount(batch.part).tolist() == [100, 300]


def test_a_run_without_help_samples_as_before(tmp_path):
    stores = (
        labeled_store(tmp_path / "demos", counting_episode(10)),
        labeled_store(tmp_path / "own", counting_episode(5, 50)),
    )
    batch = ReplaySampler(*stores, shares=(0.5, 0.5), interventions=InterventionConfig(), seed=0).sample(200)
    assert np.bincount(batch.part).tolist() == [100, 100]
    assert (batch.state[batch.part == 1, 0] >= 500).all() and (batch.state[batch.part == 0, 0] < 500).all()


@pytest.mark.parametrize("n_step", [1, 3])
def test_each_intervention_has_its_own_images_and_goes_on_where_the_policy_took_over(tmp_path, n_step):
    """The two bugs of HIL-SERL's buffers: the image before a later intervention, and the state after one."""
    batch = sampler(tmp_path, share=1.0, n_step=n_step).sample(500)
    rows = np.flatnonzero(batch.part == 0)
    for i in rows:
        first = 100 + 20 * batch.episode[i]
        after = min(batch.step[i] + n_step, len(MODES))
        assert (batch.images["front"][i] == first + batch.step[i]).all()
        assert (batch.next_images["front"][i] == first + after).all()
        assert batch.state[i, 0] == 10 * (first + batch.step[i]) and batch.next_state[i, 0] == 10 * (first + after)
        assert batch.actions[i] == batch.step[i]
    assert {2, 8, 4, 9} <= set(batch.step[rows].tolist())


def test_of_a_window_only_the_persons_actions_are_cloned(tmp_path):
    batch = sampler(tmp_path, share=1.0, horizon=4).sample(500)
    lengths = {2: 3, 3: 2, 4: 1, 8: 2, 9: 1}
    for i in np.flatnonzero(batch.part == 0):
        assert batch.action_mask[i].sum() == lengths[int(batch.step[i])]
    whole = (batch.part == 1) & (batch.step == 3)
    assert (batch.action_mask[whole].sum(axis=1) == 4).all()  # as experience, all four were executed


def test_steps_before_a_takeover_can_be_left_out(tmp_path):
    batch = sampler(tmp_path, drop_before=2).sample(2000)
    assert set(batch.step[batch.part == 1].tolist()) == set(range(len(MODES))) - {0, 1, 6, 7}
    assert set(batch.step[(batch.part == 0) & is_own(batch)].tolist()) == set(BY_PERSON)


def test_old_interventions_can_fade(tmp_path):
    batch = sampler(tmp_path, share=1.0, half_life=1, count=4).sample(30_000)
    counts = np.bincount(batch.episode[batch.part == 0]) / (batch.part == 0).sum()
    assert np.allclose(counts, np.array([1, 2, 4, 8]) / 15, atol=0.02)


def test_interventions_before_very_many_episodes_without_help_can_still_be_sampled():
    old = np.array([3, 3, 4])  # by the age of the newest episode, 2000, all weights would be 0
    assert sampling_weights(old, 1).tolist() == [0.25, 0.25, 0.5]


@pytest.mark.parametrize("ratio", [0.5, 1.0])
def test_without_a_share_there_is_no_second_use_even_where_nothing_else_is_shown(tmp_path, ratio):
    batch = sampler(tmp_path, share=0.0, ratio=ratio, demos=0).sample(100)
    assert (batch.part == 1).all()


def test_an_intervention_without_a_label_or_excluded_is_not_sampled(tmp_path):
    own = helped_store(tmp_path / "own", count=2)
    own.append(counting_episode(len(MODES), 180, control_mode=np.array(MODES, np.uint8)))
    own.ledger.append(0, Labels.from_targets(np.full(len(MODES) + 1, np.nan), "human"))
    replay = ReplaySampler(own, shares=(0.5, 0.5), interventions=InterventionConfig(), seed=0)
    assert set(replay.sample(500).episode.tolist()) == {1}


def test_an_intervention_is_paid_by_its_label_and_not_by_the_simulators_success(tmp_path):
    truth = {"success": np.ones(len(MODES), bool)}
    episode = counting_episode(len(MODES), 100, control_mode=np.array(MODES, np.uint8), privileged=truth)
    own = labeled_store(tmp_path / "own", episode)  # the judge saw no success
    batch = ReplaySampler(own, shares=(0.5, 0.5), interventions=InterventionConfig(), seed=0).sample(200)
    assert (batch.reward == 0).all() and (batch.part == 0).sum() == 100


def test_more_than_one_store_of_demonstrations_is_refused(tmp_path):
    stores = [labeled_store(tmp_path / str(i), counting_episode(3)) for i in range(3)]
    with pytest.raises(DataError, match="one store of demonstrations at most, got 2"):
        ReplaySampler(*stores, shares=(0.5, 0.5), interventions=InterventionConfig())


def test_of_recorded_corrections_only_the_persons_steps_are_demonstrations(tmp_path):
    """A store of demonstrations with an episode of an expert, and one in which a person corrected a policy."""
    modes = np.array(MODES, np.uint8)
    shown = labeled_store(tmp_path / "shown", counting_episode(10), counting_episode(12, 20, control_mode=modes))
    own = labeled_store(tmp_path / "own", counting_episode(5, 100))
    mixed = ReplaySampler(shown, own, shares=(0.5, 0.5), interventions=InterventionConfig(), horizon=4, seed=0)
    for replay in (mixed, ReplaySampler(shown, demonstrations=True, horizon=4, seed=0)):
        batch = replay.sample(800)
        of_part = batch.part == 0
        corrected, expert = of_part & (batch.episode == 1) & ~is_own(batch), of_part & (batch.episode == 0)
        assert set(batch.step[corrected].tolist()) == set(BY_PERSON)
        assert set(batch.step[expert & ~is_own(batch)].tolist()) == set(range(10))
        assert (batch.action_mask[corrected & (batch.step == 9)].sum(axis=1) == 1).all()
        assert (batch.action_mask[expert & (batch.step == 3)].sum(axis=1) == 4).all()
