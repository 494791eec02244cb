"""Episodes as pages show them: a row each in the grid, everything about one, and its frames as images."""

import threading
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from plaudit.data.rewards import Decisions, RewardConfig, learning_signal
from plaudit.data.store import Store
from plaudit.errors import DataError, format_count
from plaudit.judges.human.drafts import SOURCE as HUMAN_SOURCE
from plaudit.judges.human.drafts import FrameAnnotation
from plaudit.report.verdict import Tone, Verdict, label_command, quoted, sentence_case
from plaudit.rollout.run import MARK
from plaudit.rule import threshold_of
from plaudit.types import HUMAN, OPERATOR, AnyArray, ByteArray, Episode, FloatArray, Labels
from plaudit.web.pages import as_jpeg, encode_image

PAGE = 60  # episodes
MAX_PAGE = 200
CLIP = 16  # frames of a short view of an episode, side by side in one image
CLIP_WIDTH = 160  # pixels of each
MAX_SERIES = 16  # numbers of a state or an action that are drawn
OUTCOMES = ("success", "failure", "excluded", "withheld", "unlabeled")


def outcome(labels: Labels | None) -> str:
    """Outcome of an episode according to its labels."""
    if labels is None:
        return "unlabeled"
    if labels.withheld:
        return "withheld"
    if not labels.labeled.any():
        return "excluded"
    return "success" if labels.success_once else "failure"


@dataclass
class StoreIndex:
    """The rows of a store's episodes; a row is computed when it is first needed, and again when labels are new."""

    store: Store
    _rows: dict[int, dict[str, Any]] = field(default_factory=dict)
    _seen: tuple[int, int] = (0, 0)  # generation and versions of the ledger
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def prepare(self) -> Iterator[int]:
        """Compute the rows one by one, so that a request in between waits for one row only. Yields their episodes."""
        for episode_id in self.store.ids[::-1]:
            with self._guard:
                self._forget_changed()
                self.row(episode_id)
            yield episode_id

    def page(self, query: Mapping[str, str]) -> dict[str, Any]:
        """The episodes that a query asks for, the newest first, a page of them."""
        with self._guard:
            self._forget_changed()
            ids = self.store.ids[::-1]
            if query.get("order") == "oldest":
                ids = ids[::-1]
            filters = {name: query[name] for name in FILTERS if query.get(name)}
            if filters:
                ids = [i for i in ids if all(FILTERS[name](self.row(i), value) for name, value in filters.items())]
            first = max(0, min(parse_number(query.get("first", "0")), len(ids)))
            count = min(MAX_PAGE, max(1, parse_number(query.get("count", str(PAGE)))))
            return {
                "total": len(self.store.ids),
                "matches": len(ids),
                "first": first,
                "episodes": [self.row(i) for i in ids[first : first + count]],
                "store": self.store.settings.id,
            }

    def summary(self) -> Verdict:
        """Verdict over the labels of all episodes."""
        with self._guard:
            self._forget_changed()
            rows = [self.row(i) for i in self.store.ids]
        return _summary(rows, self.store.folder)

    def _forget_changed(self) -> None:
        ledger = self.store.ledger
        if self._seen[0] != ledger.generation:
            self._rows.clear()
        for episode_id in ledger.changed_since(self._seen[1] if self._rows else len(ledger)):
            self._rows.pop(episode_id, None)
        self._seen = (ledger.generation, len(ledger))

    def row(self, episode_id: int) -> dict[str, Any]:
        """The grid's row for one episode."""
        if episode_id not in self._rows:
            self._rows[episode_id] = self._describe(episode_id)
        return self._rows[episode_id]

    def _describe(self, episode_id: int) -> dict[str, Any]:
        entry, ledger = self.store.entry(episode_id), self.store.ledger
        line, current = entry.line, ledger.current(episode_id)
        newest = {version.source: version for version in ledger.history(episode_id)}
        opinions = {source: version.labels() for source, version in newest.items()}
        outcomes = {source: outcome(labels) for source, labels in opinions.items()}
        decided = {word for word in outcomes.values() if word in ("success", "failure")}
        meta = line["meta"]
        return {
            "id": episode_id,
            "steps": entry.steps,
            "camera": min((camera[0] for camera in self.store.segment(entry.segment).schema.cameras), default=None),
            "task": line["task"],
            "fps": line["fps"],
            "outcome": outcomes[current.source] if current is not None else "unlabeled",
            "source": None if current is None else current.source,
            "opinions": outcomes,
            "disagree": len(decided) > 1,
            "ood": any(labels.ood for labels in opinions.values()),
            "operator": str(meta.get(MARK, "")),
            "weights": meta.get("weights"),
        }


def _summary(rows: Sequence[Mapping[str, Any]], folder: Path) -> Verdict:
    if not rows:
        load = f"plaudit data import DATASET {quoted(folder)}"
        why = "New episodes appear here."
        return Verdict("No episodes yet.", why, "Record episodes, or import a data set", load, "open")
    count = Counter(row["outcome"] for row in rows)
    unlabeled = count["unlabeled"] + count["withheld"]
    disputed, ood = sum(row["disagree"] for row in rows), sum(row["ood"] for row in rows)
    why = ", ".join(f"{count[name]:,} {name}" for name in OUTCOMES if count[name])
    why += f"; judges disagree on {disputed:,}" if disputed else ""
    why += f"; {ood:,} out of distribution" if ood else ""
    result = f"{len(rows) - unlabeled:,} of {format_count(len(rows), 'episode')} labeled."
    why = sentence_case(why)
    if unlabeled:
        return Verdict(result, why, "Label the rest here or with a judge", label_command(folder), "open")
    if disputed:
        disputed_first = f"{label_command(folder)} --order disagreement"
        return Verdict(result, why, "Label the most disputed ones", disputed_first, "open")
    return Verdict(result, why, "Train a judge on these labels", f"plaudit train-reward {quoted(folder)}", "good")


def parse_number(text: str) -> int:
    """A number of a query."""
    try:
        return int(text)
    except ValueError:
        raise DataError(f"'{text}' is not a whole number") from None


FILTERS: dict[str, Any] = {
    "outcome": lambda row, value: row["outcome"] == value,
    "source": lambda row, value: value in row["opinions"],
    "disagree": lambda row, value: row["disagree"],
    "ood": lambda row, value: row["ood"],
    "operator": lambda row, value: row["operator"] == value,
    "task": lambda row, value: value.lower() in row["task"].lower(),
    "weights": lambda row, value: str(row["weights"]) == value,
    "id": lambda row, value: str(row["id"]) == value,
}


def describe_episode(store: Store, episode_id: int, rewards: RewardConfig) -> dict[str, Any]:
    """Everything about one episode but its frames. rewards: how the learner computes them"""
    episode, entry = store.episode(episode_id), store.entry(episode_id)
    history = store.ledger.history(episode_id)
    current = store.ledger.current(episode_id)
    ids = store.ids
    place = ids.index(episode_id)
    judged = traces(store, episode_id, episode)
    return {
        "id": episode_id,
        "verdict": as_json(_episode_verdict(store, judged, None if current is None else current.source)),
        "store": store.settings.id,
        "previous": ids[place - 1] if place else None,
        "next": ids[place + 1] if place + 1 < len(ids) else None,
        "steps": episode.steps,
        "fps": episode.fps,
        "task": episode.task,
        "robot": episode.robot,
        "terminated": episode.terminated,
        "meta": {name: str(value)[:200] for name, value in entry.line["meta"].items()},
        "cameras": {name: list(frames.shape[1:3]) for name, frames in sorted(episode.frames.items())},
        "state": _series(episode.state),
        "actions": _series(episode.actions),
        "by_person": _ranges(episode.control_mode == HUMAN),
        "labels": None if current is None else _frames(current.labels()),
        "rewards": [] if current is None else _numbers(rewards_of(episode, current.labels(), rewards)),
        "traces": judged,
        "history": [
            {
                "number": version.number,
                "source": version.source,
                "time": version.time,
                "remark": version.labels().remark,
                "summary": FrameAnnotation.from_labels(episode, version.labels()).summary,
                "counts": version is current,
            }
            for version in history
        ],
    }


def _episode_verdict(store: Store, judged: Sequence[Mapping[str, Any]], counts: str | None) -> Verdict:
    label = label_command(store.folder)
    if counts is None:
        return Verdict("Not labeled.", "It has no label from a judge or a person.", "Label it here", label, "open")
    outcomes = {one["source"]: one["outcome"] for one in judged}
    own = outcomes.get(counts, "labeled")
    result = f"{own.capitalize()}, by {counts}."
    others = [f"{source} says {other}" for source, other in outcomes.items() if source != counts]
    ood = [f"{one['source']} reports it as out of distribution" for one in judged if one["ood"]]
    why = "; ".join([*others, *ood]) or "no other label"
    disputed = any(other != own for other in outcomes.values())
    advice = "Label it here: judges disagree" if disputed and counts != HUMAN_SOURCE else "Look at the frames below"
    tone: Tone = "open" if disputed else "good" if own == "success" else "bad"
    return Verdict(result, sentence_case(why), advice, tone=tone)


def rewards_of(episode: Episode, labels: Labels, config: RewardConfig) -> FloatArray:
    """[T] the reward after each action, NaN where a learner does not use the step."""
    if labels.steps != episode.steps:
        return np.full(episode.steps, np.nan, np.float32)
    ended = np.zeros(episode.steps, bool)
    ended[-1] = episode.terminated or episode.meta.get(OPERATOR) == "failure"
    env_info = dict(episode.privileged) if config.reads_env else {}
    signal = learning_signal(Decisions.of(labels), ended, env_info, config, gamma=1.0)
    return np.where(signal.used, signal.reward, np.float32(np.nan))


def as_json(verdict: Verdict) -> dict[str, str]:
    """For a page."""
    return {**asdict(verdict), "command": as_typed(verdict.command)}


def as_typed(text: object) -> str:
    """A command or a message with paths relative to where the server was started, as a person would type them."""
    return str(text).replace(f"{Path.cwd()}/", "")


def traces(store: Store, episode_id: int, episode: Episode) -> list[dict[str, Any]]:
    """The newest scores of each judge: P(success) of each frame, and task progress."""
    newest = {version.source: version for version in store.ledger.history(episode_id)}
    shown: list[dict[str, Any]] = []
    for version in sorted(newest.values(), key=lambda v: v.time, reverse=True):
        labels = version.labels()
        if labels.steps != episode.steps:  # of another episode; `plaudit data check` reports it
            continue
        progress = None if labels.scores is None else labels.scores.progress
        shown.append(
            {
                "source": version.source,
                "time": version.time,
                "ood": labels.ood,
                "outcome": outcome(labels),
                "frames": _frames(labels),
                "probs": None if labels.scores is None else _numbers(labels.frame_probs),
                "threshold": threshold_of(labels.judge),
                "progress": None if progress is None else _numbers(progress),
            }
        )
    return shown


def _frames(labels: Labels) -> list[int | None]:
    """1, 0 or None of each frame."""
    return [None if not labeled else int(hit) for hit, labeled in zip(labels.success, labels.labeled, strict=True)]


def _ranges(flags: AnyArray) -> list[list[int]]:
    """First and last step of each stretch that is true."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], flags.astype(int), [0]])))
    return [[int(first), int(end) - 1] for first, end in zip(edges[::2], edges[1::2], strict=True)]


def _series(values: AnyArray) -> list[list[float | None]]:
    """A list for each number, of the first ones."""
    return [_numbers(column) for column in np.asarray(values, np.float64)[:, :MAX_SERIES].T]


def _numbers(values: AnyArray) -> list[float | None]:
    return [None if not np.isfinite(v) else round(float(v), 4) for v in values]


class FrameReader:
    """Frames as images. Episodes that were read last stay open."""

    def __init__(self, most: int = 16):
        self._most = most
        self._open: OrderedDict[tuple[int, int], Episode] = OrderedDict()
        self._guard = threading.Lock()

    def image(self, store: Store, episode_id: int, camera: str, frame: int, width: int | None) -> tuple[bytes, str]:
        """The encoded image and its media type. width: of a small copy; None: as it is"""
        if width is None:
            pixels = self._camera(store, episode_id, camera)
            if not 0 <= frame < len(pixels):
                raise DataError(f"episode {episode_id} has frames 0 to {len(pixels) - 1}, not {frame}")
            return encode_image(Image.fromarray(np.ascontiguousarray(pixels[frame])))
        picture = Image.fromarray(store.some_frames(episode_id, camera, [frame])[0])
        if width >= picture.width:
            return encode_image(picture)
        picture = picture.resize((width, max(1, round(width * picture.height / picture.width))))
        return as_jpeg(picture, quality=80), "image/jpeg"

    def clip(self, store: Store, episode_id: int, camera: str) -> bytes:
        """CLIP frames at equal distances, the last one included, side by side as a JPEG."""
        chosen = np.linspace(0, store.entry(episode_id).steps, CLIP).round().astype(int).tolist()
        frames = store.some_frames(episode_id, camera, chosen)
        height = min(CLIP_WIDTH * 4, max(1, round(CLIP_WIDTH * frames.shape[1] / frames.shape[2])))
        image = Image.new("RGB", (CLIP * CLIP_WIDTH, height))
        for n, frame in enumerate(frames):
            picture = Image.fromarray(frame)
            image.paste(picture.resize((CLIP_WIDTH, height)), (n * CLIP_WIDTH, 0))
        return as_jpeg(image, quality=80)

    def _camera(self, store: Store, episode_id: int, camera: str) -> ByteArray:
        frames = self._episode(store, episode_id).frames
        if camera not in frames:
            raise DataError(f"episode {episode_id} has no camera '{camera}'; it has: {', '.join(frames)}")
        return frames[camera]

    def _episode(self, store: Store, episode_id: int) -> Episode:
        key = (id(store), episode_id)
        with self._guard:
            if key not in self._open:
                self._open[key] = store.episode(episode_id)
                if len(self._open) > self._most:
                    self._open.popitem(last=False)
            self._open.move_to_end(key)
            return self._open[key]
