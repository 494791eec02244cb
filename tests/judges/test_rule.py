"""From P(success) of frames to success: the three ways, live and afterwards, and what stands on the labels."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import counting_episode
from plaudit.config import parse
from plaudit.errors import ConfigError, JudgeError
from plaudit.rule import DecisionRule, labels_from_scores, release, threshold_of, without_ood
from plaudit.types import JudgeId, Scores

PROBS = st.lists(st.floats(0, 1, width=32) | st.just(float("nan")), min_size=1, max_size=30)
RULES = st.builds(
    lambda threshold, decode, window: DecisionRule(threshold=threshold, decode=decode, k=min(window), n=max(window)),
    st.floats(0.05, 1),
    st.sampled_from(["per_frame", "k_of_n"]),
    st.tuples(st.integers(1, 5), st.integers(1, 5)),
)


def decided(*prob: float, **rule) -> list[int]:
    return DecisionRule(**rule).decide(np.array(prob, np.float32)).astype(int).tolist()


def test_a_single_frame_is_no_success_and_two_of_the_last_three_are():
    assert decided(0, 0, 1, 0, 0) == [0, 0, 0, 0, 0]
    assert decided(0, 1, 0, 1, 0) == [0, 0, 0, 1, 0]
    assert decided(1, 1, 0) == [0, 1, 1]  # the first frame counts as one


def test_frames_by_themselves_are_decided_at_the_threshold():
    assert decided(0.3, 0.31, 0.29, threshold=0.3, decode="per_frame") == [1, 1, 0]


def test_one_cutoff_ignores_a_flicker_and_can_be_moved_back():
    flicker = (0.05, 0.9, 0.05, 0.05, 0.95, 0.95)
    assert decided(*flicker, decode="cutoff") == [0, 0, 0, 0, 1, 1]
    assert decided(*flicker, decode="cutoff", cutoff_offset=1) == [0, 0, 0, 1, 1, 1]
    assert decided(0.05, 0.9, 0.05, 0.05, 0.05, decode="cutoff") == [0, 0, 0, 0, 0]


def test_a_frame_that_was_not_scored_speaks_for_nothing():
    assert decided(0, np.nan, 1, np.nan, 0) == [0, 0, 0, 0, 0]
    assert decided(0, np.nan, 1, 1, np.nan, decode="cutoff") == [0, 0, 1, 1, 1]


@settings(deadline=None)
@given(PROBS, RULES)
def test_k_of_n_is_what_it_says(prob, rule):
    above = np.array(prob, np.float32) >= np.float32(rule.threshold)
    k, n = rule.window
    expected = [bool(above[max(0, t - n + 1) : t + 1].sum() >= k) for t in range(len(prob))]
    assert rule.decide(np.array(prob, np.float32)).tolist() == expected


@settings(deadline=None)
@given(st.lists(PROBS, min_size=2, max_size=4), RULES, st.randoms(use_true_random=False))
def test_environments_that_are_at_different_steps_are_decided_as_if_alone(episodes, rule, random):
    """Whichever environment has a next frame moves on; one whose episode is over starts it again."""
    tracker = rule.tracker(len(episodes))
    alone = [rule.decide(np.array(prob, np.float32)) for prob in episodes]
    frame = np.zeros(len(episodes), int)
    for _ in range(40):
        moves = np.array([random.random() < 0.7 for _ in episodes])
        over = moves & (frame == [len(prob) for prob in episodes])
        tracker.reset(over)
        frame[over] = 0
        now = [prob[min(t, len(prob) - 1)] for prob, t in zip(episodes, frame, strict=True)]
        success = tracker.update(np.array(now, np.float32), moves)
        assert [bool(success[i]) for i in np.flatnonzero(moves)] == [alone[i][frame[i]] for i in np.flatnonzero(moves)]
        frame += moves


def test_a_cutoff_is_refused_by_anything_live():
    with pytest.raises(JudgeError, match=r"needs the whole episode.*set the judge's rule.decode to k_of_n"):
        DecisionRule(decode="cutoff").tracker(1)


def test_a_rule_that_can_never_be_met_is_refused():
    with pytest.raises(ConfigError, match=r"3 of the last 2 frames can never be above the threshold"):
        parse(DecisionRule, {"k": 3, "n": 2})


def test_a_key_has_all_that_decides_in_full_precision_and_nothing_else():
    rule = DecisionRule(threshold=0.1 + 0.2)
    assert json.loads(rule.key().model_dump_json())["threshold"] == 0.1 + 0.2
    assert rule.key() != DecisionRule(threshold=0.3).key()
    assert rule.key() == DecisionRule(threshold=0.1 + 0.2, cutoff_offset=5).key()  # which a cutoff alone would use
    assert threshold_of(JudgeId("vlm", "abc", rule.key())) == 0.1 + 0.2 and threshold_of(JudgeId("human")) is None


@pytest.mark.parametrize("rule", [{"k": 1}, {"decode": "cutoff", "cutoff_offset": 3}, {"ood": "audit"}])
def test_a_key_is_read_back_from_a_file(rule):
    key = DecisionRule(**rule).key()
    assert DecisionRule.parse(key.model_dump_json(exclude_none=True)) == key


@pytest.mark.parametrize("text", ["", "7 of 9", "[1]", '{"threshold": [1]}', '{"threshold": 1, "k": []}', '{"ood": 1}'])
def test_a_key_that_somebody_wrote_by_hand_is_none(text):
    assert DecisionRule.parse(text) is None


# Labels


def labels(*prob: float, padded: str = "none", ood: str = "", rule_ood=None, **rule):
    made = DecisionRule(**rule, ood=rule_ood)
    episode = counting_episode(len(prob) - 1, padded=padded)
    scores = Scores(np.array(prob, np.float32), ood=ood)
    return labels_from_scores(JudgeId("vlm", "abc", made.key()), made, episode, scores)


def test_labels_have_the_scores_and_the_judge_that_they_came_from():
    found = labels(0.1, 0.9, 0.8, threshold=0.7)
    scores = np.array([0.1, 0.9, 0.8], np.float32)
    assert found.targets.tolist() == [0, 0, 1] and found.scores.success_prob.tolist() == scores.tolist()
    assert found.judge == JudgeId("vlm", "abc", DecisionRule(threshold=0.7).key())


def test_a_copy_of_a_neighbor_is_not_labeled_and_confirms_nothing():
    last = labels(0.1, 0.1, 0.9, 0.9, padded="last")
    assert last.labeled.tolist() == [True, True, True, False] and not last.success_once
    first = labels(0.9, 0.9, 0.1, padded="first")
    assert first.labeled.tolist() == [False, True, True] and not first.success_once


@pytest.mark.parametrize(
    ("setting", "withheld"), [(None, False), ("accept", False), ("audit", True), ("abstain", True)]
)
def test_an_ood_episode_is_labeled_by_the_setting(setting, withheld):
    found = labels(0.1, 0.9, 0.8, ood="another table", rule_ood=setting)
    assert found.withheld == withheld and found.labeled.any() != withheld
    assert found.scores.ood == "another table" and "another table" in found.note
    assert release(found).targets.tolist() == labels(0.1, 0.9, 0.8).targets.tolist()
    assert not labels(0.1, 0.9, 0.8, rule_ood=setting).withheld  # one that is not


def test_labels_of_another_setting_are_others_of_the_same_judge():
    strict = JudgeId("vlm", "abc", DecisionRule(ood="abstain").key())
    plain = JudgeId("vlm", "abc", DecisionRule().key())
    assert strict != plain and without_ood(strict) == plain
    assert DecisionRule(ood="accept").key() == plain.rule
