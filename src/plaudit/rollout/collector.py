"""Episodes with success labels, for a judge to learn from: into a store, until there are enough of each kind.

    with Store.create("data") as store:
        collector = RewardDataCollector(store, num_envs=8, targets=EpisodeTargets(success=500, failure=500))
        while not collector.done:
            ...                                                        # N environments make one step
            collector.add_env_output({"obs": {"images": {"front": images}}, "actions": actions,
                                      "success_frame": success, "dones": dones}, {"success_once": once})

`EpisodeQuota` decides what a store still takes: the collector, the Gymnasium wrappers (rollout/wrappers.py), the script
(rollout/scripted.py) and a training run that collects all use it. What is in the store already counts, so all of them
continue where they stopped. (Rejected: a folder for each kind. One episode is in one place, its label beside it, and
`plaudit data export` makes the two folders of either old layout.)
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from plaudit.data.formats.images import choose, to_frames
from plaudit.data.store import Store
from plaudit.errors import DataError
from plaudit.types import AnyArray, BoolArray, ByteArray, Episode, FloatArray, Labels

SOURCE = "simulator"
ONCE = "success_once was said of the episode and success of no frame; its last frame is taken for it"

Outcome = Literal["success", "failure"]


@dataclass(frozen=True)
class EpisodeTargets:
    """How many episodes of each kind a store is to have; None: as many as come."""

    success: int | None = None
    failure: int | None = None

    def __post_init__(self) -> None:
        for outcome, count in vars(self).items():
            if count is not None and count < 0:
                raise DataError(f"the target of {outcome} is {count}; it is 0 or more, or None for no limit")


class EpisodeQuota:
    """A store that takes episodes until its targets are reached; of a kind that is full, it takes no more."""

    def __init__(self, store: Store, targets: EpisodeTargets):
        self.store, self.targets = store, targets
        self.kept: Counter[Outcome] = Counter()  # in the store, also from before
        self.surplus: Counter[Outcome] = Counter()  # not taken
        for episode_id in store.ids:
            labels = store.ledger.labels(episode_id)
            if labels is not None:
                self.kept[_outcome(labels)] += 1

    def missing(self, outcome: Outcome) -> int | None:
        """How many are wanted still; None: no end."""
        target = vars(self.targets)[outcome]
        return None if target is None else max(0, target - self.kept[outcome])

    @property
    def done(self) -> bool:
        """Whether both targets are reached."""
        return self.missing("success") == self.missing("failure") == 0

    def add(self, episode: Episode, labels: Labels) -> int | None:
        """The episode's id; None where there are enough of its kind."""
        ids = self.extend([(episode, labels)])
        return ids[0] if ids else None

    def extend(self, pairs: Iterable[tuple[Episode, Labels]]) -> list[int]:
        """Keep those that are wanted, with one sync; returns their ids."""
        wanted: list[tuple[Episode, Labels]] = []
        taking: Counter[Outcome] = Counter()
        for episode, labels in pairs:
            outcome = _outcome(labels)
            left = self.missing(outcome)
            if left is not None and taking[outcome] >= left:
                self.surplus[outcome] += 1
            else:
                taking[outcome] += 1
                wanted.append((episode, labels))
        if not wanted:
            return []
        ids = self.store.extend([episode for episode, _ in wanted])
        self.store.ledger.extend(zip(ids, (labels for _, labels in wanted), strict=True))
        self.kept += taking
        return ids


@dataclass(frozen=True, eq=False)
class _Seen:
    """One moment of one environment."""

    images: Mapping[str, ByteArray]  # camera -> [H, W, 3]
    state: FloatArray  # [S]
    action: FloatArray | None  # [A] what led here; None: a reset did, or nobody said
    success: float  # P(success) of this moment, as the environment says
    once: bool  # whether it says that success was seen at any time so far
    privileged: Mapping[str, Any]


class RewardDataCollector:
    """Cuts the output of N parallel environments into episodes: one buffer each, saved when its environment is done."""

    def __init__(
        self,
        store: Store,
        num_envs: int,
        *,
        targets: EpisodeTargets = EpisodeTargets(),  # noqa: B008 - frozen
        image_keys: Sequence[str] | None = None,
        task: str = "",
        fps: float = 0.0,
        robot: str = "",
        meta: Mapping[str, Any] | None = None,
    ):
        """
        image_keys: which cameras to keep; None: all that the first output has
        task, fps, robot, meta: of every episode, see `Episode`
        """
        self.quota, self.num_envs = EpisodeQuota(store, targets), num_envs
        self._cameras = list(image_keys or ())
        self._facts: dict[str, Any] = {"task": task, "fps": fps, "robot": robot, "meta": dict(meta or {})}
        self._buffers: list[list[_Seen]] = [[] for _ in range(num_envs)]

    @property
    def done(self) -> bool:
        """Whether there are enough episodes of both kinds."""
        return self.quota.done

    def begin(self, obs: Mapping[str, Any], only: AnyArray | None = None) -> list[int]:
        """What a reset showed: no action led there. An episode that it cut short is saved, its id is returned.

        only: bool [N], which environments were reset; all when not given
        """
        chosen = self._chosen(only)
        ids = self._save(chosen)
        images, states = self._observed(obs)
        for n in chosen:
            self._push(n, _Seen(_row(images, n), states[n].copy(), None, 0.0, False, {}))
        return ids

    def add_env_output(
        self,
        env_output: Mapping[str, Any],
        env_info: Mapping[str, Any] | None = None,
        is_last_step: bool = False,
        *,
        only: AnyArray | None = None,
    ) -> list[int]:
        """Take one step of all environments; returns the ids of the episodes that were over with it and kept.

        env_output: arrays or CPU tensors of N rows each.
            obs: {"images": {camera: [N, H, W, 3] or [N, 3, H, W], uint8 or float in [0, 1]}, "states": [N, S] if any}
            success_frame: [N] in [0, 1], whether what is seen shows success
            dones: [N] whose episode is over
            actions: [N, A] what led to obs; may be left out, then none are stored
            terminations: [N] which of those done ended by themselves; left out: those that end with success
            final_obs: like obs, what was seen last of those done, where obs shows their next episode already
            privileged: {name: [N]} what else the simulator knows, to be stored beside it
        env_info: {"success_once": [N]} whether an episode has succeeded at any time; may be left out
        is_last_step: every episode is cut here and saved
        only: bool [N], whose output this is; all when not given
        """
        for key in ("obs", "success_frame", "dones"):
            if key not in env_output:
                raise DataError(f"env_output has no '{key}'; it has: {', '.join(map(str, env_output)) or 'nothing'}")
        if self.done:
            return []
        success = self._flags(env_output["success_frame"], "success_frame")
        if not ((success >= 0) & (success <= 1)).all():
            raise DataError(f"success_frame must lie within [0, 1], got {success.tolist()}")
        over = self._flags(env_output["dones"], "dones") > 0
        once = self._flags((env_info or {}).get("success_once", np.zeros(self.num_envs)), "success_once") > 0
        actions = self._rows(env_output.get("actions"), "actions")
        known = {name: self._flags(v, name) for name, v in env_output.get("privileged", {}).items()}
        now = images, states = self._observed(env_output["obs"])
        final = env_output.get("final_obs")
        last = now if final is None else self._observed(final)
        chosen = self._chosen(only)
        for n in chosen:
            images, states = last if over[n] else now
            told = {name: values[n] for name, values in known.items()}
            action = None if actions is None else actions[n].copy()
            self._push(n, _Seen(_row(images, n), states[n].copy(), action, float(success[n]), bool(once[n]), told))
        ended = over & (self._flags(env_output.get("terminations", success >= 0.5), "terminations") > 0)
        ids = self._save([n for n in chosen if over[n] or is_last_step], ended)
        if final is not None and over.any():
            self.begin(env_output["obs"], over & np.isin(np.arange(self.num_envs), chosen))
        return ids

    def save_trajectory(self, env_idx: int) -> int | None:
        """Save what one environment's buffer holds and empty it; None where it is not kept.

        It is not where there are enough of its kind, and where the buffer has a single frame or none, which is no
        episode yet.
        """
        ids = self._save([env_idx])
        return ids[0] if ids else None

    def flush(self) -> list[int]:
        """Save what all buffers hold, as at the end of the last step."""
        return self._save(range(self.num_envs))

    def _save(self, chosen: Iterable[int], terminated: AnyArray | None = None) -> list[int]:
        """With one sync for all of them. `terminated`: bool [N], none when not given."""
        cut: list[tuple[Episode, Labels]] = []
        for n in chosen:
            seen, self._buffers[n] = self._buffers[n], []
            if len(seen) > 1 or (seen and seen[0].action is not None):
                cut.append(_episode(seen, terminated=terminated is not None and bool(terminated[n]), **self._facts))
        return self.quota.extend(cut)

    def _push(self, n: int, seen: _Seen) -> None:
        buffer = self._buffers[n]
        for camera, image in seen.images.items() if buffer else ():
            before = buffer[0].images[camera].shape
            if image.shape != before:
                raise DataError(
                    f"camera '{camera}' of environment {n} changed in the middle of an episode from "
                    f"{before[0]}x{before[1]} to {image.shape[0]}x{image.shape[1]}; save_trajectory({n}) ends it first"
                )
        settled = buffer[1:] or [first for first in buffer if first.action is not None]
        if settled and (settled[-1].action is None) != (seen.action is None):
            raise DataError(f"environment {n}: either every step of an episode has actions, or none; this one is mixed")
        buffer.append(seen)

    def _observed(self, obs: Mapping[str, Any]) -> tuple[Mapping[str, ByteArray], FloatArray]:
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
        """As an array with one row an environment; None stays None."""
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

    def _chosen(self, only: AnyArray | None) -> list[int]:
        everyone: BoolArray = np.ones(self.num_envs, bool)
        return np.flatnonzero(everyone if only is None else self._flags(only, "only")).tolist()


def _row(images: Mapping[str, ByteArray], n: int) -> Mapping[str, ByteArray]:
    """One environment's; copies, for whoever made them may draw the next step there."""
    return {camera: frames[n].copy() for camera, frames in images.items()}


def _episode(seen: Sequence[_Seen], **facts: Any) -> tuple[Episode, Labels]:
    """An episode that begins with an action lacks its first observation: it is filled and marked (see types.py)."""
    filled = seen[0].action is not None
    moments = [seen[0], *seen] if filled else list(seen)
    steps = moments[1:]
    verdict = np.array([moment.success for moment in moments], np.float32)
    success = verdict[1:] >= 0.5
    hidden = any(moment.once for moment in seen) and not (verdict >= 0.5).any()
    if hidden:
        verdict[-1] = 1.0
    if filled:
        verdict[0] = np.nan
    actions = [np.zeros(0) if step.action is None else step.action.reshape(-1) for step in steps]
    episode = Episode.of(
        frames={camera: np.stack([moment.images[camera] for moment in moments]) for camera in seen[0].images},
        state=np.stack([moment.state for moment in moments]),
        actions=np.stack(actions),
        privileged={
            "success": success,
            **{name: np.array([step.privileged[name] for step in steps]) for name in steps[0].privileged},
        },
        repeated="first" if filled else "none",
        **facts,
    )
    return episode, Labels.from_targets(verdict, SOURCE, note=ONCE if hidden else "")


def _outcome(labels: Labels) -> Outcome:
    return "success" if labels.success_once else "failure"
