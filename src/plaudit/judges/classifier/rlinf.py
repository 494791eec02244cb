"""A reward model as one `.pt` or `.safetensors` file, in the three layouts that RLinf has had, or in ours.

    encoders.CAMERA.resnet_backbone.*, classifier.0, ...     its first: ResNet-10, SERL's embeddings and head
    backbone.*, classifier.1, classifier.4                   its ManiSkill recipe's: ResNet-10 or another, averaged
    backbone.*, backbone.fc or backbone.fc.0, backbone.fc.3  its ResNet of today, averaged
    {epoch, model_state_dict, ..., plaudit}                  ours: any of these, or our names, and model.json in it

Ours describes itself. For RLinf's files, the network is read from the tensors; only the camera's name, the size of the
images and their normalization come from a config. If a config disagrees, the file counts, with a warning. A file with a
missing or an extra tensor is refused.

RLinf's first layout has one encoder per camera and we have one for all: a file whose encoders differ is refused. The
others see a single camera. RLinf has its own padding and normalization, so a model trained with another one is not
written: RLinf would load it and score something else.
"""

import io
import re
from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as to_safetensors
from torch import Tensor

from plaudit.config import parse
from plaudit.data.disk import write_atomic
from plaudit.data.weights import read_safetensors, read_torch
from plaudit.encoders.resnet import BLOCKS, Arch, Resnet10Config, ResnetConfig
from plaudit.errors import BadFile, ConfigError, JudgeError, TargetNotEmpty
from plaudit.files import Root
from plaudit.judges.calibration import PlattScaling, logit
from plaudit.judges.classifier.checkpoint import ANOTHER, RewardModel, RewardModelConfig, build_classifier
from plaudit.judges.classifier.config import RLinfRewardConfig
from plaudit.judges.classifier.model import ClassifierConfig, module_name
from plaudit.judges.epochs import EpochMetrics
from plaudit.trust import from_file

SUFFIXES = (".pt", ".safetensors")
IMAGENET_CLASSES = 1000  # of the last layer that torchvision's ResNets have, and RLinf's keep unused
STRIDE, AXES = 32, ("high", "wide")  # pixels of an image for each cell of a ResNet's grid, rounded up
UNMEASURED = "this model was never measured here: its threshold is 0.5 and nothing is known of its mistakes"


# Names of tensors

Prefixes = list[tuple[str, str]]  # ours, theirs

MANISKILL: Prefixes = [("head.0.", "classifier.1."), ("head.3.", "classifier.4."), ("encoder.", "backbone.")]
RESNET_MLP: Prefixes = [("head.", "backbone.fc."), ("encoder.", "backbone.")]
RESNET_LINEAR: Prefixes = [("head.0.", "backbone.fc."), ("encoder.", "backbone.")]


def camera_prefixes(modules: Mapping[str, str], *theirs: str) -> Prefixes:
    """Of what each camera has of its own. modules: our name of a camera -> theirs; theirs: kernel, linear and norm"""
    parts = list(zip(("0.kernel", "2.", "3."), theirs, strict=True))
    return [(f"squeezes.{c}.{ours}", f"encoders.{m}.{their}") for c, m in modules.items() for ours, their in parts]


def _per_camera(cameras: Sequence[str]) -> Prefixes:
    """RLinf's first layout."""
    encoders = [("encoder.", f"encoders.{camera}.resnet_backbone.") for camera in cameras]
    modules = {camera: camera for camera in cameras}
    return [("head.", "classifier."), *encoders, *camera_prefixes(modules, "pooling_layer.kernel", "mlp.0.", "mlp.1.")]


def to_theirs(tensors: Mapping[str, Tensor], prefixes: Prefixes) -> dict[str, Tensor]:
    """Tensors by their names; one of ours that they have several times is repeated."""
    renamed = {}
    for name, tensor in tensors.items():
        prefix = next((ours for ours, _ in prefixes if name.startswith(ours)), None)
        for theirs in [theirs for ours, theirs in prefixes if ours == prefix]:
            renamed[theirs + name.removeprefix(prefix or "")] = tensor
    return renamed


def to_ours(tensors: Mapping[str, Tensor], prefixes: Prefixes) -> dict[str, Tensor]:
    """Tensors by our names; one without keeps its name, and `build_classifier` refuses it."""
    renamed = {}
    for name, tensor in tensors.items():
        ours, theirs = next(((ours, theirs) for ours, theirs in prefixes if name.startswith(theirs)), ("", ""))
        renamed[ours + name.removeprefix(theirs)] = tensor.detach()
    return renamed


def columns_by_camera(weight: Tensor, given: Sequence[str], wanted: Sequence[str], latent: int) -> Tensor:
    """A head's first layer, whose columns are of these cameras one after the other, for another order of them."""
    places = {camera: number for number, camera in enumerate(given)}
    return torch.cat([weight[:, places[c] * latent : (places[c] + 1) * latent] for c in wanted], dim=1)


# Reading


def load_rlinf_checkpoint(path: Path, config: Mapping[str, Any] | None = None, device: str = "auto") -> RewardModel:
    """Read a file of RLinf's or of ours. config: for RLinf's, the keys of `RLinfRewardConfig`"""
    if not path.is_file():
        raise BadFile(path, "there is no such file; 'plaudit train-reward --output-checkpoint' makes one")
    if path.suffix == ".safetensors":
        message = "weights that cannot be read ({}); copy the file again from its source"
        tree: Any = read_safetensors(path, message, Root.of_named_file(path))
    else:
        tree = read_torch(path, Root.of_named_file(path))
    tensors = tree
    if isinstance(tree, dict):
        tensors = next((tree[key] for key in ("model_state_dict", "state_dict") if key in tree), tree)
    if not isinstance(tensors, dict) or not all(isinstance(tensor, Tensor) for tensor in tensors.values()):
        raise BadFile(path, "this is not a reward model checkpoint: it has no model_state_dict of tensors")
    # Names without what DDP, torch.compile and RLinf's own wrapper put before them.
    tensors = {re.sub(r"^((module|_orig_mod|model)\.)+", "", name): tensor for name, tensor in tensors.items()}
    if "plaudit" not in tree:
        given = parse(RLinfRewardConfig, config or {})
        load = _load_resnet if "backbone.conv1.weight" in tensors else _load_per_camera
        return load(path, tensors, given, device)
    if not isinstance(tree["plaudit"], Mapping):
        raise BadFile(path, "its description is not a mapping of keys to values; train or copy the model again")
    try:
        with from_file(path):
            described = parse(RewardModelConfig, tree["plaudit"])
    except ConfigError as error:
        raise BadFile(path, f"its description does not fit this version of plaudit: {error}") from error
    ours = _our_names(path, tensors, described.classifier.latent_dim)
    return RewardModel([build_classifier(described.classifier, ours, path)], described, device)


def _our_names(path: Path, tensors: Mapping[str, Tensor], latent: int) -> Mapping[str, Tensor]:
    """The tensors by our names, in whichever layout they are. RLinf's unused layers for ImageNet are dropped."""
    if "backbone.conv1.weight" in tensors:
        if "classifier.1.weight" not in tensors:
            return to_ours(tensors, RESNET_LINEAR if "backbone.fc.weight" in tensors else RESNET_MLP)
        return to_ours({n: t for n, t in tensors.items() if not n.startswith("backbone.fc.")}, MANISKILL)
    cameras = _cameras(tensors)
    if not cameras:
        return tensors
    used = {name: tensor for name, tensor in tensors.items() if ".resnet_backbone.fc." not in name}
    first = f"encoders.{cameras[0]}.resnet_backbone."
    for camera in cameras[1:]:
        for name in [name for name in used if name.startswith(first)]:
            twin = name.replace(first, f"encoders.{camera}.resnet_backbone.", 1)
            if twin not in used or not torch.equal(used[name], used[twin]):
                differ = f"cameras '{cameras[0]}' and '{camera}' have encoders of different weights ({twin})"
                raise BadFile(path, f"{differ}; a model here has one for all: train it again with frozen encoders")
    ours = to_ours(used, _per_camera(cameras))
    head = columns_by_camera(ours["head.0.weight"], cameras, sorted(cameras), latent)  # ours are sorted by name
    return {**ours, "head.0.weight": head}


def _cameras(tensors: Mapping[str, Tensor]) -> list[str]:
    """Of RLinf's first layout, in their order."""
    return list(dict.fromkeys(name.split(".")[1] for name in tensors if name.startswith("encoders.")))


def _load_per_camera(path: Path, tensors: Mapping[str, Tensor], config: RLinfRewardConfig, device: str) -> RewardModel:
    cameras = _cameras(tensors)
    if not cameras:
        first = ", ".join(f"'{name}'" for name in list(tensors)[:3])
        raise BadFile(
            path, f"this is neither RLinf's nor Plaudit's reward model; its tensors start with {first or 'nothing'}"
        )
    kernel = tensor_of(path, tensors, f"encoders.{cameras[0]}.pooling_layer.kernel", 4)
    averaged = kernel.shape[1:3] == (1, 1)
    grid = (2, 2) if averaged else (kernel.shape[1], kernel.shape[2])
    size = (STRIDE * grid[0], STRIDE * grid[1]) if config.image_size is None else config.image_size[1:]
    shape = ClassifierConfig(
        encoder=Resnet10Config(padding="torchvision", normalize="unit"),
        cameras=dict.fromkeys(cameras, size),
        hidden_dim=len(tensor_of(path, tensors, "classifier.0.weight", 2)),
        latent_dim=len(tensor_of(path, tensors, f"encoders.{cameras[0]}.mlp.0.weight", 2)),
        num_spatial_blocks=kernel.shape[3],
        global_pool_features=averaged,
        any_size=averaged,
    )
    ours = _our_names(path, tensors, shape.latent_dim)
    cells = tuple(ceil(edge / STRIDE) for edge in size)
    if not averaged and cells != grid:
        edges = " and ".join(f"{STRIDE * (n - 1) + 1} to {STRIDE * n} pixels {name}" for n, name in zip(grid, AXES))
        given = f"images of {size[0]}x{size[1]} give {cells[0]}x{cells[1]}"
        raise BadFile(path, f"it pools grids of {grid[0]}x{grid[1]} and {given}; set image_size to {edges}")
    member = build_classifier(shape, ours, path)
    trained_with = {"use_pretrain": not averaged, "image_keys": tuple(cameras)}
    trained_with |= {"hidden_dim": shape.hidden_dim, "num_spatial_blocks": shape.num_spatial_blocks}
    warnings = [*_differences(trained_with, config), UNMEASURED]
    if config.image_size is None and not averaged and size != (64, 64):
        warnings.insert(0, f"it is taken to see images of {size[0]}x{size[1]}; its file does not say")
    return RewardModel([member], RewardModelConfig.untested(shape), device, warnings)


def _load_resnet(path: Path, tensors: Mapping[str, Tensor], config: RLinfRewardConfig, device: str) -> RewardModel:
    """A ResNet whose averaged grid gives the logit: by one Linear, or two around a ReLU and a Dropout.

    That of today resizes images to one size; the one before took images of any size.
    """
    cameras = config.image_keys or ("main",)  # RLinf's `main_images`, as our import calls it
    if len(cameras) > 1:
        raise BadFile(path, f"this model sees one camera, not {', '.join(cameras)}; name one in image_keys")
    camera = next(iter(cameras))
    normalize = "imagenet" if config.normalize else "unit"
    counts = [
        len({name.split(".")[2] for name in tensors if name.startswith(f"backbone.layer{stage}.")})
        for stage in range(1, 5)
    ]
    blocks, batch_norm = (tuple(counts), "backbone.layer1.0.conv3.weight" in tensors), "backbone.bn1.running_mean"
    arch: Arch | None = next((arch for arch, stages in BLOCKS.items() if stages == blocks), None)
    if counts == [1, 1, 1, 1] and batch_norm not in tensors:
        encoder, name = Resnet10Config(padding="torchvision", normalize=normalize), "resnet10"
    elif arch is not None and batch_norm in tensors:
        encoder, name = ResnetConfig(arch=arch, normalize=normalize), arch
    else:
        raise BadFile(
            path,
            f"its backbone has {counts} blocks, which is not a supported ResNet: {', '.join(BLOCKS)} with batch norm, "
            "resnet10 with group norm",
        )
    today = "classifier.1.weight" not in tensors
    single = today and "backbone.fc.weight" in tensors
    first = "backbone.fc.0.weight" if today else "classifier.1.weight"
    hidden = None if single else len(tensor_of(path, tensors, first, 2))
    size = (config.image_size or (3, 128, 128))[1:]
    shape = ClassifierConfig(
        encoder=encoder,
        cameras={camera: size},
        image_size=size if today else None,
        any_size=True,
        resampling="bilinear",
        hidden_dim=hidden or 1,
        global_pool_features=True,
        head="linear" if single else "mlp",
    )
    member = build_classifier(shape, _our_names(path, tensors, shape.latent_dim), path)
    seen = f" in {size[0]}x{size[1]}" if today else ""
    warnings = [f"it is taken to see camera '{camera}'{seen}; its file does not say"]
    warnings += [*_differences({"arch": name, "hidden_dim": hidden}, config), UNMEASURED]
    return RewardModel([member], RewardModelConfig.untested(shape), device, warnings)


def tensor_of(path: Path, tensors: Mapping[str, Tensor], name: str, dims: int) -> Tensor:
    """A tensor that the shape of the network is read from; BadFile if it is missing."""
    if name not in tensors:
        raise BadFile(path, f"{ANOTHER}: {name} is missing")
    if tensors[name].ndim != dims:
        raise BadFile(path, f"{ANOTHER}: {name} is {list(tensors[name].shape)}, it should have {dims} dimensions")
    return tensors[name]


def _differences(trained_with: Mapping[str, Any], config: RLinfRewardConfig) -> list[str]:
    """Where the config and the checkpoint disagree."""
    given = {name: getattr(config, name) for name in trained_with}
    return [
        f"the config says {name} is {given[name]}, the checkpoint was trained with {value}; the checkpoint is used"
        for name, value in trained_with.items()
        if given[name] not in (None, value)
    ]


# Writing


def save_rlinf_checkpoint(
    path: Path, model: RewardModel, history: Sequence[EpochMetrics], optimizer: Mapping[str, Any]
) -> None:
    """One network, as it was after its best epoch; the optimizer as it was after the last.

    By RLinf's names of the tensors if it has such a network, so that it loads there too, and otherwise by ours.
    """
    try:
        tensors = rlinf_tensors(model)
    except JudgeError:
        (member,) = model.members
        tensors = member.state_dict()
    best = next(epoch for epoch in reversed(history) if epoch.best)
    tree = {
        "epoch": best.epoch,
        "model_state_dict": {name: tensor.detach().cpu() for name, tensor in tensors.items()},
        "optimizer_state_dict": optimizer,
        "train_loss": best.train_loss,
        "train_acc": best.train_acc,
        "plaudit": model.self_contained_config().model_dump(mode="json"),
    }
    _save(path, tree)


def export_rlinf(model: RewardModel, path: Path) -> list[str]:
    """Write a file that RLinf's own code loads; returns notes about its use there."""
    if path.suffix not in SUFFIXES:
        raise JudgeError(f"RLinf's reward models are files like reward_model.pt or .safetensors, not {path}")
    if path.exists():
        raise TargetNotEmpty(f"{path} is there already; nothing was written, name another file")
    tensors = rlinf_tensors(model)
    today = "backbone.conv1.weight" in tensors and "classifier.1.weight" not in tensors  # a bare state dict
    _save(path, tensors if today or path.suffix == ".safetensors" else {"model_state_dict": tensors})
    shape = model.classifier
    height, width = shape.image_size or next(iter(shape.cameras.values()))
    note = f"show it images of {height}x{width} there (image_size: [3, {height}, {width}])"
    resized = shape.image_size is not None and any(size != (height, width) for size in shape.cameras.values())
    if resized and shape.resampling != "bilinear":
        note += ", resized with antialiasing as here; RLinf's own resizing has none"
    return [threshold_note(model), note]


def _save(path: Path, tree: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".safetensors":
        write_atomic(path, to_safetensors({name: tensor.clone() for name, tensor in tree.items()}))
        return
    file = io.BytesIO()
    torch.save(tree, file)
    write_atomic(path, file.getvalue())


def rlinf_tensors(model: RewardModel) -> dict[str, Tensor]:
    """A model's tensors by RLinf's names; an error if RLinf has no such network."""
    check_single_frame(model, "RLinf")
    shape, (member,) = model.classifier, model.members
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in member.state_dict().items()}
    encoder, head = shape.encoder, shape.head
    if shape.pixel_stats is not None:
        raise JudgeError("this reward model normalizes each camera by itself, which RLinf's do not")
    if head != "serl" and len(shape.cameras) > 1:
        raise JudgeError(f"this reward model sees {len(shape.cameras)} cameras, and RLinf's of this kind one")
    if encoder.type == "resnet" and head != "serl":
        return to_theirs(state, RESNET_MLP if head == "mlp" else RESNET_LINEAR)
    if encoder.type != "resnet10" or head == "linear":
        raise JudgeError(
            f"RLinf has no reward model with encoder '{encoder.type}' and head '{head}'; train resnet10 with 'serl' or "
            "'mlp', or resnet with 'mlp' or 'linear' (encoder=resnet head=mlp global_pool_features=true)"
        )
    wanted = {"padding": "torchvision", "normalize": "unit" if head == "serl" else "imagenet"}
    for key, value in wanted.items():
        if getattr(encoder, key) != value:
            raise JudgeError(
                f"RLinf would score something else: encoder.{key} is '{getattr(encoder, key)}' here and '{value}' "
                f"there; train with encoder.padding=torchvision encoder.normalize={wanted['normalize']}"
            )
    cameras = [module_name(camera) for camera in sorted(shape.cameras)]
    layers = [f"encoders.{camera}.resnet_backbone.fc" for camera in cameras] if head == "serl" else ["backbone.fc"]
    unused = {}  # the layer for ImageNet that RLinf keeps
    for layer in layers:
        unused[f"{layer}.weight"] = torch.zeros(IMAGENET_CLASSES, state["encoder.layer4.0.conv2.weight"].shape[0])
        unused[f"{layer}.bias"] = torch.zeros(IMAGENET_CLASSES)
    return unused | to_theirs(state, _per_camera(cameras) if head == "serl" else MANISKILL)


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
    """The threshold for the probability that others compute: the sigmoid of the logit, without the calibration."""
    temperature, bias = model.config.calibration[0]
    raw = float(PlattScaling()((logit(model.threshold) - bias) * temperature))
    return f"decide success at a probability of {raw:.4g} there (threshold {model.threshold:.4g} here)"
