"""A twin: its loop of moving, sending and receiving, its faults, and the function that runs it until a signal.

    late=400         from now on every message is sent 400 ms late
    size=head@2.5    2.5 s after the start, camera head begins to send images of half the size
    none             everything works again

A fault is written KIND[=VALUE][@SECONDS]; it comes from a flag (`--fault`) or as a string on the topic `/twin/fault`.
VALUE is a time in ms for `late` and `back`, and the name of a stream for the others: a camera, or `joints`; without it
the fault affects all streams.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np

from plaudit.errors import RobotError, did_you_mean
from plaudit.files import brief
from plaudit.robots.limits import Rate
from plaudit.robots.ros import RosRobotConfig
from plaudit.robots.transport import Transport, messages
from plaudit.robots.twin.joints import TwinJoints
from plaudit.robots.twin.log import checksum, render_frame
from plaudit.trust import print_plain
from plaudit.types import AnyArray, ByteArray

if TYPE_CHECKING:
    from plaudit.robots.twin.task import TwinTask

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


# Called every tick: [J] joint targets for the topic `teleop`, None for none; and what to say on `operator`.
Leader = Callable[[], tuple[AnyArray | None, str]]


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
            rate.sleep()

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
        target, command = leader()
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
