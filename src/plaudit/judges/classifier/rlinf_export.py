"""A reward model written as RLinf's own code loads it: by its names of the tensors, all of them, and nothing else.

    export_rlinf(model, Path("reward_model.pt"))         # or .safetensors; rlinf.py reads both again

The network decides the layout, since each of RLinf's three had a network of its own. What its code does before the
first layer is its own too: a model that was trained with another padding or another normalization of pixels is
refused, because RLinf would load it and score something else.
"""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as to_safetensors
from torch import Tensor

from plaudit.data.disk import write_atomic
from plaudit.errors import JudgeError, TargetNotEmpty
from plaudit.judges.calibration import PlattScaling, logit
from plaudit.judges.classifier.checkpoint import RewardModel
from plaudit.judges.classifier.model import ClassifierConfig, module_name

SUFFIXES = (".pt", ".safetensors")
IMAGENET_CLASSES = 1000  # of the last layer that torchvision's ResNets have, and RLinf's keep unused


def export_rlinf(model: RewardModel, path: Path) -> list[str]:
    """Write the file; returns what to know before it is used there, in sentences."""
    if path.suffix not in SUFFIXES:
        raise JudgeError(f"RLinf's reward models are files like reward_model.pt or .safetensors, not {path}")
    if path.exists():
        raise TargetNotEmpty(f"{path} is there already; nothing was written, name another file")
    tensors = rlinf_tensors(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".safetensors":
        write_atomic(path, to_safetensors({name: tensor.clone() for name, tensor in tensors.items()}))
    else:
        today = "backbone.conv1.weight" in tensors and "classifier.1.weight" not in tensors  # a bare state dict
        tree: dict[str, Any] = tensors if today else {"model_state_dict": tensors}
        file = io.BytesIO()
        torch.save(tree, file)
        write_atomic(path, file.getvalue())
    return [threshold_note(model), *_size_notes(model)]


def rlinf_tensors(model: RewardModel) -> dict[str, Tensor]:
    """A model's tensors by RLinf's names; a sentence where RLinf has no such network."""
    check_single_frame(model, "RLinf")
    shape, (member,) = model.classifier, model.members
    layout = _layout(shape)
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in member.state_dict().items()}
    return layout(state, shape)


def rlinf_can_load(model: RewardModel) -> bool:
    """Whether RLinf has a network like this one."""
    try:
        check_single_frame(model, "RLinf")
        _layout(model.classifier)
    except JudgeError:
        return False
    return True


def check_single_frame(model: RewardModel, where: str) -> None:
    """Refuse what neither RLinf nor lerobot has: ensembles, histories, the state, progress."""
    shape = model.classifier
    more = {
        f"an ensemble of {len(model.members)}": len(model.members) > 1,
        "a history of frames": bool(shape.num_history_frames),
        "the robot's state": bool(shape.state_dim),
        "progress": shape.predict_progress,
    }
    for what, has in more.items():
        if has:
            raise JudgeError(f"this reward model has {what}, which {where}'s have not; train one without for {where}")


def threshold_note(model: RewardModel) -> str:
    """Where to decide, of the probability that others compute: the sigmoid of the logit, without the calibration."""
    temperature, bias = model.config.calibration[0]
    raw = float(PlattScaling()((logit(model.threshold) - bias) * temperature))
    return f"decide success at a probability of {raw:.4g} there (threshold {model.threshold:.4g} here)"


def _size_notes(model: RewardModel) -> list[str]:
    shape = model.classifier
    size = shape.image_size
    if size is None:
        height, width = next(iter(shape.cameras.values()))
        return [f"show it images of {height}x{width} there (image_size: [3, {height}, {width}])"]
    exact = shape.resampling == "bilinear" or all(tuple(camera) == tuple(size) for camera in shape.cameras.values())
    note = f"show it images of {size[0]}x{size[1]} there (image_size: [3, {size[0]}, {size[1]}])"
    return [note if exact else f"{note}, resized with antialiasing as here; RLinf's own resizing has none"]


Layout = Callable[[dict[str, Tensor], ClassifierConfig], dict[str, Tensor]]


def _layout(shape: ClassifierConfig) -> Layout:
    encoder = shape.encoder
    if shape.pixel_stats is not None:
        raise JudgeError("this reward model normalizes each camera by itself, which RLinf's do not")
    if encoder.type == "resnet10" and shape.head == "serl":
        _check(shape, "unit")
        return _per_camera
    if shape.head != "serl" and len(shape.cameras) > 1:
        raise JudgeError(f"this reward model sees {len(shape.cameras)} cameras, and RLinf's of this kind one")
    if encoder.type == "resnet10" and shape.head == "mlp":
        _check(shape, "imagenet")
        return _backbone_and_classifier
    if encoder.type == "resnet" and shape.head != "serl":
        return _backbone_alone
    raise JudgeError(
        f"RLinf has no reward model with encoder '{encoder.type}' and head '{shape.head}'; it has resnet10 with 'serl' "
        "or 'mlp', and resnet (resnet18 to resnet152) with 'mlp' or 'linear': train one of these "
        "(plaudit train-reward encoder=resnet head=mlp global_pool_features=true)"
    )


def _check(shape: ClassifierConfig, normalize: str) -> None:
    wanted = {"padding": "torchvision", "normalize": normalize}
    for key, value in wanted.items():
        found = getattr(shape.encoder, key)
        if found != value:
            raise JudgeError(
                f"this reward model was trained with encoder.{key} '{found}', and RLinf's of this kind with '{value}': "
                f"it would score something else there; train it with encoder.padding=torchvision "
                f"encoder.normalize={normalize}"
            )


def _per_camera(state: dict[str, Tensor], shape: ClassifierConfig) -> dict[str, Tensor]:
    """RLinf's first: an encoder a camera, with the head for ImageNet that nobody uses."""
    theirs = {"0.kernel": "pooling_layer.kernel", "2.": "mlp.0.", "3.": "mlp.1."}
    tensors: dict[str, Tensor] = {}
    for camera in sorted(shape.cameras):
        name = module_name(camera)
        for key, tensor in _of(state, "encoder.").items():
            tensors[f"encoders.{name}.resnet_backbone.{key}"] = tensor
        tensors |= _unused(f"encoders.{name}.resnet_backbone.fc", state)
        for key, tensor in _of(state, f"squeezes.{name}.").items():
            part = next(part for part in theirs if key.startswith(part))
            tensors[f"encoders.{name}.{theirs[part]}{key.removeprefix(part)}"] = tensor
    return {**tensors, **{f"classifier.{key}": tensor for key, tensor in _of(state, "head.").items()}}


def _backbone_and_classifier(state: dict[str, Tensor], shape: ClassifierConfig) -> dict[str, Tensor]:
    """That of its ManiSkill recipe."""
    places = {"0.": "classifier.1.", "3.": "classifier.4."}
    tensors = {f"backbone.{key}": tensor for key, tensor in _of(state, "encoder.").items()}
    tensors |= _unused("backbone.fc", state)
    for key, tensor in _of(state, "head.").items():
        tensors[places[key[:2]] + key[2:]] = tensor
    return tensors


def _backbone_alone(state: dict[str, Tensor], shape: ClassifierConfig) -> dict[str, Tensor]:
    """That of today."""
    tensors = {f"backbone.{key}": tensor for key, tensor in _of(state, "encoder.").items()}
    head = "backbone.fc." if shape.head == "mlp" else "backbone.fc"
    for key, tensor in _of(state, "head.").items():
        tensors[head + (key if shape.head == "mlp" else key.removeprefix("0"))] = tensor
    return tensors


def _of(state: dict[str, Tensor], start: str) -> dict[str, Tensor]:
    return {name.removeprefix(start): tensor for name, tensor in state.items() if name.startswith(start)}


def _unused(name: str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    channels = state["encoder.layer4.0.conv2.weight"].shape[0]
    return {f"{name}.weight": torch.zeros(IMAGENET_CLASSES, channels), f"{name}.bias": torch.zeros(IMAGENET_CLASSES)}
