"""Batches on their way to a GPU: pinned and filled ahead, beside pageable and filled on demand; and are they right?

    python benchmarks/replay_gpu.py [--quick]     # needs CUDA; numpy and torch are enough

Every batch that arrives is compared, on the GPU, with what the store holds for those steps: pinned memory is used again
while copies may still be under way, and this is where a mistake would show.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from bars import Bars
from plaudit.data.batch import to_torch
from plaudit.data.replay import ReplaySampler
from plaudit.data.store import Store
from plaudit.types import Batch, Episode, Labels

STEPS, SIZE, BATCH = 50, 128, 256


def numbered_episode(number: int) -> Episode:
    """Each frame is filled with a number of its own, each state holds it."""
    numbers = (number * 7 + 3 * np.arange(STEPS + 1)) % 251
    frames = np.broadcast_to(numbers.astype(np.uint8)[:, None, None, None], (STEPS + 1, SIZE, SIZE, 3))
    return Episode.of(frames={"front": frames, "wrist": frames}, state=numbers[:, None], actions=np.zeros((STEPS, 7)))


def wrong(batch: Batch[torch.Tensor]) -> torch.Tensor:
    """How many pixels are not what they should be, as a number that stays on the GPU."""
    expected = (batch.episode * 7 + 3 * batch.step) % 251
    found = torch.zeros((), dtype=torch.int64, device=batch.reward.device)
    for images, number in ((batch.images, expected), (batch.next_images, (expected + 3) % 251)):
        for frames in images.values():
            found += (frames != number[:, None, None, None]).sum()
    return found


def measure(batches: Iterator[Batch[torch.Tensor]], count: int, use: Callable[[Batch[torch.Tensor]], None]) -> float:
    for _ in range(10):
        use(next(batches))
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(count):
        use(next(batches))
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - start) / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer episodes and batches")
    quick = parser.parse_args().quick
    if not torch.cuda.is_available():
        print("this benchmark needs a CUDA GPU, and torch sees none here")
        return
    episodes, count = (60, 60) if quick else (300, 400)
    labels = Labels.from_cutoff(steps=STEPS, cutoff=None, source="simulator")
    with tempfile.TemporaryDirectory() as folder, Store.create(Path(folder) / "store") as store:
        for number in range(episodes):
            store.ledger.append(store.append(numbered_episode(number)), labels)
        errors = torch.zeros((), dtype=torch.int64, device="cuda")

        def check(batch: Batch[torch.Tensor]) -> None:
            errors.add_(wrong(batch))

        replay = ReplaySampler(store, seed=0)
        on_demand = (to_torch(replay.sample(BATCH), "cuda") for _ in iter(int, 1))
        pageable = measure(on_demand, count, check)
        ahead = replay.batches(BATCH, form="torch", device="cuda")
        pinned = measure(ahead, count, check)
        ahead.close()
        host = replay.batches(BATCH, form="torch")
        is_pinned = next(host).images["front"].is_pinned()
        host.close()
        print(
            f"{torch.cuda.get_device_name()}, batches of {BATCH} transitions, two cameras of {SIZE}x{SIZE}, 50 MB each"
        )
        print(f"pageable, on demand: {pageable:.2f} ms a batch    pinned, filled ahead: {pinned:.2f} ms a batch")
        bars = Bars()
        bars.exactly("gpu_batches_pinned", int(is_pinned), 1)
        bars.exactly("gpu_wrong_pixels", int(errors), 0)
        bars.at_least("gpu_batches_speedup", pageable / pinned, 1.5)
        bars.report()


if __name__ == "__main__":
    main()
