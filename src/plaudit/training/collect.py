"""Collecting while a policy trains: its episodes go into a store with the simulator's labels, until there are enough.

    collect: {store: data, target_success: 500, target_failure: 500}

The labels are the simulator's whoever gives the rewards: they are what a learned judge is to learn. An episode is known
by its run and its seed, so a run that was killed and goes on stores none twice. `positive_dir` and `negative_dir`, or
`save_dir`, get the same episodes as files of RLinf's layouts, while the run goes on.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from secrets import token_hex
from typing import Self

from pydantic import model_validator

from plaudit.config import Config, NonNegativeInt
from plaudit.data.cameras import name_of_camera
from plaudit.data.disk import Folder, write_atomic
from plaudit.data.episode_folders import EpisodeFolders
from plaudit.data.store import Store, is_store
from plaudit.errors import StoreError
from plaudit.judges.labeling import label_episodes
from plaudit.judges.simulator import SimulatorJudge
from plaudit.protocols import VecEnv
from plaudit.rollout.collector import EpisodeQuota, EpisodeTargets
from plaudit.rollout.vector import RolloutBatch
from plaudit.types import Episode, Labels


class CollectConfig(Config):
    """Where the episodes of a run are collected, and how many."""

    store: Path  # made if it does not exist; what it holds already counts
    target_success: NonNegativeInt | None = None  # episodes; None: as many as come
    target_failure: NonNegativeInt | None = None
    positive_dir: Path | None = None  # also write .npy trajectories: successes, ...
    negative_dir: Path | None = None  # ... and failures
    save_dir: Path | None = None  # also write .pkl episodes, into success/ and failure/ of this folder
    cameras: tuple[str, ...] | None = None  # which to keep, by the names that they get; None: all that there are
    stop: bool = True  # end the run when both targets are reached

    def check(self) -> None:
        """Whether there is a store, or one can be made."""
        if not is_store(self.store) and self.store.exists() and (self.store.is_file() or any(self.store.iterdir())):
            raise StoreError(f"{self.store} holds something else than a store; name another for collect.store")
        if self.save_dir is not None and is_store(self.save_dir):
            raise StoreError(f"{self.save_dir} is a store; name another folder for success/ and failure/")
        for folders in self.folders:
            folders.check(self.store)

    @property
    def folders(self) -> tuple[EpisodeFolders, ...]:
        """That get a file of each episode too."""
        folders: list[EpisodeFolders] = []
        if self.positive_dir is not None and self.negative_dir is not None:
            folders.append(EpisodeFolders.npy(self.positive_dir, self.negative_dir))
        if self.save_dir is not None:
            folders.append(EpisodeFolders.pkl(self.save_dir))
        return tuple(folders)

    @model_validator(mode="after")
    def _check_folders(self) -> Self:
        if (self.positive_dir is None) != (self.negative_dir is None):
            raise ValueError("positive_dir and negative_dir belong together; give both")
        paths = [path.absolute() for folders in self.folders for path in folders.paths]
        if len({self.store.absolute(), *paths}) <= len(paths):
            raise ValueError("the store and the folders of files are folders of their own; give each another name")
        return self

    @property
    def targets(self) -> EpisodeTargets:
        return EpisodeTargets(self.target_success, self.target_failure)


class Collection:
    """One run's share in a store."""

    def __init__(self, config: CollectConfig, store: Store, run: Path):
        self._run = _identity(run)
        metas = {i: store.entry(i).line["meta"] for i in store.ids}
        own = {i: meta["seed"] for i, meta in metas.items() if meta.get("run") == self._run}
        _label_bare(store, own)
        self._stored_seeds = set(own.values())
        self._intake, self._config = EpisodeQuota(store, config.targets, config.folders), config

    @property
    def enough(self) -> bool:
        """Whether the run may end."""
        return self._config.stop and self._intake.done

    def describe(self) -> str:
        """How many episodes of each kind there are, of how many."""
        return self._intake.describe()

    def take(self, rollout: RolloutBatch, simulation: VecEnv) -> Mapping[str, float]:
        """Keep what is wanted of a round; returns how many there are now, by the names in docs/metrics.md."""
        if not self._intake.done:
            episodes = (episode for episode, _ in rollout.episodes(simulation, SimulatorJudge(), run=self._run))
            new = [self._chosen(episode) for episode in episodes if episode.meta["seed"] not in self._stored_seeds]
            self._intake.extend((episode, _simulator_labels(episode)) for episode in new)
        return {f"collect/{kind}": self._intake.kept[kind] for kind in ("success", "failure")}

    def _chosen(self, episode: Episode) -> Episode:
        if self._config.cameras is None:
            return episode
        frames, cameras = episode.frames, self._config.cameras
        return replace(episode, frames={name: frames[name_of_camera(name, frames, cameras)] for name in cameras})


def _identity(run: Path) -> str:
    """Of this run and no other, also if its folder is removed and one of the same name is made."""
    path = run / "collect_id"
    if not path.exists():
        write_atomic(path, f"{run.name} {token_hex(8)}".encode())
    return Folder(run).read(path.name).decode()


def _label_bare(store: Store, ids: Iterable[int]) -> None:
    """Label the episodes that a kill left without labels, between the two writes."""
    for episode_id in ids:
        if not store.ledger.history(episode_id):
            store.ledger.append(episode_id, _simulator_labels(store.episode(episode_id)))


def _simulator_labels(episode: Episode) -> Labels:
    (labels,) = label_episodes(SimulatorJudge(), [episode])
    assert isinstance(labels, Labels)
    return labels


@contextmanager
def collecting(config: CollectConfig | None, run: Path) -> Iterator[Collection | None]:
    """Open the store for as long as the run goes; None where nothing is collected."""
    if config is None:
        yield None
        return
    with Store.open(config.store, write=True) if is_store(config.store) else Store.create(config.store) as store:
        yield Collection(config, store, run)
