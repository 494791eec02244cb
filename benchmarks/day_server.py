"""An openpi server for `day.py`: a policy that swings every joint slowly around the start pose.

python benchmarks/day_server.py 8000 '[0.0, 0.1]'
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / folder) for folder in ("src", "tests")]

from openpi_server import ToyServer  # noqa: E402 - of the tests: the protocol

CHUNK, HZ = 50, 20.0


class SwingServer(ToyServer):
    def __init__(self, port: int, start: list[float]):
        self._start = np.array(start)
        super().__init__(port=port)

    def _infer(self, observation: dict[str, Any], connection: Any) -> dict[str, Any]:
        seconds = time.time() % 1000 + np.arange(CHUNK) / HZ
        return {"actions": self._start + 0.1 * np.sin(seconds)[:, None]}


if __name__ == "__main__":
    SwingServer(int(sys.argv[1]), json.loads(sys.argv[2])).serve_forever()
