"""Normalization with numpy alone, because it runs on the robot's computer and inside every policy.

State and action: `(x - mean) / (std + eps)`; images: `x / 255`. The statistics are computed from a store and saved as
JSON next to a policy's weights. Pickled statistics of other stacks are read too, without running the pickle. For a
policy whose actions lie within [-1, 1], `mean` is the middle of the range of the actions and `std` is half of it.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from plaudit.data.disk import write_atomic
from plaudit.data.store import Store
from plaudit.errors import BadFile, DataError, did_you_mean
from plaudit.files import MAX_JSON, brief, parse_json, read_own, readable
from plaudit.types import AnyArray, FloatArray

STATE, ACTION = "observation.state", "action"
EPS = 1e-8
_FLAT_NAMES = {"qpos": STATE, "state": STATE, "action": ACTION}  # ACT's flat layout: qpos_mean, action_std, ...


@dataclass(frozen=True, eq=False)
class Stats:
    """Statistics of one vector, each [D]."""

    mean: FloatArray
    std: FloatArray

    def __post_init__(self) -> None:
        if self.mean.shape != self.std.shape or self.mean.ndim != 1:
            raise DataError(f"mean and std must be [D] alike, got {list(self.mean.shape)} and {list(self.std.shape)}")
        if not (np.isfinite(self.mean).all() and np.isfinite(self.std).all() and (self.std >= 0).all()):
            raise DataError("mean and std must be finite, and std not negative")


@dataclass(frozen=True, eq=False)
class Normalizer:
    """
    >>> n = Normalizer({"observation.state": Stats(np.float32([1.0]), np.float32([2.0]))})
    >>> n.normalize_state(np.float32([5.0])).tolist()
    [2.0]
    """

    stats: Mapping[str, Stats]
    eps: float = EPS
    meta: Mapping[str, Any] = field(default_factory=dict)  # what they were computed from

    def __post_init__(self) -> None:
        if not isinstance(self.eps, int | float) or not 0 < self.eps <= 1:
            raise DataError(f"eps is {brief(self.eps)}, and it is added to each std; write a number like {EPS}")

    def normalize_state(self, state: AnyArray) -> FloatArray:
        return self.normalize(STATE, state)

    def normalize_action(self, action: AnyArray) -> FloatArray:
        return self.normalize(ACTION, action)

    def normalize_image(self, image: AnyArray) -> FloatArray:
        return (np.asarray(image, np.float32) / 255).astype(np.float32)

    def denormalize_action(self, action: AnyArray) -> FloatArray:
        stats = self.stats_of(ACTION, action)
        return (np.asarray(action, np.float32) * (stats.std + self.eps) + stats.mean).astype(np.float32)

    def normalize(self, key: str, values: AnyArray) -> FloatArray:
        """Any vector that has statistics, `[..., D]`."""
        stats = self.stats_of(key, values)
        return ((np.asarray(values, np.float32) - stats.mean) / (stats.std + self.eps)).astype(np.float32)

    def stats_of(self, key: str, values: AnyArray | None = None) -> Stats:
        """The statistics of a vector, of as many numbers as `values` have; refused where there are none."""
        if key not in self.stats:
            raise DataError(f"there are no statistics of '{key}'; {did_you_mean(key, self.stats)}")
        stats = self.stats[key]
        if values is not None and np.shape(values)[-1:] != stats.mean.shape:
            raise DataError(f"'{key}' has {np.shape(values)[-1:]} values where its statistics have {stats.mean.shape}")
        return stats

    @classmethod
    def identity(cls, state_dim: int, action_dim: int) -> Self:
        """Changes no state or action, for policies in the robot's own units; images are still in [0, 1]."""
        sizes = {STATE: state_dim, ACTION: action_dim}
        return cls({key: Stats(np.zeros(size, np.float32), np.ones(size, np.float32)) for key, size in sizes.items()})

    @classmethod
    def of(cls, state: AnyArray, actions: AnyArray) -> Self:
        """Over arrays [..., S] and [..., A]; constant states as in `from_store`."""
        return cls({STATE: _unit_std_where_constant(_stats_over(state)), ACTION: _stats_over(actions)})

    @classmethod
    def from_store(
        cls, store: Store, eps: float = EPS, *, by_range: bool = False, ids: Collection[int] | None = None
    ) -> Self:
        """Over every observation and action of a store.

        The std of a state that never changed is 1: divided by almost 0, its first change would dominate all others.
        by_range: the smallest recorded action becomes -1, and the largest 1
        ids: of the episodes that count; None: all
        """
        rows: dict[str, list[FloatArray]] = {}
        ids = store.ids if ids is None else ids
        for episode_id, episode in store:
            if episode_id not in ids:
                continue
            for key, values in ((STATE, episode.state[episode.observed]), (ACTION, episode.actions)):
                rows.setdefault(key, []).append(values)
                earlier = rows[key][0].shape[1]
                if values.shape[1] != earlier:
                    where = f"{store.folder}, episode {episode_id}: '{key}'"
                    raise DataError(f"{where} has {values.shape[1]} values where earlier episodes have {earlier}")
        stats = {key: _stats_over(np.concatenate(all_rows)) for key, all_rows in rows.items() if all_rows[0].shape[1]}
        if not stats:
            raise DataError(f"{store.folder} has no states and no actions to compute statistics from")
        if STATE in stats:
            stats[STATE] = _unit_std_where_constant(stats[STATE])
        if ACTION in stats and by_range:
            actions = np.concatenate(rows[ACTION])
            low, high = actions.min(axis=0).astype(np.float64), actions.max(axis=0).astype(np.float64)
            stats[ACTION] = Stats(((low + high) / 2).astype(np.float32), ((high - low) / 2).astype(np.float32))
        return cls(stats, eps, {"store": str(store.folder), "episodes": len(ids)})

    def widen(self, times: float) -> Self:
        """Map actions of this many standard deviations to [-1, 1]."""
        stats = self.stats_of(ACTION)
        return replace(self, stats={**self.stats, ACTION: Stats(stats.mean, times * stats.std)})

    def beyond(self, store: Store) -> float:
        """The fraction of the values in a store's actions that lie outside [-1, 1]."""
        outside = [np.abs(self.normalize_action(episode.actions)) > 1 + 1e-3 for _, episode in store]
        return float(np.concatenate(outside).mean()) if outside else 0.0

    @property
    def tree(self) -> dict[str, Any]:
        """The content of a statistics file."""
        stats = {key: {"mean": s.mean.tolist(), "std": s.std.tolist()} for key, s in self.stats.items()}
        return {"eps": self.eps, "stats": stats, "meta": dict(self.meta)}

    def save(self, path: str | Path) -> None:
        write_atomic(Path(path), json.dumps(self.tree, indent=1).encode())

    @classmethod
    def load(cls, path: str | Path | Mapping[str, Any]) -> Self:
        """From our JSON file or its content, or from a `.pkl` or `.pickle` file of another stack."""
        if isinstance(path, Mapping):
            return cls._of(path)
        path = Path(path)
        with readable(path, "this is not a statistics file: {}", "there is no such statistics file"):
            if path.suffix in (".pkl", ".pickle"):
                from plaudit.data.formats.decoder import load_pickle  # not on a robot's computer

                return cls(_from_pickle(load_pickle(path), path))
            return cls._of(parse_json(read_own(path, MAX_JSON)))

    @classmethod
    def _of(cls, tree: Any) -> Self:
        try:
            return cls({k: _stats_of(s) for k, s in tree["stats"].items()}, tree["eps"], tree["meta"])
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            reason = f"{type(error).__name__}: {error}"[:200]
            raise DataError(f"these are not statistics ({reason}); 'plaudit data stats' writes some") from error


def _stats_over(values: AnyArray) -> Stats:
    rows = values.reshape(-1, values.shape[-1])
    mean, std = rows.mean(axis=0, dtype=np.float64), rows.std(axis=0, dtype=np.float64)
    return Stats(mean.astype(np.float32), std.astype(np.float32))


def _unit_std_where_constant(stats: Stats) -> Stats:
    constant = stats.std <= 1e-6 * np.maximum(np.abs(stats.mean), 1)  # up to rounding
    return Stats(stats.mean, np.where(constant, np.float32(1), stats.std))


def _stats_of(tree: Any) -> Stats:
    return Stats(np.asarray(tree["mean"], np.float32).reshape(-1), np.asarray(tree["std"], np.float32).reshape(-1))


def _from_pickle(tree: Any, path: Path) -> dict[str, Stats]:
    """`{"observation.state": {"mean", "std"}, "action": ...}`, or ACT's flat `{"qpos_mean", "qpos_std", ...}`."""
    if not isinstance(tree, dict):
        raise BadFile(path, f"a statistics file holds a dictionary, this one a {type(tree).__name__}")
    nested = {key: value for key, value in tree.items() if isinstance(value, dict) and {"mean", "std"} <= set(value)}
    stats = {key: _stats_of(value) for key, value in nested.items()}
    for prefix, key in _FLAT_NAMES.items():
        if f"{prefix}_mean" in tree and f"{prefix}_std" in tree:
            stats[key] = _stats_of({"mean": tree[f"{prefix}_mean"], "std": tree[f"{prefix}_std"]})
    if not stats:
        names = ", ".join(map(brief, list(tree)[:20]))
        raise BadFile(path, f"no mean and std in this statistics file; it has: {names}")
    return stats
