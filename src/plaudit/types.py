"""The nouns: what robots, judges, stores and learners hand to each other. Frozen, numpy only.

Time runs like this, for an episode of T actions:

    frame    0      1      2    ...   T          T+1 observations
              \\    / \\    / \\
    action     0       1       2  ...            T actions
    reward     0       1       2  ...            reward[t] is for frame t+1, what action t led to

A judge looks at frames, a learner wants rewards of actions, and the two are off by one. So what a judge says about
frames is `[T+1]` (`Scores`, `Labels`), what belongs to actions is `[T]`, and `success[t+1]` is what action t led to.

Some data sets record one observation less. LeRobot keeps T rows of (observation, action) and not what the last action
led to; the pickles of the ManiSkill collectors keep T rows of (action, observation after it) and not the first. The
missing observation is filled with its neighbor, and the episode says so in `padded`: replay uses no transition through
it, and no judge scores it.
"""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from plaudit.errors import DataError, InvalidEpisode

FloatArray = NDArray[np.float32]
ByteArray = NDArray[np.uint8]
BoolArray = NDArray[np.bool_]
AnyArray = NDArray[Any]

ProgressFn = Callable[[Sequence[Any]], Iterable[Any]]  # goes through a sequence and shows how far it is; `iter`: silent

Padding = Literal["none", "first", "last"]

ANY_TASK = "*"  # the instruction of a warm-up, which every policy accepts
POLICY, HUMAN = 0, 1  # values of Episode.control_mode

OUR_MAIN_CAMERA = "front"
MAIN_CAMERAS = ("main", "main_images", "base_camera", OUR_MAIN_CAMERA)  # names of the main camera in other stacks


def name_of_camera(camera: str, there: Collection[str], others: Collection[str] = ()) -> str:
    """What a camera is called among those that are there: its own name, or the one other name of the main one.

    RLinf's `.pkl` episodes have `main_images`, which is read as `main`, its `.npy` trajectories `base_camera`, the
    built-in tasks `front`. So episodes of one can be learned from and judged as another's.

    others: cameras that are asked for besides, whose names are taken
    """
    if camera in there or camera not in MAIN_CAMERAS:
        return camera
    same = [name for name in MAIN_CAMERAS if name in there and name not in others]
    return same[0] if len(same) == 1 else camera


@dataclass(frozen=True, eq=False)
class Observation:
    """What the robot sees at one moment; with a leading N in every array, what N robots see."""

    images: Mapping[str, ByteArray]  # camera -> uint8 [H, W, 3]
    state: FloatArray  # [S] joint angles or whatever the robot measures, in its own units
    # The observation one step earlier, for policies with a history; None: this is the first of its episode.
    previous: "Callable[[], Observation] | None" = None
    task: str = ""  # the instruction, for policies that take one

    def window(self, history: int, cameras: Iterable[str]) -> "Observation":
        """This one and `history` earlier ones, the newest first: images [..., 1 + history, H, W, 3] of these cameras,
        states [..., 1 + history, S]. Before the first observation of an episode, the first is repeated, as in judges.
        Without a history, there is no such dimension."""
        if not history:
            return self
        seen: list[Observation] = [self]
        while len(seen) <= history:
            previous = seen[-1].previous
            seen.append(seen[-1] if previous is None else previous())
        images = {camera: np.stack([each.images[camera] for each in seen], axis=-4) for camera in cameras}
        return Observation(images, np.stack([each.state for each in seen], axis=-2), task=self.task)

    def __getitem__(self, index: Any) -> "Observation":
        """What one of N robots sees, or some."""
        previous = self.previous
        images = {camera: frames[index] for camera, frames in self.images.items()}
        earlier = None if previous is None else lambda: previous()[index]
        return Observation(images, self.state[index], earlier, self.task)


@dataclass(frozen=True)
class EnvSpec:
    """The sizes of what a robot or an env observes and takes, which policies, learners and recordings are built for."""

    state_dim: int
    action_dim: int
    cameras: Mapping[str, tuple[int, int]]  # name -> (H, W); {} for a learner of states
    fps: float = 0.0  # control steps a second; 0: not of interest
    name: str = ""  # of the robot, as episodes have it
    max_steps: int = 0  # of an episode; 0: not of interest

    def policy_fields(self) -> dict[str, Any]:
        """The fields of a policy's config that say what it was built for."""
        return {"state_dim": self.state_dim, "action_dim": self.action_dim, "cameras": dict(self.cameras)}


class LazyFrames(Mapping[str, ByteArray]):
    """Frames of a store that are decoded when a camera is read. The store has checked their type and shape."""

    def __init__(self, cameras: Mapping[str, Callable[[], ByteArray]]):
        """cameras: name -> reads its frames, uint8 [T+1, H, W, 3]"""
        self._cameras = cameras

    def __getitem__(self, camera: str) -> ByteArray:
        return self._cameras[camera]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._cameras)

    def __len__(self) -> int:
        return len(self._cameras)

    def __contains__(self, camera: object) -> bool:
        return camera in self._cameras

    def __reduce__(self) -> tuple[Any, ...]:
        """Other processes get the decoded frames."""
        return dict, (dict(self),)


@dataclass(frozen=True, eq=False)
class Origin:
    """Where an imported episode came from; `digest` lets a second import skip what is already here."""

    format: str  # "lerobot", "hdf5", "npy", ...
    path: str  # as given by the user
    index: int  # the episode's number in its source
    digest: str  # hex, of the source's bytes without its labels


@dataclass(frozen=True, eq=False)
class Episode:
    """T actions and the T+1 observations around them. Build with `Episode.of`, which fills in and checks.

    >>> Episode.of(frames={"front": np.zeros((3, 64, 64, 3), np.uint8)}, actions=np.zeros((2, 4))).steps
    2
    """

    frames: Mapping[str, ByteArray]  # camera -> uint8 [T+1, H, W, 3]
    state: FloatArray  # [T+1, S], S may be 0
    actions: FloatArray  # [T, A] as sent to the robot, A may be 0 where the source kept none
    control_mode: ByteArray  # [T] POLICY or HUMAN: who acted
    privileged: Mapping[str, AnyArray]  # name -> [T, ...] what only a simulator knows: success, grasp, reward
    task: str = ""  # the instruction, in words
    fps: float = 0.0  # control steps per second; 0 where unknown
    robot: str = ""
    terminated: bool = False  # the task ended here; False: cut off by a time limit, a person or a crash
    padded: Padding = "none"  # which end's observation is a copy of its neighbor
    origin: Origin | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)  # JSON values: policy version, seed, ...

    @classmethod
    def of(
        cls,
        *,
        frames: Mapping[str, AnyArray],
        actions: AnyArray,
        state: AnyArray | None = None,
        control_mode: AnyArray | None = None,
        privileged: Mapping[str, AnyArray] | None = None,
        **rest: Any,
    ) -> Self:
        actions = np.ascontiguousarray(actions, dtype=np.float32)
        state = np.zeros((len(actions) + 1, 0)) if state is None else state
        mode = np.full(len(actions), POLICY) if control_mode is None else control_mode
        return cls(
            frames=dict(frames),
            actions=actions,
            state=np.ascontiguousarray(state, dtype=np.float32),
            control_mode=np.ascontiguousarray(mode, dtype=np.uint8),
            privileged={name: np.asarray(values) for name, values in (privileged or {}).items()},
            **rest,
        )

    def __post_init__(self) -> None:
        if problem := next(self._problems(), ""):
            raise InvalidEpisode(problem)
        try:
            json.dumps(dict(self.meta))
        except (TypeError, ValueError) as error:
            raise InvalidEpisode(f"meta must hold what JSON can: {error}") from error

    def _problems(self) -> Iterator[str]:
        steps = len(self.actions)
        if self.actions.ndim != 2:
            yield f"actions must be [T, A], got {list(self.actions.shape)}"
        if steps == 0:
            yield "an episode needs at least one action and two observations"
        for camera, frames in () if isinstance(self.frames, LazyFrames) else self.frames.items():
            if frames.dtype != np.uint8 or frames.ndim != 4 or frames.shape[3] != 3:
                yield f"camera '{camera}' must be uint8 [T+1, H, W, 3], got {frames.dtype} {list(frames.shape)}"
            if len(frames) != steps + 1:
                yield f"camera '{camera}' has {len(frames)} frames for {steps} actions; it needs {steps + 1}"
            if 0 in frames.shape:
                yield f"camera '{camera}' has empty frames: {list(frames.shape)}"
        if self.state.ndim != 2 or len(self.state) != steps + 1:
            yield f"state must be [{steps + 1}, S] for {steps} actions, got {list(self.state.shape)}"
        if self.control_mode.shape != (steps,) or self.control_mode.max() > HUMAN:
            yield f"control_mode must be [{steps}] of {POLICY} (policy) and {HUMAN} (person)"
        for name, values in self.privileged.items():
            if len(values) != steps:
                yield f"privileged '{name}' must have one row an action: {len(values)} for {steps}"
            if values.dtype.kind not in "biuf":
                yield f"privileged '{name}' must be numbers or booleans, got {values.dtype}"
        for name, values in (("actions", self.actions), ("state", self.state)):
            bad = np.flatnonzero(~np.isfinite(values).all(axis=1))
            if len(bad):
                yield f"{name} hold NaN or infinity at step {bad[0]} ({len(bad)} in all); cut it there or leave it out"

    @property
    def steps(self) -> int:
        return len(self.actions)

    @property
    def success(self) -> BoolArray | None:
        """[T] the simulator's own success flag, for measuring only: no learner reads it while a judge decides."""
        values = self.privileged.get("success")
        return None if values is None else values.astype(bool)

    @property
    def observed(self) -> slice:
        """The observations that were really seen: all but a padded one."""
        return slice(1 if self.padded == "first" else 0, self.steps if self.padded == "last" else None)

    def observation(self, t: int) -> Observation:
        return Observation(images={c: f[t] for c, f in self.frames.items()}, state=self.state[t])


@dataclass(frozen=True, eq=False)
class Scores:
    """What a judge measures, before any decision: `[T+1]` of an episode, or `[N]` of one step of N environments."""

    success_prob: FloatArray  # P(success), calibrated; NaN where a frame was not scored
    progress: FloatArray | None = None  # 0 at the start to 1 at success, of judges that measure it
    note: str = ""  # for people, of a whole episode; it is copied to the labels
    ood: str = ""  # why a whole episode is out of distribution; "": it is not, or the judge cannot tell
    cascade: "CascadeResult | None" = None  # of a cascade of judges
    parts: tuple["Labels", ...] = ()  # of judges that were asked for these, to be kept next to the labels
    labeler: "Labeler | None" = None  # who gave them, of a person's answer; copied to the labels

    def __post_init__(self) -> None:
        prob = self.success_prob
        if prob.ndim != 1 or (self.progress is not None and self.progress.shape != prob.shape):
            shapes = [list(values.shape) for values in (prob, self.progress) if values is not None]
            raise DataError(f"scores: success_prob and progress must be of one length, got {shapes}")
        if ((prob < 0) | (prob > 1)).any():
            raise DataError("scores: a probability lies outside [0, 1]")


@dataclass(frozen=True)
class CascadeResult:
    """Which stage of a cascade decided an episode."""

    decided_by: str  # a stage; "": none
    cost_s: float  # of all stages that were asked
    why: str = ""  # if undecided: "by lot", "disagreement" or "unsure"


@dataclass(frozen=True)
class Labeler:
    """Who gave labels by hand."""

    name: str
    repeat: bool = False  # they have labeled the episode before, and were not shown how


@dataclass(frozen=True)
class JudgeId:
    """Who labeled: labels with equal ids are the same labels."""

    source: str  # "classifier", "vlm", "simulator", "human", "dataset", "cutoff", or a plugin's name
    fingerprint: str = ""  # of weights, preprocessing, prompt, precision and calibration; "" for a person or a file
    rule: Any = None  # the `DecisionRule` (plaudit.rule) in use, its `key()`; None: nothing was decided by a rule
    progress: str = ""  # fingerprint of the model that progress is from; "": none, or the judge's own
    ood_detector: str = ""  # its fingerprint, where the rule withholds out-of-distribution episodes

    @property
    def model(self) -> str:
        """Both fingerprints in one text."""
        return f"{self.fingerprint}+{self.progress}" if self.progress else self.fingerprint


OPERATOR = "operator"  # source of a label made from an operator's mark, and the key of the mark in an episode's meta
PEOPLE = frozenset({"human", "cutoff", OPERATOR})  # sources of people's labels, which count before any judge's
TRUSTED = PEOPLE | {"simulator", "dataset"}  # sources of what is true, or was recorded as true; others are judges


@dataclass(frozen=True, eq=False)
class Labels:
    """One judge's labels of the T+1 observations of an episode. `success[t+1]` is what action t led to.

    They are never part of the episode, and hold no reward: rewards are computed from them (`plaudit.data.rewards`).
    An observation that is not labeled is left out by replay and by training; an excluded episode has none that is.

    >>> Labels.from_cutoff(steps=4, cutoff=3, source="human").success.tolist()   # frames 3 and 4 show success
    [False, False, False, True, True]
    """

    success: BoolArray  # [T+1]; False where not labeled
    labeled: BoolArray  # [T+1] False: not decided, or the observation is a copy of its neighbor
    judge: JudgeId
    scores: Scores | None = None  # [T+1] what the judge measured
    time: float = 0.0  # seconds since 1970, UTC
    note: str = ""  # for people; never compared
    review: bool = False  # whether it shows success before anything was done, so that a person should look at it
    labeler: Labeler | None = None  # who gave them, where a person said their name

    def __post_init__(self) -> None:
        frames = len(self.success)
        prob = None if self.scores is None else self.scores.success_prob
        for name, values in (("success", self.success), ("labeled", self.labeled), ("scores", prob)):
            if values is not None and values.shape != (frames,):
                raise DataError(f"labels: {name} must be [{frames}], got {list(values.shape)}")
        if self.success.dtype != bool or self.labeled.dtype != bool:
            raise DataError("labels: success and labeled are arrays of booleans")
        if (self.success & ~self.labeled).any():
            raise DataError("labels: an observation shows success and is not labeled")

    @classmethod
    def from_targets(cls, targets: AnyArray, source: str, *, time: float = 0.0, note: str = "") -> Self:
        """From 1, 0 or NaN (not labeled) of each of the T+1 observations; what lies between counts from 0.5 on."""
        targets = np.asarray(targets, dtype=np.float32)
        return cls(targets >= 0.5, ~np.isnan(targets), JudgeId(source), time=time, note=note)

    @classmethod
    def from_cutoff(cls, *, steps: int, cutoff: int | None, source: str, time: float = 0.0, note: str = "") -> Self:
        """Success from frame `cutoff` on; None for an episode that fails."""
        frames = np.arange(steps + 1)
        return cls.from_targets(frames >= (steps + 1 if cutoff is None else cutoff), source, time=time, note=note)

    @property
    def steps(self) -> int:
        """Actions of the episode."""
        return len(self.success) - 1

    @property
    def withheld(self) -> bool:
        """Whether the judge scored the episode and its labels do not count: it is out of distribution, or it shows
        success from the first frame on."""
        return (bool(self.ood) or self.review) and not self.labeled.any()

    @property
    def ood(self) -> str:
        """Why the episode is out of distribution; "" where it does not say so."""
        return "" if self.scores is None else self.scores.ood

    @property
    def remark(self) -> str:
        """Who gave them, and the note: for people."""
        by = "" if self.labeler is None else f"by {self.labeler.name}"
        again = "a second time" if self.labeler is not None and self.labeler.repeat else ""
        return ", ".join(filter(None, (by, again, self.note)))

    @property
    def with_parts(self) -> tuple["Labels", ...]:
        """Those of the judges that were asked for these, and then these: as they are stored."""
        return (*(() if self.scores is None else self.scores.parts), self)

    @property
    def success_once(self) -> bool:
        """Whether any observation shows success."""
        return bool(self.success.any())

    @property
    def first_success(self) -> int | None:
        """The first observation that shows success."""
        return int(self.success.argmax()) if self.success_once else None

    @property
    def targets(self) -> FloatArray:
        """[T+1] 1, 0, or NaN where not labeled: what a classifier learns from."""
        return np.where(self.labeled, self.success, np.nan).astype(np.float32)

    @property
    def frame_probs(self) -> FloatArray:
        """[T+1] the judge's P(success) of each observation, or 1 and 0 of a judge without; NaN where not labeled."""
        return self.targets if self.scores is None else np.where(self.labeled, self.scores.success_prob, np.nan)


@dataclass(frozen=True, eq=False)
class PolicyWeights:
    """One version of a policy's weights on their way to the robot."""

    version: int  # counts up, never back
    tensors: Mapping[str, AnyArray]  # "component/parameter" -> array


ArrayT = TypeVar("ArrayT")


@dataclass(frozen=True, eq=False)
class Batch(Generic[ArrayT]):
    """B transitions, as numpy arrays or (`plaudit.data.batch.to_torch`) tensors.

    The target of a critic is `reward + discount * Q(next)`: the discount is gamma^k over the k steps that the
    reward sums up, and 0 where the episode ended there.
    """

    images: Mapping[str, ArrayT]  # camera -> uint8 [B, H, W, 3]; with a history [B, 1 + history, H, W, 3]
    state: ArrayT  # f32 [B, S]; with a history [B, 1 + history, S], the newest first
    actions: ArrayT  # f32 [B, A], or [B, H, A] when windows of H actions were asked for
    action_mask: ArrayT  # bool [B, H]: False where the window reaches past the end and repeats the last action
    reward: ArrayT  # f32 [B] discounted sum over the steps up to `next`
    discount: ArrayT  # f32 [B]
    next_images: Mapping[str, ArrayT]  # as images
    next_state: ArrayT
    episode: ArrayT  # i64 [B] id in its store
    step: ArrayT  # i64 [B] t of the first action
    part: ArrayT  # i64 [B] which part of a mix it came from: 0 the first, 1 the second
