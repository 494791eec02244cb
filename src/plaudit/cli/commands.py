"""All commands. Each parses its arguments, builds objects, runs them and prints the result."""

from typing import Annotated

import typer

from plaudit import __version__
from plaudit.cli.cluster import cluster
from plaudit.cli.common import out
from plaudit.cli.config import config
from plaudit.cli.data import data
from plaudit.cli.env import collect_, env
from plaudit.cli.judge import judge
from plaudit.cli.label import label_
from plaudit.cli.online import online
from plaudit.cli.options import option
from plaudit.cli.report import demo, eval_, report
from plaudit.cli.reward import TrainProgressCommand, TrainRewardCommand, train_progress, train_reward
from plaudit.cli.robot import robot
from plaudit.cli.run import run_
from plaudit.cli.train import ONLINE_HELP, TRAIN_HELP, train_, train_policy

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
app.add_typer(data, name="data", help="Import, export, inspect, label and check episodes.")
app.add_typer(env, name="env", help="List, view and benchmark simulated tasks; record scripted episodes.")
app.add_typer(robot, name="robot", help="List robots, check the streams of one, run its simulated twin.")
app.add_typer(judge, name="judge", help="Evaluate and calibrate judges; explanations of a vision-language model.")
app.add_typer(cluster, name="cluster", help="Start, stop and check a Ray cluster of several machines.")
app.add_typer(config, name="config", help="Show config keys and choices; copy example configs.")
app.command("collect")(collect_)
app.command("label")(label_)
app.command("train-reward", cls=TrainRewardCommand)(train_reward)
app.command("train-progress", cls=TrainProgressCommand)(train_progress)
app.command("train", epilog=TRAIN_HELP)(train_)
app.command("run")(run_)
app.command("train-policy")(train_policy)
app.command("online", epilog=ONLINE_HELP)(online)
app.command("report")(report)
app.command("eval")(eval_)
app.command("demo")(demo)


@app.callback(invoke_without_command=True)
def top(version: Annotated[bool, option("Print the version and exit.", "--version")] = False) -> None:
    """Train robot policies from what the camera sees."""
    if version:
        out.print(f"plaudit {__version__}")
        raise typer.Exit
