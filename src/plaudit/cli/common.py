"""What all commands share: the two consoles, progress bars, how Ctrl-C is heard."""

import signal
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

# No markup: paths and messages of files are shown as they are, brackets and all.
out = Console(highlight=False, markup=False, soft_wrap=True)
err = Console(highlight=False, markup=False, soft_wrap=True, stderr=True)


@contextmanager
def training_bar(steps: int) -> Iterator[tuple[Any, Any]]:
    """What a training run tells of itself, as a bar on a terminal; and whether Ctrl-C was pressed meanwhile."""
    asked: list[int] = []
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err, disable=not err.is_terminal, transient=True) as bar:
        task = bar.add_task("first round", total=steps, visible=False)

        def watch(now: Any) -> bool:
            held = "" if now.evaluated is None else f", {now.evaluated:.0%} on seeds held back"
            bar.update(
                task, completed=now.step, description=f"success {now.success:.0%} in training{held}", visible=True
            )
            return not asked

        before = signal.signal(signal.SIGINT, lambda number, _: asked.append(number))
        try:
            yield watch, lambda: bool(asked)
        finally:
            signal.signal(signal.SIGINT, before)


def progress(what: str) -> Any:
    """Goes through a sequence with a bar and an estimate, on a terminal; silent elsewhere. Ctrl-C ends it.

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
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        try:
            with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
                for item in progress.track(items, description=what):
                    if asked:
                        raise KeyboardInterrupt
                    yield item
        finally:
            signal.signal(signal.SIGINT, before)

    return track


def stop(sentence: str) -> NoReturn:
    err.print(sentence)
    raise typer.Exit(130)


def tell(kind: str, sentence: str) -> None:
    styles = {"error": "bold red", "problem": "bold red", "repaired": "green"}
    err.print(Text.assemble((f"{kind}:", styles.get(kind, "yellow")), f" {sentence}"))
