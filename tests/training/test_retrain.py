"""A judge that is fooled, the alarm, and the way out: trained again from audited labels, it is replaced or it stays."""

import json
import os
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest

from bright_square import CUTOFF, STEPS
from decoys import decoy, judge_all, play, played, weak_judge
from plaudit.config import parse
from plaudit.data.replay import ReplaySampler
from plaudit.data.store import Store
from plaudit.errors import ConfigError
from plaudit.judges.cascade import CascadeConfig
from plaudit.judges.classifier.config import ClassifierJudgeConfig
from plaudit.judges.epochs import EpochMetrics, TrainingInterrupted
from plaudit.judges.guarantee import Rights
from plaudit.judges.human.judge import HumanJudgeConfig
from plaudit.judges.labeling import stale_episodes
from plaudit.rule import DecisionRule
from plaudit.training.audit import AuditConfig, LedgerAudit
from plaudit.training.retrain import (
    PromotionDecision,
    RetrainConfig,
    Retrainer,
    current_judge,
    decisions,
    last_promotion,
)
from plaudit.types import Labels
from waiting import wait_until

AUDIT = AuditConfig(fraction=1.0)
QUICK = {"epochs": 16, "patience": 16}


@dataclass(frozen=True)
class Weak:
    """A judge without experience of decoys, and what it was trained on."""

    judge: ClassifierJudgeConfig
    data: Path

    def retrainer(self, folder: Path, **changes) -> Retrainer:
        config = RetrainConfig(data=(self.data,), min_episodes=10, train_overrides=QUICK, nice=0)
        return Retrainer(folder / "judges", self.judge, config.model_copy(update=changes))


@pytest.fixture(scope="module")
def weak(tmp_path_factory) -> Weak:
    folder = tmp_path_factory.mktemp("weak")
    return Weak(weak_judge(folder), folder / "data")


@dataclass
class Story:
    """What happened in the background."""

    store: Store
    audit: LedgerAudit
    retrainer: Retrainer
    rang: str  # the sentence of the alarm
    gap: float  # then
    found: PromotionDecision
    meanwhile: int  # times that somebody else could work
    judged_again: list[int]


@pytest.fixture(scope="module")
def story(weak: Weak, tmp_path_factory) -> Story:
    folder = tmp_path_factory.mktemp("story")
    store, audit, retrainer = Store.create(folder / "run"), LedgerAudit(AUDIT, "classifier"), weak.retrainer(folder)
    play(store, successes=8, decoys=16, first_seed=100)
    judge_all(store, retrainer.judge)
    audit.read_labels(store)
    rang, gap = audit.status, audit.current.gap
    assert judge_all(store, retrainer.judge) == [], "that the truth is on top in the ledger is no reason to judge again"
    assert audit.current.blocks_learning and retrainer.should_retrain(store)
    retrainer.launch(store.folder)
    assert retrainer.running and not retrainer.should_retrain(store)
    found, meanwhile = waited(retrainer)
    return Story(store, audit, retrainer, rang, gap, found, meanwhile, judge_all(store, retrainer.judge))


def waited(retrainer: Retrainer) -> tuple[PromotionDecision, int]:
    polls: list[PromotionDecision | None] = []

    def decided() -> bool:
        polls.append(retrainer.poll())
        return polls[-1] is not None

    wait_until(decided, 180)
    assert polls[-1] is not None
    return polls[-1], len(polls) - 1


# From the alarm to a judge that is right


@pytest.mark.slow
def test_a_judge_that_calls_false_successes_makes_the_alarm_ring(story):
    assert story.gap == pytest.approx(2 / 3)  # all 24 called, 8 of them are one
    assert (
        "the policy may have learned to exploit the judge" in story.rang
        and "learning stops until another judge" in story.rang
    )


@pytest.mark.slow
def test_one_trained_from_audited_labels_replaces_it_while_others_work(story):
    found = story.found
    assert found.promoted and found.message.startswith("promoted a new version of the judge: balanced accuracy 100%")
    assert found.candidate.fpr == 0 and found.current.fpr > 0.3 and found.candidate.fnr == 0
    assert found.candidate.problems == () and story.meanwhile > 10


@pytest.mark.slow
def test_with_the_new_judge_the_gap_closes(story):
    play(story.store, successes=8, decoys=16, first_seed=200)
    judge_all(story.store, story.retrainer.judge)
    story.audit.read_labels(story.store)
    audit = story.audit.current
    assert audit.num_episodes == 24 and abs(audit.gap) <= 0.1 and audit.alarm is None


@pytest.mark.slow
def test_old_episodes_are_judged_again_on_top_and_what_was_said_before_stays(story):
    first = list(range(24))
    assert story.judged_again == first
    judge = story.retrainer.judge.build()
    assert stale_episodes(story.store.ledger, judge.id, first) == []
    history = story.store.ledger.history(20)  # a decoy
    assert [v.source for v in history] == ["classifier", "simulator", "classifier"]
    assert [v.labels().success_once for v in history] == [True, False, False]
    assert history[0].line["model"] != history[2].line["model"] == judge.id.fingerprint
    assert stale_episodes(story.store.ledger, judge.id, first, newest_only=True) == [], (
        "its word is also the newest of all"
    )


@pytest.mark.slow
def test_the_learner_is_paid_by_the_new_judge_from_then_on(story):
    replay = ReplaySampler(story.store, sources=({"classifier"},), seed=0)
    batch = replay.sample(512)
    decoys = (batch.episode >= 8) & (batch.episode < 24)
    assert batch.reward[decoys].max() == 0 and batch.reward[batch.episode < 8].max() == 1


@pytest.mark.slow
def test_the_decision_is_on_disk_and_a_restart_finds_the_judge_current_judge(weak, story):
    folder = story.retrainer.folder
    told = json.loads((folder / "0001/promotion.json").read_text())
    assert (
        told["promoted"]
        and told["candidate"]["fpr"] == 0
        and told["current"]["num_episodes"] == told["candidate"]["num_episodes"]
    )
    (line,) = map(json.loads, (folder / "history.jsonl").read_text().splitlines())
    assert line == told
    assert last_promotion(folder) == PromotionDecision.read(folder / "0001") == story.found
    assert weak.retrainer(folder.parent).judge.model == folder / "0001"
    assert weak.retrainer(folder.parent).judge.build().id.fingerprint == story.found.candidate.fingerprint
    assert not (folder / ".candidate/model").exists()


@pytest.mark.slow
def test_what_is_logged(story):
    told = story.retrainer.metrics()
    assert (told["judge/version"], told["judge/num_retrainings"], told["judge/num_rejected"]) == (1, 1, 0)
    assert told["judge/val_balanced_accuracy"] == 1 and told["judge/val_fpr"] == told["judge/val_fnr"] == 0
    assert told["judge/val_frame_fpr"] <= 0.05


@pytest.mark.slow
def test_no_held_out_episode_was_learned_from(story):
    keys = [
        {store.entry(i).line["meta"]["retrain"]["key"] for i in store.ids}
        for store in map(Store.open, (story.retrainer.data.train, story.retrainer.data.val))
    ]
    assert not keys[0] & keys[1] and len(keys[1]) == story.found.candidate.episodes


# The old one stays


def labeled_run(folder: Path, retrainer: Retrainer, flipped: bool) -> Store:
    """LabelStats by a person who, where nobody checks, says the opposite of what is true."""
    store = Store.create(folder / "run")
    for episode_id in play(store, successes=12, decoys=12, first_seed=300):
        true = store.episode(episode_id).success.any()
        said = true != (flipped and not retrainer.data.is_held_out(store, episode_id))
        store.ledger.append(episode_id, Labels.from_cutoff(steps=STEPS, cutoff=6 if said else None, source="human"))
    return store


@pytest.mark.slow
def test_one_that_was_trained_on_flipped_labels_is_refused(weak, tmp_path):
    retrainer = weak.retrainer(tmp_path, data=(), train_overrides={"epochs": 5})
    store = labeled_run(tmp_path, retrainer, flipped=True)
    found = retrainer.run(store)
    assert not found.promoted and found.message.startswith("rejected a new version of the judge: ")
    assert (
        found.candidate.balanced_accuracy < found.current.balanced_accuracy and (found.model / "model.json").is_file()
    )
    assert last_promotion(retrainer.folder) is None and retrainer.judge == weak.judge
    assert [
        line["promoted"] for line in map(json.loads, (retrainer.folder / "history.jsonl").read_text().splitlines())
    ] == [False]
    assert retrainer.metrics()["judge/version"] == 0 and not retrainer.should_retrain(store)


def test_episodes_of_one_kind_are_a_sentence_and_the_next_try_comes_with_new_labels(weak, tmp_path):
    retrainer = weak.retrainer(tmp_path, data=())
    store = Store.create(tmp_path / "run")

    def fail(count: int) -> None:
        for episode_id in store.extend([played(False, 400 + len(store) + n) for n in range(count)]):
            store.ledger.append(episode_id, Labels.from_cutoff(steps=STEPS, cutoff=None, source="human"))

    fail(20)
    assert retrainer.should_retrain(store)
    found = retrainer.run(store)
    assert not found.promoted and found.model is None and (found.current, found.candidate) == (None, None)
    assert "no new version of the judge could be trained: all" in found.message and "are failure" in found.message
    fail(19)
    assert not retrainer.should_retrain(store)
    fail(1)
    assert retrainer.should_retrain(store)


def test_it_is_due_with_enough_labels_of_those_who_are_believed(weak, tmp_path):
    retrainer, store = weak.retrainer(tmp_path, min_episodes=6, min_new_labels=4), Store.create(tmp_path / "run")
    ids = store.extend([decoy(500 + n) for n in range(6)])
    for source, due in (("classifier", False), ("human", True)):
        for episode_id in ids:
            store.ledger.append(episode_id, Labels.from_cutoff(steps=STEPS, cutoff=None, source=source))
        assert retrainer.should_retrain(store) == due and retrainer.num_new_labels(store) == 6 * due
    assert not weak.retrainer(tmp_path, min_episodes=7).should_retrain(store)


# Stops and crashes


def test_one_that_was_stopped_goes_on_and_nothing_was_decided_meanwhile(weak, tmp_path):
    retrainer = weak.retrainer(tmp_path, train_overrides={"epochs": 3})
    store = labeled_run(tmp_path, retrainer, flipped=False)
    with pytest.raises(TrainingInterrupted):
        retrainer.run(store, lambda now: not (isinstance(now, EpochMetrics) and now.epoch == 2))
    assert decisions(retrainer.folder) == []
    seen = []
    retrainer.run(store, lambda now: seen.append(now) or True)
    assert [now.epoch for now in seen if isinstance(now, EpochMetrics)] == [3] and len(decisions(retrainer.folder)) == 1


@pytest.mark.slow
def test_one_that_is_killed_is_a_sentence_and_one_that_is_told_to_stop_is_not(weak, tmp_path):
    retrainer = weak.retrainer(tmp_path)
    store = labeled_run(tmp_path, retrainer, flipped=False)
    retrainer.launch(store.folder)
    retrainer.stop()
    assert not retrainer.running and retrainer.poll() is None and decisions(retrainer.folder) == []
    retrainer.launch(store.folder)
    os.kill(retrainer._child.pid, signal.SIGKILL)
    found, _ = waited(retrainer)
    assert not found.promoted and found.message.endswith("the retraining process was killed by SIGKILL")
    assert not retrainer.should_retrain(store) and retrainer.judge == weak.judge


@pytest.mark.slow
def test_one_that_is_done_when_it_is_told_to_stop_says_what_it_decided(weak, tmp_path):
    retrainer = weak.retrainer(tmp_path, train_overrides={"epochs": 1})
    store = labeled_run(tmp_path, retrainer, flipped=False)
    retrainer.launch(store.folder)
    wait_until(lambda: decisions(retrainer.folder), what="for a decision")
    assert retrainer.stop() == decisions(retrainer.folder)[-1]
    assert retrainer.stop() is None


def test_a_half_written_one_is_nobodys_judge(weak, tmp_path):
    shutil.copytree(weak.judge.model, tmp_path / "judges/.candidate/model")
    (tmp_path / "judges/0001").mkdir()
    assert decisions(tmp_path / "judges") == [] and current_judge(weak.judge, tmp_path / "judges") == weak.judge


# Settings


def test_a_judge_is_not_taught_by_judges():
    with pytest.raises(ConfigError, match="a judge is not trained on labels of 'classifier'; trusted are: human"):
        parse(RetrainConfig, {"sources": ["human", "classifier"]})


@pytest.mark.slow
def test_what_was_fitted_on_the_old_model_does_not_go_on_to_the_new_one(story, weak):
    strict = weak.judge.model_copy(
        update={"rule": DecisionRule(threshold=0.99, cutoff_offset=3, decode="k_of_n", k=3, n=4)}
    )
    rule = current_judge(strict, story.retrainer.folder).rule
    assert (rule.decode, rule.k, rule.n) == ("k_of_n", 3, 4)
    assert rule.model_fields_set == {"decode", "k", "n"}, "threshold and offset are the new model's own"


# A stage of a cascade


@pytest.mark.slow
@pytest.mark.parametrize(("max_error", "promoted"), [(0.4, True), (0.01, False)])
def test_a_stage_is_trained_by_what_a_human_decides_and_replaced_by_one_that_may_decide_as_much(
    weak, tmp_path, max_error, promoted
):
    tried = {"max_error": max_error, "confidence": 0.6, "failures": 99, "successes": 99, "k": 2, "n": 3}
    rights = Rights(fingerprint=weak.judge.build().id.fingerprint, success_from=0.9, failure_to=0.1, **tried)
    stage = weak.judge.model_copy(update={"rights": rights})
    cascade = CascadeConfig(stages=(stage, HumanJudgeConfig()), check=0.3)
    store = Store.create(tmp_path / "run")
    for i in play(store, successes=20, decoys=24, first_seed=100):
        store.ledger.append(i, Labels.from_cutoff(steps=STEPS, cutoff=CUTOFF if i < 20 else None, source="human"))
    config = RetrainConfig(data=(weak.data,), min_episodes=10, train_overrides=QUICK, nice=0)
    found = Retrainer(tmp_path / "judges", stage, config, cascade=cascade).run(store)
    now = current_judge(cascade, tmp_path / "judges")
    assert found.promoted == promoted and isinstance(now, CascadeConfig)
    if promoted:
        judge = now.build()
        assert judge.warnings == [] and now.models[0].resolved().rights.failures >= 3 and now.human == cascade.human
    else:
        assert "it would lose a right to decide" in found.message and now is cascade
