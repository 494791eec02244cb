"""Whether the judge in charge may be believed, and who comes after it.

An audit compares a share of its verdicts with what is true (audit.py); what was found out trains a successor in the
background (retrain.py). When the two drift apart, the learner learns nothing more from this judge: a successor is
trained from all that is known by then, and if there is none, the run is over.
"""

from collections import deque
from pathlib import Path

import numpy as np

from plaudit.data.store import Store
from plaudit.errors import TrainingError
from plaudit.judges.classifier.judge import ClassifierJudgeConfig
from plaudit.judges.config import JudgeConfig
from plaudit.training.audit import Audit
from plaudit.training.online_config import OnlineConfig
from plaudit.training.retrain import Replacement, Retrainer, in_charge

RECENT = 50  # episodes over which success is told


def judge_in_charge(config: OnlineConfig, folder: Path) -> JudgeConfig:
    """The one that the run began with, or its newest successor."""
    first = config.judge
    return in_charge(folder / "judges", first) if isinstance(first, ClassifierJudgeConfig) else first


class JudgeMonitor:
    """Of one run, looked at from the machine of its folder."""

    def __init__(self, config: OnlineConfig, folder: Path, source: str):
        """source: of the judge's labels"""
        if not (folder / "episodes").is_dir():
            raise TrainingError(f"{folder} is not on the training machine; run this command there")
        self.store = Store.open(folder / "episodes")
        self.audit = Audit(config.audit, source, config.seed) if config.audited else None
        self._source, self._retrainer = source, None
        if config.retrain is not None and isinstance(config.judge, ClassifierJudgeConfig):
            self._retrainer = Retrainer(folder / "judges", config.judge, config.retrain, config.seed)
        self._said: deque[bool] = deque(maxlen=RECENT)
        self._seen = 0  # versions of the ledger
        self.news: Replacement | None = None  # the newest decision of this sitting
        self._closed = False
        self._replaced = ""  # model of a judge whose successor has said nothing yet

    def look(self) -> JudgeConfig | None:
        """Catch up; the successor, when one has just replaced the judge in charge."""
        self.store.refresh()
        if self.audit is not None:
            self.audit.look(self.store)
        else:
            self.store.ledger.refresh()
        new = self.store.ledger.since(self._seen)
        self._seen += len(new)
        first = [v for v in new if v.source == self._source and self._is_first(v.episode, v.number)]
        self._said.extend(version.labels().success_once for version in first)
        return self._succession()

    def _is_first(self, episode: int, number: int) -> bool:
        """Whether a verdict is the judge's first on an episode: what a successor says of old ones is no news."""
        return not any(v.source == self._source for v in self.store.ledger.history(episode)[: number - 1])

    def _succession(self) -> JudgeConfig | None:
        if self._retrainer is None or self._closed:
            return None
        found = self._retrainer.poll()
        if found is not None:
            self.news = found
            if not found.replaced:
                return None
            self._replaced = "" if self.audit is None else self.audit.model
            return self._retrainer.judge
        wanted = self._retrainer.due(self.store) or (self.stops and self._retrainer.new_labels(self.store) > 0)
        if wanted and not self._retrainer.running:
            self._retrainer.start(self.store.folder)
        return None

    @property
    def retraining(self) -> bool:
        """Whether a successor is under way, or done and not looked at yet."""
        return self._retrainer is not None and self._retrainer.running

    @property
    def judged_success(self) -> float | None:
        """Share of the newest episodes that the judge called a success."""
        return float(np.mean(self._said)) if self._said else None

    @property
    def waiting(self) -> list[int]:
        """Episodes that a person is to audit."""
        return [] if self.audit is None else self.audit.waiting(self.store)

    @property
    def stops(self) -> bool:
        """Whether the learner must not go on with this judge."""
        return self.audit is not None and self.audit.stops

    @property
    def hopeless(self) -> bool:
        """Whether it must not, and nobody is about to replace it."""
        if not self.stops or self.audit is None or self.audit.model == self._replaced:
            return False
        return not self.retraining

    @property
    def alarm(self) -> str | None:
        return self.audit.sentence if self.audit is not None and self.audit.ringing else None

    def metrics(self) -> dict[str, float]:
        audited = {} if self.audit is None else self.audit.metrics()
        return audited | ({} if self._retrainer is None else self._retrainer.metrics())

    def close(self) -> None:
        """End a retraining that is under way; `look` begins no other. What it decided at the last moment is news."""
        self._closed = True
        if self._retrainer is not None:
            self.news = self._retrainer.stop() or self.news
