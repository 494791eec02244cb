"""The state of an online run, its schedule, and its event log.

The next work follows from the config and from counters that are read from disk, so a run that was stopped anywhere
continues with the same decisions.

Metrics are numbers every few seconds. An event is a message: a worker was lost or came back, a judge was promoted, an
alarm was raised, somebody pressed Ctrl-C. Tracebacks go to failures.log. A failed write of an event is ignored: a full
disk may be what failed, and it is on the screen already.
"""

import json
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

import numpy as np

from plaudit.data.disk import Folder
from plaudit.errors import PlauditError, StoreError, TrainingError, WorkerFailed
from plaudit.rollout.operator import OperatorStatus
from plaudit.rollout.recording import held_warning
from plaudit.training.config import TrainingConfig, train_seed
from plaudit.training.monitor import SUCCESS_WINDOW, JudgeMonitor
from plaudit.training.replay_buffer import PolicyStatus, ReplayStats
from plaudit.training.run_folder import RunFolder
from plaudit.training.worker_group import WorkerGroup
from plaudit.training.workers.env import EpisodeInfo
from plaudit.training.workers.judge import LabelReport
from plaudit.training.workers.learner import LearnerInfo, UpdateReport
from plaudit.trust import plain

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
                return f"the learner: {self.state.pending_updates:,} updates pending"
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
            ("warning", "held", ""): held_warning(state.held_fraction),
            ("warning", "learner", ""): state.learner_warning,
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
