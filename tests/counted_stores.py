"""Stores to be labeled by a person: episodes of 5, 6 and 7 frames, filled with the numbers 0.., 50.., 100.."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from conftest import counting_episode
from plaudit.data.store import Store
from plaudit.rule import DecisionRule
from plaudit.types import JudgeId, Labels, Scores

if TYPE_CHECKING:
    from plaudit.judges.human.window import LabelWindow


def counted_store(folder: Path, episodes: int = 3, **facts: object) -> Path:
    with Store.create(folder) as store:
        for n in range(episodes):
            store.append(counting_episode(steps=4 + n, first=50 * n, **facts))
    return folder


def add_episode(folder: Path, steps: int = 4) -> int:
    """As a robot does, in the middle of somebody's labeling."""
    with Store.open(folder, write=True) as store:
        return store.append(counting_episode(steps=steps, first=200))


def judged(steps: int, cutoff: int | None, source: str, sure: float = 1.0) -> Labels:
    """By a judge that gives `sure` where it sees success and 1 - `sure` where it does not."""
    labels = Labels.from_cutoff(steps=steps, cutoff=cutoff, source=source)
    if sure == 1.0:
        return labels
    probability = np.where(labels.success, sure, 1 - sure).astype(np.float32)
    judge = JudgeId(source, rule=DecisionRule(decode="per_frame").key())
    return replace(labels, judge=judge, scores=Scores(probability))


def open_window(qtbot, folder: Path, poll: bool = False, **options: Any) -> "LabelWindow":
    """On the screen that is none; pytest-qt closes it."""
    from plaudit.judges.human.session import Session
    from plaudit.judges.human.window import LabelWindow

    window = LabelWindow(Session.open(folder), poll=poll, **options)
    qtbot.addWidget(window)
    window.resize(1000, 700)
    window.show()
    return window


def said_of(folder: Path, episode_id: int) -> list[float]:
    """[T+1] the newest label of a person, frame by frame."""
    return Store.open(folder).ledger.labels(episode_id, ("human",)).targets.tolist()
