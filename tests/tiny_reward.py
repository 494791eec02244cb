"""A reward model that costs nothing, with random weights, and an episode of noise for it to have opinions on."""

from typing import Any

import numpy as np
import torch

from plaudit.encoders import SmallConfig
from plaudit.judges.classifier.checkpoint import RewardModel, RewardModelConfig, TrainingDataInfo
from plaudit.judges.classifier.model import BinaryRewardClassifier, ClassifierConfig
from plaudit.types import Episode

SIZE = (16, 16)


def tiny_model(seed: int = 0, threshold: float = 0.5, members: int = 1, **shape: Any) -> RewardModel:
    """Two layers on 16x16 images; a low temperature makes its opinions differ."""
    config = ClassifierConfig(encoder=SmallConfig(widths=(4, 8)), cameras={"front": SIZE}, hidden_dim=16, **shape)
    torch.manual_seed(seed)
    facts = RewardModelConfig(
        classifier=config,
        frozen_encoder=False,
        calibration=((0.3, 0.0),) * members,
        threshold={"value": threshold},
        scores={},
        controls=(),
        problems=(),
        data=TrainingDataInfo(fingerprint="none", episodes={}, frames={}, sources=()),
        training={},
    )
    return RewardModel([BinaryRewardClassifier(config) for _ in range(members)], facts, "cpu")


def noise_episode(steps: int = 12, seed: int = 0, **facts: Any) -> Episode:
    """Every frame is of another brightness, so that opinions differ."""
    rng = np.random.default_rng(seed)
    light = rng.integers(0, 256, (steps + 1, 1, 1, 1))
    frames = np.clip(light + rng.integers(-40, 40, (steps + 1, *SIZE, 3)), 0, 255).astype(np.uint8)
    return Episode.of(frames={"front": frames}, state=np.zeros((steps + 1, 2)), actions=np.zeros((steps, 1)), **facts)
