"""Updates of SAC and PPO from pixels on a GPU: time an update, and that a saved learner goes on as it would have.

    PYTHONPATH=src python benchmarks/learn_gpu.py [--quick]

Needs torch and safetensors, no simulator. Two cameras of 128x128, batches of 256 transitions as replay hands them out.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bars import Bars
from plaudit.data.batch import to_torch
from plaudit.data.checkpoint import load_checkpoint, save_checkpoint
from plaudit.learners.config import PpoConfig, SacConfig
from plaudit.learners.ppo import Ppo
from plaudit.learners.sac import Sac
from plaudit.rollout.vector import RolloutBatch
from plaudit.types import Batch, EnvSpec

CAMERAS = {"front": (128, 128), "wrist": (128, 128)}
SPACES = EnvSpec(15, 4, CAMERAS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="10 updates instead of 100")
    count = 10 if parser.parse_args().quick else 100
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(f"{torch.cuda.get_device_name() if device == 'cuda' else 'no GPU'}, torch {torch.__version__}")
    rng = np.random.default_rng(0)
    batch = to_torch(transitions(rng, 256), device)
    sac = Sac(SacConfig(hidden_dims=(256, 256), policy_update_freq=1), SPACES, device=device)
    print(f"sac: {timed(lambda: sac.update(batch), count):.2f} ms an update of 256 transitions, two 128x128 cameras")
    ppo = Ppo(PpoConfig(update_epochs=1, num_minibatches=16), SPACES, device=device)
    played = episodes(rng, 16, 50)
    print(f"ppo: {timed(lambda: ppo.update(played), max(2, count // 20)):.0f} ms an epoch over 16 episodes of 50 steps")
    same = goes_on(sac, lambda: Sac(sac.config, SPACES, 1, device), batch) and goes_on(
        ppo, lambda: Ppo(ppo.config, SPACES, 1, device), played
    )
    bars = Bars()
    bars.exactly("resumed_learners_agree", int(same), 1)
    bars.report()


def timed(work: Callable[[], Any], count: int) -> float:
    """Milliseconds each, until nothing is left running."""
    wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    work()
    wait()
    began = time.perf_counter()
    for _ in range(count):
        work()
    wait()
    return (time.perf_counter() - began) / count * 1e3


def goes_on(learner: Any, another: Callable[[], Any], data: Any) -> bool:
    """Saved, loaded into a fresh learner, both updated once more: the same losses, as far as a GPU repeats itself."""
    with tempfile.TemporaryDirectory() as folder:
        save_checkpoint(Path(folder) / "c", learner, {})
        other = another()
        load_checkpoint(Path(folder) / "c", other)
    one, two = learner.update(data), other.update(data)
    return all(np.isclose(float(one[name]), float(two[name]), rtol=1e-3, atol=1e-5) for name in one)


def transitions(rng: np.random.Generator, size: int) -> Batch[Any]:
    def images() -> dict[str, Any]:
        return {camera: rng.integers(0, 256, (size, *shape, 3), np.uint8) for camera, shape in CAMERAS.items()}

    def floats(*shape: int) -> Any:
        return rng.normal(size=shape).astype(np.float32)

    none = np.zeros(size, np.int64)
    discount, mask = np.full(size, 0.95, np.float32), np.ones((size, 1), bool)
    return Batch(
        images(), floats(size, 15), np.tanh(floats(size, 4)), mask, floats(size), discount, images(), floats(size, 15),
        none, none, none,
    )  # fmt: skip


def episodes(rng: np.random.Generator, count: int, steps: int) -> RolloutBatch:
    reward = rng.uniform(size=(steps, count)).astype(np.float32)
    return RolloutBatch(
        images={c: rng.integers(0, 256, (steps + 1, count, *s, 3), np.uint8) for c, s in CAMERAS.items()},
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
