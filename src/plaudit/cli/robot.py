"""`plaudit robot`: list and check robots, and run their simulated twins."""

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from plaudit.cli.common import out, tell
from plaudit.cli.options import argument, option
from plaudit.errors import RobotError

robot = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

NameArgument = Annotated[str, argument("A name that 'plaudit robot list' shows, or my_module:MyConfig.")]
ParamsOption = Annotated[
    Path | None, option("JSON whose keys replace the robot's own.", "--inference_runtime_params_config", "--params")
]
TopicsOption = Annotated[
    Path | None, option("JSON whose keys replace the robot's own.", "--inference_runtime_topics_config", "--topics")
]
SetOption = Annotated[
    list[str] | None, option("A setting, like transport.connect=[tcp/10.0.0.2:7447].", "--set", metavar="KEY=VALUE")
]


@robot.command("list")
def robot_list() -> None:
    """List the robots."""
    from plaudit.registry import ROBOT_REGISTRY
    from plaudit.report.tables import robots_table

    out.print(robots_table({name: ROBOT_REGISTRY.get(name) for name in ROBOT_REGISTRY.names()}))


@robot.command("check")
def robot_check(
    name: NameArgument,
    params: ParamsOption = None,
    topics: TopicsOption = None,
    seconds: Annotated[float, option("How long to observe.", min=0.1, max=86_400)] = 3.0,
    move: Annotated[bool, option("Then move every joint a little and back, within its limits.", "--move")] = False,
    settings: SetOption = None,
) -> None:
    """Check what a robot sends: rates, sizes and limits. Returns 1 if anything is wrong. Only --move moves it."""
    from plaudit.report.tables import check_table
    from plaudit.robots.check import check_motion, check_observations, check_topics
    from plaudit.robots.ros import RosRobotConfig

    config = robot_config(name, params, topics, settings)
    check = check_topics if isinstance(config, RosRobotConfig) else check_observations
    results = list(check(config, seconds))
    if move and any(result.problem for result in results):
        tell("warning", "the robot was not moved, because a check failed")
    elif move:
        results.append(check_motion(config))
    out.print(check_table(name, results))
    if any(result.problem for result in results):
        raise typer.Exit(1)


@robot.command("twin")
def robot_twin(
    name: NameArgument,
    params: ParamsOption = None,
    topics: TopicsOption = None,
    log: Annotated[Path | None, option("Log every message to this file, one line per tick.")] = None,
    fault: Annotated[list[str] | None, option("A fault: KIND[=VALUE][@SECONDS], like late=400@2.5.")] = None,
    watchdog_ms: Annotated[float, option("Hold after this long without a command.", min=0, max=1e6)] = 500.0,
    seconds: Annotated[float | None, option("How long to run.", min=0, max=1e9, show_default="until Ctrl-C")] = None,
    settings: SetOption = None,
) -> None:
    """Run a robot's twin until Ctrl-C: a process that moves, sends images and simulates faults on its topics."""
    from plaudit.robots.twin.twin import run_twin

    config = ros_config(name, params, topics, settings)
    run_twin(
        config, log=log, watchdog_ms=watchdog_ms, faults=fault or (), seconds=math.inf if seconds is None else seconds
    )


def ros_config(name: str, params: Path | None, topics: Path | None, settings: list[str] | None) -> Any:
    """The config of a ROS 2 robot, from the arguments of these commands."""
    from plaudit.robots.ros import RosRobotConfig

    config = robot_config(name, params, topics, settings)
    if not isinstance(config, RosRobotConfig):
        raise RobotError(f"robot '{name}' has no topics; this command is for ROS 2 robots, like igris_b")
    return config


def robot_config(name: str, params: Path | None, topics: Path | None, settings: list[str] | None) -> Any:
    """The config of any robot, from the arguments of these commands."""
    from plaudit.config import load
    from plaudit.registry import ROBOT_REGISTRY
    from plaudit.robots.ros import RosRobotConfig

    cls = ROBOT_REGISTRY.get(name)
    given = {"inference_runtime_params_config": params, "inference_runtime_topics_config": topics}
    files = {key: path for key, path in given.items() if path is not None}
    if files and not issubclass(cls, RosRobotConfig):
        raise RobotError(f"robot '{name}' has no params and no topics; write its settings with --set")
    return load(cls, overrides=settings or ()).model_copy(update=files)
