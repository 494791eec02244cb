"""The config of `plaudit train-reward`, by our keys or by those of other stacks.

    encoder: {type: resnet10, weights: resnet10_params.pkl}    ours: the keys of RewardTrainConfig, and RewardTrainJob
    data: [episodes]

    --positive-dir, --negative-dir, ...                        the flags of RLinf's train_reward_model

These and the configs of other stacks (compat.py) are translated into one `RewardTrainJob`; a key that has no
translation is refused with what to write instead.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import model_validator

from plaudit.config import (
    NonNegativeInt,
    PositiveFloat,
    SmallInt,
    expand_type_override,
    key_location,
    parse,
    read_values,
)
from plaudit.errors import ConfigError, JudgeError
from plaudit.judges.classifier.compat import FOREIGN_BLOCKS, Tree, deep_merge, translate
from plaudit.judges.classifier.config import RewardTrainConfig
from plaudit.trust import from_file

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
    output_dir: Path = Path("runs/reward_model")
    output_checkpoint: Path | None = None  # the model once more, as one .pt file
    num_cameras: SmallInt | None = None  # that the episodes must have; None: as many as there are
    episodes: tuple[NonNegativeInt, ...] | None = None  # of a data set, by its own numbers; None: all
    exclude_episodes: tuple[NonNegativeInt, ...] = ()
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
                f"output_checkpoint: a .pt file holds one network, and ensemble_size is {self.ensemble_size}; set "
                "one of them to null or 1 (the model's folder holds all members)"
            )
        return self

    def takes(self, number: int) -> bool:
        """Whether an episode of a data set is learned from."""
        return (self.episodes is None or number in self.episodes) and number not in self.exclude_episodes

    @property
    def training(self) -> RewardTrainConfig:
        """Without what is only this job's; what was not set stays so."""
        given = self.model_fields_set & set(RewardTrainConfig.model_fields) | {"max_minutes"}
        if self.output_checkpoint is not None:  # which holds one network of single frames
            given |= {"ensemble_size", "num_history_frames"}
        values: dict[str, Any] = {"enforce_max_minutes": "max_minutes" in self.model_fields_set}
        return RewardTrainConfig(**values | {name: getattr(self, name) for name in given})

    def check_cameras(self, cameras: Sequence[str]) -> None:
        """Whether these, of the episodes, are as many as the recipe counts on."""
        chosen = self.image_keys or cameras
        if self.num_cameras is not None and self.num_cameras != len(chosen):
            raise JudgeError(
                f"num_cameras is {self.num_cameras} and there are {len(chosen)}: {', '.join(chosen)}; change it, or "
                "choose cameras with --image-key"
            )


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
        del file_tree["seed"]  # lerobot's word for a seed that nobody chose
    try:
        with from_file(path, [given_keys, theirs]):
            translated = translate(deep_merge(file_tree, theirs), notes)
            tree = _unfreeze_random(deep_merge(translated, given_keys), translated is not file_tree, given_keys)
            _check_names(tree)
            job = parse(RewardTrainJob, _fill_in(_of_folders(tree) if folders else tree))
    except ConfigError as error:
        set_keys = {**given_keys, **theirs}
        raise ConfigError(
            (where, f"{key_location(where, path, set_keys)}: {message}") for where, message in error.problems
        ) from None
    return job, [*notes, *_notes(job)]


def encoder_of(backbone: str) -> Tree:
    """`resnet10`, `torchvision:resnet18` or `transformers:facebook/dinov2-small` as a config has it."""
    kind, colon, name = backbone.partition(":")
    return {"type": kind, "name": name} if colon else {"type": kind}


def _of_folders(tree: Tree) -> Tree:
    """With RLinf's defaults; it freezes an encoder that comes with weights."""
    tree = deep_merge(dict(RLINF_DEFAULTS), tree)
    tree.setdefault("latent_dim", tree["hidden_dim"])
    encoder = tree["encoder"]
    if isinstance(encoder, dict) and encoder.get("weights") is not None:
        tree.setdefault("freeze_encoder", True)
    return tree


def _unfreeze_random(tree: Tree, foreign: bool, given: Mapping[str, Any]) -> Tree:
    """lerobot's recipes freeze the published ResNet-10; random weights in its place have to learn."""
    encoder = tree.get("encoder")
    random = isinstance(encoder, dict) and encoder.get("type") == "resnet10" and encoder.get("weights") is None
    if foreign and random and "freeze_encoder" not in given:
        return {key: value for key, value in tree.items() if key != "freeze_encoder"}
    return tree


def _fill_in(tree: Tree) -> Tree:
    """With what follows: weights of no named encoder are ResNet-10's, a folder lies beside the .pt file."""
    encoder = tree.get("encoder")
    if isinstance(encoder, dict) and "type" not in encoder:
        tree = {**tree, "encoder": {"type": "resnet10", **encoder}}
    checkpoint = tree.get("output_checkpoint")
    if isinstance(checkpoint, str) and "output_dir" not in tree:
        tree = {**tree, "output_dir": str(Path(checkpoint).with_suffix(""))}
    return tree


def _check_names(tree: Tree) -> None:
    """Keys that other people's files have beside those blocks are answered with ours."""
    strange = [(key, hint) for key, hint in _OTHER_NAMES.items() if key in tree]
    if strange:
        raise ConfigError([((key,), f"key '{key}' goes by another name here; {hint}") for key, hint in strange])


def _notes(job: RewardTrainJob) -> list[str]:
    encoder = job.encoder
    if encoder.type != "resnet10" or encoder.pretrained:
        return []
    return [
        "nothing is downloaded: ResNet-10 begins from random weights, and learns; to begin from published ones, give "
        "their file with --pretrained-encoder-path"
    ]


# Keys that stand beside those blocks in other people's files.
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
