"""Making a reward model or a VLM adapter: a folder that appears complete.

runs/reward_model/
  model.json             network, preprocessing, cameras, calibration, threshold, scores, controls, data
  member_0.safetensors   weights, of each member
  curve.jsonl            one line per epoch
  held_out.jsonl         one line per held-out episode: predictions and labels of each frame
  tensorboard/           the same as curve.jsonl, as event files
  report.html            how reliable it is

While it trains, `.reward_model.work` next to it has the state from which the same call continues after Ctrl-C or
kill -9, and event files for `tensorboard --logdir`. It is removed when the model is complete, and after an error that
would occur again.
"""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from plaudit.data.store import Store
from plaudit.data.transfer import check_new, new_folder
from plaudit.errors import PlauditError
from plaudit.judges.classifier.budget import Choice
from plaudit.judges.classifier.config import RewardTrainConfig
from plaudit.judges.classifier.dataset import SPLITS
from plaudit.judges.classifier.fit import TrainResult, train_reward_model
from plaudit.judges.classifier.judge import ClassifierJudge
from plaudit.judges.classifier.training import ProgressBars
from plaudit.judges.config import save_own_judge
from plaudit.judges.epochs import EpochMetrics, StepMetrics, Watch, never_stop
from plaudit.judges.vlm.config import VlmJudgeConfig
from plaudit.judges.vlm.tune import TuneConfig, TuneResult, tune_judge
from plaudit.report.verdict import Verdict, judge_verdict, progress_verdict, quoted
from plaudit.training.trackers import TensorBoard

CURVE = "tensorboard"
CURVE_LINES = "curve.jsonl"  # a line per epoch


def work_folder(target: Path) -> Path:
    """Where a training keeps its state until the model is complete."""
    return target.with_name(f".{target.name}.work")


def train_and_save(
    source: Store,
    target: Path,
    config: RewardTrainConfig,
    watch: Watch,
    track: ProgressBars,
    on_choice: Callable[[Choice], object] = never_stop,
    begun: float | None = None,
) -> TrainResult:
    """Train, measure and write a reward model. If `watch` returns False, this raises `TrainingInterrupted`, and
    the same call continues.

    For the arguments, see `train_reward_model`.
    """
    check_new(target, option="--output-dir")
    work = work_folder(target)
    with epochs_curve(work, watch) as log_and_watch:
        fitted = train_reward_model(source, config, work, log_and_watch, track, on_choice, begun)
    with new_folder(target) as folder:
        fitted.model.save_pretrained(folder)
        judge = ClassifierJudge(fitted.model, fitted.rule)
        save_own_judge(folder, judge.rule, kind=judge.id.source)
        save_curve(folder, work, fitted.history)
        _write_lines(folder / "held_out.jsonl", [scored.to_json() for scored in fitted.predictions])
        write_report(folder / "report.html", fitted, target, source.folder)
    shutil.rmtree(work)
    return fitted


@contextmanager
def epochs_curve(work: Path, watch: Watch) -> Iterator[Watch]:
    """A callback that writes each epoch to the work folder, as event files and as the lines that a page shows, and
    calls `watch`. The folder is removed after an error that would occur again."""
    curve = TensorBoard(work / CURVE)

    def log_and_watch(now: EpochMetrics | StepMetrics) -> bool:
        if isinstance(now, EpochMetrics):
            with (work / CURVE_LINES).open("a") as file:
                file.write(json.dumps(asdict(now)) + "\n")
            if not now.fold:
                curve.log(now.epoch, _scalars(now))
        return watch(now)

    try:
        yield log_and_watch
    except PlauditError:
        shutil.rmtree(work, ignore_errors=True)
        raise
    finally:
        curve.close()


def save_curve(folder: Path, work: Path, history: Sequence[EpochMetrics]) -> None:
    """Write the curve of a training to the folder of its result."""
    _write_lines(folder / CURVE_LINES, [asdict(epoch) for epoch in history])
    if (work / CURVE).is_dir():
        shutil.copytree(work / CURVE, folder / CURVE)


def _write_lines(path: Path, trees: Sequence[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(tree) + "\n" for tree in trees))


def write_report(path: Path, fitted: TrainResult, model: Path, store: Path) -> None:
    """model, store: where the model will be and what it was trained on, for the page's title and commands"""
    from plaudit.report.judge import (  # matplotlib takes a second to import
        JudgeReport,
        live_and_offline,
        write_judge_report,
    )

    info, classifier, config = fitted.model.config, fitted.model.classifier, fitted.config
    cameras = ", ".join(f"{camera} {height}x{width}" for camera, (height, width) in classifier.cameras.items())
    resized = "" if classifier.image_size is None else ", resized to {}x{}".format(*classifier.image_size)
    began = "trained elsewhere" if config.encoder.pretrained else "from random weights"
    moved = "its first part frozen" if config.freezes_stem else "frozen" if config.frozen else "all of it trained"
    threshold, fitted_on = info.threshold, info.forecast.cross_fitted if info.forecast else 0
    where = f"{fitted_on:,} cross-fitted episodes" if fitted_on else "the validation episodes"
    metadata = {
        "cameras": cameras + resized,
        "encoder": f"{classifier.encoder.type}, {began}, {moved}",
        "episodes": ", ".join(f"{info.data.episodes[part]:,} for {part}" for part in SPLITS),
        "frames": ", ".join(f"{info.data.frames[part]:,} for {part}" for part in SPLITS),
        "labels of": ", ".join(info.data.sources),
        "threshold": f"{threshold['value']:.4g}, chosen on {where} for at most {threshold['target']:.1%} of failure "
        f"frames called; there it let {threshold['fpr']:.2%} through "
        f"({threshold['low']:.2%} to {threshold['high']:.2%})",
        "members": f"{len(fitted.model.members)}, best after epochs "
        f"{', '.join(map(str, info.training['best_epochs']))}",
        "data fingerprint": info.data.fingerprint,
        "model fingerprint": fitted.model.fingerprint,
        "training": f"{info.training['seconds']:,.0f} s on {info.training['device']}",
    }
    report = JudgeReport(
        model.name,
        fitted.metrics,
        fitted.controls,
        fitted.predictions,
        fitted.errors,
        live_and_offline(fitted.metrics),
        metadata,
        guarantee=info.promise,
        forecast=info.forecast,
        history=[{"epoch": epoch.epoch, **_scalars(epoch)} for epoch in fitted.history],
    )
    write_judge_report(path, f"Reward model: {model.name}", report, model_verdict(fitted, model, store))


def model_verdict(fitted: TrainResult, model: Path, store: Path) -> Verdict:
    """Whether a model is usable, for its page and its command."""
    order, names = fitted.model.config.value_order, {"judge": str(model), "store": str(store)}
    if order is not None:
        return progress_verdict(order, len(fitted.predictions), fitted.controls, str(model), str(store))
    return judge_verdict(fitted.metrics.causal, fitted.controls, fitted.model.config.promise, **names)


def _scalars(epoch: EpochMetrics) -> dict[str, float]:
    """The curves of an epoch, by name; each member of an ensemble has its own."""
    who = f" {epoch.member + 1}" if epoch.member else ""
    losses = {f"loss/train{who}": epoch.train_loss, f"loss/held out{who}": epoch.validation_loss}
    return {**losses, f"accuracy/train{who}": epoch.train_acc}


def tune_and_save(
    store: Store,
    target: Path,
    judge: VlmJudgeConfig,
    config: TuneConfig,
    watch: Watch = never_stop,
    ids: Sequence[int] | None = None,
) -> TuneResult:
    """Train, measure and write an adapter. Interrupted like `train_and_save`."""
    check_new(target, option="--output-dir")
    work = work_folder(target)
    with epochs_curve(work, watch) as log_and_watch:
        tuned = tune_judge(store, judge, config, work, log_and_watch, ids)
    with new_folder(target) as folder:
        tuned.save(folder)
        save_curve(folder, work, tuned.history)
        _write_tune_report(folder / "report.html", tuned, target)
    shutil.rmtree(work)
    return tuned


def tune_verdict(tuned: TuneResult, target: Path) -> Verdict:
    """Facts about an adapter before its calibration, for its page and its command."""
    after, before = tuned.metrics.roc_auc, tuned.before.roc_auc
    why = f"ROC AUC on the {tuned.metrics.episodes} episodes that chose the epoch: {after:.3f} (before: {before:.3f})."
    result = "Not better than before."
    if after > before:
        result = "Better than before, but not yet measured on other episodes."
    command = f"plaudit judge calibrate OTHER_STORE --config {quoted(target)} --output {quoted(target / 'judge.yaml')}"
    return Verdict(result, why, "Calibrate it on unseen episodes", command, "open")


def _write_tune_report(path: Path, tuned: TuneResult, target: Path) -> None:
    from plaudit.report.judge import JudgeReport, live_and_offline, write_judge_report

    history = [{"epoch": epoch.epoch, **_scalars(epoch)} for epoch in tuned.history]
    about = "The controls, the guarantee and the threshold are those of plaudit judge exam and plaudit judge calibrate."
    report = JudgeReport(
        target.name,
        tuned.metrics,
        (),
        tuned.predictions,
        tuned.errors,
        live_and_offline(tuned.metrics),
        tuned.metadata,
        (f"These episodes chose the epoch, so the figures are optimistic. {about}",),
        history=history,
    )
    write_judge_report(path, f"Tuned judge: {target.name}", report, tune_verdict(tuned, target))
