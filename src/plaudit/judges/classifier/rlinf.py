"""A reward model as one `.pt` or `.safetensors` file, in the three layouts that RLinf has had, or in ours.

    encoders.CAMERA.resnet_backbone.*, classifier.0, ...     its first: ResNet-10, SERL's embeddings and head
    backbone.*, classifier.1, classifier.4                   its ManiSkill recipe's: ResNet-10 or another, averaged
    backbone.*, backbone.fc or backbone.fc.0, backbone.fc.3  its ResNet of today, averaged
    {epoch, model_state_dict, ..., plaudit}                  ours: any of these, or our names, and model.json in it

Ours describes itself. Of RLinf's, everything but the camera's name, the size of the images and their normalization is
read off the tensors: networks, widths, and whether the encoder's grid was averaged first (`use_pretrain: false` there),
which is so where its pooling kernel has a single cell. Where a config says otherwise, the file counts and there is a
warning. Such a model has no metrics. A file with a tensor too few or too many is refused.

RLinf's first has an encoder a camera and we have one for all: a file whose encoders differ, because they were trained
and not frozen, is refused. The others see a single camera. rlinf_export.py writes these layouts.
"""

import io
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as to_safetensors
from torch import Tensor, nn

from plaudit.allocation import fitting, numbers_at_most
from plaudit.config import Config, Edge, Width, parse
from plaudit.data.disk import write_atomic
from plaudit.errors import BadFile, ConfigError, JudgeError, TargetNotEmpty
from plaudit.judges.calibration import PlattScaling, logit
from plaudit.judges.classifier.checkpoint import (
    RewardModel,
    RewardModelConfig,
    load_state_dict_strict,
)
from plaudit.judges.classifier.encoders import feature_map_size
from plaudit.judges.classifier.encoders.resnet import BLOCKS, Arch, Resnet10Config, ResnetConfig
from plaudit.judges.classifier.model import BinaryRewardClassifier, ClassifierConfig, module_name
from plaudit.judges.epochs import EpochMetrics
from plaudit.torch_file import read_safetensors, read_torch
from plaudit.trust import from_file
from plaudit.untrusted import Root

LARGEST = 256  # pixels of an edge that is thought of


class RLinfRewardConfig(Config):
    """What RLinf's configs say of a checkpoint; None where they do not."""

    image_keys: tuple[str, ...] | None = None
    # Channels, height, width; None: what RLinf's recipes have, 64x64 for its first model and 128x128 for its ResNet.
    image_size: tuple[Edge, Edge, Edge] | None = None
    arch: str | None = None
    normalize: bool = True  # of its ResNet: whether by the mean and deviation of ImageNet
    hidden_dim: Width | None = None
    num_spatial_blocks: Width | None = None
    use_pretrain: bool | None = None
    freeze_encoder: bool | None = None  # of training; nothing learns here
    pretrained_encoder_path: Path | None = None  # the checkpoint's own weights count


def save_rlinf_checkpoint(
    path: Path, model: RewardModel, history: Sequence[EpochMetrics], optimizer: Mapping[str, Any]
) -> None:
    """One network, as it was after its best epoch; the optimizer as it was after the last.

    By RLinf's names of the tensors where it has such a network, so that it loads there too, and by ours where not.
    """
    (member,) = model.members
    tensors = rlinf_tensors(model) if rlinf_can_load(model) else member.state_dict()
    best = next(epoch for epoch in reversed(history) if epoch.best)
    tree = {
        "epoch": best.epoch,
        "model_state_dict": {name: tensor.detach().cpu() for name, tensor in tensors.items()},
        "optimizer_state_dict": optimizer,
        "train_loss": best.train_loss,
        "train_acc": best.train_acc,
        "plaudit": model.self_contained_config().model_dump(mode="json"),
    }
    file = io.BytesIO()
    torch.save(tree, file)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, file.getvalue())


def load_rlinf_checkpoint(path: Path, config: Mapping[str, Any] | None = None, device: str = "auto") -> RewardModel:
    """
    config: of RLinf's files, what `RLinfRewardConfig` has
    """
    if not path.is_file():
        raise BadFile(path, "there is no such file; 'plaudit train-reward --output-checkpoint' makes one")
    tree, tensors = _read(path)
    bare = {_without_wrappers(name): tensor for name, tensor in tensors.items()}
    if "plaudit" in tree:
        return _ours(path, tree["plaudit"], bare, device)
    given = parse(RLinfRewardConfig, config or {})
    if "backbone.conv1.weight" in bare:
        return _rlinf_resnet(path, bare, given, device)
    return _rlinf(path, bare, given, device)


def _read(path: Path) -> tuple[Mapping[str, Any], Mapping[str, Tensor]]:
    """All that a file holds, and of that the network's tensors."""
    if path.suffix == ".safetensors":
        message = "weights that cannot be read ({}); copy the file again from its source"
        tree: Any = read_safetensors(path, message, Root.of_named_file(path))
    else:
        tree = read_torch(path, Root.of_named_file(path))
    tensors = tree
    if isinstance(tree, dict):
        tensors = next((tree[key] for key in ("model_state_dict", "state_dict") if key in tree), tree)
    if not isinstance(tensors, dict) or not all(isinstance(tensor, Tensor) for tensor in tensors.values()):
        raise BadFile(path, "this is no checkpoint of a reward model: it has no model_state_dict of tensors")
    return tree, tensors


def _without_wrappers(name: str) -> str:
    """What DDP, torch.compile and RLinf's own wrapper put before a name."""
    for prefix in ("module.", "_orig_mod.", "model."):
        if name.startswith(prefix):
            return _without_wrappers(name.removeprefix(prefix))
    return name


def _ours(path: Path, described: Any, tensors: Mapping[str, Tensor], device: str) -> RewardModel:
    if not isinstance(described, Mapping):
        raise BadFile(path, "its description is no mapping of keys to values; train or copy the model again")
    try:
        with from_file(path):
            config = parse(RewardModelConfig, described)
    except ConfigError as error:
        raise BadFile(path, f"its description does not fit this version of plaudit: {error}") from error
    with numbers_at_most(fitting(tensor.shape for tensor in tensors.values()), path):
        member = BinaryRewardClassifier(config.classifier, config.classifier.encoder.build(pretrained=False))
    load_state_dict_strict(member, our_names(path, tensors, config.classifier), path)
    return RewardModel([member], config, device)


def our_names(path: Path, tensors: Mapping[str, Tensor], shape: ClassifierConfig) -> Mapping[str, Tensor]:
    """The tensors of a network of this shape by our names, in whichever layout they are."""
    if "backbone.conv1.weight" in tensors:
        return _rename_backbone(tensors)
    cameras = _cameras(tensors)
    if not cameras:
        return tensors
    _same_encoder(path, tensors, cameras)
    return _rename_tensors(tensors, cameras, shape.latent_dim)


def _cameras(tensors: Mapping[str, Tensor]) -> list[str]:
    """Of RLinf's first layout, in their order."""
    return list(dict.fromkeys(name.split(".")[1] for name in tensors if name.startswith("encoders.")))


def _rlinf(path: Path, tensors: Mapping[str, Tensor], config: RLinfRewardConfig, device: str) -> RewardModel:
    cameras = _cameras(tensors)
    if not cameras:
        first = ", ".join(f"'{name}'" for name in list(tensors)[:3])
        raise BadFile(path, f"this is no reward model of RLinf or of ours; its tensors start with {first or 'nothing'}")
    kernel = _tensor(path, tensors, f"encoders.{cameras[0]}.pooling_layer.kernel", 4)
    averaged = kernel.shape[1:3] == (1, 1)
    grid = (2, 2) if averaged else (kernel.shape[1], kernel.shape[2])
    size = (32 * grid[0], 32 * grid[1]) if config.image_size is None else config.image_size[1:]
    shape = ClassifierConfig(
        encoder=Resnet10Config(padding="torchvision", normalize="unit"),
        cameras=dict.fromkeys(cameras, size),
        hidden_dim=len(_tensor(path, tensors, "classifier.0.weight", 2)),
        latent_dim=len(_tensor(path, tensors, f"encoders.{cameras[0]}.mlp.0.weight", 2)),
        num_spatial_blocks=kernel.shape[3],
        global_pool_features=averaged,
        any_size=averaged,
    )
    ours = our_names(path, tensors, shape)
    with numbers_at_most(fitting(tensor.shape for tensor in ours.values()), path):
        encoder = shape.encoder.build(pretrained=False)
        if not averaged:
            _check_size(path, encoder, size, grid)
        member = BinaryRewardClassifier(shape, encoder)
    load_state_dict_strict(member, ours, path)
    found = {
        "use_pretrain": not averaged,
        "hidden_dim": shape.hidden_dim,
        "num_spatial_blocks": shape.num_spatial_blocks,
        "image_keys": tuple(cameras),
    }
    warnings = _warnings(found, config)
    if config.image_size is None and not averaged and size != (64, 64):
        warnings.insert(0, f"it is taken to see images of {size[0]}x{size[1]}; its file does not say")
    return RewardModel([member], RewardModelConfig.untested(shape), device, warnings)


def _rlinf_resnet(path: Path, tensors: Mapping[str, Tensor], config: RLinfRewardConfig, device: str) -> RewardModel:
    """A ResNet whose averaged grid gives the logit: by one Linear, or two around a ReLU and a Dropout.

    That of today resizes what it is shown to one size; the one before took frames of any size as they were.
    """
    (camera,) = _one_camera(path, config)
    today = "classifier.1.weight" not in tensors
    encoder, arch = _backbone(path, tensors, config)
    single = today and "backbone.fc.weight" in tensors
    first = "backbone.fc.0.weight" if today else "classifier.1.weight"
    hidden = None if single else len(_tensor(path, tensors, first, 2))
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
    member = BinaryRewardClassifier(shape)
    load_state_dict_strict(member, _rename_backbone(tensors), path)
    seen = f" in {size[0]}x{size[1]}" if today else ""
    warnings = [f"it is taken to see camera '{camera}'{seen}; its file does not say"]
    warnings += _warnings({"arch": arch, "hidden_dim": hidden}, config)
    return RewardModel([member], RewardModelConfig.untested(shape), device, warnings)


def _backbone(
    path: Path, tensors: Mapping[str, Tensor], config: RLinfRewardConfig
) -> tuple[Resnet10Config | ResnetConfig, str]:
    """ResNet-10 with group norm, or one of torchvision's with batch norm."""
    normalize = "imagenet" if config.normalize else "unit"
    blocks = [_blocks(tensors, stage) for stage in range(1, 5)]
    if blocks == [1, 1, 1, 1] and "backbone.bn1.running_mean" not in tensors:
        return Resnet10Config(padding="torchvision", normalize=normalize), "resnet10"
    arch = _arch(path, tensors, blocks)
    return ResnetConfig(arch=arch, normalize=normalize), arch


def _blocks(tensors: Mapping[str, Tensor], stage: int) -> int:
    return len({name.split(".")[2] for name in tensors if name.startswith(f"backbone.layer{stage}.")})


def _rename_backbone(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """By our names. Where the head has layers of its own, the backbone's is one of ImageNet, which nobody uses."""
    places = {"backbone.fc.": "head.0." if "backbone.fc.weight" in tensors else "head.", "backbone.": "encoder."}
    if "classifier.1.weight" in tensors:
        places = {"classifier.1.": "head.0.", "classifier.4.": "head.3.", "backbone.": "encoder."}
        tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith("backbone.fc.")}
    ours = {}
    for name, tensor in tensors.items():
        theirs = next((place for place in places if name.startswith(place)), "")
        ours[places.get(theirs, "") + name.removeprefix(theirs)] = tensor
    return ours


def _one_camera(path: Path, config: RLinfRewardConfig) -> tuple[str, ...]:
    cameras = config.image_keys or ("main",)  # RLinf's `main_images`, as our import calls it
    if len(cameras) > 1:
        raise BadFile(path, f"this model sees one camera, not {', '.join(cameras)}; name one in image_keys")
    return cameras


def _arch(path: Path, tensors: Mapping[str, Tensor], counts: list[int]) -> Arch:
    """By how many blocks each stage has, and of how many convolutions."""
    found = tuple(counts), "backbone.layer1.0.conv3.weight" in tensors
    arch: Arch | None = next((arch for arch, blocks in BLOCKS.items() if blocks == found), None)
    if arch is None or "backbone.bn1.running_mean" not in tensors:
        raise BadFile(
            path,
            f"its backbone has {counts} blocks, which is no ResNet that is read: {', '.join(BLOCKS)} with batch norm, "
            "resnet10 with group norm",
        )
    return arch


def _rename_tensors(tensors: Mapping[str, Tensor], cameras: list[str], latent: int) -> dict[str, Tensor]:
    """By our names; those without one keep theirs, for `load_state_dict_strict` to refuse. Our cameras are in
    alphabetical order."""
    ours: dict[str, Tensor] = {}
    parts = {"pooling_layer.kernel": "0.kernel", "mlp.0.": "2.", "mlp.1.": "3."}
    for name, tensor in tensors.items():
        start, _, rest = name.partition(".")
        camera, _, inner = rest.partition(".")
        if start == "classifier":
            name = f"head.{rest}"
        elif inner.startswith("resnet_backbone."):
            inner = inner.removeprefix("resnet_backbone.")
            if camera != cameras[0] or inner.startswith("fc."):
                continue  # the same once more; the head of a classifier of ImageNet
            name = f"encoder.{inner}"
        elif start == "encoders":
            known = next((part for part in parts if inner.startswith(part)), None)
            name = name if known is None else f"squeezes.{camera}.{parts[known]}{inner.removeprefix(known)}"
        ours[name] = tensor.detach()
    return {**ours, "head.0.weight": columns_by_camera(ours["head.0.weight"], cameras, sorted(cameras), latent)}


def columns_by_camera(weight: Tensor, given: Sequence[str], wanted: Sequence[str], latent: int) -> Tensor:
    """A head's first layer, whose columns are of these cameras one after the other, for another order of them."""
    places = {camera: number for number, camera in enumerate(given)}
    return torch.cat([weight[:, places[c] * latent : (places[c] + 1) * latent] for c in wanted], dim=1)


def _tensor(path: Path, tensors: Mapping[str, Tensor], name: str, dims: int) -> Tensor:
    if name not in tensors:
        raise BadFile(path, f"these are weights of another network: {name} is missing")
    if tensors[name].ndim != dims:
        found = list(tensors[name].shape)
        raise BadFile(
            path, f"these are weights of another network: {name} is {found}, it should have {dims} dimensions"
        )
    return tensors[name]


def _same_encoder(path: Path, tensors: Mapping[str, Tensor], cameras: list[str]) -> None:
    for camera in cameras[1:]:
        for name, tensor in tensors.items():
            one, other = f"encoders.{cameras[0]}.resnet_backbone.", f"encoders.{camera}.resnet_backbone."
            twin = name.replace(one, other, 1)
            if name.startswith(one) and ".fc." not in name and not _equal(tensor, tensors.get(twin)):
                raise BadFile(
                    path,
                    f"cameras '{cameras[0]}' and '{camera}' have encoders of different weights ({twin}); a model here "
                    "has one for all: train it again with frozen encoders, or with 'plaudit train-reward'",
                )


def _equal(one: Tensor, other: Tensor | None) -> bool:
    return other is not None and one.shape == other.shape and bool((one == other).all())


def _check_size(path: Path, encoder: nn.Module, size: tuple[int, int], grid: tuple[int, int]) -> None:
    found = feature_map_size(encoder, size)
    if found == grid:
        return
    heights, widths = (sizes_for_grid(encoder, cells) for cells in grid)
    fitting = f"{heights[0]} to {heights[1]} pixels"
    if heights != widths:
        fitting = f"{heights[0]} to {heights[1]} pixels high and {widths[0]} to {widths[1]} wide"
    raise BadFile(
        path,
        f"this model pools grids of {grid[0]}x{grid[1]} and images of {size[0]}x{size[1]} give {found[0]}x{found[1]}; "
        f"set image_size to what it was trained on, which was {fitting}",
    )


def sizes_for_grid(encoder: nn.Module, cells: int) -> tuple[int, int]:
    """The smallest and the largest edge of an image, in pixels, that this encoder turns into so many cells."""
    edges = range(1, LARGEST + 1)

    def cells_of(edge: int) -> int:
        return feature_map_size(encoder, (edge, 1))[0]  # the cells of one edge do not depend on the other

    return edges[bisect_left(edges, cells, key=cells_of)], edges[bisect_right(edges, cells, key=cells_of) - 1]


def _warnings(found: Mapping[str, Any], config: RLinfRewardConfig) -> list[str]:
    """Where the config and the checkpoint disagree."""
    given = {name: getattr(config, name) for name in found}
    different = [
        f"the config says {name} is {given[name]}, the checkpoint was trained with {value}; the checkpoint is used"
        for name, value in found.items()
        if given[name] not in (None, value)
    ]
    return [*different, "this model was never measured here: its threshold is 0.5 and nothing is known of its mistakes"]


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
