"""The network that a config asks for, for the frames that are there."""

import torch

from plaudit.errors import JudgeError
from plaudit.judges.classifier.config import RewardTrainConfig
from plaudit.judges.classifier.dataset import RewardDataset
from plaudit.judges.classifier.model import BinaryRewardClassifier, ClassifierConfig


def classifier_config(config: RewardTrainConfig, table: RewardDataset) -> ClassifierConfig:
    """The network for these frames."""
    if config.use_state and not table.state.shape[1]:
        raise JudgeError("these episodes have no state; leave out --use-state")
    names = ("image_size", "hidden_dim", "latent_dim", "num_spatial_blocks", "dropout")
    sequence = ("num_history_frames", "history_stride", "predict_progress")
    shared = {name: getattr(config, name) for name in (*names, *sequence)}
    return ClassifierConfig(
        encoder=config.encoder,
        cameras={camera: (height, width) for camera, (height, width) in table.cameras.items()},
        freeze_stem=config.freezes_stem,
        state_dim=table.state.shape[1] if config.use_state else 0,
        **shared,
    )


def build_classifier(shape: ClassifierConfig, config: RewardTrainConfig, number: int) -> BinaryRewardClassifier:
    """A member of an ensemble before its first step. An encoder that does not learn is the same in all of them."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed if config.frozen else seed_of(config, number))
        encoder = config.encoder.build()
        torch.manual_seed(seed_of(config, number))
        model = BinaryRewardClassifier(shape, encoder)
    if config.frozen:
        model.freeze_encoder()
    return model


def seed_of(config: RewardTrainConfig, number: int) -> int:
    return config.seed + 1000 * number
