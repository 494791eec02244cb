"""Monitoring an online run: is its judge right, is there a better version of it, and what do people do?

An audit compares some of its labels with what is true (audit.py); the labels that this gathers train a candidate
in the background (retrain.py). When the audit raises its alarm, the learner learns nothing more from this judge: a
candidate is trained from all that is known by then, and if none is promoted, the run is over.

One person may do all that people do. What the robot waits for comes first, then labels: those of the audit, of a
cascade, and of episodes that no judge labels. The time of corrections and at the gate is measured, and recorded with
the episodes. That of labels follows from the ledger: the time since the label before, up to `BREAK_S`.
"""

from collections import Counter, deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from plaudit.data.ledger import counted_sources
from plaudit.data.store import Store
from plaudit.errors import EpisodeNotFound, TrainingError, format_count
from plaudit.judges.classifier.config import classifier_stage
from plaudit.judges.config import HUMAN as PERSON
from plaudit.judges.config import JudgeConfig
from plaudit.judges.stats import ErrorBudget
from plaudit.rollout.operator import OperatorStatus
from plaudit.rule import release
from plaudit.training.audit import OOD_WINDOW, CascadeLedger, LabelChanges, LedgerAudit, LedgerReader, withheld_warning
from plaudit.training.config import withholding_judge
from plaudit.training.retrain import PromotionDecision, Retrainer, current_judge
from plaudit.training.run_folder import RunFolder
from plaudit.types import HUMAN, Episode, JudgeId, Labels

BREAK_S = 60.0  # between two labels; a longer pause counts as this
SPENT = {  # metric of the time of people -> what they did
    "person/time_correcting_s": "correcting",
    "person/time_at_gate_s": "at the gate",
    "person/time_auditing_s": "auditing",
    "person/time_labeling_s": "labeling",
}
TaskKind = Literal["release", "help", "start", "audit", "decide", "label"]


class PersonTask(NamedTuple):
    """Something that a person is asked to do."""

    kind: TaskKind  # the robot waits for the first three, or is about to fail
    text: str


def next_tasks(
    operator: OperatorStatus | None, metrics: Mapping[str, float], unlabeled: int | None
) -> list[PersonTask]:
    """A person's open tasks, the most urgent first.

    operator: of the robot; None: no one attends it
    metrics: of the run's judge
    unlabeled: episodes that wait for a person's label; None: a person does not label this run
    """
    tasks: list[PersonTask] = []
    if operator is not None and operator.phase == "held":
        tasks.append(PersonTask("release", "EMERGENCY STOP"))
    if operator is not None and operator.hint:
        tasks.append(PersonTask("help", operator.hint))
    if operator is not None and operator.phase == "gate":
        tasks.append(PersonTask("start", "scene ready?"))
    waiting: dict[TaskKind, float] = {
        "audit": metrics.get("audit/pending_episodes", 0),
        "decide": metrics.get("judge/undecided_episodes", 0),
        "label": unlabeled or 0,
    }
    tasks += [
        PersonTask(kind, f"{kind} {format_count(int(count), 'episode')}") for kind, count in waiting.items() if count
    ]
    return tasks


def _seconds(steps: int, fps: float) -> float:
    """Duration of these steps in seconds; 0 if the rate is unknown."""
    return steps / fps if fps else 0.0


@dataclass
class LabelTime:
    """Seconds that labels took a person."""

    metric: Literal["person/time_labeling_s", "person/time_auditing_s"]
    seconds: float = 0.0
    _newest: float = field(default=-np.inf, repr=False)

    def add(self, time: float) -> None:
        """Count a label. time: when it was given, s"""
        self.seconds += min(max(time - self._newest, 0.0), BREAK_S)
        self._newest = max(self._newest, time)


class HelpedEpisode(NamedTuple):
    """What a person did in an episode, and how it ended."""

    steps: int
    by_person: int  # steps
    interventions: int
    fps: float
    success: bool  # by the judge or the operator
    true_success: bool | None  # by the simulator; None on a robot


@dataclass
class HelpStats:
    """Interventions in the newest episodes.

    Success with and without help is separate: help makes the robot look better than its policy is.
    """

    window: int  # episodes
    _episodes: deque[HelpedEpisode] = field(init=False, repr=False)
    _since_s: float = 0.0  # the last intervention

    def __post_init__(self) -> None:
        self._episodes = deque(maxlen=self.window)

    def add(self, episode: Episode, success: bool) -> None:
        """Count an episode, the newest."""
        human = episode.control_mode == HUMAN
        starts = int(np.count_nonzero(human[1:] & ~human[:-1])) + int(human[0])
        true_success = None if episode.success is None else bool(episode.success.any())
        self._episodes.append(HelpedEpisode(len(human), int(human.sum()), starts, episode.fps, success, true_success))
        acted = np.flatnonzero(human)
        since, before = (len(human) - 1 - int(acted[-1]), 0.0) if len(acted) else (len(human), self._since_s)
        self._since_s = before + _seconds(since, episode.fps)

    def metrics(self) -> dict[str, float]:
        """Metrics by their names in docs/metrics.md."""
        episodes = self._episodes
        if not episodes:
            return {}
        count = Counter[str]()
        for one in episodes:
            count.update(steps=one.steps, by_person=one.by_person, interventions=one.interventions)
        numbers = {
            "person/intervention_rate": count["by_person"] / count["steps"],
            "person/helped_episodes": float(np.mean([one.by_person > 0 for one in episodes])),
            "person/seconds_since": self._since_s,
            "judge/success_unaided": float(np.mean([one.success and not one.by_person for one in episodes])),
        }
        if count["interventions"]:
            acted_s = sum(_seconds(one.by_person, one.fps) for one in episodes)
            numbers["person/intervention_s"] = acted_s / count["interventions"]
        helped = [one for one in episodes if one.by_person]
        alone = [one for one in episodes if not one.by_person]
        rates = {
            "judge/success_with_help": [one.success for one in helped],
            "env/success_with_help": [one.true_success for one in helped if one.true_success is not None],
            "judge/success_without_help": [one.success for one in alone],
            "env/success_without_help": [one.true_success for one in alone if one.true_success is not None],
        }
        return numbers | {name: float(np.mean(successes)) for name, successes in rates.items() if successes}


SUCCESS_WINDOW = OOD_WINDOW  # episodes over which success rates are shown


class JudgeMonitor(LedgerReader):
    """Audit and retraining of one run's judge, in the process that owns the run's folder."""

    def __init__(self, folder: RunFolder, judge: JudgeId):
        """judge: the one that labels from now on"""
        if not folder.episodes.is_dir():
            raise TrainingError(f"{folder.path} is not on the training machine; run this command there")
        config, source = folder.config, judge.source
        self.store = Store.open(folder.episodes)
        cascade = config.judge.cascade
        alpha = ErrorBudget.of(retrains=config.judge.retrain is not None, cascade=cascade is not None).alarm
        self.audit = LedgerAudit(config.audit, source, config.run.seed, alpha) if config.audits else None
        self.cascade = None if cascade is None else CascadeLedger(cascade)
        self._folder, self._sources, self._retrainer = folder, counted_sources(source), None
        if config.judge.retrain is not None and (classifier := classifier_stage(config.judge.config)) is not None:
            self._retrainer = Retrainer(folder.judge, classifier, config.judge.retrain, config.run.seed, cascade)
        self._has_teleop = config.teleop is not None
        self._changes = LabelChanges(source) if config.resets_after_relabeling else None
        self.label_changes: tuple[int, int] | None = None  # and labeled episodes; None: nothing depends on it
        super().__init__()
        self.last_decision: PromotionDecision | None = None  # of this session
        self._closed = False
        self._starts_with: str | None = judge.model
        self._replaced = ""  # fingerprint of a judge whose new version has labeled nothing yet

    def _reset(self) -> None:
        self._successes: deque[bool] = deque(maxlen=SUCCESS_WINDOW)
        self._ood: deque[bool] = deque(maxlen=SUCCESS_WINDOW)  # whether these are out of distribution
        self._help = HelpStats(SUCCESS_WINDOW)
        self._label_time = LabelTime(
            "person/time_labeling_s" if self._folder.config.judge.is_human else "person/time_auditing_s"
        )

    def refresh(self) -> JudgeConfig | None:
        """Catch up with the labels; returns the new version when one has just been promoted."""
        self.store.refresh()
        if self.audit is not None:
            self.audit.read_labels(self.store)
            if self._starts_with not in (None, self.audit.fingerprint):  # the newest labels are an earlier judge's
                self._replaced = self.audit.fingerprint
            self._starts_with = None
        else:
            self.store.ledger.refresh()
        for version in self._new_labels(self.store.ledger):
            if version.source not in self._sources:
                continue
            if version.source == PERSON:
                self._label_time.add(version.time)
            # Only the first decision on an episode counts: a new version of the judge labels old episodes again.
            *before, version = self.store.ledger.history(version.episode)[: version.number]
            labels, earlier = version.labels(), [v.labels() for v in before if v.source in self._sources]
            if _is_decision(labels) and not any(map(_is_decision, earlier)):
                self._successes.append(release(labels).success_once)
                self._ood.append(bool(labels.ood))
                if self._has_teleop:
                    with suppress(EpisodeNotFound):  # evicted
                        self._help.add(self.store.episode(version.episode), self._successes[-1])
        if self.cascade is not None:
            self.cascade.read_labels(self.store)
        if self._changes is not None:
            self.label_changes = self._changes.read(self.store.ledger)
        return self._retrain()

    def _retrain(self) -> JudgeConfig | None:
        if self._retrainer is None or self._closed:
            return None
        decision = self._retrainer.poll()
        if decision is not None:
            self.last_decision = decision
            if not decision.promoted:
                return None
            self._replaced = "" if self.audit is None else self.audit.fingerprint
            return current_judge(self._folder.config.judge.config, self._folder.judge)
        alarmed = self.blocks_learning and self._retrainer.num_new_labels(self.store) > 0
        if not self._retrainer.running and (alarmed or self._retrainer.should_retrain(self.store)):
            self._retrainer.launch(self.store.folder, frozenset() if self.audit is None else self.audit.by_lot)
        return None

    @property
    def retraining(self) -> bool:
        """Whether a candidate is being trained, or is trained and not polled yet."""
        return self._retrainer is not None and self._retrainer.running

    @property
    def judge_success(self) -> float | None:
        """Success rate of the newest episodes, by the judge, or by the operator where they marked one."""
        return float(np.mean(self._successes)) if self._successes else None

    @property
    def requested(self) -> list[int]:
        """Episodes that a human is to audit, or to decide."""
        audited = [] if self.audit is None else self.audit.requested(self.store)
        undecided = [] if self.cascade is None else self.cascade.requested(self.store)
        return list(dict.fromkeys([*audited, *undecided]))

    @property
    def blocks_learning(self) -> bool:
        """Whether the learner must not learn from this judge."""
        return self.audit is not None and self.audit.current.blocks_learning

    @property
    def rejected(self) -> frozenset[str]:
        """Fingerprints of the models that an alarm has stopped."""
        return frozenset() if self.audit is None else self.audit.rejected

    @property
    def should_abort(self) -> bool:
        """Whether the learner must not learn from this judge and no candidate is being trained."""
        if not self.blocks_learning or self.audit is None or self.audit.fingerprint == self._replaced:
            return False
        return not self.retraining

    @property
    def alarm(self) -> str | None:
        """Why the judge is not to be trusted."""
        return self.audit.status if self.audit is not None and self.audit.current.alarm is not None else None

    @property
    def warning(self) -> str:
        """What to do where the judge withholds most of the newest episodes."""
        config = self._folder.config
        return withheld_warning(self._ood, withholding_judge(config, config.judge.config).rule)

    def metrics(self) -> dict[str, float]:
        """Metrics by their names in docs/metrics.md."""
        audit = {} if self.audit is None else self.audit.metrics()
        cascade = {} if self.cascade is None else self.cascade.metrics()
        if self._ood and classifier_stage(self._folder.config.judge.config) is not None:
            audit["judge/ood_share"] = float(np.mean(self._ood))
        if self._folder.config.asks_human:
            audit[self._label_time.metric] = self._label_time.seconds
        return audit | cascade | self._help.metrics() | ({} if self._retrainer is None else self._retrainer.metrics())

    def request_stop(self) -> bool:
        """Tell a running training to stop, without waiting; returns whether one still runs. `refresh` starts none."""
        self._closed = True
        return self._retrainer is not None and self._retrainer.request_stop()

    def close(self) -> None:
        """Stop a running training; `refresh` starts no other. A decision it has already made counts."""
        self._closed = True
        if self._retrainer is not None:
            self.last_decision = self._retrainer.stop() or self.last_decision


def _is_decision(labels: Labels) -> bool:
    return bool(labels.labeled.any()) or labels.withheld
