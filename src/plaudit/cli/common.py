"""What commands share: the two consoles, progress bars, opening episodes, and how a command ends."""

import io
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from datetime import timedelta
from itertools import count
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, NoReturn

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from plaudit.errors import DataError, PlauditError, UnclearDataset, did_you_mean, without_prefix
from plaudit.processes import keep_freed_memory
from plaudit.trust import plain

if TYPE_CHECKING:
    from plaudit.data.store import Store

# Typer has its own copy of click or uses the installed one, depending on its version.
UsageError: Any = typer.BadParameter.__mro__[2]
NoSuchOption: Any = vars(sys.modules[UsageError.__module__])["NoSuchOption"]


class PlainConsole(Console):
    """A rich console that interprets nothing in its text: no markup, no emoji codes, no control characters."""

    def __init__(self, **options: Any):
        super().__init__(highlight=False, markup=False, emoji=False, soft_wrap=True, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Escape all text; only `control` segments, which are rich's own, pass as they are."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(plain(segment.text), segment.style)


out, err = PlainConsole(), PlainConsole(stderr=True)


Watching = tuple[Callable[[Any], bool], Callable[[], bool]]


def training_bar(config: Any, collected: Callable[[], str] | None = None) -> AbstractContextManager[Watching]:
    """The progress of a training run in env steps, or in episodes if only these are limited.

    collected: describes the episodes that the run has collected
    """
    by_steps = config.max_steps is not None

    def describe(now: Any) -> tuple[int, str]:
        evaluated = "" if now.eval_success is None else f", {now.eval_success:.0%} on eval seeds"
        kept = "" if collected is None else f", collected {collected()}"
        done = now.step if by_steps else now.episodes
        return done, f"success {now.judge_success or 0:.0%} in training{evaluated}{kept}"

    ends = "rollout or update" if config.off_policy else "rollout and the update from it"
    return _stoppable_bar(config.max_steps if by_steps else config.max_episodes, describe, ends)


def corrected_success(metrics: Mapping[str, float]) -> str:
    """A run's success rate by the judge and corrected by the audit; empty without an audit."""
    from plaudit.judges.stats import Interval
    from plaudit.training.audit import CORRECTED

    estimate = Interval.from_metrics(metrics, CORRECTED)
    if estimate is None:
        return ""
    by_judge = f"in training {metrics['audit/judge_success_rate']:.0%} by the judge"
    guarantee = "95% confidence for the last episodes, of which a random sample was checked"
    return f", {by_judge} and {estimate} corrected by the audit ({guarantee})"


def starting(doing: str = "starting") -> AbstractContextManager[object]:
    """Shown on a terminal while packages are imported or a machine is checked, which takes seconds."""
    return err.status(doing) if err.is_terminal else nullcontext()


def epochs_bar(epochs: int) -> AbstractContextManager[Watching]:
    """The progress of a reward model's training in epochs of its members; training may stop early."""
    from plaudit.judges.calibration import NUM_FOLDS
    from plaudit.judges.epochs import StepMetrics

    members, held_out = 1, ""

    def describe(now: Any) -> tuple[float, str]:
        nonlocal members, held_out
        if isinstance(now, StepMetrics):
            members, epoch, loss = now.members, now.epoch - 1 + now.step / now.steps, now.loss
        else:
            held_out, epoch, loss = f", {now.validation_loss:.3f} held out", now.epoch, now.train_loss
        who = f"member {now.member + 1} of {members}, " if members > 1 else ""
        done = (now.member * epochs + epoch) / members
        if now.fold:  # after the model itself
            who = f"cross-fitting, fold {now.fold} of {NUM_FOLDS}, {who}"
            done = ((now.fold - 1) * epochs + done) / NUM_FOLDS
        return done, f"{who}loss {loss:.3f}{held_out}"

    return _stoppable_bar(epochs, describe)


def fitting_bar(steps: int) -> AbstractContextManager[Watching]:
    """The progress of behavior cloning in steps."""
    return _stoppable_bar(steps, lambda now: (now[0], f"loss {now[1]:.3f}"))


@contextmanager
def _stoppable_bar(total: int, describe: Callable[[Any], tuple[float, str]], ends: str = "") -> Iterator[Watching]:
    """A progress bar, and whether Ctrl-C was pressed.

    The first Ctrl-C lets the training finish its round or step, the second interrupts it. The bar appears with the
    first update, so that other bars may be shown before.

    ends: what is finished after Ctrl-C, if that may take a while
    """
    message = f"stopping after the current {ends}; Ctrl-C again stops at once" if ends else ""
    with second_ctrl_c(message) as asked, closing(ProgressBar("training", total)) as bar:

        def watch(now: Any) -> bool:
            done, words = describe(now)
            bar.update(min(done, total), words)  # the last rollout may exceed it
            return not asked()

        yield watch, asked


@contextmanager
def on_ctrl_c(handler: Callable[[int, Any], None]) -> Iterator[None]:
    """Handle Ctrl-C in another way for a while."""
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def second_ctrl_c(message: str) -> Iterator[Callable[[], bool]]:
    """Only the second Ctrl-C interrupts this block. Yields whether the first was pressed. message: printed then"""
    asked: list[int] = []  # signals

    def interrupt(number: int, _: Any) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)
        if message:
            err.print(message)

    with on_ctrl_c(interrupt):
        yield lambda: bool(asked)


@contextmanager
def writing_report(doing: str = "writing the report") -> Iterator[None]:
    """While a run's report is written: a message, and an answer to the first Ctrl-C. The second one interrupts."""
    with second_ctrl_c("the report is written first; Ctrl-C again leaves it out"), starting(doing):
        yield


class ProgressBar:
    """A progress bar on a terminal; elsewhere a line now and then, with an estimate.

    A line is printed for each tenth of the work and for each minute, but never two within ten seconds.
    """

    def __init__(self, what: str, total: int):
        from rich import progress as bars
        from rich.table import Column

        self._what, self._total = what, total
        self._bar_column = bars.BarColumn(table_column=Column(no_wrap=True))
        wraps = Column(overflow="fold")  # the others do not
        text = bars.TextColumn("{task.description}", markup=False, table_column=wraps)
        count = bars.MofNCompleteColumn(table_column=Column(no_wrap=True))
        times = [kind(table_column=Column(no_wrap=True)) for kind in (bars.TimeElapsedColumn, bars.TimeRemainingColumn)]
        self._bar = bars.Progress(self._bar_column, count, text, *times, console=err, transient=True)
        self._task = self._bar.add_task(what, total=total)
        self._began = self._printed_at = monotonic()
        self._printed_tenth = 0
        self._first: tuple[float, float] | None = None  # what was done by when at the first update

    def update(self, done: float, words: str = "") -> None:
        """Move the bar, or print a line if enough time has passed."""
        if err.is_terminal:
            text, others = words or self._what, 2 * len(str(self._total)) + 20  # widths of count, times and gaps
            self._bar_column.bar_width = min(40, max(10, err.width - len(text) - others))
            self._bar.start()
            self._bar.update(self._task, completed=done, description=text)
            return
        now = monotonic()
        self._first = self._first or (now, done)
        since, tenth = now - self._printed_at, 10 * done // max(self._total, 1)
        if since < 10 or (tenth == self._printed_tenth and since < 60):
            return
        self._printed_at, self._printed_tenth = now, tenth
        parts = [f"{int(done)} of {self._total} ({done / max(self._total, 1):.0%})", words]
        parts.append(f"{timedelta(seconds=round(now - self._began))} elapsed")
        then, before = self._first  # a resumed training starts with some of the work done
        if done != before:
            left_s = (now - then) / (done - before) * max(self._total - done, 0)
            parts.append(f"about {timedelta(seconds=round(left_s))} left")
        err.print(f"{self._what}: {', '.join(filter(None, parts))}")

    def close(self) -> None:
        """Remove the bar."""
        if err.is_terminal:  # else it would print an empty line
            self._bar.stop()


def progress(what: str) -> Any:
    """A function that iterates over a sequence with a progress bar. Ctrl-C ends it.

    C code that decodes video and tables sometimes swallows a KeyboardInterrupt, so the request is also checked before
    each item.
    """

    def track(items: Sequence[Any]) -> Iterable[Any]:
        asked: list[int] = []

        def interrupt(number: int, _: Any) -> None:
            asked.append(number)
            raise KeyboardInterrupt

        with on_ctrl_c(interrupt), closing(ProgressBar(what, len(items))) as bar:
            for done, item in enumerate(items):
                if asked:
                    raise KeyboardInterrupt
                bar.update(done)
                yield item

    return track


def store_and_keys(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """The store, which is not a KEY=VALUE, and the rest."""
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
    """The store at `path`, or next to the data set at `path`; `options` as for `episodes_folder`."""
    from plaudit.data.store import Store

    return Store.open(episodes_folder(path, options))


def episodes_folder(path: Path, options: Any = None) -> Path:
    """The store at `path`; for a data set of another format, the store next to it, which is created or updated first.

    Every command that takes a store opens it by this function.

    options: a `ReadOptions` from the command line; None if the command has no such options
    """
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
    tell("note", *notes)
    return folder


def with_stores(config: Any) -> Any:
    """A training config whose demonstrations are a store, if they are in a data set of another format."""
    if config.demos.store is None or not config.demos.store.exists():
        return config
    demos = config.demos.model_copy(update={"store": episodes_folder(config.demos.store)})
    return config.model_copy(update={"demos": demos})


@contextmanager
def open_or_create(folder: Path, images: str | None = None) -> Iterator["Store"]:
    """A store to add to; a new one that stays empty is removed again. images: how frames are stored; None: raw"""
    from plaudit.data.store import Store, is_store

    if is_store(folder):
        from plaudit.rollout.recording import label_marked

        with Store.open_or_create(folder, images=images) as store:
            if store.ids:  # a command that was killed may have stored an episode without its label
                label_marked(store, store.ids[-1])
            yield store
        return
    try:
        with Store.open_or_create(folder, images=images) as store:
            yield store
    finally:
        if is_store(folder) and not len(Store.open(folder)):
            shutil.rmtree(folder)


def free_path(folder: Path, name: str, suffix: str = "") -> Path:
    """The first of runs/judge_eval/vlm_0, vlm_1, ... that does not exist."""
    return next(path for number in count() if not (path := folder / f"{name}_{number}{suffix}").exists())


_stopped: list[str] = []  # messages of commands that were stopped


def stop(sentence: str) -> NoReturn:
    """End a command that the user stopped."""
    err.print(sentence)
    _stopped.append(sentence)
    raise typer.Exit(130)


def tell(kind: str, *sentences: str) -> None:
    """Print messages to stderr, a line each: `warning: ...`."""
    styles = {"error": "bold red", "problem": "bold red", "alarm": "bold red", "repaired": "green"}
    for sentence in sentences:
        err.print(Text.assemble((f"{kind}:", styles.get(kind, "yellow")), f" {sentence}"))


def _interrupt(number: int, frame: Any) -> None:
    """Handle SIGTERM like Ctrl-C, even if SIGINT is ignored, as it is in background jobs of a shell."""
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler):
        raise KeyboardInterrupt
    handler(number, frame)


def nearest_option(error: Any) -> str:
    """The end of the message of an unknown option: the one most similar, the one that takes it as a key, or all."""
    key = f",{error.option_name.lstrip('-')}="
    names = []
    for option in error.ctx.command.get_params(error.ctx):
        name = option.opts[0]
        if name.startswith("--"):
            if key in (option.help or ""):  # --judge robometer,model=FOLDER
                return f"did you mean '{name} {str(option.metavar).split('[')[0]}{key}...'?"
            names.append(name)
    return did_you_mean(error.option_name, names)


def run_app(app: typer.Typer) -> NoReturn:
    """Run the command line and print errors as sentences.

    Exits with 0, with 1 when something failed, with 2 for a wrong command line, with 130 when the user stopped it.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # otherwise torch's idle threads use whole cores
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")  # numpy's, for 0.1 s after its import
    keep_freed_memory()
    signal.signal(signal.SIGTERM, _interrupt)
    _stopped.clear()
    try:
        code = app(standalone_mode=False)
        if code == 130 and not _stopped:  # Ctrl-C without a message of the command
            err.print("interrupted")
    except (KeyboardInterrupt, typer.Abort):  # before the command runs, and in earlier versions of typer
        err.print("interrupted")
        sys.exit(130)
    except UsageError as error:
        if isinstance(error, NoSuchOption):
            error.message, error.possibilities = f"{error.message}; {nearest_option(error)}", None
        words = io.StringIO()
        error.show(words)
        err.print(without_prefix(words.getvalue().rstrip("\n")))  # typer converts with pydantic
        sys.exit(error.exit_code)
    except PlauditError as error:
        tell("error", *str(error).splitlines())
        sys.exit(1)
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and not re.search("(not enough|allocate|out of) memory", str(error)):
            raise
        tell("error", "there is not enough memory for this; ask for less at a time")
        sys.exit(1)
    except OSError as error:  # for example a read-only folder
        named = " and ".join(str(name) for name in (error.filename, error.filename2) if name is not None)
        tell("error", f"{named}: {error.strerror}" if named else str(error) or type(error).__name__)
        sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)
