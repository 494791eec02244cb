"""A person's keys and sticks, from a terminal and a device that the test holds the other end of."""

import os
import termios

import pytest

from plaudit.errors import RolloutError
from plaudit.registry import TELEOP_REGISTRY
from plaudit.rollout import teleop
from plaudit.rollout.teleop import AXIS, BUTTON, EVENT, FULL, GamepadConfig, KeyboardConfig, restore_terminal


@pytest.fixture
def keyboard(monkeypatch):
    """The person's end of a terminal."""
    person, terminal = os.openpty()
    monkeypatch.setattr(teleop, "TERMINAL", os.ttyname(terminal))
    yield person
    os.close(person)
    os.close(terminal)


def test_a_key_moves_its_joint_and_then_the_policy_goes_on(keyboard, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(teleop.time, "monotonic", lambda: now[0])
    hand = KeyboardConfig(step_size=0.5, key_timeout_s=0.6).build(action_dim=3)
    assert hand.command() is None
    os.write(keyboard, b"q")
    assert hand.command().tolist() == [0.5, 0, 0]
    os.write(keyboard, b"sx")  # x is nobody's
    assert hand.command().tolist() == [0.5, -0.5, 0]
    now[0] += 0.7
    assert hand.command() is None
    os.write(keyboard, b" ")
    assert hand.command().tolist() == [0, 0, 0]
    hand.close()


def test_keys_typed_before_the_first_command_of_an_episode_move_nothing(keyboard):
    hand = KeyboardConfig().build(action_dim=1)
    os.write(keyboard, b"q")
    assert hand.command() is not None
    os.write(keyboard, b"qqq")  # at the gate
    hand.begin_episode(None)
    os.write(keyboard, 100 * b"q")  # while the policy infers its first chunk
    assert hand.command() is None
    os.write(keyboard, b"q")
    assert hand.command() is not None
    hand.close()


def test_the_terminal_is_left_as_it_was(keyboard):
    def echoes() -> bool:
        return bool(termios.tcgetattr(keyboard)[3] & termios.ECHO)

    with restore_terminal():
        hand = KeyboardConfig().build(action_dim=1)
        assert not echoes()
    assert echoes()  # although nobody closed it: its process may have been killed
    hand.close()
    assert echoes()


def test_sticks_count_while_the_button_is_held(tmp_path):
    device = tmp_path / "js0"
    os.mkfifo(device)
    pad = GamepadConfig(device=str(device), button=4, axes=(1, 0), first_joint=1, step_size=2.0).build(action_dim=3)
    person = os.open(device, os.O_WRONLY)
    os.write(person, EVENT.pack(0, FULL, AXIS, 0) + EVENT.pack(0, 1000, AXIS, 1))  # the second is nearly at rest
    assert pad.command() is None
    os.write(person, EVENT.pack(1, 1, BUTTON, 4))
    assert pad.command().tolist() == [0, 0, 2]
    os.write(person, EVENT.pack(2, 0, BUTTON, 4))
    assert pad.command() is None
    os.close(person)
    pad.close()


def test_what_is_not_there_is_said(monkeypatch, tmp_path):
    monkeypatch.setattr(teleop, "TERMINAL", str(tmp_path / "tty"))
    with pytest.raises(RolloutError, match="teleop by keyboard needs a terminal: No such file"):
        KeyboardConfig().build(action_dim=1)
    with pytest.raises(RolloutError, match="is a gamepad plugged in"):
        GamepadConfig(device=str(tmp_path / "js0")).build(action_dim=1)


def test_teleoperators_have_names():
    assert isinstance(TELEOP_REGISTRY.parse({"type": "gamepad", "button": 5}), GamepadConfig)
    assert list(TELEOP_REGISTRY.names()) == ["gamepad", "keyboard", "lerobot", "scripted", "spacemouse", "topic"]
