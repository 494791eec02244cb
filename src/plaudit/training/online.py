"""The online loop: `plaudit online`. Robot, judge and learner work at their own pace; this loop starts their calls.

    worker   does                                        waits when                         until
    env      plays an episode with the newest weights    `max_unlabeled_episodes`, or       the judge or the
                                                          `max_pending_episodes` of updates  learner catches up
    judge    labels what has no label of its version     nothing is unlabeled               an episode is on disk
    labeler  a human who labels, or audits the judge     nothing is asked of them           an episode is drawn
    learner  updates that labeled steps have earned,     none is due; the audit's alarm     labels; a better judge
             publishes, evaluates

Workers share only the replay buffer and the state manager. The counters that decide are read from these two, so a run
that was stopped anywhere continues with the same ones.

A lost worker is restarted and called again. A full disk is tried again, and so is a worker that raised an unexpected
exception. A failure that lasts longer than `run.worker_timeout_s` ends the run, and so does a robot that cannot be
driven; a silent robot is waited for, up to `policy.inference.patience_s`. What was learned is saved in any case.

Where workers take turns in one process, nothing depends on how long a call takes: the clock counts turns, updates come
in fixed numbers, and the loop waits for a retraining.
"""

import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from plaudit.errors import (
    JudgeUnavailable,
    PlauditError,
    RolloutFault,
    StoreFull,
    TrainingError,
    WorkerFailed,
    WorkerLost,
)
from plaudit.files import understood
from plaudit.judges.certificate import certificate_status
from plaudit.training.config import withholding_judge
from plaudit.training.evaluation import EvalResult
from plaudit.training.handles import Slot
from plaudit.training.monitor import JudgeMonitor
from plaudit.training.online_state import EventLog, OnlineSchedule, OnlineState
from plaudit.training.replay_buffer import ReplayBuffer, StateManager, writes_here
from plaudit.training.retrain import current_judge
from plaudit.training.rollout_judge import check_robot_judge
from plaudit.training.run_folder import RunFolder
from plaudit.training.setup import learner_env_spec, unseen_success
from plaudit.training.worker_group import WorkerGroup
from plaudit.training.workers.env import EnvWorker, EpisodeInfo
from plaudit.training.workers.human import WHO, HumanLabelWorker
from plaudit.training.workers.judge import JudgeBundle, JudgeWorker, LabelReport
from plaudit.training.workers.learner import LearnerInfo, LearnerWorker, UpdateReport, robot_policy
from plaudit.types import JudgeId

TICK_S = 0.1  # that the loop waits for something to happen
RETRY_S = 0.5  # before a judge that found nothing to do, or a worker that failed, is asked again
LOG_INTERVAL_S = 2.0  # between two lines of metrics
AUDIT_INTERVAL_S = 1.0  # between two looks at the labels

RETRYABLE = (WorkerLost, WorkerFailed, StoreFull, RolloutFault, JudgeUnavailable)  # what may be over in a minute

Callback = Callable[[OnlineState], bool]  # returns whether to continue


class OnlineTrainer:
    """`plaudit online`.

    trainer = OnlineTrainer(folder, workers)
    end = trainer.run(lambda state: True)
    """

    def __init__(self, folder: RunFolder, workers: WorkerGroup):
        self.config, self._folder, self.workers = folder.config, folder, workers
        self.events = EventLog(folder, workers.clock, self.config.run.worker_timeout_s)
        self._recount = False  # whether the learner may have made updates that it has not reported
        self._begun = time.monotonic()
        self._logged = self._audited = workers.clock()
        self._demos_checked = False
        self.started = False  # whether there is something to report
        self.on_wait: Callable[[str], None] = lambda _: None  # called with what the run waits for before it begins

    def run(self, callback: Callback) -> OnlineState:
        """Run to the end, or until the callback returns False."""
        self.setup()
        try:
            self.refresh(audit=True)  # an alarm of an earlier session counts from the first update on
            going = callback(self.state) and self._loop(callback)  # shown once before the robot moves
        except PlauditError:
            self.shutdown(callback)
            raise
        except Exception as error:  # of a plugin that this process runs, which may raise anything
            failure = WorkerFailed("loop", error, traceback.format_exc())
            self.shutdown(callback)
            raise TrainingError(self.events.with_traceback(failure)) from error
        self.shutdown(callback)
        self._finish(callback, evaluate=going)
        return self.state

    def _loop(self, callback: Callback) -> bool:
        """Until it is over; whether the callback would have gone on."""
        w, going = self.workers, True
        while going and not self.schedule.finished:
            if self.schedule.waits_for_candidate:
                time.sleep(TICK_S)
            else:
                if w.judge is not None and w.judge.idle:
                    if not w.judge.ready:
                        w.judge.start(self.on_judge, JudgeWorker.load, self._bundle)
                    elif self.schedule.has_unlabeled:
                        w.judge.start(self.on_labels, JudgeWorker.label_pending)
                if w.labeler is not None and w.labeler.idle:
                    w.labeler.start(self.on_labels, HumanLabelWorker.label_pending, self.schedule.requested)
                if w.learner.idle:
                    if self._recount:
                        w.learner.start(self.on_updates, LearnerWorker.update, 0)
                    elif self.state.policy.version == 0:
                        w.learner.start(self.on_learner, LearnerWorker.publish)
                    elif self.schedule.can_learn and self.schedule.evaluation_due:
                        self.schedule.evaluated_at = self.state.step
                        w.learner.start(self.on_evaluation, LearnerWorker.evaluate)
                    elif self.schedule.can_learn and self.state.pending_updates:
                        due, max_s = self.schedule.updates_to_run
                        labels = self.monitor.rejected, self.monitor.label_changes
                        w.learner.start(self.on_updates, LearnerWorker.update, due, max_s, *labels)
                if w.env.idle:
                    if not w.env.ready:
                        w.env.start(self.on_env, EnvWorker.load_policy, self.robot_policy)
                    elif not self.schedule.env_blocked_by():
                        w.env.start(self.on_episode, EnvWorker.rollout, self.schedule.next_seed)
                w.wait(TICK_S, self.on_failure)
            self.refresh()
            self._check_judge()
            status = self.state.operator
            going = callback(self.state) and not (status is not None and status.stopped)
        return going

    # Before the first episode

    def setup(self) -> None:
        """Connect the robot, load judge and learner, and give the robot its policy."""
        w, config, folder = self.workers, self.config, self._folder
        self.on_wait("waiting for the robot")
        env_spec = learner_env_spec(config, w.env.handle.call(EnvWorker.describe))
        self._judge: JudgeId = WHO
        messages: list[str] = []
        if w.judge is not None:
            self.on_wait("waiting for the judge to load")
            judge = current_judge(config.judge.config, folder.judge)
            self._bundle = JudgeBundle.of(withholding_judge(config, judge))
            self.on_judge(w.judge.handle.call(JudgeWorker.load, self._bundle))
            messages = w.judge.handle.call(JudgeWorker.warnings)
            # Versions that this run has trained were measured by their promotion, and need no certificate.
            if config.judge.config.needs_certificate and judge is config.judge.config:
                line, refusal = certificate_status(config.judge.certificate_path, self._judge)
                check_robot_judge(config, refusal)
                messages = [*messages, f"certificate: {line}"]
        self.on_wait("waiting for the learner")
        info: LearnerInfo = w.learner.handle.call(LearnerWorker.setup, env_spec, self._judge.source)
        folder.save_policy(info.policy_config)
        stats, status = w.replay.call(ReplayBuffer.stats, self._judge), w.state.call(StateManager.status)
        self.state = OnlineState(
            stats, status, updates=info.updates, extra_updates=info.extra_updates, last_event="; ".join(messages)
        )
        if lines := folder.metrics():  # of an earlier session
            with understood(folder.path / "metrics.jsonl"):
                evaluations = [line for line in lines if "eval/success_once" in line]
                # Those of updates that no checkpoint has are of a policy that is lost.
                kept = [line["eval/success_once"] for line in evaluations if line["learner/updates"] <= info.updates]
                self.state.eval_success = kept[-1] if kept else None
                self.state.elapsed_s = lines[-1]["time/elapsed_s"]
        if not writes_here(status, folder.policy):
            raise TrainingError(
                f"the state manager does not write to {folder.policy} on this machine, so there would be no policy at "
                "the end. Give state and replay the role of the machine where this command runs (cluster.workers)"
            )
        self.monitor = JudgeMonitor(folder, self._judge)
        self.schedule = OnlineSchedule(config, w, self.monitor, info, self.state)
        self._elapsed_before = self.state.elapsed_s
        self.robot_policy = robot_policy(config, info)
        self.on_wait("waiting for the robot to load its policy")
        self.on_env(w.env.handle.call(EnvWorker.load_policy, self.robot_policy))
        self.started = True

    # Results of the workers' calls

    def on_judge(self, judge: JudgeId) -> None:
        """A version of the judge is loaded; labels of others are outdated from now on."""
        self._judge = judge
        if self.workers.judge is not None:
            self.workers.judge.ready = True
        self.events.recovered("judge")

    def on_env(self, inference_summary: str) -> None:
        """The robot has its policy, the first time or after a fault."""
        self.state.inference_summary = inference_summary
        self.workers.env.ready = True
        self.events.retrying("env")

    def on_episode(self, info: EpisodeInfo | None) -> None:
        """The env is back only after an episode without a fault: one that faults in every episode uses up its
        patience."""
        if info is None:  # stopped before it began
            self.events.retrying("env")
            self.workers.env.retry_at = self.workers.clock() + RETRY_S
            return
        self.state.add_episode(info)
        if info.fault:
            self.on_failure(self.workers.env, RolloutFault(info.ended))
        else:
            self.events.recovered("env")

    def on_labels(self, report: LabelReport) -> None:
        """The judge, or the human, has labeled a batch."""
        w = self.workers
        slot = w.labeler if report.who == WHO else w.judge
        assert slot is not None
        self.events.recovered(slot.name)
        self.schedule.starved = False
        self.state.add_labels(report)
        if not report.done:
            slot.retry_at = w.clock() + RETRY_S

    def on_learner(self, _: int | None) -> None:
        """The learner has published or saved."""
        self.events.recovered("learner")

    def on_updates(self, report: UpdateReport) -> None:
        """The learner has made updates, or found nothing to sample."""
        if report.made:  # whether it can learn is not known by counting
            self.events.recovered("learner")
            self.schedule.starved = False
        elif not self._recount:
            self.schedule.starved = True
        self.state.add_updates(report)
        self._recount = False

    def on_evaluation(self, result: EvalResult) -> None:
        """The policy was evaluated."""
        self.events.recovered("learner")
        self.state.eval_success = result.success_rate
        self._log(result.metrics)
        if result.video is not None:
            with suppress(StoreFull):  # the next line of metrics reports it
                self._folder.log_video(self.state.step, result.video)

    def on_failure(self, slot: Slot[Any], error: PlauditError) -> None:
        """A call failed: it is retried for a while, or the run ends."""
        if not isinstance(error, RETRYABLE):
            raise error
        if slot is self.workers.env and isinstance(error, WorkerFailed):  # whatever state it left the robot in
            raise TrainingError(self.events.with_traceback(error)) from error
        self._recount |= slot is self.workers.learner
        slot.retry_at = self.workers.clock() + RETRY_S
        if isinstance(error, RolloutFault):
            slot.ready = False
            patience_s = self.config.policy.inference.patience_s
            fault = RolloutFault(f"{error}; the robot holds; the run waits up to {patience_s:g} s")
            self.events.failed(slot.name, fault, patience_s)
        else:
            self.events.failed(slot.name, error)

    def _check_judge(self) -> None:
        """End a run whose judge fails on everything, before it wears the robot out."""
        counts = self.state.replay
        if counts.demos and not counts.demos_unlabeled and not self._demos_checked:
            self._demos_checked = True
            self.state.last_event = unseen_success(counts.demo_successes, counts.demos) or self.state.last_event
        if counts.demos and counts.demos_blank == counts.demos:
            raise TrainingError(
                f"the labels of all {counts.demos} demonstrations leave them out: the judge could not decide any, or "
                "people excluded them; label them (plaudit label --judge human) and set demos.relabel=false"
            )
        if counts.demos and counts.demos_skipped == counts.demos:
            what = f"any of the {counts.demos} demonstrations"
        elif counts.skipped_in_a_row >= self.config.run.max_unlabeled_episodes:
            what = f"any of the last {counts.skipped_in_a_row} episodes"
        else:
            return
        raise TrainingError(
            f"the judge could not label {what}: {counts.reason}; they are kept, and the same command tries them again"
        )

    # The state of the run

    def refresh(self, audit: bool = False) -> None:
        """Update counters, audit and metrics. audit: now, even if it is not due"""
        state, w = self.state, self.workers
        try:
            counts, policy = w.replay.call(ReplayBuffer.stats, self._judge), w.state.call(StateManager.status)
            # Whoever calls these two hardly notices that they were away.
            births = {"replay": (state.replay.born, counts.born), "state": (state.policy.born, policy.born)}
            for worker, (before, born) in births.items():
                if born != before:
                    w.counted_restarts[worker] = w.counted_restarts.get(worker, 0) + 1
            state.replay, state.policy = counts, policy
            if audit or self.schedule.waits_for_candidate or w.clock() - self._audited >= AUDIT_INTERVAL_S:
                self._audit()
            self.events.recovered("replay")
        except RETRYABLE as error:
            self.events.failed("replay", error)
        due = self.config.learner.updates_due(state.replay.labeled_steps)
        due += self.schedule.pretrain_updates + state.extra_updates
        learns = self.schedule.has_samples and not self.schedule.starved
        state.pending_updates = max(0, int(due) - state.updates) if learns else 0
        state.env_waiting_for = self.schedule.env_blocked_by() if w.env.ready else "robot and policy to be back"
        state.operator = w.operator_status()
        state.update_staleness()
        state.learner_warning = self.schedule.learner_warning
        state.errors = self.events.errors
        state.elapsed_s = self._elapsed_before + time.monotonic() - self._begun
        if w.clock() - self._logged >= LOG_INTERVAL_S:
            self._log({})

    def _audit(self) -> None:
        """Check the judge; a better version takes its place."""
        self._audited = self.workers.clock()
        promoted = self.monitor.refresh()
        if promoted is not None and self.workers.judge is not None:
            self._bundle, self.workers.judge.ready = JudgeBundle.of(withholding_judge(self.config, promoted)), False
        if self.monitor.last_decision is not None:
            self.state.last_event = self.monitor.last_decision.message
        self.state.judge_success, self.state.alarm = self.monitor.judge_success, self.monitor.alarm
        self.state.judge_metrics = self.monitor.metrics()

    def _log(self, more: Mapping[str, float]) -> None:
        self._logged = self.workers.clock()
        try:
            self._folder.log(self.state.step, {**self.state.metrics(), **more})
            self.events.recovered("log")
        except StoreFull as error:
            self.events.failed("log", error)

    # The end

    def shutdown(self, callback: Callback) -> None:
        """Let the workers finish their current call, within `run.worker_timeout_s`. What was learned is published and
        saved as soon as the learner's call is over, whatever the others are busy with."""
        w, timeout_s = self.workers, self.config.run.worker_timeout_s
        w.stop_rollout()
        until, saving = w.clock() + timeout_s, False
        while (self.monitor.request_stop() or w.busy or not saving) and w.clock() < until:
            if w.learner.task is None and not saving:
                w.learner.start(self.on_learner, LearnerWorker.save_checkpoint)
                saving = True
            self._wait_at_the_end(callback)
        self.monitor.close()
        if w.learner.task is not None:
            lost = "what it has learned since its last checkpoint is not saved"
            self.events.failed_at_end("learner", f"the learner did not finish within {timeout_s:g} s: {lost}")
        self.state.errors = self.events.errors
        with suppress(PlauditError):  # whatever ends the run is worth more than a line of metrics
            self.state.policy = w.state.call(StateManager.status)
            self._log({})

    def _finish(self, callback: Callback, evaluate: bool) -> None:
        """Evaluate the final policy, and audit the last episodes."""
        w = self.workers
        evaluate = evaluate and self.config.simulated and self.schedule.evaluated_at != self.state.step
        if evaluate and w.learner.task is None:
            w.learner.start(self.on_evaluation, LearnerWorker.evaluate)
            while w.learner.task is not None and self._wait_at_the_end(callback):
                pass
        self.refresh(audit=True)
        self._log({})

    def _wait_at_the_end(self, callback: Callback) -> bool:
        """Wait for a moment and show what is awaited; returns what the callback does. The run ends anyway: what goes
        wrong now is reported and ends nothing else."""
        with suppress(PlauditError):
            self.workers.wait(TICK_S, lambda slot, error: self.events.failed_at_end(slot.name, str(error)))
            self.state.replay = self.workers.replay.call(ReplayBuffer.stats, self._judge)
        self.state.awaited = [*self.workers.busy, *(["retraining"] if self.monitor.retraining else [])]
        self.state.elapsed_s = self._elapsed_before + time.monotonic() - self._begun
        return callback(self.state)
