"""A reward model on a real robot's images: a Unitree G1 picks up a bottle, filmed from its head.

    python benchmarks/real_images.py [--data FOLDER] [--device cuda] [--seed N] [--quick]
    python benchmarks/real_images.py --cpu          what `plaudit train-reward` chooses without a GPU, in ten minutes
    python benchmarks/real_images.py --compare      settings, on the known episodes alone

Trained on the first 20 episodes, measured on the others, from one image and with the robot's state and a short history.
A processor trains the last part of the encoder, a GPU all of it and three members. Settings are compared (`--compare`)
on four parts of the first 20 episodes, each of which is unseen once; the other episodes decide nothing.

Frames from where the bottle is let go again cannot be told from a single image and are left out everywhere; frames
within 5 of a cutoff, which was set by eye, are left out of the score.

Does a clock explain the score? Most episodes succeed at about the same time, so that a judge of how far the episode has
come would be right most of the time too. Three figures tell them apart: what a clock alone reaches; what is left when
each frame gets the score of another episode's frame at the same moment; and, of pairs of frames at the same moment
of which one shows success, how many the model puts in the right order, where a clock has one half.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.metrics import roc_auc_score

from bars import Bars
from plaudit.data.store import Store
from plaudit.data.transfer import import_dataset
from plaudit.devices import resolve_device
from plaudit.judges.classifier.checkpoint import RewardModel
from plaudit.judges.classifier.config import RewardTrainConfig
from plaudit.judges.classifier.fit import train_reward_model
from plaudit.judges.epochs import StepMetrics
from plaudit.rule import decode_cutoff
from plaudit.types import Labels

DATA = Path(__file__).parents[2] / "shared/data/g1_bottle"
TRAINED_ON = 20  # episodes, the first
NEAR = 5  # frames around a cutoff that are not scored
MOMENTS = 40  # parts of an episode within which two frames count as of the same moment
MINUTES = 10.0  # of --cpu
FOLDS = 4  # parts of the known episodes, each unseen once when settings are compared
BOTH = {"use_state": True, "num_history_frames": 3, "history_stride": 6}
SETTINGS: dict[str, dict[str, Any]] = {
    "last_part": {},
    "last_part_three": {"ensemble_size": 3},
    "all": {"freeze_encoder": False},
    "all_three": {"freeze_encoder": False, "ensemble_size": 3},
}
ON_A_GPU, ON_A_PROCESSOR = "all_three", "last_part"  # an hour or more of training on two cores, against minutes
QUICK = {"epochs": 1, "num_augmented_views": 1, "train_fps": 2.0, "image_size": (64, 96), "patience": 1}


@dataclass(frozen=True)
class UnseenEpisode:
    """One unseen episode, up to where the bottle is let go."""

    probability: np.ndarray  # [F]
    truth: np.ndarray  # [F] bool
    scored: np.ndarray  # [F] bool: not near the cutoff
    moment: np.ndarray  # [F] 0 to 1, how far the whole episode has come
    cutoff: int
    decoded: int | None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--setting", choices=SETTINGS, help="of the encoder; when not given, what the device can do")
    parser.add_argument("--cpu", action="store_true", help="what train-reward chooses on a processor, in ten minutes")
    parser.add_argument("--compare", action="store_true", help="settings, on the known episodes alone")
    parser.add_argument(
        "--quick", action="store_true", help="few episodes, small images: whether it runs, not how well"
    )
    options = parser.parse_args()
    if not options.data.is_dir():
        raise SystemExit(f"{options.data} is not there; name the folder of g1_bottle with --data")
    last = 6 if options.quick else None
    trained_on = 4 if options.quick else TRAINED_ON
    if options.cpu:
        options.device = "cpu"
    config = RewardTrainConfig(
        device=options.device,
        seed=options.seed,
        test_fraction=0.0,
        val_fraction=0.2,
        **(QUICK if options.quick else {}),
    )
    if options.compare:
        for setting in [options.setting] if options.setting else SETTINGS:
            compare(setting, config, options.data, 2 * FOLDS if options.quick else TRAINED_ON)
        return
    if not options.cpu:
        setting = options.setting or (ON_A_GPU if resolve_device(options.device).type == "cuda" else ON_A_PROCESSOR)
        print(f"setting {setting}")
        config = config.model_copy(update=SETTINGS[setting])
    with tempfile.TemporaryDirectory() as folder:
        known, unseen = (Path(folder) / name for name in ("known", "unseen"))
        prepare(options.data, known, range(trained_on))
        prepare(options.data, unseen, range(trained_on, last or len(read(options.data, "cutoffs"))))
        bars = Bars()
        claims = None if options.quick else bars
        if options.cpu:
            limited = config.model_copy(update={"max_minutes": MINUTES})
            minutes = measure(claims, "cpu", limited, known, unseen, Path(folder), 0.95)
            if claims is not None:
                claims.at_most("real_cpu_minutes", minutes, MINUTES)
        else:
            measure(claims, "one_image", config, known, unseen, Path(folder), 0.94)
            measure(claims, "state_and_history", config.model_copy(update=BOTH), known, unseen, Path(folder), 0.97)
    if options.quick:  # four episodes to learn from, two to measure
        bars.left_out("how many frames of unseen episodes are right, how far cutoffs are off, and a clock's share")
    bars.report()


def read(data: Path, name: str) -> dict[int, int]:
    return {int(index): frame for index, frame in json.loads((data / f"{name}.json").read_text()).items()}


def compare(setting: str, config: RewardTrainConfig, data: Path, episodes: int) -> None:
    """Every known episode is judged once by a model that did not know it."""
    for name, more in (("one_image", {}), ("state_and_history", BOTH)):
        judged: list[UnseenEpisode] = []
        for fold in range(FOLDS):
            mine = [i for i in range(episodes) if i % FOLDS == fold]
            chosen = config.model_copy(update={**SETTINGS[setting], **more, "seed": config.seed + fold})
            with tempfile.TemporaryDirectory() as folder:
                known, unseen = (Path(folder) / part for part in ("known", "unseen"))
                prepare(data, known, [i for i in range(episodes) if i not in mine])
                prepare(data, unseen, mine)
                model = train_reward_model(
                    Store.open(known), chosen, Path(folder) / name, lambda _: True, lambda _: iter
                ).model
                judged += judge(model, Store.open(unseen))
        errors = cutoff_decode_errors(judged)
        print(
            f"{setting}, {name}: {accuracy(judged):.1%} of the frames of {len(judged)} known episodes right, each "
            f"unseen once; cutoffs off by {np.median(errors):g} frames in the median ({sorted(errors)})",
            flush=True,
        )


def prepare(data: Path, folder: Path, indices: Collection[int]) -> None:
    """A store of these episodes, labeled up to where the bottle is let go."""
    import_dataset(data, folder, progress=lambda sources: [s for s in sources if s.index in indices])
    cutoffs, released = read(data, "cutoffs"), read(data, "released")
    store = Store.open(folder)
    for episode_id, episode in store:
        assert episode.origin is not None
        index = episode.origin.index
        verdict = (np.arange(episode.steps + 1) >= cutoffs[index]).astype(np.float32)
        verdict[released[index] :] = np.nan
        store.ledger.append(episode_id, Labels.from_targets(verdict, source="human"))


def measure(
    bars: Bars | None, name: str, config: RewardTrainConfig, known: Path, unseen: Path, folder: Path, goal: float
) -> float:
    """Returns the minutes that training took.

    bars: to add to; None: what is measured is only told
    """
    began = time.monotonic()
    fitted = train_reward_model(
        Store.open(known),
        config,
        folder / name,
        lambda now: isinstance(now, StepMetrics) or bool(print(f"  {told(now)}", flush=True)) or True,
        quiet,
        on_choice=lambda choice: print(f"  chosen: {choice}", flush=True),
    )
    trained = time.monotonic() - began
    judged = judge(fitted.model, Store.open(unseen))
    right = accuracy(judged)
    errors = cutoff_decode_errors(judged)
    clock, swapped, ordered = (
        clock_accuracy(Store.open(known), judged),
        swapped_accuracy(judged),
        pairs_in_order(judged),
    )
    print(
        f"{name}: {right:.1%} of {sum(e.scored.sum() for e in judged):,} frames of {len(judged)} unseen episodes "
        f"right; decoded cutoffs off by {np.median(errors):g} frames in the median ({sorted(errors)}); a clock reaches "
        f"{clock:.1%}, scores of another episode's same moment {swapped:.1%}; {ordered:.1%} of pairs of one moment in "
        f"order; {trained:.0f} s of training on {fitted.model.device}",
        flush=True,
    )
    if bars is not None:
        bars.at_least(f"real_{name}_accuracy", right, goal)
        bars.at_most(f"real_{name}_cutoff_median", float(np.median(errors)), 6)
        bars.at_least(f"real_{name}_beyond_a_clock", ordered, 0.9)
    return trained / 60


def told(epoch: object) -> str:
    return ", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in vars(epoch).items())


def quiet(what: str) -> type[iter]:  # type: ignore[valid-type]
    print(f"  {what}", flush=True)
    return iter  # type: ignore[return-value]


def judge(model: RewardModel, store: Store) -> list[UnseenEpisode]:
    found = []
    for episode_id, episode in store:
        labels = store.ledger.labels(episode_id)
        assert labels is not None
        truth = labels.targets
        known = np.flatnonzero(~np.isnan(truth))
        known = known[known < episode.steps]  # the last observation is a copy
        probability = model.score_episode(episode).success_prob[known]
        cutoff = int(np.argmax(truth == 1))
        found.append(
            UnseenEpisode(
                probability=probability,
                truth=truth[known] == 1,
                scored=np.abs(known + 0.5 - cutoff) > NEAR,
                moment=known / episode.steps,
                cutoff=cutoff,
                decoded=decode_cutoff(probability, model.config.cutoff_offset, model.threshold),
            )
        )
    return found


def accuracy(judged: list[UnseenEpisode]) -> float:
    right = [((e.probability >= 0.5) == e.truth)[e.scored] for e in judged]
    return float(np.concatenate(right).mean())


def cutoff_decode_errors(judged: list[UnseenEpisode]) -> list[int]:
    """Frames; of a success that was never seen, all there are."""
    return [abs(e.decoded - e.cutoff) if e.decoded is not None else len(e.truth) for e in judged]


def clock_accuracy(known: Store, judged: list[UnseenEpisode]) -> float:
    """Of a judge that only knows how far the episode has come, and calls success from the known episodes' median on."""
    turns = []
    for episode_id, episode in known:
        labels = known.ledger.labels(episode_id)
        assert labels is not None
        turns.append(float(np.argmax(labels.targets == 1)) / episode.steps)
    right = [((e.moment >= np.median(turns)) == e.truth)[e.scored] for e in judged]
    return float(np.concatenate(right).mean())


def swapped_accuracy(judged: list[UnseenEpisode], seed: int = 0) -> float:
    """With time left and all else shuffled: each frame gets the score of another episode's frame at the same moment."""
    rng, right = np.random.default_rng(seed), []
    for number, mine in enumerate(judged):
        others = [e for n, e in enumerate(judged) if n != number]
        for moment, truth in zip(mine.moment[mine.scored], mine.truth[mine.scored], strict=True):
            other = others[rng.integers(len(others))]
            right.append((other.probability[np.abs(other.moment - moment).argmin()] >= 0.5) == truth)
    return float(np.mean(right))


def pairs_in_order(judged: list[UnseenEpisode]) -> float:
    """Of pairs of frames of one moment, of which one shows success: how often that one has the higher score."""
    moment, score, truth = (
        np.concatenate([getattr(e, name)[e.scored] for e in judged]) for name in ("moment", "probability", "truth")
    )
    part = np.minimum((moment * MOMENTS).astype(int), MOMENTS - 1)
    both = [part == p for p in range(MOMENTS) if 0 < truth[part == p].sum() < (part == p).sum()]
    weighed = [(roc_auc_score(truth[p], score[p]), int(truth[p].sum()) * int((~truth[p]).sum())) for p in both]
    return float(sum(area * pairs for area, pairs in weighed) / sum(pairs for _, pairs in weighed))


if __name__ == "__main__":
    torch.set_float32_matmul_precision("high")
    main()
