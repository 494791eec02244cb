"""Retraining: a classifier is trained again from new labels, in the background, and replaced only by a better one.

    retrainer = Retrainer(run / "judge", judge, config, seed)
    if retrainer.should_retrain(store): retrainer.launch(store.folder)     # a process of its own, at low priority
    if (decision := retrainer.poll()) is not None:             # now and then
        print(decision.message)
        if decision.promoted: judge = retrainer.judge.build()  # stale_episodes then gives it all episodes again

    judge/
      data/train/      episodes with labels of a trusted source
      data/val/        held-out ones, which no judge of this run is ever trained on
      0001/            the first retraining: the model, its report, and promotion.json
      history.jsonl    every decision in a line, promoted or rejected
      .candidate/      one that is being trained; the same call continues it after a stop

Candidates are trained on the run's episodes that a human labeled or an audit looked up, and on the data of the first
judge if they are named. They are never trained on labels of a judge, except in a cascade on the decisions of its later
stages. A stage of a cascade that would lose a right to decide is not replaced. A decision is a folder that appears
complete, so a restarted worker finds the current judge on disk. A failed retraining is a decision too: the current
judge stays, and the next try comes with new labels.

A comparison is fair only on episodes that no judge has chosen. The audit looks at a judge's errors more often than at
its other episodes, so among all audited episodes the current judge looks worse than it is. Of the run's own episodes,
only those that the audit drew whatever the judge decided can be held out, and of these `val_fraction`. Which store an
episode goes to depends only on the draw and on its own bytes, so what was held out once stays held out. Episodes are
copied, because the run's own store evicts its oldest; the simulator's state is left out.

A candidate is promoted when all of this holds:

1. it passes the negative controls (judges/controls.py), made of the held-out episodes that succeed;
2. its false-positive rate on held-out failures is no higher than the current judge's, or at most `max_fpr`;
3. its false-negative rate on held-out successes is no higher than the current judge's, or at most `max_fnr`;
4. it is right about more episodes, and significantly so; or about as many, and it significantly predicts success in
   fewer failure frames.

Significance is tested on the episodes in which the two judges differ. If the two are equally good, each of these is
better or worse with equal probability. An exact one-sided sign test must reject this at the comparison's part of the
run's error budget: over all comparisons of a run, a candidate that is no better is promoted with a probability of at
most 2.5% (judges/stats.py).

"Right" refers to whole episodes, as balanced accuracy over the groups that exist: failures and successes of the run,
failures and successes of the data that the first judge was trained on. Counted together, many easy failures of last
week would hide the few that the policy found yesterday. A young policy has no successes, so a judge that never predicts
success would look perfect on its episodes alone. The first judge may have been trained on some of the held-out episodes
of its own data, which favors the current judge.
"""

import json
import math
import os
import shutil
import time
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from hashlib import sha256
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Literal, Self

import torch
from pydantic import BeforeValidator, TypeAdapter

from plaudit.config import parse
from plaudit.data.disk import sync, write_atomic
from plaudit.data.ledger import LabelVersion
from plaudit.data.store import Store
from plaudit.errors import EpisodeNotFound, PlauditError
from plaudit.files import read_json_object, understood
from plaudit.judges.cascade import CascadeConfig, lot_of
from plaudit.judges.classifier.checkpoint import RewardModel
from plaudit.judges.classifier.config import ClassifierJudgeConfig, RewardTrainConfig, classifier_stage
from plaudit.judges.classifier.judge import load_reward_model
from plaudit.judges.classifier.train_job import deep_merge
from plaudit.judges.config import REFERENCE_SOURCES, JudgeConfig, save_rights
from plaudit.judges.epochs import TrainingInterrupted, Watch, never_stop
from plaudit.judges.evaluation import evaluate, load_reference_labels, score_episodes
from plaudit.judges.guarantee import Rights, prove_rights
from plaudit.judges.metrics import nan_to_none
from plaudit.judges.stats import ErrorBudget, alpha_spent, is_more_often
from plaudit.processes import ChildProcess, exit_with_parent, send
from plaudit.protocols import Judge
from plaudit.registry import JUDGE_REGISTRY
from plaudit.rule import DecisionRule
from plaudit.training.audit import hashed_uniform
from plaudit.training.config import PromotionRules, RetrainConfig
from plaudit.training.reward_model import train_and_save

RETRAIN_META = "retrain"  # key in the meta of a copied episode: where it came from
SUCCESSES, FAILURES = "successes", "failures"
RATES = ("balanced_accuracy", "fpr", "fnr")  # of a summary: derived, and written with it
Measured = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]  # NaN is None in JSON


@dataclass(frozen=True)
class EpisodeResult:
    """One judge's result on one held-out episode."""

    correct: bool  # about whether it succeeds
    num_false_frames: int  # failure frames in which it predicts success


@dataclass(frozen=True)
class JudgeEvalSummary:
    """One judge's results on the held-out episodes; NaN where there was no data to measure."""

    fingerprint: str
    num_correct: Mapping[str, int]  # group -> episodes that it is right about, "online failures" and so on
    num_episodes: Mapping[str, int]  # group -> episodes; only groups that there are
    frame_fpr: Measured  # of failure frames
    frame_fpr_low: Measured  # 95% confidence interval of it, by episodes
    frame_fpr_high: Measured
    frame_recall: Measured  # of success frames
    problems: tuple[str, ...]  # controls that it does not pass; episodes that it cannot score
    results: Mapping[str, EpisodeResult] = field(default_factory=dict)  # by episode

    @property
    def episodes(self) -> int:
        """Held-out episodes."""
        return sum(self.num_episodes.values())

    @property
    def balanced_accuracy(self) -> float:
        """Fraction of episodes that it is right about, the mean over groups."""
        return fmean(self.num_correct[group] / self.num_episodes[group] for group in self.num_episodes)

    @property
    def fpr(self) -> float:
        """Fraction of the failures in which it predicts success."""
        return self._error_rate(FAILURES)

    @property
    def fnr(self) -> float:
        """Fraction of the successes in which it predicts none."""
        return self._error_rate(SUCCESSES)

    def _error_rate(self, outcome: str) -> float:
        groups = [group for group in self.num_episodes if group.endswith(outcome)]
        total = sum(self.num_episodes[group] for group in groups)
        wrong = sum(self.num_episodes[group] - self.num_correct[group] for group in groups)
        return wrong / total if total else math.nan

    def to_json(self) -> dict[str, Any]:
        """NaN becomes None: JSON has no NaN."""
        rates = {name: getattr(self, name) for name in RATES}
        return nan_to_none({**asdict(self), **rates})


def evaluate_judge(judge: Judge, held_out: Store) -> JudgeEvalSummary:
    """Label all held-out episodes, and the controls made of those that succeed."""
    targets = load_reference_labels(held_out, REFERENCE_SOURCES)
    evaluation = evaluate(held_out, judge, targets)
    metrics, unscored = evaluation.metrics, list(evaluation.failed.values())
    num_correct: Counter[str] = Counter()
    num_episodes: Counter[str] = Counter()
    for episode_id, labels in evaluation.labels.items():
        actual = bool((targets[episode_id] == 1).any())
        group = f"{episode_origin(held_out, episode_id)} {SUCCESSES if actual else FAILURES}"
        num_episodes[group] += 1
        num_correct[group] += labels.success_once == actual
    results: dict[str, EpisodeResult] = {}
    for one in evaluation.predictions:
        correct = evaluation.labels[one.episode].success_once == (one.first_success is not None)
        false_frames = one.predicted(metrics.threshold) & (one.target == 0)
        results[str(one.episode)] = EpisodeResult(correct, int(false_frames.sum()))
    return JudgeEvalSummary(
        judge.id.fingerprint,
        dict(num_correct),
        dict(num_episodes),
        frame_fpr=metrics.fpr,
        frame_fpr_low=metrics.fpr_low,
        frame_fpr_high=metrics.fpr_high,
        frame_recall=metrics.recall,
        problems=(
            *evaluation.failed_controls,
            *([f"{len(unscored)} episodes could not be scored: {unscored[0]}"] if unscored else []),
        ),
        results=results,
    )


def should_promote(
    current: JudgeEvalSummary, candidate: JudgeEvalSummary, rules: PromotionRules, alpha: float = 1.0
) -> tuple[bool, str]:
    """Whether the candidate replaces the current judge, and why.

    alpha: chance of promoting a candidate that is no better, which this comparison may spend
    """
    accuracy = (
        f"balanced accuracy {candidate.balanced_accuracy:.0%} on {candidate.episodes} held-out episodes, the current "
        f"judge's {current.balanced_accuracy:.0%}"
    )
    reason = _objection(current, candidate, rules, max(rules.confidence, 1 - alpha))
    if not reason:
        return True, f"promoted a new version of the judge: {accuracy}"
    return False, f"rejected a new version of the judge: {reason} ({accuracy})"


def _objection(current: JudgeEvalSummary, candidate: JudgeEvalSummary, rules: PromotionRules, confidence: float) -> str:
    """The first reason to keep the current judge; "" if there is none."""
    if candidate.problems:
        return f"it failed its checks: {'; '.join(candidate.problems)}"
    if candidate.episodes < rules.min_val_episodes:
        return f"{candidate.episodes} held-out episodes are too few to compare on, {rules.min_val_episodes} are needed"
    for rate, outcome in ((candidate.fpr, "fails"), (candidate.fnr, "succeeds")):
        if math.isnan(rate):
            return f"none of the held-out episodes {outcome}, so there is nothing to compare on; label some that do"
    if candidate.fpr > max(current.fpr, rules.max_fpr):
        return f"it predicts success in {candidate.fpr:.0%} of the failures, the current judge in {current.fpr:.0%}"
    if candidate.fnr > max(current.fnr, rules.max_fnr):
        return f"it misses {candidate.fnr:.0%} of the successes, the current judge {current.fnr:.0%}"
    if candidate.balanced_accuracy < current.balanced_accuracy:
        return "it is right less often"
    both = [(current.results[i], candidate.results[i]) for i in candidate.results if i in current.results]
    tied = candidate.balanced_accuracy == current.balanced_accuracy
    pairs = [(old.num_false_frames, new.num_false_frames) if tied else (new.correct, old.correct) for old, new in both]
    significant, num_better, num_different = is_more_often(pairs, confidence)
    what = "it is right as often, and has fewer false frames in" if tied else "it is right in"
    chance = f"which may be chance: {confidence:.1%} confidence is required"
    differ = f"{num_better} of the {num_different} held-out episodes in which the two differ"
    return "" if significant else f"{what} {differ}, {chance}"


def episode_origin(store: Store, episode_id: int) -> str:
    """Where an episode that retrain.py copied came from: "online" or "initial"."""
    return store.entry(episode_id).line["meta"][RETRAIN_META]["origin"]


DECISION_FILE, CANDIDATE = "promotion.json", ".candidate"
STOP_TIMEOUT_S = 20.0  # that a retraining may take to save what it has when it is stopped


@dataclass(frozen=True)
class PromotionDecision:
    """The result of a retraining."""

    number: int = 0  # 1, 2, ...; the folder's name
    promoted: bool = False
    message: str = ""  # why
    model: Path | None = None  # the candidate's folder; None if none could be trained
    current: JudgeEvalSummary | None = None  # on the held-out episodes; None without a comparison
    candidate: JudgeEvalSummary | None = None
    ledger_version: int = 0  # of the run's ledger, up to which labels were used
    seconds: float = 0.0
    time: float = 0.0  # seconds since 1970, UTC

    def to_json(self) -> dict[str, Any]:
        judges = {"current": self.current, "candidate": self.candidate}
        summaries = {name: None if judge is None else judge.to_json() for name, judge in judges.items()}
        return {**vars(self), **summaries, "model": self.model is not None}

    @classmethod
    def read(cls, folder: Path) -> Self:
        with understood(folder / DECISION_FILE):
            tree = read_json_object(folder / DECISION_FILE)
            return TypeAdapter(cls).validate_python({**tree, "model": folder if tree["model"] else None})


_read_decision = lru_cache(maxsize=1000)(lambda folder, _changed: PromotionDecision.read(folder))


def decisions(folder: Path) -> list[PromotionDecision]:
    """All decisions of a run, the oldest first. Cached, because the loop asks in every turn."""
    paths = sorted(folder.glob(f"[0-9][0-9][0-9][0-9]/{DECISION_FILE}"))
    return [_read_decision(path.parent, path.stat().st_mtime_ns) for path in paths]


def last_promotion(folder: Path) -> PromotionDecision | None:
    """The decision whose model is current; None: still the first judge."""
    return next((decision for decision in reversed(decisions(folder)) if decision.promoted), None)


def current_judge(first: JudgeConfig, folder: Path) -> JudgeConfig:
    """The judge that a run began with, or its newest version.

    folder: of the judge's versions
    """
    if isinstance(first, CascadeConfig):
        stage = classifier_stage(first)
        if stage is None:
            return first
        newest = current_judge(stage, folder)
        return first if newest is stage else first.with_models([newest if s is stage else s for s in first.models])
    promotion = last_promotion(folder) if isinstance(first, ClassifierJudgeConfig) else None
    if promotion is None or promotion.model is None:
        return first
    assert isinstance(first, ClassifierJudgeConfig)
    return _with_model(first, promotion.model)


def _with_model(judge: ClassifierJudgeConfig, model: Path) -> ClassifierJudgeConfig:
    """With another model. The parts of the rule that were fitted on the first model's scores are dropped."""
    kept = {name: getattr(judge.rule, name) for name in judge.rule.model_fields_set & {"decode", "k", "n", "ood"}}
    return judge.model_copy(
        update={"model": model, "rule": DecisionRule(**kept), "force": False}
        | {"calibration": None, "calibration_record": None, "rights": None}
    )


Origin = Literal["online", "initial"]  # the run's own episodes, or those that the first judge was trained on


class RetrainData:
    """The two stores of a run.

    val_fraction: of the episodes that no judge has chosen, the fraction that is held out
    lots: fraction of the episodes that a cascade sends to a person by lot; all of them are held out
    """

    def __init__(self, folder: Path, val_fraction: float, seed: int = 0, lots: float = 0.0):
        self.train, self.val = folder / "train", folder / "val"
        self._val_fraction, self._seed, self._lots = val_fraction, seed, lots

    def is_held_out(self, store: Store, episode_id: int) -> bool:
        """Whether an episode that no judge has chosen is one of those that nothing is trained on."""
        drawn = hashed_uniform(self._seed, "held_out", _key(store, episode_id)) < self._val_fraction
        return drawn or self.is_by_lot(store, episode_id)

    def is_by_lot(self, store: Store, episode_id: int) -> bool:
        """Whether the cascade sends the episode to a person by random draw."""
        return self._lots > 0 and lot_of(store.episode(episode_id)) < self._lots

    def add_labeled(
        self, store: Store, sources: Collection[str], origin: Origin, unchosen: Collection[int] | None = None
    ) -> None:
        """Copy what these sources have labeled, and labels that they have changed; called again, does nothing.

        unchosen: episodes that no judge has chosen, which may be held out; None: all
        """
        with ExitStack() as stack:
            targets = [stack.enter_context(Store.open_or_create(path)) for path in (self.train, self.val)]
            copies = [{t.entry(i).line["meta"][RETRAIN_META]["key"]: i for i in t.ids} for t in targets]
            for episode_id in labeled_episodes(store, sources):
                current = store.ledger.current(episode_id, sources)
                assert current is not None
                with suppress(EpisodeNotFound):  # evicted while this goes on
                    fair = unchosen is None or episode_id in unchosen or self.is_by_lot(store, episode_id)
                    split = int(fair and self.is_held_out(store, episode_id))
                    if not split or current.source in REFERENCE_SOURCES:  # a model's label measures no judge
                        _copy(store, current, targets[split], copies[split], origin)


def labeled_episodes(store: Store, sources: Collection[str]) -> list[int]:
    """The stored episodes that one of these sources has labeled."""
    return [i for i in store.ids if store.ledger.newest(i, sources) is not None]


def _copy(store: Store, newest: LabelVersion, target: Store, copies: dict[str, int], origin: Origin) -> None:
    key, labels = _key(store, newest.episode), newest.labels()
    if key not in copies:
        if not labels.labeled.any():  # excluded
            return
        episode = store.episode(newest.episode)
        source = {"key": key, "origin": origin, "episode": newest.episode}
        copies[key] = target.append(replace(episode, privileged={}, meta={**episode.meta, RETRAIN_META: source}))
    copied = target.ledger.newest(copies[key])
    if copied is None or (copied.source, copied.time) != (newest.source, newest.time):
        target.ledger.append(copies[key], labels)


def _key(store: Store, episode_id: int) -> str:
    """A key of the episode's bytes."""
    checksums = sorted(store.entry(episode_id).line["crc"].items())
    return sha256(repr(checksums).encode()).hexdigest()[:16]


class Retrainer:
    """Retrains the judge of one run. All state is in its folder.

    first: the judge that the run began with
    cascade: of which it is a stage
    """

    def __init__(
        self,
        folder: Path,
        first: ClassifierJudgeConfig,
        config: RetrainConfig,
        seed: int = 0,
        cascade: CascadeConfig | None = None,
    ):
        self.folder, self.config = folder, config
        lots = 0.0 if cascade is None or cascade.human is None else cascade.check
        self.data = RetrainData(folder / "data", config.val_fraction, seed, lots)
        self._first, self._seed, self._cascade = first, seed, cascade
        self._child: ChildProcess | None = None
        self._start = (0, 0.0)  # of the one that runs: version of the ledger, and when
        self._num_decided = 0  # decisions when it started

    @property
    def judge(self) -> ClassifierJudgeConfig:
        """The current version."""
        newest = current_judge(self._first, self.folder)
        assert isinstance(newest, ClassifierJudgeConfig)
        return newest

    @property
    def _sources(self) -> tuple[str, ...]:
        """Sources of trusted labels, with the later stages of a cascade."""
        later = () if self._cascade is None else self._cascade.models[self._cascade.models.index(self._first) + 1 :]
        return (*self.config.sources, *(JUDGE_REGISTRY.name_of(stage) for stage in later))

    def should_retrain(self, store: Store) -> bool:
        """Whether there are enough new labels since the last try; not while one runs."""
        enough = len(labeled_episodes(store, self._sources)) >= self.config.min_episodes
        return not self.running and enough and self.num_new_labels(store) >= self.config.min_new_labels

    def num_new_labels(self, store: Store) -> int:
        """Episodes with trusted labels since the last try."""
        used = max((decision.ledger_version for decision in decisions(self.folder)), default=0)
        used = used if used <= len(store.ledger) else 0  # a repair shortened the ledger: all count as new
        new = {version.episode for version in store.ledger.since(used) if version.source in self._sources}
        return len(new & set(store.ids))

    def run(
        self,
        store: Store,
        watch: Watch = never_stop,
        unchosen: Collection[int] | None = None,
    ) -> PromotionDecision:
        """Train, compare, decide and write the decision down. If `watch` returns False, `TrainingInterrupted` is
        raised, and the same call continues.

        unchosen: episodes that no judge has chosen, see `RetrainData.add_labeled`
        """
        start = time.monotonic()
        store.ledger.refresh()
        store.refresh()
        version = len(store.ledger)
        shutil.rmtree(self._candidate, ignore_errors=True)  # of one that was killed before it was decided on
        try:
            current, candidate = self._compare(store, watch, unchosen)
            promoted, message = should_promote(current, candidate, self.config.replace, self._alpha("promotion"))
            before = None if self._cascade is None else self.judge.resolved().rights
            now = None if before is None else _with_model(self._first, self._candidate).resolved().rights
            if promoted and before is not None and now is not None and not now.covers(before):
                promoted, message = False, f"it would lose a right to decide: {now.describe()}"
            decision = PromotionDecision(0, promoted, message, None, current, candidate, version)
        except PlauditError as error:
            message = f"no new version of the judge could be trained: {error}"
            decision = PromotionDecision(message=message, ledger_version=version)
        return self._write(decision, time.monotonic() - start)

    @property
    def _candidate(self) -> Path:
        return self.folder / CANDIDATE / "model"

    def _alpha(self, kind: Literal["promotion", "cascade"]) -> float:
        """The chance of a wrong decision that this retraining may spend of the run's budget."""
        budget = ErrorBudget.of(retrains=True, cascade=self._cascade is not None)
        compared = sum(decision.candidate is not None for decision in decisions(self.folder))
        return alpha_spent(getattr(budget, kind), compared + 1)

    def _compare(
        self, store: Store, watch: Watch, unchosen: Collection[int] | None
    ) -> tuple[JudgeEvalSummary, JudgeEvalSummary]:
        """Train a candidate; returns how the current judge and the candidate do on the held-out episodes."""
        judge = self.judge
        model = load_reward_model(judge.model, judge.device, force=judge.force)
        for path in self.config.data:
            self.data.add_labeled(Store.open(path), REFERENCE_SOURCES, "initial")
        self.data.add_labeled(store, self._sources, "online", unchosen)
        settings = training_config(model, self.config.train_overrides, {*REFERENCE_SOURCES, *self._sources})
        fitted = train_and_save(Store.open(self.data.train), self._candidate, settings, watch, lambda _: iter)
        held_out = Store.open(self.data.val)
        new = _with_model(judge, self._candidate).model_copy(update={"force": True})
        current, candidate = evaluate_judge(judge.build(), held_out), evaluate_judge(new.build(), held_out)
        if self._cascade is not None:
            save_rights(self._candidate, self._prove_rights(new, held_out))
        return current, replace(candidate, problems=(*fitted.model.config.problems, *candidate.problems))

    def _prove_rights(self, judge: ClassifierJudgeConfig, held_out: Store) -> Rights:
        """What a candidate may decide alone, proven on held-out episodes that no judge has chosen."""
        built, before = judge.build(), self.judge.resolved().rights
        ids = [i for i in held_out.ids if episode_origin(held_out, i) == "initial" or self.data.is_by_lot(held_out, i)]
        targets = load_reference_labels(held_out, REFERENCE_SOURCES, ids) if ids else {}
        predictions, _ = score_episodes(held_out, built, targets)
        max_error = 0.05 if before is None else before.max_error
        confidence = 1 - self._alpha("cascade") / 2  # one statement about successes, one about failures
        return prove_rights(predictions, built.rule, built.id.fingerprint, max_error, confidence)

    def _write(self, decision: PromotionDecision, seconds: float) -> PromotionDecision:
        """Write the decision next to its model, and move both into place at once."""
        candidate, before = self._candidate, decisions(self.folder)
        number = before[-1].number + 1 if before else 1
        target = self.folder / f"{number:04d}"
        model = target if (candidate / "model.json").is_file() else None
        decision = replace(decision, number=number, model=model, seconds=round(seconds, 1), time=time.time())
        candidate.mkdir(parents=True, exist_ok=True)
        for path in candidate.iterdir():
            sync(path)
        write_atomic(candidate / DECISION_FILE, json.dumps(decision.to_json(), indent=1).encode())
        candidate.rename(target)
        sync(self.folder)
        lines = [json.dumps(one.to_json()) + "\n" for one in (*before, decision)]
        write_atomic(self.folder / "history.jsonl", "".join(lines).encode())
        return decision

    # In a process of its own

    def launch(self, store: Path, unchosen: Collection[int] | None = None) -> None:
        """Start a retraining from the store in this folder; `poll` returns its result. unchosen: see `run`"""
        assert self._child is None, "one at a time"
        self._start = (len(Store.open(store).ledger), time.monotonic())
        self._num_decided = len(decisions(self.folder))
        own = (self.folder.resolve(), self._first, self.config, self._seed, self._cascade)
        target = "plaudit.training.retrain:retrain_main"
        self._child = ChildProcess("retraining", target, own, store.resolve(), unchosen)

    @property
    def running(self) -> bool:
        """Whether a retraining is running, or is done but not polled yet."""
        return self._child is not None

    def poll(self) -> PromotionDecision | None:
        """The result of the retraining; None while it runs, or without one."""
        child = self._child
        if child is None or (child.alive and not child.connection.poll()):
            return None
        try:
            number = child.connection.recv()
        except (EOFError, OSError):
            number = None
        reason = "" if number is not None else child.exit_reason()
        child.end()
        self._child = None
        if number is not None:
            return PromotionDecision.read(self.folder / f"{number:04d}")
        shutil.rmtree(self._candidate, ignore_errors=True)
        message = f"no new version of the judge could be trained: {reason}"
        failed = PromotionDecision(message=message, ledger_version=self._start[0])
        return self._write(failed, time.monotonic() - self._start[1])

    def request_stop(self) -> bool:
        """Tell the retraining to stop, without waiting; returns whether it still runs. `stop` comes after this."""
        if self._child is None:
            return False
        self._child.hang_up()
        return self._child.alive

    def stop(self) -> PromotionDecision | None:
        """Stop the retraining; a later `launch` continues it. Returns its decision if it was done by then."""
        if self._child is None:
            return None
        self._child.end(STOP_TIMEOUT_S)
        self._child = None
        done = decisions(self.folder)
        return done[-1] if len(done) > self._num_decided else None

    def metrics(self) -> dict[str, float]:
        """Metrics by their names in docs/metrics.md; those of held-out episodes only after a comparison."""
        done, promotion = decisions(self.folder), last_promotion(self.folder)
        counts = {
            "judge/version": float(0 if promotion is None else promotion.number),
            "judge/num_retrainings": float(len(done)),
            "judge/num_rejected": float(sum(not decision.promoted for decision in done)),
        }
        compared = [decision for decision in done if decision.candidate is not None][-1:]
        for summary in (one.candidate if one.promoted else one.current for one in compared):
            rates = {f"judge/val_{name}": float(getattr(summary, name)) for name in (*RATES, "frame_fpr")}
            counts |= {name: rate for name, rate in rates.items() if not math.isnan(rate)}
        return counts


def retrain_main(
    connection: Connection, arguments: tuple[Any, ...], store: Path, unchosen: Collection[int] | None
) -> None:
    """The process: one retraining, which saves what it has when its parent is gone. arguments: of the `Retrainer`"""
    retrainer = Retrainer(*arguments)
    os.nice(retrainer.config.nice)
    torch.set_num_threads(retrainer.config.num_threads)
    exit_with_parent(connection, STOP_TIMEOUT_S)
    with suppress(TrainingInterrupted):
        decision = retrainer.run(Store.open(store), lambda _: not connection.poll(), unchosen)
        send(connection, decision.number)


def training_config(
    model: RewardModel, overrides: Mapping[str, Any], sources: Collection[str] = REFERENCE_SOURCES
) -> RewardTrainConfig:
    """The settings that a judge was trained with, with these overrides, for the same cameras.

    sources: of the labels to learn from
    """
    shape = model.classifier
    own = model.config.training.get("config") or {  # a model of another trainer has only its network
        "encoder": shape.encoder.model_dump(mode="json"),
        "use_state": bool(shape.state_dim),
        **shape.model_dump(mode="json", include=set(RewardTrainConfig.model_fields) - {"encoder"}),
    }
    always = {"image_keys": list(shape.cameras), "image_size": shape.image_size, "label_sources": sorted(sources)}
    return parse(RewardTrainConfig, {**deep_merge(own, overrides), **always})
