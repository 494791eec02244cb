"""A reward model from whatever a path names: a model's folder, lerobot's or ours, or a single file as RLinf has it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plaudit.judges.classifier.checkpoint import RewardModel, check_controls_passed
from plaudit.judges.classifier.lerobot import load_lerobot_classifier
from plaudit.judges.classifier.rlinf import load_rlinf_checkpoint
from plaudit.judges.classifier.rlinf_export import SUFFIXES
from plaudit.judges.config import is_lerobot_classifier


def load_reward_model(
    path: str | Path, device: str = "auto", *, force: bool = False, network: Mapping[str, Any] | None = None
) -> RewardModel:
    """The model of a folder, or of a .pt or .safetensors file.

    force: take a model although it failed a control
    network: of RLinf's files, what they do not say themselves; see `RLinfRewardConfig`
    """
    path = Path(path)
    if path.suffix in SUFFIXES and not path.is_dir():
        model = load_rlinf_checkpoint(path, network, device)
        check_controls_passed(path, model.config, force)
        return model
    if not (path / "model.json").is_file() and is_lerobot_classifier(path):
        return load_lerobot_classifier(path, device)
    return RewardModel.from_pretrained(path, device, force=force)
