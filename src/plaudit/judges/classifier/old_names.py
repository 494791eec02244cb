"""How the model.json of earlier versions is read: by today's names of its keys."""

from collections.abc import Mapping
from typing import Any

_MODEL = {"shared_encoder": "frozen_encoder", "cutoff_shift": "cutoff_offset"}
_CLASSIFIER = {
    "history": "num_history_frames",
    "progress": "predict_progress",
    "split_encoder": "freeze_stem",
    "average_first": "global_pool_features",
}
_TRAINING = {
    "history": "num_history_frames",
    "progress": "predict_progress",
    "sources": "label_sources",
    "validation_share": "val_fraction",
    "test_share": "test_fraction",
    "encoder_lr": "encoder_lr_scale",
    "views": "num_augmented_views",
    "members": "ensemble_size",
}
_ENCODER = {"normalise": "normalize", "download": "allow_download"}
_AUGMENT = {"colour": "color"}


def rename_old_keys(tree: Mapping[str, Any]) -> dict[str, Any]:
    """A model's config in plain values, whichever version wrote it, by the names of `RewardModelConfig`."""
    model = _renamed(tree, _MODEL)
    if isinstance(model.get("classifier"), Mapping):
        model["classifier"] = _renamed_within(_renamed(model["classifier"], _CLASSIFIER), "encoder", _ENCODER)
    training = model.get("training")
    if isinstance(training, Mapping) and isinstance(training.get("config"), Mapping):
        config = _renamed_within(_renamed(training["config"], _TRAINING), "encoder", _ENCODER)
        config = _renamed_within(config, "augment", _AUGMENT)
        if config.get("freeze_encoder") == "body":
            config["freeze_encoder"] = "stem"
        model["training"] = {**training, "config": config}
    return model


def _renamed_within(tree: dict[str, Any], block: str, names: Mapping[str, str]) -> dict[str, Any]:
    inner = tree.get(block)
    return {**tree, block: _renamed(inner, names)} if isinstance(inner, Mapping) else tree


def _renamed(tree: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names.get(name, name): value for name, value in tree.items()}
