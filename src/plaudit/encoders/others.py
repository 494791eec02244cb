"""Any image network of torchvision or transformers as an encoder, cut off after its last feature map.

    encoder: {type: torchvision, name: resnet18}
    encoder: {type: transformers, name: facebook/dinov2-small, local_files_only: false}

Each package is imported where it is used. Nothing is downloaded unless the config says so (one in a file also needs
--allow-host huggingface.co), and code that comes with a model is never run. Convolutional networks end in a map. Of a
transformer, the tokens of the patches are laid out as the map that they came from.
"""

import inspect
import json
from collections import OrderedDict
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, Self
from urllib.parse import urlparse

import torch
from torch import Tensor, nn

from plaudit.config import LocalFilesOnly
from plaudit.encoders import IMAGENET_MEAN, IMAGENET_STD, Channels, EncoderConfig, PretrainedConfig, features_of
from plaudit.errors import JudgeError, MissingPackage, UnknownName, did_you_mean, import_extra
from plaudit.files import Root, read_json_object

# What torchvision calls the parts that come after the last map.
TORCHVISION_HEADS = ("avgpool", "classifier", "fc", "heads")
# Of a model's description, what says nothing about its shape; the first two may list all classes of ImageNet.
NOT_SHAPE = ("id2label", "label2id", "dtype", "torch_dtype", "_name_or_path")


class TorchvisionConfig(PretrainedConfig):
    """An image network of torchvision."""

    type: Literal["torchvision"] = "torchvision"
    name: str  # as `torchvision.models.list_models()` gives it: resnet18, efficientnet_b0, convnext_tiny, ...
    weights: str | None = "DEFAULT"  # a name of torchvision's weights for it; None: random
    local_files_only: LocalFilesOnly = True  # false: fetch the weights when they are not on this machine

    def build(self, *, pretrained: bool = True) -> "TorchvisionEncoder":
        try:
            models = import_module("torchvision.models")
        except ImportError as error:
            release = f"torchvision (the release made for torch {torch.__version__})"
            raise MissingPackage("torchvision", release) from error
        names = models.list_models(module=models)
        if self.name not in names:
            raise UnknownName(f"torchvision has no image network '{self.name}'; {did_you_mean(self.name, names)}")
        weights = self._weights(models) if pretrained and self.weights is not None else None
        return TorchvisionEncoder(self.name, models.get_model(self.name, weights=weights))

    def _weights(self, models: ModuleType) -> Any:
        published = models.get_model_weights(self.name)
        if self.weights not in published.__members__:
            suggestion = did_you_mean(str(self.weights), published.__members__)
            raise UnknownName(f"torchvision has no weights '{self.weights}' of {self.name}; {suggestion}")
        weights = published[self.weights]
        file = Path(torch.hub.get_dir()) / "checkpoints" / Path(urlparse(weights.url).path).name
        if self.local_files_only and not file.is_file():
            missing = f"the weights of torchvision's {self.name} are not on this machine ({file})"
            raise JudgeError(f"{missing}; set local_files_only: false, or put {weights.url} there")
        return weights

    def architecture_config(self) -> Self:
        return super().architecture_config().model_copy(update={"local_files_only": True})


class TorchvisionEncoder(nn.Module):
    """The children of the network up to its pooling, one after the other."""

    # All of torchvision's image networks are normalized alike.
    mean: Channels = IMAGENET_MEAN
    std: Channels = IMAGENET_STD

    def __init__(self, name: str, network: nn.Module):
        super().__init__()
        body: OrderedDict[str, nn.Module] = OrderedDict()
        for part, module in network.named_children():
            if part in TORCHVISION_HEADS:
                break
            body[part] = module
        self.body = nn.Sequential(body)
        try:
            features = features_of(self, (224, 224))
        except (RuntimeError, TypeError, AssertionError) as error:
            raise JudgeError(_no_map(f"torchvision's {name}", str(error).split("\n")[0])) from error
        if len(features) != 4:
            raise JudgeError(_no_map(f"torchvision's {name}", f"it gives {list(features)}"))
        self.channels = features[1]

    def forward(self, images: Tensor) -> Tensor:
        return self.body(images)


class TransformersConfig(EncoderConfig):
    """An image network of transformers."""

    type: Literal["transformers"] = "transformers"
    name: str  # a folder, or the name of a model on the hub
    local_files_only: LocalFilesOnly = True  # false: fetch it from the hub when it is not on this machine
    # Of the pixels, 0 to 255; None: as the model's own preprocessing has it.
    mean: Channels | None = None
    std: Channels | None = None  # deviation of each color channel; None: that of the model
    # The model's own description, which takes the place of the folder when a saved reward model is built again.
    architecture: dict[str, Any] | None = None

    @property
    def pretrained(self) -> bool:
        return self.architecture is None

    def build(self, *, pretrained: bool = True) -> "TransformersEncoder":
        transformers = import_extra("transformers", "vision")
        described = self.architecture_config()
        assert described.architecture is not None and described.mean is not None and described.std is not None
        config = transformers.AutoConfig.for_model(**described.architecture)
        if not pretrained or not self.pretrained:
            network = transformers.AutoModel.from_config(config)
            return TransformersEncoder(self.name, network, described.mean, described.std)
        network, report = self._from_folder(transformers.AutoModel, config=config, output_loading_info=True)
        # The pooler comes after the last map, and many files are without.
        missing = sorted(name for name in report["missing_keys"] if not name.startswith("pooler."))
        if missing:
            lack = f"lack {len(missing)} tensors of its vision network, '{missing[0]}' first"
            raise JudgeError(f"the weights of '{self.name}' {lack}; name a folder with the weights of a whole one")
        return TransformersEncoder(self.name, network, described.mean, described.std)

    def architecture_config(self) -> Self:
        if self.architecture is not None:
            return self
        described = self._from_folder(import_extra("transformers", "vision").AutoConfig)
        tree = json.loads(described.to_json_string(use_diff=False))
        tree = tree.get("vision_config", tree)  # of CLIP, SigLIP and their like, the half that sees
        mean, std = (self.mean, self.std) if self.mean is not None and self.std is not None else self._preprocessing()
        architecture = {key: value for key, value in tree.items() if key not in NOT_SHAPE}
        return self.model_copy(
            update={"architecture": architecture, "mean": mean, "std": std, "local_files_only": True},
        )

    def _from_folder(self, loader: Any, **options: Any) -> Any:
        advice = (
            "name a folder with config.json and weights, or set local_files_only: false for a model of the hub. Models "
            "that bring code of their own are not run"
        )
        return from_hub(loader, self.name, local_files_only=self.local_files_only, advice=advice, **options)

    def _preprocessing(self) -> tuple[Channels, Channels]:
        """Mean and deviation of pixels, from the file next to the weights.

        It is read here, because transformers' own reader of it needs torchvision.
        """
        cached_file = import_module("transformers.utils").cached_file
        for file in ("preprocessor_config.json", "processor_config.json"):
            path = cached_file(
                self.name,
                file,
                local_files_only=self.local_files_only,
                _raise_exceptions_for_gated_repo=False,
                _raise_exceptions_for_missing_entries=False,
                _raise_exceptions_for_connection_errors=False,
            )
            tree = {} if path is None else read_json_object(Path(path))
            tree = tree.get("image_processor", tree)
            if "image_mean" in tree and "image_std" in tree:
                scale = tree.get("rescale_factor", 1 / 255) if tree.get("do_rescale", True) else 1.0
                return _pixels(tree["image_mean"], scale), _pixels(tree["image_std"], scale)
        missing = f"'{self.name}' has no preprocessor_config.json with image_mean and image_std"
        raise JudgeError(f"{missing}; set mean and std in the config (of pixels, 0 to 255)")


class TransformersEncoder(nn.Module):
    """The last hidden state of a network, as a map."""

    def __init__(self, name: str, network: Any, mean: Channels, std: Channels):
        super().__init__()
        self.name, self.mean, self.std = name, mean, std
        self.network = network.float()
        config = network.config.to_dict()
        self.patch = _pair(config["patch_size"]) if "patch_size" in config else None
        # Positions are learned for images of one size; some networks stretch them to others only when told.
        stretches = "interpolate_pos_encoding" in inspect.signature(network.forward).parameters
        self.options = {"interpolate_pos_encoding": True} if stretches else {}
        self.channels = features_of(self, _pair(config.get("image_size", 224)))[1]

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.network(pixel_values=images, **self.options).last_hidden_state
        if tokens.ndim == 4:  # a map already
            return tokens
        # Tokens [B, some + h * w, C], those of the patches last, to [B, C, h, w].
        if self.patch is None:
            raise JudgeError(_no_map(f"'{self.name}'", "its tokens are not of patches"))
        h, w = images.shape[2] // self.patch[0], images.shape[3] // self.patch[1]
        if tokens.shape[1] < h * w:
            raise JudgeError(_no_map(f"'{self.name}'", f"it gives {tokens.shape[1]} tokens for {h}x{w} patches"))
        return tokens[:, tokens.shape[1] - h * w :].transpose(1, 2).unflatten(2, (h, w))


def from_hub(loader: Any, name: str, *, local_files_only: bool, advice: str, **options: Any) -> Any:
    """Load a folder, or a model of the hub, by a class of transformers. Code that comes with a model is never run.

    advice: what to do if it cannot be loaded
    """
    if Path(name).is_dir():
        Root(Path(name)).check_files()
    try:
        return loader.from_pretrained(name, local_files_only=local_files_only, trust_remote_code=False, **options)
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        reason = " ".join(next((line for line in str(error).splitlines() if line.strip()), "").split())
        if local_files_only and "couldn't connect" in reason:  # it has not tried to
            reason = "it is neither a local folder nor a model that was downloaded before"
        raise JudgeError(f"transformers cannot load '{name}' ({reason}); {advice}") from error


def _no_map(network: str, why: str) -> str:
    return (
        f"{network} does not end in a map of features ({why}). Use one that does (ResNet, ConvNeXt, EfficientNet, ...) "
        "or, with transformers, one with a token for each patch (ViT, DINOv2, SigLIP)"
    )


def _pixels(values: list[float], scale: float) -> Channels:
    red, green, blue = (value / scale for value in values)
    return red, green, blue


def _pair(size: int | list[int] | tuple[int, int]) -> tuple[int, int]:
    if isinstance(size, int):
        return size, size
    height, width = size
    return height, width
