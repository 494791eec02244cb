"""What is due in an online run: when each worker has something to do, and what it waits for otherwise.

Everything here follows from counters that are read from disk and from the config, so that a run that was stopped
anywhere goes on with the same decisions.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from plaudit.training.config import TrainingConfig
from plaudit.training.monitor import JudgeMonitor
from plaudit.training.progress import OnlineProgress
from plaudit.training.seeds import train_seed
from plaudit.training.worker_group import WorkerGroup
from plaudit.training.workers.learner import LearnerInfo

UPDATE_CALL_S = 0.5  # of work per call of the learner; counts and weights are published in between
MAX_BEHIND_S = 60.0  # of updates that may be pending before a learner counts as too slow
SERIAL_UPDATES = 50  # that it is given at a time where calls are made one after the other


@dataclass
class OnlineSchedule:
    """Of one session of a run."""

    config: TrainingConfig
    workers: WorkerGroup
    monitor: JudgeMonitor
    learner: LearnerInfo
    progress: OnlineProgress
    evaluated_at: int = -1  # env steps at the last evaluation
    starved: bool = False  # whether the learner found nothing to sample; new labels may change that

    @property
    def waits_for_candidate(self) -> bool:
        """Where workers take turns, when another judge is promoted must not depend on how long its training takes."""
        return self.workers.serial and self.monitor.retraining

    @property
    def has_unlabeled(self) -> bool:
        """Whether the judge has something to label."""
        counts = self.progress.replay
        return counts.unlabeled + counts.outdated + counts.demos_unlabeled > 0

    @property
    def requested(self) -> Sequence[int] | None:
        """Episodes that a human is asked about; None for all that have no label."""
        return None if self.config.human_labels else self.monitor.requested

    @property
    def has_samples(self) -> bool:
        """Demonstrations are labeled, and there is something to sample."""
        counts = self.progress.replay
        return not counts.demos_unlabeled and (self.config.demos.any or counts.labeled_steps > 0)

    @property
    def can_learn(self) -> bool:
        """Whether there is something to learn from, and a judge that passes its audit.

        After a change of judge, the new one labels all episodes again first.
        """
        return self.has_samples and not self.monitor.blocks_learning and not self.progress.replay.outdated

    @property
    def evaluation_due(self) -> bool:
        """Whether the policy is to be evaluated before the next update."""
        if not self.config.simulated or self.progress.updates < self.pretrain_updates:
            return False
        return self.evaluated_at < 0 or self.progress.step >= self.evaluated_at + self.config.evaluation.freq

    @property
    def pretrain_updates(self) -> int:
        """Updates on demonstrations before the robot moves."""
        return self.learner.pretrain_updates if self.config.demos.any else 0

    @property
    def updates_to_run(self) -> int:
        """As many as take half a second; a fixed number where the time that they take must not matter."""
        most = SERIAL_UPDATES if self.workers.serial else max(1, round(UPDATE_CALL_S * self.progress.updates_per_s))
        return min(self.progress.pending_updates, most)

    @property
    def update_call_s(self) -> float:
        """Seconds after which a call of the learner begins no further update."""
        return math.inf if self.workers.serial else UPDATE_CALL_S

    @property
    def learner_warning(self) -> str:
        """What to change where the learner cannot keep up with `utd_ratio`; "" where it can."""
        progress, ratio = self.progress, self.config.learner.utd_ratio
        rate, needed = progress.updates_per_s, ratio * progress.env_steps_per_s
        if not rate or rate >= needed or progress.updates < self.pretrain_updates:
            return ""
        behind_s = progress.pending_updates / rate
        if behind_s <= MAX_BEHIND_S:
            return ""
        return (
            f"the learner cannot keep up: it makes {rate:.2g} updates/s and needs {needed:.2g} (learner.utd_ratio="
            f"{ratio:g} at {progress.env_steps_per_s:.0f} steps/s); {progress.pending_updates:,} updates are pending, "
            f"about {behind_s / 60:.0f} min. Set learner.utd_ratio to {rate / progress.env_steps_per_s:.1g} or less, "
            "lower learner.batch_size, or train on a GPU (run.device=cuda)"
        )

    @property
    def next_seed(self) -> int | None:
        """Of the next episode; None on a robot."""
        return train_seed(self.config.run.seed, self.progress.episodes) if self.config.simulated else None

    def env_blocked_by(self) -> str:
        """Why the robot waits; "" where it does not."""
        counts, config = self.progress.replay, self.config
        if self.all_collected:
            return "the end of the run"
        if config.policy.behavior == "learner" and self.progress.policy.version == 0:
            return "the first weights"
        if counts.demos_unlabeled:
            return f"labels of {counts.demos_unlabeled} demonstrations"
        if self.progress.updates < self.pretrain_updates:
            left = self.pretrain_updates - self.progress.updates
            return f"{left:,} updates of pretraining on demonstrations"
        if self.monitor.blocks_learning:
            return "a judge that passes its audit"
        if self.waits_for_candidate:
            return "a new version of the judge"
        if counts.unlabeled >= config.run.max_unlabeled_episodes:
            return f"labels: {counts.unlabeled} unlabeled episodes (max {config.run.max_unlabeled_episodes})"
        if config.run.max_pending_episodes is not None and counts.episodes:
            mean = counts.steps / counts.episodes
            if self.progress.pending_updates > config.run.max_pending_episodes * mean * config.learner.utd_ratio:
                return f"the learner: {self.progress.pending_updates:,} updates pending"
        return ""

    @property
    def target_reached(self) -> bool:
        """Whether an evaluation had the success rate that ends the run."""
        target, success = self.config.evaluation.stop_success_rate, self.progress.eval_success
        return target is not None and success is not None and success >= target

    @property
    def finished(self) -> bool:
        """Whether the run is over."""
        progress = self.progress
        if self.monitor.should_abort:
            return True
        if self.target_reached and progress.episodes:
            return True
        if self.workers.judge is not None and not self.workers.judge.ready:  # what it labels is not known yet
            return False
        done = self.all_collected and not progress.replay.unlabeled and not progress.pending_updates
        return done and not self.workers.busy

    @property
    def all_collected(self) -> bool:
        """Whether the run has all of its episodes, or steps."""
        steps, episodes = self.config.max_steps, self.config.max_episodes
        enough = steps is not None and self.progress.step >= steps
        return enough or (episodes is not None and self.progress.episodes >= episodes)
