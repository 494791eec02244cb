"""How a run stands, for the loop that decides by it and for whoever watches."""

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from plaudit.rollout.operator import OperatorStatus
from plaudit.training.monitor import SUCCESS_WINDOW
from plaudit.training.replay_buffer import ReplayStats
from plaudit.training.state_manager import PolicyStatus
from plaudit.training.workers.env import EpisodeInfo
from plaudit.training.workers.judge import LabelReport
from plaudit.training.workers.learner import UpdateReport

RECENT_EPISODES = 10  # over which it is told how well chunks follow each other


@dataclass
class Progress:
    """Of a synchronous run."""

    step: int = 0  # env steps
    episodes: int = 0
    judge_success: float | None = None  # success rate of the last rollout, by the judge
    eval_success: float | None = None  # true success rate on eval seeds, at the last evaluation
    elapsed_s: float = 0.0  # over all sessions
    alarm: str | None = None  # why the judge is not to be trusted any more

    def reaches(self, max_steps: int | None, max_episodes: int | None) -> bool:
        """Whether one of the two limits is reached."""
        return (max_steps is not None and self.step >= max_steps) or (
            max_episodes is not None and self.episodes >= max_episodes
        )


@dataclass
class RolloutStats:
    """A rollout in numbers, without its steps: what a checkpoint keeps of one that is not all learned from."""

    steps: int  # of all its episodes
    episodes: int
    metrics: dict[str, float]  # by the names in docs/metrics.md; those of the updates so far among them


@dataclass
class OnlineProgress:
    """Of an online run: what its workers reported last."""

    replay: ReplayStats
    policy: PolicyStatus
    updates: int = 0
    pending_updates: int = 0  # that the labeled steps allow and the learner has not made yet
    judge_success: float | None = None  # success rate of the last episodes, by the judge
    env_success: float | None = None  # the same by the simulator, where there is one
    eval_success: float | None = None  # true success rate on eval seeds
    robot_version: int = 0  # of the weights that the newest episode started with
    staleness_s: float = 0.0  # since a newer version was published than the robot has
    env_steps_per_s: float = 0.0  # while an episode runs
    updates_per_s: float = 0.0
    judge_latency_s: float = 0.0  # per episode
    episode_progress: str = ""  # how far the newest labeled episode came, where the judge measures it
    sample_wait_fraction: float = 0.0  # of the learner's time, in which it waits for batches
    env_waiting_for: str = ""  # why the robot waits
    inference_summary: str = ""  # how long its policy takes, measured before its first episode
    operator: OperatorStatus | None = None  # None: nobody attends
    errors: Mapping[str, str] = field(default_factory=dict)  # worker -> what is wrong with it
    learner_warning: str = ""  # what to change where the learner cannot keep up
    awaited: Sequence[str] = ()  # at the end of a run: workers that finish their current call
    alarm: str | None = None  # why the judge is not to be trusted any more
    last_event: str = ""  # the newest message about the judge's versions
    window_status: str = ""  # of the labeling window, where a human labels or audits
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
        """Of the control steps of the last episodes, those without a command."""
        return sum(info.held_ticks for info in self._recent) / max(1, sum(info.steps for info in self._recent))

    @property
    def starved_chunks(self) -> int:
        """Of the last episodes, those that ran out before the next was there."""
        return sum(info.starved_chunks for info in self._recent)

    @property
    def guided_fraction(self) -> float | None:
        """Of the chunks of the last episodes that were to continue the one before, those that did."""
        known = [info.guided_fraction for info in self._recent if info.guided_fraction is not None]
        return float(np.mean(known)) if known else None

    def add_episode(self, info: EpisodeInfo) -> None:
        """What the env worker reported."""
        self.env_steps_per_s = smooth(self.env_steps_per_s, info.steps / max(info.seconds, 1e-9))
        self.robot_version = info.version
        self._recent.append(info)
        if info.success is not None:
            self._env_successes.append(info.success)
            self.env_success = float(np.mean(self._env_successes))

    def add_labels(self, report: LabelReport) -> None:
        """What a judge, or a human, reported."""
        if report.latency:
            self.judge_latency_s = smooth(self.judge_latency_s, report.latency)
        if report.note:
            self.window_status = report.note
        if report.progress:
            self.episode_progress = report.progress

    def add_updates(self, report: UpdateReport) -> None:
        """What the learner reported."""
        self.updates = report.updates
        if report.made:
            self.updates_per_s = smooth(self.updates_per_s, report.made / max(report.seconds, 1e-9))
            self.sample_wait_fraction = smooth(self.sample_wait_fraction, report.waiting / max(report.seconds, 1e-9))
            self.learner_metrics = dict(report.metrics)

    def update_staleness(self) -> None:
        """How long the robot has been without the newest weights."""
        self._published.setdefault(self.policy.version, self.policy.published)
        self._published = {version: when for version, when in self._published.items() if version > self.robot_version}
        self.staleness_s = time.time() - min(self._published.values()) if self._published and self.episodes else 0.0

    def metrics(self) -> dict[str, float]:
        """By the names in docs/metrics.md."""
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
            **self.learner_metrics,
            **self.judge_metrics,
            **{name: value for name, value in optional.items() if value is not None},
        }


def smooth(before: float, new: float) -> float:
    """An exponential moving average; the first value counts as it is."""
    return new if not before else 0.8 * before + 0.2 * new
