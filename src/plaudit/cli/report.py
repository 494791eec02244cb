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
    """Evaluate the latest policy of a run on test seeds; of a run in simulation.

    No evaluation during training uses these seeds. Prints the success rate by the simulator and by the run's judge.
    """
    from plaudit.report.run import write_run_report
    from plaudit.training.evaluation import evaluate_run, record_videos
    from plaudit.training.run_folder import RunFolder

    _check_run(run)
    folder = RunFolder.reopen(run)
    result = evaluate_run(folder, episodes)
    line = f"{run}: success rate {result.success_rate:.0%} (simulator)"
    if result.judge_successes is not None and result.agreements is not None:
        judge, agree = result.judge_successes / episodes, result.agreements / episodes
        line += f", {judge:.0%} (judge); they agree on {agree:.0%} of the episodes"
    out.print(f"{line}; {episodes} test seeds")
    if video:
        for path in record_videos(folder):
            out.print(f"wrote {path}")
        out.print(f"wrote {write_run_report(run)}")


def _check_run(run: Path) -> None:
    if not (run / "config.yaml").exists():
        raise DataError(f"{run} is not the folder of a run: it has no config.yaml")
