"""Fine-tuning a vision-language judge on labeled episodes, by an adapter and in the layout that scores them.

    every epoch: the training episodes in a new order, a few in a step
      an episode is one chat; after each frame that has a label, cross-entropy of yes against no
      the gradient goes into the adapter; the model itself is frozen
    keep the epoch that is best on the validation episodes; stop when it gets no better

Success and failure frames weigh the same in total. Episodes that all succeed in the end teach a clock, so every other
showing is altered such that a clock is wrong: backwards, one frame standing still, a camera that shows nothing, another
task. Targets stay those of the frames that are seen; without a camera and for another task they are failure. Other
showings begin at the start or later. All are shifted a little and shown in other light.

If memory runs out, fewer episodes go through at a time; then layers are recomputed for the gradients.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from pydantic import Field
from torch import nn
from torch.nn import functional as F

from plaudit.config import BatchSize, LearningRate, PositiveInt, Seed
from plaudit.data.episode_keys import episode_keys, pack_keys
from plaudit.data.store import Store
from plaudit.devices import AdamW
from plaudit.errors import JudgeError
from plaudit.judges.classifier.config import AugmentConfig
from plaudit.judges.classifier.dataset import SPLITS, Split, blank_images, split_episodes
from plaudit.judges.classifier.training import augment, draw_changes
from plaudit.judges.config import ADAPTER_FILE, REFERENCE_SOURCES, TrainingDataInfo
from plaudit.judges.epochs import (
    EpochMetrics,
    EpochTrainer,
    Watch,
    never_stop,
    prepare_work,
    train_epochs,
    training_record,
)
from plaudit.judges.evaluation import frame_prediction, load_reference_labels, score_episodes
from plaudit.judges.exam import data_fingerprint
from plaudit.judges.metrics import EpisodePrediction, FramePrediction, JudgeMetrics, compute_metrics, largest_errors
from plaudit.judges.vlm.adapter import add_lora, fingerprint_with, load_base, save_adapter
from plaudit.judges.vlm.config import AdapterInfo, LoraShape, PromptSettings, VlmJudgeConfig
from plaudit.judges.vlm.images import resize_frames
from plaudit.judges.vlm.judge import VlmJudge
from plaudit.judges.vlm.local import PackedEpisode, Qwen3VLBackend
from plaudit.judges.vlm.prompt import FramePrompt, build_prompt
from plaudit.rule import DecisionRule
from plaudit.types import FloatArray

# How a showing is altered. The last one is for judges that take the task from the episode.
ALTERED = ("backwards", "still", "blank", "other task")
# Shown in place of an episode's own task where the store has only one; none of them is a control's.
OTHER_TASKS = (
    "open the top drawer of the cabinet",
    "fold the towel in half and lay it down",
    "wipe the whiteboard until it is clean",
    "screw the lid onto the jar",
    "press the round button on the wall",
)


class TuneConfig(LoraShape):
    """How an adapter is trained. Defaults are for an 8B model and a few dozen episodes."""

    epochs: PositiveInt = 15  # at most
    patience: PositiveInt = 4  # epochs without a better loss on validation episodes before it stops
    batch_size: BatchSize = 2  # episodes of a gradient step
    lr: LearningRate = 1e-4  # rises over the first twentieth of the steps, then falls to zero along a cosine
    weight_decay: float = Field(default=0.0, ge=0, le=10)
    val_fraction: float = Field(default=0.2, gt=0, lt=0.5)  # of the episodes, those that choose the epoch
    label_sources: tuple[str, ...] = REFERENCE_SOURCES  # whose labels to learn from
    altered: float = Field(default=0.5, ge=0, lt=1)  # share of showings that are, in one of the ways of ALTERED
    late_start: float = Field(default=0.5, ge=0, le=1)  # of those that are not, share that begins on the way
    augment: AugmentConfig = Field(default_factory=AugmentConfig)
    seed: Seed = 0


@dataclass(frozen=True, eq=False)
class TuneResult:
    """An adapter, and how it did on the episodes that chose its epoch."""

    save: Callable[[Path], None]  # its weights and its description, into a folder
    before: JudgeMetrics  # of the model as it came
    metrics: JudgeMetrics
    predictions: Sequence[EpisodePrediction]
    errors: Sequence[FramePrediction]  # the largest
    metadata: Mapping[str, str]  # of the model, the data and the training
    best_epoch: int
    history: Sequence[EpochMetrics]


def tune_judge(
    store: Store,
    judge: VlmJudgeConfig,
    config: TuneConfig,
    work_dir: Path,
    watch: Watch = never_stop,
    ids: Sequence[int] | None = None,
) -> TuneResult:
    """Train an adapter for a judge's model; what takes long is kept in `work_dir`, from where the same call resumes.

    watch: called after each step and epoch; False stops the training with `TrainingInterrupted`
    ids: of the episodes to learn from and to choose the epoch by; None: all that have labels
    """
    begun = time.monotonic()
    targets = load_reference_labels(store, config.label_sources, ids)
    chosen = split_episodes(targets, config.seed, config.val_fraction, 0.0)
    splits: dict[Split, list[int]] = {part: chosen[part] for part in SPLITS[:2]}
    loaded = load_base(judge)
    settings = {"tune": config.model_dump(mode="json"), "judge": judge.model_dump(mode="json")}
    data = TrainingDataInfo(
        fingerprint=data_fingerprint(store, targets),
        episodes={part: len(ids) for part, ids in splits.items()},
        frames={part: sum(int((~np.isnan(targets[i])).sum()) for i in ids) for part, ids in splits.items()},
        sources=config.label_sources,
        seen=pack_keys(chain.from_iterable(episode_keys(store, list(targets)).values())),
    )
    prepare_work(work_dir, {**settings, "base": loaded.fingerprint, "data": data.fingerprint})
    torch.manual_seed(config.seed)  # of the weights that an adapter begins with
    peft_model = add_lora(loaded.model, config)
    tuner = Tuner(config, Qwen3VLBackend(judge, loaded), store, targets, splits)
    before = compute_metrics(tuner.measure(), DecisionRule())
    tuner.validate()
    history = train_epochs(tuner, work_dir / "adapter", watch)
    if tuner.best_epoch == 0:
        raise JudgeError(
            f"no epoch was better on the {len(splits['validation'])} validation episodes than the model as it came; "
            f"nothing was written, label more episodes or try another learning rate (it is {config.lr:g})"
        )
    tuner.use_best()
    predictions = tuner.measure()
    metrics = compute_metrics(predictions, DecisionRule())
    errors = []
    for prediction, place in largest_errors(predictions):
        episode = store.episode(prediction.episode)
        frame = int(np.arange(episode.steps + 1)[episode.observed][place])
        errors.append(frame_prediction(episode, prediction, place, frame))
    training = training_record(config, begun, tuner.backend.device, epochs=tuner.version, best_epoch=tuner.best_epoch)
    tasks = tuple(sorted({judge.task or store.episode(i).task for i in splits["train"]}))

    def save(folder: Path) -> None:
        save_adapter(folder, peft_model)
        base = Path(judge.model)
        shape = LoraShape(**config.model_dump(include=set(LoraShape.model_fields)))
        info = AdapterInfo(
            base=str(base.resolve()) if base.is_dir() else judge.model,
            base_fingerprint=loaded.fingerprint,
            fingerprint=fingerprint_with(loaded, shape, folder),
            lora=shape,
            prompt=PromptSettings(**judge.model_dump(include=set(PromptSettings.model_fields))),
            tasks=tasks,
            data=data,
            scores={"before": before.to_json(), "tuned": metrics.to_json()},
            training=training,
        )
        (folder / ADAPTER_FILE).write_text(info.model_dump_json(indent=1))

    learned = sum(weight.numel() for weight in peft_model.parameters() if weight.requires_grad)
    metadata = {
        "model": judge.model,
        "adapter": f"LoRA of rank {config.rank}, {learned:,} weights",
        "tasks": ", ".join(tasks),
        "cameras": ", ".join(judge.cameras) or "all",
        "episodes": ", ".join(f"{data.episodes[part]:,} for {part}" for part in splits),
        "labeled frames": ", ".join(f"{data.frames[part]:,} for {part}" for part in splits),
        "labels of": ", ".join(data.sources),
        "best epoch": f"{tuner.best_epoch} of {tuner.version}",
        "data fingerprint": data.fingerprint,
        "training": f"{training['seconds']:,.0f} s on {training['device']}",
    }
    return TuneResult(save, before, metrics, predictions, errors, metadata, tuner.best_epoch, history)


class Tuner(EpochTrainer):
    """An adapter in training, and the best it has been."""

    def __init__(
        self,
        config: TuneConfig,
        backend: Qwen3VLBackend,
        store: Store,
        targets: Mapping[int, FloatArray],
        splits: Mapping[Split, Sequence[int]],
    ):
        """backend: of a model with an adapter in it"""
        self.config, self.backend, self.store, self.targets, self.splits = config, backend, store, targets, splits
        learning = [weight for weight in backend.model.parameters() if weight.requires_grad]
        best = [nn.Parameter(weight.detach().clone(), requires_grad=False) for weight in learning]
        self.rng = torch.Generator().manual_seed(config.seed)  # a part of every state; showings have their own
        steps = math.ceil(len(splits["train"]) / config.batch_size)
        super().__init__(
            nn.ParameterList(learning),
            nn.ParameterList(best),
            AdamW(learning, lr=config.lr, weight_decay=config.weight_decay),
            epochs=config.epochs,
            patience=config.patience,
            steps=steps,
            warmup=steps * config.epochs // 20,
        )
        labeled = np.concatenate([targets[i] for i in splits["train"]])
        counts = [int((labeled == kind).sum()) for kind in (0, 1)]
        self.weights = torch.tensor([sum(counts) / (2 * count) for count in counts])  # of a failure, of a success
        self.tasks = sorted({store.episode(i).task for i in splits["train"]})
        self.together = config.batch_size  # episodes that go through at a time

    def show(self, episode_id: int) -> tuple[PackedEpisode, FloatArray]:
        """An episode as it is shown this time, and the target of each frame that is; the same for the same epoch."""
        judge = self.backend.config
        rng = np.random.default_rng([self.config.seed, self.version, episode_id])
        episode = self.store.episode(episode_id)
        target = self.targets[episode_id][episode.observed]
        ways = ALTERED if judge.uses_task else ALTERED[:-1]
        way = ways[rng.integers(len(ways))] if rng.random() < self.config.altered else ""
        if way == "other task":
            others = [task for task in self.tasks if task != episode.task] or OTHER_TASKS
            episode = replace(episode, task=others[rng.integers(len(others))])
        prompt = build_prompt(judge, episode)
        # Which frames are shown, in order.
        last = len(target) - 1
        late = not way and last > 0 and rng.random() < self.config.late_start
        shown = np.union1d(np.arange(int(rng.integers(last)) if late else 0, last, judge.frame_stride), last)
        if way == "still":
            shown = np.full_like(shown, rng.choice(np.flatnonzero(~np.isnan(target))))
        elif way == "backwards":
            shown = shown[::-1].copy()
        prompt = self._augment(replace(prompt, frame_indices=shown), rng)
        if way == "blank":  # one picture that shows nothing, in place of every frame
            blank = {c: blank_images(rng, 16, f.shape[1:])[rng.integers(16)] for c, f in prompt.frames.items()}
            frames = {c: np.broadcast_to(blank[c], images.shape) for c, images in prompt.frames.items()}
            prompt = replace(prompt, frames=frames)
        seen = np.where(np.isnan(target), target, 0) if way in ("blank", "other task") else target
        return self.backend.pack_prompt(episode_id, prompt), seen[shown].astype(np.float32)

    def _augment(self, prompt: FramePrompt, rng: np.random.Generator) -> FramePrompt:
        """Apply one random change to all frames of a camera, at the size that the model sees."""
        drawn = torch.Generator().manual_seed(int(rng.integers(2**62)))
        frames = {}
        for camera, images in resize_frames(prompt, self.backend.config.image_size, self.backend.device).items():
            changed = augment(images, draw_changes(1, self.config.augment, drawn).expand(prompt.num_frames, -1))
            frames[camera] = changed.round_().to(torch.uint8).cpu().numpy()
        return replace(prompt, frames=frames, frame_indices=np.arange(prompt.num_frames))

    def gradients(self) -> tuple[float, float]:
        """Of the next episodes of this epoch's order; the share of frames that were right is of balanced classes."""
        order = np.random.default_rng([self.config.seed, self.version]).permutation(self.splits["train"])
        first = self.epoch_step * self.config.batch_size
        batch = [self.show(int(i)) for i in order[first : first + self.config.batch_size]]
        while True:
            self.optimizer.zero_grad()
            try:
                parts = [batch[first : first + self.together] for first in range(0, len(batch), self.together)]
                labeled = max(1, sum(int((~np.isnan(target)).sum()) for _, target in batch))
                loss, right, weight = np.sum([self._part_gradients(part, labeled) for part in parts], axis=0)
                return float(loss), float(right / max(weight, 1e-9))
            except torch.OutOfMemoryError as error:
                failed = error.with_traceback(None)  # which would keep the failed pass alive
            self.optimizer.zero_grad()
            torch.cuda.empty_cache()
            if self.together > 1:
                self.together = (self.together + 1) // 2
            elif not self.backend.recompute_layers():
                longest = max(packed.layout.tokens for packed, _ in batch)
                raise JudgeError(
                    f"an episode of {longest:,} tokens does not fit into the memory of {self.backend.device} for "
                    "training; set a frame_stride, fewer cameras or a smaller image_size"
                ) from failed

    def _part_gradients(
        self, part: Sequence[tuple[PackedEpisode, FloatArray]], labeled: int
    ) -> tuple[float, float, float]:
        """Added to those that are there; its share of the loss, the weight of its frames that are right, and of all.

        labeled: frames of the whole step
        """
        logits = self.backend.forward([packed for packed, _ in part])
        target = torch.from_numpy(np.concatenate([target for _, target in part])).to(logits.device)
        labels = ~target.isnan()
        logits, target = logits[labels], target[labels]
        weights = self.weights.to(logits.device)[target.long()]
        loss = F.binary_cross_entropy_with_logits(logits, target, weights, reduction="sum") / labeled
        loss.backward()
        right = weights[(logits.detach() > 0) == (target > 0.5)].sum()
        return float(loss.detach()), float(right), float(weights.sum())

    def validation_loss(self) -> float:
        """On the validation episodes as they are."""
        predictions = self.measure()
        prob = torch.from_numpy(np.concatenate([one.success_prob[one.has_target] for one in predictions]))
        target = torch.from_numpy(np.concatenate([one.target[one.has_target] for one in predictions]))
        return float(F.binary_cross_entropy(prob, target, self.weights[target.long()]))

    def measure(self) -> list[EpisodePrediction]:
        """Scores of the validation episodes."""
        targets = {i: self.targets[i] for i in self.splits["validation"]}
        predictions, failed = score_episodes(self.store, VlmJudge(self.backend, DecisionRule()), targets)
        for episode_id, reason in failed.items():
            raise JudgeError(f"episode {episode_id}: {reason}")
        return predictions
