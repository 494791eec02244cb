"""The nouns: what robots, judges, stores and learners hand to each other. Frozen, numpy only.

Time runs like this, for an episode of T actions:

    frame    0      1      2    ...   T          T+1 observations
              \\    / \\    / \\
    action     0       1       2  ...            T actions
    reward     0       1       2  ...            reward[t] judges frame t+1, what action t led to

A judge looks at frames, a learner wants rewards of actions; the two are off by one, and every bug of this kind that
we have seen came from a format that left the question open. So it is answered once, here: reward, success and
probability are `[T]` and belong to the frame after the action, and the verdict on frame 0, which no action led to,
is `Labels.start`.

Some data sets record one observation less than that. LeRobot keeps T rows of (observation, action) and not what the
last action led to; the pickles of the ManiSkill collectors keep T rows of (action, observation after it) and not
the first. The missing observation is filled with its neighbour and the episode says so in `repeated`: replay uses
no transition through it, and nobody judges it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Generic, Literal, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from plaudit.errors import DataError, InvalidEpisode

FloatArray = NDArray[np.float32]
ByteArray = NDArray[np.uint8]
BoolArray = NDArray[np.bool_]
AnyArray = NDArray[Any]

Repeated = Literal["none", "first", "last"]

POLICY, PERSON = 0, 1  # values of Episode.control_mode


@dataclass(frozen=True, eq=False)
class Observation:
    """What the robot sees at one moment; with a leading N in every array, what N robots see."""

    images: Mapping[str, ByteArray]  # camera -> uint8 [H, W, 3]
    state: FloatArray  # [S] joint angles or whatever the robot measures, in its own units


@dataclass(frozen=True, eq=False)
class Origin:
    """Where an imported episode came from; `digest` lets a second import skip what is already here."""

    format: str  # "lerobot", "npy", "pkl"
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
    control_mode: ByteArray  # [T] POLICY or PERSON: who acted
    privileged: Mapping[str, AnyArray]  # name -> [T, ...] what only a simulator knows: success, grasp, reward
    task: str = ""  # the instruction, in words
    fps: float = 0.0  # control steps per second; 0 where unknown
    robot: str = ""
    terminated: bool = False  # the task ended here; False: cut off by a time limit, a person or a crash
    repeated: Repeated = "none"  # which end's observation is a copy of its neighbour
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
        steps = len(actions)
        return cls(
            frames=dict(frames),
            actions=actions,
            state=np.ascontiguousarray(np.zeros((steps + 1, 0)) if state is None else state, dtype=np.float32),
            control_mode=np.ascontiguousarray(
                np.full(steps, POLICY) if control_mode is None else control_mode, dtype=np.uint8
            ),
            privileged={name: np.asarray(values) for name, values in (privileged or {}).items()},
            **rest,
        )

    def __post_init__(self) -> None:
        steps = len(self.actions)
        if self.actions.ndim != 2:
            raise InvalidEpisode(f"actions must be [T, A], got {list(self.actions.shape)}")
        if steps == 0:
            raise InvalidEpisode("an episode needs at least one action and two observations")
        for camera, frames in self.frames.items():
            if frames.dtype != np.uint8 or frames.ndim != 4 or frames.shape[3] != 3:
                raise InvalidEpisode(
                    f"camera '{camera}' must be uint8 [T+1, H, W, 3], got {frames.dtype} {list(frames.shape)}"
                )
            if len(frames) != steps + 1:
                raise InvalidEpisode(
                    f"camera '{camera}' has {len(frames)} frames for {steps} actions; it needs {steps + 1}"
                )
            if 0 in frames.shape:
                raise InvalidEpisode(f"camera '{camera}' has empty frames: {list(frames.shape)}")
        if self.state.ndim != 2 or len(self.state) != steps + 1:
            raise InvalidEpisode(f"state must be [{steps + 1}, S] for {steps} actions, got {list(self.state.shape)}")
        if self.control_mode.shape != (steps,) or self.control_mode.max() > PERSON:
            raise InvalidEpisode(f"control_mode must be [{steps}] of {POLICY} (policy) and {PERSON} (person)")
        for name, values in self.privileged.items():
            if len(values) != steps:
                raise InvalidEpisode(f"privileged '{name}' must have one row an action: {len(values)} for {steps}")
            if values.dtype.kind not in "biuf":
                raise InvalidEpisode(f"privileged '{name}' must be numbers or booleans, got {values.dtype}")
        try:
            json.dumps(dict(self.meta))
        except (TypeError, ValueError) as error:
            raise InvalidEpisode(f"meta must hold what JSON can: {error}") from error
        for name, values in (("actions", self.actions), ("state", self.state)):
            bad = np.flatnonzero(~np.isfinite(values).all(axis=1))
            if len(bad):
                raise InvalidEpisode(
                    f"{name} hold NaN or infinity at step {bad[0]} ({len(bad)} in all); cut it there or leave it out"
                )

    @property
    def steps(self) -> int:
        return len(self.actions)

    @property
    def success(self) -> BoolArray | None:
        """[T] the simulator's own verdict, for measuring only: no learner reads it while a judge is in charge."""
        values = self.privileged.get("success")
        return None if values is None else values.astype(bool)

    @property
    def recorded(self) -> slice:
        """The observations that were really seen: all but a repeated one."""
        return slice(1 if self.repeated == "first" else 0, self.steps if self.repeated == "last" else None)

    def observation(self, t: int) -> Observation:
        return Observation(images={c: f[t] for c, f in self.frames.items()}, state=self.state[t])


@dataclass(frozen=True, eq=False)
class Labels:
    """One judge's verdict on one episode. Never part of the episode: a new verdict is a new `Labels`.

    A step that was not judged has a NaN reward, and replay leaves it out; an episode that is excluded has only those.

    >>> Labels.from_cutoff(steps=4, cutoff=3, source="human").reward.tolist()   # frames 3 and 4 show success
    [0.0, 0.0, 1.0, 1.0]
    """

    reward: FloatArray  # [T] NaN where not judged
    success: BoolArray  # [T] True may end the episode for a learner
    probability: FloatArray | None = None  # [T] the judge's own P(success), before any threshold
    # P(success) of frame 0, before any action; NaN where not judged. It is called at the threshold like any other, so a
    # rule that decided otherwise (one cutoff, k of n frames) leaves its verdict here, 0 or 1.
    start: float = float("nan")
    source: str = "unknown"  # who: "human", "classifier", "vlm", "simulator", "dataset", "cutoff"
    model: str = ""  # fingerprint of the model that judged
    threshold: float | None = None  # what turned probability into success
    time: float = 0.0  # seconds since 1970, UTC
    note: str = ""  # why, in words
    rule: str = ""  # JSON, exact: how the verdict was made of the model's numbers; "" where there were none

    def __post_init__(self) -> None:
        steps = len(self.reward)
        for name, values in (("reward", self.reward), ("success", self.success), ("probability", self.probability)):
            if values is not None and values.shape != (steps,):
                raise DataError(f"labels: {name} must be [{steps}], got {list(values.shape)}")
        if np.isinf(self.reward).any():
            raise DataError("labels: a reward is infinite")
        if self.probability is not None and ((self.probability < 0) | (self.probability > 1)).any():
            raise DataError("labels: a probability lies outside [0, 1]")

    @classmethod
    def from_frames(cls, verdict: AnyArray, **rest: Any) -> Self:
        """From a verdict on each of the T+1 frames: P(success) or 0 and 1, NaN where not judged."""
        verdict = np.asarray(verdict, dtype=np.float32)
        success = _called(verdict[1:], rest.get("threshold"))
        return cls(reward=verdict[1:].copy(), success=success, start=float(verdict[0]), **rest)

    @classmethod
    def from_cutoff(cls, *, steps: int, cutoff: int | None, source: str, **rest: Any) -> Self:
        """Success from frame `cutoff` on; None for an episode that fails."""
        frames = np.arange(steps + 1)
        return cls.from_frames(frames >= (steps + 1 if cutoff is None else cutoff), source=source, **rest)

    @property
    def judged(self) -> BoolArray:
        """[T] which steps have a verdict."""
        return ~np.isnan(self.reward)

    @property
    def frames(self) -> FloatArray:
        """[T+1] success of each frame as 0 or 1, NaN where not judged: what an image classifier learns from."""
        start = self.start if np.isnan(self.start) else float(self.start_success)
        return np.concatenate([[start], np.where(self.judged, self.success, np.nan)]).astype(np.float32)

    @property
    def succeeded(self) -> bool:
        """Whether any judged frame shows success."""
        return bool(self.success[self.judged].any()) or self.start_success

    @property
    def start_success(self) -> bool:
        """Whether frame 0 was called a success: at the label's own threshold, or from 0.5 on where it has none."""
        return bool(_called(self.start, self.threshold))


def _called(probability: AnyArray | float, threshold: float | None) -> BoolArray:
    """In float32 on both sides, so that a threshold chosen just above a frame's score leaves that frame out."""
    return np.asarray(probability, np.float32) >= np.float32(0.5 if threshold is None else threshold)


@dataclass(frozen=True, eq=False)
class RewardSignal:
    """What a judge says while the robot moves: it decides both the reward and the end of the episode."""

    probability: FloatArray  # [B] P(success)
    reward: FloatArray  # [B]
    success: BoolArray  # [B] ends the episode
    parts: Mapping[str, FloatArray] = field(default_factory=dict)  # name -> [B], they explain the reward


@dataclass(frozen=True, eq=False)
class Weights:
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

    images: Mapping[str, ArrayT]  # camera -> uint8 [B, H, W, 3]
    state: ArrayT  # f32 [B, S]
    actions: ArrayT  # f32 [B, A], or [B, H, A] when windows of H actions were asked for
    action_mask: ArrayT  # bool [B, H]: False where the window reaches past the end and repeats the last action
    reward: ArrayT  # f32 [B] discounted sum over the steps up to `next`
    discount: ArrayT  # f32 [B]
    next_images: Mapping[str, ArrayT]  # as images
    next_state: ArrayT
    episode: ArrayT  # i64 [B] id in its store
    step: ArrayT  # i64 [B] t of the first action
    part: ArrayT  # i64 [B] which part of a mix it came from: 0 the first, 1 the second

    def leaves(self) -> dict[str, ArrayT]:
        """Every array by a flat name, `images.front` for those of cameras."""
        flat: dict[str, ArrayT] = {}
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, Mapping):
                flat |= {f"{item.name}.{camera}": array for camera, array in value.items()}
            else:
                flat[item.name] = value
        return flat
