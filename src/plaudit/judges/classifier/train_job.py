"""The config of `plaudit train-reward`, by our keys or by those of RLinf and LeRobot.

    encoder: {type: resnet10, weights: resnet10_params.pkl}         ours: the keys of RewardTrainJob
    data: [episodes]
    --positive-dir, --negative-dir, ...                             the flags of RLinf's train_reward_model
    reward_training: {enabled, only, data_path, epochs, ...}        the ManiSkill recipes of RLinf
    reward_model: {type: reward_classifier, ...}, dataset: {...}    lerobot's reward classifier, since 0.6
    policy: {type: reward_classifier, ...}, dataset: {...}          and before

All of them are translated into one `RewardTrainJob`. A key that has no translation is refused with what to write
instead. Nothing is downloaded: a name on the hub is not a file.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, create_model, model_validator

from plaudit.config import (
    BatchSize,
    Config,
    Edge,
    Fraction,
    LearningRate,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    SmallInt,
    Width,
    expand_type_override,
    key_location,
    parse,
    read_values,
)
from plaudit.errors import ConfigError, JudgeError
from plaudit.files import Root, read_json_object
from plaudit.judges.classifier.config import RewardTrainConfig
from plaudit.trust import from_file

PUBLISHED = ("helper2424/resnet10", "lerobot/resnet10")  # ResNet-10 on the hub
FOREIGN_BLOCKS = ("reward_training", "reward_model", "policy", "dataset")  # of other stacks
RLINF_BLOCKS = ("actor", "algorithm", "cluster", "critic", "defaults", "env", "hydra", "reward", "rollout", "runner")

Tree = dict[str, Any]


def deep_merge(tree: Tree, over: Mapping[str, Any]) -> Tree:
    """Merge nested keys. A block with another `type` replaces the one before, whose keys would mean nothing there."""
    both = dict(tree)
    for key, value in over.items():
        before = both.get(key)
        if isinstance(before, dict) and isinstance(value, dict) and value.get("type") in (None, before.get("type")):
            value = deep_merge(before, value)
        both[key] = value
    return both


def translate(tree: Tree, notes: list[str]) -> Tree:
    """Replace the blocks of another stack by our keys; keys next to them are ours already."""
    if not any(block in tree for block in FOREIGN_BLOCKS):
        return tree
    recipe = ManiskillRecipe if "reward_training" in tree else LerobotTraining
    theirs = parse(recipe, {name: tree[name] for name in recipe.model_fields if name in tree})
    notes += theirs.notes()
    ours = {key: value for key, value in tree.items() if key not in recipe.model_fields}
    if recipe is ManiskillRecipe and (unused := [key for key in ours if key in RLINF_BLOCKS]):
        notes.append(f"of the recipe these are not used: {', '.join(unused)}; they are about the policy")
        ours = {key: value for key, value in ours.items() if key not in unused}
    return deep_merge(theirs.ours(), ours)


def _ignored(names: str) -> type[Config]:
    """A config class that takes these keys and does nothing with them."""
    fields: Any = dict.fromkeys(names.split(), (Any, None))
    return create_model("Ignored", __base__=Config, **fields)


# RLinf's ManiSkill recipes


class ManiskillTraining(Config):
    """The block `reward_training`."""

    enabled: Literal[True] = True
    only: Literal[True] = True  # train the reward model and nothing else
    data_path: Path  # folders success/ and failure/ of .pkl; any data set will do
    epochs: PositiveInt = 100
    micro_batch_size: BatchSize | None = None
    global_batch_size: int = Field(default=64, ge=2, le=65_536)
    lr: LearningRate = 1e-4
    save_dir: Path


class ManiskillRecipe(Config):
    """A recipe of RLinf, of which the rest is about the policy."""

    reward_training: ManiskillTraining

    def ours(self) -> Tree:
        """The settings under the keys of `RewardTrainJob`."""
        given = self.reward_training
        return {
            "data": [str(given.data_path)],
            "output_dir": str(given.save_dir / "reward_model"),
            "output_checkpoint": str(given.save_dir / "reward_model_best.pt"),
            "epochs": given.epochs,
            "batch_size": given.global_batch_size,
            "lr": given.lr,
            # The network that RLinf's recipe trains, so that RLinf can load the result.
            "encoder": {"type": "resnet10", "padding": "torchvision"},
            "head": "mlp",
            "global_pool_features": True,
            "hidden_dim": 256,
        }

    def notes(self) -> list[str]:
        """Messages about settings that are not used."""
        small, large = self.reward_training.micro_batch_size, self.reward_training.global_batch_size
        if small in (None, large):
            return []
        return [f"micro_batch_size {small} is not used: a batch of {large} is one piece"]


# lerobot's reward classifier


class LerobotFeature(Config):
    """One input: VISUAL and [channels, height, width], or STATE and [width]."""

    type: str
    shape: tuple[Width, ...]


_CLASSIFIER_KEYS = "output_features name normalization_mapping repo_id private tags license pretrained_revision use_amp"


class LerobotClassifier(_ignored(f"{_CLASSIFIER_KEYS} n_obs_steps")):
    """lerobot's classifier, in all versions: the block `reward_model` since 0.6, `policy` before."""

    type: Literal["reward_classifier"]
    model_name: str = PUBLISHED[0]
    num_cameras: SmallInt | None = None
    num_classes: Literal[2] = 2  # success or not
    hidden_dim: Width = 256
    latent_dim: Width = 256
    dropout_rate: Fraction = 0.1
    image_embedding_pooling_dim: Width = 8
    learning_rate: LearningRate = 1e-4
    weight_decay: float = Field(default=0.01, ge=0, le=10)
    device: str | None = None
    input_features: dict[str, LerobotFeature] | None = None  # its cameras, and their size
    image_size: Edge | None = None  # of both edges, before 0.6
    # Not used; there is a note where they are set.
    model_type: Any = None
    grad_clip_norm: Any = None
    push_to_hub: Any = None
    pretrained_path: Any = None

    @property
    def encoder(self) -> Tree:
        """A folder or a file of ResNet-10, its name on the hub, or any other network that transformers can find."""
        path = Path(self.model_name)
        other = {"type": "transformers", "name": self.model_name}
        if (path / "config.json").is_file():
            described = read_json_object(path / "config.json")
            if "model_type" in described and "auto_map" not in described:  # no code of its own: one of transformers'
                return other
        if path.is_dir():
            Root(path).check_files()
            path = path / "model.safetensors"
        if path.is_file():
            return {"type": "resnet10", "weights": str(path)}
        return {"type": "resnet10"} if self.model_name in PUBLISHED else other

    def ours(self) -> Tree:
        """The settings under the keys of `RewardTrainJob`."""
        tree = {
            "encoder": self.encoder,
            "freeze_encoder": True,
            "device": self.device or "auto",
            "num_cameras": self.num_cameras,
            "hidden_dim": self.hidden_dim,
            "latent_dim": self.latent_dim,
            "weight_decay": self.weight_decay,
            "dropout": self.dropout_rate,
            "num_spatial_blocks": self.image_embedding_pooling_dim,
            "lr": self.learning_rate,
            "image_size": [128, 128],
        }
        features = self.input_features or {}
        images = {name: feature.shape for name, feature in features.items() if feature.type == "VISUAL"}
        if images:
            _, *tree["image_size"] = next(iter(images.values()))
            tree["image_keys"] = [name.removeprefix("observation.images.") for name in images]
            tree["num_cameras"] = None  # 2 by default, and the cameras are named
        if self.image_size is not None:
            tree["image_size"] = [self.image_size, self.image_size]
        return tree

    def notes(self, block: str) -> list[str]:
        """What is set, differs from lerobot's default and is not used."""
        unused = {
            "push_to_hub": (bool(self.push_to_hub), "nothing is uploaded"),
            "model_type": (self.model_type not in (None, "cnn"), "the network that model_name names counts"),
            "grad_clip_norm": (self.grad_clip_norm not in (None, 1.0, 10.0), "gradients are not clipped here"),
            "pretrained_path": (bool(self.pretrained_path), "training starts from the encoder"),
        }
        return [f"{block}.{key} is not used: {why}" for key, (is_set, why) in unused.items() if is_set]


_DATASET_KEYS = "repo_type revision use_imagenet_stats return_uint8 depth_output_unit streaming eval_split"


class LerobotDataset(_ignored(_DATASET_KEYS)):
    """Location of a LeRobot data set."""

    repo_id: str | None = None
    root: Path | None = None
    video_backend: str | None = "pyav"
    image_transforms: Any = None
    episodes: tuple[NonNegativeInt, ...] | None = None  # which to learn from; None: all
    exclude_episodes: tuple[NonNegativeInt, ...] | None = None
    # Ours: which frame next.reward is about; None: as lerobot's classifier reads it, a row's own
    reward_frame: Literal["next", "same"] | None = None

    @model_validator(mode="after")
    def _has_root(self) -> Self:
        if self.root is None:
            raise ValueError("write 'root', the folder on this machine: a repo_id alone would have to be downloaded")
        return self

    def ours(self) -> Tree:
        """Settings under the keys of `RewardTrainJob`. Plaudit's data sets record the frame of a reward."""
        is_ours = self.root is not None and (self.root / "meta/plaudit.parquet").is_file()
        tree: Tree = {"data": [str(self.root)], "reward_frame": self.reward_frame or (None if is_ours else "same")}
        for name in ("episodes", "exclude_episodes"):
            if (numbers := getattr(self, name)) is not None:
                tree[name] = list(numbers)
        return tree

    def notes(self) -> list[str]:
        """Messages about settings that are not used."""
        notes = []
        if self.video_backend not in (None, "pyav"):
            notes.append(f"video_backend '{self.video_backend}' is not used: videos are read with PyAV")
        if isinstance(self.image_transforms, dict) and self.image_transforms.get("enable"):
            notes.append("dataset.image_transforms is not used: 'augment' says how images are changed")
        return notes


# Of lerobot's training loop; there is a note where they are set.
_TRAINING_KEYS = (
    "steps output_dir job_name resume cudnn_deterministic num_workers prefetch_factor persistent_workers env "
    "env_eval_freq eval_freq eval_steps max_eval_samples log_freq tolerance_s save_checkpoint save_freq "
    "use_policy_training_preset optimizer scheduler eval wandb peft ema job sample_weighting rename_map checkpoint_path"
)


class LerobotTraining(_ignored(_TRAINING_KEYS)):
    """lerobot's training config, as people write it or as lerobot saves it (train_config.json).

    `batch_size` and `seed` are keys of ours too and mean the same.
    """

    dataset: LerobotDataset
    reward_model: LerobotClassifier | None = None  # since 0.6
    policy: LerobotClassifier | None = None  # before

    @model_validator(mode="after")
    def _has_one_classifier(self) -> Self:
        if (self.reward_model is None) == (self.policy is None):
            raise ValueError("write the classifier as 'reward_model' (since lerobot 0.6) or as 'policy' (before)")
        return self

    @property
    def _classifier(self) -> LerobotClassifier:
        classifier = self.reward_model or self.policy
        assert classifier is not None
        return classifier

    def ours(self) -> Tree:
        """The settings under the keys of `RewardTrainJob`."""
        return {**self.dataset.ours(), **self._classifier.ours()}

    def notes(self) -> list[str]:
        """Messages about settings that are not used."""
        notes, block = self.dataset.notes(), "policy" if self.reward_model is None else "reward_model"
        if unused := [name for name in _TRAINING_KEYS.split() if getattr(self, name)]:
            notes.append(
                f"of lerobot's keys these are not used: {', '.join(unused)}; 'epochs' and --output-dir say how long "
                "and where to"
            )
        return [*notes, *self._classifier.notes(block)]


# Ours

RLINF_DEFAULTS: Mapping[str, Any] = {  # of RLinf's train_reward_model
    "encoder": {"type": "resnet10"},
    "image_keys": ["base_camera"],
    "image_size": [64, 64],
    "batch_size": 32,
    "epochs": 100,
    "lr": 1e-4,
    "hidden_dim": 256,
    "num_spatial_blocks": 8,
}


class RewardTrainJob(RewardTrainConfig):
    """A training, where its episodes are and where the model goes."""

    data: tuple[Path, ...] = ()  # a store; or data sets of other layouts, such as two folders of .npy
    output_dir: Path = Path("runs/reward_model")  # the folder of the model and its report
    output_checkpoint: Path | None = None  # the model once more, as one .pt file
    num_cameras: SmallInt | None = None  # that the episodes must have; None: as many as there are
    episodes: tuple[NonNegativeInt, ...] | None = None  # of a data set, by its own numbers; None: all
    exclude_episodes: tuple[NonNegativeInt, ...] = ()  # ids of episodes that are not used
    max_minutes: PositiveFloat | None = 10.0  # a limit if it is set, else a guide
    reward_frame: Literal["next", "same"] | None = None  # LeRobot: which frame next.reward is about; None: as in import

    @model_validator(mode="after")
    def _fits_one_file(self) -> Self:
        if self.output_checkpoint is None:
            return self
        if self.output_checkpoint.suffix != ".pt":
            raise ValueError(f"output_checkpoint is a file like reward_model.pt, not {self.output_checkpoint}")
        if self.ensemble_size > 1:
            raise ValueError(
                f"output_checkpoint: a .pt file holds one network, and ensemble_size is {self.ensemble_size}; leave "
                "one of them out (the model's folder holds all members)"
            )
        return self

    def takes(self, number: int) -> bool:
        """Whether an episode of a data set is used for training."""
        return (self.episodes is None or number in self.episodes) and number not in self.exclude_episodes

    @property
    def training(self) -> RewardTrainConfig:
        """The training config without the job's own keys; unset keys stay unset."""
        given = self.model_fields_set & set(RewardTrainConfig.model_fields) | {"max_minutes"}
        if self.output_checkpoint is not None:  # which holds one network of single frames
            given |= {"ensemble_size", "num_history_frames"}
        values: dict[str, Any] = {"enforce_max_minutes": "max_minutes" in self.model_fields_set}
        return RewardTrainConfig(**values | {name: getattr(self, name) for name in given})

    def check_cameras(self, cameras: Sequence[str]) -> None:
        """Whether these, of the episodes, are as many as the recipe counts on."""
        chosen = self.image_keys or cameras
        if self.num_cameras is not None and self.num_cameras != len(chosen):
            counts = f"num_cameras is {self.num_cameras} and there are {len(chosen)}: {', '.join(chosen)}"
            raise JudgeError(f"{counts}; change it, or choose cameras with --image-key")


def load_reward_train_job(
    path: Path | None, flags: Mapping[str, Any], overrides: Sequence[str] = (), *, folders: bool = False
) -> tuple[RewardTrainJob, list[str]]:
    """From a config file, flags of the command line and `a.b=c` overrides, of which the later win; and what to tell.

    flags: keys of `RewardTrainJob`, in plain values
    folders: whether the flags are those of RLinf's train_reward_model, whose defaults then count
    """
    file_tree, _ = read_values(path, [])
    full = [expand_type_override(override, ("encoder",), "encoder=small or epochs=5") for override in overrides]
    given, _ = read_values(None, full)
    theirs = {key: given.pop(key) for key in FOREIGN_BLOCKS if key in given}  # reward_training.epochs=3
    given_keys = deep_merge(dict(flags), given)
    notes: list[str] = []
    if "reward_model" in file_tree and file_tree.get("seed", 0) is None:
        del file_tree["seed"]  # lerobot's default seed
    try:
        with from_file(path, [given_keys, theirs]):
            translated = translate(deep_merge(file_tree, theirs), notes)
            tree = deep_merge(translated, given_keys)
            if strange := [(key, hint) for key, hint in _OTHER_NAMES.items() if key in tree]:
                raise ConfigError([((key,), f"key '{key}' goes by another name here; {hint}") for key, hint in strange])
            foreign = translated is not file_tree
            job = parse(RewardTrainJob, _complete(tree, foreign=foreign, folders=folders, given=given_keys))
    except ConfigError as error:
        set_keys = {**given_keys, **theirs}
        raise ConfigError(
            (where, f"{key_location(where, path, set_keys)}: {message}") for where, message in error.problems
        ) from None
    if job.encoder.type == "resnet10" and not job.encoder.pretrained:
        notes.append(
            "nothing is downloaded: ResNet-10 begins from random weights; --pretrained-encoder-path names a file"
        )
    return job, notes


def encoder_of(backbone: str) -> Tree:
    """`resnet10`, `torchvision:resnet18` or `transformers:facebook/dinov2-small` as a config has it."""
    kind, colon, name = backbone.partition(":")
    return {"type": kind, "name": name} if colon else {"type": kind}


def _complete(tree: Tree, *, foreign: bool, folders: bool, given: Mapping[str, Any]) -> Tree:
    """The tree with the keys that follow from others. foreign: it was translated; given: keys of the command line"""
    tree = deep_merge(dict(RLINF_DEFAULTS), tree) if folders else dict(tree)
    encoder = tree.get("encoder")
    if isinstance(encoder, dict):
        random = encoder.get("type") == "resnet10" and encoder.get("weights") is None
        if foreign and random and "freeze_encoder" not in given:
            tree.pop("freeze_encoder", None)  # lerobot freezes the published ResNet-10; random weights must learn
        if folders and encoder.get("weights") is not None:
            tree.setdefault("freeze_encoder", True)  # as RLinf does
        tree["encoder"] = {"type": "resnet10", **encoder}
    if folders:
        tree.setdefault("latent_dim", tree["hidden_dim"])
    checkpoint = tree.get("output_checkpoint")
    if isinstance(checkpoint, str):
        tree.setdefault("output_dir", str(Path(checkpoint).with_suffix("")))
    return tree


# Keys next to those blocks in files of other stacks.
_OTHER_NAMES = {
    "steps": "write 'epochs'",
    "num_workers": "leave it out: frames are read once",
    "job_name": "write 'output_dir'",
    "wandb": "leave it out: the model's folder has its curve and a report",
    "env": "leave it out: no environment is needed",
    "runner": "leave it out: 'output_dir' says where the model goes",
    "cluster": "leave it out: one process needs no placement",
    "actor": "leave it out: a policy is trained by 'plaudit train'",
    "reward": "leave it out: a model is used by 'plaudit train'",
}
