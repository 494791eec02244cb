"""One twin: its loop of moving, sending and receiving, and the function that runs it until a signal."""

import json
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

from plaudit.errors import RobotError
from plaudit.robots.rate import Rate
from plaudit.robots.ros.config import RosRobotConfig
from plaudit.robots.transport.messages import (
    COMPRESSED_IMAGE,
    IMAGE,
    JOINT_STATE,
    STRING,
    JointState,
    decode_compressed,
    decode_image,
    decode_string,
    encode_compressed,
    encode_depth,
    encode_image,
    encode_joint_state,
    warm_up,
)
from plaudit.robots.twin.faults import FAULT_TOPIC, EncodeFn, Fault, FaultyPublisher
from plaudit.robots.twin.frames import render_frame
from plaudit.robots.twin.joints import TwinJoints
from plaudit.robots.twin.log import checksum
from plaudit.trust import print_plain
from plaudit.types import ByteArray


class Twin:
    """The twin of a ROS 2 robot, at the other end of its transport."""

    def __init__(self, config: RosRobotConfig, *, log: Path | None, watchdog: float, faults: Sequence[Fault] = ()):
        """
        log: a file for everything that is sent
        watchdog: seconds without a command after which the joints hold
        faults: each begins at its own time
        """
        self._params, self._topics = config.params(), config.topics()
        self.joints = TwinJoints(self._params, watchdog, config.limits(self._params.action_dim))
        self._stop = threading.Event()
        self._log = None if log is None else log.open("w")
        self._scheduled = sorted(faults, key=lambda fault: fault.at)
        self._injected: SimpleQueue[Fault] = SimpleQueue()  # filled from any thread, emptied by `run`
        warm_up((JOINT_STATE, IMAGE, COMPRESSED_IMAGE))
        self._transport = config.transport.peer().build()
        self._publisher = FaultyPublisher(self._transport)
        self._transport.subscribe(self._topics.joint_commands, JOINT_STATE, self._on_command)
        self._transport.subscribe(FAULT_TOPIC, STRING, self._on_fault)

    def run(self, seconds: float) -> None:
        """Move and send at the robot's rate for this long, or until `stop()`."""
        rate, started = Rate(self._params.HZ), time.monotonic()
        while (elapsed := time.monotonic() - started) < seconds and not self._stop.is_set():
            while self._scheduled and self._scheduled[0].at <= elapsed:
                self._injected.put(self._scheduled.pop(0))
            while not self._injected.empty():
                self._publisher.inject(self._injected.get())
            self.joints.step(1.0 / self._params.HZ)
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
        if self._log is not None:
            self._log.close()

    def _send(self, stamp: int) -> None:
        """Log one tick, then publish its joint state and images."""
        joints, fault = self.joints, self.fault
        position, velocity = joints.position.copy(), joints.velocity.copy()
        frames = {camera: self._frame(index, camera, stamp) for index, camera in enumerate(self._params.camera_names)}
        self._write_log(
            stamp=stamp,
            position=position.tolist(),
            velocity=velocity.tolist(),
            target=joints.target.tolist(),
            holding=joints.holding,
            commands=joints.num_commands,
            skipped=joints.monitor.skipped,
            violations=joints.monitor.count,
            violated=joints.monitor.take(),
            cameras={camera: checksum(pixels) for camera, (pixels, _) in frames.items()},
            fault=fault.kind,
        )
        names = self._params.joint_names
        if fault.affects("joints", "nan"):
            position[0] = np.nan
        if fault.affects("joints", "joints"):
            names, position, velocity = names[:-1], position[:-1], velocity[:-1]

        def encode_joints(at: int) -> bytes:
            return encode_joint_state(JointState(at, names, position, velocity))

        self._publisher.publish("joints", self._topics.joint_states, JOINT_STATE, stamp, encode_joints)
        for camera, (_, encode) in frames.items():
            topic, msg_type = self._topics.cameras[camera], self._topics.image_type(camera)
            self._publisher.publish(camera, topic, msg_type, stamp, encode)

    def _frame(self, index: int, camera: str, stamp: int) -> tuple[ByteArray, EncodeFn]:
        """An image as a receiver decodes it, and the function that encodes its message."""
        pixels = render_frame(index, stamp, self.joints.fractions, self._params.camera_size)
        if self.fault.affects(camera, "size"):
            pixels = np.ascontiguousarray(pixels[::2, ::2])
        depth_range = self._params.depth_range(camera)
        if depth_range is not None:
            near, far = depth_range
            meters = far - pixels[..., 0] / 255 * (far - near)
            return decode_image(encode_depth(stamp, meters), depth_range).pixels, lambda at: encode_depth(at, meters)
        if self._topics.image_type(camera) == IMAGE:
            return pixels, lambda at: encode_image(at, pixels)
        return decode_compressed(encode_compressed(stamp, pixels)).pixels, lambda at: encode_compressed(at, pixels)

    def _on_command(self, data: bytes) -> None:
        if self.fault.kind != "deaf":
            self.joints.command(data)

    def _on_fault(self, data: bytes) -> None:
        try:
            self.inject(Fault.parse(decode_string(data)))
        except RobotError as error:
            print_plain(f"ignored on {FAULT_TOPIC}: {error}")

    def _write_log(self, **entry: Any) -> None:
        if self._log is not None:
            self._log.write(json.dumps(entry) + "\n")
            self._log.flush()


def run_twin(
    config: RosRobotConfig, *, log: Path | None, watchdog_ms: float, faults: Sequence[str], seconds: float
) -> None:
    """Run a twin until a signal arrives or the time is up; it prints one line once it is ready."""
    parsed = [Fault.parse(fault) for fault in faults]

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    twin = Twin(config, log=log, watchdog=1e-3 * watchdog_ms, faults=parsed)
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
