"""The command line: one command a verb. Each parses, builds, runs and says in a few lines what happened."""

from typing import Annotated

import typer

from plaudit import __version__
from plaudit.cli.cluster import cluster
from plaudit.cli.collect import collect_
from plaudit.cli.common import out, run_app
from plaudit.cli.data import data
from plaudit.cli.env import env
from plaudit.cli.judge import judge
from plaudit.cli.label import label_
from plaudit.cli.online import online
from plaudit.cli.policy import train_policy
from plaudit.cli.reward import train_reward
from plaudit.cli.robot import robot
from plaudit.cli.run import run_
from plaudit.cli.train import demo, train_

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
app.add_typer(data, name="data", help="Bring episodes in and out, look at them, label them, check them.")
app.add_typer(env, name="env", help="Look at simulated tasks, time them, record scripted episodes.")
app.add_typer(robot, name="robot", help="Look at robots, check what one sends before it moves, run its twin.")
app.add_typer(judge, name="judge", help="Measure and calibrate judges.")
app.add_typer(cluster, name="cluster", help="Make several machines one: start, stop, look, check.")
app.command("collect")(collect_)
app.command("label")(label_)
app.command("train-reward")(train_reward)
app.command("train")(train_)
app.command("run")(run_)
app.command("train-policy")(train_policy)
app.command("online")(online)
app.command("demo")(demo)


def main() -> None:
    """What the `plaudit` command runs."""
    run_app(app)


@app.callback(invoke_without_command=True)
def top(version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False) -> None:
    """Train robot policies from what the camera sees."""
    if version:
        out.print(f"plaudit {__version__}")
        raise typer.Exit
