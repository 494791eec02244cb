"""Trajectories of images and success labels: `positive/000000.npy`, `negative/000000.npy`.

Each file is a dictionary that `np.save` pickled: `{"images": {camera: float [T, 3, H, W] in [0, 1]}, "labels": [T]}`.
T frames become T-1 steps with T labels. There are no actions and no states.
"""

import io
from pathlib import Path

import numpy as np

from plaudit.data.formats import base
from plaudit.data.formats.images import choose, to_frames
from plaudit.data.unpickle import DAMAGED, read_npy
from plaudit.errors import BadFile, InvalidEpisode
from plaudit.files import Root, readable
from plaudit.types import Episode, Labels, Origin


def _load(root: Root, options: base.ReadOptions, file: Path, index: int) -> tuple[Episode, Labels]:
    with readable(file, DAMAGED.format(".npy file", "{}")), root.open(file) as opened:
        tree = read_npy(opened, file)
    if not isinstance(tree, dict) or not isinstance(tree.get("images"), dict) or "labels" not in tree:
        raise BadFile(file, "a trajectory is a dictionary of 'images' and 'labels', this is not one")
    labels = np.asarray(tree["labels"], np.float32).reshape(-1)
    if not ((labels >= 0) & (labels <= 1)).all():
        raise BadFile(file, "labels must lie within [0, 1]")
    images = {str(camera): np.asarray(values) for camera, values in tree["images"].items()}
    base.check_not_repeated(sum(values.nbytes for values in images.values()), root.size(file), file)
    frames = {camera: to_frames(values, file, camera) for camera, values in images.items()}
    if not frames:
        raise BadFile(file, "this trajectory has no camera")
    for camera, images in frames.items():
        if len(images) != len(labels):
            raise BadFile(file, f"camera '{camera}' has {len(images)} frames for {len(labels)} labels")
    try:
        episode = Episode.of(
            frames=frames,
            actions=np.zeros((len(labels) - 1, 0)),
            task=options.task,
            fps=options.fps,
            origin=Origin("npy", str(root.path), index, base.file_digest(root, file)),
            meta={"folder": file.parent.name, "file": file.stem},
        )
    except (InvalidEpisode, ValueError) as error:
        raise BadFile(file, f"{error}") from error
    return episode, Labels.from_targets(labels, "dataset")


def encode(item: base.LabeledEpisode, options: base.WriteOptions) -> base.EpisodeFile | None:
    """The file of one episode; None where a frame has no label."""
    episode = item.episode
    if item.labels is None or np.isnan(item.labels.targets[episode.observed]).any():
        return None
    cameras = choose(options.cameras, list(episode.frames), f"episode {item.id}")
    tree = {
        "images": {
            c: (episode.frames[c][episode.observed].transpose(0, 3, 1, 2) / np.float32(255)).astype(np.float32)
            for c in cameras
        },
        "labels": item.labels.targets[episode.observed],
    }
    file = io.BytesIO()
    pickled = np.array(tree, dtype=object)  # the layout is a dictionary in an .npy file: it can only be a pickle
    np.save(file, pickled, allow_pickle=True)
    return base.EpisodeFile(bool(tree["labels"].max() >= 0.5), file.getvalue())


LAYOUT = base.FileLayout("npy", "positive", "negative", "{:06d}.npy", True, _load, encode)
