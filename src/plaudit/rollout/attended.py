"""Episodes that an operator attends: run one after the other, stored with their marks, or put aside.

    for done in record_attended(engine, store, operator, 10):
        print(done.id, done.mark)

A mark (success or failure) is stored in the episode's meta, so that it travels with the episode, and becomes a label of
source "operator" where the episode is stored. Such a label counts before a model's and after one that somebody gave
frame by frame (data/label_order.py): a success is known from the last frame on. A discarded episode goes to a store of
its own, which nothing learns from, labels or counts.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from plaudit.data.store import Store, is_store
from plaudit.protocols import InferenceEngine
from plaudit.rollout.engine import EngineBase, outlast_faults
from plaudit.rollout.operator import MARK, Operator, OperatorCommand
from plaudit.types import OPERATOR, Episode, Labels

LABELED = {OperatorCommand.SUCCESS, OperatorCommand.FAILURE}
DISCARDED = {OperatorCommand.DISCARD, OperatorCommand.REPEAT}


@dataclass(frozen=True, eq=False)
class AttendedEpisode:
    """An episode that was stored."""

    episode: Episode
    id: int  # in its store
    store: Path  # where it is

    @property
    def mark(self) -> str:
        """The operator's; "" without one."""
        return self.episode.meta.get(MARK, "")

    @property
    def discarded(self) -> bool:
        """Whether the operator discarded it."""
        return is_discarded(self.episode)


def attend(engine: InferenceEngine, operator: Operator) -> None:
    """Give the operator the emergency stop of the robot that this engine drives."""
    if isinstance(engine, EngineBase):
        operator.emergency_stop = engine.emergency_stop


def attended_episode(
    engine: InferenceEngine, operator: Operator, *, task: str = "", seed: int | None = None
) -> Iterator[Episode]:
    """One episode, after the gate; yields it with its mark, or nothing where none was recorded."""
    episode = None
    try:
        for recorded in engine.episodes(1, task=task, seed=seed, until=operator.end_reason):
            episode = operator.finish(recorded)
            assert episode is not None
            yield episode
    finally:
        if episode is None:
            operator.finish(None)


def record_attended(
    engine: InferenceEngine,
    store: Store,
    operator: Operator,
    count: int,
    *,
    task: str = "",
    seed: int | None = None,
    patience_s: float = 0.0,
    on_fault: Callable[[str], None] = lambda _: None,
) -> Iterator[AttendedEpisode]:
    """Run and store episodes until there are `count` that were not to be repeated, or the operator stops.

    patience_s, on_fault: see `plaudit.rollout.engine.record_episodes`
    """
    attend(engine, operator)
    number = 0

    def more() -> bool:
        return number < count and not operator.status.stopped

    def play() -> Iterator[AttendedEpisode]:
        nonlocal number
        if operator.wait_until_ready():
            for episode in attended_episode(engine, operator, task=task, seed=None if seed is None else seed + number):
                done = _store(store, episode)
                number += done.mark != OperatorCommand.REPEAT
                yield done

    yield from outlast_faults(engine, play, more, patience_s, on_fault)


def _store(store: Store, episode: Episode) -> AttendedEpisode:
    if not is_discarded(episode):
        return AttendedEpisode(episode, append_marked(store, episode), store.folder)
    with discarded_store(store.folder) as discarded:
        return AttendedEpisode(episode, discarded.append(episode), discarded.folder)


def append_marked(store: Store, episode: Episode) -> int:
    """Store an episode, and its mark as a label."""
    episode_id = store.append(episode)
    label_marked(store, episode_id)
    return episode_id


def label_marked(store: Store, episode_id: int) -> None:
    """Write the label that an episode's mark stands for, unless the ledger has it."""
    entry = store.entry(episode_id)
    mark = entry.line["meta"].get(MARK)
    if mark in LABELED and store.ledger.newest(episode_id, {OPERATOR}) is None:
        cutoff = entry.steps if mark == OperatorCommand.SUCCESS else None
        store.ledger.append(
            episode_id, Labels.from_cutoff(steps=entry.steps, cutoff=cutoff, source=OPERATOR, note="at the robot")
        )


def is_discarded(episode: Episode) -> bool:
    """Whether the operator discarded it."""
    return episode.meta.get(MARK) in DISCARDED


def discarded_folder(folder: Path) -> Path:
    """Where the discarded episodes of a store are."""
    return folder.with_name(f"{folder.name}_discarded")


def discarded_store(folder: Path, capacity_bytes: int | None = None) -> Store:
    """The store of the discarded episodes of a store, for writing; made if it does not exist."""
    path = discarded_folder(folder)
    return Store.open(path, write=True) if is_store(path) else Store.create(path, capacity_bytes=capacity_bytes)
