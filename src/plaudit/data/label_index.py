"""Label versions in memory, 48 bytes each; everything else is read from the ledger when it is needed.

A run of weeks writes one or two labels an episode and evicts episodes, but never labels. As parsed lines they took
kilobytes each, in every part of the run that follows the ledger. So a row holds the episode, the judge, the time and
the position of the line, and the arrays stay in the file. The file is held open: a repair replaces it by another file,
which is then read from its start.

A row is added in one call, so that Ctrl-C leaves no partial row.
"""

import base64
import math
import struct
import zlib
from array import array
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import numpy as np

from plaudit.data.entries import MAX_ID, is_int_in, is_time
from plaudit.data.journal import JournalFile, Record, damage_error
from plaudit.data.label_order import LabelOrder
from plaudit.files import brief
from plaudit.types import CascadeResult, FloatArray, JudgeId, Labels, RuleId, Scores

FORMAT = 2  # of a line; the first had none
MAX_SCORE = 1e30  # of a threshold, which float32 can hold
NONE = 0xFFFFFFFF  # in a row: not restored, nothing before it
MAX_STEPS = 1 << 22  # of an episode with labels: 11 hours at 100 Hz
MAX_ID_GAP = 1024  # ids that nobody has labeled, up to which the table of newest rows has a plain place for each


class _Row(NamedTuple):
    episode: int
    offset: int  # byte of the file at which its line begins
    time: float
    length: int  # of its line, without the end
    number: int
    restored: int
    before: int  # row of the same episode's version before this one
    source: int  # these two by their numbers among the texts
    model: int


T = TypeVar("T")
_ROW = struct.Struct("<qqdIIIIII")
_TIME = struct.Struct("<d")
_INVALID_LINE = (KeyError, TypeError, ValueError, OverflowError, zlib.error)  # what a line made by hand may raise


@dataclass(frozen=True, slots=True)
class LabelVersion:
    """One entry of an episode's history. `labels()` reads the arrays from the ledger."""

    episode: int
    number: int  # 1, 2, ... per episode
    source: str
    model: str
    time: float
    restored_from: int | None
    _file: JournalFile = field(repr=False)
    _offset: int = field(repr=False)
    _length: int = field(repr=False)

    @property
    def line(self) -> Record:
        """The whole record, read from the ledger and verified each time."""
        line = self._file.record(self._offset, self._length)
        # A line with other labels fits its own checksum too, where somebody wrote over the file.
        if not is_label_line(line) or _key(line) != (self.episode, self.source, _TIME.pack(self.time)):
            raise damage_error(self._file.path, f"other labels stand where those of episode {self.episode} were read")
        return line

    def labels(self) -> Labels:
        return self._decode_line(decode_labels)

    def recorded_rewards(self) -> FloatArray | None:
        """[T] rewards that the first format kept with the labels; None where they say no more than success does.

        Labels hold no rewards any more; `reward.env_reward=dense` learns from these where the episode has no other.
        """
        return self._decode_line(_recorded_rewards)

    @property
    def judge(self) -> JudgeId:
        """Whose labels these are."""
        return parse_judge_id(self.line)

    def _decode_line(self, decode: Callable[[Record], T]) -> T:
        line = self.line
        try:
            return decode(line)
        except _INVALID_LINE as error:
            raise damage_error(
                self._file.path, f"version {self.number} of episode {self.episode}'s labels makes no sense ({error})"
            ) from error


class LabelIndex:
    """Rows of one file, in the order of its lines."""

    def __init__(self, file: JournalFile):
        self._file = file
        self._rows = bytearray()
        self._newest = _Newest()
        self._texts: list[str] = []
        self._numbers: dict[str, int] = {}  # of the texts
        self.last_id = -1  # the highest id of an episode that has labels

    def __len__(self) -> int:
        return len(self._rows) // _ROW.size

    def add(self, line: Record, offset: int, length: int) -> None:
        """Take in the next line."""
        if not is_label_line(line):
            raise damage_error(self._file.path, f"a line holds no labels ({str(line)[:200]})")
        episode, count = line["episode"], len(self)
        if count and self._row(count - 1).offset == offset:  # a Ctrl-C came between this and what follows it
            self._newest[episode] = count - 1
            return
        self.last_id = max(self.last_id, episode)
        before = self._newest[episode]
        number = 1 if before == NONE else self._row(before).number + 1
        restored = NONE if line["restored"] is None else line["restored"]
        texts = self._text(line["source"]), self._text(line["model"])
        self._rows += _ROW.pack(episode, offset, line["time"], length, number, restored, before, *texts)
        self._newest[episode] = count

    def since(self, count: int) -> list[LabelVersion]:
        """All but the first `count`, in the order they came."""
        return [self._version(row) for row in self._rows_since(count)]

    def changed_since(self, count: int) -> set[int]:
        return {row.episode for row in self._rows_since(count)}

    def numbers_since(self, count: int) -> list[int]:
        return [row.number for row in self._rows_since(count)]

    def newest(self, episode: int, sources: Collection[str] | None) -> LabelVersion | None:
        """Of certain judges, or of any."""
        for row in self._back_from_newest(episode):
            if sources is None or self._texts[row.source] in sources:
                return self._version(row)
        return None

    def current(self, episode: int, sources: Collection[str] | None, order: LabelOrder) -> LabelVersion | None:
        """The newest of those that rank highest; one that was restored ranks with the first."""
        best: tuple[int, _Row] | None = None
        for row in self._back_from_newest(episode):
            source = self._texts[row.source]
            if sources is not None and source not in sources:
                continue
            rank = 0 if row.restored != NONE else order.rank(source)
            if best is None or rank < best[0]:
                best = rank, row
            if rank == 0:
                break
        return None if best is None else self._version(best[1])

    def history(self, episode: int) -> list[LabelVersion]:
        """Oldest first."""
        return [self._version(row) for row in self._back_from_newest(episode)][::-1]

    def _back_from_newest(self, episode: int) -> Iterator[_Row]:
        at = self._newest[episode]
        while at != NONE:
            row = self._row(at)
            yield row
            at = row.before

    def _row(self, at: int) -> _Row:
        return _Row._make(_ROW.unpack_from(self._rows, at * _ROW.size))

    def _rows_since(self, count: int) -> Iterator[_Row]:
        # Of a copy: nothing can be added to a bytearray while somebody iterates over it.
        return map(_Row._make, _ROW.iter_unpack(bytes(self._rows[count * _ROW.size :])))

    def _version(self, row: _Row) -> LabelVersion:
        return LabelVersion(
            episode=row.episode,
            number=row.number,
            source=self._texts[row.source],
            model=self._texts[row.model],
            time=row.time,
            restored_from=None if row.restored == NONE else row.restored,
            _file=self._file,
            _offset=row.offset,
            _length=row.length,
        )

    def _text(self, text: str) -> int:
        """Its number; a source or a model is kept once, however many lines name it."""
        if text not in self._numbers:
            self._texts.append(text)
            self._numbers[text] = len(self._texts) - 1
        return self._numbers[text]


class _Newest:
    """Episode -> its newest row. Ids count up from 0, so nearly all have a plain place, 4 bytes; a dict takes 120."""

    def __init__(self) -> None:
        self._plain = array("I")
        self._others: dict[int, int] = {}

    def __getitem__(self, episode: int) -> int:
        """NONE where there is none."""
        if 0 <= episode < len(self._plain) and self._plain[episode] != NONE:
            return self._plain[episode]
        return self._others.get(episode, NONE)

    def __setitem__(self, episode: int, row: int) -> None:
        missing = episode + 1 - len(self._plain)
        if 0 < missing <= MAX_ID_GAP:
            self._plain.extend([NONE] * missing)
        if 0 <= episode < len(self._plain):
            self._plain[episode] = row
        else:
            self._others[episode] = row


def is_label_line(line: Record) -> bool:
    """Whether these are an episode, a judge, a time and a version, as far as a row needs them."""
    restored = line.get("restored", 0)
    return (
        is_int_in(line.get("episode"), 0, MAX_ID - 1)
        and isinstance(line.get("source"), str)
        and isinstance(line.get("model"), str)
        and is_time(line.get("time"))
        and (restored is None or is_int_in(restored, 1, NONE - 1))
        and is_int_in(line.get("steps"), 0, MAX_STEPS)
    )


def _key(line: Record) -> tuple[int, str, bytes]:
    return line["episode"], line["source"], _TIME.pack(line["time"])  # as bytes: NaN is not equal to itself


def encode_labels(episode_id: int, labels: Labels, restored_from: int | None) -> Record:
    """The line of an episode's labels."""
    scores = labels.scores
    parts = [labels.success.astype("u1").tobytes(), labels.labeled.astype("u1").tobytes()]
    if scores is not None:
        measured = (scores.success_prob, scores.progress)
        parts += [values.astype("<f4").tobytes() for values in measured if values is not None]
    return {
        "format": FORMAT,
        "episode": episode_id,
        "source": labels.judge.source,
        "model": labels.judge.fingerprint,
        "rule": str(labels.judge.rule or ""),
        "time": labels.time,
        "note": labels.note,
        "restored": restored_from,
        "steps": labels.steps,
        "scores": 0 if scores is None else 1 if scores.progress is None else 2,  # arrays
        "data": base64.b64encode(zlib.compress(b"".join(parts))).decode(),
        **({"ood": scores.ood} if scores is not None and scores.ood else {}),
        **({"progress_model": labels.judge.progress} if labels.judge.progress else {}),
        **({"review": True} if labels.review else {}),
        **({"cascade": vars(scores.cascade)} if scores is not None and scores.cascade else {}),
    }


def can_decode(line: Record) -> bool:
    """Whether a line that is about to be written can be read back."""
    try:
        decode_labels(line)
    except _INVALID_LINE:
        return False
    return True


def _is_score(value: Any) -> bool:
    """None, or a number of which float32 has a neighbor: infinity too, 10 to the 400 not."""
    return value is None or (
        isinstance(value, float | int) and type(value) is not bool and not MAX_SCORE < abs(value) < math.inf
    )


def decode_labels(line: Record) -> Labels:
    """The labels of a line, of this version of the format or the one before."""
    if not all(isinstance(text, str) for text in (line["note"], line.get("rule", ""), _ood(line))):
        raise ValueError("its note or its rule is none")
    if line.get("format", 1) == 1:
        return _decode_format_1(line)
    frames, count = line["steps"] + 1, line["scores"]
    if line["format"] != FORMAT or not is_int_in(count, 0, 2):
        raise ValueError(f"its format is {brief(line['format'])}, with {brief(count)} scores")
    data = _data(line, (2 + 4 * count) * frames)
    flags = np.frombuffer(data, "u1", 2 * frames).astype(bool)
    arrays = [np.frombuffer(data, "<f4", frames, offset=(2 + 4 * i) * frames) for i in range(count)]
    cascade = _cascade(line["cascade"]) if "cascade" in line else None
    scores = Scores(arrays[0], *arrays[1:], ood=_ood(line), cascade=cascade) if arrays else None
    return Labels(
        success=flags[:frames],
        labeled=flags[frames:],
        judge=parse_judge_id(line),
        scores=scores,
        time=line["time"],
        note=line["note"],
        review=bool(line.get("review", line["note"] == "success from the first frame on, to be reviewed")),
    )


def parse_judge_id(line: Record) -> JudgeId:
    """Whose labels a line has. A rule of the first format never equals one of today."""
    rule, threshold = line.get("rule", ""), line.get("threshold")
    if line.get("format", 1) == 1 and (rule or threshold is not None):
        return JudgeId(line["source"], line["model"], RuleId(threshold, f"earlier: {rule or line.get('note')}"))
    return JudgeId(line["source"], line["model"], RuleId.parse(str(rule)), str(line.get("progress_model", "")))


def _cascade(tree: Record) -> CascadeResult:
    return CascadeResult(str(tree["decided_by"]), float(tree["cost_s"]), str(tree["why"]))


def _ood(line: Record) -> Any:
    """Why the episode is out of distribution; older lines call it "unlike"."""
    return line.get("ood", line.get("unlike", ""))


def _decode_format_1(line: Record) -> Labels:
    """The first format kept a reward and a success of each action, and one number for the first observation."""
    steps, threshold, start = line["steps"], line["threshold"], line["start"]
    if type(line["probability"]) is not bool or not (_is_score(threshold) and _is_score(start)):
        raise ValueError(f"its threshold is {brief(threshold)}, its first frame {brief(start)}")
    data = _data(line, (9 if line["probability"] else 5) * steps)
    first = np.float32(np.nan if start is None else start)
    labeled = np.append(~np.isnan(first), ~np.isnan(np.frombuffer(data, "<f4", steps)))
    success = np.append(
        first >= np.float32(0.5 if threshold is None else threshold),
        np.frombuffer(data, "u1", steps, offset=4 * steps).astype(bool),
    )
    prob = None
    if line["probability"]:
        prob = np.append(first, np.frombuffer(data, "<f4", steps, offset=5 * steps)).astype(np.float32)
    return Labels(
        success=success & labeled,
        labeled=labeled,
        judge=parse_judge_id(line),
        scores=None if prob is None else Scores(prob),
        time=line["time"],
        note=line["note"],
    )


def _recorded_rewards(line: Record) -> FloatArray | None:
    if line.get("format", 1) != 1:
        return None
    rewards = np.frombuffer(_data(line, (9 if line["probability"] else 5) * line["steps"]), "<f4", line["steps"])
    given = rewards[~np.isnan(rewards)]
    return None if ((given == 0) | (given == 1)).all() else rewards


def _data(line: Record, size: int) -> bytes:
    data = zlib.decompressobj().decompress(base64.b64decode(line["data"]), size + 1)
    if len(data) != size:
        raise ValueError(f"{len(data)} bytes for {line['steps']} steps")
    return data
