"""Episodes of the ManiSkill collectors: `success/episode_000000.pkl`, `failure/episode_000001.pkl`.

`{"frames": [{"obs": {"main_images", "states"}, "action", "reward", "done", "grasp", "success"}, ...], "success",
"label"}`. A frame is written after its step, so the first observation of the episode is missing: T frames become T
steps with `padded="first"`.
"""

import pickle  # noqa: TID251 - for writing only
from pathlib import Path
from typing import Any

import numpy as np

from plaudit.data.formats import base
from plaudit.data.formats.images import choose, to_frames
from plaudit.data.unpickle import DAMAGED, unpickle
from plaudit.errors import BadFile, DataError
from plaudit.files import Root, readable
from plaudit.types import MAIN_CAMERAS, AnyArray, Episode, Labels, Origin, name_of_camera

SUFFIX, MAIN = "_images", "main"


def _load(root: Root, options: base.ReadOptions, file: Path, index: int) -> tuple[Episode, Labels]:
    with readable(file, DAMAGED.format("pickle", "{}")), root.open(file) as opened:
        tree = unpickle(opened, file)
    with readable(file, "this is not an episode of frames with obs, action, reward, done, success: {}"):
        return _convert(tree, root, file, index, options)


def _convert(tree: Any, root: Root, file: Path, index: int, options: base.ReadOptions) -> tuple[Episode, Labels]:
    steps = tree["frames"]
    seen = [_images(step["obs"]) for step in steps]
    if not seen[0]:
        raise BadFile(file, f"no camera in its observations; they have: {', '.join(map(str, steps[0]['obs']))}")
    nbytes = sum(np.asarray(image[camera]).nbytes for camera in seen[0] for image in seen)
    base.check_not_repeated(nbytes, root.size(file), file)
    frames = {}
    for camera in seen[0]:
        images = to_frames(np.stack([_single(image[camera], 3) for image in seen]), file, camera)
        frames[camera] = np.concatenate([images[:1], images])
    states = np.stack([_single(step["obs"].get("states", np.zeros(0)), 1) for step in steps])
    success = np.array([bool(step["success"]) for step in steps])
    rewards = np.array([float(np.asarray(step["reward"]).reshape(())) for step in steps], np.float32)
    episode = Episode.of(
        frames=frames,
        state=np.concatenate([states[:1], states]),
        actions=np.stack([_single(step["action"], 1) for step in steps]),
        privileged={
            "success": success,
            "grasp": np.array([bool(step.get("grasp", False)) for step in steps]),
            "reward": rewards,
        },
        terminated=bool(steps[-1].get("terminated", steps[-1]["done"] and success[-1])),
        padded="first",
        task=options.task,
        fps=options.fps,
        origin=Origin("pkl", str(root.path), index, base.file_digest(root, file)),
        meta={"folder": file.parent.name, "file": file.stem},
    )
    return episode, Labels.from_targets(np.append(np.nan, success), "simulator")


def _images(obs: Any) -> dict[str, Any]:
    """Camera -> image: of keys like `main_images`, of the main camera's other names, and of a dictionary `images`."""
    keys = {**obs, **(obs["images"] if isinstance(obs.get("images"), dict) else {})}
    nested = keys.keys() - obs.keys()
    cameras = (key for key in keys if key.endswith(SUFFIX) or key in MAIN_CAMERAS or key in nested)
    return {key.removesuffix(SUFFIX): keys[key] for key in cameras if keys[key] is not None}


def _single(value: Any, ndim: int) -> AnyArray:
    """One environment's value, without the leading axis of a batch of one."""
    array = np.asarray(value)
    return array[0] if array.ndim == ndim + 1 and len(array) == 1 else array


def encode(item: base.LabeledEpisode, options: base.WriteOptions) -> base.EpisodeFile | None:
    """The file of one episode; None if no step is known to be a success or a failure."""
    outcome = _outcome(item)
    if outcome is None:
        return None
    reward, success = outcome
    cameras = choose(options.cameras, list(item.episode.frames), f"episode {item.id}")
    if not cameras:
        raise DataError(f"episode {item.id} has no camera, and this layout needs one")
    tree = {
        "frames": _steps(item.episode, cameras, reward, success),
        "success": bool(success.any()),
        "label": int(success.any()),
    }
    return base.EpisodeFile(bool(success.any()), pickle.dumps(tree, protocol=4))


def _outcome(item: base.LabeledEpisode) -> tuple[AnyArray, AnyArray] | None:
    """Reward and success of every step: by the newest labels, or what the simulator knew."""
    labels, success = item.labels, item.episode.success
    if labels is not None and labels.labeled[1:].all():
        success = labels.success[1:]
    if success is None:
        return None
    by_simulator = labels is None or labels.judge.source == "simulator"
    reward = item.episode.privileged.get("reward") if by_simulator else None
    return success.astype(np.float32) if reward is None else reward, success


def _steps(episode: Episode, cameras: list[str], reward: AnyArray, success: AnyArray) -> list[dict[str, Any]]:
    """The first camera is the main one, unless one is called so, by any of its names."""
    named = name_of_camera(MAIN, cameras)
    main = named if named in cameras else cameras[0]
    names = {camera: f"{MAIN if camera == main else camera}{SUFFIX}" for camera in cameras}
    grasp = episode.privileged.get("grasp", np.zeros(episode.steps, bool))
    return [
        {
            "obs": {
                **{names[c]: np.array(episode.frames[c][t + 1]) for c in cameras},
                "states": np.array(episode.state[t + 1]),
            },
            "action": np.array(episode.actions[t]),
            "reward": float(reward[t]),
            "done": t == episode.steps - 1,
            "grasp": bool(grasp[t]),
            "success": bool(success[t]),
        }
        for t in range(episode.steps)
    ]


LAYOUT = base.FileLayout("pkl", "success", "failure", "episode_{:06d}.pkl", False, _load, encode)
