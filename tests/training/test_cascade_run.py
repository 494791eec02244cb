"""A cascade in an online run: a lamp, a classifier of its brightness, and a human who is asked about the rest.

The classifier draws the line at 0.6, and may decide alone below a score of 0.1 and above one of 0.9.
"""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

import glow
from conftest import counting_episode
from plaudit.data.store import Store
from plaudit.errors import ConfigError
from plaudit.judges.cascade import CascadeConfig
from plaudit.judges.classifier.config import ClassifierJudgeConfig
from plaudit.judges.config import save_rights
from plaudit.judges.guarantee import Rights
from plaudit.judges.human.judge import HumanJudgeConfig
from plaudit.report.run import write_run_report
from plaudit.training.audit import AuditConfig, CascadeLedger, LedgerAudit
from plaudit.training.config_file import load_training_config
from plaudit.training.online import OnlineState, OnlineTrainer
from plaudit.training.replay_buffer import ReplayBuffer
from plaudit.training.retrain import current_judge
from plaudit.training.run_folder import RunFolder
from plaudit.training.workers.group import LocalWorkerGroup
from plaudit.training.workers.labelers import JudgeBundle
from plaudit.types import CascadeResult, JudgeId, Labels, Scores

STEPS = 12


def model(folder: Path) -> Path:
    """A reward model with rights in its folder."""
    glow.saved(glow.bright_model(0.6), folder)
    (folder / "judge.yaml").write_text(yaml.safe_dump({"type": "classifier", "rule": {"decode": "per_frame"}}))
    built = ClassifierJudgeConfig(model=folder).build()
    tried = {"max_error": 0.05, "confidence": 0.9, "failures": 60, "successes": 60, "k": 1, "n": 1}
    save_rights(folder, Rights(fingerprint=built.id.fingerprint, success_from=0.9, failure_to=0.1, **tried))
    return folder


def words(folder: Path, *more: str) -> list[str]:
    asked = [word for word in glow.online(folder) if not word.startswith("judge")]
    return [*asked, "judge=cascade", f"judge.stages=[{folder},human]", "judge.retrain=null", *more]


def cascade(folder: Path, **more: object) -> CascadeConfig:
    return CascadeConfig(stages=(ClassifierJudgeConfig(model=folder), HumanJudgeConfig()), **more)


# The run


def test_a_run_learns_from_what_stages_and_the_human_decide_and_from_nothing_else(tmp_path):
    asked = words(
        model(tmp_path / "judge"),
        "judge.check=0.2",
        "judge.window.open=false",
        "run.max_episodes=14",
        "evaluation.freq=9999",
    )
    folder = RunFolder.open(tmp_path / "run", load_training_config("online", None, [*asked, "audit.fraction=0"]))
    workers = LocalWorkerGroup(folder, serial=True)
    requests = tmp_path / "run/episodes/label_requests.json"

    def watch(now: OnlineState) -> bool:
        """A human who answers what is asked, but of the first 10 episodes only."""
        store = Store.open(tmp_path / "run/episodes") if requests.exists() else None
        for i in json.loads(requests.read_text()) if store is not None else []:
            if i < 10 and store is not None and store.ledger.newest(i, {"human"}) is None:
                store.ledger.append(i, Labels.from_cutoff(steps=STEPS, cutoff=3, source="human"))
        return True

    try:
        end = OnlineTrainer(folder, workers).run(watch)
    finally:
        workers.close()
        folder.close()
    store = Store.open(tmp_path / "run/episodes")
    sources = [store.ledger.current(i, {"cascade", "human"}).source for i in store.ids]
    undecided = [i for i in store.ids if not store.ledger.labels(i, {"cascade", "human"}).labeled.any()]
    by_lot = [i for i in store.ids if "by lot" in store.ledger.labels(i, {"cascade"}).note]
    shares = {name: end.judge_metrics[f"judge/cascade_share/{name}"] for name in ("classifier", "human")}
    assert sources.count("human") and 0 < len(by_lot) < 14 and not set(undecided) & set(range(10))
    assert shares["human"] == sources.count("human") / 14
    assert shares["classifier"] == (14 - sources.count("human") - len(undecided)) / 14 > 0
    assert end.judge_metrics["judge/undecided_episodes"] == len(undecided)
    assert end.judge_metrics["judge/human_s"] == 30 * sources.count("human")
    assert end.replay.labeled_steps == STEPS * (14 - len(undecided)) and end.replay.unlabeled == 0
    assert end.updates == STEPS * (14 - len(undecided)) // 2
    page = write_run_report(tmp_path / "run").read_text()
    assert "of the episodes, decided by" in page and f"human {shares['human']:.0%}" in page


def test_a_stages_files_travel_with_the_cascade(tmp_path):
    config = cascade(model(tmp_path / "judge"))
    bundle = JudgeBundle.of(config)
    assert bundle.unpack(tmp_path / "elsewhere").build_with_progress().id == config.build().id
    other = config.model_copy(update={"check": 0.2})
    assert JudgeBundle.of(other).identity != bundle.identity


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("judge.budget=0", "0 minutes of a human per hour is not a valid budget"),
        ("judge.rule.k=1", "a cascade has no rule of its own"),
        ("judge.stages=[human]", "a cascade needs a stage before the human"),
    ],
)
def test_a_mistake_is_told_before_anything_is_made(tmp_path, word, sentence):
    with pytest.raises(ConfigError, match=sentence):
        load_training_config("online", None, words(model(tmp_path / "judge"), word))


# Who is asked


def undecided(time: float, why: str) -> Labels:
    scores = Scores(np.full(5, np.nan, np.float32), cascade=CascadeResult("", 0.1, why))
    return replace(Labels.from_targets(scores.success_prob, "cascade"), scores=scores, time=time)


def test_a_human_is_asked_about_lots_and_disputes_first_and_no_more_than_the_budget_allows(tmp_path):
    store = Store.create(tmp_path / "store")
    for i, why in enumerate(["unsure", "unsure", "disagreement", "by lot", "unsure"]):
        store.append(counting_episode(4, first=i))
        store.ledger.append(i, undecided(1000.0, why))
    folder = model(tmp_path / "judge")
    assert CascadeLedger(cascade(folder)).requested(store) == [3, 2, 0, 1, 4]
    tally = CascadeLedger(cascade(folder, budget=1.0))  # two episodes of 30 s
    assert tally.requested(store) == [3, 2]
    human = Labels.from_cutoff(steps=4, cutoff=2, source="human")
    store.ledger.append(3, replace(human, time=1001.0))
    assert tally.requested(store) == [2]
    store.ledger.append(2, replace(human, time=1002.0))
    assert tally.requested(store) == [] and len(tally.undecided) == 3
    store.ledger.append(4, undecided(1002.0 + 1800, "unsure"))  # half an hour later there is time for one
    assert tally.requested(store) == [0]
    assert tally.metrics()["judge/human_s"] == 60


def test_what_a_cascade_leaves_undecided_is_no_label_for_its_audit(tmp_path):
    store, audit = Store.create(tmp_path / "store"), LedgerAudit(AuditConfig(), "cascade")
    store.append(counting_episode(4))
    store.ledger.append(0, undecided(1.0, "unsure"))
    store.ledger.append(0, Labels.from_cutoff(steps=4, cutoff=2, source="human"))
    audit.read_labels(store)
    assert audit.current.num_episodes == 0 and audit.requested(store) == []


def test_labels_of_a_later_stage_are_stored_before_the_cascades_and_once(tmp_path):
    buffer = ReplayBuffer(tmp_path)
    buffer.add(counting_episode(4), "key")
    (ref,) = buffer.pending(JudgeId("cascade", "abc"))
    own = Labels.from_cutoff(steps=4, cutoff=2, source="vlm")
    scores = Scores(own.targets, note="decided by vlm, 5 s", parts=(own,))
    said = replace(own, judge=JudgeId("cascade", "abc"), scores=scores)
    for _ in range(2):
        buffer.add_labels({ref: said}, {}, said.judge)
    assert [v.source for v in Store.open(tmp_path / "episodes").ledger.history(0)] == ["vlm", "cascade"]
    buffer.close()


def test_the_first_classifier_of_a_cascade_is_the_one_that_is_trained_again(tmp_path):
    config = cascade(model(tmp_path / "judge"))
    assert current_judge(config, tmp_path / "versions") is config
