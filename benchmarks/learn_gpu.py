"""Updates of learners from cameras on a GPU, each beside the sum of its kernels' times in the same run.

    PYTHONPATH=src python benchmarks/learn_gpu.py [--quick] [--kernels]

Needs torch and safetensors, no simulator. Two cameras, batches of 256 transitions as replay hands them out, hidden
layers of 256, and an update of the actor with every update of the critics. Each update runs as a CUDA graph and, for
comparison, kernel by kernel (eager).
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bars import Bars
from plaudit.data.batch import to_torch
from plaudit.data.weights import load_checkpoint, save_checkpoint
from plaudit.learners.base import EncoderSpec
from plaudit.learners.config import PpoConfig, QChunkConfig, SacConfig
from plaudit.learners.ppo import Ppo
from plaudit.learners.qchunk import QChunk
from plaudit.learners.sac import Sac
from plaudit.policies.config import CLONED, ImageEncoderConfig
from plaudit.policies.pretrained import FrozenEncoder
from plaudit.rollout.vector import RolloutBatch
from plaudit.types import Batch, EnvSpec

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def env_spec(size: int) -> EnvSpec:
    return EnvSpec(15, 4, {"front": (size, size), "wrist": (size, size)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="10 updates instead of 200")
    parser.add_argument("--kernels", action="store_true", help="print the slowest kernels of each update")
    options = parser.parse_args()
    count = 10 if options.quick else 200
    print(f"{torch.cuda.get_device_name() if DEVICE == 'cuda' else 'no GPU'}, torch {torch.__version__}")
    rng = np.random.default_rng(0)
    bars = Bars()

    def measure(name: str, update: Callable[[], Any], eager: Callable[[], Any], goal: float, count: int) -> None:
        """Print and check one kind of update."""
        ms, slow = timed(update, count), timed(eager, max(count // 4, 2))
        kernels = kernel_ms(update, options.kernels)
        print(f"{name}: {ms:.2f} ms (eager {slow:.2f} ms), kernels {kernels:.2f} ms ({kernels / ms:.0%})")
        bars.at_most(f"{name}_ms", ms, goal)
        bars.at_least(f"{name}_kernel_share", kernels / ms, 0.8)

    cloned = ImageEncoderConfig(type=CLONED)
    for name, size, encoder, goal in (
        ("sac_128", 128, ImageEncoderConfig(), 5),
        ("sac_128_shared", 128, ImageEncoderConfig(shared=True), 5),
        ("sac_64", 64, ImageEncoderConfig(), 2),
        ("sac_64_shared", 64, ImageEncoderConfig(shared=True), 2),
        ("sac_features", 64, cloned, 0.5),
    ):
        spec = env_spec(size)
        batch = to_torch(transitions(rng, 256, spec), DEVICE)
        frozen = FrozenEncoder(cloned, spec.cameras).to(DEVICE) if encoder is cloned else None
        if frozen is not None:
            images, next_images = (frozen(seen) for seen in (batch.images, batch.next_images))
            batch = replace(batch, images=images, next_images=next_images)
        graph, eager = (
            Sac(
                SacConfig(hidden_dims=(256, 256), policy_update_freq=1, cuda_graphs=graphs), spec, device=DEVICE,
                encoder=EncoderSpec(encoder, frozen),
            )
            for graphs in (True, False)
        )  # fmt: skip
        difference = agree(graph, eager, batch)
        bars.at_most(f"{name}_graph_and_eager_differ", difference, 0.01)
        measure(name, partial(graph.update, batch), partial(eager.update, batch), goal, count)
    spec = env_spec(128)
    batch = to_torch(transitions(rng, 256, spec), DEVICE)
    same = goes_on(graph := Sac(SacConfig(), spec, device=DEVICE), lambda: Sac(graph.config, spec, 1, DEVICE), batch)
    precise = Sac(SacConfig(mixed_precision=False), spec, device=DEVICE)
    difference = agree(Sac(SacConfig(), spec, device=DEVICE), precise, batch)
    bars.at_most("sac_mixed_and_full_precision_differ", difference, 0.05)
    batch = to_torch(transitions(rng, 256, env_spec(64), history=2), DEVICE)
    graph, eager = (
        Sac(
            SacConfig(gripper="discrete", policy_update_freq=1, cuda_graphs=graphs), env_spec(64), device=DEVICE,
            encoder=EncoderSpec(history=2),
        )
        for graphs in (True, False)
    )  # fmt: skip
    bars.at_most("sac_history_gripper_graph_and_eager_differ", agree(graph, eager, batch), 0.01)
    chunks = to_torch(transitions(rng, 128, spec, horizon=5), DEVICE)
    graph, eager = (QChunk(QChunkConfig(cuda_graphs=graphs), spec, device=DEVICE) for graphs in (True, False))
    bars.at_most("qchunk_graph_and_eager_differ", agree(graph, eager, chunks), 0.01)
    measure("qchunk_128", partial(graph.update, chunks), partial(eager.update, chunks), 10, count)
    played = episodes(rng, 16, 50, spec)
    graph, eager = (
        Ppo(PpoConfig(update_epochs=1, num_minibatches=16, target_kl=1e9, cuda_graphs=graphs), spec, device=DEVICE)
        for graphs in (True, False)
    )
    bars.at_most("ppo_graph_and_eager_differ", agree(graph, eager, played), 0.01)
    measure("ppo_128", partial(graph.update, played), partial(eager.update, played), 60, max(count // 20, 2))
    same = same and goes_on(graph, lambda: Ppo(graph.config, spec, 1, DEVICE), played)
    bars.exactly("resumed_learners_agree", int(same), 1)
    bars.report()


def timed(work: Callable[[], Any], count: int) -> float:
    """Milliseconds each, until nothing is left running."""
    wait = torch.cuda.synchronize if DEVICE == "cuda" else lambda: None
    for _ in range(3):
        work()
    wait()
    began = time.perf_counter()
    for _ in range(count):
        work()
    wait()
    return (time.perf_counter() - began) / count * 1e3


def kernel_ms(work: Callable[[], Any], verbose: bool, count: int = 5) -> float:
    """The sum of the times of all kernels and copies of one call."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA if DEVICE == "cuda" else ProfilerActivity.CPU]) as profiler:
        for _ in range(count):
            work()
        if DEVICE == "cuda":
            torch.cuda.synchronize()
    rows = profiler.key_averages()
    if verbose:
        for row in sorted(rows, key=lambda row: -row.self_device_time_total)[:16]:
            print(f"    {row.self_device_time_total / count / 1e3:.3f} ms {row.count / count:5.0f} x {row.key[:110]}")
        print(f"    {sum(row.count for row in rows) / count:.0f} kernels")
    return sum(row.self_device_time_total for row in rows) / count / 1e3


def agree(one: Any, other: Any, data: Any, updates: int = 10) -> float:
    """How far the losses of two learners are apart after some updates with the same data, relative to their size."""
    for _ in range(updates - 1):
        one.update(data)
        other.update(data)
    first, second = one.update(data), other.update(data)
    losses = [name for name in first if name.startswith("loss/")]
    return max(abs(float(first[n]) - float(second[n])) / (abs(float(second[n])) + 1e-3) for n in losses)


def goes_on(learner: Any, another: Callable[[], Any], data: Any) -> bool:
    """Saved, loaded into a fresh learner, both updated once more: the same losses, as far as a GPU repeats itself."""
    with tempfile.TemporaryDirectory() as folder:
        save_checkpoint(Path(folder) / "c", learner, {})
        other = another()
        load_checkpoint(Path(folder) / "c", other)
    one, two = learner.update(data), other.update(data)
    return all(np.isclose(float(one[name]), float(two[name]), rtol=1e-3, atol=1e-5) for name in one)


def transitions(
    rng: np.random.Generator, size: int, spec: EnvSpec, horizon: int | None = None, history: int = 0
) -> Batch[Any]:
    window = (1 + history,) if history else ()

    def images() -> dict[str, Any]:
        return {c: rng.integers(0, 256, (size, *window, *shape, 3), np.uint8) for c, shape in spec.cameras.items()}

    def floats(*shape: int) -> Any:
        return rng.normal(size=shape).astype(np.float32)

    none = np.zeros(size, np.int64)
    discount, mask = np.full(size, 0.95, np.float32), np.ones((size, horizon or 1), bool)
    actions = np.tanh(floats(size, horizon, 4) if horizon else floats(size, 4))
    return Batch(
        images(), floats(size, *window, 15), actions, mask, floats(size), discount, images(), floats(size, *window, 15),
        none, none, none,
    )  # fmt: skip


def episodes(rng: np.random.Generator, count: int, steps: int, spec: EnvSpec) -> RolloutBatch:
    reward = rng.uniform(size=(steps, count)).astype(np.float32)
    return RolloutBatch(
        images={c: rng.integers(0, 256, (steps + 1, count, *s, 3), np.uint8) for c, s in spec.cameras.items()},
        state=rng.normal(size=(steps + 1, count, 15)).astype(np.float32),
        actions=rng.normal(size=(steps, count, 4)).astype(np.float32),
        reward=reward,
        used=np.ones_like(reward, bool),
        success=np.zeros((steps + 1, count), bool),
        success_prob=np.zeros((steps + 1, count), np.float32),
        progress=None,
        privileged={},
        length=np.full(count, steps),
        terminated=np.zeros(count, bool),
        seeds=tuple(range(count)),
        first_true=(None,) * count,
    )


if __name__ == "__main__":
    main()
