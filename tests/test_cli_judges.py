"""Judges as a user types them: labeling, measuring, calibrating, and every way to get it wrong."""

import json
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from brightness import CUT, NAME, STEPS, bright_store
from conftest import counting_episode
from glow import bright_model, saved
from plaudit.cli import main
from plaudit.data.formats import WriteOptions
from plaudit.data.store import Store
from plaudit.data.transfer import export_dataset
from plaudit.rule import DecisionRule
from plaudit.types import JudgeId, Labels

Run = Callable[..., str]


@pytest.fixture
def run(tmp_path, monkeypatch, capsys) -> Run:
    """The command in this process, from the folder of the test, with the network shut; returns what it printed."""

    def refuse(*_: object) -> None:
        raise AssertionError("this command opened a network connection")

    def run(*words: object, ok: bool = True) -> str:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(socket.socket, "connect", refuse)
        monkeypatch.setenv("COLUMNS", "200")
        monkeypatch.setattr(sys, "argv", ["plaudit", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        said = "".join(capsys.readouterr())
        assert (ended.value.code == 0) == ok, said
        return said

    return run


@pytest.fixture
def store(tmp_path) -> Store:
    """Three episodes that succeed from frame 4 on, three that stay dark, labeled by a person."""
    return bright_store(tmp_path / "store")


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


# plaudit label


def test_a_judge_labels_a_store_and_goes_on_where_it_was(run, store):
    said = run("label", "store", "--judge", NAME, "--episodes", "0,4")
    assert "2 episodes of store labeled by brightness (1 called a success).\n" in said
    said = run("label", "store", "--judge", NAME)
    assert "4 episodes of store labeled by brightness (2 called a success), 2 were done already" in said
    store.ledger.refresh()
    assert store.ledger.labels(0, {"brightness"}).targets.tolist() == [float(t >= CUT + 1) for t in range(STEPS + 1)]
    assert store.ledger.current(0).source == "human" and "have labels of 'human', which still count" in said
    assert "0 episodes of store labeled by brightness, 6 were done already" in run("label", "store", "--judge", NAME)


def test_a_dry_run_says_what_would_be_done_and_writes_nothing(run, store, tmp_path):
    before = files(tmp_path)
    said = run("label", "store", "--judge", NAME, "--dry-run")
    assert "brightness would judge 6 of 6 episodes; nothing was written" in said
    assert "would judge 0 of 6 episodes, 6 are done" in run(
        "label", "store", "--judge", NAME, "--dry-run", "--skip-labeled"
    )
    assert files(tmp_path) == before


@pytest.fixture
def data_set(store: Store, tmp_path: Path) -> Path:
    """The episodes and labels of `store` as a LeRobot folder."""
    export_dataset(store, tmp_path / "theirs", "lerobot", WriteOptions(video=False))
    return tmp_path / "theirs"


def test_the_labels_of_a_data_set_go_to_a_store_next_to_it(run, data_set):
    before = files(data_set)
    said = run("label", "theirs", "--judge", NAME)
    assert "the labels of theirs are in the store theirs.store, which has its 6 episodes; theirs is not changed" in said
    assert "6 episodes of theirs.store labeled by brightness (3 called a success)" in said
    assert "labeled by brightness, 6 were done already" in run("label", "theirs", "--judge", NAME)
    assert files(data_set) == before
    ledger = Store.open(data_set.with_name("theirs.store")).ledger
    assert sorted({version.source for version in ledger.history(0)}) == ["brightness", "human"]


def test_a_dry_run_on_a_data_set_makes_no_store(run, data_set):
    said = run("label", "theirs", "--judge", NAME, "--dry-run")
    assert "theirs would be imported into theirs.store and labeled there; nothing was written" in said
    assert not data_set.with_name("theirs.store").exists()


def test_a_mistake_about_the_judge_is_told_before_a_data_set_is_imported(run, data_set):
    for words in (["label"], ["judge", "eval"], ["judge", "calibrate"]):
        assert "there is no judge 'simulater'" in run(*words, "theirs", "--judge", "simulater", ok=False)
    assert not data_set.with_name("theirs.store").exists()


def test_a_judge_is_evaluated_and_examined_on_a_data_set(run, data_set):
    assert "measured on 6 episodes" in run("judge", "eval", "theirs", "--judge", NAME, "--no-controls")
    assert "see runs/judge_exam/" in run("judge", "exam", NAME, "theirs")
    said = run("judge", "calibrate", "theirs", "--judge", NAME)
    assert said.startswith("result: Usable with an audit") and "\njudge.yaml: fitted on 6 episodes" in said


def test_a_data_set_without_room_for_a_store_next_to_it_is_refused_with_what_to_do(run, data_set):
    data_set.with_name("theirs.store").write_text("something else")
    said = run("label", "theirs", "--judge", NAME, ok=False)
    assert "the labels of theirs belong into a store" in said and "plaudit data import theirs STORE" in said


def test_a_file_a_flag_and_a_key_say_which_judge(run, store, tmp_path):
    (tmp_path / "judge.yaml").write_text(f"type: {NAME}\nrule: {{decode: per_frame}}\n")
    run("label", "store", "--config", "judge.yaml", "cut=5", "--decode", "k_of_n", "--allow-code", "brightness")
    store.ledger.refresh()
    labels = store.ledger.labels(0, {"brightness"})
    assert labels.judge == JudgeId("brightness", "cut 5", DecisionRule().key())
    assert labels.targets.tolist() == [0, 0, 0, 0, 0, 0, 1, 1]


def test_a_classifier_is_named_by_its_folder(run, tmp_path):
    frames = np.repeat(np.arange(0, 255, 30, dtype=np.uint8), 8 * 8 * 3).reshape(-1, 8, 8, 3)
    lamp = Store.create(tmp_path / "lamp")
    episode = counting_episode(len(frames) - 1)
    lamp.append(type(episode)(**{**vars(episode), "frames": {"front": frames}}))
    saved(bright_model(0.5), tmp_path / "model")
    assert "1 episode of lamp labeled by classifier (1 called a success)" in run(
        "label", "lamp", "--judge", "classifier", "--model", "model"
    )
    lamp.ledger.refresh()
    assert int(np.argmax(lamp.ledger.labels(0).targets)) == 6  # 150 of 255 is the first of two


def test_a_simulator_labels_what_it_knows(run, tmp_path):
    simulated = Store.create(tmp_path / "sim")
    simulated.append(counting_episode(3, privileged={"success": np.array([1, 0, 1], bool)}))
    simulated.append(counting_episode(3))
    said = run("label", "sim", "--judge", "simulator", ok=False)
    assert "problem: episode 1: no simulator knows of this episode" in said
    assert "1 episode of sim labeled by simulator (1 called a success), 1 could not be labeled and are retried" in said


def test_episodes_that_fail_are_counted_by_their_sentence_and_the_command_returns_1(run, store):
    for _ in range(2):
        store.append(counting_episode(STEPS, task=""))
    said = run("label", "store", "--judge", NAME, ok=False)
    assert "problem: 2 episodes (6, 7): this episode has no task text; give it one" in said
    assert "6 episodes of store labeled by brightness (3 called a success), 2 could not be labeled" in said
    assert "not labeled  2 (2 by brightness)" in run("data", "info", "store")
    assert "not labeled by brightness  this episode has no task text" in run("data", "info", "store", "--episode", 6)


def test_a_judge_that_raises_is_a_failure_of_that_episode_and_no_traceback(run, store):
    episode = counting_episode(STEPS)
    store.append(replace(episode, frames={"wrist": episode.frames["front"]}))  # it looks for 'front' without asking
    said = run("label", "store", "--judge", NAME, ok=False)
    assert "problem: episode 6: the judge raised KeyError: 'front' (brightness.py, line" in said
    assert "Traceback" not in said and "6 episodes of store labeled by brightness" in said


def test_success_from_the_first_frame_on_is_warned_of(run, store):
    for _ in range(2):  # they begin as bright as others end, and a person says that they fail
        odd = store.append(counting_episode(STEPS, first=CUT + 1))
        store.ledger.append(odd, Labels.from_cutoff(steps=STEPS, cutoff=None, source="human"))
    said = run("label", "store", "--judge", NAME)
    assert "warning: 2 episodes are called a success from the first frame on (6, 7)" in said
    assert "Partly usable: some episodes have no label." in said
    assert "6 episodes of store labeled by brightness (3 called a success), 2 left without labels" in said
    assert "to be reviewed" in " ".join(run("data", "info", "store", "--episode", 6).split())
    said = run("judge", "eval", "store", "--judge", NAME, "--no-controls")
    assert "2 of 8 episodes, 2 of them false positives" in said
    assert "warning: 2 of 8 episodes are predicted a success at their first frame, and are none" in said


def test_what_is_no_store_is_refused(run, tmp_path):
    (tmp_path / "empty").mkdir()
    for words in (["label"], ["judge", "eval"], ["judge", "calibrate"], ["judge", "exam", NAME]):
        said = run(*words, "empty", *(["--judge", NAME] if "exam" not in words else []), ok=False)
        assert "empty is not a store, nor one of the layouts that we read: LeRobot" in said
    assert "name a store or a data set" in run("label", "--judge", NAME, ok=False)


def test_a_judge_that_is_none_is_answered_with_the_nearest(run, store):
    said = run("label", "store", "--judge", "simulater", ok=False)
    assert said == "error: there is no judge 'simulater'; did you mean 'simulator'?\n"
    assert "name a judge with --judge" in run("label", "store", ok=False)
    said = run("label", "store", "--judge", "classifier", "--model", "nowhere", ok=False)
    assert said.startswith("error: nowhere: this is not a reward model") and said.count("\n") == 1


def test_a_person_is_not_told_what_to_look_at(run, store):
    said = run("label", "store", "--judge", "human", "--dry-run", ok=False)
    assert "--judge human lets you choose what to label" in said


# plaudit judge eval


def test_a_judge_is_measured_and_the_page_is_written(run, store, tmp_path):
    said = run("judge", "eval", "store", "--judge", NAME)
    for line in ("precision, recall", "100%, 100%", "ROC AUC", "judge's rule", "3 of 3", "7 of 7 passed"):
        assert line in said
    assert "see runs/judge_eval/brightness_0/report.html" in said
    run("judge", "eval", "store", "--judge", NAME, "--no-controls")
    assert (tmp_path / "runs/judge_eval/brightness_1/scores.json").is_file()
    facts = json.loads((tmp_path / "runs/judge_eval/brightness_0/scores.json").read_text())["metadata"]
    assert facts["wrong task"] == "tie the laces of the left shoe into a bow"


def test_who_passes_a_control_is_named(run, store):
    said = run("judge", "eval", "store", "--judge", NAME, "obeys=false", "--wrong-task", "dance")
    assert "problem: brightness failed its checks: it predicts success on the negative control wrong task." in said
    assert "problem: wrong task: 50% of 24 frames predicted a success" in said


def test_a_person_is_measured_by_what_stands_in_the_ledger(run, store):
    for i in store.ids:
        store.ledger.append(i, Labels.from_cutoff(steps=STEPS, cutoff=CUT, source="cutoff"))
    said = run("judge", "eval", "store", "--judge", "ledger", "--source", "human", "-o", "out")
    assert "human: measured on 6 episodes" in said and "Negative controls were not run" in said
    assert "50.0%" in said  # half of what the cutoffs call a success
    assert "out holds something already; nothing was written" in run(
        "judge", "eval", "store", "--judge", "ledger", "--source", "human", "-o", "out", ok=False
    )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--judge", "ledger"), "--judge ledger and --source go together"),
        (
            ("--judge", "ledger", "--source", "vlm"),
            "'vlm' has labeled none of the 6 episodes to compare; known: human",
        ),
        (("--judge", "ledger", "--source", "vlm", "cut=3"), "--judge ledger only reads labels"),
        (("--judge", "ledger", "--source", "human"), "store has no labels of simulator, dataset, cutoff"),
        (("--judge", NAME, "--reference", "cutoff"), "store has no labels of cutoff to compare with"),
        (("--judge", NAME, "--reference", "brightness"), "the judge is 'brightness' itself"),
        (("--judge", "human"), "--judge ledger --source human"),
        (("--judge", NAME, "--episodes", "9"), "episode 9 was never in store"),
    ],
)
def test_an_evaluation_that_cannot_be(run, store, tmp_path, words, sentence):
    said = run("judge", "eval", "store", *words, ok=False)
    assert sentence in said and said.count("\n") == 1
    assert not (tmp_path / "runs").exists()


# plaudit judge calibrate


def test_a_rule_is_fitted_stored_and_used(run, tmp_path):
    bright_store(tmp_path / "store", 6, 6).close()
    (tmp_path / "judge.yaml").write_text("cut: ${rule.k}\nrule: {decode: cutoff, k: 6, n: 6}\n")
    words = ("--judge", NAME, "--config", "judge.yaml", "-o", "judge.yaml", "--target-fpr", "0.02")
    said = run("judge", "calibrate", "store", *words)
    assert "judge.yaml: fitted on 12 episodes, 6 of which succeed" in said and "target 2.0%" in said
    tree = yaml.safe_load((tmp_path / "judge.yaml").read_text())
    assert tree["cut"] == "${rule.k}"  # as it was written
    assert "too few episodes to guarantee a false-positive rate of 2%: label at least 115 more" in " ".join(
        said.split()
    )
    assert tree["calibration_record"]["promise"]["needed"] == 127
    assert tree["calibration_record"]["fingerprint"] == "cut 6" and tree["calibration_record"]["target_fpr"] == 0.02
    assert tree["rule"]["threshold"] >= 0.5 and tree["calibration"]["bias"] > 0
    run("label", "store", "--config", "judge.yaml")
    store = Store.open(tmp_path / "store")
    assert [store.ledger.labels(i).targets.sum() for i in store.ids] == [4] * 6 + [0] * 6
    said = run("label", "store", "--config", "judge.yaml", "cut=3")
    assert "warning: this judge's rule was fitted on cut 6 and it is cut 3 now" in said


def test_nothing_is_written_over_and_nothing_is_made_of_too_little(run, store, tmp_path):
    (tmp_path / "judge.yaml").write_text("mine")
    assert "judge.yaml is there already" in run("judge", "calibrate", "store", "--judge", NAME, ok=False)
    assert (tmp_path / "judge.yaml").read_text() == "mine"
    bright_store(tmp_path / "few", 1, 2).close()
    said = run("judge", "calibrate", "few", "--judge", NAME, "-o", "new.yaml", ok=False)
    assert "Of those with reference labels 1 show success and 3 failure" in said
    assert not (tmp_path / "new.yaml").exists()


def test_yes_and_no_cannot_be_calibrated(run, tmp_path):
    bright_store(tmp_path / "flags", 3, 3, privileged={"success": np.arange(1, STEPS + 1) >= CUT}).close()
    said = run("judge", "calibrate", "flags", "--judge", "simulator", "-o", "new.yaml", ok=False)
    assert "'simulator' answers yes or no; only a judge that gives probabilities" in said


# A cascade


def test_a_cascade_labels_what_its_stages_may_and_asks_a_human_about_the_rest(run, tmp_path):
    bright_store(tmp_path / "known", 52, 52).close()
    said = run("judge", "calibrate", "known", "--judge", NAME, "-o", "first.yaml")
    assert "in a cascade it decides success alone from a score of" in " ".join(said.split())
    with Store.create(tmp_path / "new") as new:
        for top in (2, 4, 7):
            episode = counting_episode(STEPS)
            new.append(replace(episode, frames={"front": np.minimum(episode.frames["front"], top)}))
    words = ("--judge", "cascade", "stages=[first.yaml,human]", "check=0", "budget=1", "--allow-code", "brightness")
    said = " ".join(run("label", "new", *words).split())
    assert "2 episodes of new labeled by cascade (1 called a success), 1 left undecided" in said
    assert "decided by BrightnessConfig 67%, human 0%; undecided: 1 episode" in said
    assert "1 of the undecided wait for a human, about 0.5 minutes: plaudit label new --judge human" in said
    assert json.loads((tmp_path / "new/label_requests.json").read_text()) == [1]
    Store.open(tmp_path / "new").ledger.append(1, Labels.from_cutoff(steps=STEPS, cutoff=3, source="human"))
    said = " ".join(run("label", "new", *words).split())
    assert "0 episodes of new labeled by cascade" in said and "human 33%; undecided: 0 episodes" in said
    assert json.loads((tmp_path / "new/label_requests.json").read_text()) == []
    (tmp_path / "cascade.yaml").write_text("type: cascade\nstages: [first.yaml, human]\ncheck: 0\n")
    said = " ".join(run("judge", "exam", "cascade.yaml", "known", "--allow-code", "brightness", ok=False).split())
    assert "chose its threshold or calibration by: nothing unseen is left" in said  # as its stage has
