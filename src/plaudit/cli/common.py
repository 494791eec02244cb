"""What commands share: the two consoles, options, progress bars, how Ctrl-C is heard."""

import io
import math
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from time import monotonic
from typing import Annotated, Any, NoReturn

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from plaudit.cli.console import PlainConsole
from plaudit.errors import DataError, PlauditError, UnclearDataset
from plaudit.memory import keep_freed_memory
from plaudit.trust import allow_code, allow_host

# Typer brings a click of its own or uses the one that is installed, by its version: what the words of a command line
# are answered with when they are none is the base of both.
NotACommand: Any = typer.BadParameter.__mro__[2]
MAX_COUNT, MAX_SEED = 10**9, 2**63 - 1  # of options; as in plaudit.config
MIN_FPS, MAX_FPS = 1e-3, 1e5
out, err = PlainConsole(), PlainConsole(stderr=True)

RobotParams = Annotated[
    Path | None,
    typer.Option(
        "--inference_runtime_params_config",
        "--inference-runtime-params-config",
        help="A robot's inference_runtime_params.json.",
    ),
]
RobotTopics = Annotated[
    Path | None,
    typer.Option(
        "--inference_runtime_topics_config",
        "--inference-runtime-topics-config",
        help="A robot's inference_runtime_topics.json.",
    ),
]
Auto = Annotated[
    bool | None,
    typer.Option(
        "--auto/--no-auto",
        help="Episodes follow each other, and no operator says when the scene is ready or marks them.",
        show_default="in a simulation, and where there is no terminal",
    ),
]


def finite(value: float | None) -> float | None:
    """For options that take a number: neither infinity nor nan is one to wait for or to multiply with."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a number to go by; write one like 0.5")
    return value


def frame_rate(value: float) -> float:
    """For options that take frames per second, 0 for none: neither nan nor a rate that nothing has."""
    if finite(value) and value < MIN_FPS:
        raise typer.BadParameter(f"{value} is below {MIN_FPS} frames per second; write a rate like 30")
    return value


def is_count(text: str) -> bool:
    """Whether `int` reads it as a number from 0 on: `isdigit` also holds for "²", which it does not read."""
    return text.isascii() and text.isdecimal() and len(text) <= 18


def _each(allow: Callable[..., None]) -> Callable[[list[str] | None], list[str] | None]:
    def allowed(names: list[str] | None) -> list[str] | None:
        allow(*(names or ()))
        return names

    return allowed


# They act as soon as they are read, so commands only have to name them.
AllowUntrained = Annotated[
    bool,
    typer.Option(
        "--allow-untrained",
        help="Drive a real robot with a policy that has learned nothing, or without statistics of its actions.",
    ),
]
AllowCode = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PACKAGE",
        help="Import code of this package where a file names it; may be given several times.",
        callback=_each(allow_code),
        show_default=False,
    ),
]
AllowHost = Annotated[
    list[str] | None,
    typer.Option(
        metavar="HOST",
        help="Call this machine where a file names it as a server; may be given several times.",
        callback=_each(allow_host),
        show_default=False,
    ),
]


Watching = tuple[Callable[[Any], bool], Callable[[], bool]]


def training_bar(config: Any, collected: Callable[[], str] | None = None) -> AbstractContextManager[Watching]:
    """Of a training run, by its env steps, or by its episodes where only these are limited.

    collected: counts the episodes that the run has collected, in words
    """
    by_steps = config.max_steps is not None

    def told(now: Any) -> tuple[int, str]:
        evaluated = "" if now.eval_success is None else f", {now.eval_success:.0%} on eval seeds"
        kept = "" if collected is None else f", collected {collected()}"
        done = now.step if by_steps else now.episodes
        return done, f"success {now.judge_success or 0:.0%} in training{evaluated}{kept}"

    ends = "rollout or update" if config.off_policy else "rollout and the update from it"
    return _stoppable_bar(config.max_steps if by_steps else config.max_episodes, told, ends)


def corrected_success(metrics: Mapping[str, float]) -> str:
    """What a run's success is by the audit, beside what it is by the judge; nothing where there was no audit."""
    from plaudit.judges.stats import Interval
    from plaudit.training.audit import CORRECTED

    estimate = Interval.from_metrics(metrics, CORRECTED)
    if estimate is None:
        return ""
    by_judge = f"in training {metrics['audit/judge_success_rate']:.0%} by the judge"
    guarantee = "95% confidence for the last episodes, of which a random sample was checked"
    return f", {by_judge} and {estimate} corrected by the audit ({guarantee})"


def starting() -> AbstractContextManager[object]:
    """While packages are imported that take seconds: on a terminal it shows that something happens."""
    return err.status("starting") if err.is_terminal else nullcontext()


def epochs_bar(epochs: int) -> AbstractContextManager[Watching]:
    """Of a reward model, by the epochs of its members; one that gets no better ends before its last."""
    from plaudit.judges.calibration import NUM_FOLDS
    from plaudit.judges.epochs import StepMetrics

    members, held_out = 1, ""

    def told(now: Any) -> tuple[float, str]:
        nonlocal members, held_out
        if isinstance(now, StepMetrics):
            members, epoch, loss = now.members, now.epoch - 1 + now.step / now.steps, now.loss
        else:
            held_out, epoch, loss = f", {now.validation_loss:.3f} held out", now.epoch, now.train_loss
        who = f"member {now.member + 1} of {members}, " if members > 1 else ""
        done = (now.member * epochs + epoch) / members
        if now.fold:  # of five, after the model itself
            who, done = (
                f"cross-fitting, fold {now.fold} of {NUM_FOLDS}, {who}",
                ((now.fold - 1) * epochs + done) / NUM_FOLDS,
            )
        return done, f"{who}loss {loss:.3f}{held_out}"

    return _stoppable_bar(epochs, told)


def fitting_bar(steps: int) -> AbstractContextManager[Watching]:
    """Of a policy that is taught, by its steps."""
    return _stoppable_bar(steps, lambda now: (now[0], f"loss {now[1]:.3f}"))


@contextmanager
def _stoppable_bar(total: int, told: Callable[[Any], tuple[float, str]], ends: str = "") -> Iterator[Watching]:
    """What a training tells of itself, as a bar on a terminal, else in lines; and whether Ctrl-C was pressed meanwhile.

    Pressed once, it lets the training come to the end of its round or step; pressed again, it interrupts. The bar
    appears with the first of these, so that others may be shown before.

    ends: what it comes to the end of, to be told where that may take more than a moment
    """
    asked: list[int] = []
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}", markup=False),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    bar = Progress(*columns, console=err, disable=not err.is_terminal, transient=True)
    task = bar.add_task("", total=total)
    lines = ProgressLines("training", total)

    def watch(now: Any) -> bool:
        done, words = told(now)
        done = min(done, total)  # a last rollout may go beyond
        bar.start()
        bar.update(task, completed=done, description=words)
        lines.update(done, words)
        return not asked

    def interrupt(number: int, _: Any) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)
        if ends:
            err.print(f"stopping after the current {ends}; Ctrl-C again stops at once")

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield watch, lambda: bool(asked)
    finally:
        signal.signal(signal.SIGINT, before)
        bar.stop()


class ProgressLines:
    """Stands in for a bar where the output is no terminal: a line now and then, with an estimate.

    Each tenth of the work is told, and each minute of it, but never two lines within ten seconds: a command that is
    done sooner says nothing, and the log of a long one stays short.
    """

    def __init__(self, what: str, total: int):
        self._what, self._total = what, total
        self._began = self._told_at = monotonic()
        self._told_tenth = 0
        self._first: tuple[float, float] | None = None  # what was done by when at the first update

    def update(self, done: float, words: str = "") -> None:
        """So much is done by now; printed if a line is due."""
        now = monotonic()
        self._first = self._first or (now, done)
        since, tenth = now - self._told_at, 10 * done // max(self._total, 1)
        if err.is_terminal or since < 10 or (tenth == self._told_tenth and since < 60):
            return
        self._told_at, self._told_tenth = now, tenth
        share = f"{int(done)} of {self._total} ({done / max(self._total, 1):.0%})"
        parts = [share, words, f"{_clock(now - self._began)} elapsed", self._estimate(now, done)]
        err.print(f"{self._what}: {', '.join(filter(None, parts))}")

    def _estimate(self, now: float, done: float) -> str:
        """By what was done since the first update: a training that was resumed began with some of it done."""
        assert self._first is not None
        then, before = self._first
        if done == before:
            return ""
        return f"about {_clock((now - then) / (done - before) * max(self._total - done, 0))} left"


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


def progress(what: str) -> Any:
    """Goes through a sequence with a bar and an estimate, on a terminal; with lines elsewhere. Ctrl-C ends it.

    The C code that decodes video and tables swallows a KeyboardInterrupt now and then, so the request is also kept and
    looked at before each item.
    """

    def track(items: Sequence[Any]) -> Iterable[Any]:
        asked: list[int] = []

        def interrupt(number: int, _: Any) -> None:
            asked.append(number)
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGINT, interrupt)
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        try:
            with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
                lines = ProgressLines(what, len(items))
                for done, item in enumerate(progress.track(items, description=what)):
                    if asked:
                        raise KeyboardInterrupt
                    lines.update(done)
                    yield item
        finally:
            signal.signal(signal.SIGINT, before)

    return track


def store_and_keys(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """The store, which is no KEY=VALUE, and the rest."""
    stores = [word for word in words if "=" not in word]
    if len(stores) > 1:
        raise DataError(f"one store or data set at a time, not {' and '.join(stores)}")
    return (stores[0] if stores else None), [word for word in words if "=" in word]


def check_episodes(path: Path) -> None:
    """Refuse a folder that is neither a store nor a data set, before anything slow."""
    from plaudit.data.formats import layout_of
    from plaudit.data.store import is_store

    if not is_store(path):
        layout_of(path)


def open_episodes(path: Path, options: Any = None) -> Any:
    """The store at `path`; for a data set of another layout, the store next to it, which is made or completed first.

    options: a `ReadOptions` with what the command line says about the data set; None: the command has no such options
    """
    from plaudit.data.store import Store
    from plaudit.data.transfer import open_or_import, store_beside

    try:
        folder, notes = open_or_import(path, None, progress(f"importing {path.name}"), options)
    except UnclearDataset as error:
        if options is not None:
            raise
        how = f"import it with these options (plaudit data import {path} {store_beside(path)}) and run this again"
        raise DataError(f"{error}\n{how}") from error
    except KeyboardInterrupt:
        stop(f"interrupted while {path} was imported; run the same command to resume")
    for note in notes:
        tell("note", note)
    return Store.open(folder)


_stopped: list[str] = []  # what commands said when they were


def stop(sentence: str) -> NoReturn:
    err.print(sentence)
    _stopped.append(sentence)
    raise typer.Exit(130)


def tell(kind: str, sentence: str) -> None:
    styles = {"error": "bold red", "problem": "bold red", "alarm": "bold red", "repaired": "green"}
    err.print(Text.assemble((f"{kind}:", styles.get(kind, "yellow")), f" {sentence}"))


def _interrupt(number: int, frame: Any) -> None:
    """What a scheduler or a service manager sends to stop a process is heard as Ctrl-C, also where that is ignored, as
    a shell has it for what runs in the background."""
    heard = signal.getsignal(signal.SIGINT)
    if not callable(heard):
        raise KeyboardInterrupt
    heard(number, frame)


def run_app(app: typer.Typer) -> NoReturn:
    """Run what the command line asks for; what went wrong is told in sentences.

    Exits with 0; with 1 when something failed, 2 when the command is not one, 130 when somebody stopped it.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # torch's threads spin otherwise, on cores that others need
    keep_freed_memory()
    signal.signal(signal.SIGTERM, _interrupt)
    _stopped.clear()
    try:
        code = app(standalone_mode=False)
        if code == 130 and not _stopped:  # Ctrl-C, where the command itself had nothing to say to it
            err.print("interrupted")
    except (KeyboardInterrupt, typer.Abort):  # before there is a command to hear it; earlier versions of typer
        err.print("interrupted")
        sys.exit(130)
    except NotACommand as error:
        words = io.StringIO()
        error.show(words)
        err.print(words.getvalue(), end="")
        sys.exit(error.exit_code)
    except PlauditError as error:
        for sentence in str(error).splitlines():
            tell("error", sentence)
        sys.exit(1)
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and not re.search("(not enough|allocate|out of) memory", str(error)):
            raise
        tell("error", "there is not enough memory for this; ask for less at a time")  # RuntimeError: as torch says it
        sys.exit(1)
    except OSError as error:  # a folder we may not write to, a disk that went away
        named = " and ".join(str(name) for name in (error.filename, error.filename2) if name is not None)
        tell("error", f"{named}: {error.strerror}" if named else str(error) or type(error).__name__)
        sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)
