"""Two folders with a file for each labeled episode of a store, in the layout of another stack.

    folders = EpisodeFolders.npy("reward_data/positive", "reward_data/negative")
    folders.update(store)        # 000000.npy, 000001.npy, ...: what the store has and the folders have not

The store is written first; a file that is missing after a kill is written at the next update. Each folder has a list of
its episodes, `.collected`, which is written after them: an episode that is not listed is written again, under the same
name. A listed file that was moved away stays away, and a folder that was removed is filled again.
"""

from pathlib import Path
from typing import Self

from plaudit.data.disk import disk_errors, write_atomic
from plaudit.data.formats import npy, pkl
from plaudit.data.formats.base import FileLayout, LabeledEpisode, WriteOptions
from plaudit.data.store import Store, is_store
from plaudit.errors import BadFile, TargetNotEmpty
from plaudit.files import MAX_JSON, Root

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
