"""A twin: its loop of moving, sending and receiving, its faults, and the function that runs it until a signal.

    late=400         from now on every message is sent 400 ms late
    size=head@2.5    2.5 s after the start, camera head begins to send images of half the size
    none             everything works again

A fault is written KIND[=VALUE][@SECONDS]; it comes from a flag (`--fault`) or as a string on the topic `/twin/fault`.
VALUE is a time in ms for `late` and `back`, and the name of a stream for the others: a camera, or `joints`; without it
the fault affects all streams.

The commands that a twin receives are monitored.

Each joint moves towards its command, faster the farther it is, up to a maximum speed. Without a command for a while
they hold (the watchdog). The watchdog counts the twin's own steps, so a suspended machine does not trigger it.
"""

import json
import math
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np

from plaudit.errors import BadMessage, RobotError, did_you_mean
from plaudit.files import brief
from plaudit.robots.config import SafetyLimits
from plaudit.robots.limits import Rate
from plaudit.robots.ros import RosRobotConfig
from plaudit.robots.ros.driver import joint_state_decoder
from plaudit.robots.ros.params import RuntimeParams
from plaudit.robots.transport import Transport, messages
from plaudit.robots.twin.log import checksum, render_frame
from plaudit.trust import print_plain
from plaudit.types import AnyArray, ByteArray, FloatArray

if TYPE_CHECKING:
    from plaudit.robots.twin.task import TwinTask


TOLERANCE = 0.02  # of speed and acceleration
ROUNDING = 1e-5  # rad
WINDOW_S = 2.0  # in which commands are counted, and measured positions are remembered
EARLY = 0.25  # of a tick, by which a command may come early
LOST_S = 0.5  # between two commands, at most, that others may have been lost between
BURST_S = 1.0  # of commands that the network may hold back and deliver at once


class CommandMonitor:
    """Whether commands keep the robot's limits: position, speed, acceleration, and their number.

    Commands are compared one after the other, one step each. Their stamps show whether one was lost in between, which
    is not a jump; the twin's own clock limits how many may arrive. A command to stay is no violation: at a position
    that the twin has sent within the last seconds, or one step of acceleration away. Robots hold and start again this
    way. Called from the thread that receives commands.
    """

    def __init__(
        self, limits: SafetyLimits, names: Sequence[str], hz: float, clock: Callable[[], float] = time.monotonic
    ):
        self._limits, self._names, self._hz, self._clock = limits, names, hz, clock
        self._max_step = (1 + TOLERANCE) * limits.max_velocity / hz + ROUNDING
        self._max_change = (1 + TOLERANCE) * limits.max_acceleration / hz**2 + ROUNDING
        self._measured: deque[FloatArray] = deque(maxlen=int(WINDOW_S * hz))
        self._arrivals: deque[float] = deque()
        self.count = 0  # commands that violated a limit
        self.skipped = 0  # ticks between two commands that had none, by their stamps; not those of a pause
        self._new: deque[str] = deque(maxlen=8)  # messages since the last look
        self.rest()

    def rest(self) -> None:
        """The joints hold by themselves: the next command starts from where they are."""
        self._last: AnyArray | None = None
        self._steps: AnyArray = np.zeros((2, len(self._names)))  # least and greatest that the last may have been
        self._due = 0  # ns of the sender's clock, when the last command was

    def measured(self, position: AnyArray) -> None:
        """The twin has sent these joint positions."""
        self._measured.append(position.astype(np.float32))

    def take(self) -> list[str]:
        """What was wrong since the last call."""
        return [self._new.popleft() for _ in range(len(self._new))]

    def receive(self, command: FloatArray, stamp: int) -> None:
        """Check one command [J]. stamp: ns, of the sender's clock"""
        ticks = self._ticks_until(stamp)
        self.skipped += ticks - 1
        low, high = self._limits.lower, self._limits.upper
        outside = np.flatnonzero((command < low - ROUNDING) | (command > high + ROUNDING)).tolist()
        problems = [
            f"position: {self._names[j]} to {command[j]:.4f}, outside {low[j]:g} to {high[j]:g}" for j in outside
        ]
        problems += self._too_fast(command, ticks)
        now = self._clock()
        self._arrivals.append(now)
        while self._arrivals[0] < now - WINDOW_S:
            self._arrivals.popleft()
        if len(self._arrivals) > int((WINDOW_S + BURST_S) * self._hz) + 5:
            problems.append(f"rate: {len(self._arrivals)} commands in {WINDOW_S:g} s at {self._hz:g} Hz")
        self.count += bool(problems)
        self._new.extend(problems)

    def _ticks_until(self, stamp: int) -> int:
        """Ticks of the sender since the command before. One that is late, but within its tick, leaves none out."""
        late = 1e-9 * (stamp - self._due) * self._hz
        ticks = math.floor(late + EARLY)
        if ticks == 1:
            self._due += int(1e9 / self._hz)
        elif ticks:  # a pause, or ticks that were left out: those that follow may be due at other moments
            self._due = stamp
        return ticks if 1 <= ticks <= LOST_S * self._hz else 1

    def _too_fast(self, command: FloatArray, since: int) -> list[str]:
        """since: ticks that the sender let pass after the command before"""
        moved = np.zeros(len(command))  # at once
        steps: AnyArray = np.zeros_like(self._steps)
        accepted = np.zeros(len(command), bool)
        least, greatest = self._steps
        if self._last is not None:
            moved = command - self._last
            for ticks in {1, since}:  # a tick that the sender missed is no larger step
                step, change = moved / ticks, ticks * self._max_change
                fits = (np.abs(step) <= self._max_step) & (step >= least - change) & (step <= greatest + change)
                steps = np.where(fits & ~accepted, step, steps)
                accepted |= fits
        if not accepted.all() and self._measured:
            away = command - np.array(list(self._measured))
            near = np.abs(away) <= np.minimum(self._max_change, self._max_step)  # which of these it began at is unknown
            began = np.stack([np.where(near, away, np.inf).min(axis=0), np.where(near, away, -np.inf).max(axis=0)])
            stays = near.any(axis=0)
            steps = np.where(stays & ~accepted, began, steps)
            moved = moved if self._last is not None else away[-1]
            accepted |= stays
        self._last = command.astype(np.float64)
        self._steps = np.where(accepted, steps, np.clip(moved, -self._max_step, self._max_step))
        return [
            f"{'speed' if abs(moved[j]) > self._max_step[j] else 'acceleration'}: {self._names[j]} by {moved[j]:.4f} "
            f"after {since} ticks"
            for j in np.flatnonzero(~accepted).tolist()
        ]


GAIN = 12.0  # rad/s per radian of distance
MAX_SPEED = 2.0  # rad/s
START_OFFSET = 0.1  # rad from the start pose, when the twin starts


class TwinJoints:
    """Simulated joints with position control and a watchdog."""

    def __init__(self, params: RuntimeParams, watchdog: float, limits: SafetyLimits):
        """
        watchdog: seconds without a command after which the joints hold
        limits: that commands have to keep; one that does not is followed all the same, and counted
        """
        self.monitor = CommandMonitor(limits, params.joint_names, params.HZ)
        self._low, self._high = params.limits
        self._decode = joint_state_decoder(params.joint_names, ("position",))
        middle = (self._low + self._high) / 2
        start = middle if params.start_pose is None else np.array(params.start_pose)
        self.position: AnyArray = np.clip(start + START_OFFSET, self._low, self._high).astype(np.float64)
        self.velocity: AnyArray = np.zeros_like(self.position)
        self.target: AnyArray = self.position.copy()
        self.num_commands = 0  # received so far
        self.holding = True  # as of the last step
        self._lock = threading.Lock()  # commands arrive in the transport's thread
        self._watchdog, self._silent = watchdog, np.inf  # s

    def command(self, data: bytes) -> None:
        """Take a command from the topic; one that is not for these joints is ignored."""
        try:
            command = self._decode(data)
        except BadMessage:
            return
        with self._lock:
            self.monitor.receive(command.position, command.stamp)
            self.target = np.clip(command.position, self._low, self._high).astype(np.float64)
            self.num_commands += 1
            self._silent = 0.0

    def step(self, seconds: float) -> None:
        """Move for this long."""
        with self._lock:
            self._silent += seconds
            self.holding = self._silent > self._watchdog
            if self.holding:
                self.target = self.position.copy()
                self.monitor.rest()
            velocity = (self.target - self.position) * min(GAIN, 1.0 / seconds)
            self.velocity = np.clip(velocity, -MAX_SPEED, MAX_SPEED)
            self.position = self.position + self.velocity * seconds
            self.monitor.measured(self.position)

    @property
    def fractions(self) -> FloatArray:
        """[J] where each joint is between its limits, 0 to 1."""
        return ((self.position - self._low) / (self._high - self._low)).astype(np.float32)


FAULT_TOPIC = "/twin/fault"
FAULTS = {
    "none": "everything works",
    "kill": "the process ends at once",
    "freeze": "nothing is sent",
    "late": "messages are sent VALUE ms late",
    "back": "stamps are VALUE ms behind",
    "shuffle": "of two messages the second is sent first",
    "repeat": "the last message is sent again and again",
    "size": "images have half the size",
    "nan": "the first joint is NaN",
    "joints": "the last joint is missing",
    "garbage": "messages are random bytes",
    "deaf": "commands are ignored",
}
TIMED_FAULTS = ("late", "back")
MAX_DURATION = 1_000_000  # s or ms

EncodeFn = Callable[[int], bytes]  # the stamp of a message -> its bytes


@dataclass(frozen=True)
class Fault:
    """One fault, and when it begins."""

    kind: str = "none"
    value: str = ""
    at: float = 0.0  # seconds after the start

    @classmethod
    def parse(cls, text: str) -> "Fault":
        """Read KIND[=VALUE][@SECONDS]; raises `RobotError`."""
        rest, _, at = text.partition("@")
        kind, _, value = rest.partition("=")
        if kind not in FAULTS:
            raise RobotError(f"a twin has no fault {brief(kind)}; {did_you_mean(kind[:60], FAULTS)}")
        try:
            durations = [float(part) for part in (at or "0", *([value] if kind in TIMED_FAULTS else ()))]
            if not all(0 <= duration <= MAX_DURATION for duration in durations):
                raise ValueError(f"a time is a number from 0 to {MAX_DURATION:,}")
        except ValueError as error:
            raise RobotError(
                f"{brief(text)} is not a fault: {error}; write KIND[=VALUE][@SECONDS], like late=400@2.5"
            ) from error
        return cls(kind, value, durations[0])

    def affects(self, stream: str, kind: str) -> bool:
        """Whether this is a fault of that kind, for that stream."""
        return self.kind == kind and (kind in TIMED_FAULTS or self.value in ("", stream))


class FaultyPublisher:
    """Publishes a twin's messages, changed by the current fault."""

    def __init__(self, transport: Transport):
        self._transport = transport
        self._delayed: list[tuple[float, str, str, bytes]] = []  # when to send what
        self._held: dict[str, bytes] = {}  # topic -> the message that `shuffle` holds back or `repeat` repeats
        self._rng = np.random.default_rng(0)
        self.fault = Fault()

    def inject(self, fault: Fault) -> None:
        """Apply a fault from the next message on."""
        if fault.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        self._held.clear()
        self._delayed.clear()  # lost: after the fault they would arrive out of order
        self.fault = fault

    def publish(self, stream: str, topic: str, msg_type: str, stamp: int, encode: EncodeFn) -> None:
        """Encode and send one message, or what the fault makes of it."""
        fault = self.fault
        if fault.affects(stream, "freeze"):
            return
        data = encode(stamp - int(1e6 * float(fault.value)) if fault.affects(stream, "back") else stamp)
        if fault.affects(stream, "garbage"):
            data = self._rng.bytes(len(data))
        if fault.affects(stream, "repeat"):
            data = self._held.setdefault(topic, data)
        if fault.affects(stream, "shuffle"):
            if topic not in self._held:
                self._held[topic] = data
                return
            self._transport.publish(topic, msg_type, data)
            data = self._held.pop(topic)
        if fault.affects(stream, "late"):
            self._delayed.append((time.monotonic() + 1e-3 * float(fault.value), topic, msg_type, data))
        else:
            self._transport.publish(topic, msg_type, data)

    def flush(self) -> None:
        """Send the messages whose delay is over."""
        now = time.monotonic()
        for _, topic, msg_type, data in (item for item in self._delayed if item[0] <= now):
            self._transport.publish(topic, msg_type, data)
        self._delayed = [item for item in self._delayed if item[0] > now]


# Called every tick with whether the joints hold because no commands arrive; returns joint targets [J] for the topic
# `teleop`, or None, and what to say on `operator`.
Leader = Callable[[bool], tuple[AnyArray | None, str]]


class Twin:
    """The twin of a ROS 2 robot, at the other end of its transport."""

    def __init__(
        self,
        config: RosRobotConfig,
        *,
        log: Path | None,
        watchdog: float,
        faults: Sequence[Fault] = (),
        task: "TwinTask | None" = None,
        leader: Leader | None = None,
    ):
        """
        log: a file for everything that is sent
        watchdog: seconds without a command after which the joints hold
        faults: each begins at its own time
        task: what the cameras show; None: bars for the joints
        leader: leads the robot of a task, in the place of a person
        """
        self._params, self._topics = config.params(), config.topics()
        self.joints = TwinJoints(self._params, watchdog, config.limits(self._params.action_dim))
        self._task, self._leader = task, leader
        self._stop = threading.Event()
        self._log = None if log is None else log.open("w")
        self._scheduled = sorted(faults, key=lambda fault: fault.at)
        self._injected: SimpleQueue[Fault] = SimpleQueue()  # filled from any thread, emptied by `run`
        messages.warm_up((messages.JOINT_STATE, messages.IMAGE, messages.COMPRESSED_IMAGE))
        self._transport = config.transport.peer().build()
        self._publisher = FaultyPublisher(self._transport)
        self._transport.subscribe(self._topics.joint_commands, messages.JOINT_STATE, self._on_command)
        self._transport.subscribe(FAULT_TOPIC, messages.STRING, self._on_fault)

    def run(self, seconds: float) -> None:
        """Move and send at the robot's rate for this long, or until `stop()`."""
        rate, started = Rate(self._params.HZ), time.monotonic()
        while (elapsed := time.monotonic() - started) < seconds and not self._stop.is_set():
            while self._scheduled and self._scheduled[0].at <= elapsed:
                self._injected.put(self._scheduled.pop(0))
            while not self._injected.empty():
                self._publisher.inject(self._injected.get())
            self.joints.step(1.0 / self._params.HZ)
            if self._task is not None:
                self._task.step(self.joints.position)
                self._task.reset_if_due()  # after the step, so that no old image is sent after such a command
            self._send(time.time_ns())
            self._publisher.flush()
            rate.wait()

    def inject(self, fault: Fault) -> None:
        """Fail from the next tick on; from any thread."""
        self._injected.put(fault)

    @property
    def fault(self) -> Fault:
        """In effect now."""
        return self._publisher.fault

    def stop(self) -> None:
        """Make `run` return; from any thread."""
        self._stop.set()

    def close(self) -> None:
        """Close the transport and the log."""
        self._transport.close()
        if self._task is not None:
            self._task.close()
        if self._log is not None:
            self._log.close()

    def _send(self, stamp: int) -> None:
        """Log one tick, then publish its joint state and images."""
        joints, fault = self.joints, self.fault
        position, velocity = joints.position.copy(), joints.velocity.copy()
        frames = {camera: self._frame(index, camera, stamp) for index, camera in enumerate(self._params.camera_names)}
        entry = {
            "stamp": stamp,
            "position": position.tolist(),
            "velocity": velocity.tolist(),
            "target": joints.target.tolist(),
            "holding": joints.holding,
            "commands": joints.num_commands,
            "skipped": joints.monitor.skipped,
            "violations": joints.monitor.count,
            "violated": joints.monitor.take(),
            "cameras": {camera: checksum(pixels) for camera, (pixels, _) in frames.items()},
            "fault": fault.kind,
        }
        if self._task is not None:
            success = bool(self._task.privileged()["success"])
            entry |= {"seed": self._task.seed, "success": success}
            if self._topics.success is not None:
                self._transport.publish(self._topics.success, messages.BOOL, messages.encode_bool(success))
        if self._log is not None:
            self._log.write(json.dumps(entry) + "\n")
            self._log.flush()
        names = self._params.joint_names
        if fault.affects("joints", "nan"):
            position[0] = np.nan
        if fault.affects("joints", "joints"):
            names, position, velocity = names[:-1], position[:-1], velocity[:-1]

        def encode_joints(at: int) -> bytes:
            return messages.encode_joint_state(messages.JointState(at, names, position, velocity))

        self._publisher.publish("joints", self._topics.joint_states, messages.JOINT_STATE, stamp, encode_joints)
        for camera, (_, encode) in frames.items():
            topic, msg_type = self._topics.cameras[camera], self._topics.image_type(camera)
            self._publisher.publish(camera, topic, msg_type, stamp, encode)
        if self._leader is not None:
            self._lead(self._leader, stamp)

    def _lead(self, leader: Leader, stamp: int) -> None:
        """Publish what a person commands and says."""
        target, command = leader(self.joints.holding)
        if target is not None and self._topics.teleop is not None:
            message = messages.JointState(stamp, self._params.joint_names, target)
            self._transport.publish(self._topics.teleop, messages.JOINT_STATE, messages.encode_joint_state(message))
        if command and self._topics.operator is not None:
            self._transport.publish(self._topics.operator, messages.STRING, messages.encode_string(command))

    def _frame(self, index: int, camera: str, stamp: int) -> tuple[ByteArray, EncodeFn]:
        """An image as a receiver decodes it, and the function that encodes its message."""
        if self._task is not None:
            pixels = self._task.image(camera)
        else:
            pixels = render_frame(index, stamp, self.joints.fractions, self._params.camera_size)
        if self.fault.affects(camera, "size"):
            pixels = np.ascontiguousarray(pixels[::2, ::2])
        depth_range = self._params.depth_range(camera)
        if depth_range is not None:
            near, far = depth_range
            meters = far - pixels[..., 0] / 255 * (far - near)
            encode = partial(messages.encode_depth, meters=meters)
            return messages.decode_image(encode(stamp), depth_range).pixels, encode
        if self._topics.image_type(camera) == messages.IMAGE:
            return pixels, partial(messages.encode_image, pixels=pixels)
        encode = partial(messages.encode_compressed, pixels=pixels)
        return messages.decode_compressed(encode(stamp)).pixels, encode

    def _on_command(self, data: bytes) -> None:
        if self.fault.kind != "deaf":
            self.joints.command(data)
            if self._task is not None:
                self._task.watch(self.joints.target)

    def _on_fault(self, data: bytes) -> None:
        try:
            self.inject(Fault.parse(messages.decode_string(data)))
        except RobotError as error:
            print_plain(f"ignored on {FAULT_TOPIC}: {error}")


def run_twin(
    config: RosRobotConfig,
    *,
    log: Path | None,
    watchdog_ms: float,
    faults: Sequence[str],
    seconds: float,
    task: "TwinTask | None" = None,
    leader: Leader | None = None,
) -> None:
    """Run a twin until a signal arrives or the time is up; it prints one line once it is ready."""
    parsed = [Fault.parse(fault) for fault in faults]

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    twin = Twin(config, log=log, watchdog=1e-3 * watchdog_ms, faults=parsed, task=task, leader=leader)
    params = config.params()
    print_plain(
        f"the twin of {config.folder.name} sends {len(params.joint_names)} joints and {len(params.camera_names)} "
        f"cameras at {params.HZ:g} Hz; Ctrl-C ends it",
        sys.stdout,
    )
    try:
        twin.run(seconds)
    except KeyboardInterrupt:
        pass
    finally:
        twin.close()
        if violations := twin.joints.monitor.count:
            print_plain(
                f"{violations} of {twin.joints.num_commands} commands were outside the robot's limits", sys.stdout
            )
