"""A judge over a store: what stands in the ledger, what is passed over, what survives a kill."""

import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from brightness import CUT, NAME, STEPS, BrightnessConfig, bright_store
from conftest import counting_episode
from plaudit.data.check import check
from plaudit.data.ledger import Failures
from plaudit.data.store import Store
from plaudit.errors import ContractError
from plaudit.judges.labeling import (
    LabelRunner,
    StoreQueue,
    group_by_message,
    label_episodes,
    stale_episodes,
)
from plaudit.rule import DecisionRule
from plaudit.types import JudgeId, Labels, Scores
from processes import start_plaudit
from told import Told
from waiting import wait_until


def run(store: Store, judge=None, **options):
    judge = judge or BrightnessConfig().build()
    return LabelRunner(judge, StoreQueue(store, **options), batch_size=2).run()


def test_labels_say_who_judged_and_by_which_rule(tmp_path):
    store = bright_store(tmp_path / "s", 1, 1)
    done = run(store)
    assert (done.done, done.failed, done.num_success) == ([0, 1], {}, 1)
    labels = store.ledger.labels(0, {"brightness"})
    assert labels.success.tolist() == [t >= CUT + 1 for t in range(STEPS + 1)]  # the second of two frames
    assert labels.judge == JudgeId("brightness", "cut 4", DecisionRule().key())
    assert not store.ledger.labels(1, {"brightness"}).success_once


def test_a_second_run_has_nothing_to_do(tmp_path):
    store = bright_store(tmp_path / "s")
    assert len(run(store).done) == 6
    versions = len(store.ledger)
    assert run(store).done == [] and len(store.ledger) == versions


@pytest.mark.parametrize(
    "change",
    [
        {"cut": 3},
        {"rule": {"threshold": 0.7}},
        {"rule": {"k": 1}},
        {"rule": {"decode": "cutoff"}},
        {"calibration": {"bias": 1}},
        {"calibration": {"bias": 1e-6}},
    ],
)
def test_another_model_threshold_or_rule_judges_again(tmp_path, change):
    store = bright_store(tmp_path / "s", 1, 0)
    run(store)
    assert run(store, BrightnessConfig.model_validate(change).build()).done == [0]


def test_rules_that_differ_in_the_sixth_digit_are_different(tmp_path):
    store = bright_store(tmp_path / "s", 1, 0)
    one, other = (
        BrightnessConfig.model_validate({"calibration": {"temperature": t}}).build() for t in (1.000001, 1.000002)
    )
    assert run(store, one).done == [0] and run(store, one).done == []
    assert run(store, other).done == [0]


def test_what_a_rule_does_not_use_changes_nothing(tmp_path):
    store = bright_store(tmp_path / "s", 1, 0)
    run(store)
    assert run(store, BrightnessConfig.model_validate({"rule": {"cutoff_offset": 3}}).build()).done == []


def test_a_persons_correction_is_not_judged_over_unless_it_must_be_on_top(tmp_path):
    store = bright_store(tmp_path / "s", 1, 0)
    run(store)
    store.ledger.append(0, Labels.from_cutoff(steps=STEPS, cutoff=None, source="human"))
    assert run(store).done == []
    assert run(store, newest_only=True).done == [0]


def test_only_unlabeled_leaves_what_anybody_has_labeled(tmp_path):
    store = bright_store(tmp_path / "s", 1, 1)
    new = store.append(counting_episode(STEPS))
    assert run(store, skip_labeled=True).done == [new]


def test_an_episode_that_fails_is_kept_on_the_record_and_asked_about_again(tmp_path):
    store = bright_store(tmp_path / "s", 1, 0)
    silent = store.append(counting_episode(STEPS, task=""))
    done = run(store)
    assert (done.done, list(done.failed)) == ([0], [silent])
    (failure,) = Failures(store.ledger).unresolved()
    assert (failure.episode, failure.source, failure.model) == (silent, "brightness", "cut 4")
    assert failure.reason == "this episode has no task text; give it one"
    assert store.ledger.newest(silent) is None
    assert stale_episodes(store.ledger, BrightnessConfig().build().id, store.ids) == [silent]


def test_a_failure_stands_until_the_judge_has_labeled_the_episode(tmp_path):
    store = bright_store(tmp_path / "s", 1, 0)
    Failures(store.ledger).append([(0, "the endpoint is down")], "brightness", "cut 4")
    run(store)
    assert Failures(store.ledger).unresolved() == [] and len(Failures(store.ledger).all()) == 1
    store.close()
    assert check(tmp_path / "s").ok


def test_a_store_without_failures_has_no_such_file(tmp_path):
    store = bright_store(tmp_path / "s", 1, 0)
    run(store)
    assert not Failures(store.ledger).path.exists()


def test_a_torn_line_of_failures_is_found_by_a_check(tmp_path):
    store = bright_store(tmp_path / "s", 1, 0)
    Failures(store.ledger).append([(0, "why")], "vlm", "")
    store.close()
    with (tmp_path / "s/labels.failures").open("ab") as file:
        file.write(b"torn")
    assert "labels.failures: an unfinished last line" in check(tmp_path / "s").problems[0]


def test_an_episode_that_was_evicted_meanwhile_is_a_failure(tmp_path):
    store = bright_store(tmp_path / "s", 1, 0)
    done = LabelRunner(BrightnessConfig().build(), StoreQueue(store, [0, 99])).run()
    assert done.done == [0] and "episode 99 was never in" in done.failed[99]


def test_a_judge_that_counts_wrongly_is_named(tmp_path):
    store = bright_store(tmp_path / "s", 1, 0)
    with pytest.raises(ContractError, match="'told' scored 3 frames of an episode that has 8"):
        LabelRunner(Told(0, 0, 0), StoreQueue(store)).run()


class Clumsy(Told):
    """Raises what no judge should, for the third episode."""

    def score(self, episodes):
        if any(episode.meta.get("number") == 2 for episode in episodes):
            raise ZeroDivisionError("no light at all")
        return [Scores(np.zeros(episode.steps + 1, np.float32)) for episode in episodes]


def test_scores_that_are_all_nan_are_a_failure_with_a_reason(tmp_path):
    store = bright_store(tmp_path / "s", 1, 1)
    done = run(store, Told(*[float("nan")] * (STEPS + 1)))
    assert done.done == [] and set(done.failed) == {0, 1}
    assert "its score is NaN on every frame, so nothing is decided; check its weights" in done.failed[0]


def test_an_episode_that_is_not_answered_yet_is_neither_labeled_nor_failed(store):
    class Slow(Told):
        def score(self, episodes):
            return [None for _ in episodes]

    ids = [store.append(counting_episode(2))]
    done = LabelRunner(Slow(), StoreQueue(store, ids)).run()
    assert (done.done, done.failed, done.pending) == ([], {}, ids)
    assert label_episodes(Slow(), [store.episode(0)]) == [None]


def test_a_judge_that_raises_fails_on_that_episode_and_the_others_go_on(tmp_path):
    store = Store.create(tmp_path / "s")
    for number in range(4):
        store.append(counting_episode(STEPS, meta={"number": number}))
    done = LabelRunner(Clumsy(), StoreQueue(store), batch_size=4).run()
    assert done.done == [0, 1, 3] and list(done.failed) == [2]
    assert done.failed[2].startswith("the judge raised ZeroDivisionError: no light at all (test_labeling.py, line ")
    assert [failure.episode for failure in Failures(store.ledger).unresolved()] == [2]
    assert stale_episodes(store.ledger, Clumsy().id, store.ids) == [2]


def began_bright(store: Store) -> int:
    """Whose first frame shows what others end with, and which then grows dark."""
    episode = counting_episode(STEPS)
    return store.append(replace(episode, frames={"front": np.ascontiguousarray(episode.frames["front"][::-1])}))


@pytest.mark.parametrize("rule", [{"decode": "per_frame"}, {}, {"k": 3, "n": 4}])
def test_success_from_the_first_frame_on_is_written_with_a_note_and_told(tmp_path, rule):
    store = bright_store(tmp_path / "s", 1, 1)
    odd, judge = began_bright(store), BrightnessConfig.model_validate({"rule": rule}).build()
    done = run(store, judge)
    assert (done.done, done.at_start) == ([0, 1, odd], [odd])
    assert store.ledger.labels(odd).review and not store.ledger.labels(0).review
    assert run(store, judge).done == [], "the note makes it no other judge's"


def test_the_same_sentence_is_said_once():
    assert group_by_message({1: "no", 2: "dark", 3: "no"}) == {"no": [1, 3], "dark": [2]}


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGKILL, -9),
        (signal.SIGINT, 130),
        pytest.param(signal.SIGTERM, 130, marks=pytest.mark.slow),
    ],
)
def test_a_batch_is_on_disk_before_the_next_and_a_kill_costs_no_more(tmp_path, number, code):
    bright_store(tmp_path / "s", 12, 0).close()
    with start_plaudit("label", "s", "--judge", NAME, "stuck_after=4", "--batch", "2", cwd=tmp_path) as running:
        wait_until(lambda: len(labeled(tmp_path)) >= 4)
        running.send_signal(number)
        said = running.read()
    assert running.returncode == code and ("run the same command to resume" in said) == (code == 130)
    assert labeled(tmp_path) == [0, 1, 2, 3]
    store = Store.open(tmp_path / "s")
    rest = run(store, BrightnessConfig().build())
    assert labeled(tmp_path) == list(range(12)) and len(rest.done) <= 8
    assert all(len([v for v in store.ledger.history(i) if v.source == "brightness"]) == 1 for i in store.ids)


def labeled(folder: Path) -> list[int]:
    store = Store.open(folder / "s")
    return [i for i in store.ids if store.ledger.newest(i, {"brightness"}) is not None]


def test_another_ledger_leaves_the_stores_own_alone(store, tmp_path):
    store.append(counting_episode(2))
    other = Store.open(store.folder, labels=tmp_path / "other")
    assert LabelRunner(Told(0, 1, 1), StoreQueue(other)).run().done == [0]
    assert len(store.ledger) == 0 and other.ledger.labels(0).judge.fingerprint == "told"


def test_a_runner_labels_a_batch_a_step_and_retries_a_failure_after_a_while(tmp_path):
    store, now = bright_store(tmp_path / "s", 3, 0), [0.0]
    silent = store.append(counting_episode(STEPS, task=""))
    queue = StoreQueue(store, [silent, *store.ids[:-1]])
    runner = LabelRunner(BrightnessConfig().build(), queue, batch_size=2, retry_s=20.0, clock=lambda: now[0])
    first = runner.step()
    assert (first.done, list(first.failed)) == ([0], [silent])
    assert runner.step().done == [1, 2] and runner.step().done == [], "the failure waits"
    now[0] = 20.0
    assert list(runner.step().failed) == [silent]


def test_a_runner_can_be_told_which_episodes_to_label(tmp_path):
    store = bright_store(tmp_path / "s", 3, 0)
    assert LabelRunner(BrightnessConfig().build(), StoreQueue(store)).step(only=[2]).done == [2]
