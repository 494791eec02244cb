"""The online loop: `plaudit online`. Robot, judge and learner work at their own pace; this loop says what is next.

    worker   does                                        waits                              until
    env      plays an episode with the newest weights    `backlog` episodes have no label,  the judge or the
                                                          `ahead` episodes not learned from  learner catches up
    judge    labels what has no label of its version     nothing is unlabeled               an episode is on disk
    labeler  a human who labels, or audits the judge     nothing is asked of them           an episode is drawn
    learner  updates that labeled steps have earned,     none is due; the audit's alarm     labels; a better judge
             publishes, evaluates

Workers know nothing of each other but the replay buffer and the state manager. The counters that decide are asked for,
not kept: a run that was stopped anywhere goes on with the same ones.

A worker that is lost is brought back and asked again; a disk that is full is tried again, and so is a worker that
raised what nobody expected. What lasts longer than `patience` ends the run with a sentence, and so does a robot that
cannot be driven. However a run ends, what was learned is saved.

Where workers take turns, in one process, nothing here depends on how long anything takes: the clock is the workers',
which counts turns, updates come in fixed numbers, and a judge that is trained again is waited for.
"""

import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from plaudit.errors import PlauditError, StoreFull, TrainingError, WorkerFailed, WorkerLost
from plaudit.training.failure_log import FailureLog
from plaudit.training.handles import Slot
from plaudit.training.monitor import JudgeMonitor, judge_in_charge
from plaudit.training.online_config import OnlineConfig
from plaudit.training.online_folder import OnlineFolder
from plaudit.training.progress import Now, numbers_of
from plaudit.training.replay_buffer import ReplayBuffer, ReplayStats
from plaudit.training.state_manager import PolicyStatus, StateManager, writes_here
from plaudit.training.trainer import training_seed
from plaudit.training.worker_group import WEIGHTS, Workers
from plaudit.training.workers.env import EnvWorker, EpisodeInfo, policy_env_spec
from plaudit.training.workers.human import WHO, HumanLabelWorker
from plaudit.training.workers.judge import JudgeBundle, JudgeWorker, LabelReport
from plaudit.training.workers.learner import LearnerInfo, LearnerWorker, UpdateReport, robot_policy
from plaudit.types import JudgeId

TICK_S = 0.1  # that the loop waits for something to happen
UPDATE_CALL_S = 0.5  # that the learner is given work for at a time; it publishes weights in between
SERIAL_UPDATES = 50  # that it is given at a time where workers take turns
RETRY_S = 0.5  # before a judge that found nothing to do, or a worker that failed, is asked again
LOG_INTERVAL_S = 2.0  # between two lines of metrics
AUDIT_INTERVAL_S = 1.0  # between two looks at the labels

RETRYABLE = (WorkerLost, WorkerFailed, StoreFull)  # what may be over in a minute

Callback = Callable[[Now], bool]  # told of how things stand; whether to go on


class OnlineTrainer:
    """`plaudit online`.

    trainer = OnlineTrainer(config, folder, workers)
    end = trainer.run(lambda now: True)
    """

    def __init__(self, config: OnlineConfig, folder: OnlineFolder, workers: Workers):
        self.config, self._folder, self.workers = config, folder, workers
        self._failures = FailureLog(folder, workers.clock, config.patience)
        self._recount = False  # whether the learner may have made other updates than it has told of
        self._begun = time.monotonic()
        self._logged = self._audited = workers.clock()
        self._evaluated_at = -1  # episodes at the last evaluation
        self.started = False  # whether there is something to tell of

    def run(self, callback: Callback) -> Now:
        """To the end, or until the callback returns False."""
        self.setup()
        try:
            going = self._loop(callback)
        except PlauditError:
            self.shutdown()
            raise
        except Exception as error:  # of a plugin that this process runs, which may raise anything
            failure = WorkerFailed("loop", error, traceback.format_exc())
            self.shutdown()
            raise TrainingError(self._failures.with_traceback(failure)) from error
        self.shutdown()
        self._finish(callback, evaluate=going)
        return self.now

    def _loop(self, callback: Callback) -> bool:
        """Until it is over; whether the callback would have gone on."""
        w, going = self.workers, True
        while going and not self.finished:
            if self.waits_for_candidate:
                time.sleep(TICK_S)
            else:
                if w.judge is not None and w.judge.idle:
                    if not w.judge.ready:
                        w.judge.start(self.on_judge, JudgeWorker.load, self._bundle)
                    elif self.has_unlabeled:
                        w.judge.start(self.on_labels, JudgeWorker.label_pending)
                if w.labeler is not None and w.labeler.idle:
                    w.labeler.start(self.on_human_labels, HumanLabelWorker.label_pending, self.requested)
                if w.learner.idle:
                    if self._recount:
                        w.learner.start(self.on_updates, LearnerWorker.update, 0)
                    elif self.now.state.version == 0:
                        w.learner.start(self.on_published, LearnerWorker.publish)
                    elif self.can_learn and self.evaluation_due:
                        self._evaluated_at = self.now.counts.episodes
                        w.learner.start(self.on_evaluation, LearnerWorker.evaluate, self.config.evaluation.episodes)
                    elif self.can_learn and self.now.owed:
                        w.learner.start(self.on_updates, LearnerWorker.update, min(self.now.owed, self.updates_a_call))
                if w.env.idle:
                    if not w.env.ready:
                        w.env.start(self.on_env, EnvWorker.load_policy, self.robot_policy)
                    elif not self.env_blocked_by():
                        w.env.start(self.on_episode, EnvWorker.rollout, self.next_seed)
                w.wait(TICK_S, self.on_failure)
            self.refresh()
            self._check_judge()
            going = callback(self.now)
        return going

    # Before the first episode

    def setup(self) -> None:
        """What the robot is, which judge labels, where the learner stands; the robot gets its policy."""
        w, config = self.workers, self.config
        env_spec = policy_env_spec(config, w.env.handle.call(EnvWorker.describe))
        self._judge: JudgeId = WHO
        if w.judge is not None:
            self._bundle = JudgeBundle.of(judge_in_charge(config, self._folder.path))
            self.on_judge(w.judge.handle.call(JudgeWorker.load, self._bundle))
        self._learner: LearnerInfo = w.learner.handle.call(LearnerWorker.setup, env_spec, self._judge.source)
        self.policy_config = self._learner.policy_config
        stats, status = w.replay.call(ReplayBuffer.stats, self._judge), w.state.call(StateManager.status)
        self.now = Now(stats, status, updates=self._learner.updates, **self._folder.last())
        self._check_places()
        self.monitor = JudgeMonitor(config, self._folder.path, self._judge.source)
        self._seconds_before = self.now.seconds
        self.robot_policy = robot_policy(config, self._learner)
        self.on_env(w.env.handle.call(EnvWorker.load_policy, self.robot_policy))
        self.started = True

    def _check_places(self) -> None:
        """The policy is saved from the weights that were published, which must be found here then."""
        folder = self._folder.path / WEIGHTS
        if not writes_here(self.now.state, folder):
            raise TrainingError(
                f"the state manager does not write to {folder} on this machine, so the policy could not be saved at "
                "the end; give state and replay the role of the machine where this command runs (cluster.parts)"
            )

    # What decides

    @property
    def waits_for_candidate(self) -> bool:
        """Where workers take turns, when another judge is promoted must not depend on how long its training takes."""
        return self.workers.serial and self.monitor.retraining

    @property
    def has_unlabeled(self) -> bool:
        counts = self.now.counts
        return counts.unjudged + counts.outdated + counts.demos_unjudged > 0

    @property
    def requested(self) -> Sequence[int] | None:
        """Episodes that a human is asked about; None for all that have no label."""
        return None if self.config.by_hand else self.monitor.waiting

    @property
    def has_samples(self) -> bool:
        """Demonstrations are labeled, and there is something to sample."""
        counts = self.now.counts
        return not counts.demos_unjudged and (self.config.demos is not None or counts.judged_steps > 0)

    @property
    def can_learn(self) -> bool:
        return self.has_samples and not self.monitor.stops

    @property
    def evaluation_due(self) -> bool:
        if not self.config.simulated or self.now.updates < self.pretrain_updates:
            return False
        return self._evaluated_at < 0 or self.now.counts.episodes >= self._evaluated_at + self.config.evaluation.every

    @property
    def pretrain_updates(self) -> int:
        return self._learner.pretrain_updates if self.config.demos is not None else 0

    @property
    def updates_a_call(self) -> int:
        """As many as take half a second; a fixed number where the time that they take must not matter."""
        if self.workers.serial:
            return SERIAL_UPDATES
        return max(1, round(UPDATE_CALL_S * self.now.updates_per_second)) if self.now.updates_per_second else 20

    @property
    def next_seed(self) -> int | None:
        return training_seed(self.config.seed, self.now.counts.episodes) if self.config.simulated else None

    def env_blocked_by(self) -> str:
        """Why the robot waits; "" where it does not."""
        counts, config = self.now.counts, self.config
        if counts.episodes >= config.episodes:
            return "all episodes are played"
        if config.act_with == "learner" and self.now.state.version == 0:
            return "there are no weights yet"
        if counts.demos_unjudged:
            return f"the judge looks at the demonstrations first, {counts.demos_unjudged} to go"
        if self.now.updates < self.pretrain_updates:
            left = self.pretrain_updates - self.now.updates
            return f"the learner studies the demonstrations first, {left:,} updates to go"
        if self.monitor.stops:
            return "its judge is not believed any more"
        if self.waits_for_candidate:
            return "a successor of the judge is being trained"
        if counts.unjudged >= config.backlog:
            return f"{counts.unjudged} episodes wait for the judge, {config.backlog} may"
        if config.ahead is not None and counts.episodes:
            mean = counts.steps / counts.episodes
            if self.now.owed > config.ahead * mean * config.learner.utd_ratio:
                return f"{self.now.owed:,} updates wait for the learner"
        return ""

    @property
    def finished(self) -> bool:
        now, wanted = self.now, self.config.evaluation.stop_at
        if self.monitor.hopeless:
            return True
        if wanted is not None and now.evaluated is not None and now.evaluated >= wanted and now.counts.episodes:
            return True
        if self.workers.judge is not None and not self.workers.judge.ready:  # what it labels is not known yet
            return False
        done = now.counts.episodes >= self.config.episodes and not now.counts.unjudged and not now.owed
        return done and not self.workers.busy

    # What came of it

    def on_judge(self, judge: JudgeId) -> None:
        """A version of the judge is loaded; labels of others are outdated from now on."""
        self._judge = judge
        if self.workers.judge is not None:
            self.workers.judge.ready = True
        self._failures.recovered("judge")

    def on_env(self, _: None) -> None:
        """The robot has its policy."""
        self.workers.env.ready = True

    def on_episode(self, info: EpisodeInfo | None) -> None:
        self._failures.recovered("env")
        if info is None:  # stopped before it began
            self.workers.env.retry_at = self.workers.clock() + RETRY_S
        else:
            self.now.take_played(info)

    def on_labels(self, report: LabelReport) -> None:
        self._labeled(self.workers.judge, report)

    def on_human_labels(self, report: LabelReport) -> None:
        self._labeled(self.workers.labeler, report)

    def _labeled(self, slot: Slot[Any] | None, report: LabelReport) -> None:
        assert slot is not None
        self._failures.recovered(slot.name)
        self.now.take_judged(report)
        if not report.done:
            slot.retry_at = self.workers.clock() + RETRY_S

    def on_published(self, _: int) -> None:
        self._failures.recovered("learner")

    def on_updates(self, report: UpdateReport) -> None:
        if report.made:  # whether it can learn is not known by counting
            self._failures.recovered("learner")
        self.now.take_shift(report)
        self._recount = False

    def on_evaluation(self, success: float) -> None:
        self._failures.recovered("learner")
        self.now.evaluated = success
        self._log({"eval/success": success})

    def on_failure(self, slot: Slot[Any], error: PlauditError) -> None:
        if not isinstance(error, RETRYABLE):
            raise error
        if slot is self.workers.env and isinstance(error, WorkerFailed):  # whatever state it left the robot in
            raise TrainingError(self._failures.with_traceback(error)) from error
        self._recount |= slot is self.workers.learner
        slot.retry_at = self.workers.clock() + RETRY_S
        self._failures.record(slot.name, error)

    def _check_judge(self) -> None:
        """A judge that fails on everything is no reason to wear a robot out."""
        counts = self.now.counts
        if counts.demos and counts.demos_unlabelable == counts.demos:
            what = f"any of the {counts.demos} demonstrations"
        elif counts.unlabelable_in_a_row >= self.config.backlog:
            what = f"any of the last {counts.unlabelable_in_a_row} episodes"
        else:
            return
        raise TrainingError(
            f"the judge could not label {what}: {counts.reason}; they are kept, and the same command tries them again"
        )

    # How things stand

    def refresh(self, audit: bool = False) -> None:
        """Counters, audit, metrics.

        audit: now, even if it is not due
        """
        now, w = self.now, self.workers
        try:
            counts, state = w.replay.call(ReplayBuffer.stats, self._judge), w.state.call(StateManager.status)
            self._count_restarts(counts, state)
            now.counts, now.state = counts, state
            if audit or self.waits_for_candidate or w.clock() - self._audited >= AUDIT_INTERVAL_S:
                self._audit()
            self._failures.recovered("replay")
        except RETRYABLE as error:
            self._failures.record("replay", error)
        earned = self.pretrain_updates + self.config.learner.updates_due(now.counts.judged_steps)
        now.owed = max(0, int(earned) - now.updates) if self.has_samples else 0
        now.holding = self.env_blocked_by()
        now.note_age()
        now.troubles = self._failures.messages
        now.seconds = self._seconds_before + time.monotonic() - self._begun
        if w.clock() - self._logged >= LOG_INTERVAL_S:
            self._log({})

    def _count_restarts(self, counts: ReplayStats, state: PolicyStatus) -> None:
        """Whoever calls these two hardly notices that they were away."""
        births = {"replay": (self.now.counts.born, counts.born), "state": (self.now.state.born, state.born)}
        for worker, (before, born) in births.items():
            if born != before:
                self.workers.counted_restarts[worker] = self.workers.counted_restarts.get(worker, 0) + 1

    def _audit(self) -> None:
        """Whether the judge is right; a better one takes its place."""
        self._audited = self.workers.clock()
        promoted = self.monitor.look()
        if promoted is not None and self.workers.judge is not None:
            self._bundle, self.workers.judge.ready = JudgeBundle.of(promoted), False
        if self.monitor.news is not None:
            self.now.news = self.monitor.news.sentence
        self.now.judged_success, self.now.alarm = self.monitor.judged_success, self.monitor.alarm
        self.now.honesty = self.monitor.metrics()

    def _log(self, more: Mapping[str, float]) -> None:
        self._logged = self.workers.clock()
        try:
            self._folder.log(self.now.counts.steps, {**numbers_of(self.now), **more})
            self._failures.recovered("log")
        except StoreFull as error:
            self._failures.record("log", error)

    # The end

    def shutdown(self) -> None:
        """Let everyone come to the end of what they do, and save the learner; not longer than `patience`."""
        w = self.workers
        self.monitor.close()
        w.stop_rollout()
        until = w.clock() + self.config.patience
        while w.busy and w.clock() < until:
            self._wait_at_the_end()
        if w.learner.task is None:
            w.learner.start(self.on_saved, LearnerWorker.save_checkpoint)
            while w.learner.task is not None and w.clock() < until:
                self._wait_at_the_end()
        if w.learner.task is not None:
            lost = "what it has learned since its last checkpoint is not saved"
            self._failures.note("learner", f"the learner came to no end within {self.config.patience:g} s: {lost}")
        self.now.troubles = self._failures.messages
        with suppress(PlauditError):  # whatever ends the run is worth more than a line of metrics
            self._log({})

    def on_saved(self, _: None) -> None:
        self._failures.recovered("learner")

    def _finish(self, callback: Callback, evaluate: bool) -> None:
        """How good it is in the end, and what came of the last episodes."""
        w = self.workers
        evaluate = evaluate and self.config.simulated and self._evaluated_at != self.now.counts.episodes
        if evaluate and w.learner.task is None:
            w.learner.start(self.on_evaluation, LearnerWorker.evaluate, self.config.evaluation.episodes)
            while w.learner.task is not None and callback(self.now):
                self._wait_at_the_end()
        self.refresh(audit=True)
        self._log({})

    def _wait_at_the_end(self) -> None:
        """The run ends anyway: what goes wrong now is told and ends nothing else."""
        with suppress(PlauditError):
            self.workers.wait(TICK_S, self._note_failure)

    def _note_failure(self, slot: Slot[Any], error: PlauditError) -> None:
        self._failures.note(slot.name, str(error))
