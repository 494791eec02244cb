"""An operator: the gate, marks, discarded episodes, and commands from a terminal, a gamepad, a topic and a script."""

import os
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from driving import Existing
from plaudit.data.store import Store
from plaudit.errors import DataError, RolloutError
from plaudit.robots.transport.messages import STRING, encode_string
from plaudit.rollout import operator as operator_module
from plaudit.rollout.engine import InferenceConfig, Sequential
from plaudit.rollout.operator import (
    Cue,
    Operator,
    OperatorCommand,
    OperatorConfig,
    OperatorStatus,
    hotkeys,
    listen_at_robot,
    listen_at_terminal,
    resolve_auto,
)
from plaudit.rollout.recording import discarded_folder
from plaudit.rollout.rtc import Rtc
from plaudit.rollout.run import RecordedEpisode, record_episodes
from plaudit.rollout.teleop import AXIS, BUTTON, EVENT, SHARED_KEYS, KeyboardConfig
from pty_process import PtyProcess
from puppet import CounterConfig, Puppet, PuppetConfig, WalkerConfig, lines
from twins import robot_config
from waiting import wait_until


class Script:
    """An operator who starts every episode and, at its second command, says the next of these; None: nothing."""

    def __init__(self, *commands: str | None, gate: bool = True):
        self._commands = list(commands)
        self.operator = Operator(gate, listener=self._start)
        self.phases: list[str] = []

    def _start(self, status: OperatorStatus) -> None:
        if status.phase != (self.phases[-1] if self.phases else "idle"):
            self.phases.append(status.phase)
            if status.phase == "gate":
                self.operator.send(OperatorCommand.START)

    def speak(self) -> None:
        if self._commands and (command := self._commands.pop(0)) is not None:
            self.operator.send(OperatorCommand(command))


class WatchedPuppet(Puppet):
    """Somebody watches, who speaks at its second command."""

    watcher: Script

    def act(self, action) -> None:
        super().act(action)
        if self._count == 2:
            self.watcher.speak()


@pytest.fixture
def attended(tmp_path: Path):
    """Episodes of five steps with a scripted operator: (script, count) -> what was recorded."""
    robot = WatchedPuppet(PuppetConfig(log=tmp_path / "log"))
    config = InferenceConfig(max_episode_steps=5, realtime=False)
    with (
        Sequential(Existing(thing=robot), CounterConfig(), config) as engine,
        Store.create(tmp_path / "store") as store,
    ):

        def record(script: Script, count: int, **options: Any) -> list[RecordedEpisode]:
            robot.watcher = script
            return list(record_episodes(engine, store, count, operator=script.operator, seed=3, **options))

        yield record


def test_marks_are_labels_at_once_and_an_unmarked_episode_has_none(attended, tmp_path):
    done = attended(Script("success", "failure", "end", None), 4)
    ends = ["operator: success", "operator: failure", "operator: end", "steps"]
    assert [one.episode.meta["ended"] for one in done] == ends
    ledger = Store.open(tmp_path / "store").ledger
    assert ledger.labels(0).targets.tolist() == [0, 0, 1] and ledger.labels(1).targets.tolist() == [0, 0, 0]
    assert ledger.labels(0).judge.source == "operator"
    assert ledger.labels(2) is None and ledger.labels(3) is None


def test_the_operator_is_the_same_after_discarded_episodes_that_do_not_count(attended):
    """A pause before one of them still holds the robot after it."""
    done = attended(Script("discard", "repeat", None, "discard", None), 2, discarded_count=False)
    assert [(one.discarded, one.episode.meta["seed"], one.left) for one in done] == [
        (True, 3, 2),
        (True, 4, 2),
        (False, 4, 1),
        (True, 5, 1),
        (False, 6, 0),
    ]


def test_a_discarded_episode_is_in_a_store_of_its_own_and_a_repeated_one_is_played_again(attended, tmp_path):
    done = attended(Script("repeat", None, "discard"), 2)
    found = [(one.discarded, one.episode.meta["seed"], one.episode.steps) for one in done]
    assert found == [(True, 3, 2), (False, 3, 5), (True, 4, 2)]
    assert [one.left for one in done] == [2, 1, 0]
    store, discarded = Store.open(tmp_path / "store"), Store.open(discarded_folder(tmp_path / "store"))
    assert len(store) == 1 and [episode.meta["operator"] for _, episode in discarded] == ["repeat", "discard"]
    assert not len(discarded.ledger)


def test_the_last_mark_counts(attended, monkeypatch):
    script, words = Script("success"), ("success", "failure", "pause")
    script.operator.send(OperatorCommand.FAILURE)  # too early
    monkeypatch.setattr(script, "speak", lambda: [script.operator.send(OperatorCommand(word)) for word in words])
    (only,) = attended(script, 1)
    assert (only.mark, only.episode.meta["ended"]) == ("failure", "operator: success")


def test_after_a_pause_even_an_operator_without_a_gate_is_waited_for(attended, tmp_path):
    script = Script("pause", gate=False)
    done = attended(script, 3)
    assert [one.episode.meta["ended"] for one in done] == ["operator: pause", "steps", "steps"]
    assert script.phases == ["episode", "idle", "gate", "episode", "idle", "episode", "idle"]
    assert not len(Store.open(tmp_path / "store").ledger)


def test_a_pause_between_two_episodes_closes_the_gate():
    script = Script(gate=False)
    assert script.operator.wait_until_ready() and script.phases == ["episode"]
    script.operator.finish(None)
    assert script.operator.send(OperatorCommand.PAUSE) == "paused; the robot holds until the next start"
    assert script.operator.wait_until_ready() and script.phases == ["episode", "idle", "gate", "episode"]


def test_an_emergency_stop_is_that_of_the_robot_and_waits_to_be_released(attended, tmp_path):
    script = Script("estop")
    said: list[str] = []

    def release() -> None:
        wait_until(lambda: script.operator.status.phase == "held")
        said.extend(script.operator.send(OperatorCommand(word)) for word in ("start", "estop", "release", "release"))

    thread = threading.Thread(target=release)
    thread.start()
    done = attended(script, 2)
    thread.join()
    assert [one.episode.meta["ended"] for one in done] == ["emergency stop (operator)", "steps"]
    assert script.phases[:5] == ["gate", "episode", "idle", "held", "gate"]
    assert said == [
        "start: the emergency stop is engaged; release it first, so nothing was started",
        "estop: the emergency stop is engaged already",
        "released; the robot moves again at the next start",
        "release: the emergency stop is not engaged, so nothing was done",
    ]


def test_an_emergency_stop_that_was_released_before_anybody_looked_still_ends_the_episode_and_waits_for_a_start():
    script = Script(gate=False)
    assert script.operator.wait_until_ready() and not script.operator.end_reason()
    script.operator.emergency_stop.engage("topic")
    script.operator.emergency_stop.release("topic")
    assert script.operator.end_reason() == "emergency stop"
    script.operator.finish(None)
    assert script.operator.wait_until_ready() and script.phases == ["episode", "idle", "gate", "episode"]
    assert not script.operator.end_reason()


@contextmanager
def on_its_way(folder: Path, script: Script, count: int) -> Iterator[list[RecordedEpisode]]:
    """A robot that moves to its start pose; what was recorded is there when all is over."""
    done: list[RecordedEpisode] = []
    config = InferenceConfig(max_episode_steps=3, realtime=False)
    with (
        Sequential(WalkerConfig(log=folder / "log"), CounterConfig(), config) as engine,
        Store.create(folder / "store") as store,
    ):
        record = record_episodes(engine, store, count, operator=script.operator, seed=3)
        thread = threading.Thread(target=lambda: done.extend(record))
        thread.start()
        wait_until(lambda: lines(folder / "log", "move"))
        yield done
        thread.join()


def test_after_an_emergency_stop_on_the_way_to_the_start_pose_the_same_episode_waits_for_a_start(tmp_path):
    log, script = tmp_path / "log", Script(gate=False)
    with on_its_way(tmp_path, script, 2) as done:
        script.operator.send(OperatorCommand.ESTOP)
        wait_until(lambda: script.operator.status.phase == "held")
        moved = len(lines(log, "move"))
        script.operator.send(OperatorCommand.RELEASE)
    assert [one.episode.meta["seed"] for one in done] == [3, 4] and len(lines(log, "move")) == moved + 2 * 30
    assert script.phases == ["episode", "idle", "held", "gate", "episode", "idle", "episode", "idle"]


def test_a_mark_on_the_way_to_the_start_pose_marks_nothing_and_says_so(tmp_path):
    script = Script(gate=False)
    with on_its_way(tmp_path, script, 1) as done:
        script.operator.send(OperatorCommand.SUCCESS)
    assert [one.mark for one in done] == [""] and Store.open(tmp_path / "store").ledger.newest(done[0].id) is None
    assert script.operator.status.message == "success: no episode was recorded, so nothing was marked"


def test_stop_ends_the_run_and_keeps_the_episode(attended, tmp_path):
    script = Script("stop")
    (only,) = attended(script, 9)
    assert only.episode.meta["ended"] == "operator: stop" and script.operator.status.stopped
    assert lines(tmp_path / "log")[-1] == "hold"


def test_a_command_that_means_nothing_now_is_answered_and_not_kept():
    operator = Operator()
    assert operator.send(OperatorCommand.START) == "start: the next episode is not ready yet, so nothing was started"
    assert operator.send(OperatorCommand.SUCCESS) == "success: no episode is running, so nothing was done"
    waiting = threading.Thread(target=operator.wait_until_ready)
    waiting.start()
    wait_until(lambda: operator.status.phase == "gate")
    assert operator.send(OperatorCommand.DISCARD).startswith("discard: no episode is running")
    assert waiting.is_alive()  # the start that came too early does not count
    operator.send(OperatorCommand.START)
    waiting.join()
    assert operator.end_reason() == ""
    assert operator.send(OperatorCommand.START) == "start: an episode is running, so nothing was started"


def test_a_robot_driven_by_two_processes_waits_at_the_gate_and_ends_when_told(tmp_path):
    log, operator, done = tmp_path / "log", Operator(), []
    with (
        Rtc(PuppetConfig(log=log), CounterConfig(), InferenceConfig(max_episode_steps=9999)) as engine,
        Store.create(tmp_path / "store") as store,
    ):
        thread = threading.Thread(target=lambda: done.extend(record_episodes(engine, store, 1, operator=operator)))
        thread.start()
        wait_until(lambda: operator.status.phase == "gate")
        assert lines(log) == []  # not even a reset
        operator.send(OperatorCommand.START)
        wait_until(lambda: len(lines(log)) > 5)
        operator.send(OperatorCommand.SUCCESS)
        thread.join()
        assert done[0].episode.meta["ended"] == "operator: success" and lines(log)[-1] == "hold"
        assert store.ledger.labels(0).first_success == done[0].episode.steps


# Where commands come from


@pytest.fixture
def keyboard(monkeypatch):
    """The person's end of a terminal that is stdin."""
    person, terminal = os.openpty()
    with os.fdopen(terminal) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        yield person
    os.close(person)


def test_single_keys_are_commands_and_the_terminal_is_left_as_it_was(keyboard):
    def echoes() -> bool:
        return bool(termios.tcgetattr(keyboard)[3] & termios.ECHO)

    sent: list[str] = []
    with listen_at_terminal(OperatorConfig(keys={"success": "g"}), sent.append):
        assert not echoes()
        os.write(keyboard, b" zGfQ")
        wait_until(lambda: len(sent) == 4)
    assert sent == ["start", "success", "failure", "stop"] and echoes()


def test_a_keyboard_that_teleoperates_gets_all_keys_but_commands_and_the_space_bar(keyboard):
    sent, taken = list[str](), list[str]()
    with SHARED_KEYS.shared(), listen_at_terminal(OperatorConfig(), sent.append):
        os.write(keyboard, b"i sj")
        wait_until(lambda: taken.append(SHARED_KEYS.take()) or "".join(taken) == "i j")
    assert sent == ["start", "success"]


def test_a_gamepads_buttons_are_commands_and_a_robot_pauses_when_it_is_unplugged(tmp_path, capfd):
    device, sent = tmp_path / "js0", []
    os.mkfifo(device)
    person = os.open(device, os.O_RDWR)
    config = OperatorConfig(sources=("gamepad",), device=str(device))
    with listen_at_robot(config, sent.append, None):
        pressed, released, at_the_start = EVENT.pack(1, 1, BUTTON, 0), EVENT.pack(2, 0, BUTTON, 0), BUTTON | 0x80
        os.write(person, EVENT.pack(0, 1, at_the_start, 7) + EVENT.pack(0, 9, AXIS, 0) + pressed + released)
        wait_until(lambda: sent == ["success"])
        os.close(person)
        wait_until(lambda: sent == ["success", "pause"])
    assert "the operator's gamepad was disconnected" in capfd.readouterr().err
    with (
        pytest.raises(RolloutError, match="is the operator's gamepad plugged in"),
        listen_at_robot(OperatorConfig(sources=("gamepad",), device=str(tmp_path / "js1")), sent.append, None),
    ):
        pass


def test_messages_of_a_topic_are_commands(tmp_path, capfd):
    robot, sent = robot_config(tmp_path), []
    other = robot.transport.build()
    config = OperatorConfig(sources=("topic",))
    with listen_at_robot(config, sent.append, robot):
        for word in ("start", "jump", " Success"):
            other.publish("/igris_b/operator", STRING, encode_string(word))
    other.close()
    assert sent == ["start", "success"]
    assert "no command of an operator; known: start, end, success" in capfd.readouterr().err
    with (
        pytest.raises(RolloutError, match="the topic 'operator' is for ROS 2 robots"),
        listen_at_robot(config, sent.append, PuppetConfig(log=tmp_path / "log")),
    ):
        pass


def test_an_operator_attends_a_robot_at_a_terminal_unless_told_otherwise(keyboard, monkeypatch, tmp_path):
    robot, config = PuppetConfig(log=tmp_path / "log"), OperatorConfig()
    assert not operator_module.has_terminal()  # stdin is a terminal, but not the one that this process belongs to
    monkeypatch.setattr(operator_module, "has_terminal", lambda: True)
    assert resolve_auto(config, None, robot, None).attended
    assert not resolve_auto(config, True, robot, None).attended
    assert not resolve_auto(config, None, None, None).attended  # a simulated task
    assert resolve_auto(config, False, None, None).attended
    with pytest.raises(DataError, match="teleop=keyboard and the operator would read the same keys"):
        resolve_auto(config, None, robot, KeyboardConfig())
    monkeypatch.setattr(operator_module, "has_terminal", lambda: False)
    assert not resolve_auto(config, None, robot, None).attended
    assert resolve_auto(OperatorConfig(sources=("topic",)), None, robot, None).attended
    with pytest.raises(DataError, match="stdin is not the terminal of this command; use --auto"):
        resolve_auto(config, False, robot, None)


def test_a_key_of_two_commands_and_a_voice_that_is_not_installed_are_refused(monkeypatch):
    with pytest.raises(ValidationError, match="'e' stands for two commands"):
        OperatorConfig(keys={"success": "e"})
    with pytest.raises(ValidationError, match="'ab'; it must be one key"):
        OperatorConfig(keys={"success": "ab"})
    with pytest.raises(ValidationError, match="button 0 stands for two commands"):
        OperatorConfig(buttons={"stop": 0})
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(DataError, match=r"speech needs one of spd-say, .*operator\.cue=bell"):
        Cue("speech")


def test_the_keys_that_do_something_now_fit_on_a_line():
    keys = OperatorConfig()
    assert hotkeys(keys, "gate") == [("space", "start"), ("q", "stop"), ("x", "estop")]
    shown = "  ".join(" ".join(pair) for pair in hotkeys(keys, "episode"))
    assert shown.startswith("e end  s success  f failure") and len(shown) < 80
    assert hotkeys(OperatorConfig(sources=("gamepad",)), "gate")[0] == ("B7", "start")
    assert hotkeys(OperatorConfig(sources=("topic",)), "gate")[0] == ("topic:", "start")


def test_plaudit_run_asks_for_the_scene_and_takes_single_keys(tmp_path):
    (tmp_path / "policy.yaml").write_text("policy: {type: 'puppet:CounterConfig', horizon: 1}")
    words = (
        f"run --robot puppet:PuppetConfig --policy_yaml {tmp_path}/policy.yaml --store {tmp_path}/store --episodes 9"
    )
    with PtyProcess(*words.split(), f"robot.log={tmp_path}/log") as run:
        run.expect("scene ready?")
        assert lines(tmp_path / "log") == []
        run.press("f")
        run.expect("failure: no episode is running, so nothing was done")
        run.press(" ")
        run.expect("running  e end  s success")
        wait_until(lambda: len(lines(tmp_path / "log")) > 3)
        run.press("s")
        run.expect("ended by: operator: success; 8 to go", "scene ready?")
        run.press("q")
        run.expect("stopped by the operator", "result: Recorded without gaps: 1 episode.")
        assert run.wait() == 130  # as after Ctrl-C
    assert Store.open(tmp_path / "store").ledger.labels(0).success_once
