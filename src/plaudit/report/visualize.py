"""Every frame that is labeled a success, as a picture: what a reward model is about to learn, to be seen first."""

from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from plaudit.data.cameras import name_of_camera
from plaudit.data.store import Store
from plaudit.errors import DataError, did_you_mean
from plaudit.files import file_name
from plaudit.types import Episode, ProgressFn


def visualize_positives(
    store: Store, folder: Path, cameras: Sequence[str], sources: Collection[str], progress: ProgressFn = iter
) -> int:
    """`positive_000001_frame049.png` and so on, into a folder that may be there; returns how many.

    An episode goes by the folder and the number that its file had, and by its id where it was recorded here. Where
    there are several cameras, their names come last.
    """
    folder.mkdir(parents=True, exist_ok=True)
    count = 0
    for episode_id in progress(store.ids):
        episode, labels = store.episode(episode_id), store.ledger.labels(episode_id, sources)
        if labels is None:
            continue
        first = episode.observed.start or 0  # frames are counted as they were recorded
        for frame in np.flatnonzero(labels.targets[episode.observed] == 1):
            for camera in cameras:
                images = episode.frames.get(name_of_camera(camera, episode.frames, cameras))
                if images is None:
                    raise DataError(
                        f"episode {episode_id} has no camera '{camera}'; {did_you_mean(camera, episode.frames)}"
                    )
                tail = f"_{file_name(camera)}" if len(cameras) > 1 else ""
                path = folder / f"{_name(episode, episode_id)}_frame{frame:03d}{tail}.png"
                Image.fromarray(np.ascontiguousarray(images[first + frame])).save(path)
                count += 1
    return count


def _name(episode: Episode, episode_id: int) -> str:
    named, kind = episode.meta.get("file"), episode.meta.get("folder")
    if not isinstance(named, str):
        return f"positive_{episode_id:06d}"
    return file_name(f"{kind}_{named.removeprefix('episode_')}")
