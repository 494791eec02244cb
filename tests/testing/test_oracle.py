"""What the simulator's oracle says of transitions that should not have been sampled, or not like that."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from plaudit.config import parse
from plaudit.data.store import Store
from plaudit.rollout.recording import append_marked
from plaudit.rule import DecisionRule
from plaudit.testing.env import write_model
from plaudit.testing.oracle import Oracle
from plaudit.testing.scenario import Scenario
from plaudit.training.config import TrainingConfig
from plaudit.types import Episode, JudgeId, Labels, Scores

GAMMA = 0.95
PER_FRAME = DecisionRule(decode="per_frame")


def config(folder: Path, **keys: object) -> TrainingConfig:
    write_model(folder / "judge", {})
    return parse(TrainingConfig, Scenario(0, "online", "classifier", keys).tree(folder))


def judged(*success: int, ood: str = "", rule: DecisionRule = PER_FRAME) -> Labels:
    scores = Scores(np.float32(success), np.float32([0, 0.2, 0.4, 0.6]), ood=ood)
    labeled = np.full(len(success), not (ood and rule.withholds))
    return Labels(np.array(success, bool) & labeled, labeled, JudgeId("classifier", "a", rule.key()), scores)


@pytest.fixture
def store(tmp_path):
    with Store.create(tmp_path / "store") as made:
        lost = {"success": np.zeros(3, bool), "failure": np.array([False, False, True])}
        made.append(Episode.of(frames={}, actions=np.zeros((3, 2)), state=np.zeros((4, 3)), terminated=False))
        made.append(
            Episode.of(frames={}, actions=np.zeros((3, 2)), state=np.zeros((4, 3)), privileged=lost, terminated=True)
        )
        yield made


def test_a_success_pays_one_and_ends_the_episode(tmp_path, store):
    store.ledger.append(0, judged(0, 0, 1, 1))
    oracle = Oracle(config(tmp_path), store, "classifier", 1)
    assert oracle.problem(0, 0, 0.0, GAMMA) == "" and oracle.problem(0, 1, 1.0, 0.0) == ""
    assert "not 1" in oracle.problem(0, 1, 0.0, GAMMA)
    assert "after the episode's end" in oracle.problem(0, 2, 1.0, 0.0)


def test_a_person_counts_before_the_judge_and_excludes(tmp_path, store):
    store.ledger.append(0, judged(0, 0, 0, 1))
    store.ledger.append(0, Labels.from_cutoff(steps=3, cutoff=None, source="human"))
    store.ledger.append(0, judged(0, 0, 1, 1))
    oracle = Oracle(config(tmp_path), store, "classifier", 1)
    assert "labeled by human" in oracle.problem(0, 2, 1.0, 0.0) and oracle.problem(0, 2, 0.0, GAMMA) == ""
    store.ledger.append(0, Labels.from_targets(np.full(4, np.nan), "human"))
    assert "excluded" in oracle.problem(0, 2, 0.0, GAMMA)


def test_a_demonstration_that_was_excluded_before_the_run_pays_nothing(tmp_path, store):
    store.ledger.append(0, Labels.from_targets(np.full(4, np.nan), "human"))
    labeled = Store.open(store.folder, labels=tmp_path / "of_the_run")
    labeled.ledger.extend([(0, judged(0, 0, 1, 1)), (1, judged(0, 0, 0, 1))])
    oracle = Oracle(config(tmp_path), labeled, None, 1, demos=True, original=store)
    assert [oracle.can_pay(i) for i in (0, 1)] == [False, True]


def test_nobody_else_counts(tmp_path, store):
    store.ledger.append(0, Labels.from_cutoff(steps=3, cutoff=2, source="simulator"))
    assert "source that counts" in Oracle(config(tmp_path), store, "classifier", 1).problem(0, 0, 0.0, GAMMA)


def test_an_operators_failure_is_terminal(tmp_path, store):
    marked = append_marked(store, replace(store.episode(0), meta={"operator": "failure"}))
    oracle = Oracle(config(tmp_path), store, "classifier", 1)
    assert oracle.problem(marked, 2, 0.0, 0.0) == "" and "discount 0.95" in oracle.problem(marked, 2, 0.0, GAMMA)


def test_shaping_is_taken_back_where_an_episode_is_lost(tmp_path, store):
    store.ledger.extend([(0, judged(0, 0, 0, 0)), (1, judged(0, 0, 0, 0))])
    oracle = Oracle(config(tmp_path, **{"reward.shaping": 1.0}), store, "classifier", 1)
    kept = GAMMA * np.float32(0.6) - np.float32(0.4)
    assert oracle.problem(0, 2, kept, GAMMA) == ""
    assert oracle.problem(1, 2, -0.4, 0.0) == "" and oracle.problem(1, 2, kept, 0.0)


@pytest.mark.parametrize(
    ("labels", "why"),
    [
        (judged(0, 0, 0, 1, ood="odd", rule=DecisionRule(decode="per_frame", ood="audit")), "withholds"),
        (judged(1, 1, 1, 1), "before anything was done"),
        (judged(0, 1, 1, 1, rule=DecisionRule(k=2, n=3)), "before anything was done"),
    ],
)
def test_what_is_withheld_pays_nothing_until_a_person_says_so(tmp_path, store, labels, why):
    store.ledger.append(0, labels)
    oracle = Oracle(config(tmp_path), store, "classifier", 1)
    assert why in oracle.problem(0, 0, 0.0, GAMMA)
    store.ledger.append(0, replace(labels, labeled=np.ones(4, bool)))  # as a simulator's audit would release it
    assert why in oracle.problem(0, 0, 0.0, GAMMA)
    store.ledger.append(0, Labels.from_cutoff(steps=3, cutoff=3, source="human"))
    assert oracle.problem(0, 0, 0.0, GAMMA) == ""


def test_returns_over_several_steps_stop_at_the_end(tmp_path, store):
    store.ledger.append(0, judged(0, 0, 0, 1))
    oracle = Oracle(config(tmp_path), store, "classifier", 2)
    assert oracle.problem(0, 0, 0.0, GAMMA**2) == "" and oracle.problem(0, 1, GAMMA, 0.0) == ""
