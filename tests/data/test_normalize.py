import json
import pickle

import numpy as np
import pytest

from conftest import counting_episode
from plaudit.data.normalize import Normalizer, Stats
from plaudit.errors import BadFile, DataError, UnsafeFile


def stats(mean: list[float], std: list[float]) -> Stats:
    return Stats(np.array(mean, "f4"), np.array(std, "f4"))


def test_statistics_of_a_store_are_those_of_all_its_rows(store):
    rng = np.random.default_rng(0)
    episodes = [counting_episode(steps) for steps in (5, 9, 30)]
    for episode in episodes:
        object.__setattr__(episode, "state", rng.normal(1000, 0.01, episode.state.shape).astype("f4"))
        store.append(episode)
    found = Normalizer.from_store(store)
    rows = np.concatenate([e.state for e in episodes]).astype(np.float64)
    assert found.stats["observation.state"].mean == pytest.approx(rows.mean(axis=0), rel=1e-6)
    assert found.stats["observation.state"].std == pytest.approx(rows.std(axis=0), rel=1e-3)
    assert found.stats["action"].mean == pytest.approx(np.concatenate([e.actions for e in episodes]).mean(axis=0))


def test_a_state_that_never_changed_is_moved_and_an_action_that_never_did_stays(store):
    episode = counting_episode(6)
    state, actions = np.full_like(episode.state, 1234.5), np.full_like(episode.actions, 0.25)
    object.__setattr__(episode, "state", state)
    object.__setattr__(episode, "actions", actions)
    store.append(episode)
    for found in (Normalizer.from_store(store), Normalizer.of(state, actions)):
        assert found.normalize_state(state[0] + 2) == pytest.approx(2, abs=1e-2)
        assert found.denormalize_action(np.full(actions.shape[1], 5.0)) == pytest.approx(0.25)


def test_a_repeated_observation_counts_once(store):
    store.append(counting_episode(2, padded="last"))
    assert Normalizer.from_store(store).stats["observation.state"].mean[0] == 5  # of 0 and 10


def test_the_formulas():
    normalizer = Normalizer({"observation.state": stats([1], [2]), "action": stats([3], [4])}, eps=0.5)
    assert normalizer.normalize_state(np.float32([6])) == pytest.approx([(6 - 1) / (2 + 0.5)])
    assert normalizer.normalize_image(np.array([0, 51, 255], np.uint8)) == pytest.approx([0, 0.2, 1])
    action = normalizer.normalize_action(np.float32([7]))
    assert normalizer.denormalize_action(action) == pytest.approx([7])
    assert action.dtype == np.float32


def test_a_saved_file_gives_the_same_normaliser(tmp_path, store):
    store.append(counting_episode(7))
    one = Normalizer.from_store(store)
    one.save(tmp_path / "stats.json")
    other = Normalizer.load(tmp_path / "stats.json")
    x = np.random.default_rng(0).normal(size=(5, 2)).astype("f4")
    assert np.array_equal(one.normalize_state(x), other.normalize_state(x))


@pytest.mark.parametrize(
    "tree",
    [
        {
            "observation.state": {"mean": np.arange(3.0), "std": np.ones(3)},
            "action": {"mean": np.zeros(2), "std": np.ones(2)},
        },
        {
            "qpos_mean": np.arange(3.0),
            "qpos_std": np.ones(3),
            "action_mean": np.zeros(2),
            "action_std": np.ones(2),
            "example_qpos": np.zeros(9),
        },
    ],
)
def test_pickled_statistics_of_other_stacks_are_read(tmp_path, tree):
    (tmp_path / "dataset_stats.pkl").write_bytes(pickle.dumps(tree))
    found = Normalizer.load(tmp_path / "dataset_stats.pkl")
    assert found.stats["observation.state"].mean.tolist() == [0, 1, 2]
    assert found.stats["action"].std.tolist() == [1, 1]


def test_pickled_statistics_that_would_run_code_are_refused(tmp_path):
    (tmp_path / "stats.pkl").write_bytes(b"cos\nsystem\n(S'touch pwned'\ntR.")
    with pytest.raises(UnsafeFile, match=r"os.system, which could run code; nothing was run"):
        Normalizer.load(tmp_path / "stats.pkl")


def test_wrong_sizes_and_missing_statistics_are_named(tmp_path):
    normalizer = Normalizer({"observation.state": stats([1, 2], [1, 1])})
    with pytest.raises(DataError, match=r"'observation.state' has \(3,\) values where its statistics have \(2,\)"):
        normalizer.normalize_state(np.zeros(3))
    with pytest.raises(DataError, match="no statistics of 'action'"):
        normalizer.denormalize_action(np.zeros(2))
    with pytest.raises(BadFile, match="no such statistics file"):
        Normalizer.load(tmp_path / "nothing.json")
    (tmp_path / "bad.json").write_text("[]")
    with pytest.raises(BadFile, match="not a statistics file"):
        Normalizer.load(tmp_path / "bad.json")


def test_statistics_of_arrays_are_over_all_but_the_last_axis():
    normalizer = Normalizer.of(np.float32([[0, 4], [2, 4]]), np.float32([[[1], [3]], [[5], [7]]]))
    assert normalizer.normalize_state(np.float32([2, 4])).tolist() == [1, 0]
    assert normalizer.denormalize_action(np.float32([0])).tolist() == [4]


def test_the_identity_changes_no_number():
    numbers = np.random.default_rng(0).normal(size=(100, 3)).astype(np.float32) * 1e3
    identity = Normalizer.identity(state_dim=3, action_dim=3)
    assert np.array_equal(identity.normalize_state(numbers), numbers)
    assert np.array_equal(identity.denormalize_action(numbers), numbers)


@pytest.mark.parametrize("mean", [[10**400], "x" * 100_000], ids=["beyond a float", "a long text"])
def test_statistics_that_are_no_numbers_are_refused_in_one_sentence(mean):
    tree = {"stats": {"action": {"mean": mean, "std": [1.0]}}, "eps": 1e-8, "meta": {}}
    with pytest.raises(DataError, match="these are not statistics") as refused:
        Normalizer.load(tree)
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize("eps", [float("nan"), "x", None, [], -1e-8, 0, 10**400])
def test_an_eps_that_is_no_small_number_is_refused(tmp_path, eps):
    file = tmp_path / "normalizer.json"
    Normalizer.identity(2, 1).save(file)
    file.write_text(json.dumps({**json.loads(file.read_text()), "eps": eps}))
    with pytest.raises(BadFile, match=r"eps is .*; write a number"):
        Normalizer.load(file)
