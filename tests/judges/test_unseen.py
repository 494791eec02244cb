"""A judge is measured on episodes that it has not seen, and says how many it left out."""

import json
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest
import yaml

from bright_square import CUTOFF, STEPS, square_episode, square_store
from brightness import NAME, bright_store
from command import plaudit
from glow import saved
from plaudit.data.episode_keys import episode_keys, pack_keys
from plaudit.data.store import Store
from plaudit.errors import JudgeError
from plaudit.judges.classifier.config import ClassifierJudgeConfig
from plaudit.judges.classifier.judge import ClassifierJudge
from plaudit.judges.evaluation import seen_keys, unseen_reference
from plaudit.types import Labels
from tiny_reward import tiny_model

MODEL = ("--judge", "classifier", "--model", "model")


def model_that_saw(store: Store | None, ids: list[int], folder: Path) -> Path:
    """A reward model with random weights, whose description says that it learned from these episodes; None: nothing."""
    model = tiny_model()
    seen = None if store is None else pack_keys(chain.from_iterable(episode_keys(store, ids).values()))
    data = model.config.data.model_copy(update={"seen": seen})
    model.config = model.config.model_copy(update={"data": data})
    return saved(model, folder)


@pytest.fixture
def squares(tmp_path) -> Store:
    """Four episodes that succeed, four that fail."""
    return square_store(tmp_path / "store", 4, 4, size=16)


def test_episodes_that_a_model_learned_from_are_left_out_and_counted(squares, tmp_path):
    model_that_saw(squares, [0, 1, 4], tmp_path / "model")
    said = plaudit("judge", "eval", "store", *MODEL, "-o", "out", cwd=tmp_path)
    assert "measured on 5 episodes" in said
    assert "note: 3 of 8 were left out, episodes that the judge learned from or chose its threshold" in said
    told = json.loads((tmp_path / "out" / "scores.json").read_text())["notes"]
    assert told[0].startswith("3 of 8 were left out")
    assert "drawn like these 5: all of store" in told[-1] and "without 3 that the judge learned from" in told[-1]
    assert "3 of 8 were left out" in (tmp_path / "out" / "report.html").read_text()


def test_they_can_be_included_and_that_is_told(squares, tmp_path):
    model_that_saw(squares, [0, 1, 4], tmp_path / "model")
    said = plaudit("judge", "eval", "store", *MODEL, "--include-training", cwd=tmp_path)
    assert "measured on 8 episodes" in said and "3 of these 8 are episodes that the judge learned from" in said


def test_nothing_unseen_left_is_one_sentence(squares, tmp_path):
    model_that_saw(squares, squares.ids, tmp_path / "model")
    for command in ("eval", "calibrate"):
        said = plaudit("judge", command, "store", *MODEL, "-o", "out", cwd=tmp_path, ok=False)
        assert "error: all 8 episodes of store with reference labels are episodes that the judge learned from" in said
        assert "nothing unseen is left; use other episodes, or --include-training" in said
        assert not (tmp_path / "out").exists()


def test_a_model_without_a_record_is_said_to_be_unknown(squares, tmp_path):
    model_that_saw(None, [], tmp_path / "model")
    said = plaudit("judge", "eval", "store", *MODEL, cwd=tmp_path)
    assert "measured on 8 episodes" in said
    assert (
        "This judge's model does not say which episodes it was made with (an earlier version or another trainer made"
        in said
    )


def test_a_model_that_saw_none_of_these_needs_no_note(squares, tmp_path):
    other = square_store(tmp_path / "other", 2, 2, size=16)
    other.append(square_episode(True, 99, size=16))
    model_that_saw(other, [4], tmp_path / "model")
    said = plaudit("judge", "eval", "store", *MODEL, cwd=tmp_path)
    assert "measured on 8 episodes" in said and "left out" not in said and "learned from" not in said


def test_copies_in_another_store_are_left_out_too(squares, tmp_path):
    copy = Store.create(tmp_path / "copy")
    for _, episode in squares:
        labels = Labels.from_cutoff(steps=STEPS, cutoff=CUTOFF, source="human")
        copy.ledger.append(copy.append(replace(episode, meta={"copied": True})), labels)
    model = ClassifierJudgeConfig(model=model_that_saw(squares, [1, 2], tmp_path / "model"), device="cpu")
    unseen = unseen_reference(copy, model, model.build(), ("human",), copy.ids)
    assert list(unseen.targets) == [0, 3, 4, 5, 6, 7] and unseen.num_left_out == 2


def test_a_calibration_knows_the_episodes_that_it_was_fitted_on(tmp_path):
    fitted = bright_store(tmp_path / "store", 6, 6)
    plaudit("judge", "calibrate", "store", "--judge", NAME, "-o", "careful.yaml", cwd=tmp_path)
    record = yaml.safe_load((tmp_path / "careful.yaml").read_text())["calibration_record"]
    assert record["fitted_on"] == pack_keys(chain.from_iterable(episode_keys(fitted, fitted.ids).values()))
    careful = ("--config", "careful.yaml", "--allow-code", "brightness")
    said = plaudit("judge", "eval", "store", *careful, cwd=tmp_path, ok=False)
    assert "all 12 episodes of store with reference labels are" in said
    said = plaudit("judge", "calibrate", "store", *careful, "-o", "careful.yaml", cwd=tmp_path)  # it is fitted anew
    assert "fitted on 12 episodes" in said and "left out" not in said


def test_a_calibration_of_an_earlier_version_is_said_to_be_unknown(tmp_path):
    bright_store(tmp_path / "store", 6, 6).close()
    plaudit("judge", "calibrate", "store", "--judge", NAME, "-o", "old.yaml", cwd=tmp_path)
    tree = yaml.safe_load((tmp_path / "old.yaml").read_text())
    del tree["calibration_record"]["fitted_on"], tree["calibration_record"]["num_seen"]
    (tmp_path / "old.yaml").write_text(yaml.safe_dump(tree))
    said = plaudit("judge", "eval", "store", "--config", "old.yaml", "--allow-code", "brightness", cwd=tmp_path)
    assert "This judge's calibration does not say which episodes it was made with" in said


def test_a_calibration_leaves_training_episodes_out_or_says_how_many_it_used(squares, tmp_path):
    model_that_saw(squares, [0, 4], tmp_path / "model")
    said = plaudit("judge", "calibrate", "store", *MODEL, "-o", "a.yaml", cwd=tmp_path)
    assert "note: 2 of 8 were left out" in said and "a.yaml: fitted on 6 episodes" in said
    said = plaudit("judge", "calibrate", "store", *MODEL, "-o", "b.yaml", "--include-training", cwd=tmp_path)
    assert "2 of these 8 are episodes that the judge learned from" in said and "b.yaml: fitted on 8 episodes" in said
    counts = [yaml.safe_load((tmp_path / f"{n}.yaml").read_text())["calibration_record"]["num_seen"] for n in "ab"]
    assert counts == [0, 2]


def test_labels_of_a_model_in_the_ledger_say_that_it_is_not_known(squares, tmp_path):
    model_that_saw(squares, [0], tmp_path / "model")
    plaudit("label", "store", *MODEL, cwd=tmp_path)
    said = plaudit("judge", "eval", "store", "--judge", "ledger", "--source", "classifier", cwd=tmp_path)
    assert "Labels in the ledger do not say which episodes their judge learned from" in said
    refused = ("--judge", "ledger", "--source", "classifier", "--include-training")
    assert "leave out" in plaudit("judge", "eval", "store", *refused, cwd=tmp_path, ok=False)


def test_a_list_that_somebody_damaged_is_refused(squares):
    judge = ClassifierJudge(tiny_model())
    judge.trained_on = "?"
    with pytest.raises(JudgeError, match="the list of episodes that were used for this judge's model cannot be read"):
        seen_keys(ClassifierJudgeConfig(model=Path("model")), judge)
