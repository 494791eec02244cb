"""The way in: stores, data sets of other layouts, and the sentences for when there can be no window."""

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from lerobot_v21 import write_v21

from conftest import counting_episode, labeled_store
from counted_stores import counted_store
from plaudit.data.store import Store
from plaudit.data.transfer import export_dataset, open_or_import
from plaudit.errors import DataError, DisplayError, MissingExtra, UnknownFormat
from plaudit.judges.human import app
from plaudit.judges.human.app import check_display
from plaudit.judges.human.session import Session
from plaudit.types import Labeler
from processes import Forked
from waiting import wait_until


def test_a_store_is_labeled_as_it_is(tmp_path):
    folder = counted_store(tmp_path / "store")
    assert open_or_import(folder) == (folder, [])
    with pytest.raises(DataError, match="is a store already, and its labels belong into it"):
        open_or_import(folder, tmp_path / "other")


@pytest.mark.parametrize("layout", ["lerobot", "npy", "pkl"])
def test_a_data_set_is_labeled_as_a_store_beside_it_and_is_not_changed(tmp_path, layout):
    source = tmp_path / "theirs"
    if layout == "lerobot":
        write_v21(source, lengths=(5, 6))
    else:
        mine = labeled_store(tmp_path / "mine", counting_episode(), counting_episode(first=50), cutoff=2)
        export_dataset(mine, source, layout)
    before = {path: path.read_bytes() for path in source.rglob("*") if path.is_file()}
    folder, told = open_or_import(source)
    assert folder == tmp_path / "theirs.store"
    assert told[0].endswith(f"{folder}, which has its 2 episodes; {source} is not changed")
    with Session.open(folder) as session:
        session.fail()
        session.complete()
    assert open_or_import(source)[0] == folder, "the same store when it is opened again"
    assert len(Store.open(folder)) == 2
    assert Store.open(folder).ledger.newest(0, ("human",)) is not None
    assert before == {path: path.read_bytes() for path in source.rglob("*") if path.is_file()}


def test_the_store_of_a_data_set_goes_where_one_says(tmp_path):
    source = write_v21(tmp_path / "theirs", lengths=(5,))
    folder, _ = open_or_import(source, tmp_path / "labels" / "bottle")
    assert folder == tmp_path / "labels" / "bottle" and len(Store.open(folder)) == 1


def test_the_store_of_a_data_set_that_somebody_is_writing_is_labeled_as_it_is(tmp_path):
    source = write_v21(tmp_path / "theirs", lengths=(5,))
    folder, _ = open_or_import(source)
    with Store.open(folder, write=True):
        assert open_or_import(source) == (folder, [])


def test_a_folder_that_is_nothing_we_know_is_said_so(tmp_path):
    with pytest.raises(UnknownFormat, match="nor one of the layouts that we read"):
        open_or_import(tmp_path)


def test_no_screen_is_one_clear_sentence(monkeypatch):
    for name in ("QT_QPA_PLATFORM", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    with pytest.raises(DisplayError, match=r"there is no screen for a window .* Run this on a desktop, over"):
        check_display()


def test_a_platform_that_qt_does_not_have_is_a_sentence_and_not_an_abort(monkeypatch):
    monkeypatch.setenv("QT_QPA_PLATFORM", "nonsense")
    with pytest.raises(DisplayError, match=r'Qt cannot open a window: .*"nonsense"'):
        check_display()


def test_a_window_that_nobody_would_see_is_not_opened(monkeypatch):
    """Without a screen that answers, Qt goes on and draws into memory."""
    monkeypatch.delenv("QT_QPA_PLATFORM")
    monkeypatch.setenv("DISPLAY", ":77")
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    with pytest.raises(
        DisplayError, match=r"DISPLAY=:77 does not answer|apt-get install libxcb-cursor0|cannot open a window"
    ):
        check_display()


@pytest.mark.parametrize(
    "said, sentence",
    [
        (
            "Traceback:\nImportError: libEGL.so.1: cannot open shared object file: No such file",
            r"Qt misses a system library \(libEGL.so.1: cannot open .*\); run: apt-get install libegl1 libgl1",
        ),
        (
            "qt.qpa.plugin: From 6.5.0, xcb-cursor0 or libxcb-cursor0 is needed",
            "to show a window on X; run: apt-get install libxcb-cursor0",
        ),
        ("qt.qpa.xcb: could not connect to display :9", "does not answer"),
        ("", "Qt cannot open a window: it did not say why"),
    ],
)
def test_what_qt_says_becomes_a_sentence_to_act_on(monkeypatch, said, sentence):
    monkeypatch.setattr(app, "_probe_qt", lambda: said)
    with pytest.raises(DisplayError, match=sentence):
        check_display()


def test_a_missing_package_is_named_with_the_extra_that_brings_it(monkeypatch):
    monkeypatch.setattr(app.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"PySide6 is not installed; run: pip install 'plaudit\[gui\]'"):
        check_display()


def test_nothing_but_the_window_imports_qt_or_torch():
    program = """
        import sys
        import plaudit.judges.human.app, plaudit.judges.human.session
        sys.exit(bool({"PySide6", "torch"} & set(sys.modules)))
    """
    assert subprocess.run([sys.executable, "-c", textwrap.dedent(program)]).returncode == 0


def label_at_once(folder: Path) -> None:
    """In a child process, which shows its window until Ctrl-C."""
    from plaudit.judges.human import window

    class Quick(window.LabelWindow):
        def showEvent(self, event):
            for name in ("fail", "complete", "success_from_here"):
                self.act(name)
            print("shown", flush=True)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(window, "LabelWindow", Quick)
        done = app.run_labeling_app(folder, name="lab")
    print(done.count, done.left, done.drafts, done.store.name, flush=True)


def test_ctrl_c_in_the_terminal_closes_the_window_and_what_was_done_is_said(tmp_path):
    folder = counted_store(tmp_path / "store")
    with Forked(label_at_once, folder) as process:
        wait_until(lambda: process.readline() == "shown\n")
        process.send_signal(signal.SIGINT)
        assert process.read().endswith("1 2 1 store\n")
    assert process.returncode == 0
    assert Store.open(folder).ledger.labels(0).labeler == Labeler("lab")
