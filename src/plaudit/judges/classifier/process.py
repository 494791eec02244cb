"""A home for a model in a process of its own, and how it is talked to.

    remote = Remote(partial(Inline, config))     # makes the real one there
    remote.ask("see", observation)               # what the real one would have said

Questions go over a pipe, images through one block of shared memory that is used again and again: they are copied once,
by who asks, and read where they are. The block loses its name as soon as both sides have it open, so that no way of
dying leaves one behind. (Rejected: queues, which pickle every image, and sockets, which copy it twice more.)

The process dies with its parent, because its pipe ends then. It never sees Ctrl-C, which is for its parent to handle.
A question that it answers with one of our errors raises that sentence here; anything worse ends it, with a traceback of
its own, and whoever waits is told so.
"""

import multiprocessing
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from plaudit.errors import PlauditError, RewardError
from plaudit.judges.classifier.judge import Judgement
from plaudit.judges.classifier.model import Size
from plaudit.types import AnyArray, Observation

Question = Literal["score", "start", "see", "judge"]

PATIENCE = 300.0  # seconds that an answer may take: loading a model from a slow disk, an hour's episode on a processor
ALIGNMENT = 64  # bytes between places where an array may begin


@dataclass(frozen=True)
class About:
    """What has to be known of a model without having it."""

    threshold: float
    has_progress: bool
    fingerprint: str
    cameras: Mapping[str, Size]


class Home(Protocol):
    """Where a model lives."""

    about: About

    def ask(self, question: Question, seen: Observation) -> Judgement:
        """
        score: frames that have nothing to do with each other
        start, see: the first and the next frames of N scenes
        judge: all frames of one episode
        """
        ...

    def save(self, folder: Path) -> None:
        """Into a new folder."""
        ...

    def close(self) -> None: ...


class Place(NamedTuple):
    """An array in the block."""

    offset: int
    shape: tuple[int, ...]
    dtype: str


class Layout(NamedTuple):
    """An observation in the block."""

    images: dict[str, Place]
    state: Place


class Remote:
    """A `Home` in a process of its own."""

    def __init__(self, make: Callable[[], Home]):
        """make: what builds the real one there; it has to survive pickling"""
        context = multiprocessing.get_context("spawn")  # a fork of a process with threads, or with CUDA, may hang
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(make, theirs), daemon=True, name="reward worker")
        self._guard = threading.Lock()
        self._block: SharedMemory | None = None
        self._asked = 0
        with _deaf():
            self._process.start()
        theirs.close()
        try:
            self.about: About = self._answer()
        except BaseException:
            self.close()
            raise

    def ask(self, question: Question, seen: Observation) -> Judgement:
        with self._guard:
            self._make_room(sum(_padded(array.nbytes) for array in (*seen.images.values(), seen.state)))
            return self._call("ask", question, self._put(seen))

    def save(self, folder: Path) -> None:
        with self._guard:
            self._call("save", folder.resolve())

    def close(self) -> None:
        """Ends the process; asked twice, does nothing."""
        self._pipe.close()
        self._process.join(5)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        if self._block is not None:
            self._block.close()
            self._block = None

    def _make_room(self, size: int) -> None:
        if self._block is not None and self._block.size >= size:
            return
        block = SharedMemory(create=True, size=max(size, 1))
        try:
            self._call("open", block.name)
        finally:
            block.unlink()
        if self._block is not None:
            self._block.close()
        self._block = block

    def _put(self, seen: Observation) -> Layout:
        places: list[Place] = []
        offset = 0
        for array in (*seen.images.values(), seen.state):
            assert self._block is not None
            places.append(Place(offset, array.shape, array.dtype.str))
            _view(self._block, places[-1])[...] = array
            offset += _padded(array.nbytes)
        return Layout(dict(zip(seen.images, places, strict=False)), places[-1])

    def _call(self, what: str, *arguments: Any) -> Any:
        if self._pipe.closed:
            raise RewardError("this reward worker is closed; make a new one")
        self._asked += 1
        try:
            self._pipe.send((self._asked, what, arguments))
        except OSError:
            raise self._died() from None
        return self._answer()

    def _answer(self) -> Any:
        """To the newest question; an answer to one before it is of a call that was interrupted."""
        while True:
            ready = wait([self._pipe, self._process.sentinel], PATIENCE)
            if not ready:
                raise RewardError(
                    f"the reward worker (process {self._process.pid}) has said nothing for {PATIENCE:g} s"
                )
            if not self._pipe.poll():
                raise self._died()
            try:
                number, answered, answer = self._pipe.recv()
            except (EOFError, OSError):
                raise self._died() from None
            if number == self._asked:
                if not answered:
                    raise RewardError(answer)
                return answer

    def _died(self) -> RewardError:
        self._process.join(5)
        code = self._process.exitcode
        killed = " (killed, often because memory ran out)" if code == -signal.SIGKILL else ""
        return RewardError(
            f"the reward worker's process {self._process.pid} ended with exit code {code}{killed}; "
            "see what it printed, and start again"
        )


def serve(make: Callable[[], Home], pipe: Connection) -> None:
    """The process: answers until nobody is left to ask."""
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        made, home = _tried(make)
        pipe.send((0, made, home.about if made else home))
        served = _Served(home)
        while made:
            number, what, arguments = pipe.recv()
            pipe.send((number, *_tried(partial(served.answer, what, *arguments))))


def _tried(call: Callable[[], Any]) -> tuple[bool, Any]:
    """Whether it went well, and what came of it or the sentence that says why not."""
    try:
        return True, call()
    except (PlauditError, OSError) as error:
        return False, str(error)


class _Served:
    """The home on its own side of the pipe, and the block seen from there."""

    def __init__(self, home: Home):
        self._home = home
        self._block: SharedMemory | None = None

    def answer(self, what: str, *arguments: Any) -> Any:
        if what == "open":
            return self._open(*arguments)
        if what == "save":
            return self._home.save(*arguments)
        question, layout = arguments
        return self._home.ask(question, self._read(layout))

    def _open(self, name: str) -> None:
        if self._block is not None:
            self._block.close()
        self._block = SharedMemory(name)

    def _read(self, layout: Layout) -> Observation:
        """Views, which are gone before the next question comes."""
        block = self._block
        assert block is not None
        images = {camera: _view(block, place) for camera, place in layout.images.items()}
        return Observation(images, _view(block, layout.state))


def _view(block: SharedMemory, place: Place) -> AnyArray:
    return np.ndarray(place.shape, place.dtype, buffer=block.buf, offset=place.offset)


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


@contextmanager
def _deaf() -> Iterator[None]:
    """A process started in this block never hears Ctrl-C, not even while it imports; here it is heard afterwards."""
    resource_tracker.ensure_running()  # or its start, as part of ours, would open our ears again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
