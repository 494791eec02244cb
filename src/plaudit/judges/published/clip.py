"""What a published model sees of an episode: one camera, a task, and the frames that are scored."""

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from plaudit.errors import JudgeError
from plaudit.judges.calibration import PlattScaling, fingerprint_of
from plaudit.judges.vlm.images import Size
from plaudit.judges.vlm.prompt import CONTROL
from plaudit.types import AnyArray, ByteArray, Episode, FloatArray, JudgeId


@dataclass(frozen=True, eq=False)
class Clip:
    """What a model may see of an episode."""

    number: int  # its place in the list
    task: str
    frames: ByteArray  # uint8 [R, H, W, 3], often still on disk
    fps: float  # 0: not known
    shown: AnyArray  # [F] frames that are scored

    @property
    def size(self) -> Size:
        return self.frames.shape[1], self.frames.shape[2]


def identify(config: Any, parts: Collection[str], *facts: str) -> tuple[str, JudgeId, PlattScaling]:
    """The fingerprint of a judge without its calibration, its id, and its calibration.

    parts: keys of the config that change the scores. facts: about its weights
    """
    resolved = config.resolved()
    keys = config.model_dump_json(include={*parts, "type", "camera", "task", "frame_stride"})
    uncalibrated = hashlib.sha256("\n".join((keys, *facts)).encode()).hexdigest()[:16]
    fingerprint = fingerprint_of(uncalibrated, resolved.calibration)
    judge = JudgeId(config.type, fingerprint, resolved.rule.key())
    return uncalibrated, judge, resolved.calibration or PlattScaling()


def make_clip(config: Any, number: int, episode: Episode) -> Clip:
    """What the model sees of an episode; an error where the episode has no task or not that camera.

    config: has camera, task, frame_stride, and perhaps fps
    """
    task = (config.task or episode.task).strip()
    if not task:
        raise JudgeError("this episode has no task text; give it one, or set task: in the judge's config")
    if control := CONTROL.search(task):
        raise JudgeError(f"this episode's task holds {control[0]}, a control token of the model; take it out")
    names = ", ".join(sorted(episode.frames)) or "none"
    if not config.camera and len(episode.frames) != 1:
        raise JudgeError(f"this model sees one camera, and the episode has: {names}; choose one with camera=NAME")
    camera = config.camera or next(iter(episode.frames))
    if camera not in episode.frames:
        raise JudgeError(f"the judge looks at camera '{camera}', which this episode does not have; it has: {names}")
    frames = episode.frames[camera][episode.observed]
    last = len(frames) - 1
    fps = getattr(config, "fps", None) or episode.fps
    return Clip(number, task, frames, fps, np.union1d(np.arange(0, last, config.frame_stride), last))


def spread(episode: Episode, clip: Clip, values: FloatArray) -> FloatArray:
    """[T+1] of all frames, from those that are shown: the value of the last one before."""
    every = np.full(episode.steps + 1, np.nan, np.float32)
    place = np.searchsorted(clip.shown, np.arange(len(clip.frames)), side="right") - 1
    every[episode.observed] = values[place]
    return every


def probabilities(calibration: PlattScaling, prob: FloatArray) -> FloatArray:
    """Calibrated probabilities."""
    inside = np.clip(prob.astype(np.float64), 1e-7, 1 - 1e-7)
    return calibration(np.log(inside / (1 - inside)))
