"""Every key and every control of the window, without a screen."""

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QKeyEvent

from counted_stores import counted_store, open_window, said_of
from plaudit.judges.human.session import ACTIONS, Session, replay_actions
from plaudit.judges.human.timeline import x_of
from plaudit.judges.human.window import LabelWindow, key_name
from waiting import stretch

Key, Held, LEFT = Qt.Key, Qt.KeyboardModifier, Qt.MouseButton.LeftButton


@pytest.fixture
def folder(tmp_path):
    return counted_store(tmp_path / "store")


@pytest.fixture
def window(qtbot, folder):
    return open_window(qtbot, folder)


KEYS = {  # pressed at frame 2 of 5
    "back": (Key.Key_Left, Held.NoModifier, "frame 1"),
    "forward": (Key.Key_Right, Held.NoModifier, "frame 3"),
    "back_10": (Key.Key_Left, Held.ShiftModifier, "frame 0"),
    "forward_10": (Key.Key_Right, Held.ShiftModifier, "frame 4"),
    "first": (Key.Key_Home, Held.NoModifier, "frame 0"),
    "last": (Key.Key_End, Held.NoModifier, "frame 4"),
    "label_failure": (Key.Key_0, Held.NoModifier, "?x2 0x1 ?x2"),
    "label_success": (Key.Key_1, Held.NoModifier, "?x2 1x1 ?x2"),
    "success_from_here": (Key.Key_S, Held.NoModifier, "0x2 1x3"),
    "fail": (Key.Key_F, Held.NoModifier, "0x5"),
    "exclude": (Key.Key_X, Held.NoModifier, "excluded"),
    "start_selection": (Key.Key_I, Held.NoModifier, "marked (2, 2)"),
    "end_selection": (Key.Key_O, Held.NoModifier, "marked (2, 2)"),
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
        session.annotation.rle,
        *(["help"] if window.help.isVisible() else []),
        *(["playing"] if window.player.playing else []),
    }


@pytest.mark.parametrize("name", KEYS)
def test_a_key_does_its_act(qtbot, window, name):
    key, held, expected = KEYS[name]
    window.session.cursor.seek(2)
    assert expected not in state(window)
    qtbot.keyClick(window, key, held)
    assert expected in state(window)


def test_keys_that_need_something_before_them(qtbot, window):
    session = window.session
    qtbot.keyClick(window, Key.Key_F)
    qtbot.keyClick(window, Key.Key_Z)
    assert session.annotation.rle == "?x5"
    qtbot.keyClick(window, Key.Key_Y)
    assert session.annotation.rle == "0x5"
    qtbot.keyClick(window, Key.Key_C)
    assert session.annotation.rle == "?x5"
    qtbot.keyClick(window, Key.Key_Z, Held.ControlModifier)
    assert session.annotation.rle == "0x5"
    qtbot.keyClick(window, Key.Key_I)
    qtbot.keyClick(window, Key.Key_Escape)
    assert session.cursor.selection is None
    qtbot.keyClick(window, Key.Key_Return)
    assert session.episode_id == 1
    qtbot.keyClick(window, Key.Key_PageUp)
    assert session.episode_id == 0
    tested = {*KEYS, "undo", "redo", "clear", "clear_selection", "complete", "previous"}
    assert tested == set(ACTIONS), "every act has a test"


@pytest.mark.parametrize(
    "name",
    ["label_failure", "label_success", "success_from_here", "fail", "exclude", "start_selection", "end_selection"],
)
def test_a_button_does_what_its_key_does(qtbot, window, name):
    window.session.cursor.seek(2)
    qtbot.mouseClick(window.buttons.by_name[name], LEFT)
    assert KEYS[name][2] in state(window)


@pytest.mark.parametrize("name", ["play", "faster", "slower", "help"])
def test_so_do_the_buttons_of_the_other_row(qtbot, window, name):
    qtbot.mouseClick(getattr(window.playback, name), LEFT)
    assert KEYS[name][2] in state(window)


def test_undo_redo_clear_and_complete_are_buttons_too(qtbot, window, folder):
    buttons, session = window.buttons.by_name, window.session
    seen = []
    for name in ("fail", "undo", "redo", "clear", "undo"):
        qtbot.mouseClick(buttons[name], LEFT)
        seen.append(session.annotation.rle)
    assert seen == ["0x5", "?x5", "0x5", "?x5", "0x5"]
    qtbot.mouseClick(buttons["complete"], LEFT)
    assert session.episode_id == 1 and said_of(folder, 0) == [0] * 5


def test_keys_work_wherever_one_has_clicked(qtbot, window):
    for widget in (
        window.slider,
        window.timeline,
        window.sidebar.rows.viewport(),
        window.buttons.by_name["start_selection"],
    ):
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
    strip, session = window.timeline, window.session
    at = [QPoint(round(x_of(n, 5, strip.width())), 20) for n in range(5)]
    qtbot.mouseClick(strip, LEFT, pos=at[2])
    assert session.cursor.frame == 2
    window.timeline.marked.emit(1, 3)
    assert session.cursor.selection == (1, 3)
    qtbot.mouseClick(strip, LEFT, Held.ShiftModifier, pos=at[4])
    assert session.cursor.selection == (4, 4)


def test_help_is_shown_over_the_window_and_keys_go_on_working(qtbot, window):
    window.act("help")
    assert window.help.isVisible() and window.help.size() == window.size()
    qtbot.keyClick(window, Key.Key_F)
    assert window.session.annotation.rle == "0x5"
    qtbot.keyClick(window, Key.Key_Escape)
    assert not window.help.isVisible()
    window.act("help")
    qtbot.mouseClick(window.help, LEFT)
    assert not window.help.isVisible()


def test_playing_goes_to_the_end_and_from_there_begins_again(qtbot, window):
    for _ in range(5):
        window.act("faster")
    assert window.player.speed == 8 and window.playback.speed.text() == "8×"
    window.act("play")
    assert window.playback.play.title.text() == "Pause"
    qtbot.waitUntil(lambda: not window.player.playing, timeout=round(1000 * stretch(10)))
    assert window.session.cursor.frame == 4 and window.playback.play.title.text() == "Play"
    shown = []
    window.player.due.connect(shown.append)
    window.act("play")
    qtbot.waitUntil(lambda: not window.player.playing, timeout=round(1000 * stretch(10)))
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


def test_what_is_pressed_can_be_logged_and_replayed(qtbot, folder, tmp_path):
    window = open_window(qtbot, folder, action_log=tmp_path / "keys")
    window.slider.setValue(3)
    qtbot.keyClick(window, Key.Key_S)
    qtbot.mouseClick(window.buttons.by_name["complete"], LEFT)
    qtbot.keyClick(window, Key.Key_Space)
    qtbot.waitUntil(lambda: not window.player.playing, timeout=round(1000 * stretch(10)))
    qtbot.keyClick(window, Key.Key_S)
    qtbot.keyClick(window, Key.Key_Return)
    window.close()
    assert (tmp_path / "keys").read_text() == "=0 @3 S Return\n@5 S Return\n"
    other = counted_store(tmp_path / "other")
    with Session.open(other) as session:
        replay_actions(session, (tmp_path / "keys").read_text())
    assert (
        [said_of(other, i) for i in (0, 1)] == [said_of(folder, i) for i in (0, 1)] == [[0, 0, 0, 1, 1], [0] * 5 + [1]]
    )
