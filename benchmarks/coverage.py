"""Whether a reward model's report is true of other episodes: its intervals, and the rates that it promises.

    python benchmarks/coverage.py [--data FOLDER] [--splits 20] [--jobs N] [--only real|simulated] [--quick]

Of 30 episodes 20 are known and 10 are others, at random, again and again: those of g1_bottle, and 30 of a pool of
simulated ones (`lift`, scripted successes and failures). On the known ones a model is trained as `plaudit train-reward`
does on a processor, with its split, its members and its five folds; then the figures of the others are compared with
the prediction intervals in its report, and the false positives of the others with each rate that is proven for a
threshold. The same model is also reported as without cross-fitting, which is the default: by its validation and test
episodes alone. The encoder stands still, so every image is encoded once for all splits.

Six times as many models as splits are trained, times the members. So a processor trains smaller ones: a single member
of single frames, 96x128, ten a second. With a GPU they are those of `plaudit train-reward`, of every frame.
"""

import argparse
import os
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch

from bars import Bars
from plaudit.data.store import Store
from plaudit.devices import resolve_device
from plaudit.envs.panda import PandaConfig
from plaudit.judges.classifier.config import RewardTrainConfig
from plaudit.judges.classifier.dataset import RewardDataset, Split, add_blank_negatives, split, subsample
from plaudit.judges.classifier.fit import (
    OutOfFold,
    choose_rule,
    cross_fit,
    episode_predictions,
    held_out_predictions,
)
from plaudit.judges.classifier.training import CachedFeatures, TrainRun, cache_features, train_member
from plaudit.judges.guarantee import Forecast, episode_losses, make_forecast
from plaudit.rollout.collector import EpisodeTargets
from plaudit.rollout.scripted import collect_scripted
from plaudit.types import AnyArray
from real_images import DATA, prepare

KNOWN, OTHERS = 20, 10  # episodes
POOL = EpisodeTargets(45, 45)  # simulated episodes, of which each split has 30
QUICK_KNOWN, QUICK_OTHERS, QUICK_POOL = 12, 4, EpisodeTargets(8, 8)
FIGURES = ("fpr", "recall", "onset_median", "onset_p90")
CONFIG = RewardTrainConfig(freeze_encoder=True, cross_fit=True, num_history_frames=3, ensemble_size=3)
ON_A_PROCESSOR = {
    "ensemble_size": 1,
    "num_history_frames": 0,
    "num_spatial_blocks": 2,
    "num_augmented_views": 2,
    "image_size": (96, 128),
    "epochs": 6,
    "lr": 1e-3,
}
EVERY = {"real": 3, "simulated": 1}  # frame that is looked at, on a processor
STRIDES = {"real": 6, "simulated": 2}  # frames of the history, 0.2 s apart
QUICK = {**ON_A_PROCESSOR, "epochs": 2, "num_augmented_views": 1, "image_size": (64, 96)}


@dataclass(frozen=True)
class Outcome:
    """How the report of one model fared."""

    forecast: Forecast
    others: Mapping[str, float]  # figures of the others; NaN: no success was found
    proven: list[tuple[float, bool]]  # rates with a proven threshold, and whether the others kept them

    def covers(self, figure: str) -> bool:
        """Whether the others' figure lies in its interval; one without an upper end holds that no success was found."""
        interval, other = self.forecast.figures[figure], self.others[figure]
        if np.isnan(interval.low) or np.isnan(other):
            return not np.isnan(interval.low) and np.isinf(interval.high)
        return interval.low - 1e-9 <= other <= interval.high + 1e-9


@dataclass(frozen=True)
class Data:
    """All episodes, and what the encoder makes of them."""

    config: RewardTrainConfig
    table: RewardDataset
    blank: AnyArray  # rows without an episode
    cached: CachedFeatures

    @classmethod
    def open(cls, store: Path, config: RewardTrainConfig, work: Path, every: int) -> "Data":
        """Encodes what is not encoded yet."""
        table = thinned(RewardDataset.from_store(Store.open(store), image_size=config.image_size), every)
        rows = np.arange(len(table))
        everything: dict[Split, AnyArray] = {"train": subsample(table, rows, config.train_fps), "validation": rows}
        table, everything = add_blank_negatives(table, everything, config.seed)
        work.mkdir(exist_ok=True)
        cached = cache_features(table, everything, config, work, lambda _: iter)
        return cls(config, table, everything["train"][table.episode[everything["train"]] < 0], cached)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--device", default="auto")
    parser.add_argument("--only", choices=STRIDES)
    parser.add_argument(
        "--quick", action="store_true", help="two splits of few episodes: whether it runs, not how well"
    )
    options = parser.parse_args()
    on_cpu = resolve_device(options.device).type == "cpu"
    changes = QUICK if options.quick else ON_A_PROCESSOR if on_cpu else {}
    config = CONFIG.model_copy(update={"device": options.device, **changes})
    bars = Bars()
    for name in [options.only] if options.only else STRIDES:
        with tempfile.TemporaryDirectory() as folder:
            store = Path(folder) / "store"
            if name == "simulated":
                simulate(store, QUICK_POOL if options.quick else POOL)
            else:
                if not options.data.is_dir():
                    raise SystemExit(f"{options.data} is not there; name the folder of g1_bottle with --data")
                prepare(options.data, store, range(QUICK_KNOWN + QUICK_OTHERS if options.quick else KNOWN + OTHERS))
            size = config.image_size if name == "real" else None
            mine = config.model_copy(update={"history_stride": STRIDES[name], "image_size": size})
            where = (store, mine, Path(folder) / "work", EVERY[name] if on_cpu else 1)
            found = run(where, 2 if options.quick else options.splits, options.jobs)
        for recipe in found[0]:
            told = tell(f"{name}, {recipe}", [one[recipe] for one in found])
            if not options.quick:
                for figure, share in told.items():
                    bars.at_least(f"coverage_{name}_{recipe.replace('-', '_')}_{figure}", share, 0.9)
    if options.quick:
        bars.left_out("in how many of 20 splits the intervals cover and promises are kept")
    bars.report()


def simulate(folder: Path, pool: EpisodeTargets = POOL) -> None:
    with Store.create(folder) as store:
        env = PandaConfig(type="lift", obs="both", cameras=("front",), image_size=(64, 64))
        collect_scripted(env, store, pool)


def thinned(table: RewardDataset, every: int) -> RewardDataset:
    """Every so many frames of each episode."""
    rows = np.flatnonzero(table.frame_index % every == 0)
    starts = {int(i): n for n, i in reversed(list(enumerate(table.episode[rows])))}
    columns = {name: getattr(table, name)[rows] for name in ("state", "target", "progress", "episode", "frame_index")}
    return replace(
        table,
        images={camera: images[rows] for camera, images in table.images.items()},
        fps=table.fps[rows] / every,
        episode_start=np.array([starts[int(i)] for i in columns["episode"]]),
        **(columns | {"frame_index": columns["frame_index"] // every}),
    )


Where = tuple[Path, RewardTrainConfig, Path, int]  # the arguments of Data.open


def run(where: Where, splits: int, jobs: int) -> list[dict[str, Outcome]]:
    """Every split in a process of its own; they share what is encoded."""
    _open(*where)
    if jobs == 1 or splits == 1:
        return [one_split(seed) for seed in range(splits)]
    with ProcessPoolExecutor(min(jobs, splits), get_context("spawn"), _open, where) as pool:
        return list(pool.map(one_split, range(splits)))


_data: list[Data] = []  # of this process


def _open(store: Path, config: RewardTrainConfig, work: Path, every: int) -> None:
    if resolve_device(config.device).type == "cpu":
        torch.set_num_threads(1)
    _data[:] = [Data.open(store, config, work, every)]


def one_split(seed: int) -> dict[str, Outcome]:
    """Train on the known episodes, read the reports with and without cross-fitting, look at the others."""
    data, table = _data[0], _data[0].table
    config = data.config.model_copy(update={"seed": seed})
    ids = np.unique(table.episode[table.episode >= 0])
    known_count, others_count = (KNOWN, OTHERS) if len(ids) >= KNOWN + OTHERS else (QUICK_KNOWN, QUICK_OTHERS)
    drawn = np.random.default_rng([seed, 19]).permutation(ids).tolist()
    splits = split(table, seed, config.val_fraction, config.test_fraction, drawn[:known_count])
    splits["train"] = np.concatenate([subsample(table, splits["train"], config.train_fps), data.blank])
    with tempfile.TemporaryDirectory() as folder:
        run = TrainRun(config, table, splits, data.cached, Path(folder))
        members = [train_member(i, run)[0] for i in range(config.ensemble_size)]
        scored = cross_fit(run, members)
    assert scored is not None
    others = table.rows_of(drawn[known_count : known_count + others_count])
    few, test, seen = (
        OutOfFold(rows, [member.predict(rows) for member in members])
        for rows in (splits["validation"], splits["test"], others)
    )
    return {
        name: _outcome(config, table, one, test, seen) for name, one in (("cross-fitted", scored), ("default", few))
    }


def _outcome(
    config: RewardTrainConfig, table: RewardDataset, scored: OutOfFold, test: OutOfFold, others: OutOfFold
) -> Outcome:
    """Of a report whose threshold was chosen by `scored`."""
    chosen = choose_rule(config, table, scored)
    known, at_threshold = held_out_predictions(config, table, scored, chosen, test)
    predictions = episode_predictions(table, others, chosen.calibration)
    proven = [
        (step.rate, bool(episode_losses(predictions, step.threshold).mean() <= step.rate))
        for step in chosen.promise.steps
        if step.threshold is not None
    ]
    figures = make_forecast(predictions, chosen.rule).figures
    return Outcome(
        make_forecast(known, chosen.rule, at_threshold=at_threshold, cross_fitted=scored.episodes),
        {name: figure.value for name, figure in figures.items()},
        proven,
    )


def _median(ends: Sequence[float]) -> float:
    """A value that is not there is infinite."""
    return float(np.median(np.nan_to_num(ends, nan=np.inf, posinf=np.inf)))


def tell(name: str, found: list[Outcome]) -> dict[str, float]:
    """By figure, in which share of the splits its interval covers; and in which proven rates are kept."""
    shares = {}
    for figure in FIGURES:
        ends = [one.forecast.figures[figure] for one in found]
        measured, low, high = (_median([getattr(end, name) for end in ends]) for name in ("value", "low", "high"))
        shares[figure] = float(np.mean([one.covers(figure) for one in found]))
        told = ["-" if np.isnan(one.others[figure]) else f"{one.others[figure]:.3g}" for one in found]
        print(
            f"{name}, {figure}: the interval covers the others' figure in {shares[figure]:.0%} of {len(found)} splits; "
            f"measured {measured:.3g} (median), interval {low:.3g} to {high:.3g}; others: {', '.join(told)}",
            flush=True,
        )
    promises = [kept for one in found for kept in one.proven]
    if promises:
        shares["promise"] = float(np.mean([kept for _, kept in promises]))
    rates = {rate: [kept for one, kept in promises if one == rate] for rate in sorted({rate for rate, _ in promises})}
    told = [f"{rate:.0%} in {sum(kept)} of {len(kept)}" for rate, kept in rates.items()]
    print(f"{name}, proven rates that were kept on the others: {', '.join(told) or 'none was proven'}", flush=True)
    return shares


if __name__ == "__main__":
    main()
