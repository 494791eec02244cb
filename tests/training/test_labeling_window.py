"""A person beside the loop: what is asked, what comes back, and a window that is closed for lunch."""

import os
import re
import signal
import time
from dataclasses import replace
from pathlib import Path
from socket import gethostname

import numpy as np
import pytest

from conftest import counting_episode
from counted_stores import counted_store
from plaudit.data.store import Store
from plaudit.errors import WorkerFailed
from plaudit.judges.human.session import Session, replay_actions
from plaudit.training.replay_buffer import EpisodeRef, ReplayBuffer
from plaudit.training.workers.handles import SerialHandle
from plaudit.training.workers.labelers import WHO, HumanLabelWorker, LabelingWindowConfig, Mirror, Window
from plaudit.types import Labeler
from processes import Forked
from waiting import wait_until

NO_WINDOW = LabelingWindowConfig(open=False)


@pytest.fixture
def home(tmp_path) -> Store:
    """The loop's store, with episodes 0 to 2 of 4, 5 and 6 steps."""
    return Store.open(counted_store(tmp_path / "home", privileged={}))


class FarAway(ReplayBuffer):
    """The replay buffer as another machine sees it: its files are not there."""

    reachable, boot = True, "another machine"

    def add_labels(self, *args):
        if not self.reachable:
            raise OSError("the network is down")
        super().add_labels(*args)

    def location(self):
        return replace(super().location(), identity=(self.boot, 0, 0))


class Run:
    """A run with three episodes of 4, 5 and 6 steps, and a person beside it."""

    def __init__(self, tmp_path: Path, buffer=FarAway):
        self.replay = buffer(tmp_path / "run")
        for steps in (4, 5, 6):
            self.replay.add(counting_episode(steps), f"key {steps}")
        self.folder, self.home = tmp_path / "run/episodes", tmp_path / "home"
        self.person = self.hired()

    def hired(self) -> HumanLabelWorker:
        return HumanLabelWorker(SerialHandle("replay buffer", self.replay), NO_WINDOW)

    def restarted(self) -> None:
        self.person.close()
        self.person = self.hired()

    @property
    def mirror(self) -> Path:
        (folder,) = (self.home / ".plaudit/mirrors").iterdir()
        return folder

    @property
    def ledger(self):
        return Store.open(self.folder).ledger


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    made = Run(tmp_path)
    yield made
    made.person.close()
    made.replay.close()


def press(folder: Path, script: str, **options) -> None:
    with Session.open(folder, **options) as session:
        replay_actions(session, script)


# On another machine


def test_what_is_said_of_a_mirrored_episode_comes_home(run):
    assert run.person.label_pending([2, 0]).done == 0
    press(run.mirror, "Right Right S Return  F Return", name="lab")
    assert run.person.label_pending([]).done == 2 and run.person.label_pending([]).done == 0
    labels = run.ledger.labels(2)
    assert (labels.targets.tolist(), labels.judge.source) == ([0, 0, 1, 1, 1, 1, 1], "human")
    assert labels.labeler == Labeler("lab")
    assert not run.ledger.labels(0).success_once and run.ledger.newest(1) is None


def test_what_is_asked_twice_is_shown_once(run):
    for ids in ([0], [0, 1], [1, 0]):
        run.person.label_pending(ids)
    assert len(Store.open(run.mirror)) == 2


def test_a_changed_mind_comes_too_and_both_versions_stand(run):
    run.person.label_pending([1])
    for script in ("F Return", "=0 S Return"):
        press(run.mirror, script)
        assert run.person.label_pending([]).done == 1
    assert [v.labels().success_once for v in run.ledger.history(1)] == [False, True]


def test_a_crash_before_or_after_the_hand_over_loses_nothing_and_doubles_nothing(run, monkeypatch):
    run.person.label_pending()
    press(run.mirror, "F Return  F Return")
    run.replay.reachable = False
    with pytest.raises(WorkerFailed, match="the network is down"):
        run.person.label_pending()  # before they are in the ledger
    run.replay.reachable = True
    run.restarted()
    with monkeypatch.context() as patch:
        patch.setattr(Mirror, "mark_collected", lambda *_: None)
        assert run.person.label_pending().done == 2  # and here after that, before it is noted
    run.restarted()
    press(run.mirror, "F Return")
    run.person.label_pending()
    assert len(run.ledger) == 3 and all(run.ledger.newest(i) is not None for i in range(3))
    run.restarted()
    assert run.person.label_pending().done == 0, "received, so it is not said again"


def test_what_was_labeled_while_the_head_was_away_arrives_once_when_it_is_back(run, tmp_path):
    run.person.label_pending()
    press(run.mirror, "F Return")
    assert run.person.label_pending().done == 1
    run.person.close()
    run.replay.close()  # its machine is switched off, and the person goes on
    press(run.mirror, "F Return  Right S Return")
    run.replay = FarAway(tmp_path / "run")
    run.replay.boot = "booted again"
    run.replay.add(counting_episode(7), "key 7")
    for done in (2, 0):
        run.restarted()
        assert run.person.label_pending().done == done
    assert [v.episode for v in run.ledger.since(0)] == [0, 1, 2]
    assert [run.ledger.labels(i).success_once for i in range(3)] == [False, False, True]
    press(run.mirror, "F Return")
    assert run.person.label_pending().done == 1 and len(Store.open(run.mirror)) == 4


def test_an_answer_on_an_episode_that_the_mirror_has_forgotten_comes_home_all_the_same(run, monkeypatch):
    monkeypatch.setattr("plaudit.training.workers.labelers.MIRROR_BYTES", 1)
    monkeypatch.setattr(Mirror.__init__, "__defaults__", (1,))
    run.person.label_pending([2])
    press(run.mirror, "F Return")
    run.person._mirror.add(run.replay.episodes([EpisodeRef("episodes", 1)])[EpisodeRef("episodes", 1)], 1)
    assert len(Store.open(run.mirror)) == 1
    assert run.person.label_pending([]).done == 1 and run.ledger.newest(2) is not None


def test_an_episode_that_was_evicted_at_home_is_not_shown(run):
    run.person.label_pending([7])
    assert len(Store.open(run.mirror)) == 0


def test_who_audits_hears_neither_the_simulator_nor_another_judge(tmp_path):
    mirror = Mirror(tmp_path / "mirror")
    mirror.add(counting_episode(4, privileged={"success": np.ones(4, bool)}), 5)
    store = Store.open(tmp_path / "mirror")
    assert store.episode(0).success is None and len(store.ledger) == 0


def test_a_human_on_another_machine_labels_a_run(run):
    assert run.person.label_pending().done == 0
    press(run.mirror, "Right Right S Return  F Return  F Return", name="lab")
    assert run.person.label_pending().done == 3
    assert [run.ledger.labels(i).success_once for i in range(3)] == [True, False, False]
    assert run.replay.stats(WHO).unlabeled == 0


# On the same machine


def test_in_the_store_itself_what_is_asked_comes_first_and_is_labeled_there(tmp_path):
    run = Run(tmp_path, ReplayBuffer)
    assert run.person.label_pending([2, 1]).done == 0
    press(run.folder, "F Return")
    assert run.ledger.newest(2) is not None
    run.person.label_pending([2])
    assert len(run.ledger) == 1, "it is there already"
    run.person.label_pending([])
    with Session.open(run.folder) as session:
        assert session.episode_id == 0, "nobody waits for any"
    run.replay.close()


# The window


def test_a_window_in_a_process_of_its_own_labels_and_is_closed_for_lunch(home, tmp_path):
    window = Window(home.folder, LabelingWindowConfig(labeler="lab"), target="pressing:window")
    assert "no labeling window was opened from here" in window.status
    window.show()
    assert window.status == "the labeling window is open"
    wait_until(lambda: not window.open)  # the person closes it after the second episode
    home.ledger.refresh()
    assert [v.episode for v in home.ledger.since(0)] == [0, 1] and home.ledger.labels(0).labeler == Labeler("lab")
    assert window.status.endswith(f"was closed; open it again with: plaudit label {home.folder} --judge human")
    window.show()
    assert not window.open, "a person at lunch is left alone"
    window.close()


def test_a_closed_window_opens_again_after_a_while_if_it_should(home):
    window = Window(home.folder, LabelingWindowConfig(reopen_after_s=0.0), target="pressing:window")
    window.show()
    wait_until(lambda: not window.open)
    window.show()
    assert window.open
    window.close()
    assert not window.open


def test_a_window_that_cannot_open_is_one_sentence_and_not_tried_again(home, monkeypatch):
    monkeypatch.setenv("QT_QPA_PLATFORM", "nonsense")
    window = Window(home.folder, LabelingWindowConfig(reopen_after_s=0.0))
    window.show()
    wait_until(lambda: window.status != "the labeling window is open")
    host = gethostname()
    assert window.status.startswith(f"no labeling window could be opened on {host}: Qt cannot open a window: ")
    assert re.search(rf"; or label in a browser: plaudit serve {home.folder}$", window.status)
    window.show()
    assert window.status.startswith("no labeling window could be opened"), "it would fail again"
    with Session.open(home.folder):  # a person opened one with that command
        assert window.status == "the labeling window is open"
    assert window.status.startswith("no labeling window could be opened")


def test_a_window_without_a_display_names_the_machine_and_what_to_do(home, monkeypatch):
    for name in ("QT_QPA_PLATFORM", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    window = Window(home.folder, LabelingWindowConfig())
    window.show()
    wait_until(lambda: window.status != "the labeling window is open")
    assert window.status.startswith(
        f"no labeling window could be opened on {gethostname()}: DISPLAY is not set there; set it (export DISPLAY=:0) "
        "and start the run again; with --ray, start the cluster's node there again; or label in a browser: "
        "plaudit serve"
    )


def test_a_window_that_crashed_is_told_apart_from_one_that_was_closed(home):
    window = Window(home.folder, LabelingWindowConfig(), target="pressing:window")
    window.show()
    os.kill(window._child.pid, signal.SIGKILL)
    wait_until(lambda: not window.open)
    assert window.status.startswith("the labeling window process was killed by SIGKILL; open it again with: plaudit")


def show_window(folder: Path) -> None:
    """In a child process, until it is killed."""
    window = Window(folder, LabelingWindowConfig())
    window.show()
    print(window._child.pid, flush=True)
    time.sleep(60)


def test_the_window_closes_when_the_loop_is_killed(home):
    with Forked(show_window, home.folder) as parent:
        pid = int(parent.readline())
        wait_until(lambda: any((home.folder / "drafts").glob("*.json")))  # it is up
    wait_until(lambda: ended(pid))


def ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").exists() and Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
