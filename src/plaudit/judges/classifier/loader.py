"""A reward model from whatever a path names: a model's folder, or a single .pt file as RLinf writes it."""

from pathlib import Path

from plaudit.judges.classifier.checkpoint import RewardModel, check_controls_passed
from plaudit.judges.classifier.rlinf import load_rlinf_checkpoint


def load_reward_model(path: str | Path, device: str = "auto", *, force: bool = False) -> RewardModel:
    """The model of a folder or a .pt file.

    force: take a model although it failed a control
    """
    path = Path(path)
    if path.suffix != ".pt" or path.is_dir():
        return RewardModel.from_pretrained(path, device, force=force)
    model = load_rlinf_checkpoint(path, device=device)
    check_controls_passed(path, model.config, force)
    return model
