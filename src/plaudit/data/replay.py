"""Replay: batches of transitions from labeled episodes on disk, indices first, then one gather a column.

    replay = ReplaySampler(store, gamma=0.97)                       # one store
    replay = ReplaySampler.mix(demos, online, ratio=0.5)            # RLPD: half of each batch from demonstrations
    batch = replay.sample(256)                               # numpy
    for batch in replay.batches(256, form="torch", device="cuda"):   # filled ahead in the background
        ...

A transition's next observation is a row number, not a copy: it is the row one step on, or n steps on for n-step
returns, and never beyond its episode. Each frame of a batch is copied once, from the page cache to its place in the
batch, which is why this is limited by memory bandwidth and little else. The order within a batch is random, in a mix
too, so a batch may be split into smaller ones.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from plaudit.data.batch import Allocate, BufferPool, FeatureCache, cuda_available, pinned_empty, to_tensordict, to_torch
from plaudit.data.demonstrations import InterventionConfig
from plaudit.data.frame_decoder import EncodedColumn, Wanted
from plaudit.data.rewards import RewardConfig
from plaudit.data.segments import STEPS, camera_column
from plaudit.data.step_table import Returns, StepTable, history_window
from plaudit.data.store import Store
from plaudit.errors import DataError, format_count
from plaudit.types import AnyArray, Batch, FloatArray

if TYPE_CHECKING:
    from plaudit.data.device_frames import DeviceFrames

MAX_THREADS = 4  # on 16 cores, four copy 2.9 times faster than one and eight 3.8 times
Form = Literal["numpy", "torch", "tensordict"]


@dataclass(frozen=True)
class _Source:
    """Rows of a table that share a part of each batch."""

    table: StepTable
    part: int
    share: float
    numbers: AnyArray
    weights: FloatArray | None = None  # how often each is sampled; None: all alike
    cloned_only: bool = False  # the actions after a person has let go do not count

    def sample(self, count: int, rng: np.random.Generator) -> AnyArray:
        """Numbers of rows, with replacement."""
        if self.weights is None:
            return self.numbers[rng.integers(len(self.numbers), size=count)]
        return rng.choice(self.numbers, size=count, p=self.weights)


@dataclass(frozen=True)
class _Picks:
    """Rows of a table, and the positions of a batch that they fill."""

    source: _Source
    where: AnyArray
    rows: AnyArray

    @property
    def table(self) -> StepTable:
        """Where the rows are from."""
        return self.source.table


class ReplaySampler:
    """Samples uniformly over the labeled steps of one or several stores."""

    def __init__(
        self,
        *stores: Store,
        shares: Sequence[float] = (),
        gamma: float = 0.99,
        n_step: int = 1,
        horizon: int | None = None,
        whole_windows: bool = False,
        history: int = 0,
        sources: Sequence[Collection[str] | None] = (),
        cameras: Collection[str] | None = None,
        reward: RewardConfig | None = None,
        terminate_on_success: bool = True,
        trust_terminated: Sequence[bool] = (),
        hold_back: Sequence[int] = (),
        features: FeatureCache | None = None,
        frames: "DeviceFrames | None" = None,
        interventions: InterventionConfig | None = None,
        demonstrations: bool = False,
        seed: int | None = None,
        threads: int | None = None,
        allocate: Allocate | None = None,
    ):
        """
        shares: of each batch, one a store (or part, with interventions), summing to 1; equal when not given
        horizon: windows of this many actions, `[B, H, A]`; None for single actions, `[B, A]`
        whole_windows: leave out windows of `horizon` actions that the time limit cuts short
        history: earlier observations of the episode in front of each, `[B, 1 + history, ...]`; 0: none, `[B, ...]`
        sources: of each store, whose labels count ("human", "classifier", ...); None, or () for all stores: whoever
            counts by the store's order of sources
        cameras: which to gather; None for all, () for none
        reward: how rewards follow from labels; None: 1 where the judge saw success
        trust_terminated: of each store, whether an episode that was recorded as ended has no future even where the
            judge sees no success; () for yes
        hold_back: of each store, how many of its newest labeled episodes are not sampled yet; () for none
        features: of frames, which batches hold instead of the frames
        frames: keeps frames or features on a GPU, for `sample_torch`; None: they are read from the disk
        interventions: the last store is a run's own and part 1 of a batch; its steps in which a person acted are also
            in part 0, with the demonstrations of a store before it. None: parts are numbered like the stores
        demonstrations: all stores hold demonstrations; of an episode that a person and a policy shared, only the
            person's steps are sampled
        threads: that copy frames at once; None for one a core, four at most
        """
        if not stores:
            raise DataError("replay needs at least one store")
        if n_step < 1 or (horizon is not None and horizon < 1) or not 0 <= gamma <= 1:
            raise DataError(f"n_step={n_step} and horizon={horizon} must be at least 1, gamma={gamma} within [0, 1]")
        parts = len(stores) if interventions is None else 2
        self.shares = np.asarray(shares or [1 / parts] * parts)
        if len(self.shares) != parts or (self.shares < 0).any() or abs(self.shares.sum() - 1) > 1e-6:
            raise DataError(f"shares must be one a store and sum to 1, got {list(shares)} for {len(stores)} stores")
        if interventions is not None and len(stores) > 2:
            raise DataError(f"interventions need one store of demonstrations at most, got {len(stores) - 1}")
        recorded = trust_terminated or [True] * len(stores)
        rewards, whole = reward or RewardConfig(), (horizon or 1) if whole_windows else 0
        returns = [Returns(gamma, n_step, rewards, terminate_on_success, ends, whole) for ends in recorded]
        whose = sources or [None] * len(stores)
        if len(whose) != len(stores) or any(isinstance(names, str) for names in whose):
            raise DataError(f"sources must be one set of names a store, got {sources} for {len(stores)} stores")
        held = hold_back or [0] * len(stores)
        tables = list(zip(stores, returns, whose, held, strict=True))
        kinds = [(None, demonstrations or interventions is not None)] * (len(stores) - 1)
        kinds += [(interventions, demonstrations)]
        self._make_tables = lambda frames: [
            StepTable(*table, cameras, features, frames, history, *kind)
            for table, kind in zip(tables, kinds, strict=True)
        ]
        self._demonstrations = demonstrations
        self._frames = frames
        self._tables: list[StepTable] = self._make_tables(frames)
        self._image_dtype = np.uint8 if features is None else np.float32
        self._horizon, self._history = horizon, history
        self._allocate = allocate or BufferPool().empty
        self._workers = threads or min(MAX_THREADS, os.cpu_count() or 1)
        self._threads = ThreadPoolExecutor(self._workers, thread_name_prefix="replay-copy")
        self._guard = threading.Lock()  # the prefetching thread and the caller's share the tables
        self.rng = np.random.default_rng(seed)  # save and restore `rng.bit_generator.state` for an exact resume
        self.refresh()

    @classmethod
    def mix(cls, demos: Store, online: Store, ratio: float = 0.5, **options: Any) -> Self:
        """`ratio` of each batch from the demonstrations; while one of the two is empty, the other fills the batch.

        A ratio of 0 therefore allows pretraining: demonstrations are sampled until there is experience of one's own.
        """
        return cls(demos, online, shares=(ratio, 1 - ratio), **options)

    def refresh(self, rejected: frozenset[str] = frozenset()) -> int:
        """See new episodes, labels and evictions; returns how many steps can be sampled.

        rejected: fingerprints of models whose labels are not used, since an alarm has stopped them
        """
        with self._guard:
            if self._frames is None or self._frames.required:
                return sum(table.refresh(rejected) for table in self._tables)
            from plaudit.data.device_frames import FramesDoNotFit

            try:
                return sum(table.refresh(rejected) for table in self._tables)
            except FramesDoNotFit:
                self._frames = None
                self._tables = self._make_tables(None)
                return sum(table.refresh(rejected) for table in self._tables)

    def __len__(self) -> int:
        return sum(len(table.valid) for table in self._tables)

    def sample(self, size: int) -> Batch[AnyArray]:
        """`size` transitions, with replacement."""
        with self._guard:
            picks = self._pick(size)
            try:
                return self._gather(size, picks)
            except MemoryError as error:
                shapes = ", ".join(f"{name} {list(shape)}" for name, shape in self._shapes(picks).items())
                raise DataError(
                    f"a batch of {size} takes more memory than there is ({shapes}); sample fewer, or fewer cameras"
                ) from error

    def sample_torch(
        self,
        size: int,
        device: Any,
        prepare: Callable[[Batch[AnyArray]], Batch[AnyArray]] = lambda batch: batch,
    ) -> Batch[Any]:
        """The same as tensors on a device. prepare: changes a batch before, except for its frames"""
        if self._frames is None:
            if str(device).startswith("cuda"):
                self._allocate = pinned_empty
            return to_torch(prepare(self.sample(size)), device)
        with self._guard:
            picks = self._pick(size)
            batch = to_torch(prepare(self._gather(size, picks)), device)
            now, following = slots = np.empty((2, size, *self._window), np.int64)
            for pick in picks:
                slots[:, pick.where] = pick.rows["slot"], pick.rows["next_slot"]
            return replace(batch, images=self._frames.gather(now), next_images=self._frames.gather(following))

    def batches(
        self,
        size: int,
        *,
        form: Form = "numpy",
        device: Any = None,
        prefetch: int = 2,
        refresh_seconds: float = 1.0,
    ) -> Generator[Any, None, None]:
        """Batches without end, filled by a background thread that stays `prefetch` ahead and keeps up with the store.

        In torch form with a GPU there, batches lie in pinned memory. Closing the generator ends the thread.
        """
        if form != "numpy" and cuda_available():
            self._allocate = pinned_empty
        convert = {"numpy": lambda b, _: b, "torch": to_torch, "tensordict": to_tensordict}[form]
        refreshed = time.monotonic()

        def fill() -> Any:
            nonlocal refreshed
            if time.monotonic() - refreshed > refresh_seconds:
                self.refresh()
                refreshed = time.monotonic()
            return convert(self.sample(size), device)

        background = ThreadPoolExecutor(1, thread_name_prefix="replay-prefetch")
        try:
            ahead = deque(background.submit(fill) for _ in range(max(1, prefetch)))
            while True:
                batch = ahead.popleft().result()
                ahead.append(background.submit(fill))
                yield batch
        finally:
            background.shutdown(cancel_futures=True)

    @property
    def _window(self) -> tuple[int, ...]:
        """The dimension of a history, if there is one."""
        return (1 + self._history,) if self._history else ()

    def _sources(self) -> list[_Source]:
        """What a batch is made of. While a store is empty, the others fill the batch."""
        *others, own = self._tables
        if own.interventions is None:
            rows = [table.cloned if self._demonstrations else (table.valid, None) for table in self._tables]
            sources = [
                _Source(table, part, share, *rows[part], cloned_only=self._demonstrations)
                for part, (table, share) in enumerate(zip(self._tables, self.shares, strict=True))
            ]
        else:
            ratio, rest = self.shares
            numbers, weights = own.cloned
            shown = sum(len(table.cloned[0]) for table in others)  # steps of demonstrations
            share = own.interventions.share
            if share is None or (share and not shown):
                share = len(numbers) / max(1, len(numbers) + shown)
            rest_of_part = ratio * (1 - share * bool(len(numbers)))
            sources = [_Source(table, 0, rest_of_part, *table.cloned, cloned_only=True) for table in others]
            if share:
                sources.append(_Source(own, 0, ratio * share, numbers, weights, cloned_only=True))
            sources += [_Source(own, 1, rest, own.valid)]
        filled = [source for source in sources if len(source.numbers)]
        return [source for source in filled if source.share] or filled

    def _pick(self, size: int) -> list[_Picks]:
        """Which rows go where: the shares of a batch, rounded, among the stores that are not empty."""
        sources = self._sources()
        if not sources:
            stores = (table.store for table in self._tables)
            has = "; ".join(
                f"{s.folder} has {format_count(len(s), 'episode')} and {format_count(len(s.ledger), 'label')}"
                for s in stores
            )
            raise DataError(f"there is nothing to sample yet: {has}")
        shares = np.array([source.share for source in sources])
        if shares.sum() == 0:  # only stores with a share of 0 have steps
            shares = np.ones(len(sources))
        edges = np.rint(np.cumsum(shares / shares.sum()) * size).astype(int)
        positions = np.arange(size) if len(self.shares) == 1 else self.rng.permutation(size)
        picks: list[_Picks] = []
        for source, start, stop in zip(sources, [0, *edges[:-1]], edges):
            if stop > start:
                numbers = source.sample(stop - start, self.rng)
                source.table.verify(numbers)
                picks.append(_Picks(source, positions[start:stop], source.table[numbers]))
        return picks

    def _gather(self, size: int, picks: list[_Picks]) -> Batch[AnyArray]:
        shapes = self._shapes(picks)
        cameras = [name for name in shapes if name not in ("state", "action") and self._frames is None]
        horizon, many = self._horizon or 1, (size, *self._window)
        new = self._allocate
        batch: Batch[AnyArray] = Batch(
            images={c: new((*many, *shapes[c]), self._image_dtype) for c in cameras},
            state=new((*many, *shapes["state"]), np.float32),
            actions=new((size, horizon, *shapes["action"]), np.float32),
            action_mask=new((size, horizon), np.bool_),
            reward=new((size,), np.float32),
            discount=new((size,), np.float32),
            next_images={c: new((*many, *shapes[c]), self._image_dtype) for c in cameras},
            next_state=new((*many, *shapes["state"]), np.float32),
            episode=new((size,), np.int64),
            step=new((size,), np.int64),
            part=new((size,), np.int64),
        )
        for pick in picks:
            self._fill(batch, pick, cameras)
        return batch if self._horizon else replace(batch, actions=batch.actions[:, 0])

    def _fill(self, batch: Batch[AnyArray], pick: _Picks, cameras: list[str]) -> None:
        rows, where = pick.rows, pick.where
        segment, row, start = rows["segment"], rows["row"], rows["row"] - rows["step"]
        now, following = (history_window(each, start, self._history) for each in (row, row + rows["span"]))
        columns = pick.table.arrays(rows)
        copies = [(c, now, batch.images[c]) for c in cameras] + [(c, following, batch.next_images[c]) for c in cameras]
        if self._image_dtype == np.float32:  # features are so small that starting a thread would take longer
            for camera, wanted, out in copies:
                _copy_rows({n: each[camera_column(camera)] for n, each in columns.items()}, segment, wanted, out, where)
            copies = []
        encoded = {
            c for c in cameras for each in columns.values() if isinstance(each.get(camera_column(c)), EncodedColumn)
        }
        # Several pieces for each array, so that every thread has something to do.
        count = min(max(1, self._workers // max(1, len(copies))), len(rows))
        pieces = [slice(a, b) for a, b in pairwise(np.linspace(0, len(rows), count + 1).astype(int))]
        waiting = [
            self._threads.submit(_copy_frames, columns, camera_column(c), segment[p], wanted[p], out, where[p])
            for c, wanted, out in copies
            if c not in encoded
            for p in pieces
        ]
        for camera in sorted(encoded):
            both = [(now, batch.images[camera]), (following, batch.next_images[camera])]  # often neighbors
            pieces = [slice(a, b) for a, b in pairwise(np.linspace(0, len(rows), self._workers + 1).astype(int))]
            waiting += [
                self._threads.submit(
                    _decode_frames,
                    {number: each[camera_column(camera)] for number, each in columns.items()},
                    *(segment[p], start[p], [(wanted[p], out) for wanted, out in both], where[p]),
                )
                for p in pieces
            ]
        _copy_fields(columns, "state", segment, now, batch.state, where)
        _copy_fields(columns, "state", segment, following, batch.next_state, where)
        ahead = np.arange(batch.actions.shape[1])
        counted = rows["cloned" if pick.source.cloned_only else "left"]
        batch.action_mask[where] = ahead < counted[:, None]
        window = row[:, None] + np.minimum(ahead, rows["left"][:, None] - 1)  # past the end: the last action again
        _copy_fields(columns, "action", segment, window, batch.actions, where)
        for name in ("reward", "discount", "episode", "step"):
            getattr(batch, name)[where] = rows[name]
        batch.part[where] = pick.source.part
        for copy in waiting:
            copy.result()

    def _shapes(self, picks: list[_Picks]) -> dict[str, tuple[int, ...]]:
        first = picks[0].table
        for other in (pick.table for pick in picks[1:]):
            if other.shapes != first.shapes:
                raise DataError(
                    f"{first.store.folder} and {other.store.folder} cannot be mixed: "
                    f"{first.shapes} against {other.shapes}; name the cameras they share"
                )
        return first.shapes


Columns = dict[int, dict[str, Any]]  # segment -> column -> [rows, ...], or encoded frames


def _copy_frames(
    columns: Columns, name: str, segments: AnyArray, rows: AnyArray, out: AnyArray, where: AnyArray
) -> None:
    first, start, stop = int(segments[0]), int(where[0]), int(where[-1]) + 1
    in_order = stop - start == len(where) and (np.diff(where) == 1).all()
    if in_order and (segments == first).all():
        np.take(columns[first][name], rows, axis=0, out=out[start:stop], mode="clip")  # "raise" would copy twice
        return
    maps = {number: columns[number][name] for number in set(segments.tolist())}
    for position, segment, row in zip(where.tolist(), segments.tolist(), rows.tolist()):
        out[position] = maps[segment][row]


def _decode_frames(
    columns: Mapping[int, AnyArray | EncodedColumn],
    segments: AnyArray,
    starts: AnyArray,
    copies: Sequence[tuple[AnyArray, AnyArray]],
    where: AnyArray,
) -> None:
    """Copy frames of which some are encoded. columns: segment -> frames. starts: the first rows of their episodes"""
    wanted: dict[int, list[Wanted]] = {}
    for rows, out in copies:
        places = where.tolist(), segments.tolist(), starts.tolist(), rows.tolist()
        for position, segment, start, row in zip(*places):
            column = columns[segment]
            if isinstance(column, EncodedColumn):
                targets = zip(row, out[position]) if isinstance(row, list) else [(row, out[position])]
                wanted.setdefault(segment, []).extend((start, one - start, target) for one, target in targets)
            else:
                out[position] = column[row]
    for segment, items in wanted.items():
        column = columns[segment]
        assert isinstance(column, EncodedColumn)
        column.read(items)


def _copy_fields(
    columns: Columns, field: str, segments: AnyArray, rows: AnyArray, out: AnyArray, where: AnyArray
) -> None:
    _copy_rows({number: each[STEPS][field] for number, each in columns.items()}, segments, rows, out, where)


def _copy_rows(
    arrays: Mapping[int, AnyArray], segments: AnyArray, rows: AnyArray, out: AnyArray, where: AnyArray
) -> None:
    """Copy rows of these arrays, one for each segment, to their places."""
    for segment, array in arrays.items():
        chosen = segments == segment
        out[where[chosen]] = array[rows[chosen]]
