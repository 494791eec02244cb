"""Attacks on whatever reads trained things of somebody else: files of weights, reward models, policies, runs.

Sound ones are made, and damaged in every way that is listed: archives that lie about their numbers, heads that lie
about their tensors, each key of each description with each strange value, sizes that no memory holds, pipes, devices
and links in place of each file, bytes changed and cut off. What reads them must come to an end by itself, with success
or a sentence; what it costs in memory is counted above what the process had before.
"""

import json
import os
import resource
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from attacks.datasets import read_one
from attacks.hostile import BAD_JSON, BAD_YAML, VALUES, Bait
from attacks.tally import Tally, sample
from attacks.torch_files import HEADS, hostile_archives
from plaudit.data.normalize import Normalizer
from plaudit.data.weights import load_checkpoint, save_checkpoint
from plaudit.encoders import SmallConfig, read_state_dict
from plaudit.judges.classifier.checkpoint import RewardModel, RewardModelConfig, TrainingDataInfo
from plaudit.judges.classifier.judge import load_reward_model
from plaudit.judges.classifier.model import BinaryRewardClassifier, ClassifierConfig
from plaudit.learners.config import SacConfig
from plaudit.learners.sac import Sac
from plaudit.policies.config import FlowConfig
from plaudit.policies.loader import load_policy, read_weights, save_policy
from plaudit.policies.networks import weights_of
from plaudit.report.run import write_run_report
from plaudit.training.config_file import load_training_config
from plaudit.training.retrain import DECISION_FILE, JudgeEvalSummary, PromotionDecision, decisions
from plaudit.training.run_folder import RunFolder
from plaudit.types import EnvSpec

QUICK, FULL = 4, 400  # of each class
ROOM = 4 << 30  # bytes that this process may take beyond what it has; more would end the machine before the bar is read
LARGE = (2**31, 10**9, 10**30, [10**6, 10**6], [2**31] * 4, {"front": [10**6, 10**6]}, ["x"] * 10_000)
HEAVY = ("a head of 90 MB", "a million tensors of nothing", "many entries", "compressed", "the same numbers ten thous")

Try = tuple[str, Callable[[Path], Any]]  # what it is called, and the damage to a copy
Read = Callable[[Path], Any]


def attacks(folder: Path, rng: np.random.Generator, quick: bool) -> Iterator[Tally]:
    """See the module."""
    bait = Bait.lay(folder / "bait")
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (_private() + ROOM, before[1]))
    try:
        sound = made(folder / "sound")
        yield from _files(folder / "files", bait, rng, quick)
        for name, read in READERS.items():
            read(shutil.copytree(sound / name, folder / "read" / name))  # otherwise a refusal would prove nothing
            tries = [*damaged(sound / name, rng), *descriptions(sound / name), *large(sound / name)]
            chosen = sample(tries, rng, QUICK if quick else FULL)
            yield _each(f"weights: {name}", chosen, sound / name, folder / "work", read, bait)
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)
        bait.close()


def _private() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmData:")).split()[1]) << 10


def _files(folder: Path, bait: Bait, rng: np.random.Generator, quick: bool) -> Iterator[Tally]:
    """Single files, by whoever may be given one."""
    folder.mkdir()
    torches = [one for one in hostile_archives(bait) if not quick or not one[0].startswith(HEAVY)]
    heads = [one for one in HEADS.items() if not quick or not one[0].startswith(HEAVY)]
    for name, contents, readers in (
        ("m.pt", torches, (lambda path: load_reward_model(path, "cpu"), read_state_dict)),
        ("w.safetensors", heads, (read_weights, read_state_dict)),
    ):
        tally = Tally(f"weights: files like {name}")
        for label, make in sample(contents, rng, QUICK if quick else FULL):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # two entries of one name are what is meant
                (folder / name).write_bytes(make())
            for read in readers:
                read_one(tally, f"{name}, {label}", lambda read=read, path=folder / name: read(path), bait)
        yield tally


def _each(name: str, tries: list[Try], sound: Path, work: Path, read: Read, bait: Bait) -> Tally:
    tally = Tally(name)
    for label, damage in tries:
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(sound, work)
        damage(work)
        read_one(tally, label, lambda: read(work), bait)
    shutil.rmtree(work, ignore_errors=True)
    return tally


# What is damaged


def damaged(sound: Path, rng: np.random.Generator) -> Iterator[Try]:
    """Each file cut, with bytes changed, and as a pipe, a device, a folder or a link to nothing."""
    for path in sorted(found for found in sound.rglob("*") if found.is_file() and "tensorboard" not in str(found)):
        file, data = path.relative_to(sound), path.read_bytes()
        for cut in {0, 1, len(data) // 2, len(data) - 1}:
            yield f"{file} cut to {cut}", lambda folder, f=file, d=data[:cut]: (folder / f).write_bytes(d)
        for at in rng.integers(0, len(data), 4):
            value = bytes([data[at] ^ int(rng.integers(1, 256))])
            changed = data[:at] + value + data[at + 1 :]
            yield f"{file} byte {at} = {value[0]}", lambda folder, f=file, d=changed: (folder / f).write_bytes(d)
        yield f"{file} a pipe", lambda folder, f=file: ((folder / f).unlink(), os.mkfifo(folder / f))
        yield f"{file} a folder", lambda folder, f=file: ((folder / f).unlink(), (folder / f).mkdir())
        for target in ("/dev/zero", "/dev/stdin", "nothing", "/etc/shadow"):
            yield f"{file} a link to {target}", lambda folder, f=file, t=target: _link(folder / f, t)
        texts = {".json": BAD_JSON, ".jsonl": BAD_JSON, ".yaml": BAD_YAML}.get(path.suffix, {})
        for label, text in texts.items():
            yield f"{file}: {label}", lambda folder, f=file, d=text: (folder / f).write_bytes(d)


def _link(path: Path, target: str) -> None:
    path.unlink()
    path.symlink_to(target)


def descriptions(sound: Path) -> Iterator[Try]:
    """Each key of each JSON file of it, and of each line, with each strange value."""
    for path in sorted([*sound.rglob("*.json*"), *sound.rglob("config.yaml")]):  # the latter is written as JSON below
        file = path.relative_to(sound)
        trees = [json.loads(line) for line in path.read_text().splitlines()] if path.suffix == ".jsonl" else []
        tree = trees[-1] if trees else json.loads(path.read_text())
        for where in keys(tree):
            for label, value in VALUES.items():
                yield f"{file} {'.'.join(where)} = {label}", _changed(file, tree, where, value)


def keys(tree: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in tree.items() if isinstance(tree, dict) else ():
        yield (*above, key)
        yield from keys(value, (*above, key))


def large(sound: Path) -> Iterator[Try]:
    """Each number and each list of a description, larger than any memory."""
    for path in sorted([*sound.rglob("*.json"), *sound.rglob("config.yaml")]):
        tree = json.loads(path.read_text())
        for where in keys(tree):
            for value in LARGE:
                file = path.relative_to(sound)
                yield f"{file} {'.'.join(where)} = {str(value)[:30]}", _changed(file, tree, where, value)


def _changed(file: Path, tree: Any, where: tuple[str, ...], value: Any) -> Callable[[Path], Any]:
    def damage(folder: Path) -> None:
        copy = json.loads(json.dumps(tree))
        inner = copy
        for key in where[:-1]:
            inner = inner[key]
        if value is VALUES["missing"]:
            del inner[where[-1]]
        else:
            inner[where[-1]] = value
        (folder / file).write_text(json.dumps(copy) + "\n")

    return damage


# What is sound, and who reads it


def made(folder: Path) -> Path:
    """One of each kind."""
    _model().save_pretrained(_new(folder / "reward models"))
    config = FlowConfig(state_dim=2, action_dim=1, horizon=4)
    normalizer = Normalizer.identity(2, 1)
    policy = save_policy(_new(folder / "policies"), config, weights_of(1, config.build().components), normalizer)
    tree = {"policy": config.model_dump(mode="json"), "weights": "model.safetensors", "normalizer": "normalizer.json"}
    policy.with_name("policy.json").write_text(json.dumps(tree))
    save_checkpoint(folder / "checkpoints", _learner(), {"step": 3})
    _run(_new(folder / "runs"))
    return folder


def _new(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def _model() -> RewardModel:
    shape = ClassifierConfig(encoder=SmallConfig(widths=(4, 8)), cameras={"front": (16, 16)}, hidden_dim=16)
    facts = RewardModelConfig(
        classifier=shape,
        frozen_encoder=False,
        calibration=((1.0, 0.0),),
        threshold={"value": 0.5},
        scores={},
        controls=(),
        problems=(),
        data=TrainingDataInfo(fingerprint="none", episodes={}, frames={}, sources=()),
        training={},
    )
    return RewardModel([BinaryRewardClassifier(shape)], facts, "cpu")


def _learner() -> Sac:
    torch.manual_seed(0)
    return Sac(SacConfig(hidden_dims=(8, 8)), EnvSpec(2, 1, {}))


def _run(folder: Path) -> None:
    config = load_training_config("online", None, ["env=lift", "learner=sac", "judge=human"])
    (folder / "config.yaml").write_text(config.model_dump_json())
    line = {"step": 10, "time/elapsed_s": 1.0, "rollout/episodes": 2, "learner/updates": 3, "eval/success_once": 0.5}
    line |= {"judge/success_once": 0.5, "audit/success_gap": 0.1, "audit/episodes": 3, "policy/version": 2}
    (folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    event = {"time": 1.0, "elapsed_s": 1.0, "episodes": 1, "step": 10, "event": "ended", "message": "finished"}
    (folder / "events.jsonl").write_text(json.dumps(event) + "\n")
    summary = JudgeEvalSummary("m", {"online failures": 4}, {"online failures": 5}, 0.1, 0.0, 0.2, 0.9, ())
    decision = PromotionDecision(1, True, "promoted", folder / "judge/0001", summary, summary, 1, 1.0, 1.0)
    (_new(folder / "judge/0001") / DECISION_FILE).write_text(json.dumps(decision.to_json()))
    save_checkpoint(folder / "checkpoints/000000000010", _learner(), {"step": 10})


def _read_policy(folder: Path) -> None:
    for name in ("policy.yaml", "policy.json"):
        spec = load_policy(folder / name)
        spec.build()
        if spec.normalizer is not None:
            Normalizer.load(spec.normalizer)


def _read_run(folder: Path) -> None:
    """As `plaudit report` and `plaudit online --resume` do."""
    write_run_report(folder)
    run = RunFolder.reopen(folder, "online")
    run.metrics()
    run.newest_state()
    decisions(run.judge)


READERS: dict[str, Read] = {
    "reward models": lambda folder: load_reward_model(folder, "cpu"),
    "policies": _read_policy,
    "checkpoints": lambda folder: load_checkpoint(folder, _learner()),
    "runs": _read_run,
}
