"""Twins to test robots against, in a thread over memory; `plaudit.robots.twin.process` has those over zenoh."""

import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from plaudit.registry import ROBOT_REGISTRY
from plaudit.robots.transport import MemoryConfig, ZenohConfig
from plaudit.robots.twin.twin import Twin
from plaudit.types import FloatArray, Observation
from waiting import stretch

# Small pictures. Nothing counts as late or silent unless a test asks for it: on a busy machine everything is.
QUICK = {
    "HZ": 50,
    "mono_image_resize": {"width": 64, "height": 48},
    "start_speed": 5.0,
    "max_delta_deg": None,
    "late_after_ms": 60_000.0,
    "silent_after_ms": 60_000.0,
}


def robot_config(folder: Path, name: str = "igris_b", transport: Any = None, **params: Any) -> Any:
    """Of a robot with some of its params replaced."""
    path = folder / "params.json"
    path.write_text(json.dumps(QUICK | {"first_message_s": stretch(20.0)} | params))
    return ROBOT_REGISTRY.get(name)(
        inference_runtime_params_config=path, transport=transport or MemoryConfig(bus=str(folder))
    )


def free_endpoint() -> str:
    """Of this machine, where nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"tcp/127.0.0.1:{free.getsockname()[1]}"


@contextmanager
def twin_thread(config: Any) -> Iterator[Twin]:
    """In this process, over memory."""
    twin = Twin(config, log=None, watchdog=60.0)
    thread = threading.Thread(target=twin.run, args=(60.0,), daemon=True)
    thread.start()
    try:
        yield twin
    finally:
        twin.stop()
        thread.join()
        twin.close()


def silence() -> float:
    """ms without a message after which a robot gives up, for tests that make it do so."""
    return 1000 * stretch(2.0)


def zenoh_config(folder: Path, name: str = "igris_b", **params: Any) -> Any:
    """For a twin in another process."""
    return robot_config(folder, name, ZenohConfig(connect=(free_endpoint(),)), **params)


class Waves:
    """A policy: every joint swings around its start pose. At one step it does something else first."""

    components: Mapping[str, Any] = {}

    def __init__(self, start: Any, at: int = -1, then: Callable[[], object] = lambda: None, slowness: float = 10):
        """slowness: steps to a radian of the wave"""
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
