"""Folders from somebody else: a link, a pipe or a linked folder in place of a file is an error, and is not read."""

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lerobot_v21 import CAMERA, write_v21
from safetensors.torch import save_file

import glow
import plaudit
from counted_stores import counted_store
from five_judges import PushJudgeConfig, push_store
from plaudit.data.normalize import Normalizer
from plaudit.data.store import Store
from plaudit.data.transfer import import_dataset
from plaudit.data.weights import load_checkpoint, save_checkpoint
from plaudit.encoders import SmallConfig
from plaudit.encoders.others import TransformersConfig
from plaudit.encoders.resnet import Resnet10Config
from plaudit.errors import DataError, PlauditError
from plaudit.judges.certificate import load_certificate
from plaudit.judges.classifier.checkpoint import RewardModel, RewardModelConfig
from plaudit.judges.classifier.lerobot import load_lerobot_classifier, save_lerobot_classifier
from plaudit.judges.classifier.model import BinaryRewardClassifier, ClassifierConfig
from plaudit.judges.classifier.train_job import LerobotClassifier
from plaudit.judges.config import TrainingDataInfo, load_named_judge, save_own_judge
from plaudit.judges.epochs import prepare_work
from plaudit.judges.exam import examine
from plaudit.judges.vlm.adapter import add_lora, fingerprint_with, load_base, save_adapter
from plaudit.judges.vlm.config import AdapterInfo, LoraShape, PromptSettings, VlmJudgeConfig
from plaudit.learners.config import SacConfig
from plaudit.learners.sac import Sac
from plaudit.policies.config import FlowConfig
from plaudit.policies.loader import load_policy, save_policy
from plaudit.policies.networks import weights_of
from plaudit.rollout.collector import CollectConfig, Collection
from plaudit.rule import DecisionRule
from plaudit.training.config_file import load_training_config
from plaudit.training.run_folder import RunFolder
from plaudit.training.workers.labelers import Mirror
from plaudit.types import EnvSpec
from tiny_vlm import save_tiny

Kind = tuple[Callable[[Path], Any], Callable[[Path], Any], tuple[str, ...]]  # make it, use it, files that are read
LEARNER = SacConfig(hidden_dims=(16,), num_critics=2)


def make_classifier(folder: Path) -> None:
    glow.saved(glow.bewildered(glow.bright_model(0.8)), folder)
    save_own_judge(folder, DecisionRule())


def make_lerobot_classifier(folder: Path) -> None:
    config = ClassifierConfig(
        encoder=SmallConfig(widths=(4, 8, 8, 8, 16)),
        cameras={"front": (128, 128)},
        num_spatial_blocks=2,
        latent_dim=6,
        hidden_dim=12,
    )
    folder.mkdir()
    model = RewardModel([BinaryRewardClassifier(config)], RewardModelConfig.untested(config), "cpu")
    save_lerobot_classifier(model, folder, folder)


def vlm(folder: Path) -> VlmJudgeConfig:
    return VlmJudgeConfig(model=str(folder), device="cpu", image_size=64)


def make_adapter(folder: Path) -> None:
    base, shape = save_tiny(folder.with_name("base")), LoraShape(rank=2)
    folder.mkdir()
    loaded = load_base(vlm(base))
    unchanged = loaded.fingerprint
    save_adapter(folder, add_lora(loaded.model, shape))
    info = AdapterInfo(
        base=str(base),
        base_fingerprint=unchanged,
        fingerprint=fingerprint_with(loaded, shape, folder),
        lora=shape,
        prompt=PromptSettings(image_size=64),
        tasks=(),
        data=TrainingDataInfo(fingerprint="none", episodes={}, frames={}, sources=()),
        scores={},
        training={},
    )
    (folder / "adapter.json").write_text(info.model_dump_json())


def make_policy(folder: Path) -> None:
    config = FlowConfig(state_dim=2, action_dim=1, horizon=3)
    normalizer = Normalizer.of(np.float32([[0, 1], [2, 3]]), np.float32([[4], [8]]))
    path = save_policy(folder, config, weights_of(1, config.build().components), normalizer)
    (folder / "components").mkdir()
    (folder / "components/net.yaml").write_text(config.velocity_net.model_dump_json())
    kept = [line for line in path.read_text().splitlines() if not line.startswith(("policy:", "  "))]
    own = "policy: {type: flow, state_dim: 2, action_dim: 1, horizon: 3}"
    paths = "model: {component_config_paths: {velocity_net: components/net.yaml}}"
    path.write_text("\n".join([own, paths, *kept]))


def use_policy(folder: Path) -> None:
    spec = load_policy(folder / "policy.yaml")
    assert spec.weights is not None and spec.normalizer is not None
    spec.build()


def make_run(folder: Path) -> None:
    run = RunFolder.create(folder, load_training_config("train", None, ["env=lift", "learner=ppo"]))
    run.log(10, {"rollout/episodes": 1})
    run.close()
    (folder / "judge").mkdir()
    (folder / "judge/history.jsonl").write_text("")


def make_certificate(folder: Path) -> None:
    store, config = push_store(folder.with_name("store"), 5, 5), PushJudgeConfig()
    folder.mkdir()
    examine(store, config, config.build(), ("human",), store.ids, name="good")[0].save(folder / "certificate.json")


def make_resnet10(folder: Path) -> None:
    folder.mkdir()
    save_file(Resnet10Config().build(pretrained=False).state_dict(), folder / "model.safetensors")


def use_resnet10(folder: Path) -> None:
    recipe = LerobotClassifier(type="reward_classifier", model_name=str(folder))
    Resnet10Config(**recipe.encoder).build()


def make_transformers(folder: Path) -> None:
    import transformers

    shape = {"hidden_sizes": [8, 8, 8, 16], "depths": [1, 1, 1, 1]}
    transformers.ResNetModel(transformers.ResNetConfig(**shape)).save_pretrained(folder)


def use_transformers(folder: Path) -> None:
    black_and_white = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
    TransformersConfig(name=str(folder), **black_and_white).build()


def use_dataset(folder: Path) -> None:
    report = import_dataset(folder, folder.with_name("imported"))
    if report.failed:
        raise DataError(report.failed[0])


def use_store(folder: Path) -> None:
    store = Store.open(folder)
    for episode_id in store.ids:
        store.episode(episode_id)


KINDS: dict[str, Kind] = {
    "classifier": (
        make_classifier,
        lambda folder: load_named_judge(str(folder), ["device=cpu"]).build(),
        ("model.json", "member_0.safetensors", "ood.safetensors", "judge.yaml"),
    ),
    "lerobot classifier": (
        make_lerobot_classifier,
        lambda folder: load_lerobot_classifier(folder, "cpu"),
        ("config.json", "model.safetensors", "encoder/config.json"),
    ),
    "adapter": (
        make_adapter,
        lambda folder: VlmJudgeConfig(model=str(folder), device="cpu").load_backend(),
        ("adapter.json", "adapter_model.safetensors", "adapter_config.json"),
    ),
    "vision-language model": (
        lambda folder: shutil.copytree(save_tiny(folder.with_name("base")), folder),
        lambda folder: load_base(vlm(folder)),
        ("config.json", "model.safetensors", "tokenizer.json"),
    ),
    "policy": (make_policy, use_policy, ("model.safetensors", "normalizer.json", "components/net.yaml")),
    "checkpoint": (
        lambda folder: save_checkpoint(folder, Sac(LEARNER, EnvSpec(2, 1, {})), {"step": 1}),
        lambda folder: load_checkpoint(folder, Sac(LEARNER, EnvSpec(2, 1, {}))),
        ("state.json", "model.safetensors"),
    ),
    "run": (make_run, RunFolder.reopen, ("config.yaml", "metrics.jsonl", "judge/history.jsonl")),
    "certificate": (
        make_certificate,
        lambda folder: load_certificate(folder / "certificate.json"),
        ("certificate.json",),
    ),
    "encoder weights": (
        make_resnet10,
        lambda folder: Resnet10Config(
            **LerobotClassifier(type="reward_classifier", model_name=str(folder)).encoder
        ).build(),
        ("model.safetensors",),
    ),
    "transformers encoder": (make_transformers, use_transformers, ("config.json", "model.safetensors")),
    "store": (counted_store, use_store, ("store.json", "journal", "segments/000000/steps.bin")),
    "data set": (
        lambda folder: write_v21(folder, (5,)),
        use_dataset,
        (
            "meta/info.json",
            "meta/episodes.jsonl",
            "data/chunk-000/episode_000000.parquet",
            f"videos/chunk-000/{CAMERA}/episode_000000.mp4",
        ),
    ),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Callable[[str], Path]:
    """The folder of a kind, made once."""
    folders: dict[str, Path] = {}

    def make(kind: str) -> Path:
        if kind not in folders:
            torch.manual_seed(0)
            folders[kind] = tmp_path_factory.mktemp("made") / "folder"
            KINDS[kind][0](folders[kind])
        return folders[kind]

    return make


def link_file(path: Path, outside: Path) -> None:
    path.rename(outside)
    path.symlink_to(outside)


def link_folder(path: Path, outside: Path) -> None:
    path.parent.rename(outside)
    path.parent.symlink_to(outside)


def pipe(path: Path, outside: Path) -> None:
    path.unlink()
    os.mkfifo(path)


CASES = [(kind, name) for kind, (_, _, names) in KINDS.items() for name in names]


def attempt(made: Callable[[str], Path], kind: str, tmp_path: Path, change: Callable[[Path], None]) -> str:
    """What is said of a copy of the folder that was changed; "" where it is used without an error."""
    shutil.copytree(made(kind), tmp_path / "folder")
    change(tmp_path / "folder")
    try:
        KINDS[kind][1](tmp_path / "folder")
    except PlauditError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_of_plain_files_is_used(made, tmp_path, kind):
    assert attempt(made, kind, tmp_path, lambda folder: None) == ""


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_a_linked_file_is_not_read(made, tmp_path, kind, name):
    assert "link" in attempt(made, kind, tmp_path, lambda folder: link_file(folder / name, tmp_path / "outside"))


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("kind", "name"), CASES)
def test_a_pipe_is_not_waited_for(made, tmp_path, kind, name):
    assert attempt(made, kind, tmp_path, lambda folder: pipe(folder / name, tmp_path / "outside"))


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, name in CASES if "/" in name])
def test_a_linked_folder_is_not_entered(made, tmp_path, kind, name):
    assert "link" in attempt(made, kind, tmp_path, lambda folder: link_folder(folder / name, tmp_path / "outside"))


def test_a_file_that_the_user_names_may_be_a_link(made, tmp_path):
    (tmp_path / "weights").symlink_to(made("encoder weights") / "model.safetensors")
    Resnet10Config(weights=tmp_path / "weights").build()
    (tmp_path / "policy.yaml").write_text(
        "policy: {type: flow, state_dim: 2, action_dim: 1, horizon: 3}\n"
        f"weights: {tmp_path}/taught\nnormalizer: {tmp_path}/statistics\n"
    )
    (tmp_path / "taught").symlink_to(made("policy") / "model.safetensors")
    (tmp_path / "statistics").symlink_to(made("policy") / "normalizer.json")
    load_policy(tmp_path / "policy.yaml").build()


def use_collection(folder: Path) -> None:
    with Store.create(folder.with_name("collected")) as store:
        Collection(CollectConfig(store=store.folder), store, folder)


@pytest.mark.parametrize(
    ("use", "name"),
    [
        (use_collection, "collect_id"),
        (Mirror, "collected.json"),
        (Mirror, "remote.json"),
        (lambda folder: prepare_work(folder, {"seed": 0}), "resume_key.json"),
    ],
)
def test_a_file_without_end_is_not_read(tmp_path, use, name):
    counted_store(tmp_path / "folder", episodes=0)
    (tmp_path / "folder" / name).touch()
    os.truncate(tmp_path / "folder" / name, 1 << 40)
    with pytest.raises(DataError, match=rf"{name}.* has 1,099,511,627,776 bytes; the limit"):
        use(tmp_path / "folder")


# Files of the system, of this process, or of the user alone.
READ_BY_PATH = {
    *("cluster/check.py", "cluster/launch.py", "cluster/state.py", "data/formats/worker.py", "report/video.py"),
    *("robots/twin/log.py", "testing/invariants.py", "testing/env.py", "testing/people.py", "testing/runner.py"),
    *("training/evaluation.py", "training/replay_buffer.py", "web/server.py", "web/tasks.py"),
}


def test_nothing_else_reads_a_file_by_its_path():
    source = Path(plaudit.__file__).parent
    reads = re.compile(r"\.read_(text|bytes)\(|\bnp\.load\(|\btorch\.load\(|\.open\(\"r?b?\"?\)|\bload_file\(\w*path")
    found = {str(p.relative_to(source)) for p in source.rglob("*.py") if reads.search(_code(p))}
    assert found <= READ_BY_PATH, f"open these through plaudit.files.Root: {sorted(found - READ_BY_PATH)}"


def _code(path: Path) -> str:
    """Without the module's docstring."""
    text = path.read_text()
    return text.split('"""', 2)[-1] if text.startswith('"""') else text
