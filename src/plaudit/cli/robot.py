"""`plaudit robot`: list and check robots, and run their simulated twins."""

import math
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from plaudit.cli.common import out, tell
from plaudit.cli.env import keys_by_set
from plaudit.cli.options import MAX_SEED, Option, RobotParams, RobotTopics, command, group, robot_files
from plaudit.errors import RobotError, format_count

robot = group("robot", "List robots, check the streams of one, run its simulated twin.")

Name = Annotated[str, Option(help="A name that 'plaudit robot list' shows, or my_module:MyConfig.")]
RobotSettings = Annotated[
    list[str] | None,
    Option("--set", metavar="KEY=VALUE", help="A setting, like transport.connect=[tcp/10.0.0.2:7447]."),
]


@command(robot, "list")
def robot_list() -> None:
    """List the robots."""
    from plaudit.registry import ROBOT_REGISTRY
    from plaudit.report.tables import robots_table

    out.print(robots_table({name: ROBOT_REGISTRY.get(name) for name in ROBOT_REGISTRY.names()}))


@command(robot, "check")
def robot_check(
    name: Name,
    *,
    params: RobotParams = None,
    topics: RobotTopics = None,
    seconds: Annotated[float, Option(min=0.1, max=86_400)] = 3.0,  # How long to observe.
    move: bool = False,  # Then move every joint a little and back, within its limits.
    settings: RobotSettings = None,
) -> None:
    """Check what a robot sends: rates, sizes and limits. Returns 1 if anything is wrong. Only --move moves it."""
    from plaudit.report.tables import check_table
    from plaudit.report.verdict import Verdict, quoted
    from plaudit.robots.check import check_motion, check_observations, check_topics

    config, is_ros = _load(name, params, topics, settings)
    results = list((check_topics if is_ros else check_observations)(config, seconds))
    if move and any(result.problem for result in results):
        tell("warning", "the robot was not moved, because a check failed")
    elif move:
        results.append(check_motion(config))
    problems = [result.problem for result in results if result.problem]
    why = f"{format_count(len(results), 'check')}, {format_count(len(problems), 'problem')}."
    if problems:
        out.print(Verdict("Not usable yet: a check failed.", why, "Solve the problems below, then check again"))
    else:
        record = f"plaudit record demos --robot {quoted(name)} --teleop TELEOP"
        out.print(Verdict("Usable: all checks passed.", why, "Record demonstrations", record, "good"))
    out.print(check_table(name, results))
    if problems:
        raise typer.Exit(1)


@command(robot, "twin")
def robot_twin(
    name: Name,
    *,
    params: RobotParams = None,
    topics: RobotTopics = None,
    log: Path | None = None,  # Log every message to this file, one line per tick.
    fault: list[str] | None = None,  # A fault: KIND[=VALUE][@SECONDS], like late=400@2.5.
    watchdog_ms: Annotated[float, Option(min=0, max=1e6)] = 500.0,  # Hold after this long without a command.
    # How long to run.
    seconds: Annotated[float | None, Option(min=0, max=1e9, show_default="until Ctrl-C")] = None,
    task: str | None = None,  # Show a simulated task, which the right arm moves: lift, pick_place or push.
    seed: Annotated[int, Option(min=0, max=MAX_SEED)] = 0,  # Seed of the task's first scene.
    # A simulated person on the robot's topics: always moves the arm, or helps when there is no progress.
    leader: Literal["none", "always", "help"] = "none",
    settings: RobotSettings = None,
) -> None:
    """Run a robot's twin until Ctrl-C: a process that moves, sends images and simulates faults on its topics."""
    from plaudit.robots.twin.twin import run_twin

    config, _ = _load(name, params, topics, settings, ros_only=True)
    if task is None and leader != "none":
        raise RobotError(f"--leader {leader} needs a task; add --task lift")
    seconds = math.inf if seconds is None else seconds
    scene, person = _task_and_leader(config, task, seed, leader) if task is not None else (None, None)
    run_twin(config, log=log, watchdog_ms=watchdog_ms, faults=fault or (), seconds=seconds, task=scene, leader=person)


def _task_and_leader(config: Any, task: str, seed: int, leader: str) -> tuple[Any, Any]:
    """The task of a twin, and the simulated person in it."""
    from plaudit.robots.twin.task import TwinTask
    from plaudit.rollout.scripted_teleop import ScriptedLeader, ScriptedTeleopConfig

    scene = TwinTask(task, config.params(), seed)
    if leader == "none":
        return scene, None
    if leader == "always":
        return scene, ScriptedLeader(scene, ScriptedTeleopConfig(patience=1, delay=0, duration=1_000_000))
    return scene, ScriptedLeader(scene, ScriptedTeleopConfig(duration=40), waits=True)


def _load(
    name: str, params: Path | None, topics: Path | None, settings: list[str] | None, *, ros_only: bool = False
) -> tuple[Any, bool]:
    """The config of a robot from the arguments of these commands, and whether it is a ROS 2 robot."""
    from plaudit.config import load
    from plaudit.registry import ROBOT_REGISTRY
    from plaudit.robots.ros import RosRobotConfig

    cls = ROBOT_REGISTRY.get(name)
    files = robot_files(params, topics)
    is_ros = issubclass(cls, RosRobotConfig)
    if ros_only and not is_ros:
        raise RobotError(f"robot '{name}' has no topics; this command is for ROS 2 robots, like igris_b")
    if files and not is_ros:
        raise RobotError(f"robot '{name}' has no params and no topics; write its settings with --set")
    with keys_by_set():
        return load(cls, None, settings or (), lambda tree: {**files, **tree}), is_ros
