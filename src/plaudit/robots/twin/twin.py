"""One twin, from its first message to the signal that ends it."""

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
from plaudit.robots.rate import Pace
from plaudit.robots.ros.config import RosRobotConfig
from plaudit.robots.transport.messages import (
    COMPRESSED_IMAGE,
    IMAGE,
    JOINT_STATE,
    STRING,
    JointState,
    decode_compressed,
    decode_text,
    encode_compressed,
    encode_image,
    encode_joint_state,
    warm_up,
)
from plaudit.robots.twin.faults import CONTROL, Fault, Outbox
from plaudit.robots.twin.frames import draw
from plaudit.robots.twin.joints import Body
from plaudit.robots.twin.log import checksum
from plaudit.types import ByteArray


class Twin:
    """Of a robot that speaks ROS 2, at the other end of its transport."""

    def __init__(self, config: RosRobotConfig, *, log: Path | None, watchdog: float, faults: Sequence[Fault] = ()):
        """watchdog: seconds without a command after which it holds"""
        self._params, self._topics = config.params(), config.topics()
        self._body, self._over = Body(self._params, watchdog), threading.Event()
        self._log = None if log is None else log.open("w")
        self._faults = sorted(faults, key=lambda fault: fault.at)
        self._told: SimpleQueue[Fault] = SimpleQueue()
        warm_up((JOINT_STATE, IMAGE, COMPRESSED_IMAGE))
        self._transport = config.transport.other_side().build()
        self._outbox = Outbox(self._transport)
        self._transport.subscribe(self._topics.joint_commands, JOINT_STATE, self._hear)
        self._transport.subscribe(CONTROL, STRING, self._hear_fault)

    def run(self, seconds: float) -> None:
        pace, begun = Pace(self._params.HZ), time.monotonic()
        while (passed := time.monotonic() - begun) < seconds and not self._over.is_set():
            while self._faults and self._faults[0].at <= passed:
                self._told.put(self._faults.pop(0))
            while not self._told.empty():
                self._outbox.begin(self._told.get())
            self._body.step(1.0 / self._params.HZ)
            self._speak(time.time_ns())
            self._outbox.flush()
            pace.wait()

    def begin(self, fault: Fault) -> None:
        """From the next moment on; from any thread."""
        self._told.put(fault)

    def stop(self) -> None:
        """Have `run` return, from another thread."""
        self._over.set()

    def close(self) -> None:
        self._transport.close()
        if self._log is not None:
            self._log.close()

    def _speak(self, stamp: int) -> None:
        body, fault = self._body, self._outbox.fault
        position, velocity = body.position.copy(), body.velocity.copy()
        pictures = {camera: self._picture(n, camera, stamp) for n, camera in enumerate(self._params.camera_names)}
        self._write(
            stamp=stamp,
            position=position.tolist(),
            velocity=velocity.tolist(),
            target=body.target.tolist(),
            holding=body.holding,
            commands=body.commands,
            cameras={camera: checksum(seen) for camera, (seen, _) in pictures.items()},
            fault=fault.kind,
        )
        names = self._params.joint_names
        if fault.hits("joints", "nan"):
            position[0] = np.nan
        if fault.hits("joints", "joints"):
            names, position, velocity = names[:-1], position[:-1], velocity[:-1]

        def joints(at: int) -> bytes:
            return encode_joint_state(JointState(at, names, position, velocity))

        self._outbox.send("joints", self._topics.joint_states, JOINT_STATE, stamp, joints)
        for camera, (_, make) in pictures.items():
            self._outbox.send(camera, self._topics.cameras[camera], self._topics.kind_of(camera), stamp, make)

    def _picture(self, number: int, camera: str, stamp: int) -> tuple[ByteArray, Any]:
        """As a receiver sees it, and how to make the message."""
        pixels = draw(number, stamp, self._body.shares, self._params.sent_size)
        if self._outbox.fault.hits(camera, "size"):
            pixels = np.ascontiguousarray(pixels[::2, ::2])
        if self._topics.kind_of(camera) == IMAGE:
            return pixels, lambda at: encode_image(at, pixels)
        return decode_compressed(encode_compressed(stamp, pixels)).pixels, lambda at: encode_compressed(at, pixels)

    def _hear(self, data: bytes) -> None:
        if self._outbox.fault.kind != "deaf":
            self._body.obey(data)

    def _hear_fault(self, data: bytes) -> None:
        try:
            self.begin(Fault.parse(decode_text(data)))
        except RobotError as error:
            print(f"not understood: {error}", file=sys.stderr, flush=True)

    def _write(self, **line: Any) -> None:
        if self._log is not None:
            self._log.write(json.dumps(line) + "\n")
            self._log.flush()


def run_twin(
    config: RosRobotConfig, *, log: Path | None, watchdog_ms: float, faults: Sequence[str], seconds: float
) -> None:
    """Until a signal or the time is up. The first line it prints says that it is there."""
    parsed = [Fault.parse(fault) for fault in faults]

    def end(*_: Any) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, end)
    twin = Twin(config, log=log, watchdog=1e-3 * watchdog_ms, faults=parsed)
    params = config.params()
    print(
        f"the twin of {config.folder.name} sends {len(params.joint_names)} joints and {len(params.camera_names)} "
        f"cameras at {params.HZ:g} Hz; Ctrl-C ends it",
        flush=True,
    )
    try:
        twin.run(seconds)
    except KeyboardInterrupt:
        pass
    finally:
        twin.close()
