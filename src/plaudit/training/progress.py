"""How an online run stands: what its parts told last, as the loop decides by it and a person sees it."""

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from plaudit.training.monitor import RECENT
from plaudit.training.replay_buffer import ReplayStats
from plaudit.training.state_manager import PolicyStatus
from plaudit.training.workers.env import EpisodeInfo
from plaudit.training.workers.judge import LabelReport
from plaudit.training.workers.learner import UpdateReport


@dataclass
class Now:
    """How things stand, for whoever watches."""

    counts: ReplayStats
    state: PolicyStatus
    updates: int = 0
    owed: int = 0  # updates that the labelled steps have earned and the trainer has not made
    judged_success: float | None = None  # over the last episodes
    true_success: float | None = None  # the same, as only a simulation knows
    evaluated: float | None = None  # on seeds held back
    on_robot: int = 0  # version of the weights that the newest episode began with
    age: float = 0.0  # s since that version was published, while there is a newer one
    steps_per_second: float = 0.0  # of the robot, while it moves
    updates_per_second: float = 0.0
    judge_latency: float = 0.0  # s an episode
    sampling: float = 0.0  # share of the trainer's time that it waits for batches
    holding: str = ""  # why the robot waits
    troubles: Mapping[str, str] = field(default_factory=dict)  # part -> what is the matter with it
    alarm: str | None = None  # why the judge is not to be believed
    news: str = ""  # the last thing a person should know
    window: str = ""  # how it stands with the labelling window, where a person judges or audits
    seconds: float = 0.0  # over all sittings
    metrics: Mapping[str, float] = field(default_factory=dict)  # the trainer's
    honesty: Mapping[str, float] = field(default_factory=dict)  # of the judge: its audit and its successors
    _true: deque[bool] = field(default_factory=lambda: deque(maxlen=RECENT), repr=False)
    _pushed: dict[int, float] = field(default_factory=dict, repr=False)  # version newer than the robot's -> when

    def take_played(self, played: EpisodeInfo) -> None:
        self.steps_per_second = smooth(self.steps_per_second, played.steps / max(played.seconds, 1e-9))
        self.on_robot = played.version
        if played.success is not None:
            self._true.append(played.success)
            self.true_success = float(np.mean(self._true))

    def take_judged(self, judged: LabelReport) -> None:
        if judged.latency:
            self.judge_latency = smooth(self.judge_latency, judged.latency)
        if judged.note:
            self.window = judged.note

    def take_shift(self, shift: UpdateReport) -> None:
        self.updates = shift.updates
        if shift.made:
            self.updates_per_second = smooth(self.updates_per_second, shift.made / max(shift.seconds, 1e-9))
            self.sampling = smooth(self.sampling, shift.waiting / max(shift.seconds, 1e-9))
            self.metrics = dict(shift.metrics)

    def note_age(self) -> None:
        """How long the robot has been without the newest weights."""
        self._pushed.setdefault(self.state.version, self.state.pushed)
        self._pushed = {version: pushed for version, pushed in self._pushed.items() if version > self.on_robot}
        self.age = time.time() - min(self._pushed.values()) if self._pushed and self.counts.episodes else 0.0


def smooth(before: float, new: float) -> float:
    return new if not before else 0.8 * before + 0.2 * new


def numbers_of(now: Now) -> dict[str, float]:
    """By the names in docs/metrics.md."""
    known = {
        "online/success_judged": now.judged_success,
        "online/success_true": now.true_success,
    }
    return {
        "online/episodes": now.counts.episodes,
        "online/unjudged": now.counts.unjudged,
        "online/failed": now.counts.failed,
        "online/unlabelable": now.counts.unlabelable,
        "online/updates": now.updates,
        "online/owed": now.owed,
        "online/steps_per_second": now.steps_per_second,
        "online/updates_per_second": now.updates_per_second,
        "online/judge_latency": now.judge_latency,
        "online/sampling": now.sampling,
        "weights/version": now.state.version,
        "weights/on_robot": now.on_robot,
        "weights/age": now.age,
        "time/seconds": now.seconds,
        **now.metrics,
        **now.honesty,
        **{name: value for name, value in known.items() if value is not None},
    }
