"""The classifier in charge is trained again from new labels, in the background, and replaced only by a better one.

    retrainer = Retrainer(run / "judges", judge, config, seed)
    if retrainer.due(store): retrainer.start(store.folder)     # a process of its own, at low priority
    if (found := retrainer.poll()) is not None:                # every now and then
        print(found.sentence)
        if found.replaced: judge = retrainer.judge.build()     # and judges.labeling.pending gives all episodes to it

    judges/
      lessons/         what new judges learn from, and what all are compared on (lessons.py)
      0001/            the first retraining: the model, its report, and decision.json
      history.jsonl    every decision in a line, replaced or not
      .next/           one that is under way; the same call goes on with it after a stop

It learns from the run's episodes that a person labelled, or whose truth an audit wrote down, and from the data of the
first judge where they are named; never from what a judge said. Settings are those of the judge in charge. Who decides
is trial.py; what was decided stands in a folder that appears whole, so which judge is in charge is a fact of the disk,
and a labeler that was restarted finds the right one. A retraining that cannot be done, because all episodes fail or
too few have labels, is a decision too, with its sentence: the old judge stays, and the next try comes with new labels.
"""

import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

import torch
from pydantic import Field, PositiveInt, field_validator

from plaudit.config import Config, parse
from plaudit.data.journal import sync, write_atomic
from plaudit.data.store import Store
from plaudit.errors import PlauditError
from plaudit.judges.classifier.checkpoint import RewardModel
from plaudit.judges.classifier.compat import deep_merge
from plaudit.judges.classifier.config import RewardTrainConfig
from plaudit.judges.classifier.dataset import REFERENCE_SOURCES
from plaudit.judges.classifier.judge import ClassifierJudgeConfig
from plaudit.judges.classifier.loader import load_reward_model
from plaudit.judges.classifier.training import EpochMetrics, TrainingInterrupted
from plaudit.rollout.processes import ChildProcess, exit_with_parent, send
from plaudit.rule import DecisionRule
from plaudit.training.promotion import Figures, Rules, decide, examine
from plaudit.training.retrain_data import Lessons, labelled
from plaudit.training.reward_model import train_and_save
from plaudit.untrusted import read_json_object, understood

DECISION = "decision.json"
GRACE = 20.0  # s that a retraining may take to keep what it has when it is told to stop


class RetrainConfig(Config):
    every: PositiveInt = 20  # episodes with new labels that are believed, before it is trained again
    min_episodes: PositiveInt = 20  # of the run with such labels, before it is trained again for the first time
    sources: tuple[str, ...] = ("human", "simulator")  # who is believed; "simulator" is what an audit wrote down
    data: tuple[Path, ...] = ()  # stores that the first judge was trained on
    held_out: float = Field(default=0.25, gt=0, lt=1)  # share of the episodes that no new judge learns from
    rules: Rules = Field(default_factory=Rules)  # by which a new judge replaces the old one
    training: dict[str, Any] = Field(default_factory=dict)  # of RewardTrainConfig, where not as the judge in charge
    threads: PositiveInt = 1  # of torch on the processor
    nice: int = Field(default=10, ge=0, le=19)  # of its process: judging and learning go first

    @field_validator("training")
    @classmethod
    def _are_settings_of_a_reward_model(cls, training: dict[str, Any]) -> dict[str, Any]:
        parse(RewardTrainConfig, training)
        return training

    @field_validator("sources")
    @classmethod
    def _are_no_models(cls, sources: tuple[str, ...]) -> tuple[str, ...]:
        for source in sources:
            if source not in REFERENCE_SOURCES:
                raise ValueError(
                    f"a judge does not learn from what '{source}' says; believed are: {', '.join(REFERENCE_SOURCES)}"
                )
        return sources


@dataclass(frozen=True)
class Replacement:
    """What came of a retraining."""

    number: int  # 1, 2, ...; the folder's name
    replaced: bool
    sentence: str  # why
    model: Path | None  # the new one's folder; None where none came of it
    old: Figures | None  # on the held-out episodes; None where it did not come to a comparison
    new: Figures | None
    seen: int  # versions of the run's ledger that were taken in
    seconds: float
    time: float  # seconds since 1970, UTC

    def to_json(self) -> dict[str, Any]:
        figures = {name: None if it is None else it.to_json() for name, it in (("old", self.old), ("new", self.new))}
        return {**vars(self), **figures, "model": self.model is not None}

    @classmethod
    def read(cls, folder: Path) -> Self:
        with understood(folder / DECISION):
            tree = read_json_object(folder / DECISION)
            figures = {name: None if tree[name] is None else Figures.from_json(tree[name]) for name in ("old", "new")}
            return cls(**{**tree, **figures, "model": folder if tree["model"] else None})


def decisions(folder: Path) -> list[Replacement]:
    """All of a run, the oldest first."""
    return [Replacement.read(found.parent) for found in sorted(folder.glob(f"[0-9][0-9][0-9][0-9]/{DECISION}"))]


def current(folder: Path) -> Replacement | None:
    """The one whose model is in charge; None: still the first judge."""
    return next((found for found in reversed(decisions(folder)) if found.replaced), None)


def in_charge(folder: Path, first: ClassifierJudgeConfig) -> ClassifierJudgeConfig:
    """The judge to build now. What of its rule was fitted on the first model's numbers does not go on to another's."""
    found = current(folder)
    return first if found is None or found.model is None else _successor(first, found.model)


def _successor(judge: ClassifierJudgeConfig, model: Path) -> ClassifierJudgeConfig:
    kept = {name: getattr(judge.rule, name) for name in judge.rule.model_fields_set & {"decode", "k", "n"}}
    return judge.model_copy(
        update={"model": model, "rule": DecisionRule(**kept), "force": False}
        | {"calibration": None, "calibration_record": None}
    )


def going(_: EpochMetrics) -> bool:
    return True


class Retrainer:
    """Of one run. What it needs to know stands in its folder."""

    def __init__(self, folder: Path, first: ClassifierJudgeConfig, config: RetrainConfig, seed: int = 0):
        """first: the judge that the run began with"""
        self.folder, self.config = folder, config
        self.lessons = Lessons(folder / "lessons", config.held_out, seed)
        self._first, self._seed = first, seed
        self._child: ChildProcess | None = None
        self._begun = (0, 0.0)  # of the one under way: versions of the ledger, and when
        self._decided = 0  # decisions when it began

    @property
    def judge(self) -> ClassifierJudgeConfig:
        """The one in charge."""
        return in_charge(self.folder, self._first)

    def due(self, store: Store) -> bool:
        """Whether enough was said since the last try; not while one is under way."""
        if self._child is not None or len(labelled(store, self.config.sources)) < self.config.min_episodes:
            return False
        return self.new_labels(store) >= self.config.every

    def new_labels(self, store: Store) -> int:
        """Episodes of which somebody who is believed said something since the last try."""
        seen = max((found.seen for found in decisions(self.folder)), default=0)
        said = {version.episode for version in store.ledger.since(seen) if version.source in self.config.sources}
        return len(said & set(store.ids))

    def run(self, store: Store, watch: Callable[[EpochMetrics], bool] = going) -> Replacement:
        """Train, compare, decide, write it down. `TrainingInterrupted` where `watch` wanted no further epoch: the same
        call goes on."""
        begun = time.monotonic()
        store.ledger.refresh()
        store.refresh()
        seen, candidate = len(store.ledger), self.folder / ".next" / "model"
        shutil.rmtree(candidate, ignore_errors=True)  # of one that was killed before it was decided on
        old = new = None
        try:
            old, new = self._compare(store, candidate, watch)
            replaced, sentence = decide(old, new, self.config.rules)
        except PlauditError as error:
            replaced, sentence = False, f"the old judge stays, and no new one could be trained: {error}"
        return self._write(candidate, replaced, sentence, old, new, seen, time.monotonic() - begun)

    def _compare(self, store: Store, candidate: Path, watch: Callable[[EpochMetrics], bool]) -> tuple[Figures, Figures]:
        now = self.judge
        model = load_reward_model(now.model, now.device, force=now.force)
        for path in self.config.data:
            self.lessons.take(Store.open(path), REFERENCE_SOURCES, "data")
        self.lessons.take(store, self.config.sources, "run")
        settings = training_of(model, self.config.training)
        fitted = train_and_save(Store.open(self.lessons.train), candidate, settings, watch, lambda _: iter)
        held_out = Store.open(self.lessons.held_out)
        asked = _successor(now, candidate).model_copy(update={"force": True})
        old, new = examine(now.build(), held_out), examine(asked.build(), held_out)
        return old, replace(new, problems=(*fitted.model.facts.problems, *new.problems))

    def _write(
        self,
        candidate: Path,
        replaced: bool,
        sentence: str,
        old: Figures | None,
        new: Figures | None,
        seen: int,
        seconds: float,
    ) -> Replacement:
        """The decision beside the model that it is about, and both at once in their place."""
        done = decisions(self.folder)
        number = done[-1].number + 1 if done else 1
        target, trained = self.folder / f"{number:04d}", (candidate / "model.json").is_file()
        model = target if trained else None
        found = Replacement(number, replaced, sentence, model, old, new, seen, round(seconds, 1), time.time())
        candidate.mkdir(parents=True, exist_ok=True)
        for path in candidate.iterdir():
            sync(path)
        write_atomic(candidate / DECISION, json.dumps(found.to_json(), indent=1).encode())
        candidate.rename(target)
        sync(self.folder)
        lines = [json.dumps(one.to_json()) + "\n" for one in (*done, found)]
        write_atomic(self.folder / "history.jsonl", "".join(lines).encode())
        return found

    # In a process of its own

    def start(self, store: Path) -> None:
        """Begin a retraining from the store in this folder; `poll` tells what came of it."""
        assert self._child is None, "one at a time"
        self._begun = (len(Store.open(store).ledger), time.monotonic())
        self._decided = len(decisions(self.folder))
        arguments = (self.folder.resolve(), self._first, self.config, self._seed, store.resolve())
        self._child = ChildProcess("retraining", "plaudit.training.retrain:work", *arguments)

    @property
    def running(self) -> bool:
        """Whether one is under way, or done and not asked about yet."""
        return self._child is not None

    def poll(self) -> Replacement | None:
        """What came of it; None while it goes on, and where there is none."""
        child = self._child
        if child is None or (child.alive and not child.connection.poll()):
            return None
        try:
            number = child.connection.recv()
        except (EOFError, OSError):
            number = None
        obituary = "" if number is not None else child.exit_reason()
        child.end()
        self._child = None
        if number is not None:
            return Replacement.read(self.folder / f"{number:04d}")
        seen, begun = self._begun
        shutil.rmtree(self.folder / ".next" / "model", ignore_errors=True)
        sentence = f"the old judge stays, and no new one could be trained: {obituary}"
        return self._write(self.folder / ".next" / "model", False, sentence, None, None, seen, time.monotonic() - begun)

    def stop(self) -> Replacement | None:
        """End one that is under way; a later `start` goes on with it. What it decided, if it was done by then."""
        if self._child is None:
            return None
        self._child.end(GRACE)
        self._child = None
        done = decisions(self.folder)
        return done[-1] if len(done) > self._decided else None

    def metrics(self) -> dict[str, float]:
        """By the names in docs/metrics.md; those of held-out episodes once there was a comparison."""
        done, now = decisions(self.folder), current(self.folder)
        compared = next((found for found in reversed(done) if found.new is not None), None)
        told = {
            "judge/version": float(0 if now is None else now.number),
            "judge/retrained": float(len(done)),
            "judge/refused": float(sum(not found.replaced for found in done)),
        }
        if compared is None or compared.old is None or compared.new is None:
            return told
        figures = compared.new if compared.replaced else compared.old
        held_out = {"fpr": figures.fpr, "right": figures.score, "false": figures.false, "missed": figures.missed}
        return {**told, **{f"judge/held_out_{name}": value for name, value in held_out.items() if value == value}}


def work(
    connection: Connection, folder: Path, first: ClassifierJudgeConfig, config: RetrainConfig, seed: int, store: Path
) -> None:
    """The process: one retraining, which keeps what it has when its parent hangs up."""
    os.nice(config.nice)
    torch.set_num_threads(config.threads)
    exit_with_parent(connection, GRACE)
    with suppress(TrainingInterrupted):
        found = Retrainer(folder, first, config, seed).run(Store.open(store), lambda _: not connection.poll())
        send(connection, found.number)


def training_of(model: RewardModel, changes: Mapping[str, Any]) -> RewardTrainConfig:
    """The settings that a judge was trained with, with these changes, for the same cameras."""
    shape = model.shape
    own = model.facts.training.get("config") or {  # a model of another trainer says nothing but what it is like
        "encoder": shape.encoder.model_dump(mode="json"),
        "use_state": bool(shape.state_dim),
        **shape.model_dump(mode="json", include=set(RewardTrainConfig.model_fields) - {"encoder"}),
    }
    always = {
        "image_keys": list(shape.cameras),
        "image_size": shape.image_size,
        "label_sources": list(REFERENCE_SOURCES),
    }
    return parse(RewardTrainConfig, {**deep_merge(own, changes), **always})
