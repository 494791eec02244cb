"""Negative controls: episodes made up so that no frame may be called a success. A judge that does has learned a trick.

    still       the first frame, all the time          calls it: a clock, or something about how episodes begin
    reversed    the episode backwards, from the moment its success is undone
                                                       calls it: "something moved", or the memory of a success
    truncated   the episode, cut before its success    calls it: the end of an episode is a success
    blank       black, white, grey and noise           calls it: whatever it has never seen
    wrong instruction
                the episode, with another task         calls it: any success, or anything at all; for judges that read

Backwards, an episode begins with its success, and a judge of single frames is right to say so; what it is asked about
is what comes after, failure frames in the wrong order. The few frames before the first success are asked about in
neither, since people who label disagree there.

A frame is called where its probability reaches the threshold, whatever rule makes labels of the frames afterwards: a
rule that asks for two frames of three, or for one cutoff, hides some mistakes and spreads others, and what is tried is
the judge. Of one that only says yes and no, the frames it says yes to are called.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from plaudit.errors import JudgeError
from plaudit.rule import above_threshold
from plaudit.types import BoolArray, ByteArray, Episode, FloatArray

MOST_EPISODES = 20
UNRELATED = "tie the laces of the left shoe into a bow"  # a wrong instruction for any robot that we know of
MARGIN = 3  # frames before the first success that nobody is asked about
_BLANK_FRAMES = 8

Score = Callable[[Episode], FloatArray]  # a judge: P(success) of each frame, [T+1]


@dataclass(frozen=True, eq=False)
class Control:
    """An episode, and the frames of it that must not be called."""

    name: str
    episode: Episode
    asked: BoolArray  # [T+1]


@dataclass(frozen=True)
class ControlResult:
    """What a judge said to all controls of one name."""

    name: str
    frames: int  # that it was asked about; 0 where no episode could be made into this control
    called: int  # of these, called success
    limit: float  # share that may be

    @property
    def rate(self) -> float:
        return self.called / self.frames if self.frames else 0.0

    @property
    def passed(self) -> bool:
        return self.rate <= self.limit


def run_controls(
    score: Score,
    episodes: Sequence[tuple[Episode, FloatArray]],
    threshold: float,
    limit: float = 0.05,
    seed: int = 0,
) -> list[ControlResult]:
    """Made of held-out episodes and their truth, [T+1] of 1, 0 and NaN; of at most 20 of those that succeed."""
    controls = make_controls(episodes, seed)
    return tally(((control, score(control.episode)) for control in controls), threshold, limit)


def make_controls(
    episodes: Sequence[tuple[Episode, FloatArray]], seed: int = 0, wrong_task: str | None = None
) -> Iterator[Control]:
    """One at a time, since each is as large as its episode.

    wrong_task: an instruction that none of them followed, for a judge that reads it
    """
    rng = np.random.default_rng(seed)
    usable = [(episode, truth) for episode, truth in episodes if _first_success(episode, truth) is not None]
    if not usable:
        raise JudgeError(f"controls are made from episodes that succeed, and none of these {len(episodes)} does")
    chosen = [usable[i] for i in np.sort(rng.permutation(len(usable))[:MOST_EPISODES])]
    for make in (still, reversed_, truncated):
        yield from (control for one in chosen if (control := make(*one)) is not None)
    yield from blank(chosen[0][0], rng)
    if wrong_task is not None:
        yield from (wrong_instruction(episode, truth, wrong_task) for episode, truth in chosen)


def tally(answers: Iterable[tuple[Control, FloatArray]], threshold: float, limit: float = 0.05) -> list[ControlResult]:
    """From P(success) of each frame of each control, [T+1]; a frame of which nothing was said, NaN, was not called."""
    counts: dict[str, list[int]] = {name: [0, 0] for name in ("still", "reversed", "truncated")}
    for control, said in answers:
        if np.shape(said) != control.asked.shape:
            raise JudgeError(
                f"the judge gave {list(np.shape(said))} probabilities for an episode of {len(control.asked)} frames"
            )
        count = counts.setdefault(control.name, [0, 0])
        count[0] += int(control.asked.sum())
        count[1] += int(above_threshold(said, threshold)[control.asked].sum())
    return [ControlResult(name, frames, called, limit) for name, (frames, called) in counts.items()]


def failed(results: Sequence[ControlResult]) -> list[str]:
    """A sentence for each control that was called success too often."""
    return [
        f"{r.name}: {r.rate:.0%} of {r.frames:,} frames called success, at most {r.limit:.0%} may be"
        for r in results
        if not r.passed
    ]


# Each is made from an episode that succeeds, and is None where this one cannot be made into it.


def still(episode: Episode, truth: FloatArray) -> Control | None:
    """The first frame for the whole episode, or the first that has a truth; not for one that begins with success."""
    first = _first_success(episode, truth)
    failure = np.flatnonzero((_recorded(episode) & (truth == 0))[:first])
    if first is None or not len(failure):
        return None
    stopped = _pick(episode, np.full(episode.steps + 1, failure[0]), repeated="none")
    return Control("still", stopped, np.ones(episode.steps + 1, bool))


def reversed_(episode: Episode, truth: FloatArray, margin: int = MARGIN) -> Control | None:
    """Backwards; asked about what came before the success, and now comes after."""
    first = _first_success(episode, truth)
    if first is None or first - margin < 1:
        return None
    asked = _recorded(episode) & (truth == 0)
    asked[first - margin :] = False
    swapped = {"none": "none", "first": "last", "last": "first"}[episode.repeated]
    backwards = _pick(episode, np.arange(episode.steps, -1, -1), repeated=swapped)
    return Control("reversed", backwards, asked[::-1])


def truncated(episode: Episode, truth: FloatArray, margin: int = MARGIN) -> Control | None:
    """Cut `margin` frames before the first success; not where fewer than two frames would be left."""
    first = _first_success(episode, truth)
    if first is None or first - margin < 2:
        return None
    kept = np.arange(first - margin)
    cut = _pick(episode, kept, repeated=episode.repeated.replace("last", "none"))
    return Control("truncated", cut, (_recorded(episode) & (truth == 0))[kept])


def blank(episode: Episode, rng: np.random.Generator) -> list[Control]:
    """Four short episodes in which the cameras show nothing, and the robot stands where this episode begins."""
    start = np.full(_BLANK_FRAMES, _recorded(episode).argmax())
    base = _pick(episode, start, repeated="none")
    looks: dict[str, Callable[[ByteArray], ByteArray]] = {
        "black": lambda frames: np.zeros_like(frames),
        "white": lambda frames: np.full_like(frames, 255),
        "grey": lambda frames: np.full_like(frames, 128),
        "noise": lambda frames: rng.integers(0, 256, frames.shape, np.uint8),
    }
    return [
        Control(
            f"blank {name}",
            replace(base, frames={camera: look(frames) for camera, frames in base.frames.items()}),
            np.ones(_BLANK_FRAMES, bool),
        )
        for name, look in looks.items()
    ]


def wrong_instruction(episode: Episode, truth: FloatArray, task: str) -> Control:
    """As it was, told to do something else: not even its success is one."""
    return Control("wrong instruction", replace(episode, task=task), _recorded(episode) & ~np.isnan(truth))


def _pick(episode: Episode, frames: np.ndarray, *, repeated: str) -> Episode:
    """The episode made of these frames and their states. Its actions say nothing, and no simulator knows of it."""
    steps = len(frames) - 1
    return Episode.of(
        frames={camera: images[frames] for camera, images in episode.frames.items()},
        state=episode.state[frames],
        actions=np.zeros((steps, episode.actions.shape[1])),
        task=episode.task,
        fps=episode.fps,
        robot=episode.robot,
        repeated=repeated,
    )


def _recorded(episode: Episode) -> BoolArray:
    """[T+1]"""
    seen = np.zeros(episode.steps + 1, bool)
    seen[episode.recorded] = True
    return seen


def _first_success(episode: Episode, truth: FloatArray) -> int | None:
    if truth.shape != (episode.steps + 1,):
        raise JudgeError(f"truth must be [{episode.steps + 1}], one a frame, got {list(truth.shape)}")
    hits = np.flatnonzero(_recorded(episode) & (truth == 1))
    return int(hits[0]) if len(hits) else None
