"""What people do in a run: the list of what comes next, the time that it takes them, and how much they help the robot.

One person may do all of it. What the robot waits for comes first, then labels: those of the audit, of a cascade, and of
episodes that no judge labels. The time of corrections and at the gate is measured, and recorded with the episodes.
That of labels follows from the ledger: the time since the label before, up to `BREAK_S`.
"""

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from plaudit.rollout.operator import GATE_S, OperatorStatus
from plaudit.types import HUMAN, Episode

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
        PersonTask(kind, f"{kind} {count:.0f} {'episode' if count == 1 else 'episodes'}")
        for kind, count in waiting.items()
        if count
    ]
    return tasks


def seconds_of(episode: Episode) -> dict[str, float]:
    """Metric -> seconds that each kind of work took a person in an episode."""
    corrected_s = _seconds(int((episode.control_mode == HUMAN).sum()), episode.fps)
    return {"person/time_correcting_s": corrected_s, "person/time_at_gate_s": float(episode.meta.get(GATE_S, 0.0))}


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
