"""Monitoring the judge of an online run: is it right, and is there a better version of it?

An audit compares some of its labels with what is true (ledger_audit.py); the labels that this gathers train a candidate
in the background (retrain.py). When the audit raises its alarm, the learner learns nothing more from this judge: a
candidate is trained from all that is known by then, and if none is promoted, the run is over.
"""

from collections import deque
from contextlib import suppress

import numpy as np

from plaudit.data.ledger import counted_sources
from plaudit.data.store import Store
from plaudit.errors import EpisodeNotFound, TrainingError
from plaudit.judges.classifier.config import classifier_stage
from plaudit.judges.config import HUMAN, JudgeConfig
from plaudit.judges.stats import ErrorBudget
from plaudit.rule import release
from plaudit.training.ledger_audit import CascadeLedger, LabelChanges, LedgerAudit, LedgerReader
from plaudit.training.person import HelpStats, LabelTime
from plaudit.training.retrain import PromotionDecision, Retrainer, current_judge
from plaudit.training.run_folder import RunFolder
from plaudit.types import JudgeId, Labels

SUCCESS_WINDOW = 50  # episodes over which success rates are shown


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
            if version.source == HUMAN:
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

    def metrics(self) -> dict[str, float]:
        """Metrics by their names in docs/metrics.md."""
        audit = {} if self.audit is None else self.audit.metrics()
        cascade = {} if self.cascade is None else self.cascade.metrics()
        if self._ood and classifier_stage(self._folder.config.judge.config) is not None:
            audit["judge/ood_share"] = float(np.mean(self._ood))
        if self._folder.config.asks_human:
            audit[self._label_time.metric] = self._label_time.seconds
        return audit | cascade | self._help.metrics() | ({} if self._retrainer is None else self._retrainer.metrics())

    def close(self) -> None:
        """Stop a running training; `refresh` starts no other. A decision it has already made counts."""
        self._closed = True
        if self._retrainer is not None:
            self.last_decision = self._retrainer.stop() or self.last_decision


def _is_decision(labels: Labels) -> bool:
    return bool(labels.labeled.any()) or labels.withheld
