"""A person beside the loop: what is offered, what comes back, and a window that is closed for lunch."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from by_hand import counted_store
from conftest import counting_episode
from plaudit.data.store import Store
from plaudit.errors import EpisodeNotFound
from plaudit.judges.human.keys import replay
from plaudit.judges.human.session import Session
from plaudit.training.handles import LocalHandle
from plaudit.training.labeling_window import (
    Mirror,
    MirrorSide,
    StoreSide,
    Window,
    WindowConfig,
    deliver,
    elsewhere,
    here,
)
from plaudit.training.replay_buffer import ReplayBuffer
from plaudit.training.workers.human import WHO, HumanLabelWorker
from waiting import wait_until

BY_HAND = WindowConfig(window=False)


@pytest.fixture
def home(tmp_path) -> Store:
    """The loop's store, with episodes 0 to 2 of 4, 5 and 6 steps."""
    return Store.open(counted_store(tmp_path / "home", privileged={}))


def press(folder: Path, script: str, **options) -> None:
    with Session.open(folder, **options) as session:
        replay(session, script)


def handed_over(side: MirrorSide, home: Store) -> list[int]:
    return [i for i, labels in side.collect() if deliver(home.ledger, i, labels)]


# On another machine


def test_what_is_said_of_a_mirrored_episode_comes_home(home, tmp_path):
    side = elsewhere(tmp_path / "mirror", home.episode, BY_HAND)
    side.offer([2, 0])
    assert side.collect() == []
    press(tmp_path / "mirror", "Right Right S Return  F Return", name="lab")
    assert handed_over(side, home) == [2, 0] and handed_over(side, home) == []
    labels = home.ledger.labels(2)
    assert (labels.targets.tolist(), labels.judge.source, labels.note) == ([0, 0, 1, 1, 1, 1, 1], "human", "by lab")
    assert not home.ledger.labels(0).success_once and home.ledger.newest(1) is None


def test_what_is_offered_twice_is_shown_once(home, tmp_path):
    side = elsewhere(tmp_path / "mirror", home.episode, BY_HAND)
    for ids in ([0], [0, 1], [1, 0]):
        side.offer(ids)
    assert len(Store.open(tmp_path / "mirror")) == 2


def test_a_changed_mind_comes_too_and_both_versions_stand(home, tmp_path):
    side = elsewhere(tmp_path / "mirror", home.episode, BY_HAND)
    side.offer([1])
    press(tmp_path / "mirror", "F Return  =0 S Return")
    assert handed_over(side, home) == [1, 1]
    assert [v.labels().success_once for v in home.ledger.history(1)] == [False, True]


def test_a_crash_before_or_after_the_hand_over_loses_nothing_and_doubles_nothing(home, tmp_path):
    side = elsewhere(tmp_path / "mirror", home.episode, BY_HAND)
    side.offer([0, 1, 2])
    press(tmp_path / "mirror", "F Return  F Return")
    assert len(side.collect()) == 2  # and here it is killed, before they are in the ledger
    side.close()
    side = elsewhere(tmp_path / "mirror", home.episode, BY_HAND)
    assert handed_over(side, home) == [0, 1]
    side.close()  # and here after that, before it came back for more
    side = elsewhere(tmp_path / "mirror", home.episode, BY_HAND)
    press(tmp_path / "mirror", "F Return")
    assert handed_over(side, home) == [2] and len(home.ledger) == 3
    side.collect()
    side.close()
    assert elsewhere(tmp_path / "mirror", home.episode, BY_HAND).collect() == [], "received, so it is not said again"


def test_a_verdict_on_an_episode_that_the_mirror_has_forgotten_comes_home_all_the_same(home, tmp_path):
    mirror = Mirror(tmp_path / "mirror", capacity_bytes=1)
    mirror.add(home.episode(2), 2)
    press(tmp_path / "mirror", "F Return")
    mirror.add(home.episode(1), 1)
    mirror.close()
    again = Mirror(tmp_path / "mirror")
    assert [i for i, _ in again.verdicts()] == [2] and again.remote_ids == {1}


def test_an_episode_that_was_evicted_at_home_is_not_offered(tmp_path):
    def gone(_: int):
        raise EpisodeNotFound("evicted")

    side = elsewhere(tmp_path / "mirror", gone, BY_HAND)
    side.offer([7])
    assert len(Store.open(tmp_path / "mirror")) == 0


def test_who_audits_hears_neither_the_simulator_nor_another_judge(tmp_path):
    mirror = Mirror(tmp_path / "mirror")
    mirror.add(counting_episode(4, privileged={"success": np.ones(4, bool)}), 5)
    store = Store.open(tmp_path / "mirror")
    assert store.episode(0).success is None and len(store.ledger) == 0


class FarAway(ReplayBuffer):
    """The replay buffer as another machine sees it: its files are not there."""

    def location(self):
        return replace(super().location(), identity=("another machine", 0, 0))


def test_a_human_on_another_machine_labels_a_run(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    replay = FarAway(tmp_path / "run")
    for _ in range(2):
        replay.add(counting_episode(4), f"key {replay.stats(WHO).episodes}")
    person = HumanLabelWorker(LocalHandle("replay buffer", replay), BY_HAND)
    assert person.label_pending().done == 0
    (mirror,) = (tmp_path / "home/.plaudit/mirrors").iterdir()
    press(mirror, "Right Right S Return  F Return", name="lab")
    assert person.label_pending().done == 2
    ledger = Store.open(tmp_path / "run/episodes").ledger
    assert [ledger.labels(i).success_once for i in (0, 1)] == [True, False]
    assert replay.stats(WHO).unjudged == 0
    person.close()
    replay.close()


# On the same machine


def test_in_the_store_itself_what_is_offered_comes_first_and_nothing_is_collected(home):
    side = here(home.folder, BY_HAND)
    side.offer([2, 1])
    press(home.folder, "F Return")
    home.ledger.refresh()
    assert home.ledger.newest(2) is not None and side.collect() == []
    side.offer([])
    with Session.open(home.folder) as session:
        assert session.episode_id == 0, "nobody waits for any"


# The window


def test_a_window_in_a_process_of_its_own_labels_and_is_closed_for_lunch(home, tmp_path):
    window = Window(tmp_path / "mirror", WindowConfig(name="lab"), target="pressing:window")
    side = MirrorSide(Mirror(tmp_path / "mirror"), home.episode, window)
    assert "no labelling window was opened from here" in side.status
    side.offer([0])
    assert side.status == "the labelling window is open"
    said = []
    wait_until(lambda: said.extend(side.collect()) or said)
    side.offer([0, 1, 2])  # arrives while the window is open; the person closes it after the second
    wait_until(lambda: not window.open)
    said += side.collect()
    assert [i for i, _ in said] == [0, 1] and said[0][1].note == "by lab"
    assert side.status.endswith(f"was closed; open it again with: plaudit label {tmp_path / 'mirror'} --judge human")
    side.offer([0, 1, 2])
    assert not window.open, "a person at lunch is left alone"
    side.close()


def test_a_closed_window_opens_again_after_a_while_if_it_should(home):
    window = Window(home.folder, WindowConfig(reopen_s=0.0), target="pressing:window")
    side = StoreSide(home.folder, window)
    side.offer([0, 1])
    wait_until(lambda: not window.open)
    side.offer([2])
    assert window.open
    side.close()
    assert not window.open


def test_a_window_that_cannot_open_is_one_sentence_and_not_tried_again(home, monkeypatch):
    monkeypatch.setenv("QT_QPA_PLATFORM", "nonsense")
    side = here(home.folder, WindowConfig(reopen_s=0.0))
    side.offer([0])
    wait_until(lambda: side.status != "the labelling window is open")
    assert side.status.startswith("no labelling window could be opened: Qt cannot open a window: ")
    side.offer([0])
    assert side.status.startswith("no labelling window could be opened"), "it would fail again"


def test_a_window_that_crashed_is_told_apart_from_one_that_was_closed(home):
    window = Window(home.folder, WindowConfig(), target="pressing:window")
    window.show()
    os.kill(window._child.pid, signal.SIGKILL)
    wait_until(lambda: not window.open)
    assert window.status.startswith("the labelling window process was killed by SIGKILL; open it again with: plaudit")


PARENT = """
import sys, time
from pathlib import Path
from plaudit.training.labeling_window import WindowConfig, here
side = here(Path(sys.argv[1]), WindowConfig())
side.offer([0])
print(side._window._child.pid, flush=True)
time.sleep(60)
"""


def test_the_window_closes_when_the_loop_is_killed(home):
    with subprocess.Popen([sys.executable, "-c", PARENT, str(home.folder)], stdout=subprocess.PIPE) as parent:
        pid = int(parent.stdout.readline())
        wait_until(lambda: any((home.folder / "drafts").glob("*.journal")))  # it is up
        parent.kill()
    wait_until(lambda: ended(pid))


def ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").exists() and Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"


def test_the_windows_process_imports_no_torch():
    program = "import sys, plaudit.training.labeling_window; sys.exit(bool({'PySide6', 'torch'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
