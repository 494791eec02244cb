"""Several judges on the same episodes: who is better, where they differ, and two baselines that must fail."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from command import plaudit
from five_judges import NAME, PushJudgeConfig, push_store
from plaudit.errors import JudgeError
from plaudit.judges.arena import (
    baselines,
    check_baselines,
    disagreements,
    enter,
    named_apart,
    pairwise_wins,
    rank_entries,
)
from plaudit.judges.config import SUCCESS, Signal
from plaudit.judges.published.config import TopRewardConfig
from plaudit.report.exam import save_arena
from plaudit.report.verdict import Verdict, arena_verdict
from plaudit.types import Labels

SOURCES = ("human",)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return push_store(tmp_path_factory.mktemp("arena") / "episodes", 12, 12)


@pytest.fixture(scope="module")
def entries(store):
    targets = {i: store.ledger.labels(i).targets for i in store.ids}
    judges = {kind: PushJudgeConfig(kind=kind) for kind in ("weak", "good")}
    judges |= {one.kind: one for one in baselines(targets)}
    return rank_entries(
        [enter(store, name, config, SOURCES, store.ids, store.folder.parent / name) for name, config in judges.items()]
    )


def test_the_best_judge_is_first_and_the_baselines_fail(entries):
    assert [entry.name for entry in entries] == ["good", "weak", "clock", "constant"]
    good, _, clock, constant = entries
    assert good.certificate.passed
    assert (clock.certificate.shortcut, constant.certificate.shortcut) == ("clock-like", "constant")
    for entry in (clock, constant):
        failed = {one.name for one in entry.certificate.controls if not one.passed}
        assert "frozen frame" in failed, "a still picture shows success to it"
    check_baselines(entries)


def test_the_clock_orders_time_perfectly_and_frames_of_one_number_not_at_all(entries):
    clock = entries[2].certificate.figures
    assert clock["value_order"].value == pytest.approx(1)  # which rank correlation alone would call a perfect judge
    assert clock["same_time_roc_auc"].value == pytest.approx(0.5)


def test_accuracies_by_hand(entries):
    constant = entries[3]
    right = [float((one.target == 1).mean()) for one in constant.evaluation.predictions]
    assert constant.frame_accuracy.value == pytest.approx(np.mean(right), abs=1e-6)
    assert constant.episode_accuracy.value == pytest.approx(0.5)  # 12 of 24 succeed, and it says that all do
    assert constant.seconds >= 0 and constant.frames_per_s > 0


def test_pairs_add_up(entries):
    wins = {(one.first, one.second): one for one in pairwise_wins(entries)}
    assert len(wins) == 12
    for (first, second), one in wins.items():
        assert one.rate.value + wins[second, first].rate.value == pytest.approx(1)
        assert one.episodes == 24
    assert wins["good", "constant"].rate.low > 0.5


def test_disagreements_are_the_frames_where_two_judges_differ_most(store, entries):
    frames = disagreements(store, entries)
    assert frames and [one.spread for one in frames] == sorted((one.spread for one in frames), reverse=True)
    first = frames[0]
    assert set(first.probs) == {"good", "weak"}  # baselines are left out where judges can be compared
    probs = {
        entry.name: next(p.success_prob for p in entry.evaluation.predictions if p.episode == first.frame.episode)
        for entry in entries[:2]
    }
    assert first.spread == pytest.approx(float(np.abs(probs["good"] - probs["weak"]).max()))


def test_a_judge_that_decides_nothing_does_not_disagree(store, entries):
    good, weak = entries[:2]
    undecided = disagreements(store, entries)[0].frame.episode
    labels = dict(good.evaluation.labels)
    labels[undecided] = Labels.from_targets(np.full(labels[undecided].steps + 1, np.nan, np.float32), "cascade")
    shown = disagreements(store, [replace(good, evaluation=replace(good.evaluation, labels=labels)), weak])
    assert undecided not in [one.frame.episode for one in shown] and shown


def test_scores_within_an_episode_are_not_compared(store, monkeypatch):
    scaled = {SUCCESS: Signal("scaled", unit="fraction", scope="episode")}
    monkeypatch.setattr(TopRewardConfig, "signals", property(lambda _: scaled))
    with pytest.raises(JudgeError, match="Episodes cannot be compared by such scores"):
        enter(store, "topreward", TopRewardConfig(), SOURCES, store.ids, Path("scores"))


def test_baselines_that_pass_make_the_arena_worthless(entries):
    passing = replace(entries[2], certificate=entries[0].certificate)
    with pytest.raises(JudgeError, match="the baseline 'clock' passes on these episodes"):
        check_baselines([*entries[:2], passing])


def test_a_time_too_short_to_show_is_not_zero(entries, tmp_path):
    shown = [replace(entry, seconds=seconds) for entry, seconds in zip(entries, (3e-5, 0.25, 2.5, np.nan), strict=True)]
    save_arena(tmp_path / "arena", shown, [], [], {}, Verdict("Usable.", "It passed.", "Use it.", "plaudit", "good"))
    page = (tmp_path / "arena/report.html").read_text()
    for cell in ("under 0.1 ms", "250.0 ms", "2.5 s", "-"):
        assert f"<td>{cell}</td></tr>" in page


def test_names_are_short_where_they_can_be():
    assert named_apart(["runs/a/judge", "runs/b/judge", "vlm"]) == ["runs/a/judge", "runs/b/judge", "vlm"]
    assert named_apart(["runs/reward,k=1", "vlm", "vlm"]) == ["reward", "vlm", "vlm (2)"]
    assert named_apart(["vlm,model=a", "vlm,model=b"]) == ["vlm model=a", "vlm model=b"]
    assert named_apart(["my.code:Mine,k=1,n=3", "my.code:Mine,k=2,n=3"]) == ["Mine k=1", "Mine k=2"]


def test_the_command_writes_a_page_and_a_file(store, tmp_path):
    out = tmp_path / "arena"
    judges = [
        f"--judge={NAME},kind=good",
        f"--judge={NAME},kind=weak",
        f"--judge={NAME},kind=overfit,memory={store.folder}",
    ]
    said = plaudit("judge", "arena", store.folder, *judges, "--output-dir", out, cwd=tmp_path, ok=False)
    assert "nothing unseen is left" in " ".join(said.split())  # the last one has seen all of these episodes
    tree = json.loads((out / "arena.json").read_text())
    assert [one["baseline"] for one in tree["judges"]] == [False, False, True, True]
    assert tree["judges"][0]["frame_accuracy"][0] > tree["judges"][3]["frame_accuracy"][0]
    assert len(tree["pairwise_wins"]) == 12 and list(tree["failed"]) == [
        f"PushJudgeConfig kind=overfit memory={store.folder}"
    ]
    page = (out / "report.html").read_text()
    for lines in (" ".join(said.split()), page):
        assert "Partly compared: 2 of 3 judges ran." in lines
    assert "; 1 judge did not run</title>" in page
    for heading in (
        "Accuracy and time",
        "Pairwise wins",
        "Largest disagreement",
        "Negative controls",
        "Judges that did not run",
        "Figures",
    ):
        assert f"<h2>{heading}</h2>" in page
    assert not list(tmp_path.glob(".*.scores"))


def test_the_verdict_begins_with_the_judges_that_did_not_run():
    best = Verdict("Usable: it passed its exam.", "a passed all controls.", "Use it", "plaudit", "good")
    assert arena_verdict(best, 1, {}) == best
    alone = arena_verdict(best, 1, {"b": "its server is silent"})
    assert alone.result == "Not compared: 1 of 2 judges ran."
    assert alone.why == "b did not run: its server is silent. a passed all controls."
    several = arena_verdict(best, 2, {"b": "its server is silent", "c": "no file"})
    assert several.result == "Partly compared: 2 of 4 judges ran."
    assert several.why.startswith("b did not run, nor did 1 other judge: its server is silent. Usable: it passed")
