"""`plaudit report` and `plaudit eval`: what came of a run."""

from pathlib import Path
from typing import Annotated

import typer

from plaudit.cli.common import out
from plaudit.errors import DataError

RunArgument = Annotated[Path, typer.Argument(help="The folder of a run, like runs/lift_sac_0.")]


def report(run: RunArgument) -> None:
    """Write report.html of a run, also while it is in progress."""
    from plaudit.report.run import write_run_report

    _check_run(run)
    out.print(f"wrote {write_run_report(run)}")


def eval_(
    run: RunArgument,
    episodes: Annotated[int, typer.Option(min=1, max=100_000, help="Episodes to run.")] = 100,
    video: Annotated[bool, typer.Option(help="Also write videos of the first and the last policy.")] = False,
) -> None:
    """Evaluate the latest policy of a run of 'plaudit train' on test seeds.

    No evaluation during training uses these seeds. Prints the success rate by the simulator and by the run's judge.
    """
    from plaudit.report.run import write_run_report
    from plaudit.training.evaluation import examine, film
    from plaudit.training.run_folder import RunFolder

    _check_run(run)
    folder = RunFolder.reopen(run)
    result = examine(folder, episodes)
    out.print(
        f"{run}: success rate {result.success:.0%} (simulator), {result.judged / episodes:.0%} (judge) on {episodes} "
        f"test seeds; they agree on {result.agreed / episodes:.0%} of the episodes"
    )
    if video:
        for path in film(folder):
            out.print(f"wrote {path}")
        out.print(f"wrote {write_run_report(run)}")


def _check_run(run: Path) -> None:
    if not (run / "config.json").exists():
        raise DataError(f"{run} is not the folder of a run: it has no config.json")
