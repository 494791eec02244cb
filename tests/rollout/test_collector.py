import numpy as np
import pytest
import torch

from conftest import counting_episode, same_episode
from plaudit.data.formats import open_dataset
from plaudit.data.store import Store
from plaudit.data.transfer import export_dataset
from plaudit.errors import DataError
from plaudit.rollout.collector import EpisodeQuota, EpisodeTargets, RewardDataCollector
from plaudit.types import Labels


def output(numbers, success, dones=(0, 0), actions=None, size=4, **more):
    """Environment n shows an image full of numbers[n], and its state is ten times that."""
    numbers = np.asarray(numbers)
    images = np.broadcast_to(numbers.astype(np.uint8)[:, None, None, None], (len(numbers), size, size, 3))
    return {
        "obs": {"images": {"front": images}, "states": 10.0 * numbers[:, None]},
        "success_frame": np.array(success, np.float32),
        "dones": np.array(dones, bool),
        **({} if actions is None else {"actions": np.asarray(actions, np.float32)[:, None]}),
        **more,
    }


def shown(store: Store, episode_id: int) -> list[int]:
    return store.episode(episode_id).frames["front"][:, 0, 0, 0].tolist()


def test_each_environment_has_a_buffer_of_its_own(store: Store):
    collector = RewardDataCollector(store, 2, task="count", fps=10)
    collector.begin(output([0, 100], [0, 0])["obs"])
    assert collector.add_env_output(output([1, 101], [0, 0], actions=[1, 11])) == []
    assert collector.add_env_output(output([2, 102], [1, 0], dones=[1, 0], actions=[2, 12])) == [0]
    assert collector.add_env_output(output([50, 103], [0, 0], dones=[0, 1], actions=[3, 13])) == [1]
    assert shown(store, 0) == [0, 1, 2] and shown(store, 1) == [100, 101, 102, 103]
    first = store.episode(0)
    assert first.actions[:, 0].tolist() == [1, 2] and first.state[:, 0].tolist() == [0, 10, 20]
    assert (first.terminated, store.episode(1).terminated) == (True, False)
    labels = store.ledger.labels(0)
    assert (labels.judge.source, labels.targets.tolist()) == ("simulator", [0, 0, 1])
    assert (first.task, first.fps, first.success.tolist()) == ("count", 10, [False, True])


@pytest.mark.parametrize(
    ("success_frame", "once", "positive", "frames"),
    [
        ([0, 0, 0], 0, False, [0, 0, 0]),
        ([0, 0.5, 0], 0, True, [0, 1, 0]),
        ([0, 0.49, 0], 0, False, [0, 0, 0]),
        ([0, 0, 0], 1, True, [0, 0, 1]),  # nobody says when, so the last frame it is
        ([0, 1, 0], 1, True, [0, 1, 0]),
        ([1, 0, 0], 0, True, [1, 0, 0]),
    ],
)
def test_an_episode_is_positive_by_success_once_or_by_any_frame(store: Store, success_frame, once, positive, frames):
    collector = RewardDataCollector(store, 1)
    for i, success in enumerate(success_frame):
        collector.add_env_output(output([i], [success], dones=[i == 2]), {"success_once": [once]})
    labels = store.ledger.labels(0)
    assert labels.success_once == positive and labels.targets.tolist() == frames
    assert ("success_once" in labels.note) == (once == 1 and max(success_frame) < 0.5)


def test_episodes_beyond_a_target_are_surplus_and_both_targets_make_it_done(store: Store):
    collector = RewardDataCollector(store, 2, targets=EpisodeTargets(success=2, failure=1))
    for _ in range(2):
        collector.add_env_output(output([0, 0], [0, 0]))
        collector.add_env_output(output([1, 1], [1, 0], dones=[1, 1]))
    assert dict(collector.quota.kept) == {"success": 2, "failure": 1} and len(store) == 3
    assert dict(collector.quota.surplus) == {"failure": 1}
    assert collector.done and collector.add_env_output(output([0, 0], [0, 0], dones=[1, 1], actions=[1, 1])) == []


def test_what_a_store_holds_already_counts(store: Store):
    episodes = [counting_episode(3, first=i) for i in range(3)]
    labels = [Labels.from_cutoff(steps=3, cutoff=cutoff, source="simulator") for cutoff in (2, None, 1)]
    EpisodeQuota(store, EpisodeTargets()).extend(zip(episodes, labels, strict=True))
    quota = EpisodeQuota(store, EpisodeTargets(success=3, failure=1))
    assert (quota.missing("success"), quota.missing("failure")) == (1, 0)
    assert quota.add(episodes[1], labels[1]) is None and quota.add(episodes[0], labels[0]) == 3 and quota.done


def test_no_target_means_as_many_as_come(store: Store):
    quota = EpisodeQuota(store, EpisodeTargets(success=1))
    fails = Labels.from_cutoff(steps=4, cutoff=None, source="simulator")
    assert len(quota.extend([(counting_episode(), fails)] * 5)) == 5 and not quota.done


def test_the_last_step_saves_every_environment_that_is_still_going(store: Store):
    collector = RewardDataCollector(store, 2)
    collector.add_env_output(output([0, 10], [0, 0]))
    assert collector.add_env_output(output([1, 11], [0, 0]), is_last_step=True) == [0, 1]
    assert shown(store, 1) == [10, 11] and store.episode(0).actions.shape == (1, 0)
    assert not store.episode(0).terminated


def test_an_episode_that_begins_with_an_action_is_filled_up_and_says_so(store: Store):
    collector = RewardDataCollector(store, 1)
    collector.add_env_output(output([1], [0], dones=[0], actions=[1]))
    collector.add_env_output(output([2], [1], dones=[1], actions=[2]))
    episode = store.episode(0)
    assert shown(store, 0) == [1, 1, 2] and episode.padded == "first" and episode.actions[:, 0].tolist() == [1, 2]
    assert not store.ledger.labels(0).labeled[0]


def test_where_the_next_episode_shows_already_the_last_observation_is_taken_from_final_obs(store: Store):
    collector = RewardDataCollector(store, 2)
    collector.begin(output([0, 100], [0, 0])["obs"])
    last = output([1, 77], [0, 0])["obs"]
    collector.add_env_output(output([50, 101], [1, 0], dones=[1, 0], actions=[1, 1], final_obs=last))
    collector.add_env_output(output([51, 102], [0, 0], actions=[2, 2]), is_last_step=True)
    assert [shown(store, i) for i in store.ids] == [[0, 1], [50, 51], [100, 101, 102]]


def test_a_trajectory_is_saved_by_hand_and_a_single_frame_is_none(store: Store):
    collector = RewardDataCollector(store, 2)
    collector.add_env_output(output([0, 10], [0, 0]))
    assert collector.save_trajectory(0) is None
    collector.add_env_output(output([1, 11], [0, 1]))
    assert collector.save_trajectory(1) == 0 and shown(store, 0) == [10, 11]
    assert collector.flush() == [] and len(store) == 1


def test_tensors_floats_and_channels_first_make_the_same_frames(store: Store):
    collector = RewardDataCollector(store, 2, image_keys=["front"])
    plain = output([3, 200], [0, 1], dones=[1, 1], actions=[1, 2])
    collector.add_env_output(plain)
    images = torch.tensor(plain["obs"]["images"]["front"]).permute(0, 3, 1, 2).float() / 255
    obs = {"images": {"front": images, "wrist": images}, "states": torch.tensor(plain["obs"]["states"])}
    tensors = {k: torch.tensor(plain[k])[:, None] for k in ("success_frame", "dones")}
    collector.add_env_output({**plain, "obs": obs, **tensors})
    assert all(same_episode(store.episode(i), store.episode(i + 2)) for i in (0, 1))


def test_frames_are_copies_of_what_was_shown(store: Store):
    collector, drawing = RewardDataCollector(store, 1), np.zeros((1, 4, 4, 3), np.uint8)
    for i in range(3):  # an environment that draws every step into the same memory
        drawing[:] = i
        step = {"obs": {"images": {"front": drawing}}, "success_frame": [0], "dones": [i == 2]}
        collector.add_env_output(step)
    assert shown(store, 0) == [0, 1, 2]


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"obs": {}}, "obs has no 'images'; it has: nothing"),
        ({"obs": {"images": {"side": np.zeros((2, 4, 4, 3), np.uint8)}}}, "'front' is not in the output; it has: side"),
        (output([0, 0, 0], [0, 0]), "camera 'front' must have a row for each of 2 environments, got [3, 4, 4, 3]"),
        (output([0, 0], [0, 0], size=8), "changed in the middle of an episode from 4x4 to 8x8"),
        ({"obs": {"images": {"front": np.zeros((2, 4, 4))}}}, "camera 'front' must be"),
        ({"obs": {"images": {"front": np.full((2, 4, 4, 3), 200.0)}}}, "has floats from 200 to 200"),
        ({"success_frame": [0, 0, 0]}, "success_frame must have a row for each of 2 environments, got [3]"),
        ({"success_frame": [0, 2]}, "success_frame must lie within [0, 1], got [0, 2]"),
        ({"dones": np.zeros((2, 3))}, "dones must be [2], got [2, 3]"),
        ({"actions": [[1.0], [1.0]]}, "either every step of an episode has actions, or none"),
    ],
)
def test_what_does_not_fit_is_answered_in_a_sentence(store: Store, wrong, sentence):
    collector = RewardDataCollector(store, 2)
    for _ in range(2):
        collector.add_env_output(output([0, 0], [0, 0]))
    with pytest.raises(DataError) as caught:
        collector.add_env_output({**output([0, 0], [0, 0]), **wrong})
    assert sentence in str(caught.value)


def test_what_is_missing_is_named(store: Store):
    with pytest.raises(DataError, match="env_output has no 'success_frame'; it has: obs, dones"):
        RewardDataCollector(store, 1).add_env_output({"obs": {}, "dones": [0]})
    with pytest.raises(DataError, match="the target of failure is -1"):
        EpisodeTargets(1, -1)


@pytest.mark.parametrize(("layout", "folders"), [("npy", ("positive", "negative")), ("pkl", ("success", "failure"))])
def test_both_old_layouts_of_a_collected_store_read_back(store: Store, tmp_path, layout, folders):
    collector = RewardDataCollector(store, 2)
    collector.begin(output([0, 100], [0, 0])["obs"])
    collector.add_env_output(output([1, 101], [0, 0], actions=[1, 11]))
    collector.add_env_output(output([2, 102], [1, 0], dones=[1, 1], actions=[2, 12]))
    assert export_dataset(store, tmp_path / "out", layout) == []
    assert [len(list((tmp_path / "out" / folder).iterdir())) for folder in folders] == [1, 1]
    (good, said), (bad, unsaid) = (source.load() for source in open_dataset(tmp_path / "out").sources)
    assert (said.success_once, unsaid.success_once) == (True, False)
    for episode, numbers in ((good, [0, 1, 2]), (bad, [100, 101, 102])):
        seen = next(iter(episode.frames.values()))[episode.observed][:, 0, 0, 0].tolist()
        assert seen == numbers[-len(seen) :]
