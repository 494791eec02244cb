"""Collects episodes with success labels, to train a judge on, until a store has enough of each kind.

    with Store.create("data") as store:
        collector = RewardDataCollector(store, num_envs=8, targets=EpisodeTargets(success=500, failure=500))
        while not collector.done:
            ...                                                        # step N environments
            collector.add_env_output({"obs": {"images": {"front": images}}, "actions": actions,
                                      "success_frame": success, "dones": dones}, {"success_once": once})

`EpisodeQuota` decides which episodes a store still needs. Everything that collects uses it. Episodes that are in the
store count, so all of them continue where they stopped.

`EpisodeFolders` are two folders with a file for each labeled episode of a store, in the layout of another stack.

    folders = EpisodeFolders.npy("reward_data/positive", "reward_data/negative")
    folders.update(store)        # 000000.npy, 000001.npy, ...: what the store has and the folders have not

The store is written first; a file that is missing after a kill is written at the next update. Each folder has a list of
its episodes, `.collected`, which is written after them: an episode that is not listed is written again, under the same
name. A listed file that was moved away stays away, and a folder that was removed is filled again.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from secrets import token_hex
from typing import Any, Literal, Self

import numpy as np
from pydantic import model_validator

from plaudit.config import Config, NonNegativeInt
from plaudit.data.disk import Folder, disk_errors, write_atomic
from plaudit.data.formats import npy, pkl
from plaudit.data.formats.base import FileLayout, LabeledEpisode, WriteOptions
from plaudit.data.formats.images import choose, to_frames
from plaudit.data.frame_codecs import ImagesText
from plaudit.data.store import Store, is_store
from plaudit.errors import BadFile, DataError, StoreError, TargetNotEmpty, format_count
from plaudit.files import MAX_JSON, Root
from plaudit.judges.labeling import label_episodes
from plaudit.judges.simulator import SimulatorJudge
from plaudit.protocols import VecEnv
from plaudit.rollout.vector import RolloutBatch
from plaudit.types import AnyArray, ByteArray, Episode, FloatArray, Labels, name_of_camera

LIST_NAME = ".collected"
UNFINISHED = f"{LIST_NAME}.tmp"  # what a kill leaves of the first list
BATCH = 100  # files between two writes of the list
_OTHER = "nothing was written: name another folder, or move this one away"


class EpisodeFolders:
    """A folder of successes and one of failures."""

    def __init__(self, layout: FileLayout, success: Path, failure: Path):
        self.layout, self.success, self.failure = layout, success, failure

    @classmethod
    def npy(cls, positive_dir: str | Path, negative_dir: str | Path) -> Self:
        """RLinf's trajectories: `positive_dir/000000.npy`, `negative_dir/000000.npy`."""
        return cls(npy.LAYOUT, Path(positive_dir), Path(negative_dir))

    @classmethod
    def pkl(cls, save_dir: str | Path) -> Self:
        """The ManiSkill collectors' episodes: `success/episode_000000.pkl`, `failure/episode_000001.pkl`."""
        return cls(pkl.LAYOUT, *(Path(save_dir) / name for name in pkl.LAYOUT.folders))

    @property
    def paths(self) -> tuple[Path, Path]:
        return self.success, self.failure

    def check(self, store: Path) -> None:
        """Refuse folders that hold something else than episodes of this store, which need not be there yet."""
        store_id = Store.open(store).settings.id if is_store(store) else ""
        for folder in self.paths:
            _list_episodes(folder, store_id)

    def update(self, store: Store) -> None:
        """Write the labeled episodes that are not in the folders yet; returns when they would survive a power cut."""
        store_id = store.settings.id
        with disk_errors(self.success.parent, "the files of new episodes were not written"):
            listed: dict[Path, list[int]] = {}
            for folder in self.paths:
                folder.mkdir(parents=True, exist_ok=True)
                listed[folder] = _list_episodes(folder, store_id)
                if not (folder / LIST_NAME).exists():  # from now on, what is in it is of this store
                    _write_list(folder, store_id, listed[folder])
            done = {episode_id for ids in listed.values() for episode_id in ids}
            pending = [episode_id for episode_id in store.ids if episode_id not in done]
            for start in range(0, len(pending), BATCH):
                for episode_id in pending[start : start + BATCH]:
                    self._write(store, episode_id, listed)
                for folder, ids in listed.items():
                    _write_list(folder, store_id, ids)

    def _write(self, store: Store, episode_id: int, listed: dict[Path, list[int]]) -> None:
        item = LabeledEpisode(episode_id, store.episode(episode_id), store.ledger.labels(episode_id))
        file = self.layout.encode(item, WriteOptions())
        if file is None:
            return
        folder = self.success if file.success else self.failure
        number = len(listed[folder]) if self.layout.counts_each_folder else episode_id
        write_atomic(folder / self.layout.file_name.format(number), file.data)
        listed[folder].append(episode_id)


def _list_episodes(folder: Path, store_id: str) -> list[int]:
    """The episodes of a store that a folder holds; a folder with anything else is refused."""
    if not folder.exists():
        return []
    path = folder / LIST_NAME
    if not folder.is_dir() or (not path.exists() and any(file.name != UNFINISHED for file in folder.iterdir())):
        raise TargetNotEmpty(f"{folder} holds something already, and episodes are to be collected into it; {_OTHER}")
    if not path.exists():
        return []
    try:
        listed_id, *lines = Root(folder).read(path, MAX_JSON).decode().split()
        ids = [int(line) for line in lines]
    except (ValueError, OSError) as error:
        raise BadFile(path, f"this file is not a list of the episodes next to it ({error}); {_OTHER}") from error
    if listed_id != store_id:
        raise TargetNotEmpty(f"{folder} holds episodes of another store than the one that is collected into; {_OTHER}")
    return ids


def _write_list(folder: Path, store_id: str, ids: list[int]) -> None:
    write_atomic(folder / LIST_NAME, "\n".join([store_id, *map(str, ids), ""]).encode())


SOURCE = "simulator"
NO_SUCCESS_FRAME = "success_once was set and success_frame never was; the last frame is labeled as success"

Outcome = Literal["success", "failure"]


@dataclass(frozen=True)
class EpisodeTargets:
    """How many episodes of each kind to collect; None: no limit."""

    success: int | None = None
    failure: int | None = None

    def __post_init__(self) -> None:
        for outcome, count in vars(self).items():
            if count is not None and count < 0:
                raise DataError(f"the target of {outcome} is {count}; it is 0 or more, or None for no limit")


class EpisodeQuota:
    """Adds episodes to a store until its targets are reached; those of a kind that is full are dropped."""

    def __init__(self, store: Store, targets: EpisodeTargets, folders: Sequence[EpisodeFolders] = ()):
        """folders: that get a file of each episode too"""
        self.store, self.targets, self._folders = store, targets, folders
        self.kept: Counter[Outcome] = Counter()  # in the store, also from before
        self.surplus: Counter[Outcome] = Counter()  # dropped
        for episode_id in store.ids:
            labels = store.ledger.labels(episode_id)
            if labels is not None:
                self.kept[outcome_of(labels)] += 1
        self._update_folders()

    def missing(self, outcome: Outcome) -> int | None:
        """How many more are needed; None: no limit."""
        target = vars(self.targets)[outcome]
        return None if target is None else max(0, target - self.kept[outcome])

    @property
    def done(self) -> bool:
        """Whether both targets are reached."""
        return self.missing("success") == self.missing("failure") == 0

    def describe(self) -> str:
        """Like "0 of 30 successes and 12 failures", where failures have no target."""
        kinds: tuple[Outcome, ...] = ("success", "failure")
        targets, kept = vars(self.targets), self.kept
        return " and ".join(
            format_count(kept[kind], kind)
            if targets[kind] is None
            else f"{kept[kind]} of {format_count(targets[kind], kind)}"
            for kind in kinds
        )

    def add(self, episode: Episode, labels: Labels) -> int | None:
        """The episode's id; None where there are enough of its kind."""
        ids = self.extend([(episode, labels)])
        return ids[0] if ids else None

    def extend(self, pairs: Iterable[tuple[Episode, Labels]]) -> list[int]:
        """Add those that are needed, with one sync; returns their ids."""
        needed: list[tuple[Episode, Labels]] = []
        added: Counter[Outcome] = Counter()
        for episode, labels in pairs:
            outcome = outcome_of(labels)
            missing = self.missing(outcome)
            if missing is not None and added[outcome] >= missing:
                self.surplus[outcome] += 1
            else:
                added[outcome] += 1
                needed.append((episode, labels))
        if not needed:
            return []
        ids = self.store.extend([episode for episode, _ in needed])
        self.store.ledger.extend(zip(ids, (labels for _, labels in needed), strict=True))
        self.kept += added
        self._update_folders()
        return ids

    def _update_folders(self) -> None:
        for folders in self._folders:
            folders.update(self.store)


@dataclass(frozen=True, eq=False)
class _Step:
    """One observation of one environment, and what led to it."""

    images: Mapping[str, ByteArray]  # camera -> [H, W, 3]
    state: FloatArray  # [S]
    action: FloatArray | None = None  # [A]; None: after a reset, or not given
    success: float = 0.0  # P(success) of this frame, by the environment
    success_once: bool = False  # whether the episode has succeeded at any time, by the environment
    privileged: Mapping[str, Any] = field(default_factory=dict)


class RewardDataCollector:
    """Cuts the output of N parallel environments into episodes: one buffer each, saved when its environment is done."""

    def __init__(
        self,
        store: Store,
        num_envs: int,
        *,
        targets: EpisodeTargets = EpisodeTargets(),  # noqa: B008 - frozen
        image_keys: Sequence[str] | None = None,
        folders: Sequence[EpisodeFolders] = (),
        task: str = "",
        fps: float = 0.0,
        robot: str = "",
        meta: Mapping[str, Any] | None = None,
    ):
        """
        image_keys: which cameras to keep; None: all of the first output
        folders: that get a file of each episode too, like EpisodeFolders.npy(positive_dir, negative_dir)
        task, fps, robot, meta: of every episode, see `Episode`
        """
        self.quota, self.num_envs = EpisodeQuota(store, targets, folders), num_envs
        self._cameras = list(image_keys or ())
        self._episode_fields: dict[str, Any] = {"task": task, "fps": fps, "robot": robot, "meta": dict(meta or {})}
        self._buffers: list[list[_Step]] = [[] for _ in range(num_envs)]

    @property
    def done(self) -> bool:
        """Whether there are enough episodes of both kinds."""
        return self.quota.done

    def begin(self, obs: Mapping[str, Any], only: AnyArray | None = None) -> list[int]:
        """Take the observation of a reset; saves the episodes that it cut short and returns their ids.

        only: bool [N], which environments were reset; None: all
        """
        rows = self._selected(only)
        ids = self._save(rows)
        seen = self._read_obs(obs)
        for n in rows:
            self._push(n, _Step(*_copy_row(seen, n)))
        return ids

    def add_env_output(
        self,
        env_output: Mapping[str, Any],
        env_info: Mapping[str, Any] | None = None,
        is_last_step: bool = False,
        *,
        only: AnyArray | None = None,
    ) -> list[int]:
        """Take one step of all environments; returns the ids of the episodes that it ended and that were kept.

        env_output: arrays or CPU tensors of N rows each.
            obs: {"images": {camera: [N, H, W, 3] or [N, 3, H, W], uint8 or float in [0, 1]}, "states": [N, S] if any}
            success_frame: [N] in [0, 1], whether obs shows success
            dones: [N] whose episode is over
            actions: [N, A] what led to obs; optional, then none are stored
            terminations: [N] which of those done were terminated, not truncated; optional: those that end with success
            final_obs: like obs, the last observation of those done, where obs is already of their next episode
            privileged: {name: [N]} other values of the simulator to store
        env_info: {"success_once": [N]} whether an episode has succeeded at any time; optional
        is_last_step: save all episodes, as they are
        only: bool [N], the environments that were stepped; None: all
        """
        for key in ("obs", "success_frame", "dones"):
            if key not in env_output:
                raise DataError(f"env_output has no '{key}'; it has: {', '.join(map(str, env_output)) or 'nothing'}")
        if self.done:
            return []
        success = self._flags(env_output["success_frame"], "success_frame")
        if not ((success >= 0) & (success <= 1)).all():
            raise DataError(f"success_frame must lie within [0, 1], got {success.tolist()}")
        dones = self._flags(env_output["dones"], "dones") > 0
        success_once = self._flags((env_info or {}).get("success_once", np.zeros(self.num_envs)), "success_once") > 0
        actions = self._rows(env_output.get("actions"), "actions")
        privileged = {name: self._flags(v, name) for name, v in env_output.get("privileged", {}).items()}
        current = self._read_obs(env_output["obs"])
        final = env_output.get("final_obs")
        last = current if final is None else self._read_obs(final)
        rows = self._selected(only)
        for n in rows:
            action = None if actions is None else actions[n].copy()
            values = {name: values[n] for name, values in privileged.items()}
            seen = _copy_row(last if dones[n] else current, n)
            self._push(n, _Step(*seen, action, float(success[n]), bool(success_once[n]), values))
        terminated = dones & (self._flags(env_output.get("terminations", success >= 0.5), "terminations") > 0)
        ids = self._save([n for n in rows if dones[n] or is_last_step], terminated)
        if final is not None and dones.any():
            self.begin(env_output["obs"], dones & np.isin(np.arange(self.num_envs), rows))
        return ids

    def save_trajectory(self, env_idx: int) -> int | None:
        """Save the buffer of one environment and empty it; returns the episode's id.

        None where there are enough of its kind, or where the buffer has less than one step.
        """
        ids = self._save([env_idx])
        return ids[0] if ids else None

    def flush(self) -> list[int]:
        """Save all buffers."""
        return self._save(range(self.num_envs))

    def _save(self, rows: Iterable[int], terminated: AnyArray | None = None) -> list[int]:
        """Save these buffers, with one sync. terminated: bool [N]; None: none is"""
        episodes: list[tuple[Episode, Labels]] = []
        for n in rows:
            steps, self._buffers[n] = self._buffers[n], []
            if len(steps) > 1 or (steps and steps[0].action is not None):
                is_terminated = terminated is not None and bool(terminated[n])
                episodes.append(_make_episode(steps, terminated=is_terminated, **self._episode_fields))
        return self.quota.extend(episodes)

    def _push(self, n: int, step: _Step) -> None:
        buffer = self._buffers[n]
        for camera, image in step.images.items() if buffer else ():
            before = buffer[0].images[camera].shape
            if image.shape != before:
                raise DataError(
                    f"camera '{camera}' of environment {n} changed in the middle of an episode from "
                    f"{before[0]}x{before[1]} to {image.shape[0]}x{image.shape[1]}; save_trajectory({n}) ends it first"
                )
        after_reset = buffer[1:] or [first for first in buffer if first.action is not None]
        if after_reset and (after_reset[-1].action is None) != (step.action is None):
            raise DataError(f"environment {n}: either every step of an episode has actions, or none; this one is mixed")
        buffer.append(step)

    def _read_obs(self, obs: Mapping[str, Any]) -> tuple[Mapping[str, ByteArray], FloatArray]:
        """Images [N, H, W, 3] of the cameras to keep, and states [N, S]."""
        if "images" not in obs:
            raise DataError(f"obs has no 'images'; it has: {', '.join(map(str, obs)) or 'nothing'}")
        images = {}
        self._cameras = choose(self._cameras, list(obs["images"]), "the output")
        for camera in self._cameras:
            images[camera] = to_frames(self._rows(obs["images"][camera], f"camera '{camera}'"), "env_output", camera)
        states = self._rows(obs.get("states"), "states")
        return images, np.zeros((self.num_envs, 0), np.float32) if states is None else states.astype(np.float32)

    def _rows(self, values: Any, name: str) -> Any:
        """As an array with one row per environment; None stays None."""
        if values is None:
            return None
        array = np.asarray(values)
        if array.ndim < 1 or len(array) != self.num_envs:
            raise DataError(f"{name} must have a row for each of {self.num_envs} environments, got {list(array.shape)}")
        return array

    def _flags(self, values: Any, name: str) -> Any:
        """[N] numbers, from [N] or [N, 1]."""
        array = self._rows(values, name)
        if array.size != self.num_envs:
            raise DataError(f"{name} must be [{self.num_envs}], got {list(array.shape)}")
        return array.reshape(-1)

    def _selected(self, only: AnyArray | None) -> list[int]:
        return list(range(self.num_envs)) if only is None else np.flatnonzero(self._flags(only, "only")).tolist()


def _copy_row(seen: tuple[Mapping[str, ByteArray], FloatArray], n: int) -> tuple[Mapping[str, ByteArray], FloatArray]:
    """One environment's images and state; copies, because an environment may write the next step into that memory."""
    return {camera: frames[n].copy() for camera, frames in seen[0].items()}, seen[1][n].copy()


def _make_episode(steps: Sequence[_Step], **fields: Any) -> tuple[Episode, Labels]:
    """An episode that begins with an action lacks its first observation: it is padded and marked (see types.py)."""
    padded = steps[0].action is not None
    rows = [steps[0], *steps] if padded else list(steps)
    targets = np.array([row.success for row in rows], np.float32)
    success = targets[1:] >= 0.5
    no_success_frame = any(step.success_once for step in steps) and not (targets >= 0.5).any()
    if no_success_frame:
        targets[-1] = 1.0
    if padded:
        targets[0] = np.nan
    actions = [np.zeros(0) if row.action is None else row.action.reshape(-1) for row in rows[1:]]
    values = {name: np.array([row.privileged[name] for row in rows[1:]]) for name in rows[1].privileged}
    episode = Episode.of(
        frames={camera: np.stack([row.images[camera] for row in rows]) for camera in rows[0].images},
        state=np.stack([row.state for row in rows]),
        actions=np.stack(actions),
        privileged={"success": success, **values},
        padded="first" if padded else "none",
        **fields,
    )
    return episode, Labels.from_targets(targets, SOURCE, note=NO_SUCCESS_FRAME if no_success_frame else "")


def outcome_of(labels: Labels) -> Outcome:
    """Whether an episode counts as a success or as a failure."""
    return "success" if labels.success_once else "failure"


class CollectConfig(Config):
    """Where the episodes of a training run are collected, and how many.

    collect: {store: data, target_success: 500, target_failure: 500}
    """

    store: Path  # made if it does not exist; what it holds already counts
    store_images: ImagesText | None = None  # how a new store keeps frames: raw (None), lossless, jpeg:90, video:18
    target_success: NonNegativeInt | None = None  # episodes; None: as many as come
    target_failure: NonNegativeInt | None = None  # the same of failures
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
    """Collects while a policy trains: its episodes go into a store with the simulator's labels, whoever gives rewards.

    An episode is identified by its run and its seed, so a run that was killed and resumed stores none twice.
    """

    def __init__(self, config: CollectConfig, store: Store, run: Path):
        identity = run / "collect_id"
        if not identity.exists():  # unique, even if the folder is removed and one of the same name is made
            write_atomic(identity, f"{run.name} {token_hex(8)}".encode())
        self._run = Folder(run).read(identity.name).decode()
        metas = {i: store.entry(i).line["meta"] for i in store.ids}
        own = {i: meta["seed"] for i, meta in metas.items() if meta.get("run") == self._run}
        for episode_id in own:
            if not store.ledger.history(episode_id):  # a kill came between the episode and its labels
                store.ledger.append(episode_id, _simulator_labels(store.episode(episode_id)))
        self._seeds = set(own.values())
        self.quota, self._config = EpisodeQuota(store, config.targets, config.folders), config

    @property
    def enough(self) -> bool:
        """Whether the run may end."""
        return self._config.stop and self.quota.done

    def take(self, rollout: RolloutBatch, simulation: VecEnv) -> Mapping[str, float]:
        """Keep the episodes of a rollout that are needed; returns the counts, by the names in docs/metrics.md."""
        cameras, new = self._config.cameras, []
        for episode, _ in rollout.episodes(simulation, SimulatorJudge(), run=self._run) if not self.quota.done else ():
            if episode.meta["seed"] in self._seeds:
                continue
            if cameras is not None:
                chosen = {name: episode.frames[name_of_camera(name, episode.frames, cameras)] for name in cameras}
                episode = replace(episode, frames=chosen)
            new.append((episode, _simulator_labels(episode)))
        self.quota.extend(new)
        return {f"collect/{kind}": self.quota.kept[kind] for kind in ("success", "failure")}


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
    with Store.open_or_create(config.store, images=config.store_images) as store:
        yield Collection(config, store, run)
