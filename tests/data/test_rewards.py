"""Rewards from labels: all modes, on numbers that can be worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest

from conftest import counting_episode, episode_rewards, labeled_store
from plaudit.data.check import check
from plaudit.data.ledger import counted_sources
from plaudit.data.replay import ReplaySampler
from plaudit.data.rewards import RewardConfig
from plaudit.data.store import Store
from plaudit.errors import JudgeError
from plaudit.rollout.recording import append_marked
from plaudit.rule import DecisionRule, labels_from_scores, release
from plaudit.types import JudgeId, Labels, Scores


def labels(*prob: float, progress: tuple[float, ...] = (), padded: str = "none") -> Labels:
    """By two of three frames at a half."""
    scores = Scores(np.array(prob, np.float32), np.array(progress, np.float32) if progress else None)
    rule = DecisionRule()
    return labels_from_scores(
        JudgeId("told", "", rule.key()), rule, counting_episode(len(prob) - 1, padded=padded), scores
    )


def rewards(made: Labels, env_info=None, gamma: float = 0.99, **config) -> list[float]:
    return episode_rewards(made, env_info or {}, RewardConfig(**config), gamma).tolist()


def test_binary_pays_one_where_success_was_decided_and_nothing_else():
    assert rewards(labels(0, 0.9, 0.2, 0.9)) == [0, 0, 1]


def test_continuous_pays_the_probability_and_yes_and_no_where_there_is_none():
    assert rewards(labels(0, 0.25, 0.75), reward_type="continuous") == [0.25, 0.75]
    said = Labels.from_cutoff(steps=2, cutoff=2, source="human")
    assert rewards(said, reward_type="continuous") == [0, 1]


def test_terminal_pays_only_at_the_end():
    assert rewards(labels(0, 0.25, 0.5, 0.25, 0.25), mode="terminal", reward_type="continuous") == [0, 0, 0, 0.25]
    assert rewards(labels(0, 0.75, 0.75, 0.25, 0.25), mode="terminal") == [0, 1, 1, 0]


def test_add_pays_on_top_of_the_simulations_shaping():
    assert rewards(labels(0, 1, 1), {"shaping": np.float32([0.25, 0.5])}, mode="add") == [0.25, 1.5]


def test_add_refuses_a_simulation_whose_reward_pays_for_success():
    with pytest.raises(JudgeError, match=r"does not pay for success from the simulation, which has none \('shaping'\)"):
        rewards(labels(0, 0), {"reward": np.float32([1])}, mode="add")


def test_shaping_pays_for_progress_and_counts_success_as_all_of_it():
    labeled = labels(0, 0, 1, 1, progress=(0.25, 0.5, 0.75, 1))
    shaping = [2 * (0.25 - 0.25), 2 * (0.375 - 0.5), 2 * (0.5 - 0.75)]
    assert rewards(labeled, shaping=2.0, gamma=0.5) == [shaping[0], shaping[1], 1 + shaping[2]]


def test_shaping_pays_nothing_for_where_a_lost_episode_ends():
    lost = {"failure": np.array([False, True])}
    assert rewards(labels(0, 0, 0, progress=(0.5, 0.75, 1)), lost, shaping=1.0, gamma=1.0) == [0.25, -0.75]


def test_shaping_needs_a_judge_that_measures_progress():
    with pytest.raises(JudgeError, match="shaping needs a judge that measures progress"):
        rewards(labels(0, 0), shaping=0.5)


@pytest.mark.parametrize("mode", ["replace", "add", "terminal"])
def test_what_the_simulation_knows_of_success_changes_nothing(mode):
    def paid(success: bool):
        known = {name: np.full(4, success, np.float32) for name in ("success", "reward")}
        known["shaping"] = np.full(4, 0.5, np.float32)
        return rewards(labels(0.1, 0.9, 0.4, 0.8, 0.2), known, mode=mode, reward_type="continuous")

    assert paid(True) == paid(False)


def test_a_frame_that_is_not_labeled_pays_nothing_that_anybody_could_learn_from():
    assert np.isnan(rewards(labels(0, 1, 1, 1, padded="last"))).tolist() == [False, False, True]


def test_replay_pays_as_it_is_told_and_a_change_of_mode_labels_nothing_anew(tmp_path):
    with Store.create(tmp_path / "s") as store:
        episode = counting_episode(3, privileged={"reward": np.float32([0.5, 0.25, 0.125])})
        store.ledger.append(store.append(episode), labels(0, 0.25, 0.5, 0.75))
    for config, paid in (
        ({}, [0, 0, 1]),
        ({"reward_type": "continuous"}, [0.25, 0.5, 0.75]),
        ({"env_reward": "dense"}, [0.5, 0.25, 0.125]),
    ):
        replay = ReplaySampler(store, reward=RewardConfig(**config), terminate_on_success=False, seed=0)
        batch = replay.sample(200)
        assert dict(zip(batch.step.tolist(), batch.reward.tolist())) == dict(enumerate(paid))
    assert len(store.ledger) == 1


# One definition for rollouts and for replay


def paid_by_replay(store: Store, sources=None, rejected=frozenset(), **options) -> dict[int, dict[int, tuple]]:
    """Episode -> step -> (reward, discount), of all that can be sampled."""
    replay = ReplaySampler(store, gamma=0.5, cameras=(), sources=(sources,), seed=0, **options)
    found: dict[int, dict[int, tuple]] = {}
    if not replay.refresh(rejected):
        return found
    batch = replay.sample(300)
    for episode, step, reward, discount in zip(batch.episode, batch.step, batch.reward, batch.discount):
        found.setdefault(int(episode), {})[int(step)] = (round(float(reward), 4), float(discount))
    return found


def test_replay_takes_back_the_shaping_of_a_lost_episode_as_a_rollout_does(store):
    made = labels(0, 0, 0, 0, progress=(0, 0.3, 0.6, 0.9))
    store.ledger.append(store.append(counting_episode(3, terminated=True)), made)
    rollout = rewards(made, {"failure": np.array([False, False, True])}, shaping=1.0, gamma=0.5)
    replay = paid_by_replay(store, reward=RewardConfig(shaping=1.0))[0]
    assert [replay[step][0] for step in range(3)] == pytest.approx(rollout, abs=1e-4)
    assert sum(0.5**step * replay[step][0] for step in range(3)) == pytest.approx(0, abs=1e-3)


@pytest.mark.parametrize(("mark", "reward"), [("success", 1.0), ("failure", 0.0)])
def test_an_operators_mark_ends_the_episode_for_good(store, mark, reward):
    append_marked(store, counting_episode(3, meta={"operator": mark}))
    assert paid_by_replay(store)[0] == {0: (0, 0.5), 1: (0, 0.5), 2: (reward, 0)}


def test_a_mark_that_a_person_overrules_ends_nothing(store):
    marked = append_marked(store, counting_episode(3, meta={"operator": "success"}))
    store.ledger.append(marked, Labels.from_cutoff(steps=3, cutoff=None, source="human"))
    assert paid_by_replay(store)[0][2] == (0, 0.5)


@pytest.mark.parametrize("judged_first", [True, False])
def test_a_persons_label_is_shaped_by_the_judges_progress_where_there_is_one(store, judged_first):
    episode_id = store.append(counting_episode(2))
    if judged_first:
        store.ledger.append(episode_id, labels(0, 0, 0, progress=(0, 0.5, 0.5)))
    store.ledger.append(episode_id, Labels.from_cutoff(steps=2, cutoff=2, source="human"))
    found = paid_by_replay(store, reward=RewardConfig(shaping=1.0))[0]
    assert found == ({0: (0.25, 0.5), 1: (1.0, 0)} if judged_first else {0: (0, 0.5), 1: (1, 0)})


def test_a_persons_correction_and_exclusion_count_and_an_audit_by_the_simulator_does_not(store):
    corrected, excluded, audited = (store.append(counting_episode(2)) for _ in range(3))
    for episode_id in (corrected, excluded, audited):
        store.ledger.append(episode_id, labels(0, 1, 1))
    store.ledger.append(corrected, Labels.from_cutoff(steps=2, cutoff=None, source="human"))
    store.ledger.append(excluded, Labels.from_targets(np.full(3, np.nan), "human"))
    store.ledger.append(audited, Labels.from_cutoff(steps=2, cutoff=None, source="simulator"))
    found = paid_by_replay(store, counted_sources("told"))
    assert found == {corrected: {0: (0, 0.5), 1: (0, 0.5)}, audited: {0: (0, 0.5), 1: (1, 0)}}


def test_labels_of_a_judge_that_was_stopped_are_not_sampled(store):
    stopped, current = (
        replace(labels(0, 1, 1), judge=JudgeId("told", model, DecisionRule().key())) for model in ("v1", "v2")
    )
    for _ in range(3):
        store.ledger.append(store.append(counting_episode(2)), stopped)
    store.ledger.append(0, current)
    store.ledger.append(1, Labels.from_cutoff(steps=2, cutoff=None, source="human"))
    assert set(paid_by_replay(store)) == {0, 1, 2}
    assert set(paid_by_replay(store, rejected=frozenset({"v1"}))) == {0, 1}


def test_success_before_anything_was_done_is_not_paid_until_a_person_has_seen_it(store):
    made = labels(1, 1, 1, 1)
    assert made.review and made.withheld and release(made).success.tolist() == [False, True, True, True]
    odd = store.append(counting_episode(3))
    store.ledger.append(odd, made)
    assert paid_by_replay(store) == {}
    store.ledger.append(odd, Labels.from_cutoff(steps=3, cutoff=3, source="human"))
    assert paid_by_replay(store)[odd][2] == (1, 0)


def test_replay_reads_a_ledger_again_that_a_repair_has_shortened(tmp_path):
    with labeled_store(tmp_path / "s", *[counting_episode(2) for _ in range(3)], cutoff=2) as store:
        path = store.ledger.path
    replay = ReplaySampler(Store.open(tmp_path / "s"), cameras=(), seed=0)
    *lines, last = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines) + b"?" * (len(last) - 1) + b"\n")  # its last label is unreadable
    check(tmp_path / "s", repair=True)
    replay.refresh()
    assert set(replay.sample(200).episode.tolist()) == {0, 1}
    with Store.open(tmp_path / "s", write=True) as again:  # the count of labels is as high as before the repair
        again.ledger.append(2, Labels.from_cutoff(steps=2, cutoff=None, source="human"))
    replay.refresh()
    assert set(replay.sample(200).episode.tolist()) == {0, 1, 2}
