"""Twins to test robots against, in a thread over memory or, for a twin in another process, over zenoh."""

import json
import re
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from plaudit.errors import RobotSilent
from plaudit.registry import ROBOT_REGISTRY
from plaudit.robots.transport import MemoryConfig, ZenohConfig
from plaudit.robots.twin.twin import Fault, Twin
from plaudit.types import FloatArray, Observation
from waiting import stretch, wait_until

# Small images. Nothing counts as late or silent unless a test asks for it: on a busy machine everything is.
QUICK = {
    "HZ": 50,
    "mono_image_resize": {"width": 64, "height": 48},
    "start_speed": 5.0,
    "max_delta_deg": None,
    "joint_max_velocity": None,
    "joint_max_acceleration": None,
    "late_after_ms": 60_000.0,
    "silent_after_ms": 60_000.0,
}


def robot_config(folder: Path, name: str = "igris_b", transport: Any = None, **params: Any) -> Any:
    """The config of a robot with some of its params replaced."""
    path = folder / "params.json"
    path.write_text(json.dumps(QUICK | {"first_message_s": stretch(20.0)} | params))
    return ROBOT_REGISTRY.get(name)(
        inference_runtime_params_config=path, transport=transport or MemoryConfig(bus=str(folder))
    )


def wait_for_silence(robot: Any, message: str) -> None:
    """Wait for a fault to show in what the robot would report, and lower its limit so far that it ends the episode.

    A topic is silent here if it is half as old as the oldest, and at least twenty ticks: no limit in seconds has to be
    right for a busy machine.
    """

    def is_reported() -> object:
        robot.sensors.silent_after = max(0.4, max(stream.age() for stream in robot.sensors._streams) / 2)
        try:
            robot.sensors.check()
        except RobotSilent as error:
            return re.search(message, str(error))

    wait_until(is_reported, what=f"for {message}")


def free_endpoint() -> str:
    """An endpoint of this machine where nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"tcp/127.0.0.1:{free.getsockname()[1]}"


def inject(twin: Twin, fault: str) -> None:
    """Let it fail, and wait for the tick from which it does: commands that come before are still followed."""
    twin.inject(Fault.parse(fault))
    wait_until(lambda: twin.fault == Fault.parse(fault), what=f"for the fault {fault}")


@contextmanager
def twin_thread(config: Any, **options: Any) -> Iterator[Twin]:
    """A twin that runs in a thread of this process. options: of `Twin`"""
    twin = Twin(config, **{"log": None, "watchdog": 60.0, **options})
    thread = threading.Thread(target=twin.run, args=(60.0,), daemon=True)
    thread.start()
    try:
        yield twin
    finally:
        twin.stop()
        thread.join()
        twin.close()


def zenoh_config(folder: Path, name: str = "igris_b", **params: Any) -> Any:
    """The config of a robot whose twin runs in another process."""
    return robot_config(folder, name, ZenohConfig(connect=(free_endpoint(),)), **params)


class Waves:
    """A policy that swings every joint around its start pose, and calls `then` before step `at`."""

    components: Mapping[str, Any] = {}

    def __init__(self, start: Any, at: int = -1, then: Callable[[], object] = lambda: None, slowness: float = 10):
        """slowness: steps per radian of the wave"""
        self._start, self._at, self._then, self._step = np.array(start, np.float32), at, then, 0
        self._slowness = slowness

    def predict(self, observation: Observation, normalizer: Any) -> FloatArray:
        if self._step == self._at:
            self._then()
        self._step += 1
        return (self._start + 0.2 * np.sin(self._step / self._slowness))[None].astype(np.float32)

    def guided_inference(
        self, observation: Any, normalizer: Any, previous: Any, delay: int, executed: int
    ) -> FloatArray:
        return self.predict(observation, normalizer)

    def warmup(self) -> None: ...

    def freeze_all_model_params(self) -> None: ...

    def load_weights(self, weights: Any) -> None: ...
