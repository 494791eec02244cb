"""Streams of real devices' formats, played back through the code that reads the devices."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from plaudit.errors import MissingExtra, RolloutError, RolloutFault
from plaudit.registry import TELEOP_REGISTRY
from plaudit.rollout import teleop
from plaudit.rollout.teleop import GamepadConfig, KeyboardConfig, SpaceMouseConfig, teleop_defaults

STREAMS = Path(__file__).with_name("device_streams")
LIFT = {"type": "sim", "env": {"type": "lift"}}


def packets(name: str) -> dict[int, list[bytes]]:
    """Tick -> what the device sends before it."""
    by_tick: dict[int, list[bytes]] = {}
    for line in (STREAMS / name).read_text().splitlines():
        if not line.startswith("#"):
            tick, *data = line.split()
            by_tick.setdefault(int(tick), []).extend(map(bytes.fromhex, data))
    return by_tick


def task_config(kind: str, **keys) -> Any:
    """The config of a device for the task `lift`, as commands make it."""
    return TELEOP_REGISTRY.parse({"type": kind, **teleop_defaults(kind, LIFT), **keys})


def rounded(command) -> list[float] | None:
    return None if command is None else [round(float(number), 2) + 0.0 for number in command]


class Hid:
    """The HID device below pyspacemouse; None in the queue is a cable that was pulled."""

    vendor_id, product_id = 0x256F, 0xC635
    product_string, manufacturer_string, release_number, serial_number = "SpaceMouse Compact", "3Dconnexion", 1, ""

    def __init__(self) -> None:
        self.queue: list[bytes | None] = []
        self.is_open, self.blocking = False, True

    def open(self) -> None:
        self.is_open = True

    def close(self) -> None:
        self.is_open = False

    def set_nonblocking(self, nonblocking: bool) -> None:
        self.blocking = not nonblocking

    def read(self, size: int) -> bytes:
        if self.queue and self.queue[0] is None:
            raise sys.modules["easyhid"].HIDException("Failed to read from HID device: -1")
        return self.queue.pop(0)[:size] if self.queue else b""


@pytest.fixture
def hid(monkeypatch) -> Iterator[Hid]:
    api = pytest.importorskip("pyspacemouse.api")
    device = Hid()
    monkeypatch.setattr(api, "Enumeration", lambda: SimpleNamespace(find=lambda: [device]))
    yield device
    assert not device.blocking


def test_a_spacemouse_moves_the_hand_and_its_buttons_the_gripper(hid, capsys):
    mouse = task_config("spacemouse").build(4)
    commands = []
    stream = packets("spacemouse.txt")
    for tick in range(4):
        hid.queue += stream[tick]
        commands.append(rounded(mouse.command()))
        assert not hid.queue  # no report is left for a later tick
    assert commands == [None, [0.5, 0, 0, 1], [0, 0, 0.5, -1], None]
    mouse.close()
    assert not hid.is_open and not capsys.readouterr().out


def test_a_spacemouse_moves_joints_or_all_seven_directions(hid):
    mouse = SpaceMouseConfig(first_joint=1, step_size=0.1, axes=("z", "yaw")).build(3)
    hid.queue += packets("spacemouse.txt")[2]
    assert rounded(mouse.command()) == [0, 0.1, 0.1]


def test_a_spacemouse_that_is_pulled_is_a_fault_that_may_pass(hid):
    mouse = task_config("spacemouse").build(4)
    hid.queue += [*packets("spacemouse.txt")[1], None]
    with pytest.raises(RolloutFault, match=r"the SpaceMouse was disconnected.*connect it again"):
        mouse.command()


def test_without_a_spacemouse_or_its_package_the_error_says_what_to_do(monkeypatch):
    api = pytest.importorskip("pyspacemouse.api")
    monkeypatch.setattr(api, "Enumeration", lambda: SimpleNamespace(find=list))
    with pytest.raises(RolloutFault, match=r"no SpaceMouse can be opened.*Is it plugged in"):
        SpaceMouseConfig().build(4)
    with pytest.raises(RolloutError, match=r"teleop\.device: Unknown device: 'SpaceMice'"):
        SpaceMouseConfig(device="SpaceMice").build(4)
    monkeypatch.setitem(sys.modules, "pyspacemouse", None)
    with pytest.raises(MissingExtra, match=r"'plaudit\[spacemouse\]'"):
        SpaceMouseConfig().build(4)


def test_a_gamepad_moves_the_hand_while_its_button_is_held(tmp_path):
    os.mkfifo(tmp_path / "js0")
    pad = task_config("gamepad", device=str(tmp_path / "js0")).build(4)
    stream, person = packets("gamepad.txt"), os.open(tmp_path / "js0", os.O_WRONLY)
    commands = []
    for tick in range(7):
        os.write(person, b"".join(stream.get(tick, [])))
        commands.append(rounded(pad.command()))
    forward = [round(0.5 * (16383 / 32767 - 0.1) / 0.9, 2), 0, 0, 1]  # beyond the deadzone of 0.1
    assert commands == [None, [0, 0, 0, 1], forward, [0.5, 0, 0, 1], [0, 0, 0, -1], [0, 0, -0.5, -1], None]
    os.close(person)
    with pytest.raises(RolloutFault, match=r"the gamepad .*js0 was disconnected; connect it again"):
        pad.command()
    pad.close()


def test_a_key_that_is_tapped_moves_a_little_and_one_that_repeats_moves_on(monkeypatch):
    person, terminal = os.openpty()
    monkeypatch.setattr(teleop, "TERMINAL", os.ttyname(terminal))
    now = [100.0]
    monkeypatch.setattr(teleop.time, "monotonic", lambda: now[0])
    keyboard, stream = task_config("keyboard", key_timeout_s=0.58).build(4), packets("keyboard.txt")
    commands = []
    for tick in range(100):
        now[0] = 100 + tick / 20
        os.write(person, b"".join(stream.get(tick, [])))
        commands.append(rounded(keyboard.command()))
    forward = [tick for tick, command in enumerate(commands) if command and command[0]]
    assert forward == [0, 40, *range(45, 57)]
    assert all(commands[tick][0] == 0.25 for tick in forward)
    # Control is kept while a key may still be held, and then handed back.
    human = [tick for tick, command in enumerate(commands) if command is not None]
    assert human == [*range(12), *range(40, 66), *range(80, 92)]
    assert [commands[tick][3] for tick in human] == [1.0] * 38 + [-1.0] * 12
    keyboard.close()
    os.close(person)
    os.close(terminal)


def test_the_gripper_stays_as_the_policy_left_it_when_a_person_takes_over(monkeypatch):
    person, terminal = os.openpty()
    monkeypatch.setattr(teleop, "TERMINAL", os.ttyname(terminal))
    keyboard = task_config("keyboard").build(4)
    keyboard.begin_episode(SimpleNamespace(last_command=np.array([1, 0, 0, -1], np.float32)))
    assert keyboard.command() is None  # what was typed before the episode
    os.write(person, b"i")
    assert rounded(keyboard.command()) == [0.25, 0, 0, -1]
    keyboard.close()
    os.close(person)
    os.close(terminal)


def test_the_terminal_that_is_gone_is_a_fault(monkeypatch):
    person, terminal = os.openpty()
    monkeypatch.setattr(teleop, "TERMINAL", os.ttyname(terminal))
    keyboard = KeyboardConfig().build(4)
    os.close(terminal)
    os.close(person)
    with pytest.raises(RolloutFault, match="the terminal was disconnected"):
        keyboard.command()
    keyboard.close()


def test_a_device_for_a_task_suits_it_unless_the_user_sets_a_key():
    config = task_config("gamepad", step_size=0.1)
    assert (config.relative, config.gripper, config.step_size, config.axes[:3]) == (False, 3, 0.1, (1, 0, 4))
    assert teleop_defaults("gamepad", {"type": "igris_b"}) == {}
    assert teleop_defaults("scripted", LIFT) == {}
    assert isinstance(TELEOP_REGISTRY.parse({"type": "gamepad"}), GamepadConfig)
