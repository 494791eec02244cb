"""A rule fitted on some episodes, and what it is worth on others."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from brightness import STEPS, BrightnessConfig, bright_store
from conftest import counting_episode
from plaudit.errors import JudgeError
from plaudit.judges.calibration import (
    PlattScaling,
    calibrate,
    choose_threshold,
    cross_validate,
    fit_platt,
    fit_rule,
    folds,
    logit,
    make_record,
)
from plaudit.judges.evaluation import load_reference_labels, score_episodes
from plaudit.judges.metrics import EpisodePrediction
from plaudit.rule import DecisionRule
from plaudit.types import Labels


def judged(
    count: int, seed: int = 0, temperature: float = 3.0, bias: float = -1.0, frames: int = 40
) -> list[EpisodePrediction]:
    """Episodes of a judge whose log-odds are `temperature` times too sure, and off by the bias."""
    rng = np.random.default_rng(seed)
    made = []
    for number in range(count):
        first = rng.integers(10, 30) if number % 2 else frames
        truth = (np.arange(frames) >= first).astype(np.float32)
        honest = np.where(truth == 1, 2.0, -2.0) + rng.normal(0, 1.5, frames)
        made.append(EpisodePrediction(PlattScaling()(temperature * (honest - bias)), truth, number))
    return made


def test_the_rule_is_made_of_the_parts_that_were_measured():
    said = judged(20)
    fit = fit_rule(said, DecisionRule(decode="per_frame"), 0.01)
    prob, target = np.concatenate([s.success_prob for s in said]), np.concatenate([s.target for s in said])
    calibration = fit_platt(logit(prob), target)
    scored = [EpisodePrediction(calibration.recalibrate(s.success_prob), s.target, s.episode) for s in said]
    assert (fit.calibration.temperature, fit.calibration.bias) == (calibration.temperature, calibration.bias)
    assert fit.rule.threshold == choose_threshold(scored, 0.01).value
    assert fit.rule.decode == "per_frame"


def test_a_judge_that_is_too_sure_is_cooled_down():
    fit = fit_rule(judged(60), DecisionRule(), 0.01)
    assert fit.calibration.temperature == pytest.approx(
        3 * 1.5**2 / 4, rel=0.2
    )  # log-odds of two normals: 2 * 2 x / 1.5^2


def test_no_episode_chooses_the_rule_that_it_is_counted_by():
    """One failing episode shouts; the rule that is to be tried on it has not heard of it."""
    said = judged(10)
    loud = EpisodePrediction(np.ones(40), np.zeros(40), 99)
    fit, cross_val = calibrate([*said, loud], DecisionRule(), 0.01)
    called = fit.calibration.recalibrate(loud.success_prob) >= fit.rule.threshold
    assert not called.any()  # the rule of all keeps it out
    assert cross_val.fpr.value >= 40 / (40 + sum(int((s.target == 0).sum()) for s in said)) - 1e-9


def test_the_rate_that_is_told_is_near_that_of_new_episodes():
    fit, cross_val = calibrate(judged(60), DecisionRule(), 0.05)
    new = [
        EpisodePrediction(fit.calibration.recalibrate(s.success_prob), s.target, s.episode) for s in judged(400, seed=1)
    ]
    true = np.mean(np.concatenate([s.predicted(fit.rule.threshold)[s.target == 0] for s in new]))
    assert cross_val.fpr.low <= true <= cross_val.fpr.high
    recall = np.mean(np.concatenate([s.predicted(fit.rule.threshold)[s.target == 1] for s in new]))
    assert cross_val.recall == pytest.approx(recall, abs=0.08)


def test_the_shift_is_that_of_decoded_cutoffs(tmp_path):
    store = bright_store(tmp_path / "s", 5, 5)
    said, failed = score_episodes(store, BrightnessConfig(cut=6).build(), load_reference_labels(store, ("human",)))
    assert failed == {}
    fit, cross_val = calibrate(said, DecisionRule(), 0.01)
    assert (
        fit.rule.cutoff_offset + int(np.argmax(fit.calibration.recalibrate(said[0].success_prob) >= fit.rule.threshold))
        >= 4
    )
    assert cross_val.cutoffs.onset_median == 0 and cross_val.cutoffs.fp == 0


def test_each_episode_is_asked_about_once_and_failures_are_told(tmp_path):
    store = bright_store(tmp_path / "s", 4, 4, padded="last")
    silent = store.append(counting_episode(STEPS, task=""))
    store.ledger.append(silent, Labels.from_cutoff(steps=STEPS, cutoff=None, source="human"))
    judge: Any = BrightnessConfig().build()
    said, failed = score_episodes(store, judge, load_reference_labels(store, ("human",)))
    assert judge.asked == 9 and list(failed) == [silent]
    assert {len(one.success_prob) for one in said} == {STEPS}  # without the repeated frame


def test_frames_without_a_reference_label_keep_their_place_among_the_others(tmp_path):
    store = bright_store(tmp_path / "s", 3, 3)
    targets = load_reference_labels(store, ("human",))
    targets[0][2:] = np.nan
    predictions, _ = score_episodes(store, BrightnessConfig().build(), targets)
    assert [len(one.success_prob) for one in predictions] == [STEPS + 1] * 6
    assert predictions[0].has_target.sum() == 2 and DecisionRule().episode_score(predictions[0].success_prob) > 0.9


def test_one_frame_decides_where_episodes_end_with_their_first_success():
    ending = [replace(one, success_prob=one.success_prob[:20], target=one.target[:20]) for one in judged(12)]
    for one in ending:
        one.target[:] = 0
        one.target[-1] = one.episode % 2
    assert calibrate(ending, DecisionRule(), 0.05)[0].rule.window == (1, 1)
    assert calibrate(ending, DecisionRule(k=2, n=3), 0.05)[0].rule.window == (2, 3)  # as it was asked for
    assert calibrate(judged(12), DecisionRule(), 0.05)[0].rule.window == (2, 3)


def test_every_fold_leaves_failures_to_the_others():
    succeeding = [EpisodePrediction(np.ones(2), np.ones(2), n) for n in range(12)]  # labeled where they succeed
    both = [EpisodePrediction(np.array([0, 1]), np.array([0, 1]), 12 + n) for n in range(3)]
    for others, held_out in folds([*succeeding, *both]):
        assert any((one.target == 0).any() for one in others) and held_out


def test_one_kind_of_episode_is_not_enough():
    with pytest.raises(JudgeError, match="Of those with reference labels 1 show success and 5 failure"):
        calibrate([one for one in judged(9) if one.episode % 2 == 0 or one.episode == 1][:5], DecisionRule(), 0.01)


def test_the_record_says_what_was_asked_for_and_found():
    said = judged(20)
    judge = BrightnessConfig().build()
    cross_val = cross_validate(said, DecisionRule(), 0.02)
    told = make_record(judge.id, said, ("human", "cutoff"), 0.02, cross_val)
    assert (told.episodes, told.successes, told.fingerprint) == (20, 10, "cut 4")
    assert told.reference == ("human", "cutoff") and told.target_fpr == 0.02
    assert told.fpr_low <= told.fpr == cross_val.fpr.value <= told.fpr_high
