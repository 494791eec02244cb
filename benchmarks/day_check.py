"""What was lost, and what the robot got: a run's folder compared with the twin's own log, the operator's words and the
person's own labels."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from plaudit.data.store import Store, is_store
from plaudit.policies.loader import read_weights
from plaudit.robots.twin.log import read_log, read_stamp
from plaudit.rollout.recording import discarded_folder
from plaudit.types import EnvSpec

SHORT_NS = 1_200_000_000  # of motion, that may be a reset, and half a second until the twin holds
WATCHDOG_NS = 500_000_000  # without a command, after which the twin holds
NOTICED_NS = 300_000_000  # within which an operator's word ends an episode


@dataclass(frozen=True)
class StoredEpisode:
    """An episode that is on disk."""

    id: int
    steps: int
    first: int  # ns of the twin's clock, of its first frame
    last: int
    meta: dict[str, Any]
    discarded: bool

    def within(self, spans: Sequence[tuple[int, int]]) -> bool:
        """Whether it has a part in one of these times."""
        return overlaps((self.first, self.last), spans)


def stored_episodes(run: Path) -> list[StoredEpisode]:
    """All episodes of a run, the discarded ones too, in the order in which they began."""
    found = []
    for folder in (run / "episodes", discarded_folder(run / "episodes")):
        if is_store(folder):
            store = Store.open(folder)
            found += stored_episodes_in(store, store.ids, discarded=folder.name != "episodes")
    return sorted(found, key=lambda episode: episode.first)


def stored_episodes_in(store: Store, ids: Sequence[int], discarded: bool = False) -> list[StoredEpisode]:
    """These episodes of a store."""
    found = []
    for number in ids:
        episode = store.episode(number)
        first, *_, last = episode.frames["head"]
        found.append(
            StoredEpisode(number, episode.steps, read_stamp(first), read_stamp(last), dict(episode.meta), discarded)
        )
    return found


@dataclass
class Motion:
    """What the twin says of all its lives."""

    lives: list[list[dict[str, Any]]]  # the entries of its logs
    spans: list[tuple[int, int]] = field(default_factory=list)  # ns, from a first command to when it held by itself

    def __post_init__(self) -> None:
        for entries in self.lives:
            begun = 0
            for entry in entries:
                if not entry["holding"] and not begun:
                    begun = entry["stamp"]
                if begun and (entry["holding"] or entry is entries[-1]):
                    self.spans.append((begun, entry["stamp"]))
                    begun = 0

    @property
    def commands(self) -> int:
        return sum(entries[-1]["commands"] for entries in self.lives)

    @property
    def violations(self) -> int:
        """Commands that were outside the robot's limits."""
        return sum(entries[-1]["violations"] for entries in self.lives)

    @property
    def violated(self) -> list[str]:
        return [problem for entries in self.lives for entry in entries for problem in entry["violated"]]

    def idle_ticks(self, episode: StoredEpisode, hz: float) -> list[tuple[int, int]]:
        """When (from, to, in ns) there was no command for a control step of an episode, after its first command."""
        during = [e for entries in self.lives for e in entries if episode.first < e["stamp"] <= episode.last]
        if not during:
            return []
        steps = min(episode.steps, int(1e-9 * (episode.last - episode.first) * hz))  # not those of a reset before
        first, tick = during[-1]["commands"] - steps + 2, int(1e9 / hz)
        during = [e for e in during if e["commands"] >= first]
        idle = [(e["stamp"] - WATCHDOG_NS - 2 * tick, e["stamp"]) for e in during if e["holding"]]
        for before, after in pairwise(during):
            skipped = after["skipped"] - before["skipped"]
            idle += skipped * [(after["stamp"] - (skipped + 2) * tick, after["stamp"])]
        return idle


def motion(logs: Sequence[Path]) -> Motion:
    """Read the twin's logs."""
    return Motion([entries for path in logs if (entries := read_log(path))])


def overlaps(span: tuple[int, int], others: Sequence[tuple[int, int]]) -> bool:
    """Whether a time has a part in one of the others."""
    return any(span[0] < end and begin < span[1] for begin, end in others)


def lost_episodes(episodes: Sequence[StoredEpisode], moved: Motion) -> list[tuple[int, int]]:
    """Times for which the robot moved and nothing is on disk."""
    spans = [span for span in moved.spans if span[1] - span[0] > SHORT_NS]
    return [span for span in spans if not any(episode.within([span]) for episode in episodes)]


def lost_marks(episodes: Sequence[StoredEpisode], said: Sequence[tuple[int, str]]) -> list[str]:
    """What an operator said in the middle of an episode that does not say so."""
    lost = []
    for at, command in said:
        during = [episode for episode in episodes if episode.first < at < episode.last - NOTICED_NS]
        lost += [f"{command} during episode {episode.id}" for episode in during]
    return lost


def wrong_labels(run: Path, mirror: Path | None) -> list[str]:
    """Episodes without a label, marks that are none, and labels of the person that are not there once."""
    store = Store.open(run / "episodes")
    wrong = [f"episode {i} has no label" for i in store.ids if store.ledger.newest(i, {"human", "operator"}) is None]
    there = Counter((label.source, label.episode) for label in store.ledger.since(0))
    marked = {i for i in store.ids if store.entry(i).line["meta"].get("operator") in ("success", "failure")}
    wrong += [f"{there['operator', i]} labels for the mark of episode {i}" for i in marked if there["operator", i] != 1]
    wrong += [f"{count} labels of {who} for episode {i}" for (who, i), count in there.items() if count > 1]
    if mirror is not None:
        mine = Store.open(mirror)
        given = {mine.entry(label.episode).line["meta"]["remote"] for label in mine.ledger.since(0)}
        wrong += [f"the person's label of episode {i} did not arrive" for i in given if not there["human", i]]
    return wrong


def held_fraction(episodes: Sequence[StoredEpisode], faults: Sequence[tuple[int, int]]) -> float:
    """Of the control steps of episodes that no fault touched, those in which the last command was repeated."""
    quiet = [episode for episode in episodes if not episode.within(faults)]
    return sum(e.meta["held_ticks"] for e in quiet) / max(1, sum(e.steps for e in quiet))


def is_newest_policy(run: Path, env_spec: EnvSpec) -> bool:
    """Whether the policy on disk is the learner's last update, and the last checkpoint has it too."""
    from plaudit.training.run_folder import RunFolder
    from plaudit.training.setup import build_learner  # torch, which nothing needs before the day is over

    folder = RunFolder.reopen(run, "online")
    learner = build_learner(folder.config, env_spec)
    folder.load_checkpoint(learner)
    published = read_weights(run / "policy/model.safetensors").tensors
    same = all(np.array_equal(published[name], tensor) for name, tensor in learner.weights().tensors.items())
    return same and folder.metrics()[-1]["learner/updates"] == learner.version
