"""The replay service: what it is given once is there once, whatever happened between."""

import time
from dataclasses import replace

import numpy as np
import pytest

from conftest import counting_episode
from leaves import leaves
from plaudit.data.normalize import ACTION, STATE, Normalizer, Stats
from plaudit.data.store import Store
from plaudit.rule import DecisionRule
from plaudit.training.replay_buffer import (
    ATTEMPTS,
    EpisodeRef,
    RemoteSampler,
    ReplayBuffer,
    SampleOptions,
    make_sampler,
)
from plaudit.training.workers.handles import SerialHandle
from plaudit.training.workers.learner import normalize_batch
from plaudit.types import Episode, JudgeId, Labels

RULE = DecisionRule(decode="per_frame").key()
WHO = JudgeId("classifier", "m1", RULE)


def episode(steps: int = 4, value: int = 0) -> Episode:
    return Episode.of(
        frames={"front": np.full((steps + 1, 2, 2, 3), value, np.uint8)},
        actions=np.full((steps, 1), value, np.float32),
        state=np.full((steps + 1, 2), value, np.float32),
        meta={"weights": 3},
    )


def make_labels(steps: int = 4, reward: float = 1.0, model: str = "m1") -> Labels:
    found = Labels.from_targets(np.append(0, np.full(steps, reward)), source="classifier")
    return replace(found, judge=JudgeId("classifier", model, RULE))


@pytest.fixture
def replay(tmp_path):
    service = ReplayBuffer(tmp_path)
    yield service
    service.close()


def test_the_same_key_again_is_the_same_episode(replay):
    assert [replay.add(episode(), "a"), replay.add(episode(), "b"), replay.add(episode(), "a")] == [0, 1, 0]
    assert replay.stats(WHO).episodes == 2


def test_one_that_was_killed_knows_what_it_was_given(tmp_path):
    first = ReplayBuffer(tmp_path)
    first.add(episode(4), "a")
    first.add(episode(6), "b")
    first.add_labels({EpisodeRef("episodes", 0): make_labels()}, {EpisodeRef("episodes", 1): "no camera"}, WHO)
    before = first.stats(WHO)
    first.close()
    again = ReplayBuffer(tmp_path)
    assert again.add(episode(), "a") == 0
    assert replace(again.stats(WHO), born=before.born) == before
    assert (before.episodes, before.steps, before.unlabeled, before.labeled_steps, before.failed) == (2, 10, 1, 4, 1)
    again.close()


def test_steps_are_counted_although_old_episodes_go(tmp_path):
    service = ReplayBuffer(tmp_path, capacity_gb=1e-6)  # a thousand bytes
    for number in range(40):
        service.add(episode(4), str(number))
    counts = service.stats(WHO)
    assert (counts.episodes, counts.steps) == (40, 160)
    assert counts.unlabeled < 40
    service.close()


def test_steps_without_a_label_do_not_count_as_labeled_after_their_episode_is_evicted(tmp_path):
    service = ReplayBuffer(tmp_path, capacity_gb=1e-6)
    withheld = make_labels(reward=np.nan)
    withheld = replace(withheld, labeled=np.zeros_like(withheld.labeled))
    for number in range(40):
        ref = EpisodeRef("episodes", service.add(episode(4), str(number)))
        if number % 4 < 2:  # one labeled, one withheld, two without a label, of which the judge fails on one
            service.add_labels({ref: withheld if number % 4 else make_labels()}, {}, WHO)
        elif number % 4 == 2:
            fail(service, ATTEMPTS, ref)
        service.stats(WHO)
    before = service.stats(WHO)
    assert (before.episodes, before.labeled_steps) == (40, 10 * 4)
    service.close()
    again = ReplayBuffer(tmp_path, capacity_gb=1e-6)
    assert len(Store.open(tmp_path / "episodes")) < 10
    assert again.stats(replace(WHO, fingerprint="m2")).labeled_steps == 10 * 4
    again.close()


def test_labels_that_come_twice_are_kept_once(replay, tmp_path):
    replay.add(episode(), "a")
    for _ in range(2):
        replay.add_labels({EpisodeRef("episodes", 0): make_labels()}, {}, WHO)
    assert len(Store.open(tmp_path / "episodes").ledger) == 1
    replay.add_labels({EpisodeRef("episodes", 0): make_labels(reward=0.0)}, {}, WHO)
    assert len(Store.open(tmp_path / "episodes").ledger) == 2


def test_another_judge_finds_everything_to_do_again(replay):
    for key in "ab":
        replay.add(episode(), key)
    replay.add_labels({EpisodeRef("episodes", 0): make_labels()}, {}, WHO)
    assert replay.pending(WHO) == [EpisodeRef("episodes", 1)]
    new = JudgeId("classifier", "m2", RULE)
    assert replay.pending(new) == [
        EpisodeRef("episodes", 1),
        EpisodeRef("episodes", 0),
    ]  # what nobody has judged comes first
    assert (replay.stats(new).unlabeled, replay.stats(new).outdated, replay.stats(new).labeled_steps) == (1, 1, 4)
    assert replay.pending(WHO) == [EpisodeRef("episodes", 1)]


def test_what_a_judge_failed_on_waits_behind_the_others_and_is_counted(replay):
    for key in "ab":
        replay.add(episode(), key)
    replay.add_labels({}, {EpisodeRef("episodes", 0): "the endpoint is down"}, WHO)
    assert replay.pending(WHO) == [EpisodeRef("episodes", 1), EpisodeRef("episodes", 0)]
    assert replay.stats(WHO).failed == 1
    replay.add_labels({EpisodeRef("episodes", 0): make_labels()}, {}, WHO)
    assert (replay.stats(WHO).failed, replay.stats(WHO).unlabeled) == (0, 1)


def test_demonstrations_are_judged_first_and_into_a_file_of_the_run(tmp_path):
    with Store.create(tmp_path / "demos") as demos:
        demos.append(episode(value=9))
    service = ReplayBuffer(tmp_path / "run", demos=tmp_path / "demos")
    service.add(episode(), "a")
    assert service.pending(WHO) == [EpisodeRef("demos", 0), EpisodeRef("episodes", 0)]
    assert (service.stats(WHO).demos_unlabeled, service.stats(WHO).demo_successes) == (1, 0)
    service.add_labels({EpisodeRef("demos", 0): make_labels()}, {}, WHO)
    assert (service.stats(WHO).demos_unlabeled, service.stats(WHO).demo_successes) == (0, 1)
    assert len(Store.open(tmp_path / "demos").ledger) == 0
    service.close()


def test_a_learner_sees_its_judge_and_nobody_else(replay, tmp_path):
    """What a simulator knows may stand in the same ledger, for an audit."""
    replay.add(episode(), "a")
    replay.add_labels({EpisodeRef("episodes", 0): make_labels(reward=0.0)}, {}, WHO)
    truth = Labels.from_targets([0, 1, 1, 1, 1], source="simulator")
    Store.open(tmp_path / "episodes").ledger.append(0, truth)
    options = SampleOptions(source="classifier", gamma=0.9, cameras=("front",))
    assert make_sampler(replay.location().open(), options).sample(16).reward.max() == 0


def test_served_batches_are_those_of_the_disk(replay):
    for value in range(3):
        replay.add(episode(value=value), str(value))
    replay.add_labels({EpisodeRef("episodes", i): make_labels(reward=i) for i in range(3)}, {}, WHO)
    options = SampleOptions(source="classifier", gamma=0.9, cameras=("front",), seed=7)
    near, far = (
        make_sampler(replay.location().open(), options).sample(32),
        RemoteSampler(SerialHandle("replay buffer", replay), options).sample(32),
    )
    assert replay.location().is_here
    for name, array in leaves(near).items():
        np.testing.assert_array_equal(array, leaves(far)[name], err_msg=name)


def test_new_episodes_can_be_sampled_once_they_are_judged(replay):
    options = SampleOptions(source="classifier", gamma=0.9, seed=0)
    replay.add(episode(value=1), "a")
    replay.add_labels({EpisodeRef("episodes", 0): make_labels()}, {}, WHO)
    assert set(replay.sample(16, options).episode) == {0}
    replay.add(episode(value=2), "b")
    assert set(replay.sample(16, options).episode) == {0}
    replay.add_labels({EpisodeRef("episodes", 1): make_labels()}, {}, WHO)
    assert set(replay.sample(64, options).episode) == {0, 1}


def test_a_learner_learns_in_the_units_of_the_policy_on_the_robot(replay):
    replay.add(episode(value=6), "a")
    replay.add_labels({EpisodeRef("episodes", 0): make_labels()}, {}, WHO)
    units = Normalizer(
        {STATE: Stats(np.float32([2, 0]), np.float32([4, 3])), ACTION: Stats(np.float32([5]), np.float32([2]))}
    )
    batch = replay.sample(4, SampleOptions(source="classifier", gamma=0.9))
    inside = normalize_batch(batch, units)
    np.testing.assert_allclose(inside.state, np.tile([1.0, 2.0], (4, 1)), rtol=1e-6)
    np.testing.assert_allclose(inside.next_state, inside.state)
    np.testing.assert_allclose(inside.actions, np.full((4, 1), 0.5), rtol=1e-6)
    np.testing.assert_allclose(units.denormalize_action(inside.actions), batch.actions, rtol=1e-6)
    assert normalize_batch(batch, None) is batch


def test_what_a_human_labeled_is_stored_although_a_human_has_no_model(replay, tmp_path):
    replay.add(episode(), "a")
    said = Labels.from_cutoff(steps=4, cutoff=2, source="human")
    replay.add_labels({EpisodeRef("episodes", 0): replace(said, time=5.0)}, {}, JudgeId("human"))
    assert Store.open(tmp_path / "episodes").ledger.labels(0).success_once
    assert replay.stats(JudgeId("human")).unlabeled == 0


def fail(replay: ReplayBuffer, times: int, *items: EpisodeRef, who: JudgeId = WHO) -> None:
    for _ in range(times):
        replay.add_labels({}, dict.fromkeys(items, "there is no camera 'wrist'"), who)


def test_an_episode_that_the_judge_fails_on_again_and_again_is_unlabelable_and_nobody_waits_for_it(replay):
    for key in "abc":
        replay.add(episode(), key)
    replay.add_labels({EpisodeRef("episodes", 0): make_labels()}, {}, WHO)
    fail(replay, ATTEMPTS - 1, EpisodeRef("episodes", 2))
    assert replay.pending(WHO) == [EpisodeRef("episodes", 1), EpisodeRef("episodes", 2)]
    assert (replay.stats(WHO).unlabeled, replay.stats(WHO).failed, replay.stats(WHO).skipped) == (2, 1, 0)
    fail(replay, 1, EpisodeRef("episodes", 2))
    counts = replay.stats(WHO)
    assert replay.pending(WHO) == [EpisodeRef("episodes", 1)]
    assert (counts.unlabeled, counts.failed, counts.skipped, counts.labeled_steps) == (1, 1, 1, 4)
    assert (counts.skipped_in_a_row, counts.reason) == (1, "there is no camera 'wrist'")


def test_the_next_version_of_the_judge_is_asked_about_what_its_last_version_could_not_label(replay):
    replay.add(episode(), "a")
    fail(replay, ATTEMPTS, EpisodeRef("episodes", 0))
    assert replay.pending(WHO) == []
    candidate = JudgeId("classifier", "m2", RULE)
    assert replay.pending(candidate) == [EpisodeRef("episodes", 0)]
    assert (replay.stats(candidate).unlabeled, replay.stats(candidate).skipped) == (1, 0)


def test_the_next_session_tries_what_was_unlabelable_again(tmp_path):
    first = ReplayBuffer(tmp_path)
    first.add(episode(), "a")
    fail(first, ATTEMPTS, EpisodeRef("episodes", 0))
    first.close()
    later = ReplayBuffer(tmp_path, since=time.time() + 1)
    assert later.pending(WHO) == [EpisodeRef("episodes", 0)]
    later.close()


def test_a_demonstration_that_cannot_be_labeled_is_not_waited_for_either(tmp_path):
    with Store.create(tmp_path / "demos") as demos:
        for value in range(2):
            demos.append(episode(value=value))
    service = ReplayBuffer(tmp_path, demos=tmp_path / "demos")
    fail(service, ATTEMPTS, EpisodeRef("demos", 1))
    counts = service.stats(WHO)
    assert (counts.demos_unlabeled, counts.demos_skipped, counts.demos) == (1, 1, 2)
    assert service.pending(WHO) == [EpisodeRef("demos", 0)]
    assert not (tmp_path / "demos/labels.failures").exists(), "the demonstrations are somebody else's"
    service.close()


def test_keys_of_episodes_that_are_long_gone_are_forgotten(tmp_path, monkeypatch):
    monkeypatch.setattr("plaudit.training.replay_buffer.REPEATED", 10)
    service = ReplayBuffer(tmp_path, capacity_gb=1e-5)
    ids = [service.add(counting_episode(), f"key {n}") for n in range(200)]
    assert ids == list(range(200))
    assert service.add(counting_episode(), "key 199") == 199
    assert len(service._keys) < 100
    service.close()


def marked(mark: str, steps: int = 4) -> Episode:
    return replace(episode(steps), meta={"weights": 3, "operator": mark})


def test_what_an_operator_marked_is_labeled_at_once_and_no_judge_is_asked(replay):
    replay.add(marked("success"), "a")
    replay.add(marked("failure"), "b")
    replay.add(marked("failure"), "b")
    replay.add(episode(), "c")
    assert replay.pending(WHO) == [EpisodeRef("episodes", 2)]
    assert (replay.stats(WHO).unlabeled, replay.stats(WHO).labeled_steps) == (1, 8)
    batch = replay.sample(256, SampleOptions(source="classifier", gamma=0.9))
    assert set(batch.episode.tolist()) == {0, 1}
    rewarded = batch.reward == 1
    assert set(zip(batch.episode[rewarded].tolist(), batch.step[rewarded].tolist())) == {(0, 3)}
    replay.add_labels(
        {EpisodeRef("episodes", 1): make_labels(reward=1.0)}, {}, WHO
    )  # a judge that was asked nevertheless
    again = replay.sample(256, SampleOptions(source="classifier", gamma=0.9))
    assert not again.reward[again.episode == 1].any()


def test_a_crash_before_the_label_of_a_mark_is_made_good(tmp_path):
    with Store.create(tmp_path / "episodes") as store:
        store.append(
            replace(marked("success"), meta={**marked("success").meta, "online": {"key": "a", "steps_before": 0}})
        )
    replay = ReplayBuffer(tmp_path)
    assert replay.stats(WHO).unlabeled == 0
    replay.close()


def test_a_discarded_episode_is_kept_beside_the_others_once(replay, tmp_path):
    assert [
        replay.add(marked("discard"), "a"),
        replay.add(marked("repeat"), "b"),
        replay.add(marked("discard"), "a"),
    ] == [0, 1, 0]
    assert (replay.stats(WHO).episodes, replay.stats(WHO).steps, replay.pending(WHO)) == (0, 0, [])
    assert len(Store.open(tmp_path / "episodes_discarded")) == 2


def test_demonstrations_that_a_person_excluded_are_neither_judged_nor_sampled(tmp_path):
    with Store.create(tmp_path / "demos") as demos:
        for value in (8, 9):
            demos.append(episode(value=value))
        demos.ledger.append(0, Labels.from_targets(np.full(5, np.nan), source="human"))
    service = ReplayBuffer(tmp_path / "run", demos=tmp_path / "demos")
    assert service.pending(WHO) == [EpisodeRef("demos", 1)]
    service.add_labels({EpisodeRef("demos", 1): make_labels()}, {}, WHO)
    batch = service.sample(40, SampleOptions(source="classifier", gamma=0.9, cameras=()))
    assert set(batch.episode.tolist()) == {1}
    service.close()


def test_an_excluded_episode_counts_no_steps_whichever_judge_is_next(replay):
    replay.add(episode(), "a")
    replay.add_labels({EpisodeRef("episodes", 0): make_labels()}, {}, WHO)
    excluded = Labels.from_targets(np.full(5, np.nan), source="human", time=1e9)
    replay.add_labels({EpisodeRef("episodes", 0): excluded}, {}, JudgeId("human"))
    for judge in (WHO, replace(WHO, fingerprint="m2")):
        assert (replay.stats(judge).labeled_steps, replay.pending(judge)) == (0, [])
