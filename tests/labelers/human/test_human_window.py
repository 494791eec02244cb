"""The window, without a screen: every key and every control, what it shows, what arrives, how it ends."""

import subprocess
import sys
import textwrap

import numpy as np
import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QImage, QKeyEvent

from by_hand import add_episode, counted_store, judged, said_of
from plaudit.data.store import Store
from plaudit.labelers.human import look
from plaudit.labelers.human.keys import ACTS, replay
from plaudit.labelers.human.session import Session
from plaudit.labelers.human.strip import x_of
from plaudit.labelers.human.window import LabelWindow, key_name
from plaudit.types import Episode

Key, Held, LEFT = Qt.Key, Qt.KeyboardModifier, Qt.MouseButton.LeftButton


@pytest.fixture
def folder(tmp_path):
    return counted_store(tmp_path / "store")


@pytest.fixture
def open_window(qtbot):
    """A function that opens one on a folder; pytest-qt closes it."""

    def opened(folder, poll: bool = False, size: tuple[int, int] = (1000, 700), **options) -> LabelWindow:
        window = LabelWindow(Session.open(folder), poll=poll, **options)
        qtbot.addWidget(window)
        window.resize(*size)
        window.show()
        return window

    return opened


@pytest.fixture
def window(open_window, folder):
    return open_window(folder)


def pixels(image: QImage) -> np.ndarray:
    """[H, W, 3]"""
    image = image.convertToFormat(QImage.Format.Format_RGB888)
    rows = np.frombuffer(image.constBits(), np.uint8).reshape(image.height(), image.bytesPerLine())
    return rows[:, : 3 * image.width()].reshape(image.height(), image.width(), 3).copy()  # its memory goes with it


def colour_at(widget, x: float, y: float) -> str:
    return widget.grab().toImage().pixelColor(round(x), round(y)).name()


KEYS = {  # pressed at frame 2 of 5
    "back": (Key.Key_Left, Held.NoModifier, "frame 1"),
    "forward": (Key.Key_Right, Held.NoModifier, "frame 3"),
    "back_ten": (Key.Key_Left, Held.ShiftModifier, "frame 0"),
    "forward_ten": (Key.Key_Right, Held.ShiftModifier, "frame 4"),
    "first": (Key.Key_Home, Held.NoModifier, "frame 0"),
    "last": (Key.Key_End, Held.NoModifier, "frame 4"),
    "zero": (Key.Key_0, Held.NoModifier, "?x2 0x1 ?x2"),
    "one": (Key.Key_1, Held.NoModifier, "?x2 1x1 ?x2"),
    "from_here": (Key.Key_S, Held.NoModifier, "0x2 1x3"),
    "fail": (Key.Key_F, Held.NoModifier, "0x5"),
    "exclude": (Key.Key_X, Held.NoModifier, "excluded"),
    "mark_start": (Key.Key_I, Held.NoModifier, "marked (2, 2)"),
    "mark_end": (Key.Key_O, Held.NoModifier, "marked (2, 2)"),
    "next": (Key.Key_PageDown, Held.NoModifier, "episode 1"),
    "help": (Key.Key_Question, Held.ShiftModifier, "help"),
    "play": (Key.Key_Space, Held.NoModifier, "playing"),
    "faster": (Key.Key_Plus, Held.NoModifier, "speed 2.0"),
    "slower": (Key.Key_Minus, Held.NoModifier, "speed 0.5"),
}


def state(window: LabelWindow) -> set[str]:
    session = window.session
    return {
        f"frame {session.cursor.frame}",
        f"episode {session.episode_id}",
        f"marked {session.cursor.selection}",
        f"speed {window.player.speed}",
        session.verdict.text,
        *(["help"] if window.help.isVisible() else []),
        *(["playing"] if window.player.playing else []),
    }


@pytest.mark.parametrize("name", KEYS)
def test_a_key_does_its_act(qtbot, window, name):
    key, held, expected = KEYS[name]
    window.session.cursor.go(2)
    assert expected not in state(window)
    qtbot.keyClick(window, key, held)
    assert expected in state(window)


def test_keys_that_need_something_before_them(qtbot, window):
    session = window.session
    qtbot.keyClick(window, Key.Key_F)
    qtbot.keyClick(window, Key.Key_Z)
    assert session.verdict.text == "?x5"
    qtbot.keyClick(window, Key.Key_Y)
    assert session.verdict.text == "0x5"
    qtbot.keyClick(window, Key.Key_C)
    assert session.verdict.text == "?x5"
    qtbot.keyClick(window, Key.Key_Z, Held.ControlModifier)
    assert session.verdict.text == "0x5"
    qtbot.keyClick(window, Key.Key_I)
    qtbot.keyClick(window, Key.Key_Escape)
    assert session.cursor.selection is None
    qtbot.keyClick(window, Key.Key_Return)
    assert session.episode_id == 1
    qtbot.keyClick(window, Key.Key_PageUp)
    assert session.episode_id == 0
    tested = {*KEYS, "undo", "redo", "clear", "unmark", "complete", "previous"}
    assert tested == set(ACTS), "every act has a test"


@pytest.mark.parametrize("name", ["zero", "one", "from_here", "fail", "exclude", "mark_start", "mark_end"])
def test_a_button_does_what_its_key_does(qtbot, window, name):
    window.session.cursor.go(2)
    qtbot.mouseClick(window.controls.buttons[name], LEFT)
    assert KEYS[name][2] in state(window)


@pytest.mark.parametrize("name", ["play", "faster", "slower", "help"])
def test_so_do_the_buttons_of_the_other_row(qtbot, window, name):
    qtbot.mouseClick(getattr(window.transport, name), LEFT)
    assert KEYS[name][2] in state(window)


def test_undo_redo_clear_and_complete_are_buttons_too(qtbot, window, folder):
    buttons, session = window.controls.buttons, window.session
    seen = []
    for name in ("fail", "undo", "redo", "clear", "undo"):
        qtbot.mouseClick(buttons[name], LEFT)
        seen.append(session.verdict.text)
    assert seen == ["0x5", "?x5", "0x5", "?x5", "0x5"]
    qtbot.mouseClick(buttons["complete"], LEFT)
    assert session.episode_id == 1 and said_of(folder, 0) == [0] * 5


def test_keys_work_wherever_one_has_clicked(qtbot, window):
    for widget in (window.slider, window.strip, window.side.rows.viewport(), window.controls.buttons["mark_start"]):
        qtbot.mouseClick(widget, LEFT)
        assert window.focusWidget() in (None, window)
    before = window.session.cursor.frame
    qtbot.keyClick(window, Key.Key_Right)
    assert window.session.cursor.frame == before + 1


def test_a_key_that_is_held_goes_on_stepping_but_completes_once(window):
    def hold(key: Qt.Key, text: str = "") -> None:
        for repeated in (False, True, True):
            window.keyPressEvent(QKeyEvent(QKeyEvent.Type.KeyPress, key, Held.NoModifier, text, repeated))

    hold(Key.Key_Right)
    assert window.session.cursor.frame == 3
    window.act("fail")
    hold(Key.Key_Return)
    assert window.session.completed == 1


@pytest.mark.parametrize(
    "key, held, text, name",
    [
        (Key.Key_S, Held.ShiftModifier, "S", "S"),
        (Key.Key_8, Held.ControlModifier | Held.AltModifier, "[", "["),  # AltGr+8 on a German keyboard
        (Key.Key_1, Held.KeypadModifier, "1", "1"),
        (Key.Key_Enter, Held.KeypadModifier, "\r", "Enter"),
        (Key.Key_Left, Held.KeypadModifier, "", "Left"),
        (Key.Key_Z, Held.ControlModifier | Held.ShiftModifier, "\x1a", "Ctrl+Shift+Z"),
        (Key.Key_F1, Held.NoModifier, "", "F1"),
    ],
)
def test_a_key_is_what_it_types_on_any_keyboard(key, held, text, name):
    assert key_name(QKeyEvent(QKeyEvent.Type.KeyPress, key, held, text)) == name


def test_the_slider_goes_where_it_is_clicked_and_dragged(qtbot, window):
    slider, session = window.slider, window.session
    qtbot.mouseClick(slider, LEFT, pos=QPoint(round(x_of(3, 5, slider.width())), 10))
    assert session.cursor.frame == slider.value() == 3
    qtbot.mousePress(slider, LEFT, pos=QPoint(0, 10))
    assert session.cursor.frame == 0
    qtbot.keyClick(window, Key.Key_End)
    assert slider.value() == 4


def test_the_strip_scrubs_and_with_shift_marks_a_range(qtbot, window):
    strip, session = window.strip, window.session
    at = [QPoint(round(x_of(n, 5, strip.width())), 20) for n in range(5)]
    qtbot.mouseClick(strip, LEFT, pos=at[2])
    assert session.cursor.frame == 2
    window.strip.marked.emit(1, 3)
    assert session.cursor.selection == (1, 3)
    qtbot.mouseClick(strip, LEFT, Held.ShiftModifier, pos=at[4])
    assert session.cursor.selection == (4, 4)


def test_the_strip_has_a_colour_for_each_verdict(window):
    replay(window.session, "Right 0 Right 1 @0")
    window._draw_episode()
    strip = window.strip
    seen = [colour_at(strip, x_of(n, 5, strip.width()) + 9, 60) for n in (1, 2)]
    assert seen == [look.STRIP_FAILURE, look.STRIP_SUCCESS]


def test_a_judges_probability_is_a_curve_over_the_strip_with_its_threshold(open_window, folder):
    plain = open_window(folder)
    before = pixels(plain.strip.grab().toImage())
    plain.close()
    Store.open(folder).ledger.append(0, judged(4, 2, "classifier", sure=0.9))
    window = open_window(folder)
    drawn = np.abs(pixels(window.strip.grab().toImage()).astype(int) - before).sum(axis=2)[:72] > 100
    quarter = window.strip.width() // 4
    assert drawn[:, -quarter:-20].any(axis=1).argmax() < 20, "high where it saw success"
    assert drawn[:, 20:quarter].any(axis=1).argmax() > 25, "low, under the threshold's line, where not"
    assert "classifier" in window.side.opinions.text() and "success from frame 2" in window.side.opinions.text()


def test_the_pixels_on_the_screen_are_those_of_the_episode(open_window, tmp_path):
    frames = np.random.default_rng(0).integers(0, 256, (4, 12, 16, 3), np.uint8)
    with Store.create(tmp_path / "store") as store:
        store.append(Episode.of(frames={"left": frames, "right": 255 - frames}, actions=np.zeros((3, 1))))
    window = open_window(tmp_path / "store")
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


def test_a_repeated_first_frame_is_not_shown(open_window, tmp_path):
    window = open_window(counted_store(tmp_path / "store", 1, repeated="first"))
    place = window.cameras.places()["front"]
    assert colour_at(window.cameras, place.center().x(), place.center().y()) == "#010101"
    assert window.slider.maximum() == 3


def test_the_frame_around_the_picture_says_the_verdict(window):
    place = window.cameras.places()["front"]
    seen = []
    for name in ("clear", "zero", "one"):
        window.act(name)
        seen.append(colour_at(window.cameras, place.left() - 2, place.center().y()))
    assert seen == [look.UNJUDGED, look.FAILURE, look.SUCCESS]


def test_four_cameras_of_two_shapes_stand_beside_each_other_without_overlap(open_window, tmp_path):
    sizes = {"a": (48, 64), "b": (48, 64), "wrist": (64, 64), "z": (48, 64)}
    frames = {name: np.zeros((3, *size, 3), np.uint8) for name, size in sizes.items()}
    with Store.create(tmp_path / "store") as store:
        store.append(Episode.of(frames=frames, actions=np.zeros((2, 1))))
    cameras = open_window(tmp_path / "store").cameras
    places = list(cameras.places().values())
    assert all(cameras.rect().contains(place) for place in places)
    assert not any(a.intersects(b) for n, a in enumerate(places) for b in places[:n])


def test_help_is_shown_over_the_window_and_keys_go_on_working(qtbot, window):
    window.act("help")
    assert window.help.isVisible() and window.help.size() == window.size()
    qtbot.keyClick(window, Key.Key_F)
    assert window.session.verdict.text == "0x5"
    qtbot.keyClick(window, Key.Key_Escape)
    assert not window.help.isVisible()
    window.act("help")
    qtbot.mouseClick(window.help, LEFT)
    assert not window.help.isVisible()


def test_playing_goes_to_the_end_and_from_there_begins_again(qtbot, window):
    for _ in range(5):
        window.act("faster")
    assert window.player.speed == 8 and window.transport.speed.text() == "8×"
    window.act("play")
    assert window.transport.play.title.text() == "Pause"
    qtbot.waitUntil(lambda: not window.player.playing, timeout=5000)
    assert window.session.cursor.frame == 4 and window.transport.play.title.text() == "Play"
    shown = []
    window.player.due.connect(shown.append)
    window.act("play")
    qtbot.waitUntil(lambda: not window.player.playing, timeout=5000)
    assert shown[0] < 4 and shown[-1] == 4 and shown == sorted(shown)


def test_playing_stops_for_an_edit_a_step_and_a_drag(window):
    for stop in (lambda: window.act("fail"), lambda: window.act("forward"), lambda: window.slider.setValue(3)):
        window.act("first")
        window.act("play")
        assert window.player.playing
        stop()
        assert not window.player.playing


def test_speeds_go_from_a_quarter_to_eight(window):
    seen = [window.act(name) or window.player.speed for name in ["slower"] * 3 + ["faster"] * 6]
    assert seen == [0.5, 0.25, 0.25, 0.5, 1, 2, 4, 8, 8]


def test_task_progress_and_what_is_saved_are_shown(window):
    assert window.header.task.text() == "count" and window.header.left.text() == "3 left of 3"
    window.act("fail")
    assert window.status.saved.text().startswith("✓ saved") and window.status.words.text() == "no frame shows success"
    window.act("complete")
    assert (window.header.left.text(), window.header.progress.value()) == ("2 left of 3", 1)
    assert window.status.words.text() == "episode 0 is labelled: no success"


def test_what_cannot_be_done_is_said_in_the_status_line(window):
    window.act("complete")
    assert window.status.words.text().startswith("nothing is judged in episode 0 yet")
    assert window.session.episode_id == 0


def test_an_episode_is_chosen_from_the_queue(qtbot, window):
    rows = window.side.rows
    window.act("fail")
    qtbot.mouseClick(rows.viewport(), LEFT, pos=rows.visualRect(rows.model().index(2, 0)).center())
    assert window.session.episode_id == 2
    texts = [rows.model().data(rows.model().index(n, 0)).split() for n in range(3)]
    assert texts == [["✎", "0", "draft"], ["1", "6", "frames"], ["2", "7", "frames"]]


def test_an_episode_arrives_while_another_is_being_labelled(qtbot, open_window, folder):
    window = open_window(folder, poll=True)
    window.act("from_here")
    add_episode(folder)
    qtbot.waitUntil(lambda: window.header.left.text() == "4 left of 4", timeout=5000)
    assert (window.session.episode_id, window.session.verdict.text) == (0, "1x5")
    assert window.side.rows.model().rowCount() == 4


def test_when_all_is_done_the_window_waits_for_what_comes(qtbot, open_window, folder):
    window = open_window(folder, poll=True)
    for _ in range(3):
        window.act("fail")
        window.act("complete")
    assert window.session.episode is None and window.header.left.text() == "0 left of 3"
    for name in ACTS:
        window.act(name)  # nothing is open, or undone by mistake: nothing breaks
    while window.session.episode is not None:
        window.act("fail")
        window.act("complete")
    add_episode(folder)
    qtbot.waitUntil(lambda: window.session.episode_id == 3, timeout=5000)
    assert window.header.task.text() == "count"


def test_polling_that_fails_says_so_and_leaves_the_window_usable(qtbot, open_window, folder):
    window = open_window(folder, poll=True)
    journal = folder / "journal"
    journal.rename(folder / "away")
    journal.write_bytes((folder / "away").read_bytes())
    qtbot.waitUntil(lambda: "no longer looking for new episodes" in window.status.words.text(), timeout=5000)
    window.act("fail")
    assert window.session.verdict.text == "0x5"


def test_an_episode_without_images_or_task_says_so(open_window, tmp_path):
    with Store.create(tmp_path / "store") as store:
        store.append(Episode.of(frames={}, actions=np.zeros((3, 1))))
    window = open_window(tmp_path / "store")
    assert window.header.task.text() == "(this episode has no task text)"
    window.grab()
    window.act("exclude")
    window.act("complete")
    assert len(Store.open(tmp_path / "store").ledger) == 1


def test_a_task_text_is_never_markup(open_window, tmp_path):
    window = open_window(counted_store(tmp_path / "store", 1, task="<h1>pick</h1>"))
    assert window.header.task.textFormat() == Qt.TextFormat.PlainText


def test_closing_the_window_keeps_the_draft(open_window, folder):
    window = open_window(folder)
    window.act("last")
    window.act("from_here")
    window.close()
    with Session.open(folder) as session:
        assert (session.verdict.text, session.cursor.frame) == ("0x4 1x1", 4)


def test_what_is_pressed_can_be_logged_and_replayed(qtbot, open_window, folder, tmp_path):
    window = open_window(folder, keys_log=tmp_path / "keys")
    window.slider.setValue(3)
    qtbot.keyClick(window, Key.Key_S)
    qtbot.mouseClick(window.controls.buttons["complete"], LEFT)
    qtbot.keyClick(window, Key.Key_Space)
    qtbot.waitUntil(lambda: not window.player.playing, timeout=5000)
    qtbot.keyClick(window, Key.Key_S)
    qtbot.keyClick(window, Key.Key_Return)
    window.close()
    assert (tmp_path / "keys").read_text() == "=0 @3 S Return\n@5 S Return\n"
    other = counted_store(tmp_path / "other")
    with Session.open(other) as session:
        replay(session, (tmp_path / "keys").read_text())
    assert (
        [said_of(other, i) for i in (0, 1)] == [said_of(folder, i) for i in (0, 1)] == [[0, 0, 0, 1, 1], [0] * 5 + [1]]
    )


KILLED = """
    import sys
    from PySide6.QtCore import Qt
    from PySide6.QtTest import QTest
    from PySide6.QtWidgets import QApplication
    from plaudit.labelers.human.session import Session
    from plaudit.labelers.human.window import LabelWindow
    app = QApplication([])
    window = LabelWindow(Session.open(sys.argv[1]))
    window.show()
    for key in (Qt.Key.Key_F, Qt.Key.Key_End, Qt.Key.Key_1):
        QTest.keyClick(window, key)
    print(window.session.verdict.text, flush=True)
    app.exec()
"""


def test_a_window_that_is_killed_loses_nothing(folder):
    words = [sys.executable, "-c", textwrap.dedent(KILLED), str(folder)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout.readline().strip() == "0x4 1x1"
        process.kill()
    with Session.open(folder) as session:
        assert (session.verdict.text, session.cursor.frame) == ("0x4 1x1", 4)
        session.undo()
        assert session.verdict.text == "0x5"
