"""A vision-language judge that learns from labels: how well, and how fast.

    PYTHONPATH=src:tests python benchmarks/tune.py [--quick] [--stores FOLDER] [--data FOLDER] [--only NAME]

Needs peft and transformers, and no download. The model is a tiny one of the Qwen3-VL architecture with random weights,
so all that it knows of images it has from the labels: `plaudit judge tune --vision` with an adapter of full rank. It
learns to judge

    simulated   `lift`, 64x64: scripted successes and near misses, random walks; episodes it has not seen are others
    g1_bottle   a real robot, 128x96, every 8th frame: the first 20 episodes, measured on the other 10

and is measured as a judge, loaded from its adapter's folder, and examined. Beside it stand the model as it came, and
what a clock reaches: the number of the frame as a score. Frames within 5 of a cutoff, which was set by eye, and from
where the bottle is let go are left out.

On a GPU also the shape of Qwen3-VL-8B, with random weights and an adapter of rank 16 in the language model: seconds an
episode of 50 frames of 224x224, from frames in the store to the optimizer's step; memory; and the share of what large
products of matrices reach in the same run. Operations are counted by formula: forward, and backward for what the
adapter needs (not the gradients of weights that stand still, and not what is computed twice to save memory).

--stores keeps the episodes, so that a machine without MuJoCo and video can run it.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.metrics import roc_auc_score

import vlm
from bars import Bars
from plaudit.data.formats import open_dataset
from plaudit.data.formats.base import ReadOptions
from plaudit.data.store import Store
from plaudit.devices import resolve_device
from plaudit.envs.panda import PandaConfig
from plaudit.errors import JudgeError
from plaudit.judges.evaluation import load_reference_labels, score_episodes
from plaudit.judges.exam import examine
from plaudit.judges.metrics import EpisodePrediction
from plaudit.judges.vlm.adapter import add_lora
from plaudit.judges.vlm.config import VlmJudgeConfig
from plaudit.judges.vlm.local import Qwen3VLBackend
from plaudit.judges.vlm.tune import TuneConfig, Tuner
from plaudit.rollout.collector import EpisodeTargets
from plaudit.rollout.scripted import collect_scripted
from plaudit.training.reward_model import tune_and_save
from plaudit.types import Episode, Labels
from real_images import DATA, NEAR, TRAINED_ON, read
from tiny_vlm import save_tiny

STRIDE = 8  # of g1_bottle's 30 frames a second
SIZES = {"simulated": 128, "g1_bottle": 112}  # edge of the square with as many pixels as a frame has for the model
STRIDES = {"simulated": 2, "g1_bottle": 1}  # of the frames in the store
GOALS = {"simulated": 0.95, "g1_bottle": 0.9}
TUNE: dict[str, Any] = {"vision": True, "rank": 32, "alpha": 32.0, "lr": 2e-3, "epochs": 120, "patience": 30}
BATCH = {"simulated": 8, "g1_bottle": 4}
REFERENCE = ("human", "simulator")
FRAMES, PIXELS = 50, 224  # of an episode of the large model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few episodes, few epochs: whether it runs, not how well")
    parser.add_argument("--data", type=Path, default=DATA, help="the folder of g1_bottle")
    parser.add_argument("--stores", type=Path, help="a folder that keeps the episodes, and has them another time")
    parser.add_argument("--only", choices=[*GOALS, "large"])
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    bars = Bars()
    with tempfile.TemporaryDirectory() as scratch:
        for name in GOALS:
            if options.only in (None, name):
                learn(bars, name, Path(scratch), options)
    if resolve_device("auto").type != "cuda" or options.quick:
        bars.left_out("the 8B shape, on a GPU: seconds an episode, memory, share of the ceiling")
    elif options.only in (None, "large"):
        large(bars)
    bars.report()


# How well


def learn(bars: Bars, name: str, scratch: Path, options: argparse.Namespace) -> None:
    """Tune on known episodes, measure on the others."""
    folders = [(options.stores or scratch) / f"{name}{'_quick' * options.quick}_{part}" for part in ("known", "unseen")]
    if not folders[1].exists():
        if name == "g1_bottle" and not options.data.is_dir():
            bars.left_out(f"g1_bottle, which is not at {options.data}; name it with --data")
            return
        (simulated if name == "simulated" else g1_bottle)(options, *folders)
    known, unseen = map(Store.open, folders)
    model = save_tiny(scratch / f"{name}_base", seed=options.seed)
    judge = VlmJudgeConfig(model=str(model), image_size=SIZES[name], frame_stride=STRIDES[name])
    quick = {"epochs": 3, "batch_size": 2} if options.quick else {}
    config = TuneConfig(**{**TUNE, "batch_size": BATCH[name], "seed": options.seed, **quick})
    before = area(measured(unseen, judge))
    began = time.monotonic()
    try:
        tuned = tune_and_save(known, scratch / name, judge, config)
    except JudgeError as error:
        if not options.quick:
            raise
        print(f"{name}: {error}", flush=True)  # so few episodes in so few epochs may teach nothing
        bars.left_out(f"how well it judges {name}")
        return
    seconds = time.monotonic() - began
    adapter = VlmJudgeConfig(model=str(scratch / name))
    found = measured(unseen, adapter)
    clock = [
        EpisodePrediction(np.arange(len(one.target), dtype=np.float32) / 1e3, one.target, one.episode) for one in found
    ]
    print(
        f"{name}: {len(known)} episodes, {tuned.best_epoch} of {len(tuned.history)} epochs in {seconds:.0f} s on "
        f"{resolve_device('auto')}; frame ROC AUC on {len(found)} unseen episodes {before:.3f} before, "
        f"{area(found):.3f} after ({tuned.metrics.roc_auc:.3f} on those that chose the epoch), "
        f"{area(clock):.3f} of a clock",
        flush=True,
    )
    if options.quick:
        bars.left_out(f"how well it judges {name}")
        return
    certificate, _ = examine(unseen, adapter, adapter.build(), REFERENCE, unseen.ids, name=name)
    same_time = certificate.figures["same_time_roc_auc"]
    print(f"  {certificate.line}", *certificate.problems, sep="\n  ", flush=True)
    print(f"  ROC AUC of frames of the same number, 0.5 for a clock: {same_time}", flush=True)
    bars.at_least(f"tune_{name}_roc_auc", area(found), GOALS[name])


def measured(store: Store, judge: VlmJudgeConfig) -> list[EpisodePrediction]:
    found, failed = score_episodes(store, judge.build(), load_reference_labels(store, REFERENCE))
    assert not failed, failed
    return found


def area(found: list[EpisodePrediction]) -> float:
    target, prob = (np.concatenate([getattr(one, name) for one in found]) for name in ("target", "success_prob"))
    return float(roc_auc_score(target, prob))


def simulated(options: argparse.Namespace, *folders: Path) -> None:
    env = PandaConfig(type="lift", obs="pixels", max_steps=40)
    counts = ((5, 5), (2, 2)) if options.quick else ((60, 60), (20, 20))
    for part, (folder, (successes, failures)) in enumerate(zip(folders, counts, strict=True)):
        with Store.create(folder) as store:
            targets = EpisodeTargets(successes, failures)
            collect_scripted(env, store, targets, seed=options.seed + 100_000 * part)


def g1_bottle(options: argparse.Namespace, *folders: Path) -> None:
    """Every 8th frame, labeled up to where the bottle is let go."""
    first, last = (6, 8) if options.quick else (TRAINED_ON, 30)
    cutoffs, released = read(options.data, "cutoffs"), read(options.data, "released")
    dataset = open_dataset(options.data, ReadOptions(resize=(96, 128), state=("none",), action=("none",)))
    with Store.create(folders[0]) as known, Store.create(folders[1]) as unseen:
        for source in dataset.sources[:last]:
            episode, _ = source.load()
            t = np.arange(episode.steps + 1)
            target = (t >= cutoffs[source.index]).astype(np.float32)
            target[(np.abs(t - cutoffs[source.index]) < NEAR) | (t >= released[source.index])] = np.nan
            frames = {camera: images[::STRIDE] for camera, images in episode.frames.items()}
            steps = len(target[::STRIDE]) - 1
            thin = Episode.of(frames=frames, actions=np.zeros((steps, 1)), task=episode.task, fps=episode.fps / STRIDE)
            store = known if source.index < first else unseen
            store.ledger.append(store.append(thin), Labels.from_targets(target[::STRIDE], source="human"))


# How fast


def large(bars: Bars) -> None:
    """The 8B shape, an episode a step."""
    device = torch.device("cuda")
    ceiling = vlm.product_flops_per_s(device)
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}: products {ceiling / 1e12:.3g} TFLOP/s", flush=True
    )
    loaded = vlm.random_model(vlm.LARGE, device)
    config = TuneConfig(batch_size=1, altered=0, late_start=0)
    add_lora(loaded.model, config)
    best = 0.0
    with tempfile.TemporaryDirectory() as scratch:
        store = labeled_noise(Path(scratch) / "noise")
        for compiled, recompute in ((False, False), (False, True), (True, False)):
            name = f"{'compiled' if compiled else 'eager'}{', layers run again' * recompute}"
            try:
                share = speed(name, store, loaded, config, ceiling, compiled, recompute)
                best = max(best, share)
            except RuntimeError as error:  # one way that fails costs its line, not the rest
                print(f"{name}: failed: {type(error).__name__}: {str(error).splitlines()[0][:150]}", flush=True)
    bars.at_least("tune_8b_share_of_ceiling", best, 0.4)


def speed(
    name: str, store: Store, loaded: Any, config: TuneConfig, ceiling: float, compiled: bool, recompute: bool
) -> float:
    """Share of the ceiling; tells of seconds and memory."""
    backend = Qwen3VLBackend(VlmJudgeConfig(image_size=PIXELS, compile=compiled), loaded)
    backend.decoder.recompute = recompute
    targets = load_reference_labels(store, ("human",))
    tuner = Tuner(config, backend, store, targets, {"train": list(targets), "validation": list(targets)})
    torch.cuda.reset_peak_memory_stats()
    took = vlm.seconds(tuner.train_step, 3)
    again = backend.decoder.recompute and not recompute
    tokens = tuner.show(0)[0].layout.tokens
    work = train_flops(loaded.model.config, tokens, config.rank)
    share = work / took / ceiling
    print(
        f"{name}: {took:.3f} s an episode of {tokens:,} tokens, {work / 1e12:.0f} TFLOP, {share:.1%} of the ceiling, "
        f"{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB{' (memory was short)' * again}",
        flush=True,
    )
    return share


def train_flops(config: Any, tokens: int, rank: int) -> float:
    """Of a step on one episode: vision forward; products of the decoder forward, and backward to their inputs; causal
    attention forward, and backward to queries, keys and values; the adapter forward, and backward to all."""
    patches = (PIXELS // 16) ** 2
    text = config.text_config
    wide, narrow = text.num_attention_heads * text.head_dim, text.num_key_value_heads * text.head_dim
    vision = vlm.flops(config, 0, FRAMES, patches)
    attention = text.num_hidden_layers * 2 * tokens**2 * wide
    products = vlm.flops(config, tokens, FRAMES, patches) - vision - attention
    ends = 4 * text.hidden_size + 2 * (wide + narrow) + 3 * (text.hidden_size + text.intermediate_size)
    adapter = text.num_hidden_layers * 2 * tokens * rank * ends
    return float(vision + 2 * products + 3 * attention + 3 * adapter)


def labeled_noise(folder: Path) -> Store:
    store = Store.create(folder)
    for seed in range(4):
        labels = Labels.from_cutoff(steps=FRAMES - 1, cutoff=FRAMES // 2, source="human")
        store.ledger.append(store.append(vlm.random_episode(FRAMES, PIXELS, seed)), labels)
    return store


if __name__ == "__main__":
    torch.set_float32_matmul_precision("high")
    main()
