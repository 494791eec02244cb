"""A trained reward model: a folder that describes itself, and the object that scores with it.

    lift_reward/
      model.json             network, preprocessing, cameras, calibration, threshold, scores, controls, data
      member_0.safetensors   weights; further members of an ensemble leave out an encoder that they share
      ood.safetensors        what the training episodes look like, to detect others (ood.py)
      report.html            what to look at before using it

    model = RewardModel.from_pretrained("lift_reward")
    model.score_episode(episode).success_prob # [T+1] P(success) of each frame
    ClassifierJudge(model)                    # the same as a judge, of stored episodes and live (judge.py)

Frames of another size, a missing camera and weights of another network are refused. A model that failed a control is
loaded only when forced.
"""

import copy
import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from pydantic import Field, model_validator
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from plaudit.config import Config, FrameOffset, Number, PositiveFloat, load
from plaudit.data.weights import fitting, numbers_at_most, read_safetensors
from plaudit.devices import resolve_device, tf32, to_channels_last
from plaudit.encoders import EncodedFrames, weights_digest
from plaudit.errors import BadFile, JudgeError
from plaudit.files import Root
from plaudit.judges.calibration import EnsembleCalibration, PlattScaling
from plaudit.judges.certificate import ControlResult, failed_controls
from plaudit.judges.classifier.model import BinaryRewardClassifier, ClassifierConfig, Size, mini_batch
from plaudit.judges.classifier.ood import EpisodeView, OodDetector, compared_frames, pooled, start_cells
from plaudit.judges.config import TrainingDataInfo
from plaudit.judges.guarantee import Forecast, Guarantee
from plaudit.types import AnyArray, Episode, FloatArray, Scores, name_of_camera

ANOTHER = "these are weights of another network"
OOD_FILE = "ood.safetensors"
OLD_OOD_FILE = "familiar.safetensors"  # its name in models of earlier versions

Images = AnyArray | Tensor  # uint8 [B, H, W, 3]; a tensor may lie in pinned memory, or on the GPU already


class RewardModelConfig(Config):
    """The contents of model.json."""

    format: Literal[1] = 1
    classifier: ClassifierConfig
    frozen_encoder: bool  # whether all of it stood still in training, and is one for all members
    calibration: tuple[tuple[PositiveFloat, Number], ...] = Field(min_length=1)  # temperature and bias of each member
    ensemble_calibration: tuple[PositiveFloat, Number] = (1.0, 0.0)  # and of the lowest of several
    threshold: dict[str, Number]  # value, and the false-positive rate it was chosen for and showed
    promise: Guarantee | None = None  # about its false positives on new episodes; None: not measured
    forecast: Forecast | None = None  # what other episodes will show; None: not measured
    cutoff_offset: FrameOffset = 0  # frames that its decoded cutoffs are late by, and which are taken off
    scores: dict[str, Any]  # on held-out episodes
    # There, of a model of progress: the correlation with time up to the first success.
    value_order: float | None = Field(default=None, ge=-1, le=1)
    controls: tuple[ControlResult, ...]
    problems: tuple[str, ...]  # why it should not be trusted; () for none
    data: TrainingDataInfo
    training: dict[str, Any]  # config, epochs, seconds, versions

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.threshold.get("value", 0) <= 0:
            raise ValueError("'threshold' has no 'value' above 0; train or copy the model again")
        failed = failed_controls(self.controls)
        if failed and not self.problems:
            raise ValueError(f"it names no problem, although a control failed ({failed[0]}); train or copy it again")
        return self

    @classmethod
    def untested(
        cls,
        classifier: ClassifierConfig,
        *,
        frozen_encoder: bool = True,
        members: int = 1,
        threshold: float = 0.5,
        data: TrainingDataInfo | None = None,
    ) -> Self:
        """Metadata of a model that was not evaluated."""
        return cls(
            classifier=classifier,
            frozen_encoder=frozen_encoder,
            calibration=((1.0, 0.0),) * members,
            threshold={"value": threshold},
            scores={},
            controls=(),
            problems=(),
            data=data or TrainingDataInfo(fingerprint="unknown", episodes={}, frames={}, sources=()),
            training={},
        )


class RewardModel:
    """Scores frames. Build with `from_pretrained`, or from what a training returned."""

    def __init__(
        self,
        members: Sequence[BinaryRewardClassifier],
        config: RewardModelConfig,
        device: str = "auto",
        warnings: Sequence[str] = (),
        ood: OodDetector | None = None,
    ):
        """
        warnings: what was assumed about a file that does not describe itself
        ood: by which it tells episodes that are out of distribution; None: it cannot
        """
        if len(members) != len(config.calibration):
            raise JudgeError(f"{len(members)} members with {len(config.calibration)} calibrations")
        self.config, self.members, self.warnings = config, list(members), tuple(warnings)
        self.classifier = config.classifier
        self.cameras: Mapping[str, Size] = config.classifier.cameras
        self.predicts_progress = config.classifier.predict_progress
        self.threshold = config.threshold["value"]
        self.mini_batch: int | None = None  # images of a camera scored at a time; None: as suits the device
        members_scaling = tuple(PlattScaling(temperature=t, bias=b) for t, b in config.calibration)
        temperature, bias = config.ensemble_calibration
        self._calibration = EnsembleCalibration(members_scaling, PlattScaling(temperature=temperature, bias=bias))
        self.to_device(device)
        self.ood = ood

    @cached_property
    def fingerprint(self) -> str:
        """Of its weights and of everything else that its scores depend on."""
        return _fingerprint(self.members, self.self_contained_config())

    @classmethod
    def from_pretrained(cls, folder: str | Path, device: str = "auto", *, force: bool = False) -> "RewardModel":
        """Of a model's folder; `plaudit.judges.classifier.judge.load_reward_model` reads a single .pt file too.

        force: load a model although it failed a control
        """
        folder = Path(folder)
        if not (folder / "model.json").is_file():
            raise BadFile(folder, "this is not a reward model: it has no model.json; 'plaudit train-reward' makes one")
        config = load(RewardModelConfig, folder / "model.json", root=Root(folder))
        check_controls_passed(folder, config, force)
        members: list[BinaryRewardClassifier] = []
        for number in range(len(config.calibration)):
            shared = config.frozen_encoder and bool(members)
            path = folder / f"member_{number}.safetensors"
            tensors = read_safetensors(path, "weights that cannot be read ({}); train or copy the model again")
            encoder = members[0].encoder if shared else None
            members.append(build_classifier(config.classifier, tensors, path, encoder, folder / "model.json"))
        model = cls(members, config, device)
        ood_file = next((path for name in (OOD_FILE, OLD_OOD_FILE) if (path := folder / name).exists()), None)
        if ood_file is None:
            return model
        blank = {camera: np.zeros((1, *size, 3), np.uint8) for camera, size in model.cameras.items()}
        width = model.features(blank).shape[1]
        return model.with_ood(OodDetector.load(ood_file, width, len(model.cameras)))

    def save_pretrained(self, folder: Path) -> None:
        """Write into an existing folder; see `plaudit.data.transfer.new_folder` for an atomic one."""
        for number, member in enumerate(self.members):
            tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in member.state_dict().items()}
            if self.config.frozen_encoder and number:
                tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith("encoder.")}
            save_file(tensors, folder / f"member_{number}.safetensors")
        if self.ood is not None:
            save_file(self.ood.tensors(), folder / OOD_FILE)
        (folder / "model.json").write_text(self.self_contained_config().model_dump_json(indent=1))

    def with_ood(self, ood: OodDetector) -> "RewardModel":
        """The same model with a detector of episodes that are out of distribution."""
        return RewardModel(self.members, self.config, str(self.device), self.warnings, ood)

    def self_contained_config(self) -> RewardModelConfig:
        """The model's config, with an encoder that needs no other file."""
        encoder = self.classifier.encoder.architecture_config()
        classifier = self.config.classifier.model_copy(update={"encoder": encoder})
        return self.config.model_copy(update={"classifier": classifier})

    def to_device(self, device: str, *, compile: bool = False) -> None:
        """Move the model. compile: on a GPU, fuse its kernels; see `plaudit.judges.classifier.checkpoint`"""
        self.device = resolve_device(device)
        for member in self.members:
            to_channels_last(member, self.device).eval().requires_grad_(False)
        on_gpu = self.device.type == "cuda"
        self._running = bf16_copies(self.members, compile) if on_gpu else self.members
        self._embed = CompiledBatches(self._embed_batch) if on_gpu and compile else self._embed_batch

    def score_episode(self, episode: Episode) -> Scores:
        """Every frame of an episode."""
        logits = self.logits(episode)
        scores = self._scores(logits)
        if self.ood is None:
            return scores
        return replace(scores, ood=self.ood.reason(self.view(episode, logits)))

    def logits(self, episode: Episode) -> FloatArray:
        """[members, T+1, outputs] of every frame of an episode, before any calibration."""
        self.check(episode.frames, episode.state)
        back = np.arange(self.classifier.num_frames) * self.classifier.history_stride
        history = torch.from_numpy(np.maximum(np.arange(episode.steps + 1)[:, None] - back, 0))
        return self._logits([one[history] for one in self.embed(episode.frames, episode.state)])

    def view(self, episode: Episode, logits: FloatArray) -> EpisodeView:
        """What is compared of an episode with those that it learned from.

        logits: [members, F, outputs] of its first frames, or of all
        """
        logits = logits[:, episode.observed, 0]
        members = [scaling(one) for scaling, one in zip(self._calibration.members, logits, strict=True)]
        frames = {camera: images[episode.observed] for camera, images in episode.frames.items()}
        return self.view_of(frames, self._calibration(list(logits)), members)

    def view_of(self, frames: Mapping[str, AnyArray], prob: FloatArray, members: Sequence[FloatArray]) -> EpisodeView:
        """The same of frames, camera -> [F, H, W, 3], and P(success) of the first of these, or of all."""
        picked = compared_frames(len(next(iter(frames.values()))))
        features = self.features({name: images[picked] for name, images in frames.items()})
        start = start_cells([frames[self.camera_in(camera, frames)][0] for camera in self.cameras])
        return EpisodeView.of(features, start, prob, members)

    def features(self, images: Mapping[str, Images]) -> FloatArray:
        """[B, D] the first member's encoder features of B frames and their colors, pooled, camera by camera."""
        with torch.inference_mode():
            parts: list[Tensor] = []
            for batch in self._mini_batches(images, None):
                grids = [self._running[0].encode(batch[n], name) for n, name in enumerate(self.cameras)]
                colors = [pixels.permute(0, 3, 1, 2).float() / 255 for pixels in batch]
                parts.append(torch.cat([pooled(grid) for grid in (*grids, *colors)], dim=1))
            return torch.cat(parts).cpu().numpy()

    def score_frames(self, images: Mapping[str, Images], state: FloatArray | None = None) -> Scores:
        """Independent frames, camera -> [B, H, W, 3], for a model without a history."""
        if self.classifier.num_history_frames:
            raise JudgeError(f"this model sees {self.classifier.num_frames} frames of an episode; score whole episodes")
        self.check(images, state)
        if not len(next(iter(images.values()))):
            return self._scores(np.zeros((len(self.members), 0, self.classifier.outputs), np.float32))
        return self.score_embeddings([embeddings[:, None] for embeddings in self.embed(images, state)])

    def embed(self, images: Mapping[str, Images], state: FloatArray | None = None) -> list[Tensor]:
        """Each member's embeddings of B frames, [B, D]."""
        with torch.inference_mode():
            parts = [self._embed(*batch) for batch in self._mini_batches(images, state)]
            return [torch.cat(embeddings) for embeddings in zip(*parts, strict=True)]

    def score_embeddings(self, windows: Sequence[Tensor]) -> Scores:
        """Scores from each member's embeddings of a frame and its history, [B, num_frames, D]."""
        return self._scores(self._logits(windows))

    def _logits(self, windows: Sequence[Tensor]) -> FloatArray:
        """[members, B, outputs] of each member's embeddings [B, num_frames, D]."""
        with torch.inference_mode():
            logits = [member.classify(window) for member, window in zip(self._running, windows, strict=True)]
            return torch.stack(logits).float().cpu().numpy()

    def _mini_batches(self, images: Mapping[str, Images], state: FloatArray | None) -> Iterator[tuple[Tensor, ...]]:
        """The pixels of all cameras, then the state where the model sees it."""
        inputs: list[Images] = [images[self.camera_in(camera, images)] for camera in self.cameras]
        if self.classifier.state_dim and state is not None:
            inputs.append(state)
        size = self.mini_batch or mini_batch(self.device)
        for start in range(0, len(inputs[0]), size):
            yield tuple(self._to_device(values[start : start + size]) for values in inputs)

    def _to_device(self, values: Images) -> Tensor:
        if isinstance(values, np.ndarray):
            values = torch.from_numpy(np.require(values, requirements=["C", "W"]))  # a store's arrays are read-only
        return values.to(self.device, non_blocking=True)

    def _embed_batch(self, *inputs: Tensor) -> list[Tensor]:
        """Each member's embeddings of one mini-batch."""
        pixels = dict(zip(self.cameras, inputs, strict=False))
        state = inputs[-1] if self.classifier.state_dim else None
        features: Mapping[str, Tensor] = {}
        embeddings = []
        for member in self._running:
            if not features or not self.config.frozen_encoder:
                features = {camera: self._maps(member, images, camera) for camera, images in pixels.items()}
            embeddings.append(member.embed(features, state))
        return embeddings

    def _maps(self, member: BinaryRewardClassifier, images: Tensor, camera: str) -> Tensor:
        """Feature maps of frames. Those that a policy with the same encoder has computed are not computed again."""
        shape = self.classifier
        changed = shape.freeze_stem or shape.image_size or shape.pixel_stats or shape.global_pool_features
        # Whether they are those of the plain encoder in full precision.
        plain = self.config.frozen_encoder and self.device.type == "cpu" and not changed
        encoded = EncodedFrames.find(self._encoder_digest) if plain and images.dtype == torch.uint8 else None
        if encoded is None:
            return member.encode(images, camera)
        return encoded(images.numpy(), lambda new: member.encode(torch.from_numpy(new), camera))

    @cached_property
    def _encoder_digest(self) -> bytes:
        return weights_digest(self.members[0].encoder)

    def _scores(self, logits: FloatArray) -> Scores:
        """Of logits [members, B, outputs]."""
        progress = None
        if self.predicts_progress:
            lowest = np.min([PlattScaling()(member[:, -1]) for member in logits], axis=0)
            # Rounded: the last bits depend on the size of the batch, and a still scene must have constant progress.
            progress = lowest.round(4).astype(np.float32)
        return Scores(self._calibration([member[:, 0] for member in logits]), progress)

    def camera_in(self, camera: str, there: Collection[str]) -> str:
        """By which name one of its cameras is there; see `name_of_camera`."""
        return name_of_camera(camera, there, self.cameras)

    def check(self, images: Mapping[str, Images], state: FloatArray | None) -> None:
        """Refuse frames and states unlike those it was trained on."""
        for own_name, size in self.cameras.items():
            camera = self.camera_in(own_name, images)
            if camera not in images:
                names = ", ".join(sorted(images)) or "none"
                raise JudgeError(
                    f"this reward model looks at camera '{camera}', which is not there; there are: {names}"
                )
            height, width = images[camera].shape[1:3]
            if (height, width) != tuple(size) and not self.classifier.any_size:
                raise JudgeError(
                    f"camera '{camera}' gives {height}x{width} images, this reward model was trained on "
                    f"{size[0]}x{size[1]}; record in that size, or import a data set with --resize {size[0]}x{size[1]}"
                )
        dims, state_dim = 0 if state is None else state.shape[1], self.classifier.state_dim
        if state_dim and dims != state_dim:
            raise JudgeError(f"this reward model sees a state of {state_dim} numbers, this robot's has {dims}")


def check_controls_passed(path: Path, config: RewardModelConfig, force: bool) -> None:
    """Refuse a model that failed a negative control, unless it is forced."""
    if config.problems and not force:
        raise JudgeError(
            f"{path} is marked as not to be trusted: {'; '.join(config.problems)}; train a better one, or "
            "force it (judge.force=true in a run; force=true where it labels)"
        )


def build_classifier(
    config: ClassifierConfig,
    tensors: Mapping[str, Tensor],
    path: Path,
    encoder: nn.Module | None = None,
    description: Path | None = None,
) -> BinaryRewardClassifier:
    """A network with these weights; weights of another network are refused with the first tensor that does not fit.

    encoder: of another member, with its weights, where members share one; None: it is among the tensors
    description: the file that has the config; None: the same as `path`, that of the tensors
    """
    most = fitting(tensor.shape for tensor in tensors.values())
    with numbers_at_most(most, description or path, random=False):
        member = BinaryRewardClassifier(config, encoder or config.encoder.build(pretrained=False))
    own = {n: t for n, t in member.state_dict().items() if encoder is None or not n.startswith("encoder.")}
    for name, tensor in own.items():
        if name not in tensors:
            raise BadFile(path, f"{ANOTHER}: {name} {list(tensor.shape)} is missing")
        shape = list(tensors[name].shape)
        if shape != list(tensor.shape):
            raise BadFile(path, f"{ANOTHER}: {name} is {shape}, this one has {list(tensor.shape)}")
        if not torch.isfinite(tensors[name]).all():
            raise BadFile(path, f"{name} contains NaN or infinity; train or copy the model again")
    for name in tensors:
        if name not in own:
            raise BadFile(path, f"{ANOTHER}: nothing takes {name}")
    member.load_state_dict(dict(tensors), strict=False)
    return member


def _fingerprint(members: Sequence[BinaryRewardClassifier], config: RewardModelConfig) -> str:
    """Of everything that its scores depend on: weights, cameras, preprocessing, inputs, calibration."""
    not_decisive: dict[str, Any] = {"dropout": True, "encoder": {"local_files_only"}}  # for training, and for loading
    classifier = config.classifier.model_dump(mode="json", exclude=not_decisive)
    fields = ClassifierConfig.model_fields
    # A model that has none of these is the one that it was before.
    later = ("any_size", "resampling", "pixel_stats", "predict_success")
    classifier = {k: v for k, v in classifier.items() if k not in later or v != fields[k].default}
    numbers = [classifier, config.calibration, config.ensemble_calibration]
    digest = hashlib.sha256(json.dumps(numbers, sort_keys=True).encode())
    for member in members:
        tensors = {**member.state_dict(), "pixel_mean": member.pixel_mean, "pixel_std": member.pixel_std}
        for name, tensor in sorted(tensors.items()):
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().contiguous().view(-1).numpy())
    return digest.hexdigest()[:16]


BatchFn = Callable[..., list[Tensor]]

MIN_BATCH = 16  # images of a compiled batch


def bf16_copies(members: Sequence[BinaryRewardClassifier], compiled: bool) -> list[BinaryRewardClassifier]:
    """Copies whose encoders are in bfloat16; what members share, their copies share."""
    copies = copy.deepcopy(list(members))
    for member in copies:
        if compiled:
            _exchange(member.encoder)
        for module in member.encoder.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):  # takes both, and subtracts numbers of one size
                continue
            for parameter in module.parameters(recurse=False):
                parameter.data = parameter.data.bfloat16()
            for name, buffer in module.named_buffers(recurse=False):
                if buffer.is_floating_point():
                    setattr(module, name, buffer.bfloat16())
    return copies


def _exchange(module: nn.Module) -> None:
    """Modules that the compiler cannot fuse for equal ones that it can."""
    for name, child in module.named_children():
        if isinstance(child, nn.GroupNorm):
            setattr(module, name, ChannelsLastGroupNorm(child))
        elif isinstance(child, nn.Conv2d) and BlockConv.fits(child):
            setattr(module, name, BlockConv(child))
        else:
            _exchange(child)


class ChannelsLastGroupNorm(nn.Module):
    """`nn.GroupNorm` for images in channels-last memory format."""

    def __init__(self, norm: nn.GroupNorm):
        super().__init__()
        self.weight, self.bias, self.groups, self.eps = norm.weight, norm.bias, norm.num_groups, norm.eps

    def forward(self, x: Tensor) -> Tensor:
        # By the sums of each channel, which a GPU reads in the order of memory, and only then of each group.
        y = x.float()
        first, second = (part.mean(dim=(2, 3)).unflatten(1, (self.groups, -1)) for part in (y, y * y))
        mean = first.mean(dim=2, keepdim=True)
        deviation = (second.mean(dim=2, keepdim=True) - mean * mean).clamp(min=0).add(self.eps).rsqrt()
        scale = deviation.expand_as(first).flatten(1) * self.weight.float()
        shift = self.bias.float() - mean.expand_as(first).flatten(1) * scale
        return (y * scale[:, :, None, None] + shift[:, :, None, None]).to(x.dtype)


class BlockConv(nn.Module):
    """A first convolution of 7x7 and stride 2, as one of 4x4 over blocks of 2x2 pixels: the same sums.

    A GPU multiplies 16 channels at once and three of color leave most of it idle; the twelve of a block, and four of
    nothing, do not. The kernel becomes one of 8x8 whose first row and column are zero, cut into blocks.
    """

    def __init__(self, conv: nn.Conv2d):
        super().__init__()
        grown = F.pad(conv.weight.detach(), (1, 0, 1, 0))
        self.weight = nn.Parameter(F.pad(F.pixel_unshuffle(grown, 2), (0, 0, 0, 0, 0, 4)), requires_grad=False)

    @staticmethod
    def fits(conv: nn.Conv2d) -> bool:
        shape = (conv.in_channels, conv.kernel_size, conv.stride, conv.padding, conv.dilation, conv.groups)
        return shape == (3, (7, 7), (2, 2), (3, 3), (1, 1), 1) and conv.bias is None and type(conv) is nn.Conv2d

    def forward(self, x: Tensor) -> Tensor:
        odd = (0, x.shape[3] % 2, 0, x.shape[2] % 2)
        blocks = F.pixel_unshuffle(F.pad(x, odd), 2)
        blocks = F.pad(blocks, (2, 1, 2, 1, 0, 4)).contiguous(memory_format=torch.channels_last)
        return F.conv2d(blocks, self.weight)


class CompiledBatches:
    """A compiled function, on batches padded to a power of two: compiling a new size takes seconds."""

    def __init__(self, function: BatchFn):
        # reduce-overhead records CUDA graphs, whose outputs the next call overwrites: hence the clones below.
        self._function = torch.compile(function, dynamic=False, mode="reduce-overhead")

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        count = len(inputs[0])
        # cuDNN tries its kernels and keeps the quickest, for each size of batch.
        with torch.backends.cudnn.flags(enabled=True, benchmark=True), tf32(enabled=True):
            outputs = self._function(*pad_batch(inputs))
        return [output[:count].clone() for output in outputs]


def pad_batch(inputs: Sequence[Tensor]) -> list[Tensor]:
    """The inputs with their last rows repeated, up to a power of two."""
    count = len(inputs[0])
    size = max(MIN_BATCH, 1 << (count - 1).bit_length())
    if size == count:
        return list(inputs)
    return [torch.cat([given, given[-1:].expand(size - count, *given.shape[1:])]) for given in inputs]
