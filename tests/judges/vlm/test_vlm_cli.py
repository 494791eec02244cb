"""The tiny model behind the commands: it labels, is measured, is calibrated, and speaks."""

import json
import re
import shlex
import sys

import pytest
import yaml

from plaudit.cli import main
from plaudit.data.ledger import Failures
from plaudit.data.store import Store
from plaudit.judges.config import load_judge_config, uncalibrated_warning
from plaudit.registry import JUDGE_REGISTRY
from plaudit.rule import threshold_of
from plaudit.types import Labels
from tiny_vlm import moving

EPISODES, STEPS = 6, 5


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    def run(*words, code=0):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("COLUMNS", "200")
        monkeypatch.setattr(sys, "argv", ["plaudit", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        said = "".join(capsys.readouterr())
        assert ended.value.code == code, said
        return said

    return run


@pytest.fixture
def store(tmp_path, tiny):
    """Six episodes, of which every second succeeds from frame 3 on, by a person's word; and a judge's file."""
    with Store.create(tmp_path / "data") as store:
        for number in range(EPISODES):
            cutoff = 3 if number % 2 else None
            label = Labels.from_cutoff(steps=STEPS, cutoff=cutoff, source="human")
            store.ledger.append(store.append(moving(STEPS, seed=number)), label)
    judge = {"type": "vlm", "model": str(tiny), "image_size": 64, "max_new_tokens": 4}
    (tmp_path / "judge.yaml").write_text(yaml.safe_dump(judge))
    return tmp_path / "data"


def test_it_labels_what_the_scorer_says_and_not_twice(run, store, scorer):
    said = run("label", "data", "--config", "judge.yaml")  # random weights see success in the first frame
    assert "0 episodes of data labeled by vlm" in said and "6 left without labels, see the warnings" in said
    opened = Store.open(store)
    labels = opened.ledger.labels(2, {"vlm"})
    assert labels.judge.fingerprint == scorer.fingerprint and labels.scores.success_prob.shape == (STEPS + 1,)
    assert "6 were done already" in run("label", "data", "--config", "judge.yaml")
    assert len(Store.open(store).ledger) == len(opened.ledger)


def test_it_says_that_it_runs_on_the_processor(run, store):
    assert "runs on the processor" in run("label", "data", "--config", "judge.yaml", "--dry-run")


def test_it_is_also_asked_with_a_wrong_instruction(run, store, tmp_path):
    run("judge", "eval", "data", "--config", "judge.yaml", "--output-dir", "eval", "--episodes", "0,1")
    controls = json.loads((tmp_path / "eval/scores.json").read_text())["controls"]
    assert any(control["name"] == "wrong task" for control in controls)


def test_a_calibrated_judge_is_a_file_that_labels_again(run, store, tmp_path):
    run("label", "data", "--config", "judge.yaml")
    run("judge", "calibrate", "data", "--config", "judge.yaml", "--output", "careful.yaml", "--target-fpr", "0.2")
    rule = yaml.safe_load((tmp_path / "careful.yaml").read_text())["rule"]
    assert "6 episodes of data labeled" in run("label", "data", "--config", "careful.yaml")
    assert threshold_of(Store.open(store).ledger.labels(0, {"vlm"}).judge) == rule["threshold"]


def test_uncalibrated_it_says_so_and_is_not_in_charge_of_a_robot_unless_forced(run, store, tmp_path):
    told = "this judge is not calibrated"
    assert told in run("label", "data", "--config", "judge.yaml", "--dry-run")
    run("judge", "calibrate", "data", "--config", "judge.yaml", "--output", "careful.yaml", "--target-fpr", "0.2")
    assert told not in run("label", "data", "--config", "careful.yaml", "--dry-run")
    words = ("online", "learner=qchunk", "demos.store=none")  # which ends it right after the judge was looked at
    refused = run(*words, "robot=igris_b", "judge=judge.yaml", code=1)
    assert f"igris_b is a robot, and {told}" in refused and "judge.force=true" in refused
    assert "none does not exist" not in refused and not (tmp_path / "runs").exists()
    for others in (
        ("robot=igris_b", "judge=judge.yaml", "judge.force=true"),
        ("env=lift", "env.obs=both", "judge=judge.yaml"),
    ):
        said = run(*words, *others, code=1)
        assert f"warning: {told}" in said and "none does not exist" in said
    said = run(*words, "robot=igris_b", "judge=careful.yaml", code=1)
    assert told not in said and "igris_b is a robot, and its judge has no certificate" in said
    assert "none does not exist" in run(*words, "robot=igris_b", "judge=careful.yaml", "judge.force=true", code=1)


def test_the_command_that_calibrates_it_has_all_of_its_settings():
    settings = {"model": "my models/8B", "success_criteria": "upright: on the coaster, 'still'", "task": "7"}
    settings |= {"cameras": ["head"], "rule": {"threshold": 0.7}, "force": True}
    settings |= {"backend": "openai", "endpoint": {"base_url": "http://a:1/v1"}}
    asked = JUDGE_REGISTRY.parse({"type": "vlm", **settings})
    command = re.search(r"plaudit judge calibrate STORE (.*) --output judge.yaml", uncalibrated_warning(asked))
    _, name, *keys = shlex.split(command.group(1))
    assert load_judge_config(None, name, {}, keys) == asked.model_copy(update={"force": False})


def test_words_that_cannot_be_read_are_kept_on_the_record_and_label_nothing(run, store, tmp_path):
    before = len(Store.open(store).ledger)
    said = run("judge", "explain", "data", "--config", "judge.yaml", "--episodes", "1", "-o", "said.jsonl", code=1)
    opened = Store.open(store)
    (failure,) = Failures(opened.ledger).unresolved()
    assert "human says success" in said and "1 answers could not be parsed" in said
    assert (failure.episode, failure.source) == (1, "vlm_explanation") and "does not end in" in failure.reason
    assert json.loads((tmp_path / "said.jsonl").read_text())["answer"] is None
    assert len(opened.ledger) == before
