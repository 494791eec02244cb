"""How long N chunks for one observation take: in this process, and from `plaudit serve-policy` in another one.

    python benchmarks/sampling.py [--quick] [--policy FOLDER] [--device cuda]

The policy is a flow with two 128x128 cameras and chunks of 16 actions, or that of --policy. The observation goes to the
server with every request, as openpi's clients send it. Chunks from the server must be those of this process.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from bars import Bars
from plaudit.data.normalize import Normalizer
from plaudit.policies.config import FlowConfig, OpenpiConfig, ServerConfig
from plaudit.policies.guidance import check_sampling
from plaudit.policies.loader import load_policy, save_policy
from plaudit.policies.networks import weights_of
from plaudit.rollout.engine import build_policy
from plaudit.types import FloatArray, Observation

COUNTS = (1, 4, 16, 32)
CAMERAS = {"front": (128, 128), "wrist": (128, 128)}
WARMUP = 3
LISTENING = re.compile(r"listening on ws://127\.0\.0\.1:(\d+)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few requests, small cameras")
    parser.add_argument("--policy", type=Path, help="a policy's folder or file")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    repeats, bars = (5 if options.quick else 60), Bars()
    with tempfile.TemporaryDirectory() as name:
        path = options.policy or flow_policy(Path(name), (32, 32) if options.quick else (128, 128))
        spec = load_policy(path).on(options.device)
        inputs = spec.inputs
        assert inputs is not None
        rng = np.random.default_rng(0)
        images = {c: rng.integers(0, 256, (*size, 3), np.uint8) for c, size in inputs.cameras.items()}
        observation = Observation(images, rng.normal(size=inputs.state_dim).astype(np.float32), task="measure")
        normalizer = Normalizer.identity(inputs.state_dim, inputs.action_dim)
        if spec.normalizer is not None:
            normalizer = Normalizer.load(spec.normalizer)
        local = check_sampling(build_policy(spec), "this policy", samples=max(COUNTS))
        with serving(path, options.device) as port:
            place = ServerConfig(port=port, answer_s=120)
            client = OpenpiConfig(openpi_model=place, action_dim=inputs.action_dim).build()
            check_sampling(client, "the server", samples=max(COUNTS))
            print(f"{'N':>4} {'in process, ms':>20} {'from a server, ms':>20} {'of it the wire':>15}")
            for count in COUNTS:
                noise = None
                if local.noise_shape is not None:
                    noise = rng.normal(size=(count, *local.noise_shape)).astype(np.float32)

                def here(count: int = count, noise: FloatArray | None = noise) -> FloatArray:
                    return local.sample(observation, normalizer, count, noise)

                def there(count: int = count, noise: FloatArray | None = noise) -> FloatArray:
                    return client.sample(observation, normalizer, count, noise)

                if noise is not None:
                    wrong = float(np.abs(here() - there()).max() > 1e-4)
                    bars.exactly(f"sampling_{count}_differs", wrong, 0)
                own, served = latencies(here, repeats), latencies(there, repeats)
                wire = np.median(served) - np.median(own)
                print(f"{count:4} {describe(own):>20} {describe(served):>20} {wire:12.1f} ms", flush=True)
                if count == 1:
                    bars.at_most("sampling_wire_ms", wire, 10)
    bars.report()


def flow_policy(folder: Path, size: tuple[int, int]) -> Path:
    config = FlowConfig(state_dim=15, action_dim=7, cameras=dict.fromkeys(CAMERAS, size))
    policy = config.build()
    policy.velocity_net.leave[1].weight.data.normal_(std=0.01)  # untrained, it returns the noise
    return save_policy(folder, config, weights_of(1, policy.components))


@contextmanager
def serving(path: Path, device: str) -> Iterator[int]:
    """The port of a server process."""
    words = [sys.executable, "-m", "plaudit", "serve-policy", str(path), f"policy.device={device}", "--port", "0"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        match = next((found for line in process.stdout if (found := LISTENING.search(line))), None)
        if match is None:
            sys.exit("the server did not start")
        yield int(match[1])
    finally:
        process.terminate()
        process.wait()


def latencies(call: Callable[[], object], repeats: int) -> np.ndarray:
    """[repeats] ms of each call."""
    took = []
    for _ in range(WARMUP + repeats):
        began = time.perf_counter()
        call()
        took.append(1e3 * (time.perf_counter() - began))
    return np.array(took[WARMUP:])


def describe(took: np.ndarray) -> str:
    return f"{np.median(took):.1f} (p95 {np.percentile(took, 95):.1f})"


if __name__ == "__main__":
    main()
