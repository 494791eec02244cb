"""The window, without a screen: what it shows, what arrives, how it ends. (Its controls: test_human_controls.py)"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QImage
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication

from counted_stores import add_episode, counted_store, judged, open_window
from plaudit.data.store import Store
from plaudit.judges.human import palette
from plaudit.judges.human.session import ACTIONS, Session, replay_actions
from plaudit.judges.human.timeline import x_of
from plaudit.judges.human.window import LabelWindow
from plaudit.types import Episode
from processes import Forked
from waiting import stretch, wait_until

Key, Held, LEFT = Qt.Key, Qt.KeyboardModifier, Qt.MouseButton.LeftButton


@pytest.fixture
def folder(tmp_path):
    return counted_store(tmp_path / "store")


@pytest.fixture
def window(qtbot, folder):
    return open_window(qtbot, folder)


def pixels(image: QImage) -> np.ndarray:
    """[H, W, 3]"""
    image = image.convertToFormat(QImage.Format.Format_RGB888)
    rows = np.frombuffer(image.constBits(), np.uint8).reshape(image.height(), image.bytesPerLine())
    return rows[:, : 3 * image.width()].reshape(image.height(), image.width(), 3).copy()  # its memory goes with it


def color_at(widget, x: float, y: float) -> str:
    return widget.grab().toImage().pixelColor(round(x), round(y)).name()


def test_the_strip_has_a_colour_for_each_label(window):
    replay_actions(window.session, "Right 0 Right 1 @0")
    window._draw_episode()
    strip = window.timeline
    seen = [color_at(strip, x_of(n, 5, strip.width()) + 9, 60) for n in (1, 2)]
    assert seen == [palette.TIMELINE_FAILURE, palette.TIMELINE_SUCCESS]


def test_a_judges_probability_is_a_curve_over_the_strip_with_its_threshold(qtbot, folder):
    plain = open_window(qtbot, folder)
    before = pixels(plain.timeline.grab().toImage())
    plain.close()
    Store.open(folder).ledger.append(0, judged(4, 2, "classifier", sure=0.9))
    window = open_window(qtbot, folder)
    drawn = np.abs(pixels(window.timeline.grab().toImage()).astype(int) - before).sum(axis=2)[:72] > 100
    quarter = window.timeline.width() // 4
    assert drawn[:, -quarter:-20].any(axis=1).argmax() < 20, "high where it saw success"
    assert drawn[:, 20:quarter].any(axis=1).argmax() > 25, "low, under the threshold's line, where not"
    assert "classifier" in window.sidebar.traces.text() and "success from frame 2" in window.sidebar.traces.text()


def test_a_judges_progress_is_a_dotted_curve_beside_its_probability(qtbot, folder):
    scored = judged(4, None, "simulator", sure=0.5)
    drawn = []
    for progress in (0.1, 0.9):
        scores = replace(scored.scores, progress=np.full(5, progress, np.float32))
        Store.open(folder).ledger.append(0, replace(scored, scores=scores))
        window = open_window(qtbot, folder)
        drawn.append(pixels(window.timeline.grab().toImage()).astype(int))
        window.close()
    rows = np.flatnonzero((np.abs(drawn[0] - drawn[1]).sum(axis=2)[:72] > 100).any(axis=1))
    assert rows.min() < 20 and rows.max() > 50, "near the top where it is far, near the bottom where it is not"


def test_the_pixels_on_the_screen_are_those_of_the_episode(qtbot, tmp_path):
    frames = np.random.default_rng(0).integers(0, 256, (4, 12, 16, 3), np.uint8)
    with Store.create(tmp_path / "store") as store:
        store.append(Episode.of(frames={"left": frames, "right": 255 - frames}, actions=np.zeros((3, 1))))
    window = open_window(qtbot, tmp_path / "store")
    for frame in (0, 3, 1):
        window.slider.setValue(frame)
        shown = pixels(window.cameras.grab().toImage())
        for camera, expected in (("left", frames[frame]), ("right", 255 - frames[frame])):
            place = window.cameras.places()[camera]
            scale = place.height() / 12
            assert abs(place.width() / 16 - scale) < 0.1 and scale > 3, "as large as fits, in its own shape"
            rows = (place.top() + (np.arange(12) + 0.5) * scale).astype(int)
            columns = (place.left() + (np.arange(16) + 0.5) * place.width() / 16).astype(int)
            seen = shown[rows][:, columns]
            assert np.array_equal(seen[4:], expected[4:]), "below the camera's name"


def test_a_repeated_first_frame_is_not_shown(qtbot, tmp_path):
    window = open_window(qtbot, counted_store(tmp_path / "store", 1, padded="first"))
    place = window.cameras.places()["front"]
    assert color_at(window.cameras, place.center().x(), place.center().y()) == "#010101"
    assert window.slider.maximum() == 3


def test_the_frame_around_the_picture_says_the_label(window):
    place = window.cameras.places()["front"]
    seen = []
    for name in ("clear", "label_failure", "label_success"):
        window.act(name)
        seen.append(color_at(window.cameras, place.left() - 2, place.center().y()))
    assert seen == [palette.UNLABELED, palette.FAILURE, palette.SUCCESS]


def test_four_cameras_of_two_shapes_stand_beside_each_other_without_overlap(qtbot, tmp_path):
    sizes = {"a": (48, 64), "b": (48, 64), "wrist": (64, 64), "z": (48, 64)}
    frames = {name: np.zeros((3, *size, 3), np.uint8) for name, size in sizes.items()}
    with Store.create(tmp_path / "store") as store:
        store.append(Episode.of(frames=frames, actions=np.zeros((2, 1))))
    cameras = open_window(qtbot, tmp_path / "store").cameras
    places = list(cameras.places().values())
    assert all(cameras.rect().contains(place) for place in places)
    assert not any(a.intersects(b) for n, a in enumerate(places) for b in places[:n])


def test_task_progress_and_what_is_saved_are_shown(window):
    assert window.header.task.text() == "count" and window.header.left.text() == "3 left of 3"
    window.act("fail")
    assert window.status.saved.text().startswith("✓ saved") and window.status.words.text() == "no frame shows success"
    window.act("complete")
    assert (window.header.left.text(), window.header.progress.value()) == ("2 left of 3", 1)
    assert window.status.words.text() == "episode 0 is labeled: no success"


def test_what_cannot_be_done_is_said_in_the_status_line(window):
    window.act("complete")
    assert window.status.words.text().startswith("nothing is labeled in episode 0 yet")
    assert window.session.episode_id == 0


def test_an_episode_is_chosen_from_the_queue(qtbot, window):
    rows = window.sidebar.rows
    window.act("fail")
    qtbot.mouseClick(rows.viewport(), LEFT, pos=rows.visualRect(rows.model().index(2, 0)).center())
    assert window.session.episode_id == 2
    texts = [rows.model().data(rows.model().index(n, 0)).split() for n in range(3)]
    assert texts == [["✎", "0", "draft"], ["1", "6", "frames"], ["2", "7", "frames"]]


def test_an_episode_arrives_while_another_is_being_labeled(qtbot, folder):
    window = open_window(qtbot, folder, poll=True)
    window.act("success_from_here")
    add_episode(folder)
    qtbot.waitUntil(lambda: window.header.left.text() == "4 left of 4", timeout=round(1000 * stretch(10)))
    assert (window.session.episode_id, window.session.annotation.rle) == (0, "1x5")
    assert window.sidebar.rows.model().rowCount() == 4


def test_when_all_is_done_the_window_waits_for_what_comes(qtbot, folder):
    window = open_window(qtbot, folder, poll=True)
    for _ in range(3):
        window.act("fail")
        window.act("complete")
    assert window.session.episode is None and window.header.left.text() == "0 left of 3"
    for name in ACTIONS:
        window.act(name)  # nothing is open, or undone by mistake: nothing breaks
    while window.session.episode is not None:
        window.act("fail")
        window.act("complete")
    add_episode(folder)
    qtbot.waitUntil(lambda: window.session.episode_id == 3, timeout=round(1000 * stretch(10)))
    assert window.header.task.text() == "count"


def test_polling_that_fails_says_so_and_leaves_the_window_usable(qtbot, folder):
    window = open_window(qtbot, folder, poll=True)
    journal = folder / "journal"
    journal.write_bytes(journal.read_bytes()[:-30])
    qtbot.waitUntil(
        lambda: "no longer looking for new episodes" in window.status.words.text(), timeout=round(1000 * stretch(10))
    )
    window.act("fail")
    assert window.session.annotation.rle == "0x5"


def test_an_episode_without_images_or_task_says_so(qtbot, tmp_path):
    with Store.create(tmp_path / "store") as store:
        store.append(Episode.of(frames={}, actions=np.zeros((3, 1))))
    window = open_window(qtbot, tmp_path / "store")
    assert window.header.task.text() == "(this episode has no task text)"
    window.grab()
    window.act("exclude")
    window.act("complete")
    assert len(Store.open(tmp_path / "store").ledger) == 1


def test_a_task_text_is_never_markup(qtbot, tmp_path):
    window = open_window(qtbot, counted_store(tmp_path / "store", 1, task="<h1>pick</h1>"))
    assert window.header.task.textFormat() == Qt.TextFormat.PlainText


def test_closing_the_window_keeps_the_draft(qtbot, folder):
    window = open_window(qtbot, folder)
    window.act("last")
    window.act("success_from_here")
    window.close()
    with Session.open(folder) as session:
        assert (session.annotation.rle, session.cursor.frame) == ("0x4 1x1", 4)


def label_by_keys(folder: Path) -> None:
    """In a child process, until it is killed."""
    app = QApplication([])
    window = LabelWindow(Session.open(folder))
    window.show()
    for key in (Qt.Key.Key_F, Qt.Key.Key_End, Qt.Key.Key_1):
        QTest.keyClick(window, key)
    print(window.session.annotation.rle, flush=True)
    app.exec()


def test_a_window_that_is_killed_loses_nothing(folder):
    with Forked(label_by_keys, folder) as process:
        wait_until(lambda: process.readline().strip() == "0x4 1x1")
    with Session.open(folder) as session:
        assert (session.annotation.rle, session.cursor.frame) == ("0x4 1x1", 4)
        session.undo()
        assert session.annotation.rle == "0x5"
