"""Negative controls: synthetic episodes in which no frame shows success. A judge that predicts one uses a shortcut.

    control         what it is                           what a judge that predicts success uses
    frozen frame    the first frame, all the time        a clock, or something about how episodes begin
    time reversed   the episode backwards, from the moment its success is undone
                                                         "something moved", or it remembers a success
    truncated       the episode, cut before its success  the end of an episode
    blank           black, white, gray and noise         images it has never seen
    wrong task      the episode, with another task       any success, or anything; for judges that use the task text

An exam (exam.py) also shows the same episodes with changed images, in which failure frames still show failure: one
camera dark, brighter, darker, cropped, shifted; and, if given, episodes of another task.

Backwards, an episode begins with its success, and a judge of single frames may say so; only the frames after it count.
The few frames before the first success count in no control, since people disagree about them. Frames are compared with
the threshold, whatever the decision rule: a rule of two frames of three hides some mistakes and spreads others.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from plaudit.data.store import Store
from plaudit.errors import JudgeError
from plaudit.judges.certificate import MAX_FPR, ControlResult
from plaudit.judges.labeling import BATCH, batches, label_mapping
from plaudit.judges.metrics import EpisodePrediction, frame_rate, nan_to_none
from plaudit.protocols import Judge
from plaudit.rule import release
from plaudit.types import BoolArray, ByteArray, Episode, FloatArray, Labels, ProgressFn

MAX_EPISODES = 20
UNRELATED_TASK = "tie the laces of the left shoe into a bow"  # a wrong task for any robot that we know of
ONSET_MARGIN = 3  # frames before the first success that do not count
_BLANK_FRAMES = 8
_ALWAYS = ("frozen frame", "time reversed", "truncated")  # reported even where no episode could be made into one


@dataclass(frozen=True, eq=False)
class NegativeControl:
    """An episode, and the frames of it that must not be predicted a success."""

    name: str
    episode: Episode
    mask: BoolArray  # [T+1]
    success: BoolArray | None = None  # [T+1] frames that do show success; None: there are none


@dataclass(frozen=True, eq=False)
class ScoredControl:
    """A judge's labels of a control, without its images."""

    name: str
    labels: Labels
    mask: BoolArray  # [T+1] as in NegativeControl, and the next
    success: BoolArray | None


Labeled = Sequence[tuple[Episode, FloatArray]]  # episodes, and their targets [T+1] of 1, 0 and NaN
ControlMaker = Callable[[], NegativeControl | None]


def run_controls(
    judge: Judge,
    episodes: Labeled,
    threshold: float,
    *,
    seed: int = 0,
    batch_size: int = BATCH,
    progress: ProgressFn = iter,
) -> tuple[list[ControlResult], list[str]]:
    """What a judge predicts for controls made of these episodes, and why it could not score some of them.

    episodes: held out; at most 20 of those that succeed are used
    """
    makers = control_makers(episodes, seed=seed)
    scored, failures = score_controls(judge, makers, batch_size=batch_size, progress=progress)
    return control_results(scored, threshold), failures


def score_controls(
    judge: Judge, makers: Sequence[ControlMaker], *, batch_size: int = BATCH, progress: ProgressFn = iter
) -> tuple[list[ScoredControl], list[str]]:
    """Make these controls, a few at a time, and have a judge label them; and why it could not score some of them."""
    scored: list[ScoredControl] = []
    failures: list[str] = []
    for few in batches(progress(makers), batch_size):
        controls = dict(enumerate(control for make in few if (control := make()) is not None))
        labels, failed = label_mapping(judge, {n: control.episode for n, control in controls.items()})
        failures += map(str, failed.values())
        for n, one in labels.items():
            control = controls[n]
            scored.append(ScoredControl(control.name, release(one, judge.rule), control.mask, control.success))
    return scored, failures


def control_results(scored: Sequence[ScoredControl], threshold: float, fpr: float = 0.0) -> list[ControlResult]:
    """The false-positive rate of the controls of each name. fpr: the judge's own, which is added to the limit where
    only the images are changed"""

    def predictions(masks: Iterable[tuple[ScoredControl, BoolArray]], target: int) -> list[EpisodePrediction]:
        probs = [one.labels.frame_probs[mask] for one, mask in masks]
        probs = [prob[~np.isnan(prob)] for prob in probs]
        return [EpisodePrediction(prob, np.full(len(prob), target), n) for n, prob in enumerate(probs)]

    results = []
    for name in dict.fromkeys([*_ALWAYS, *(one.name for one in scored)]):
        of_name = [one for one in scored if one.name == name]
        failures = predictions(((one, one.mask) for one in of_name), 0)
        successes = predictions(((one, one.success) for one in of_name if one.success is not None), 1)
        recall = frame_rate(successes, threshold, 1).value  # NaN: it labeled no success frame
        results.append(
            ControlResult(
                name=name,
                episodes=len(of_name),
                frames=sum(len(one.target) for one in failures),
                fpr=frame_rate(failures, threshold, 0),
                max_fpr=MAX_FPR + (0 if np.isnan(recall) else fpr),
                recall=nan_to_none(recall),
            )
        )
    return results


def control_makers(episodes: Labeled, task: str | None = None, seed: int = 0) -> list[ControlMaker]:
    """Each makes one control, or None where its episode cannot be made into it: each is as large as its episode.

    task: one that no episode shows, for a judge that uses the task text
    """
    rng = np.random.default_rng(seed)
    chosen = choose_successes(episodes, rng)
    makers = [partial(make, *one) for make in (frozen_frame, time_reversed, truncate) for one in chosen]
    blanks: list[ControlMaker] = [lambda control=control: control for control in blank_images(chosen[0][0], rng)]
    wrong = [] if task is None else [partial(wrong_task_control, *one, task) for one in chosen]
    return [*makers, *blanks, *wrong]


def exam_makers(episodes: Labeled, task: str | None = None, other_task: Store | None = None) -> list[ControlMaker]:
    """All controls of an exam: also the same episodes with changed images, in which what shows failure still does, and
    episodes of a store of another task."""
    makers, chosen = control_makers(episodes, task), choose_successes(episodes, np.random.default_rng(0))
    cameras = sorted({camera for episode, _ in chosen for camera in episode.frames})
    for camera in cameras if len(cameras) > 1 else []:  # with the only one dark, it is a blank
        makers += [partial(_changed_images, f"{camera} dark", np.zeros_like, camera, *one) for one in chosen]
    for name, change in SHIFTS.items():
        makers += [partial(_changed_images, name, change, None, *one) for one in chosen]
    if other_task is not None:  # with this task's text, for a judge that uses it
        shown = None if task is None else episodes[0][0].task
        others = np.random.default_rng(0).permutation(list(other_task.ids))[:MAX_EPISODES].tolist()
        makers += [partial(another_task, other_task, i, shown) for i in others]
    return makers


def choose_successes(episodes: Labeled, rng: np.random.Generator) -> Labeled:
    """At most 20 random successful episodes."""
    usable = [(episode, target) for episode, target in episodes if _first_success(episode, target) is not None]
    if not usable:
        raise JudgeError(f"controls are made from episodes that succeed, and none of these {len(episodes)} does")
    return [usable[i] for i in np.sort(rng.permutation(len(usable))[:MAX_EPISODES])]


# Each is made from an episode that succeeds, and is None where this one cannot be made into it.


def frozen_frame(episode: Episode, target: FloatArray) -> NegativeControl | None:
    """The first frame with a target for the whole episode; not of an episode that begins with success."""
    first = _first_success(episode, target)
    failure = np.flatnonzero(_failure_mask(episode, target)[:first])
    if first is None or not len(failure):
        return None
    frozen = _pick(episode, np.full(episode.steps + 1, failure[0]), padded="none")
    return NegativeControl("frozen frame", frozen, np.ones(episode.steps + 1, bool))


def time_reversed(episode: Episode, target: FloatArray, margin: int = ONSET_MARGIN) -> NegativeControl | None:
    """The episode reversed; the frames before the success, now after it, are counted."""
    first = _first_success(episode, target)
    if first is None or first - margin < 1:
        return None
    mask = _failure_mask(episode, target)
    mask[first - margin :] = False
    swapped = {"none": "none", "first": "last", "last": "first"}[episode.padded]
    backwards = _pick(episode, np.arange(episode.steps, -1, -1), padded=swapped)
    return NegativeControl("time reversed", backwards, mask[::-1])


def truncate(episode: Episode, target: FloatArray, margin: int = ONSET_MARGIN) -> NegativeControl | None:
    """Cut `margin` frames before the first success; not where fewer than two frames would be left."""
    first = _first_success(episode, target)
    if first is None or first - margin < 2:
        return None
    frames = np.arange(first - margin)
    cut = _pick(episode, frames, padded=episode.padded.replace("last", "none"))
    return NegativeControl("truncated", cut, _failure_mask(episode, target)[frames])


def blank_images(episode: Episode, rng: np.random.Generator) -> list[NegativeControl]:
    """Four short episodes in which the cameras show nothing, and the robot stands where this episode begins."""
    base = _pick(episode, np.full(_BLANK_FRAMES, _observed_mask(episode).argmax()), padded="none")
    fills: dict[str, Callable[[ByteArray], ByteArray]] = {
        "black": np.zeros_like,
        "white": lambda frames: np.full_like(frames, 255),
        "gray": lambda frames: np.full_like(frames, 128),
        "noise": lambda frames: rng.integers(0, 256, frames.shape, np.uint8),
    }
    controls = []
    for name, fill in fills.items():
        blank = replace(base, frames={camera: fill(frames) for camera, frames in base.frames.items()})
        controls.append(NegativeControl(f"blank {name}", blank, np.ones(_BLANK_FRAMES, bool)))
    return controls


def wrong_task_control(episode: Episode, target: FloatArray, task: str) -> NegativeControl:
    """The episode with another task text, so no frame is a success."""
    return NegativeControl("wrong task", replace(episode, task=task), _observed_mask(episode) & ~np.isnan(target))


def another_task(store: Store, episode_id: int, task: str | None) -> NegativeControl:
    """An episode of a store that shows another task, with the instruction of this one if the judge uses it."""
    episode = store.episode(episode_id)
    shown = episode if task is None else replace(episode, task=task)
    return NegativeControl("another task", shown, _observed_mask(episode))


# Changed images


def _scale_brightness(frames: ByteArray, factor: float) -> ByteArray:
    return np.clip(np.rint(np.arange(256) * factor), 0, 255).astype(np.uint8)[frames]


def _window(frames: ByteArray, top: float, left: float, size: float) -> ByteArray:
    """A part of each image, by its place and size as fractions, in the size of all of it; what lies outside repeats the
    edge."""
    height, width = frames.shape[1:3]
    rows = np.clip((top + (np.arange(height) + 0.5) / height * size) * height, 0, height - 1).astype(int)
    columns = np.clip((left + (np.arange(width) + 0.5) / width * size) * width, 0, width - 1).astype(int)
    return frames[:, rows[:, None], columns]


SHIFTS: Mapping[str, Callable[[ByteArray], ByteArray]] = {
    "brighter": partial(_scale_brightness, factor=1.25),
    "darker": partial(_scale_brightness, factor=0.75),
    "cropped": partial(_window, top=0.05, left=0.05, size=0.9),
    "shifted": partial(_window, top=0.05, left=0.05, size=1.0),
}


def _changed_images(
    name: str, change: Callable[[ByteArray], ByteArray], camera: str | None, episode: Episode, target: FloatArray
) -> NegativeControl | None:
    """camera: the one that changes; None: all of them"""
    changed = episode.frames if camera is None else [camera]
    if not set(changed) <= set(episode.frames):
        return None
    frames = {**episode.frames, **{one: change(episode.frames[one]) for one in changed}}
    first, mask = _first_success(episode, target), _failure_mask(episode, target)
    assert first is not None
    mask[max(first - ONSET_MARGIN, 0) : first] = False
    shows = _observed_mask(episode) & (target == 1)
    return NegativeControl(name, replace(episode, frames=frames), mask, shows) if mask.any() else None


def _pick(episode: Episode, frames: np.ndarray, *, padded: str) -> Episode:
    """The episode made of these frames and their states. Its actions are zeros, and nothing is privileged."""
    return Episode.of(
        frames={camera: images[frames] for camera, images in episode.frames.items()},
        state=episode.state[frames],
        actions=np.zeros((len(frames) - 1, episode.actions.shape[1])),
        task=episode.task,
        fps=episode.fps,
        robot=episode.robot,
        padded=padded,
    )


def _observed_mask(episode: Episode) -> BoolArray:
    """[T+1]"""
    mask = np.zeros(episode.steps + 1, bool)
    mask[episode.observed] = True
    return mask


def _failure_mask(episode: Episode, target: FloatArray) -> BoolArray:
    """[T+1]"""
    return _observed_mask(episode) & (target == 0)


def _first_success(episode: Episode, target: FloatArray) -> int | None:
    if target.shape != (episode.steps + 1,):
        raise JudgeError(f"target must be [{episode.steps + 1}], one a frame, got {list(target.shape)}")
    hits = np.flatnonzero(_observed_mask(episode) & (target == 1))
    return int(hits[0]) if len(hits) else None
