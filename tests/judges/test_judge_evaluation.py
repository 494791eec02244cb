"""A judge beside the truth: numbers that can be counted by hand, and controls that name who fails them."""

import json
import math

import numpy as np
import pytest

from brightness import CUT, STEPS, BrightnessConfig, bright_store
from conftest import counting_episode
from plaudit.data.store import Store
from plaudit.errors import JudgeError
from plaudit.judges.controls import UNRELATED_TASK
from plaudit.judges.evaluation import (
    JudgeEvaluation,
    compare_labels,
    control_task,
    evaluate,
    load_reference_labels,
    resolve_reference,
)
from plaudit.judges.simulator import SimulatorJudge
from plaudit.rule import DecisionRule, labels_from_scores
from plaudit.types import JudgeId, Labels, Scores


def measured(store: Store, sources=("human",), wrong_task: str | None = UNRELATED_TASK, **judge) -> JudgeEvaluation:
    built = BrightnessConfig.model_validate(judge).build()
    return evaluate(store, built, load_reference_labels(store, sources), wrong_task=wrong_task)


@pytest.fixture
def bright(tmp_path) -> Store:
    """Three episodes of frames 0 to 7 that succeed from frame 4 on, three that stay dark."""
    return bright_store(tmp_path / "s")


def sigmoid(z: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-z))


def test_a_judge_that_is_right_about_everything(bright):
    found = measured(bright)
    scores = found.metrics
    assert (scores.episodes, scores.frames, scores.success_frames) == (6, 48, 12)
    assert (scores.precision, scores.recall, scores.roc_auc, scores.fpr) == (1, 1, 1, 0)
    assert (scores.causal.tp, scores.causal.fn, scores.causal.fp, scores.causal.tn) == (3, 0, 0, 3)
    assert found.label_metrics.errors == (1, 1, 1) and found.has_probabilities
    assert scores.causal.onset_median == 1 and scores.offline.onset_median == 0  # two of three frames are a frame later
    assert not found.failed_controls and not found.failed and not found.notes


def test_ood_episodes_are_measured_and_told(bright):
    rule = DecisionRule(threshold=0.5, ood="abstain")
    judge = JudgeId("classifier", "abc", rule.key())
    labels = {}
    for i in bright.ids:
        scores = Scores(np.full(STEPS + 1, 0.9, np.float32), ood="another table" if i > 3 else "")
        labels[i] = labels_from_scores(judge, rule, bright.episode(i), scores)
    found = compare_labels(bright, labels, load_reference_labels(bright, ("human",)), rule)
    assert found.metrics.episodes == 6  # also those that it withholds
    (note,) = found.notes
    assert (
        note.startswith("The judge flags 2 of 6 episodes as out of distribution")
        and "2 of its 3 wrong episodes are among them" in note
    )


def test_numbers_are_those_of_the_formulas(bright):
    """A judge that sees success a frame early: of 36 failure frames 3 are called, all 12 successes are."""
    found = measured(bright, cut=3)
    scores = found.metrics
    assert scores.precision == 12 / 15 and scores.recall == 1
    assert scores.fpr == pytest.approx(3 / 36)
    light = np.concatenate([np.arange(8)] * 3 + [np.minimum(np.arange(8), 2)] * 3)
    truth = np.concatenate([np.arange(8) >= CUT] * 3 + [np.zeros(8)] * 3)
    said = sigmoid(2 * (light - 3 + 0.5))
    assert scores.brier == pytest.approx(np.mean((said - truth) ** 2), abs=1e-6)
    assert scores.log_loss == pytest.approx(-np.mean(np.log(np.where(truth == 1, said, 1 - said))), abs=1e-6)
    assert found.label_metrics.errors == (0, 0, 0)  # a frame early, and two of three frames are a frame late


def test_a_shift_is_taken_off_the_cutoffs_and_nothing_else(bright):
    found = measured(bright, cut=5, rule={"decode": "cutoff", "cutoff_offset": 1})
    assert found.label_metrics.errors == (0, 0, 0) and found.metrics.offline.onset_median == 0
    assert found.metrics.recall == 9 / 12


def test_live_and_decoded_are_both_told_whatever_stands_on_the_labels(bright):
    found = measured(bright, rule={"k": 3, "n": 3})
    assert found.label_metrics.onset_median == found.metrics.causal.onset_median == 2
    assert found.metrics.offline.onset_median == 0


def test_the_worst_frames_are_shown_as_they_are(bright):
    found = measured(bright, cut=3)
    worst = found.errors[0]
    assert (worst.frame, worst.target) == (3, 0) and worst.success_prob == pytest.approx(
        sigmoid(np.float64(1)), abs=1e-5
    )
    assert (worst.image == 3).all()


def test_all_cameras_are_shown_side_by_side(tmp_path):
    store = Store.create(tmp_path / "s")
    frames = counting_episode(STEPS).frames["front"]
    episode = counting_episode(STEPS)
    two = type(episode)(**{**vars(episode), "frames": {"front": frames, "wrist": frames[:, :4, :6]}})
    store.ledger.append(store.append(two), Labels.from_cutoff(steps=STEPS, cutoff=CUT, source="human"))
    image = measured(store, cut=3).errors[0].image
    assert image.shape == (8, 16, 3) and (image[4:, 10:] == 255).all() and (image[:4, 10:] == 3).all()


def test_an_episode_that_cannot_be_judged_is_counted_and_the_others_go_on(bright):
    silent = bright.append(counting_episode(STEPS, task=""))
    bright.ledger.append(silent, Labels.from_cutoff(steps=STEPS, cutoff=CUT, source="human"))
    found = measured(bright)
    assert found.failed == {silent: "this episode has no task text; give it one"}
    assert found.metrics.episodes == 6 and not found.notes  # no control is made of it


def test_controls_that_cannot_be_judged_are_counted(bright):
    (note,) = measured(bright, wrong_task="").notes
    assert note == "3 controls could not be scored: this episode has no task text; give it one."


def test_an_episode_of_one_frame_is_measured_too(bright):
    short = bright.append(counting_episode(1, first=5, padded="last"))
    bright.ledger.append(short, Labels.from_cutoff(steps=1, cutoff=0, source="human"))
    found = measured(bright)
    assert found.metrics.episodes == 7 and found.label_metrics.errors == (1, 1, 1, None)


def test_a_judge_that_fails_on_all_says_why(tmp_path):
    store = bright_store(tmp_path / "s", 1, 1, task="")
    with pytest.raises(JudgeError, match="no label on any of the 2 episodes to compare: this episode has no task text"):
        measured(store)


# Controls


def test_a_judge_that_takes_white_for_success_is_found(bright):
    assert measured(bright, brightest=255).failed_controls == [
        "blank white: 100% of 8 frames predicted a success, at most 5% may be",
        "blank gray: 100% of 8 frames predicted a success, at most 5% may be",
        "blank noise: 100% of 8 frames predicted a success, at most 5% may be",
    ]


def test_a_judge_that_does_not_obey_the_instruction_is_found(bright):
    asked = {control.name: control.frames for control in measured(bright).controls}
    assert asked["wrong task"] == 3 * 8  # not even a success is one
    (problem,) = measured(bright, obeys=False).failed_controls
    assert problem.startswith("wrong task: 50% of 24 frames")


def test_who_reads_no_instruction_is_not_asked_with_a_wrong_one(bright):
    assert "wrong task" not in {c.name for c in measured(bright, wrong_task=None).controls}
    assert (control_task(False, "dance"), control_task(True, None)) == (None, UNRELATED_TASK)
    assert control_task(True, "dance") == "dance"


def test_controls_need_a_success_and_one_kind_of_truth_is_told(tmp_path):
    found = measured(bright_store(tmp_path / "s", 0, 3))
    assert found.controls == () and math.isnan(found.metrics.roc_auc)
    assert "All frames of the reference are failure" in found.notes[0]
    assert "no reference episode does" in found.notes[1]


def test_a_simulator_cannot_be_asked_about_episodes_that_are_made_up(tmp_path):
    success = np.arange(1, STEPS + 1) >= CUT
    store = bright_store(tmp_path / "s", 2, 0, privileged={"success": success})
    found = evaluate(store, SimulatorJudge(), load_reference_labels(store, ("human",)))
    assert not found.has_probabilities and found.label_metrics.errors == (0, 0)
    assert all(control.frames == 0 for control in found.controls)
    assert "8 controls could not be scored: no simulator knows" in found.notes[0]


# What stands in the ledger


def ledger(store: Store, source: str) -> JudgeEvaluation:
    predictions = {i: labels for i in store.ids if (labels := store.ledger.labels(i, {source}))}
    return compare_labels(store, predictions, load_reference_labels(store, ("human",)), DecisionRule())


def test_labels_that_are_there_are_measured_by_yes_and_no(bright):
    for i in bright.ids[:4]:
        bright.ledger.append(i, Labels.from_cutoff(steps=STEPS, cutoff=CUT + 1, source="cutoff"))
    found = ledger(bright, "cutoff")
    assert found.metrics.episodes == 4 and not found.has_probabilities and found.metrics.threshold == 0.5
    assert found.label_metrics.errors == (1, 1, 1) and found.label_metrics.fp == 1
    assert found.metrics.recall == 9 / 12 and found.controls == ()


@pytest.mark.parametrize(("thresholds", "graded"), [((0.5, 0.5), True), ((0.5, 0.9), False)])
def test_labels_of_several_models_are_not_compared_by_probability(bright, thresholds, graded):
    scores = Scores(np.linspace(0, 1, STEPS + 1).astype(np.float32))
    for i, threshold in zip(bright.ids, thresholds):
        rule = DecisionRule(threshold=threshold)
        bright.ledger.append(i, labels_from_scores(JudgeId("vlm", "m", rule.key()), rule, bright.episode(i), scores))
    found = ledger(bright, "vlm")
    assert found.has_probabilities == graded
    assert bool(found.notes and "of 2 models, thresholds or rules" in found.notes[0]) != graded


def test_who_has_labeled_nothing_cannot_be_measured(bright):
    with pytest.raises(JudgeError, match="it has labeled none of them"):
        ledger(bright, "vlm")


# The reference


def test_the_newest_label_of_those_who_are_believed_is_the_truth(bright):
    bright.ledger.append(0, Labels.from_cutoff(steps=STEPS, cutoff=2, source="cutoff"))
    bright.ledger.append(0, Labels.from_cutoff(steps=STEPS, cutoff=None, source="vlm"))
    assert load_reference_labels(bright, ("human", "cutoff"))[0].sum() == 6
    assert load_reference_labels(bright, ("human",))[0].sum() == 4
    assert list(load_reference_labels(bright, ("human",), ids=[1, 2])) == [1, 2]


def test_a_simulators_flag_is_the_truth_where_nobody_labeled(tmp_path):
    store = Store.create(tmp_path / "s")
    store.append(counting_episode(3, privileged={"success": np.array([0, 0, 1], bool)}))
    assert load_reference_labels(store, ("human", "simulator"))[0].tolist() == [0, 0, 0, 1]


def test_an_excluded_episode_and_a_repeated_frame_have_no_truth(tmp_path):
    store = bright_store(tmp_path / "s", 2, 0, padded="last")
    store.ledger.append(0, Labels.from_targets(np.full(STEPS + 1, np.nan), source="human"))
    truths = load_reference_labels(store, ("human",))
    assert list(truths) == [1] and np.isnan(truths[1][-1])


def test_a_judge_is_never_its_own_reference(bright):
    assert "human" not in resolve_reference(None, "human") and "cutoff" in resolve_reference(None, "human")
    with pytest.raises(JudgeError, match="the judge is 'human' itself"):
        resolve_reference(["human", "cutoff"], "human")


def test_without_a_reference_it_says_what_to_do(bright):
    with pytest.raises(JudgeError, match=r"has no labels of vlm to compare with; label some episodes first"):
        load_reference_labels(bright, ("vlm",))


def test_the_numbers_go_through_json(tmp_path):
    tree = json.loads(json.dumps(measured(bright_store(tmp_path / "s", 0, 2)).to_json(), allow_nan=False))
    assert tree["scores"]["roc_auc"] is None and tree["label_metrics"]["onset_median"] is None
    assert sum(b["count"] for b in tree["calibration"]) == 16
