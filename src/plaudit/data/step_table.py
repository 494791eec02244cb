"""The table of steps that can be sampled: one row a labeled step, kept up to date with a store and its ledger.

Everything about a step that does not depend on pixels is computed when its episode is labeled: its n-step return, its
discount, the distance to its next observation, and whether it can be sampled at all. A sampler then picks row numbers
and gathers; new labels of an old episode rewrite that episode's rows only.
"""

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from plaudit.data.batch import FeatureCache
from plaudit.data.catalog import EpisodeEntry
from plaudit.data.demonstrations import InterventionConfig, sampling_weights, steps_before_takeover, steps_to_clone
from plaudit.data.frame_decoder import EncodedColumn, encoded_column
from plaudit.data.rewards import Decisions, RewardConfig, learning_signal
from plaudit.data.segments import STEPS, MappedColumn, camera_column
from plaudit.data.store import Store
from plaudit.errors import DataError, EpisodeNotFound
from plaudit.types import OPERATOR, PEOPLE, AnyArray, BoolArray, FloatArray

if TYPE_CHECKING:
    from plaudit.data.device_frames import DeviceFrames


def _row_type(history: int) -> Any:
    window = (1 + history,) if history else ()
    return np.dtype(
        [
            ("segment", np.int32),
            ("row", np.int64),  # of the observation before the action, in its segment
            ("left", np.int32),  # actions from here to the episode's end, this one included
            ("cloned", np.int32),  # of these, those without a break that are cloned; 0: the policy acted
            ("span", np.int32),  # steps from here to the next observation
            ("episode", np.int64),
            ("step", np.int32),
            ("reward", np.float32),  # discounted, over `span` steps
            ("discount", np.float32),  # gamma^span, or 0 where the episode ended
            ("valid", np.bool_),
            ("slot", np.int64, window),  # of the observation before the action in `DeviceFrames`, and of earlier ones
            ("next_slot", np.int64, window),  # of the next observation, and of those before it
            ("verified", np.bool_),  # the bytes of its episode were compared with their checksums
        ]
    )


def history_window(rows: AnyArray, start: "AnyArray | int", history: int) -> AnyArray:
    """[B, 1 + history] rows of each observation [B] and of those before it, the newest first.

    Before the start of its episode, the first is repeated. Without a history, the rows themselves.

    >>> history_window(np.array([0, 1, 5]), 0, 2).tolist()
    [[0, 0, 0], [1, 0, 0], [5, 4, 3]]
    """
    return np.maximum(rows[:, None] - np.arange(1 + history), np.asarray(start)[..., None]) if history else rows


@dataclass(frozen=True)
class Returns:
    """How rewards follow from labels, and how they add up."""

    gamma: float = 0.99
    n_step: int = 1
    reward: RewardConfig = field(default_factory=RewardConfig)
    terminate_on_success: bool = True  # the first success is terminal, and no step after it is used
    trust_terminated: bool = True  # so is the last step of an episode that was recorded as ended or marked a failure
    whole: int = 0  # windows of this many actions are left out where the time limit cuts them short; 0: none


class StepTable:
    """The steps of one store."""

    def __init__(
        self,
        store: Store,
        returns: Returns,
        sources: Collection[str] | None,
        hold_back: int,
        cameras: Collection[str] | None,
        cache: FeatureCache | None = None,
        frames: "DeviceFrames | None" = None,
        history: int = 0,
        interventions: InterventionConfig | None = None,
        demonstrations: bool = False,
    ):
        """See `ReplaySampler`. demonstrations: whether this store holds them"""
        self.store = store
        self.returns = returns
        self.sources = sources
        self.hold_back = hold_back
        self.cameras = cameras
        self._cache, self._frames, self._history = cache, frames, history
        self.interventions, self._demonstrations = interventions, demonstrations
        self._slots: dict[int, AnyArray] = {}  # episode -> slots of its observations
        self._features: dict[int, dict[str, FloatArray]] = {}  # segment -> column -> features of its rows
        # segment -> column -> map, which outlives an eviction
        self._maps: dict[int, dict[str, MappedColumn | EncodedColumn]] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}  # column or "state", "action" -> shape of one row
        self._rows: AnyArray = np.zeros(0, _row_type(history))
        self._used = 0
        self._blocks: dict[int, slice] = {}  # episode -> its rows
        self._seen = (0, 0)  # generation of the ledger, and its versions seen so far
        self._revision = -1  # of the store, seen so far
        self._rejected: frozenset[str] = frozenset()
        self._has_moved = False  # whether rows of an episode were added again, behind those of later ones
        self._valid: AnyArray | None = None
        self._cloned: tuple[AnyArray, FloatArray | None] | None = None

    def refresh(self, rejected: frozenset[str] = frozenset()) -> int:
        """Catch up with store and ledger; returns how many steps can be sampled. Cheap when nothing is new.

        rejected: fingerprints of models whose labels are not used
        """
        ledger = self.store.ledger
        ledger.refresh()
        seen = (ledger.generation, len(ledger))  # labels before episodes: whatever is labeled by now is stored by then
        self.store.refresh()
        if (seen, self.store.revision, rejected) != (self._seen, self._revision, self._rejected):
            start = self._seen[1] if (seen[0], rejected) == (self._seen[0], self._rejected) else 0
            self._revision, self._rejected = self.store.revision, rejected
            alive = set(self.store.ids)
            moved = set() if self.store.settings.compress_old.is_raw else self._moved(alive)
            self._has_moved |= bool(moved)
            for episode_id in (self._blocks.keys() - alive) | moved:
                self._rows["valid"][self._blocks.pop(episode_id)] = False
                if self._frames is not None:
                    self._frames.remove(self._slots.pop(episode_id))
                if self._cache is not None:
                    self._cache.forget(self.store, episode_id)
            changed = ledger.changed_since(start) | moved | (set() if start else self._blocks.keys())
            for episode_id in sorted(changed & alive):
                with suppress(EpisodeNotFound):  # evicted while this loop runs
                    self._label(episode_id)
            self._seen = seen
            self._valid = self._cloned = None
            if 2 * sum(b.stop - b.start for b in self._blocks.values()) < self._used:
                self._compact()
        return len(self.valid)

    def _moved(self, alive: set[int]) -> set[int]:
        """Episodes that are in another segment now, with compressed frames."""
        ids = [i for i in self._blocks if i in alive]
        before = self._rows["segment"][[self._blocks[i].start for i in ids]].tolist() if ids else []
        return {i for i, segment in zip(ids, before) if self.store.entry(i).segment != segment}

    @property
    def valid(self) -> AnyArray:
        """Numbers of the rows that may be sampled, in the order in which a new table would have them."""
        if self._valid is None:
            valid, episode = (self._rows[name][: self._used] for name in ("valid", "episode"))
            held = sorted(self._blocks)[-self.hold_back :] if self.hold_back else []
            rows = np.flatnonzero(valid & (episode < held[0]) if held else valid)
            self._valid = rows[np.argsort(episode[rows], kind="stable")] if self._has_moved else rows
        return self._valid

    @property
    def cloned(self) -> tuple[AnyArray, FloatArray | None]:
        """Numbers of the rows whose actions are cloned, and how often each is sampled; None: all alike."""
        if self._cloned is None:
            numbers = self.valid[self._rows["cloned"][self.valid] > 0]
            half_life = None if self.interventions is None else self.interventions.half_life
            self._cloned = numbers, sampling_weights(self._rows["episode"][numbers], half_life)
        return self._cloned

    def __getitem__(self, numbers: AnyArray) -> AnyArray:
        return self._rows[numbers]

    def verify(self, numbers: AnyArray) -> None:
        """Compare the bytes behind these rows with their checksums, whole episodes at once, each once."""
        new = numbers[~self._rows["verified"][numbers]]
        if not len(new):
            return
        for episode_id in np.unique(self._rows["episode"][new]).tolist():
            with suppress(EpisodeNotFound):  # evicted since; the maps that are held keep what was there
                self.store.verify(episode_id, self._columns)
            self._rows["verified"][self._blocks[episode_id]] = True

    def arrays(self, picked: AnyArray) -> dict[int, dict[str, Any]]:
        """segment -> column -> [rows, ...] or encoded frames, as far as these rows of the table need it.

        StoreDamaged if a truncated file has lost one of them.
        """
        ends: dict[int, int] = {}
        for number in set(picked["segment"].tolist()):
            rows = picked[picked["segment"] == number]
            ends[number] = int((rows["row"] + rows["left"]).max()) + 1  # the row after the episode's last one
        return {
            n: {
                name: column if isinstance(column := self._maps[n][name], EncodedColumn) else column.checked(end)
                for name in self._columns
            }
            | self._features.get(n, {})
            for n, end in ends.items()
        }

    @property
    def _columns(self) -> list[str]:
        """Those that a batch is made of."""
        if self._cache is not None or self._frames is not None:
            return [STEPS]
        return [STEPS, *self._frame_columns]

    @property
    def _frame_columns(self) -> list[str]:
        return [camera_column(name) for name in self.shapes if name not in ("state", "action")]

    def _label(self, episode_id: int) -> None:
        entry = self.store.entry(episode_id)
        version = self.store.ledger.current(episode_id, self.sources)
        if version is None or (version.model in self._rejected and version.source not in PEOPLE):
            if episode_id in self._blocks:
                self._rows["valid"][self._blocks[episode_id]] = False
            return
        labels = version.labels()
        if labels.steps != entry.steps:
            covers = f"the labels of episode {episode_id} cover {labels.steps} steps, it has {entry.steps}"
            raise DataError(f"{self.store.folder}: {covers}; label it again")
        if episode_id not in self._blocks:
            self._blocks[episode_id] = self._add(episode_id, entry)
        block = self._rows[self._blocks[episode_id]]
        config, line = self.returns.reward, entry.line
        env_info = dict(self.store.episode(episode_id).privileged) if config.reads_env else {}
        ended = np.zeros(entry.steps, bool)
        ended[-1] = self.returns.trust_terminated and (line["terminated"] or line["meta"].get(OPERATOR) == "failure")
        progress = None
        if version.source in PEOPLE and config.shaping:  # labels of people have no progress: the newest judge's counts
            scores = [v.labels().scores for v in self.store.ledger.history(episode_id)]
            measured = [score.progress for score in scores if score is not None and score.progress is not None]
            progress = measured[-1] if measured else None
        if version.source in PEOPLE and progress is None:  # no judge has measured progress: only success is paid
            config = config.model_copy(update={"shaping": 0.0})
        signal = learning_signal(
            Decisions.of(labels, progress),
            ended,
            env_info,
            config,
            self.returns.gamma,
            terminate_on_success=self.returns.terminate_on_success,
        )
        block["reward"], block["discount"], block["span"] = n_step_returns(signal.reward, signal.terminal, self.returns)
        if self._frames is not None:
            following = history_window(block["step"] + block["span"], 0, self._history)
            block["next_slot"] = self._slots[episode_id][following]
        # Judged over its whole span, and through no observation that is only a copy of its neighbor.
        block["valid"] = ~np.isnan(block["reward"]) & signal.used
        if self.interventions is not None and self.interventions.drop_before:
            modes = self._control_mode(entry)
            block["valid"] &= ~steps_before_takeover(modes, self.interventions.drop_before)
        if self.interventions is not None and self.interventions.successes:
            by_person = steps_to_clone(self._control_mode(entry), demonstrations=self._demonstrations)
            block["cloned"] = block["left"] if labels.success_once else by_person
        if self.returns.whole:
            ends = np.maximum.accumulate(signal.terminal[::-1])[::-1]  # whether a terminal step follows, or is this one
            block["valid"] &= (block["left"] >= self.returns.whole) | ends
        if line["repeated"] == "first":
            block["valid"][0] = False
        if line["repeated"] == "last":
            block["valid"] &= (block["step"] + block["span"] < len(block)) | (block["discount"] == 0)

    def _add(self, episode_id: int, entry: EpisodeEntry) -> slice:
        self._map(episode_id, entry)
        rows = slice(self._used, self._used + entry.steps)
        if rows.stop > len(self._rows):
            grown = np.zeros(max(rows.stop, 2 * len(self._rows), 1024), self._rows.dtype)
            grown[: self._used] = self._rows[: self._used]
            self._rows = grown
        block = self._rows[rows]
        block["segment"], block["episode"] = entry.segment, episode_id
        block["step"] = np.arange(entry.steps)
        block["row"] = entry.row + block["step"]
        block["left"] = entry.steps - block["step"]
        block["cloned"] = steps_to_clone(self._control_mode(entry), demonstrations=self._demonstrations)
        self._used = rows.stop
        if self._frames is not None:
            self._slots[episode_id] = slots = self._frames.add(self._load(episode_id))
            block["slot"] = slots[history_window(block["step"], 0, self._history)]
        elif self._cache is not None:
            self._encode(episode_id, entry, self._cache)
        return rows

    def _control_mode(self, entry: EpisodeEntry) -> AnyArray:
        """[T] who acted."""
        column = self._steps(entry.segment).checked(entry.row + entry.rows)
        return column["control_mode"][entry.row : entry.row + entry.steps]

    def _steps(self, segment: int) -> MappedColumn:
        column = self._maps[segment][STEPS]
        assert isinstance(column, MappedColumn)
        return column

    def _load(self, episode_id: int) -> Mapping[str, AnyArray]:
        """The frames of an episode that a batch may hold, or their features."""
        if self._cache is not None:
            return self._cache.features(self.store, episode_id)
        self.store.verify(episode_id, self._frame_columns)
        frames = self.store.episode(episode_id).frames
        return {camera: frames[camera] for camera in self.shapes if camera not in ("state", "action")}

    def _encode(self, episode_id: int, entry: EpisodeEntry, cache: FeatureCache) -> None:
        """Put the features of an episode's frames where its rows are."""
        columns = self._features.setdefault(entry.segment, {})
        end = entry.row + entry.rows
        for camera, values in cache.features(self.store, episode_id).items():
            column = columns.get(camera_column(camera), np.zeros((0, *cache.shapes[camera]), np.float32))
            if end > len(column):
                grown = np.zeros((max(end, 2 * len(column)), *column.shape[1:]), np.float32)
                grown[: len(column)] = column
                columns[camera_column(camera)] = column = grown
            column[entry.row : end] = values

    def _map(self, episode_id: int, entry: EpisodeEntry) -> None:
        """Hold on to the columns of an episode's segment, so that an eviction can't take them from under a sample."""
        held = self._maps.get(entry.segment)
        if held is not None and len(self._steps(entry.segment).array) >= entry.row + entry.rows:
            return
        segment = self.store.segment(entry.segment)
        shapes: dict[str, tuple[int, ...]] = {}
        shapes |= {c: (h, w, 3) for c, h, w in segment.schema.cameras if self.cameras is None or c in self.cameras}
        missing = set(self.cameras or ()) - set(shapes)
        if missing:
            has = ", ".join(c for c, _, _ in segment.schema.cameras) or "none"
            raise DataError(f"{self.store.folder}: episode {episode_id} has no camera '{min(missing)}'; it has: {has}")
        if self._cache is not None:
            shapes = dict(self._cache.shapes)
        shapes |= {"state": (segment.schema.state_dim,), "action": (segment.schema.action_dim,)}
        self.shapes = self.shapes or shapes
        if shapes != self.shapes:
            has, others = (
                ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in each.items())
                for each in (shapes, self.shapes)
            )
            what = f"{self.store.folder}: episode {episode_id} has {has} where others have {others}"
            raise DataError(f"{what}; keep them in separate stores or name the cameras")
        self._maps[entry.segment] = {name: segment.mapped_column(name) for name in segment.schema.columns} | {
            camera_column(camera): encoded_column(segment, camera) for camera, _ in segment.schema.images
        }

    def _compact(self) -> None:
        kept = [self._rows[block] for block in self._blocks.values()]
        self._rows = np.concatenate(kept) if kept else self._rows[:0]
        starts = np.cumsum([0, *(len(rows) for rows in kept)])
        self._blocks = {i: slice(int(a), int(b)) for i, a, b in zip(self._blocks, starts[:-1], starts[1:], strict=True)}
        self._used = len(self._rows)
        self._valid = self._cloned = None
        alive = set(np.unique(self._rows["segment"]).tolist())
        self._maps = {number: maps for number, maps in self._maps.items() if number in alive}
        self._features = {number: columns for number, columns in self._features.items() if number in alive}


def n_step_returns(reward: FloatArray, done: BoolArray, returns: Returns) -> tuple[FloatArray, FloatArray, AnyArray]:
    """For each step: the discounted sum of up to n rewards, the discount of what follows, and how many were summed.

    A sum stops at a terminal step (and nothing follows) or at the episode's end (and the last observation follows).

    >>> r, d, k = n_step_returns(np.float32([1, 1, 1]), np.array([False, False, True]), Returns(0.5, 2))
    >>> r.tolist(), d.tolist(), k.tolist()
    ([1.5, 1.5, 1.0], [0.25, 0.0, 0.0], [2, 2, 1])
    """
    steps = len(reward)
    total, discount = np.zeros(steps, np.float32), np.ones(steps, np.float32)
    span = np.zeros(steps, np.int32)
    going = np.arange(steps)  # the steps whose sum still grows
    for k in range(min(returns.n_step, steps)):
        going = going[going + k < steps]
        total[going] += returns.gamma**k * reward[going + k]
        span[going] = k + 1
        discount[going] = np.where(done[going + k], 0, returns.gamma ** (k + 1))
        going = going[~done[going + k]]
    return total, discount, span
