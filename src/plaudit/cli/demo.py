"""`plaudit demo`."""

from pathlib import Path
from typing import Annotated

import typer

from plaudit.cli.common import epochs_bar, out, progress, stop, tell, training_bar


def demo(
    folder: Annotated[Path, typer.Option("--output-dir", "-o", help="The folder to write.")] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seed of everything random.")] = 0,
) -> None:
    """Run the whole pipeline in small, in two to four minutes.

    Collects labeled episodes, trains a reward model on their images, trains a policy on its labels, then measures the
    true success rate on test seeds. Ctrl-C stops; the same command resumes.
    """
    from plaudit.judges.epochs import TrainingInterrupted
    from plaudit.training.demo import MIN_SUCCESS_RATE, DemoDisplay, run_demo

    try:
        result = run_demo(folder, DemoDisplay(out, progress, epochs_bar, training_bar), seed)
    except (KeyboardInterrupt, TrainingInterrupted):
        stop(f"stopped; resume with: plaudit demo --output-dir {folder} --seed {seed}")
    if result.success_rate < MIN_SUCCESS_RATE:
        tell("problem", f"that is below {MIN_SUCCESS_RATE:.0%}")
        raise typer.Exit(1)
