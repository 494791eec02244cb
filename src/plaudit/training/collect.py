"""Collecting while a policy trains: what it plays goes into a store with the simulator's labels, until there is enough.

    collect: {store: data, target_success: 500, target_failure: 500}

The labels are the simulator's whoever gives the rewards: they are what a learned judge is to learn. An episode is known
by its run and its seed, so a run that was killed and goes on stores none twice.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from secrets import token_hex
from typing import Any

from pydantic import NonNegativeInt

from plaudit.config import Config
from plaudit.data.journal import write_atomic
from plaudit.data.store import Store, is_store
from plaudit.errors import ConfigError, StoreError
from plaudit.judges.labeling import label_episodes
from plaudit.judges.simulator import SimulatorJudge
from plaudit.protocols import VecEnv
from plaudit.rollout.collector import EpisodeQuota, EpisodeTargets
from plaudit.rollout.vector import RolloutBatch
from plaudit.types import Episode, Labels

_SYNONYMS = {"max_positive_trajectories": "target_success", "max_negative_trajectories": "target_failure"}


class CollectConfig(Config):
    store: Path  # made if it does not exist; what it holds already counts
    target_success: NonNegativeInt | None = None  # episodes; None: as many as come
    target_failure: NonNegativeInt | None = None
    cameras: tuple[str, ...] | None = None  # which to keep; None: all that the environment has
    stop: bool = True  # end the run when both targets are reached

    def check(self) -> None:
        """Whether there is a store, or one can be made."""
        if not is_store(self.store) and self.store.exists() and (self.store.is_file() or any(self.store.iterdir())):
            raise StoreError(f"{self.store} holds something else than a store; name another for collect.store")

    @property
    def targets(self) -> EpisodeTargets:
        return EpisodeTargets(self.target_success, self.target_failure)


class Collecting:
    """One run's share in a store."""

    def __init__(self, config: CollectConfig, store: Store, run: Path):
        self._intake, self._config = EpisodeQuota(store, config.targets), config
        self._run = _identity(run)
        metas = [store.entry(i).line["meta"] for i in store.ids]
        self._here = {meta["seed"] for meta in metas if meta.get("run") == self._run}

    @property
    def enough(self) -> bool:
        """Whether the run may end."""
        return self._config.stop and self._intake.done

    def take(self, played: RolloutBatch, simulation: VecEnv) -> Mapping[str, float]:
        """Keep what is wanted of a round; returns how many there are now, by the names in docs/metrics.md."""
        if not self._intake.done:
            episodes = (episode for episode, _ in played.episodes(simulation, SimulatorJudge(), run=self._run))
            new = [self._chosen(episode) for episode in episodes if episode.meta["seed"] not in self._here]
            self._intake.extend((episode, _verdict(episode)) for episode in new)
        return {f"collect/{kind}": self._intake.kept[kind] for kind in ("success", "failure")}

    def _chosen(self, episode: Episode) -> Episode:
        if self._config.cameras is None:
            return episode
        return replace(episode, frames={camera: episode.frames[camera] for camera in self._config.cameras})


def _identity(run: Path) -> str:
    """Of this run and no other, also if its folder is removed and one of the same name is made."""
    path = run / "collecting"
    if not path.exists():
        write_atomic(path, f"{run.name} {token_hex(8)}".encode())
    return path.read_text()


def _verdict(episode: Episode) -> Labels:
    (labels,) = label_episodes(SimulatorJudge(), [episode])
    assert isinstance(labels, Labels)
    return labels


@contextmanager
def collecting(config: CollectConfig | None, run: Path) -> Iterator[Collecting | None]:
    """Open the store for as long as the run goes; None where nothing is collected."""
    if config is None:
        yield None
        return
    with Store.open(config.store, write=True) if is_store(config.store) else Store.create(config.store) as store:
        yield Collecting(config, store, run)


def translate_collect(tree: dict[str, Any]) -> dict[str, Any]:
    """A config's tree with the two blocks of the ManiSkill recipes as our `collect`; their switches may say no.

    reward_data_collection: {enabled, save_dir, target_success, target_failure}
    reward: {collect_data, data_collection: {positive_dir, negative_dir, image_keys, max_positive_trajectories, ...}}
    """
    tree = _one_block(tree)
    collect = tree.get("collect")
    if not isinstance(collect, dict):
        return tree
    for other, ours in _SYNONYMS.items():
        if other in collect and ours in collect:
            raise _problem(("collect", other), f"this is the same as '{ours}'; write one of them")
    return {**tree, "collect": {_SYNONYMS.get(key, key): value for key, value in collect.items()}}


def _one_block(tree: dict[str, Any]) -> dict[str, Any]:
    reward = dict(tree["reward"]) if isinstance(tree.get("reward"), dict) else {}
    wanted, folders = reward.pop("collect_data", None), reward.pop("data_collection", None)
    block = tree.get("reward_data_collection")
    if wanted is None and folders is None and block is None:
        return tree
    rest = {key: value for key, value in tree.items() if key not in ("reward", "reward_data_collection")}
    rest |= {"reward": reward} if reward else {}
    found = []
    if folders is not None and wanted is not False:
        found.append(_of_folders(_mapping(folders, ("reward", "data_collection"))))
    elif wanted:
        raise _problem(("reward", "collect_data"), "say where to: write a block 'collect' with a 'store'")
    if block is not None and _mapping(block, ("reward_data_collection",)).get("enabled") is not False:
        found.append(_of_save_dir(block))
    if len(found) + ("collect" in tree) > 1:
        raise _problem(("collect",), "what to collect is said twice; keep one of the blocks")
    return {**rest, "collect": found[0]} if found else rest


def _of_save_dir(block: Mapping[str, Any]) -> dict[str, Any]:
    """The store lies where the folders success/ and failure/ would have."""
    ours = {"save_dir": "store"}
    return {ours.get(key, key): value for key, value in block.items() if key != "enabled"}


def _of_folders(block: Mapping[str, Any]) -> dict[str, Any]:
    """One store for both folders, beside them."""
    where = [str(block[key]) for key in ("positive_dir", "negative_dir") if block.get(key)]
    if not where or len({Path(folder).is_absolute() for folder in where}) > 1:
        raise _problem(("reward", "data_collection"), "its folders have no place in common; write 'collect.store'")
    above = Path(os.path.commonpath([Path(folder).parent for folder in where]))
    ours = {"image_keys": "cameras"}
    kept = {ours.get(k, k): value for k, value in block.items() if k not in ("positive_dir", "negative_dir")}
    return {"store": str(above / "store"), **kept}


def _mapping(value: Any, where: tuple[str, ...]) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _problem(where, "this is a block of keys, not a value; better write our own block 'collect'")
    return value


def _problem(where: tuple[str, ...], sentence: str) -> ConfigError:
    return ConfigError([(where, f"key '{'.'.join(where)}': {sentence}")])
