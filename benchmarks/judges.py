"""A judge of a real robot's episodes, measured and calibrated as a user would: a Unitree G1 picks up a bottle.

    python benchmarks/judges.py [--data FOLDER] [--device cuda] [--quick]

A small network is trained on the first 20 episodes and compared with the cutoffs of the others, which were set by eye:
frames, the first success frame on its labels and live, and the controls. Then its rule is fitted on those others for 1%
of failure frames, and tried on held-out parts of them. It is about the path from a store to a number and not
about the network; benchmarks/real_images.py has better ones. Frames from where the bottle is let go are left out.
"""

import argparse
import tempfile
import time
from pathlib import Path

import torch
from rich.console import Console

from bars import Bars
from plaudit.data.store import Store
from plaudit.encoders import SmallConfig
from plaudit.judges.calibration import calibrate
from plaudit.judges.classifier.checkpoint import RewardModel
from plaudit.judges.classifier.config import RewardTrainConfig
from plaudit.judges.classifier.fit import train_reward_model
from plaudit.judges.classifier.judge import ClassifierJudge
from plaudit.judges.evaluation import JudgeEvaluation, evaluate, load_reference_labels, score_episodes
from plaudit.report.judge import decode_results, decode_table, judge_table, save_evaluation
from real_images import DATA, TRAINED_ON, prepare, quiet, read, told

TARGET = 0.01  # failure frames that may be called
QUICK = {"epochs": 2, "train_fps": 2.0, "image_size": (48, 64)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--page", type=Path, help="a folder to make, with the page of the evaluation")
    parser.add_argument(
        "--quick", action="store_true", help="few episodes, small images: whether it runs, not how well"
    )
    options = parser.parse_args()
    if not options.data.is_dir():
        raise SystemExit(f"{options.data} is not there; name the folder of g1_bottle with --data")
    trained_on, last = (8, 12) if options.quick else (TRAINED_ON, len(read(options.data, "cutoffs")))
    with tempfile.TemporaryDirectory() as folder:
        known, unseen = (Path(folder) / name for name in ("known", "unseen"))
        prepare(options.data, known, range(trained_on))
        prepare(options.data, unseen, range(trained_on, last))
        model = trained(Store.open(known), Path(folder) / "work", options.device, options.quick)
        found = measured(model, Store.open(unseen), options.page)
    bars = Bars()
    if options.quick:  # eight episodes, two epochs, four episodes to measure
        bars.left_out("how well it judges: ROC-AUC, how far its cutoffs are off, and whether it passes its controls")
    else:
        bars.at_least("judge_eval_roc_auc", found.metrics.roc_auc, 0.93)
        bars.at_most("judge_eval_onset_median", found.label_metrics.onset_median, 12)
        asked = [control for control in found.controls if control.frames]
        bars.at_least("judge_eval_controls_passed", sum(control.passed for control in asked), len(asked))
    bars.report()


def trained(store: Store, work: Path, device: str, quick: bool) -> RewardModel:
    settings = {"epochs": 8, "train_fps": 4.0, "image_size": (96, 128), **(QUICK if quick else {})}
    shares = {"val_fraction": 0.2, "test_fraction": 0.0}
    config = RewardTrainConfig(encoder=SmallConfig(), lr=1e-3, device=device, **shares, **settings)
    return train_reward_model(
        store, config, work, lambda epoch: bool(print(f"  {told(epoch)}", flush=True)) or True, quiet
    ).model


def measured(model: RewardModel, store: Store, page: Path | None) -> JudgeEvaluation:
    judge = ClassifierJudge(model)
    targets = load_reference_labels(store, ("human",))
    began = time.monotonic()
    found = evaluate(store, judge, targets)
    seconds = time.monotonic() - began
    show(found, f"the classifier beside the cutoffs, {len(targets)} unseen episodes, {seconds:.0f} s on {model.device}")
    if page is not None:
        save_evaluation(page, "classifier", found, {"model": model.fingerprint})
    fitted, held_back = calibrate(score_episodes(store, judge, targets)[0], judge.rule, TARGET)
    rate = held_back.fpr
    print(
        f"its rule fitted on these: {fitted.rule.describe()}; held out, {rate.value:.2%} "
        f"({rate.low:.2%} to {rate.high:.2%}) of failure frames called, {held_back.recall:.1%} of success frames, "
        f"cutoffs off by {held_back.cutoffs.onset_median:g} frames in the median"
    )
    return found


def show(found: JudgeEvaluation, title: str) -> None:
    console = Console(width=120)
    console.print(judge_table(title, found.metrics, found.controls), decode_table(decode_results(found)), sep="\n")


if __name__ == "__main__":
    torch.set_float32_matmul_precision("high")
    main()
