"""Making a reward model: a folder that appears whole, with a page that says how far to trust it.

runs/reward_model/
  model.json             network, preprocessing, cameras, calibration, threshold, scores, controls, data
  member_0.safetensors   weights, of each member
  curve.jsonl            one line an epoch
  held_out.jsonl         one line an episode that it was measured on: what it said of each frame, and what is true
  report.html            what a person looks at before believing it

While it trains there is `.reward_model.work` beside it, from which the same call goes on after Ctrl-C or kill -9. It
is removed when the model is there, and when the training failed in a way that it would fail again.
"""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from plaudit.data.store import Store
from plaudit.data.transfer import new_folder
from plaudit.errors import PlauditError, TargetNotEmpty
from plaudit.judges.classifier.checkpoint import RewardModel
from plaudit.judges.classifier.config import RewardTrainConfig
from plaudit.judges.classifier.dataset import PARTS
from plaudit.judges.classifier.features import Track
from plaudit.judges.classifier.fit import TrainResult, fit
from plaudit.judges.classifier.judge import ClassifierJudge
from plaudit.judges.classifier.training import EpochMetrics
from plaudit.judges.config import save_own_judge
from plaudit.judges.metrics import calibration_curve
from plaudit.report.judge import write_judge_report


def work_folder(target: Path) -> Path:
    return target.with_name(f".{target.name}.work")


def train_and_save(
    source: Store, target: Path, config: RewardTrainConfig, watch: Callable[[EpochMetrics], bool], track: Track
) -> TrainResult:
    """Train, measure, write. `TrainingInterrupted` where `watch` wanted no further epoch: the same call goes on."""
    check_free(target, "--output-dir")
    work = work_folder(target)
    try:
        fitted = fit(source, config, work, watch, track)
    except PlauditError:
        shutil.rmtree(work, ignore_errors=True)
        raise
    with new_folder(target) as folder:
        fitted.model.save_pretrained(folder)
        save_own_judge(folder, ClassifierJudge(fitted.model).rule)
        _write_lines(folder / "curve.jsonl", [asdict(epoch) for epoch in fitted.curve])
        _write_lines(folder / "held_out.jsonl", [scored.to_json() for scored in fitted.tested])
        write_report(folder / "report.html", f"Reward model: {target.name}", fitted, config)
    shutil.rmtree(work)
    return fitted


def _write_lines(path: Path, trees: Sequence[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(tree) + "\n" for tree in trees))


def check_free(target: Path, option: str) -> None:
    """Before anything long: a model is never written over something."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise TargetNotEmpty(f"{target} is there already; nothing was trained, name another with {option}")


def write_report(path: Path, title: str, fitted: TrainResult, config: RewardTrainConfig) -> None:
    success_prob = np.concatenate([prediction.success_prob for prediction in fitted.tested])
    target = np.concatenate([prediction.target for prediction in fitted.tested])
    write_judge_report(
        path,
        title,
        fitted.scores,
        fitted.controls,
        calibration_curve(success_prob, target),
        fitted.worst,
        history=_curve(fitted.curve, len(fitted.model.members)),
        metadata=_facts(fitted.model, config),
    )


def _curve(epochs: Sequence[EpochMetrics], members: int) -> list[dict[str, float]]:
    """As the page draws it: members of an ensemble are lines of their own."""
    lines = []
    for epoch in epochs:
        who = f" {epoch.member}" if members > 1 else ""
        losses = {f"loss/train{who}": epoch.train_loss, f"loss/held out{who}": epoch.validation_loss}
        lines.append({"epoch": epoch.epoch, **losses, f"accuracy/train{who}": epoch.train_acc})
    return lines


def _facts(model: RewardModel, config: RewardTrainConfig) -> dict[str, str]:
    facts, shape = model.facts, model.shape
    cameras = ", ".join(f"{camera} {height}x{width}" for camera, (height, width) in shape.cameras.items())
    resized = "" if shape.image_size is None else ", resized to {}x{}".format(*shape.image_size)
    threshold = facts.threshold
    chosen = (
        f"{threshold['value']:.4g}, chosen on the validation episodes for at most {threshold['target']:.1%} of failure "
        f"frames called; there it let {threshold['fpr']:.2%} through "
        f"({threshold['low']:.2%} to {threshold['high']:.2%})"
    )
    return {
        "cameras": cameras + resized,
        "encoder": f"{shape.encoder.type}, {_history(config)}",
        "episodes": ", ".join(f"{facts.data.episodes[part]:,} for {part}" for part in PARTS),
        "frames": ", ".join(f"{facts.data.frames[part]:,} for {part}" for part in PARTS),
        "labels of": ", ".join(facts.data.sources),
        "threshold": chosen,
        "members": f"{len(model.members)}, best after epochs {', '.join(map(str, facts.training['best_epochs']))}",
        "data fingerprint": facts.data.fingerprint,
        "model fingerprint": model.fingerprint,
        "training": f"{facts.training['seconds']:,.0f} s on {facts.training['device']}",
    }


def _history(config: RewardTrainConfig) -> str:
    """Where its weights began, and which of them moved."""
    began = "trained elsewhere" if config.encoder.pretrained else "from random weights"
    moved = "its first part frozen" if config.freezes_stem else "frozen" if config.frozen else "all of it trained"
    return f"{began}, {moved}"
