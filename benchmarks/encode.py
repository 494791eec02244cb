"""One action of a camera policy with a frozen encoder: how long a robot waits for it.

    PYTHONPATH=src python benchmarks/encode.py [--quick]

Needs torch, no simulator. Two cameras, one observation at a time, every frame new, as on a robot. The goal is the time
between two actions at 20 Hz. Encoders have random weights, which take as long as trained ones. On a CPU, torch uses the
threads that it uses by default.
"""

import argparse
import statistics
import time

import numpy as np
import torch

from bars import Bars
from plaudit.data.normalize import Normalizer as AffineNormalizer
from plaudit.policies.config import ActorConfig, GaussianConfig, ImageEncoderConfig
from plaudit.types import Observation

ENCODERS = {
    "cloned": {},
    "resnet10": {"options": {"weights": "resnet10.safetensors"}},  # the file is not read here
    "efficientnet_lite0": {},
}
CONTROL_MS = 50.0  # at 20 Hz


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="10 actions of each instead of 100")
    options = parser.parse_args()
    count = 10 if options.quick else 100
    device = "cuda" if torch.cuda.is_available() else "cpu"
    name = torch.cuda.get_device_name() if device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    print(f"{name}, torch {torch.__version__}")
    bars = Bars()
    for encoder, fields in ENCODERS.items():
        for size in (128, 224):
            times = act(ImageEncoderConfig(type=encoder, **fields), size, device, count)
            median, slow = statistics.median(times), sorted(times)[int(0.95 * len(times))]
            print(f"{encoder}, {size}x{size}: {median:.1f} ms median, {slow:.1f} ms 95th percentile", flush=True)
            bars.at_most(f"encode_{device}_{encoder}_{size}_ms", slow, CONTROL_MS)
    bars.report()


def act(encoder: ImageEncoderConfig, size: int, device: str, count: int) -> list[float]:
    """Milliseconds of each action."""
    cameras = {"front": (size, size), "wrist": (size, size)}
    config = GaussianConfig(
        state_dim=15, action_dim=4, cameras=cameras, encoder=encoder, actor=ActorConfig(), device=device
    )
    policy, normalizer = config.build(), AffineNormalizer.identity(15, 4)
    policy.warmup()
    rng, times = np.random.default_rng(0), []
    for _ in range(count):
        frames = {camera: rng.integers(0, 256, (size, size, 3), np.uint8) for camera in cameras}
        observation = Observation(frames, rng.normal(size=15).astype(np.float32))
        began = time.perf_counter()
        policy.predict(observation, normalizer)
        times.append(1e3 * (time.perf_counter() - began))
    return times


if __name__ == "__main__":
    main()
