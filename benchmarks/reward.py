"""Reward models: what the worker adds to its network, what keeping frozen features saves, and how fast a GPU judges.

    python benchmarks/reward.py [--quick]                                    # on a processor
    PYTHONPATH=src python benchmarks/reward.py --cuda [--compile] [--quick]  # on a GPU; needs no simulator

Weights are random. The bare network is handed a tensor of normalized floats, in the same run and in turn with the
worker, which is handed bytes: the difference is all that we do around it.

On a GPU a batch of 256 images is scored eager and compiled (`classifier/checkpoint.py`), beside the larger of
two floors, both from what this card does in this run: the time to move the images, the weights and the answer at the
speed of a plain copy, and the time for the network's operations at the speed of a large product of bfloat16 matrices.
"""

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from bars import Bars
from plaudit.data.store import Store
from plaudit.encoders import normalize
from plaudit.judges.classifier.checkpoint import RewardModel, RewardModelConfig, TrainingDataInfo
from plaudit.judges.classifier.config import RewardTrainConfig
from plaudit.judges.classifier.dataset import RewardDataset, split
from plaudit.judges.classifier.judge import RewardWorker, RewardWorkerConfig
from plaudit.judges.classifier.model import BinaryRewardClassifier, ClassifierConfig
from plaudit.judges.classifier.training import EnsembleMember, FeatureSource, OnlineFeatures, TrainRun, cache_features
from plaudit.registry import ENCODER_REGISTRY
from plaudit.types import ByteArray, Episode, Labels

BATCH = 256
bars = Bars()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    parser.add_argument("--cuda", action="store_true", help="measure a GPU and nothing else")
    parser.add_argument("--compile", action="store_true", help="on a GPU, also with torch.compile (a few minutes)")
    options = parser.parse_args()
    if options.cuda and not torch.cuda.is_available():
        sys.exit("--cuda needs a CUDA GPU, and torch sees none here")
    if options.cuda:
        measure_gpu(50 if options.quick else 200, options.compile)
    else:
        print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, batches of {BATCH}")
        measure_worker("small", 64, 20 if options.quick else 100)
        measure_worker("resnet10", 128, 2 if options.quick else 10)
        measure_kept(*((1, 96, 6) if options.quick else (5, 128, 10)))
    bars.report()


def random_model(encoder: str, size: int) -> RewardModel:
    config = ClassifierConfig(encoder=ENCODER_REGISTRY.parse({"type": encoder}), cameras={"front": (size, size)})
    torch.manual_seed(0)
    facts = RewardModelConfig(
        classifier=config,
        frozen_encoder=False,
        calibration=((1.0, 0.0),),
        threshold={"value": 0.5},
        scores={},
        controls=(),
        problems=(),
        data=TrainingDataInfo(fingerprint="", episodes={}, frames={}, sources=()),
        training={},
    )
    return RewardModel([BinaryRewardClassifier(config)], facts, "cpu")


def random_images(count: int, size: int) -> ByteArray:
    return np.random.default_rng(0).integers(0, 256, (count, size, size, 3), np.uint8)


# On a processor


def measure_worker(encoder: str, size: int, repeats: int) -> None:
    model, images = random_model(encoder, size), random_images(BATCH, size)
    network = model.members[0]
    ready = normalize(torch.from_numpy(images), network.pixel_mean, network.pixel_std)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(Path(folder))
        here = RewardWorkerConfig(checkpoint_path=Path(folder), device="cpu")
        with RewardWorker(here) as worker:
            calls: dict[str, Callable[[], object]] = {
                "bare": lambda: bare(network, ready),
                "worker": lambda: worker.compute_batch_rewards({"front": images}),
            }
            spent = in_turn(calls, repeats)
    rates = {name: f"{BATCH / seconds:,.0f}" for name, seconds in spent.items()}
    print(f"{encoder} at {size}x{size}, images/s: {rates['bare']} the bare network, {rates['worker']} the worker")
    bars.at_least(f"reward_worker_{encoder}_{size}", spent["bare"] / spent["worker"], 0.9)


def bare(network: BinaryRewardClassifier, ready: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return network.classify(network.embed({"front": network.encoder(ready)}).unsqueeze(1))


def in_turn(calls: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median seconds of each, one after the other, so that what else the machine does meets all of them alike."""
    spent: dict[str, list[float]] = {name: [] for name in calls}
    for repeat in range(repeats + 1):
        for name, call in calls.items():
            begun = time.perf_counter()
            call()
            if repeat:  # the first warms up
                spent[name].append(time.perf_counter() - begun)
    return {name: float(np.median(times)) for name, times in spent.items()}


def measure_kept(repeats: int, size: int = 128, episodes: int = 10, steps: int = 29) -> None:
    """An epoch with a frozen encoder: features from the cache, or computed in every step."""
    encoder = ENCODER_REGISTRY.parse({"type": "resnet10"})
    config = RewardTrainConfig(encoder=encoder, freeze_encoder=True, num_augmented_views=2, device="cpu")
    with tempfile.TemporaryDirectory() as folder, Store.create(Path(folder) / "store") as store:
        for number in range(episodes):
            one = Episode.of(frames={"front": random_images(steps + 1, size)}, actions=np.zeros((steps, 1)))
            cutoff = steps // 2 if number % 2 else None
            store.ledger.append(store.append(one), Labels.from_cutoff(steps=steps, cutoff=cutoff, source="human"))
        table = RewardDataset.from_store(store)
        parts = split(table, config.seed)
        member = EnsembleMember(0, TrainRun(config, table, parts, None, Path(folder)))
        begun = time.perf_counter()
        kept = cache_features(table, parts, config, Path(folder), lambda _: iter)
        filled = time.perf_counter() - begun

        def epoch(features: FeatureSource) -> None:
            member.features = features
            for _ in range(member.steps):
                member.train_step()
            member.validate()

        computed = OnlineFeatures(member.model, table, config)
        spent = in_turn({"kept": lambda: epoch(kept), "computed": lambda: epoch(computed)}, repeats)
    print(
        f"resnet10 at {size}x{size}, frozen, {len(table)} frames: an epoch takes {spent['computed']:.2f} s, "
        f"{1e3 * spent['kept']:.0f} ms with kept features, which took {filled:.1f} s to fill "
        f"({config.num_augmented_views} views)"
    )
    bars.at_least("reward_kept_features", spent["computed"] / spent["kept"], 20.0)


# On a GPU


def measure_gpu(repeats: int, with_compile: bool) -> None:
    bandwidth, products = copy_bytes_per_s(), product_flops_per_s()
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}: copies {bandwidth / 1e12:.2f} TB/s (read and "
        f"written), bfloat16 products {products / 1e12:.0f} TFLOP/s; resnet10, batches of {BATCH}"
    )
    ways = {"eager": False, **({"compile": True} if with_compile else {})}
    print(f"{'':26}{'on the GPU':>12}{'pinned':>10}{'pageable':>10}   x floor   |p - p32|")
    for size in (128, 224):
        model, images = random_model("resnet10", size), random_images(BATCH, size)
        exact = model.score_frames({"front": images[:32]}).success_prob  # in float32, on the processor
        floor = floor_ms(model, images, bandwidth, products)
        forms = {
            "gpu": torch.from_numpy(images).cuda(),
            "pinned": torch.from_numpy(images).pin_memory(),
            "pageable": images,
        }
        best = math.inf
        for way, compiled in ways.items():
            model.to_device("cuda", compile=compiled)
            spent = {name: score_ms(model, form, repeats) for name, form in forms.items()}
            off = np.abs(model.score_frames({"front": images}).success_prob[:32] - exact).max()
            print(
                f"{f'{size}x{size} {way}, ms':26}{spent['gpu']:12.3f}{spent['pinned']:10.3f}{spent['pageable']:10.3f}"
                f"{spent['gpu'] / floor:10.1f}{off:12.4f}"
            )
            best = min(best, spent["gpu"])
        if size == 128:
            bars.at_most("reward_gpu_128_ms", best, 0.8)


def floor_ms(model: RewardModel, images: ByteArray, bandwidth: float, products: float) -> float:
    network = model.members[0]
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        network({"front": torch.from_numpy(images[:1])})
    flops = BATCH * counter.get_total_flops()
    halves = sum(p.numel() for p in network.encoder.parameters())
    weights = 2 * halves + 4 * (sum(p.numel() for p in network.parameters()) - halves)
    moved = images.nbytes + weights + 4 * BATCH
    by_bytes, by_operations = 1e3 * moved / bandwidth, 1e3 * flops / products
    print(
        f"floor at {images.shape[1]}x{images.shape[2]}: {max(by_bytes, by_operations):.3f} ms ({moved / 1e6:.0f} MB "
        f"take {by_bytes:.3f}, {flops / 1e9:.0f} GFLOP take {by_operations:.3f})"
    )
    return max(by_bytes, by_operations)


def score_ms(model: RewardModel, images: Any, repeats: int) -> float:
    """From the call to probabilities in numpy, so that nothing is still under way."""
    for _ in range(10):
        model.score_frames({"front": images})
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        model.score_frames({"front": images})
        times.append(time.perf_counter() - begun)
    return 1e3 * float(np.median(times))


def copy_bytes_per_s(size: int = 1 << 30) -> float:
    source, target = (torch.zeros(size, dtype=torch.uint8, device="cuda") for _ in range(2))
    return 2 * size / gpu_seconds(lambda: target.copy_(source))


def product_flops_per_s(side: int = 8192) -> float:
    one, other = (torch.randn(side, side, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    return 2 * side**3 / gpu_seconds(lambda: one @ other)


def gpu_seconds(call: Callable[[], object], repeats: int = 20) -> float:
    for _ in range(5):
        call()
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begun.record()
    for _ in range(repeats):
        call()
    ended.record()
    torch.cuda.synchronize()
    return 1e-3 * begun.elapsed_time(ended) / repeats


if __name__ == "__main__":
    main()
