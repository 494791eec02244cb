import os
import sys
import time
import weakref
from pathlib import Path

import numpy as np
import pytest

from conftest import counting_episode, labeled_store
from leaves import leaves
from plaudit.data.batch import BufferPool, to_tensordict, to_torch
from plaudit.data.replay import ReplaySampler
from plaudit.data.step_table import Returns, n_step_returns
from plaudit.data.store import Store
from plaudit.errors import DataError, MissingExtra, StoreDamaged
from plaudit.types import Episode, Labels
from processes import Forked
from waiting import wait_until


def all_transitions(replay: ReplaySampler, draws: int = 40) -> dict[tuple[int, int], dict[str, np.ndarray]]:
    """Everything that can be sampled, by episode and step."""
    found = {}
    for _ in range(draws):
        batch = replay.sample(64)
        arrays = leaves(batch)
        for i in range(64):
            found[int(batch.episode[i]), int(batch.step[i])] = {name: leaf[i].copy() for name, leaf in arrays.items()}
    return found


def test_a_transition_is_a_frame_its_action_and_the_frame_it_led_to(tmp_path):
    store = labeled_store(tmp_path / "s", counting_episode(5), counting_episode(3, first=100), cutoff=3)
    found = all_transitions(ReplaySampler(store, seed=0))
    assert set(found) == {(0, t) for t in range(3)} | {(1, t) for t in range(3)}
    for (episode, t), row in found.items():
        first = 100 * episode
        assert (row["images.front"] == first + t).all()
        assert (row["next_images.front"] == first + t + 1).all()
        assert row["state"][0] == 10 * (first + t)
        assert row["next_state"][0] == 10 * (first + t + 1)
        assert row["actions"] == t
        assert row["reward"] == (t + 1 >= 3)
        assert row["discount"] == (0 if t + 1 >= 3 else np.float32(0.99))


def test_episodes_that_are_held_back_come_when_as_many_newer_ones_are_labeled(tmp_path):
    store = labeled_store(tmp_path / "s", *(counting_episode(2) for _ in range(3)))
    replay = ReplaySampler(store, hold_back=(2,), seed=0)
    assert {episode for episode, _ in all_transitions(replay)} == {0}
    newest = store.append(counting_episode(2))
    assert replay.refresh() == 2
    store.ledger.append(newest, Labels.from_cutoff(steps=2, cutoff=None, source="human"))
    assert replay.refresh() == 4 and {episode for episode, _ in all_transitions(replay)} == {0, 1}


def test_whole_windows_end_where_the_time_limit_does_or_where_the_episode_terminated(tmp_path):
    def steps(cutoff: int | None, name: str) -> set[int]:
        store = labeled_store(tmp_path / name, counting_episode(6), cutoff=cutoff)
        replay = ReplaySampler(store, n_step=2, horizon=4, whole_windows=True, seed=0)
        return {step for _, step in all_transitions(replay)}

    assert steps(None, "cut") == {0, 1, 2}
    assert steps(6, "solved") == {0, 1, 2, 3, 4, 5}
    assert steps(5, "solved_before") == {0, 1, 2, 3, 4}


def test_no_transition_crosses_from_one_episode_into_the_next(tmp_path):
    store = labeled_store(tmp_path / "s", *(counting_episode(4, first=20 * i) for i in range(10)))
    for (episode, _), row in all_transitions(ReplaySampler(store, n_step=3, horizon=3, seed=0)).items():
        values = [row["state"][0] / 10, row["next_state"][0] / 10]
        assert all(20 * episode <= value <= 20 * episode + 4 for value in values)


def test_n_step_returns_are_the_formula(tmp_path):
    rng = np.random.default_rng(0)
    reward, done = rng.normal(size=30).astype("f4"), rng.random(30) < 0.15
    for n in (1, 3, 7, 40):
        total, discount, span = n_step_returns(reward, done, Returns(gamma=0.9, n_step=n))
        for t in range(30):
            value, k = 0.0, 0
            while True:
                value += 0.9**k * reward[t + k]
                k += 1
                if done[t + k - 1] or k == n or t + k == 30:
                    break
            assert total[t] == pytest.approx(value, rel=1e-4, abs=1e-5)
            assert discount[t] == pytest.approx(0 if done[t + k - 1] else 0.9**k)
            assert span[t] == k


def test_an_n_step_transition_ends_n_frames_on_or_where_the_episode_ends(tmp_path):
    store = labeled_store(tmp_path / "s", counting_episode(5))
    found = all_transitions(ReplaySampler(store, n_step=3, gamma=0.5, seed=0))
    assert {t: int(row["next_state"][0] / 10) for (_, t), row in found.items()} == {0: 3, 1: 4, 2: 5, 3: 5, 4: 5}
    assert {t: float(row["discount"]) for (_, t), row in found.items()} == {
        0: 1 / 8,
        1: 1 / 8,
        2: 1 / 8,
        3: 1 / 4,
        4: 1 / 2,
    }


def test_windows_hold_the_next_h_actions_and_say_which_are_past_the_end(tmp_path):
    store = labeled_store(tmp_path / "s", counting_episode(5))
    found = all_transitions(ReplaySampler(store, horizon=3, seed=0))
    assert found[0, 1]["actions"][:, 0].tolist() == [1, 2, 3]
    assert found[0, 1]["action_mask"].tolist() == [True, True, True]
    assert found[0, 4]["actions"][:, 0].tolist() == [4, 4, 4]
    assert found[0, 4]["action_mask"].tolist() == [True, False, False]


def test_steps_that_were_not_judged_are_not_sampled(tmp_path):
    store = Store.create(tmp_path / "s")
    store.append(counting_episode(5))
    store.append(counting_episode(5))  # never labeled
    store.ledger.append(0, Labels.from_targets([0, 0, np.nan, 0, 0, 1], source="human"))
    assert set(all_transitions(ReplaySampler(store, seed=0))) == {(0, 0), (0, 2), (0, 3), (0, 4)}
    assert set(all_transitions(ReplaySampler(store, n_step=2, seed=0))) == {(0, 2), (0, 3), (0, 4)}


def test_a_new_label_counts_at_the_next_refresh_and_an_excluded_episode_goes(tmp_path):
    store = labeled_store(tmp_path / "s", counting_episode(4), counting_episode(4))
    replay = ReplaySampler(store, seed=0)
    store.ledger.append(0, Labels.from_cutoff(steps=4, cutoff=1, source="human"))
    store.ledger.append(1, Labels.from_targets(np.full(5, np.nan), source="human", note="excluded"))
    assert {float(row["reward"]) for row in all_transitions(replay).values()} == {0}
    assert replay.refresh() == 1
    found = all_transitions(replay)
    assert {(episode, t, float(row["reward"])) for (episode, t), row in found.items()} == {(0, 0, 1)}


def test_a_label_that_comes_while_replay_looks_is_not_missed(tmp_path):
    """An episode and its label appear between the two looks of a refresh: it must count now or at the next one."""
    writer = Store.create(tmp_path / "s")
    reader = Store.open(writer.folder)
    replay = ReplaySampler(reader, seed=0)
    real = reader.refresh

    def late() -> None:
        real()
        labels = Labels.from_cutoff(steps=4, cutoff=2, source="human")
        writer.ledger.append(writer.append(counting_episode(4)), labels)

    reader.refresh = late
    replay.refresh()
    reader.refresh = real
    assert replay.refresh() == 2


def test_only_the_judges_in_charge_count(tmp_path):
    store = labeled_store(tmp_path / "s", counting_episode(4))
    store.ledger.append(0, Labels.from_cutoff(steps=4, cutoff=1, source="simulator"))
    assert {
        float(r["reward"]) for r in all_transitions(ReplaySampler(store, sources=({"human"},), seed=0)).values()
    } == {0}
    with pytest.raises(DataError, match=r"nothing to sample yet: .* has 1 episode and 2 labels"):
        ReplaySampler(store, sources=({"vlm"},)).sample(4)


def test_a_success_ends_the_episode_unless_told_otherwise(tmp_path):
    store = labeled_store(tmp_path / "s", counting_episode(4, terminated=True), cutoff=2)
    ends = {t: float(r["discount"]) for (_, t), r in all_transitions(ReplaySampler(store, gamma=0.5, seed=0)).items()}
    assert ends == {0: 0.5, 1: 0}  # what came after it is no part of the task
    stays = ReplaySampler(store, gamma=0.5, terminate_on_success=False, seed=0)
    assert {t: float(r["discount"]) for (_, t), r in all_transitions(stays).items()} == {0: 0.5, 1: 0.5, 2: 0.5, 3: 0}


@pytest.mark.parametrize("n_step", [1, 3])
def test_an_episode_that_went_on_after_its_first_success_ends_there_and_only_there(tmp_path, n_step):
    store = Store.create(tmp_path / "s")
    success = np.array([0, 0, 1, 1, 0, 1], bool)  # it was let go, and taken up again
    store.ledger.append(store.append(counting_episode(6)), Labels.from_targets(np.append(0, success), source="human"))
    found = all_transitions(ReplaySampler(store, gamma=0.5, n_step=n_step, seed=0))
    returns = {1: {0: 0, 1: 0, 2: 1}, 3: {0: 0.25, 1: 0.5, 2: 1}}
    assert {t: float(r["reward"]) for (_, t), r in found.items()} == returns[n_step]
    assert {t for (_, t), r in found.items() if r["discount"] == 0} == ({2} if n_step == 1 else {0, 1, 2})
    store.ledger.append(0, Labels.from_cutoff(steps=6, cutoff=5, source="human"))  # somebody looked again
    replay = ReplaySampler(store, n_step=n_step, seed=0)
    assert {t for _, t in all_transitions(replay)} == set(range(5))
    store.ledger.append(0, Labels.from_cutoff(steps=6, cutoff=None, source="human"))
    assert replay.refresh() == 6


@pytest.mark.parametrize(("padded", "cutoff", "steps"), [("first", None, {1, 2, 3}), ("last", None, {0, 1, 2})])
def test_no_transition_goes_through_an_observation_that_is_only_a_copy(tmp_path, padded, cutoff, steps):
    store = labeled_store(tmp_path / "s", counting_episode(4, padded=padded), cutoff=cutoff)
    assert {t for _, t in all_transitions(ReplaySampler(store, seed=0))} == steps


def test_a_last_step_that_ends_the_episode_needs_no_next_observation(tmp_path):
    store = labeled_store(tmp_path / "s", counting_episode(4, padded="last"), cutoff=4)
    assert {t for _, t in all_transitions(ReplaySampler(store, seed=0))} == {0, 1, 2, 3}


def test_sampling_is_uniform_over_steps(tmp_path):
    store = labeled_store(tmp_path / "s", counting_episode(2), counting_episode(8))
    batch = ReplaySampler(store, seed=0).sample(20_000)
    counts = np.bincount(batch.episode * 8 + batch.step, minlength=16)[[0, 1, *range(8, 16)]]
    assert counts.min() > 1800 and counts.max() < 2200


def test_a_mix_takes_its_ratio_and_either_part_fills_in_for_an_empty_one(tmp_path):
    demos = labeled_store(tmp_path / "demos", counting_episode(4))
    online = labeled_store(tmp_path / "online")
    replay = ReplaySampler.mix(demos, online, ratio=0.25, seed=0)
    assert set(replay.sample(100).part.tolist()) == {0}
    online.ledger.append(
        online.append(counting_episode(4, first=50)), Labels.from_cutoff(steps=4, cutoff=None, source="human")
    )
    replay.refresh()
    batch = replay.sample(100)
    assert np.bincount(batch.part).tolist() == [25, 75]
    assert 2 <= (batch.part[:25] == 0).sum() <= 15  # shuffled: a batch may be split
    assert (batch.state[batch.part == 0, 0] < 500).all() and (batch.state[batch.part == 1, 0] >= 500).all()


def test_a_mix_without_a_share_of_demonstrations_can_pretrain_on_them(tmp_path):
    demos = labeled_store(tmp_path / "demos", counting_episode(4))
    online = labeled_store(tmp_path / "online")
    replay = ReplaySampler.mix(demos, online, ratio=0.0, seed=0)
    assert set(replay.sample(20).part.tolist()) == {0}
    online.ledger.append(online.append(counting_episode(4)), Labels.from_cutoff(steps=4, cutoff=None, source="human"))
    replay.refresh()
    assert set(replay.sample(20).part.tolist()) == {1}


def test_the_same_seed_draws_the_same_batches_and_a_saved_generator_goes_on(tmp_path):
    store = labeled_store(tmp_path / "s", *(counting_episode(9, first=10 * i) for i in range(5)))
    one, other = ReplaySampler(store, seed=3), ReplaySampler(store, seed=3)
    assert np.array_equal(one.sample(50).state, other.sample(50).state)
    saved = one.rng.bit_generator.state
    expected = one.sample(50).state
    resumed = ReplaySampler(store, seed=99)
    resumed.rng.bit_generator.state = saved
    assert np.array_equal(resumed.sample(50).state, expected)


def test_batches_over_several_segments_and_after_eviction(tmp_path):
    store = Store.create(tmp_path / "s", capacity_episodes=40)
    replay: ReplaySampler | None = None
    for i in range(100):
        episode = counting_episode(3, first=i)
        store.ledger.append(store.append(episode), Labels.from_cutoff(steps=3, cutoff=None, source="human"))
        replay = replay or ReplaySampler(store, seed=0)
    assert len(list((store.folder / "segments").iterdir())) > 5
    stale = replay.sample(64)  # knows only of episode 0, which is gone from the store, and still reads it
    assert set(stale.episode.tolist()) == {0}
    replay.refresh()
    batch = replay.sample(512)
    assert set(batch.episode.tolist()) <= set(range(60, 100)) and len(set(batch.episode.tolist())) > 20
    assert (batch.images["front"][:, 0, 0, 0] == batch.episode + batch.step).all()


def sample_to_the_end(folder: Path) -> None:
    """In a child process."""
    replay, deadline = ReplaySampler(Store.open(folder), seed=0), time.monotonic() + 300
    print("ready", flush=True)
    newest = -1
    while newest < 99 and time.monotonic() < deadline:
        time.sleep(0.001)
        if replay.refresh():
            batch = replay.sample(32)
            assert (batch.images["front"][:, 0, 0, 0] == (batch.episode + batch.step) % 251).all()
            assert (batch.next_images["front"][:, 0, 0, 0] == (batch.episode + batch.step + 1) % 251).all()
            newest = max(newest, *batch.episode.tolist())
    print("saw", newest)


def test_another_process_samples_while_the_writer_evicts(tmp_path):
    store = Store.create(tmp_path / "s", capacity_episodes=6)
    with Forked(sample_to_the_end, store.folder) as sampler:
        assert sampler.readline() == "ready\n"
        for i in range(100):
            frames = ((i + np.arange(4)) % 251).astype(np.uint8)[:, None, None, None]
            episode = Episode.of(frames={"front": np.tile(frames, (1, 4, 4, 3))}, actions=np.zeros((3, 1)))
            store.ledger.append(store.append(episode), Labels.from_cutoff(steps=3, cutoff=None, source="human"))
        assert sampler.read() == "saw 99\n"


def test_a_long_run_of_evictions_does_not_grow_the_table(tmp_path):
    store = Store.create(tmp_path / "s", capacity_episodes=10)
    replay = ReplaySampler(store, seed=0)
    for i in range(300):
        labels = Labels.from_cutoff(steps=3, cutoff=None, source="human")
        store.ledger.append(store.append(counting_episode(3, first=i % 200)), labels)
        replay.refresh()
    table = replay._tables[0]
    assert len(replay) == 30
    assert table._used <= 60
    assert len(table._maps) <= 17


def test_only_the_cameras_asked_for_are_gathered(tmp_path):
    frames = {name: np.zeros((3, 4, 4, 3), np.uint8) for name in ("front", "wrist")}
    store = labeled_store(tmp_path / "s", Episode.of(frames=frames, actions=np.zeros((2, 1))))
    assert list(ReplaySampler(store, cameras=["wrist"]).sample(2).images) == ["wrist"]
    assert list(ReplaySampler(store, cameras=()).sample(2).images) == []
    with pytest.raises(DataError, match="has no camera 'top'; it has: front, wrist"):
        ReplaySampler(store, cameras=["top"])


def test_episodes_of_two_sizes_do_not_fit_one_batch_and_are_named(tmp_path):
    store = labeled_store(tmp_path / "s", counting_episode(2), counting_episode(2, size=(4, 4)))
    with pytest.raises(DataError, match=r"episode 1 has front 4x4x3.* where others have front 8x10x3"):
        ReplaySampler(store)
    assert ReplaySampler(store, cameras=()).sample(4).state.shape == (4, 2)


def test_a_background_thread_fills_batches_and_ends_with_its_generator(tmp_path):
    store = labeled_store(tmp_path / "s", counting_episode(4))
    batches = ReplaySampler(store, seed=0).batches(8, prefetch=2, refresh_seconds=0)
    assert len(next(batches).reward) == 8
    store.ledger.append(
        store.append(counting_episode(4, first=90)), Labels.from_cutoff(steps=4, cutoff=None, source="human")
    )
    wait_until(lambda: (next(batches).state[:, 0] >= 900).any(), what="for the new episode")
    batches.close()


def test_what_goes_wrong_in_the_background_is_raised_in_the_front(tmp_path):
    with pytest.raises(DataError, match="nothing to sample yet"):
        next(ReplaySampler(Store.create(tmp_path / "s")).batches(8))


def test_torch_batches_share_the_memory_of_numpy_ones(tmp_path):
    torch = pytest.importorskip("torch")
    batch = ReplaySampler(labeled_store(tmp_path / "s", counting_episode(4)), seed=0).sample(8)
    tensors = to_torch(batch)
    assert tensors.images["front"].dtype == torch.uint8 and tensors.reward.dtype == torch.float32
    batch.state[0, 0] = 1234
    assert tensors.state[0, 0] == 1234
    assert tensors.images["front"].permute(0, 3, 1, 2).is_contiguous(memory_format=torch.channels_last)


def test_a_tensordict_has_torchrls_keys(tmp_path):
    pytest.importorskip("tensordict")
    batch = ReplaySampler(labeled_store(tmp_path / "s", counting_episode(4), cutoff=2), seed=0).sample(16)
    found = to_tensordict(batch)
    assert found.batch_size == (16,)
    assert found["next", "reward"].shape == (16, 1)
    assert found["next", "done"][:, 0].tolist() == (batch.discount == 0).tolist()
    assert found["observation", "images", "front"].shape == (16, 8, 10, 3)


def test_without_tensordict_the_message_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensordict", None)
    batch = ReplaySampler(labeled_store(tmp_path / "s", counting_episode(4))).sample(2)
    with pytest.raises(MissingExtra, match=r"pip install 'plaudit\[tensordict\]'"):
        to_tensordict(batch)


def test_memory_of_a_batch_is_used_again_only_when_nobody_looks_at_it():
    pool = BufferPool()
    one = pool.empty((4, 4), np.float32)
    address = one.__array_interface__["data"][0]
    view = one[1:]
    gone = weakref.ref(one)
    del one
    assert gone() is None
    other = pool.empty((4, 4), np.float32)
    assert other.__array_interface__["data"][0] != address  # a view still lives
    del view
    third = pool.empty((4, 4), np.float32)
    assert third.__array_interface__["data"][0] == address


def test_a_batch_that_is_kept_is_never_overwritten(tmp_path):
    store = labeled_store(tmp_path / "s", *(counting_episode(9, first=10 * i) for i in range(9)))
    replay = ReplaySampler(store, seed=0)
    kept = [replay.sample(16) for _ in range(20)]
    copies = [batch.state.copy() for batch in kept]
    for _ in range(50):
        replay.sample(16)
    assert all(np.array_equal(batch.state, copy) for batch, copy in zip(kept, copies))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"n_step": 0}, "at least 1"),
        ({"gamma": 1.5}, r"within \[0, 1\]"),
        ({"shares": (0.5, 0.6)}, "shares must be one a store and sum to 1"),
        ({"sources": {"human"}}, "sources must be one set of names a store"),
    ],
)
def test_settings_that_make_no_sense_are_refused(tmp_path, options, sentence):
    with pytest.raises(DataError, match=sentence):
        ReplaySampler(Store.create(tmp_path / "s"), **options)


def test_labels_of_another_length_are_named(tmp_path):
    store = Store.create(tmp_path / "s")
    store.append(counting_episode(4))
    store.ledger.append(0, Labels.from_cutoff(steps=3, cutoff=None, source="human"))
    with pytest.raises(DataError, match="labels of episode 0 cover 3 steps, it has 4; label it again"):
        ReplaySampler(store)


@pytest.mark.parametrize("name", ["steps.bin", "camera.front.bin"])
def test_a_file_that_is_cut_while_it_is_sampled_is_an_error_and_no_signal(tmp_path, name):
    store = labeled_store(tmp_path / "s", *(counting_episode(40, first=i, size=(32, 32)) for i in range(4)), cutoff=2)
    reader = Store.open(store.folder)
    replay = ReplaySampler(reader, seed=0)
    replay.sample(64)
    os.truncate(store.folder / "segments/000000" / name, 0)
    with pytest.raises(StoreDamaged, match=rf"{name} has 0 complete rows"):
        replay.sample(64)
    with pytest.raises(StoreDamaged, match=r"is missing or cut short|has 0 complete rows"):
        reader.episode(0)
