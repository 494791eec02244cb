"""lerobot's reward classifier: its folders read as our models, and our models written as its folders.

    lift_reward_lerobot/
      config.json, model.safetensors               what `Classifier.from_pretrained` loads
      classifier_preprocessor.json, ...            its processors, and the normalizer's numbers
      encoder/                                     our encoder as a model of transformers (lerobot_encoder.py)

The two networks are the same after the encoder, by other names. lerobot's pools grids of 4x4 and no others. Its encoder
is a model of transformers: ResNet-10 of the hub, or one that `model_name` finds on this machine. No code that lies
beside such a model is run here: of those with code of their own, ResNet-10 and our own exports are read.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from plaudit.data.weights import read_safetensors
from plaudit.encoders import NORMALIZATIONS, Channels
from plaudit.encoders.others import TransformersConfig
from plaudit.encoders.resnet import Resnet10Config, rename_resnet10
from plaudit.errors import BadFile, JudgeError
from plaudit.files import Root, read_json_object
from plaudit.judges.classifier.checkpoint import RewardModel, RewardModelConfig, build_classifier
from plaudit.judges.classifier.model import ClassifierConfig, module_name
from plaudit.judges.classifier.rlinf import (
    UNMEASURED,
    Prefixes,
    camera_prefixes,
    check_single_frame,
    columns_by_camera,
    tensor_of,
    threshold_note,
    to_ours,
    to_theirs,
)
from plaudit.registry import ENCODER_REGISTRY
from plaudit.trust import from_file

TYPE = "reward_classifier"
GRID = (4, 4)  # that its embeddings are made for
PREPROCESSOR, NORMALIZER = "classifier_preprocessor", "normalizer_processor"
UNIT = NORMALIZATIONS["unit"]
UNREADABLE = "weights that cannot be read ({}); copy the folder again from its source"
_CODE = "from plaudit.judges.classifier.lerobot_encoder import PlauditEncoder, PlauditEncoderConfig  # noqa: F401\n"

Tree = dict[str, Any]


# Theirs as ours


def load_lerobot_classifier(folder: Path, device: str = "auto") -> RewardModel:
    """The model of a folder with lerobot's config.json and model.safetensors."""
    described = read_json_object(folder / "config.json")
    path = folder / "model.safetensors"
    tensors = read_safetensors(path, UNREADABLE)
    keys = _image_keys(folder, described)
    cameras = {camera_name(key): size for key, size in keys.items()}
    modules = {camera_name(key): key.replace(".", "_") for key in keys}
    kernel = tensor_of(path, tensors, f"encoders.{next(iter(modules.values()))}.1.kernel", 4)
    first = tensor_of(path, tensors, "classifier_head.0.weight", 2)
    # The encoder is one for all cameras, and saved once, by one of its names.
    starts = ("encoder.", *(f"encoders.{name}.0." for name in modules.values()))
    shared: dict[str, Tensor] = {}
    for start in reversed(starts):
        shared |= {name.removeprefix(start): t for name, t in tensors.items() if name.startswith(start)}
    encoder, of_encoder = _encoder(folder, described, shared)
    latent = first.shape[1] // len(cameras)
    stats = _pixel_stats(folder, described, keys)
    shape = ClassifierConfig(
        encoder=encoder,
        cameras=cameras,
        hidden_dim=len(first),
        latent_dim=latent,
        num_spatial_blocks=kernel.shape[3],
        pixel_stats=stats,
    )
    rest = {name: tensor for name, tensor in tensors.items() if not name.startswith(starts)}
    ours = {**of_encoder, **to_ours(rest, _prefixes(modules))}
    head = ours["head.0.weight"]
    if head.shape[1] == latent * len(cameras):
        ours["head.0.weight"] = columns_by_camera(head, list(cameras), sorted(cameras), latent)
    member = build_classifier(shape, ours, path)
    warnings = [UNMEASURED]
    if stats is None and not (folder / "encoder/config.json").is_file():
        warnings.insert(0, f"{folder} has no normalizer: its images are taken as numbers from 0 to 1")
    return RewardModel([member], RewardModelConfig.untested(shape), device, warnings)


def camera_name(key: str) -> str:
    """`observation.images.front` is camera 'front', `observation.image` is 'image'."""
    return key.removeprefix("observation.images.").removeprefix("observation.")


def _image_keys(folder: Path, described: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Its cameras in their order, with (height, width)."""
    if described.get("model_type", "cnn") != "cnn" or described.get("num_classes", 2) != 2:
        kind = f"model_type '{described.get('model_type')}' with {described.get('num_classes')} classes"
        raise BadFile(folder / "config.json", f"a classifier of {kind} is not read; those of 'cnn' with 2 are")
    features = described.get("input_features")
    keys: dict[str, tuple[int, int]] = {}
    for key, feature in features.items() if isinstance(features, dict) else ():
        shape = feature.get("shape") if isinstance(feature, dict) else None
        if not key.startswith("observation.image"):
            continue
        if not isinstance(shape, list) or len(shape) != 3 or not all(type(n) is int and 0 < n < 10_000 for n in shape):
            raise BadFile(folder / "config.json", f"input_features: {key} has no shape of channels, height and width")
        keys[key] = (shape[1], shape[2])
    if not keys:
        raise BadFile(folder / "config.json", "input_features names no camera (observation.images.NAME)")
    return keys


def _encoder(folder: Path, described: Mapping[str, Any], tensors: dict[str, Tensor]) -> tuple[Any, dict[str, Tensor]]:
    """Its config, and its tensors by our names."""
    own = folder / "encoder/config.json"
    name = described.get("model_name")
    if own.is_file():
        tree = read_json_object(own, Root(folder)).get("encoder")
        with from_file(own):
            config = ENCODER_REGISTRY.parse(tree)
        return config, {f"encoder.{name.removeprefix('network.')}": tensor for name, tensor in tensors.items()}
    if "embedder.0.weight" in tensors:
        renamed = rename_resnet10(tensors, folder / "model.safetensors")
        return Resnet10Config(normalize="unit"), {f"encoder.{name}": tensor for name, tensor in renamed.items()}
    if not isinstance(name, str):
        raise BadFile(folder / "config.json", "model_name does not name its encoder")
    with from_file(folder / "config.json"):
        config = TransformersConfig(name=name, mean=UNIT[0], std=UNIT[1]).architecture_config()
    return config, {f"encoder.network.{name}": tensor for name, tensor in tensors.items()}


def _prefixes(modules: Mapping[str, str]) -> Prefixes:
    """Of all that comes after the encoder, our names and lerobot's. modules: camera -> lerobot's module"""
    ours = {module_name(camera): module for camera, module in modules.items()}
    return [("head.", "classifier_head."), *camera_prefixes(ours, "1.kernel", "3.", "4.")]


def _pixel_stats(
    folder: Path, described: Mapping[str, Any], keys: Mapping[str, Any]
) -> dict[str, tuple[Channels, Channels]] | None:
    """Mean and deviation of each camera's pixels; None where there is no normalizer."""
    mapping = described.get("normalization_mapping")
    mode = mapping.get("VISUAL", "IDENTITY") if isinstance(mapping, dict) else "IDENTITY"
    path = folder / f"{PREPROCESSOR}_step_0_{NORMALIZER}.safetensors"
    if mode == "IDENTITY" or not path.is_file():
        return None
    if mode != "MEAN_STD":
        raise BadFile(folder / "config.json", f"images normalized by {mode} are not read; MEAN_STD and IDENTITY are")
    saved = read_safetensors(path, UNREADABLE)
    stats: dict[str, tuple[Channels, Channels]] = {}
    for key in keys:
        numbers = [saved.get(f"{key}.{name}", torch.zeros(0)).double().flatten() * 255 for name in ("mean", "std")]
        if [len(channels) for channels in numbers] != [3, 3]:
            raise BadFile(path, f"it has no mean and std of three channels for {key}; copy the folder again")
        (red, green, blue), (red_std, green_std, blue_std) = (channels.tolist() for channels in numbers)
        stats[camera_name(key)] = (red, green, blue), (red_std, green_std, blue_std)
    return stats


# Ours as theirs


def save_lerobot_classifier(model: RewardModel, folder: Path, target: Path) -> list[str]:
    """Into a folder that is there; returns messages about its use there.

    target: where the folder will lie, which its config.json names
    """
    check_single_frame(model, "lerobot")
    shape, (member,) = model.classifier, model.members
    if shape.head != "serl" or shape.global_pool_features:
        other = f"this reward model has head '{shape.head}' over an averaged grid"
        raise JudgeError(f"{other}, and lerobot's pools a grid of 4x4; train one with head: serl")
    sizes = {camera: tuple(shape.image_size or size) for camera, size in shape.cameras.items()}
    keys = {camera: f"observation.images.{camera}" for camera in sorted(shape.cameras)}
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in member.state_dict().items()}
    tensors = {f"encoder.network.{n.removeprefix('encoder.')}": t for n, t in state.items() if n.startswith("encoder.")}
    for camera in keys:
        grid = tuple(state[f"squeezes.{module_name(camera)}.0.kernel"].shape[1:3])
        if grid != GRID:
            given = f"images of {sizes[camera][0]}x{sizes[camera][1]} give this model {grid[0]}x{grid[1]}"
            raise JudgeError(f"lerobot's pools grids of 4x4, and {given}; train with --image-size 3 128 128")
    modules = {camera: key.replace(".", "_") for camera, key in keys.items()}
    tensors |= to_theirs({n: t for n, t in state.items() if not n.startswith("encoder.")}, _prefixes(modules))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    features = {keys[c]: {"type": "VISUAL", "shape": [3, *sizes[c]]} for c in keys}
    norm_map = {"VISUAL": "IDENTITY" if shape.pixel_stats is None else "MEAN_STD"}
    config = {
        "type": TYPE,
        "input_features": features,
        "output_features": {"next.reward": {"type": "REWARD", "shape": [1]}},
        "device": "cpu",
        "name": TYPE,
        "num_classes": 2,
        "hidden_dim": shape.hidden_dim,
        "latent_dim": shape.latent_dim,
        "image_embedding_pooling_dim": shape.num_spatial_blocks,
        "dropout_rate": shape.dropout,
        "model_name": str(target.absolute() / "encoder"),
        "model_type": "cnn",
        "num_cameras": len(features),
        "push_to_hub": False,
        "normalization_mapping": norm_map,
    }
    _write_json(folder / "config.json", config)
    _write_processors(folder, shape, features, norm_map)
    _write_encoder(folder / "encoder", model)
    images = ", ".join(f"{key} in {sizes[c][0]}x{sizes[c][1]}" for c, key in keys.items())
    return [
        threshold_note(model),
        f"it looks at {images}",
        f"lerobot needs plaudit in the same environment and loads the encoder from {target.absolute() / 'encoder'}: "
        "change model_name in config.json if you move the folder",
    ]


def _write_processors(folder: Path, shape: ClassifierConfig, features: Tree, norm_map: Tree) -> None:
    stats: dict[str, Tensor] = {}
    for camera, (mean, std) in (shape.pixel_stats or {}).items():
        key = f"observation.images.{camera}"
        stats |= {f"{key}.{name}": torch.tensor(v)[:, None, None] / 255 for name, v in (("mean", mean), ("std", std))}
    file = f"{PREPROCESSOR}_step_0_{NORMALIZER}.safetensors"
    config = {"eps": 1e-08, "features": features, "norm_map": norm_map}
    normalizer: Tree = {"registry_name": NORMALIZER, "config": config}
    if stats:
        save_file(stats, folder / file)
        normalizer["state_file"] = file
    device = {"registry_name": "device_processor", "config": {"device": "cpu", "float_dtype": None}}
    _write_json(folder / f"{PREPROCESSOR}.json", {"name": PREPROCESSOR, "steps": [normalizer, device]})
    post = {"name": "classifier_postprocessor", "steps": [device]}
    _write_json(folder / "classifier_postprocessor.json", post)


def _write_encoder(folder: Path, model: RewardModel) -> None:
    """A model of transformers: its config, a line of code that imports our class, and its weights."""
    member, shape = model.members[0], model.self_contained_config().classifier
    own = (member.encoder.mean, member.encoder.std) if shape.pixel_stats is None else UNIT
    folder.mkdir()
    tree = {
        "model_type": "plaudit_encoder",
        "architectures": ["PlauditEncoder"],
        "auto_map": {"AutoConfig": "modeling.PlauditEncoderConfig", "AutoModel": "modeling.PlauditEncoder"},
        "encoder": ENCODER_REGISTRY.dump(shape.encoder),
        "pixel_mean": list(own[0]),
        "pixel_std": list(own[1]),
        "hidden_sizes": [member.encoder.channels],
    }
    _write_json(folder / "config.json", tree)
    (folder / "modeling.py").write_text(_CODE)
    weights = {f"network.{n}": t.detach().cpu().contiguous() for n, t in member.encoder.state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def _write_json(path: Path, tree: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(tree, indent=1))
