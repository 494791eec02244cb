"""The operator: a person at the robot who says that the scene is ready, ends episodes, marks them and stops the run.

    operator = Operator()
    operator.send(OperatorCommand.START)         # from any thread: a key, a button, a message, a script

    while operator.wait_until_ready():           # in the thread of the episodes; see attended.py
        ...                                      # an episode, until operator.end_reason()
        episode = operator.finish(episode)

Before each episode there is a gate: nothing moves, not even to the start pose, until the operator says that the scene
is ready. A command that means nothing at the moment is answered with a sentence and is not kept for later, so that no
key pressed too early starts a robot. A pause ends the episode, which is kept, and closes the gate: a robot that holds
in the middle of an episode would record steps that no policy chose. An emergency stop does the same at once, and the
gate stays closed until it is released.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal

from plaudit.robots.limits import EmergencyStop
from plaudit.types import OPERATOR, Episode

MARK = OPERATOR  # in an episode's meta: the operator's command that marked it


class OperatorCommand(StrEnum):
    """What an operator can say; the values are also what a topic carries."""

    START = "start"  # the scene is ready
    END = "end"  # the episode is over, and the judge decides about it
    SUCCESS = "success"  # it is over and has succeeded
    FAILURE = "failure"  # it is over and has failed
    DISCARD = "discard"  # it is over and is of no use
    REPEAT = "repeat"  # the same, and another is played in its place
    PAUSE = "pause"  # it is over; the robot holds until the next start
    STOP = "stop"  # the run is over
    ESTOP = "estop"  # it is over; nothing gets to the robot until RELEASE
    RELEASE = "release"  # the robot may be driven again


# Nothing to do for the operator; waiting for START; an episode is running; the emergency stop waits for RELEASE.
Phase = Literal["idle", "gate", "episode", "held"]

MARKS = {OperatorCommand.SUCCESS, OperatorCommand.FAILURE, OperatorCommand.DISCARD, OperatorCommand.REPEAT}
PAUSES = {OperatorCommand.PAUSE, OperatorCommand.ESTOP}
AVAILABLE: dict[Phase, tuple[OperatorCommand, ...]] = {
    "idle": (OperatorCommand.PAUSE, OperatorCommand.STOP, OperatorCommand.ESTOP),
    "gate": (OperatorCommand.START, OperatorCommand.STOP, OperatorCommand.ESTOP),
    "episode": tuple(c for c in OperatorCommand if c not in (OperatorCommand.START, OperatorCommand.RELEASE)),
    "held": (OperatorCommand.RELEASE, OperatorCommand.STOP),
}
POLL_S = 0.1  # between looks at an emergency stop that others may have engaged or released


@dataclass(frozen=True)
class OperatorStatus:
    """What an operator should know."""

    phase: Phase = "idle"
    message: str = ""  # what came of the last command; "" where that is plain to see
    messages: int = 0  # answers so far, so that the same one twice is noticed
    stopped: bool = False  # whether the operator has ended the run


class Operator:
    """Commands from any thread, and the gate that the thread of the episodes waits at."""

    def __init__(self, gate: bool = True, listener: Callable[[OperatorStatus], None] = lambda _: None):
        """
        gate: every episode waits for START; False: only after a pause
        listener: called with each new status, in the thread that changed it; it may send commands
        """
        self._gate, self._listener = gate, listener
        self._changed = threading.Condition()
        self._status = OperatorStatus()
        self._open = False  # whether START was given at the gate
        self._paused = False
        self._end_reason, self._mark = "", ""  # of the current episode
        self.emergency_stop = EmergencyStop()  # of the robot that is attended, see `attend`
        self._stop_count = 0  # of the emergency stop, when the gate was passed

    @property
    def status(self) -> OperatorStatus:
        """The newest."""
        return self._status

    def send(self, command: OperatorCommand) -> str:
        """Do what the operator says, or nothing where it means nothing; returns what to tell them, if anything."""
        with self._changed:
            phase = self._status.phase
            if command is OperatorCommand.STOP:
                message = self._stop()
            elif command is OperatorCommand.RELEASE:
                message = self._release()
            elif command not in AVAILABLE[phase]:
                message = _refusal(command, phase)
            elif command is OperatorCommand.START:
                self._open, self._paused, message = True, False, ""
            else:
                message = self._end(command)
            status = self._tell(message)
        self._listener(status)
        return message

    def stop(self) -> None:
        """End the run, as STOP does."""
        self.send(OperatorCommand.STOP)

    def wait_until_ready(self) -> bool:
        """Wait at the gate, and before it until an emergency stop is released; returns False when the run is over."""
        while not self._status.stopped:
            self._paused |= self.emergency_stop.engaged
            self._wait("held", lambda: not self.emergency_stop.engaged)
            self._open = not (self._gate or self._paused)
            self._wait("gate", lambda: self._open or self.emergency_stop.engaged)
            with self._changed:
                self._stop_count = self.emergency_stop.count
                if self._open and not self.emergency_stop.engaged and not self._status.stopped:
                    self._end_reason, self._mark = "", ""
                    break
        else:
            return False
        self._enter("episode")
        return True

    def _wait(self, phase: Phase, over: Callable[[], bool]) -> None:
        """Until it is over, or the run is; the phase is entered where that takes a while."""
        if over() or self._status.stopped:
            return
        self._enter(phase)
        with self._changed:
            while not over() and not self._status.stopped:
                self._changed.wait(POLL_S)

    def end_reason(self) -> str:
        """Why the current episode is to end now; "" to go on."""
        return self._end_reason or ("emergency stop" if self._emergency_stopped else "")

    @property
    def _emergency_stopped(self) -> bool:
        """Whether anybody engaged the emergency stop since the gate, be it released or not."""
        return self.emergency_stop.count != self._stop_count

    def finish(self, episode: Episode | None) -> Episode | None:
        """The episode is over: returns it with its mark."""
        with self._changed:
            mark = self._mark
            self._paused |= self._emergency_stopped
            if mark and episode is None:  # it was marked on the way to the start pose
                self._tell(f"{mark}: no episode was recorded, so nothing was marked")
        self._enter("idle")
        return episode if episode is None or not mark else replace(episode, meta={**episode.meta, MARK: mark})

    def _stop(self) -> str:
        self._status = replace(self._status, stopped=True)
        self._end_reason = self._end_reason or "operator: stop"
        return "stopping; the robot holds"

    def _release(self) -> str:
        if not self.emergency_stop.engaged:
            return "release: the emergency stop is not engaged, so nothing was done"
        self.emergency_stop.release()
        return "released; the robot moves again at the next start"

    def _end(self, command: OperatorCommand) -> str:
        """The first command says why the episode ended; the last mark counts."""
        if command is OperatorCommand.ESTOP:
            self.emergency_stop.engage("operator")
            self._end_reason = self._end_reason or "emergency stop (operator)"
        self._end_reason = self._end_reason or f"operator: {command}"
        if command in MARKS:
            self._mark = str(command)
        self._paused |= command in PAUSES
        return _ENDINGS[command]

    def _enter(self, phase: Phase) -> None:
        with self._changed:
            status = replace(self._status, phase=phase)
            self._set(status)
        self._listener(status)

    def _tell(self, message: str) -> OperatorStatus:
        status = replace(self._status, message=message, messages=self._status.messages + 1)
        self._set(status)
        return status

    def _set(self, status: OperatorStatus) -> None:
        self._status = status
        self._changed.notify_all()


_ENDINGS = {
    OperatorCommand.END: "the episode was ended; the judge decides about it",
    OperatorCommand.SUCCESS: "the episode was marked as a success",
    OperatorCommand.FAILURE: "the episode was marked as a failure",
    OperatorCommand.DISCARD: "the episode was discarded",
    OperatorCommand.REPEAT: "the episode was discarded; it is played again",
    OperatorCommand.PAUSE: "paused; the robot holds until the next start",
    OperatorCommand.ESTOP: "emergency stop; nothing moves until it is released",
}


def _refusal(command: OperatorCommand, phase: Phase) -> str:
    if command is OperatorCommand.START:
        reason = "an episode is running" if phase == "episode" else "the next episode is not ready yet"
        reason = "the emergency stop is engaged; release it first" if phase == "held" else reason
        return f"start: {reason}, so nothing was started"
    if command is OperatorCommand.ESTOP:
        return "estop: the emergency stop is engaged already"
    return f"{command}: no episode is running, so nothing was done"
