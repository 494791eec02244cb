"""Episodes in the viewer of Rerun, or in its files: `camera/NAME`, `state`, `action`, `takeover` and `events`.

An observation and the action that follows it have the same `frame` and `time`. A running episode is read by a process
of its own, from the memory that it is recorded in, so control waits for nothing. Where that process falls behind, it
leaves images out.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Event, Thread
from typing import Annotated, Any

from pydantic import AfterValidator

from plaudit import processes
from plaudit.errors import DisplayError, RolloutError, import_extra
from plaudit.protocols import InferenceEngine
from plaudit.rollout.engine import EngineBase
from plaudit.rollout.recording import EpisodeBuffer
from plaudit.trust import check_host, check_no_secret, print_plain
from plaudit.types import HUMAN, AnyArray, EnvSpec, Observation

VIEWER = "viewer"  # a window on this machine
START_S = 60.0  # for the process to import Rerun, before the robot moves
POLL_S = 0.02  # between looks at new rows
MAX_BEHIND = 15  # rows; of older ones the images are left out


def _check_target(text: str) -> str:
    if text == VIEWER or text.endswith(".rrd"):
        return text
    if text.startswith(("rerun+http://", "rerun+https://")):
        return check_host(check_no_secret(text))
    raise ValueError(
        f"'{text}' is not a target of Rerun; write viewer, a file like run.rrd, or rerun+http://HOST:PORT/proxy"
    )


Target = Annotated[str, AfterValidator(_check_target)]


class RerunLog:
    """Logs rows of episodes to a window, a file or another viewer."""

    def __init__(self, target: Target, name: str):
        """name: of the recording, for people"""
        self._rerun = import_extra("rerun", "rerun")
        self.recording = self._rerun.RecordingStream("plaudit")
        if target.endswith(".rrd"):
            self.recording.save(target)
        elif target != VIEWER:
            self.recording.connect_grpc(target)
        elif os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
            self.recording.spawn()
        else:
            raise DisplayError("Rerun's viewer needs a screen, and there is none here; write to a .rrd file instead")
        self.recording.send_recording_name(name)

    def at(self, frame: int, seconds: float) -> None:
        """What comes next belongs to this frame."""
        self.recording.set_time("frame", sequence=frame)
        self.recording.set_time("time", duration=seconds)

    def observe(self, observation: Observation, *, images: bool = True) -> None:
        """What the robot observes."""
        for name, image in observation.images.items() if images else ():
            self.recording.log(f"camera/{name}", self._rerun.Image(image).compress(jpeg_quality=85))
        self.log("state", observation.state)

    def act(self, step: int, actions: AnyArray, control_mode: AnyArray) -> None:
        """What is sent at a step, and who sends it."""
        self.log("action", actions[step])
        person = bool(control_mode[step] == HUMAN)
        self.log("takeover", person)
        if person != (step > 0 and bool(control_mode[step - 1] == HUMAN)):
            self.say("a person takes over" if person else "the policy acts again")

    def log(self, name: str, values: Any) -> None:
        """A number, or one for each line of a plot."""
        self.recording.log(name, self._rerun.Scalars(values))

    def say(self, text: str) -> None:
        """An event."""
        self.recording.log("events", self._rerun.TextLog(text))

    def close(self) -> None:
        """Write what is left."""
        self.recording.flush()
        self.recording.disconnect()


@contextmanager
def streaming(target: Target | None, engine: InferenceEngine) -> Iterator[None]:
    """Show the episodes of this block while they are recorded; an error if that cannot begin.

    target: None for nowhere
    """
    if target is None or not isinstance(engine, EngineBase):
        yield
        return
    process = processes.ChildProcess("rerun", "plaudit.rollout.rerun:main", engine.env_spec, _unused(target))
    try:
        ready = process.connection.poll(START_S)
        problem = process.connection.recv() if ready else f"it did not start within {START_S:g} s"
    except EOFError:
        problem = process.exit_reason()
    if problem:
        process.end()
        raise RolloutError(f"rerun={target}: {problem}")
    done = Event()

    def pass_on() -> None:
        passed: EpisodeBuffer | None = None
        ended = False
        while not ended:
            ended, buffer = done.wait(POLL_S), engine.recording
            if buffer is not None and buffer is not passed:
                passed = buffer
                process.send((buffer.max_steps, buffer.task), buffer.block.descriptor)

    thread = Thread(target=pass_on, name="rerun", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        process.end()


def _unused(target: Target) -> Target:
    """The name of a file that does not exist: a resumed run keeps what an earlier session wrote."""
    path = Path(target).absolute()
    names = (path if number == 1 else path.with_stem(f"{path.stem}_{number}") for number in count(1))
    return str(next(name for name in names if not name.exists())) if target.endswith(".rrd") else target


def main(parent: Connection, env_spec: EnvSpec, target: Target) -> None:
    """The process that logs. An error ends it, and not the run."""
    processes.exit_with_parent(parent, processes.GRACE_S)
    os.nice(5)  # behind control and inference
    try:
        log = RerunLog(target, env_spec.name)
    except Exception as error:  # noqa: BLE001 - of Rerun; the parent reports it
        processes.send(parent, str(error) or type(error).__name__)
        return
    processes.send(parent, "")
    live = LiveEpisodes(log)
    try:
        with suppress(processes.ParentGone):
            while True:
                if parent.poll(POLL_S):
                    max_steps, task = processes.receive(parent)
                    live.begin(EpisodeBuffer.attach(processes.receive_block(parent), env_spec, max_steps), task)
                live.read()
        live.read()
        log.close()
    except Exception as error:  # noqa: BLE001 - of Rerun, or of a server that is gone
        print_plain(f"Rerun: {error}; the robot continues without it")


class LiveEpisodes:
    """Logs what is new in the memory of running episodes. Frames count on from one episode to the next."""

    def __init__(self, log: RerunLog):
        self._log = log
        self._buffer: EpisodeBuffer | None = None
        self._episodes = self._first = self._observations = self._commands = 0
        self._began: float | None = None  # of the first episode

    def begin(self, buffer: EpisodeBuffer, task: str) -> None:
        """Another episode; what is left of the one before is logged first."""
        self.read()
        self._first += self._observations
        self._episodes, self._observations, self._commands = self._episodes + 1, 0, 0
        self._buffer, self._title = buffer, f"episode {self._episodes}{f': {task}' if task else ''}"

    def read(self) -> None:
        """Log the rows that are new."""
        if (buffer := self._buffer) is None:
            return
        commands, until = buffer.num_commands, buffer.num_observations  # the command of a row comes after it
        for row in range(min(self._observations, self._commands), until):
            at = float(buffer.observed_at[row])
            self._began = at if self._began is None else self._began
            self._log.at(self._first + row, at - self._began)
            if row == 0 and not self._observations:
                self._log.say(self._title)
            if row >= self._observations:
                self._log.observe(buffer.observation(row), images=row >= until - MAX_BEHIND)
            if self._commands <= row < commands:
                self._log.act(row, buffer.actions, buffer.control_mode)
        self._observations, self._commands = until, min(commands, until)
