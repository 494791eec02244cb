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

Metrics are numbers every few seconds. An event is a message: a worker was lost or came back, a judge was promoted, an
alarm was raised, somebody pressed Ctrl-C. Tracebacks go to failures.log. A failed write of an event is ignored: a full
disk may be what failed, and it is on the screen already.
"""

import json
import math
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

import numpy as np

from plaudit.data.disk import Folder
from plaudit.errors import (
    JudgeUnavailable,
    PlauditError,
    RolloutFault,
    StoreError,
    StoreFull,
    TrainingError,
    WorkerFailed,
    WorkerLost,
    format_count,
)
from plaudit.files import understood
from plaudit.judges.certificate import certificate_status
from plaudit.rollout.operator import OperatorStatus
from plaudit.rollout.recording import held_warning
from plaudit.training.config import TrainingConfig, train_seed, withholding_judge
from plaudit.training.evaluation import EvalResult
from plaudit.training.monitor import SUCCESS_WINDOW, JudgeMonitor
from plaudit.training.replay_buffer import PolicyStatus, ReplayBuffer, ReplayStats, StateManager, writes_here
from plaudit.training.retrain import current_judge
from plaudit.training.rollout_judge import check_robot_judge
from plaudit.training.run_folder import RunFolder
from plaudit.training.setup import learner_env_spec, unseen_success
from plaudit.training.workers.env import EnvWorker, EpisodeInfo
from plaudit.training.workers.group import WorkerGroup
from plaudit.training.workers.handles import Slot
from plaudit.training.workers.labelers import WHO, HumanLabelWorker, JudgeBundle, JudgeWorker, LabelReport
from plaudit.training.workers.learner import LearnerInfo, LearnerWorker, UpdateReport, robot_policy
from plaudit.trust import plain
from plaudit.types import JudgeId

TICK_S = 0.1  # that the loop waits for something to happen
RETRY_S = 0.5  # before a judge that found nothing to do, or a worker that failed, is asked again
LOG_INTERVAL_S = 2.0  # between two lines of metrics
AUDIT_INTERVAL_S = 1.0  # between two looks at the labels
RECENT_EPISODES = 10  # over which held steps and chunks are counted
UPDATE_CALL_S = 0.5  # work per call of the learner; counts and weights are published in between
MAX_BEHIND_S = 60.0  # of pending updates, before a learner counts as too slow
# Of control steps, from an episode's meta (recording.py) to metrics.
TIMING = {
    "late_ms": "time/late_ms",
    "inference_ms": "time/inference_ms",
    "observation_age_ms": "time/observation_age_ms",
}
SERIAL_UPDATES = 50  # per call, where workers take turns

RETRYABLE = (WorkerLost, WorkerFailed, StoreFull, RolloutFault, JudgeUnavailable)  # what may be over in a minute

Callback = Callable[["OnlineState"], bool]  # returns whether to continue


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

    def run(self, callback: Callback) -> "OnlineState":
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
        if counts.demos and counts.demos_blank and counts.demos_blank + counts.demos_skipped == counts.demos:
            raise TrainingError(
                f"the judge could not label {counts.demos_skipped} of the {counts.demos} demonstrations "
                f"({counts.reason}), and the labels of the other demonstrations leave them out; label them (plaudit "
                "label --judge human) and set demos.relabel=false"
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
        self.state.judge_metrics, self.state.judge_warning = self.monitor.metrics(), self.monitor.warning

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


@dataclass
class OnlineState:
    """The state of an online run, as its workers last reported it."""

    replay: ReplayStats
    policy: PolicyStatus
    updates: int = 0
    extra_updates: int = 0  # due after resets by relabeling, since the beginning of the run
    pending_updates: int = 0  # allowed by the labeled steps and not made yet
    judge_success: float | None = None  # success rate of the last episodes, by the judge
    env_success: float | None = None  # the same, by the simulator; None without one
    eval_success: float | None = None  # true success rate on eval seeds
    robot_version: int = 0  # of the weights that the newest episode started with
    staleness_s: float = 0.0  # since a newer version was published than the robot has
    env_steps_per_s: float = 0.0  # while an episode runs
    updates_per_s: float = 0.0
    judge_latency_s: float = 0.0  # per episode
    episode_progress: str = ""  # task progress of the newest labeled episode, if the judge measures it
    sample_wait_fraction: float = 0.0  # of the learner's time, spent waiting for batches
    env_waiting_for: str = ""  # why the robot waits
    inference_summary: str = ""  # how long the policy takes, measured before the first episode
    operator: OperatorStatus | None = None  # None: no operator
    errors: Mapping[str, str] = field(default_factory=dict)  # worker -> why it fails
    learner_warning: str = ""  # what to change if the learner cannot keep up
    judge_warning: str = ""  # what to do if the judge withholds most episodes
    awaited: Sequence[str] = ()  # at the end of a run: workers that finish their current call
    alarm: str | None = None  # why the audit has stopped the judge
    last_event: str = ""  # the newest message about the judge's versions
    window_status: str = ""  # of the labeling window, if a human labels or audits
    elapsed_s: float = 0.0  # over all sessions
    learner_metrics: Mapping[str, float] = field(default_factory=dict)
    judge_metrics: Mapping[str, float] = field(default_factory=dict)  # of its audit and its versions
    _recent: deque[EpisodeInfo] = field(default_factory=lambda: deque(maxlen=RECENT_EPISODES), repr=False)
    _env_successes: deque[bool] = field(default_factory=lambda: deque(maxlen=SUCCESS_WINDOW), repr=False)
    _published: dict[int, float] = field(default_factory=dict, repr=False)  # version newer than the robot's -> when

    @property
    def step(self) -> int:
        """Env steps."""
        return self.replay.steps

    @property
    def episodes(self) -> int:
        """Episodes that are on disk."""
        return self.replay.episodes

    @property
    def held_fraction(self) -> float:
        """Fraction of the control steps of the last episodes without a command."""
        return sum(info.held_ticks for info in self._recent) / max(1, sum(info.steps for info in self._recent))

    @property
    def warnings(self) -> dict[str, str]:
        """What to change, by what it is about."""
        texts = {
            "held": held_warning(self.held_fraction),
            "learner": self.learner_warning,
            "judge": self.judge_warning,
        }
        return {about: text for about, text in texts.items() if text}

    @property
    def starved_chunks(self) -> int:
        """Chunks of the last episodes that ran out before the next one was ready."""
        return sum(info.starved_chunks for info in self._recent)

    @property
    def guided_fraction(self) -> float | None:
        """Fraction of the chunks of the last episodes that continued the previous chunk, of those that should."""
        fractions = [info.guided_fraction for info in self._recent if info.guided_fraction is not None]
        return float(np.mean(fractions)) if fractions else None

    @property
    def timing(self) -> dict[str, float]:
        """Means over the last episodes, ms."""
        values = {name: [i.timing[key] for i in self._recent if key in i.timing] for key, name in TIMING.items()}
        return {name: float(np.mean(some)) for name, some in values.items() if some}

    def add_episode(self, info: EpisodeInfo) -> None:
        """Add a report of the env worker."""
        self.env_steps_per_s = smooth(self.env_steps_per_s, info.steps / max(info.seconds, 1e-9))
        self.robot_version = info.version
        self._recent.append(info)
        if info.success is not None:
            self._env_successes.append(info.success)
            self.env_success = float(np.mean(self._env_successes))

    def add_labels(self, report: LabelReport) -> None:
        """Add a report of a judge or a human."""
        if report.latency:
            self.judge_latency_s = smooth(self.judge_latency_s, report.latency)
        self.window_status = report.note or self.window_status
        self.episode_progress = report.progress or self.episode_progress

    def add_updates(self, report: UpdateReport) -> None:
        """Add a report of the learner."""
        self.updates, self.extra_updates = report.updates, report.extra_updates
        if report.made:
            self.updates_per_s = smooth(self.updates_per_s, report.made / max(report.seconds, 1e-9))
            self.sample_wait_fraction = smooth(self.sample_wait_fraction, report.waiting / max(report.seconds, 1e-9))
            self.learner_metrics = dict(report.metrics)

    def update_staleness(self) -> None:
        """Update how long the robot has been without the newest weights."""
        self._published.setdefault(self.policy.version, self.policy.published)
        self._published = {version: when for version, when in self._published.items() if version > self.robot_version}
        self.staleness_s = time.time() - min(self._published.values()) if self._published and self.episodes else 0.0

    def metrics(self) -> dict[str, float]:
        """Metrics by their names in docs/metrics.md."""
        optional = {
            "judge/success_once": self.judge_success,
            "env/success_once": self.env_success,
            "rollout/guided_fraction": self.guided_fraction,
        }
        return {
            "rollout/episodes": self.episodes,
            "rollout/held_fraction": self.held_fraction,
            "rollout/starved_chunks": self.starved_chunks,
            "replay/unlabeled_episodes": self.replay.unlabeled,
            "judge/failed_episodes": self.replay.failed,
            "judge/skipped_episodes": self.replay.skipped,
            "learner/updates": self.updates,
            "learner/pending_updates": self.pending_updates,
            "policy/version": self.policy.version,
            "policy/robot_version": self.robot_version,
            "policy/staleness_s": self.staleness_s,
            "time/env_steps_per_s": self.env_steps_per_s,
            "time/updates_per_s": self.updates_per_s,
            "time/judge_latency_s": self.judge_latency_s,
            "time/sample_wait_fraction": self.sample_wait_fraction,
            "time/elapsed_s": self.elapsed_s,
            **self.timing,
            **self.learner_metrics,
            **self.judge_metrics,
            **{name: seconds for name, seconds in self.replay.person_s.items() if seconds},
            **{name: value for name, value in optional.items() if value is not None},
        }


def smooth(before: float, new: float) -> float:
    """Exponential moving average; starts with the first value."""
    return new if not before else 0.8 * before + 0.2 * new


@dataclass
class OnlineSchedule:
    """When each worker has something to do, and what it waits for otherwise."""

    config: TrainingConfig
    workers: WorkerGroup
    monitor: JudgeMonitor
    learner: LearnerInfo
    state: OnlineState
    evaluated_at: int = -1  # env steps at the last evaluation
    starved: bool = False  # whether the learner found nothing to sample; new labels may change that

    @property
    def waits_for_candidate(self) -> bool:
        """Where workers take turns, when another judge is promoted must not depend on how long its training takes."""
        return self.workers.serial and self.monitor.retraining

    @property
    def has_unlabeled(self) -> bool:
        """Whether the judge has something to label."""
        counts = self.state.replay
        return counts.unlabeled + counts.outdated + counts.demos_unlabeled > 0

    @property
    def requested(self) -> Sequence[int] | None:
        """Episodes that a human is asked about; None for all that have no label."""
        return None if self.config.judge.is_human else self.monitor.requested

    @property
    def has_samples(self) -> bool:
        """Demonstrations are labeled, and there is something to sample."""
        counts = self.state.replay
        return not counts.demos_unlabeled and (self.config.demos.any or counts.labeled_steps > 0)

    @property
    def can_learn(self) -> bool:
        """Whether there is something to learn from, and a judge that passes its audit.

        After a change of judge, the new one labels all episodes again first.
        """
        return self.has_samples and not self.monitor.blocks_learning and not self.state.replay.outdated

    @property
    def evaluation_due(self) -> bool:
        """Whether the policy is to be evaluated before the next update."""
        if not self.config.simulated or self.state.updates < self.pretrain_updates:
            return False
        return self.evaluated_at < 0 or self.state.step >= self.evaluated_at + self.config.evaluation.freq

    @property
    def pretrain_updates(self) -> int:
        """Updates on demonstrations before the robot moves."""
        return self.learner.pretrain_updates if self.config.demos.any else 0

    @property
    def updates_to_run(self) -> tuple[int, float]:
        """Updates of the next call of the learner, and seconds after which it begins no further one: half a second of
        work, or a fixed number where the time that they take must not matter."""
        most = SERIAL_UPDATES if self.workers.serial else max(1, round(UPDATE_CALL_S * self.state.updates_per_s))
        return min(self.state.pending_updates, most), math.inf if self.workers.serial else UPDATE_CALL_S

    @property
    def learner_warning(self) -> str:
        """What to change where the learner cannot keep up with `utd_ratio`; "" where it can."""
        state, ratio = self.state, self.config.learner.utd_ratio
        rate, needed = state.updates_per_s, ratio * state.env_steps_per_s
        if not rate or rate >= needed or state.updates < self.pretrain_updates:
            return ""
        behind_s = state.pending_updates / rate
        if behind_s <= MAX_BEHIND_S:
            return ""
        return (
            f"the learner cannot keep up: it makes {rate:.2g} updates/s and needs {needed:.2g} (learner.utd_ratio="
            f"{ratio:g} at {state.env_steps_per_s:.0f} steps/s); {state.pending_updates:,} updates are pending, "
            f"about {behind_s / 60:.0f} min. Set learner.utd_ratio to {rate / state.env_steps_per_s:.1g} or less, "
            "lower learner.batch_size, or train on a GPU (run.device=cuda)"
        )

    @property
    def next_seed(self) -> int | None:
        """Seed of the next episode; None on a robot."""
        return train_seed(self.config.run.seed, self.state.episodes) if self.config.simulated else None

    def env_blocked_by(self) -> str:
        """Why the robot waits; "" if it does not wait."""
        counts, config = self.state.replay, self.config
        if self.all_collected:
            return "the end of the run"
        if config.policy.behavior == "learner" and self.state.policy.version == 0:
            return "the first weights"
        if counts.demos_unlabeled:
            return f"labels of {counts.demos_unlabeled} demonstrations"
        if self.state.updates < self.pretrain_updates:
            left = self.pretrain_updates - self.state.updates
            return f"{left:,} updates of pretraining on demonstrations"
        if self.monitor.blocks_learning:
            return "a judge that passes its audit"
        if self.waits_for_candidate:
            return "a new version of the judge"
        if counts.unlabeled >= config.run.max_unlabeled_episodes:
            return f"labels: {counts.unlabeled} unlabeled episodes (max {config.run.max_unlabeled_episodes})"
        if config.run.max_pending_episodes is not None and counts.episodes:
            mean = counts.steps / counts.episodes
            if self.state.pending_updates > config.run.max_pending_episodes * mean * config.learner.utd_ratio:
                return f"the learner: {format_count(self.state.pending_updates, 'update')} pending"
        return ""

    @property
    def target_reached(self) -> bool:
        """Whether an evaluation had the success rate that ends the run."""
        return self.config.evaluation.ends_run(self.state.eval_success)

    @property
    def finished(self) -> bool:
        """Whether the run is over."""
        state, judge = self.state, self.workers.judge
        if self.monitor.should_abort or (self.target_reached and state.episodes):
            return True
        if judge is not None and not judge.ready:  # what it labels is not known yet
            return False
        done = self.all_collected and not state.replay.unlabeled and not state.pending_updates
        return done and not self.workers.busy

    @property
    def all_collected(self) -> bool:
        """Whether the run has all of its episodes, or steps."""
        return self.config.is_complete(self.state.step, self.state.episodes)


EventKind = Literal["started", "error", "warning", "recovered", "restart", "judge", "alarm", "ended"]
EVENTS, TRACEBACKS = "events.jsonl", "failures.log"


class EventLog:
    """Failures and events of one session, written to events.jsonl and failures.log.

    events.failed("judge", error)               # raises once the worker has failed for longer than the timeout
    events.recovered("judge")
    events.update(state, workers.restarts)      # now and then: writes what has changed
    """

    def __init__(self, folder: RunFolder, clock: Callable[[], float] = time.monotonic, timeout_s: float = 60.0):
        """timeout_s: how long a worker may fail before the run ends"""
        self._folder, self._clock, self._timeout_s = folder.path, clock, timeout_s
        self._failing: dict[str, tuple[float, str]] = {}  # worker -> since when, message
        self._logged: set[str] = set()  # failures whose traceback is written
        self._standing: set[tuple[EventKind, str, str]] = set()  # what the last `update` was given

    @property
    def errors(self) -> dict[str, str]:
        """Worker -> why it fails now."""
        return {worker: message for worker, (_, message) in self._failing.items() if message}

    def failed(self, worker: str, error: PlauditError, timeout_s: float | None = None) -> None:
        """Record a failure until the worker recovers; one that lasts too long ends the run.

        timeout_s: for this failure; None: as for all workers
        """
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        message = self.with_traceback(error) if isinstance(error, WorkerFailed) else str(error)
        since, _ = self._failing.get(worker, (self._clock(), ""))
        self._failing[worker] = since, message
        if self._clock() - since >= timeout_s:
            raise TrainingError(f"{message}; it did not recover within {timeout_s:g} s; resume with the same command")

    def retrying(self, worker: str) -> None:
        """The worker is at work again. Nothing is shown, but its failure is not over before it `recovered`."""
        if worker in self._failing:
            self._failing[worker] = self._failing[worker][0], ""

    def recovered(self, worker: str) -> None:
        """The worker answers again."""
        self._failing.pop(worker, None)

    def failed_at_end(self, worker: str, message: str) -> None:
        """Record a failure when the run ends anyway."""
        self._failing[worker] = self._clock(), message

    def with_traceback(self, failure: WorkerFailed) -> str:
        """The message of a failure and where its traceback is; the traceback of a repeated failure is logged once."""
        if str(failure) not in self._logged:
            self._logged.add(str(failure))
            time_utc = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
            self._append(TRACEBACKS, plain(f"{time_utc}: {failure}\n{failure.details.rstrip()}\n\n"))
        return f"{failure} (its traceback is in {self._folder / TRACEBACKS})"

    def write(self, state: OnlineState, kind: EventKind, message: str) -> None:
        """Add one event."""
        position = {"elapsed_s": round(state.elapsed_s, 1), "episodes": state.episodes, "step": state.step}
        line = {"time": round(time.time(), 1), **position, "event": kind, "message": message}
        self._append(EVENTS, json.dumps(line) + "\n")

    def update(self, state: OnlineState, restarts: Mapping[str, int]) -> None:
        """Add what has changed since the last call."""
        standing: dict[tuple[EventKind, str, str], str | None] = {
            **{("error", worker, text): f"{worker}: {text}" for worker, text in state.errors.items()},
            **{("restart", worker, str(count)): f"{worker} was restarted" for worker, count in restarts.items()},
            ("judge", "", state.last_event): state.last_event,
            ("alarm", "", state.alarm or ""): state.alarm,
            **{("warning", about, ""): text for about, text in state.warnings.items()},
        }
        for worker in {key[1] for key in self._standing if key[0] == "error"} - state.errors.keys():
            self.write(state, "recovered", f"{worker}: it answers again")
        for key, message in standing.items():
            if message and key not in self._standing:
                self.write(state, key[0], message)
        self._standing = {key for key, message in standing.items() if message}

    def _append(self, name: str, text: str) -> None:
        with suppress(OSError, StoreError):
            Folder(self._folder).append(name, text.encode())
