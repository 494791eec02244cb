"""A judge that can be fooled: it learned that a bright square is a success, and only a yellow one is.

The episodes it was trained on have yellow squares and dim spots; a policy of later finds out that an orange square is
called too. All are of a simulator, which knows.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np

from bright_square import CUTOFF, STEPS, square_episode
from plaudit.data.store import Store
from plaudit.encoders import SmallConfig
from plaudit.judges.classifier.config import ClassifierJudgeConfig, RewardTrainConfig
from plaudit.judges.labeling import LabelRunner, StoreQueue
from plaudit.training.reward_model import train_and_save
from plaudit.types import Episode, Labels

TRAINING = RewardTrainConfig(
    encoder=SmallConfig(widths=(8, 16)), epochs=8, lr=3e-3, batch_size=32, hidden_dim=16, latent_dim=16, device="cpu"
)
ORANGE = (230, 120, 40)


def flags(success: bool) -> dict[str, np.ndarray]:
    return {"success": (np.arange(1, STEPS + 1) >= CUTOFF) & success}


def decoy(seed: int) -> Episode:
    """An orange square: a failure that looks like a success to who goes by brightness."""
    yellow = square_episode(True, seed)
    frames = yellow.frames["front"].copy()
    frames[(frames == (230, 200, 40)).all(axis=-1)] = ORANGE
    return replace(yellow, frames={"front": frames}, privileged=flags(False))


def played(success: bool, seed: int) -> Episode:
    return replace(square_episode(success, seed), privileged=flags(success))


def weak_judge(folder: Path) -> ClassifierJudgeConfig:
    """Trained, into `folder`/weak, on episodes without a decoy."""
    with Store.create(folder / "data") as data:
        for seed in range(24):
            labels = Labels.from_cutoff(steps=STEPS, cutoff=CUTOFF if seed % 2 else None, source="human")
            data.ledger.append(data.append(square_episode(bool(seed % 2), seed)), labels)
        train_and_save(data, folder / "weak", TRAINING, lambda _: True, lambda _: iter)
    return ClassifierJudgeConfig(model=folder / "weak", device="cpu")


def play(store: Store, successes: int, decoys: int, first_seed: int) -> list[int]:
    """Episodes of a policy that has found the decoy."""
    made = [played(True, first_seed + n) for n in range(successes)]
    return store.extend(made + [decoy(first_seed + successes + n) for n in range(decoys)])


def judge_all(store: Store, judge: ClassifierJudgeConfig) -> list[int]:
    asked = judge.build()
    return LabelRunner(asked, StoreQueue(store)).run().done
