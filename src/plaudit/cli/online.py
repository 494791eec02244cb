"""`plaudit online`: the whole loop."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.live import Live

from plaudit.cli.common import err, out, stop, tell
from plaudit.errors import DataError, OnlineError

LINE = 10.0  # s between two lines where there is no terminal


def online(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="robot=sim robot.env.type=lift learner=sac judge=classifier ..."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", "--train_config", "--train-config", help="A YAML file; see examples/configs."),
    ] = None,
    robot: Annotated[str | None, typer.Option(help="Which robot: sim, igris_b, igris_c, lerobot, ...")] = None,
    algorithm: Annotated[
        str | None,
        typer.Option("--inference_algorithm", "--inference-algorithm", help="rtc (the default) or sequential."),
    ] = None,
    policy_yaml: Annotated[
        Path | None, typer.Option("--policy_yaml", "--policy-yaml", help="A policy to begin with.")
    ] = None,
    params: Annotated[
        Path | None,
        typer.Option(
            "--inference_runtime_params_config",
            "--inference-runtime-params-config",
            help="A robot's inference_runtime_params.json.",
        ),
    ] = None,
    topics: Annotated[
        Path | None,
        typer.Option(
            "--inference_runtime_topics_config",
            "--inference-runtime-topics-config",
            help="A robot's inference_runtime_topics.json.",
        ),
    ] = None,
    human: Annotated[
        bool, typer.Option("--human_reward_labeler", "--human-reward-labeler", help="A person judges, in a window.")
    ] = False,
    address: Annotated[
        str | None,
        typer.Option(
            help="Of a cluster's head; 'local' for a cluster of this machine alone, 'none' for this process and no "
            "Ray. Without it, the cluster that this machine belongs to, or else local.",
        ),
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="The folder of a run to go on with.", metavar="RUN")] = None,
    folder: Annotated[Path, typer.Option(help="Where runs are put.")] = Path("runs"),
) -> None:
    """Learn while the robot works: it acts, episodes are judged, the learner trains, weights go back.

    Ctrl-C lets everybody come to the end of what they do. The same command goes on with the run. Returns 1 when it
    stopped by itself before its end.
    """
    from plaudit.cluster.run import ClusterRunConfig, crew_for
    from plaudit.online.config import load_online
    from plaudit.online.folder import OnlineFolder

    if resume is not None:
        if overrides or config:
            raise DataError("--resume goes on with a run as it was configured; leave out the other arguments")
        run = OnlineFolder.reopen(resume, ClusterRunConfig)
    else:
        files = {"inference_runtime_params_config": params, "inference_runtime_topics_config": topics}
        asked = load_online(
            ClusterRunConfig,
            config,
            overrides or [],
            robot=robot,
            robot_files={key: str(path.absolute()) for key, path in files.items() if path is not None},
            algorithm=algorithm,
            policy_yaml=None if policy_yaml is None else str(policy_yaml.absolute()),
            judge="human" if human else None,
        )
        name = asked.name or f"{asked.robot.type}_{asked.learner.type}_{asked.seed}"
        run = OnlineFolder.open(folder / name, asked)
    out.print(f"{run.path}: tensorboard --logdir {run.path}")
    with crew_for(run.config, run.path, address) as crew:
        _conduct(run, crew)


def _conduct(run: Any, crew: Any) -> None:
    from plaudit.online.conductor import Conductor
    from plaudit.report.online import write_online_report

    conductor = Conductor(run.config, run, crew)
    failure: OnlineError | None = None
    with _watching(run.config, crew) as (watch, asked):
        try:
            conductor.run(watch)
        except OnlineError as error:
            failure = error
    if conductor.started:
        run.save_policy(conductor.policy_config)
        run.close()
        write_online_report(run.path)
        now = conductor.now
        held = "" if now.evaluated is None else f", {now.evaluated:.0%} true success on seeds held back"
        out.print(
            f"{run.path}: {now.counts.episodes:,} episodes, {now.updates:,} updates, weights {now.state.version}"
            f"{held}; see {run.path / 'report.html'}"
        )
    if failure is not None:
        tell("error", f"{failure}")
        raise typer.Exit(1)
    if asked():
        stop("stopped; the same command goes on")


@contextmanager
def _watching(config: Any, crew: Any) -> Iterator[Any]:
    """Shows how things stand; and whether Ctrl-C was pressed."""
    from plaudit.online.view import line, screen

    asked: list[int] = []
    live = Live(console=err, transient=True, auto_refresh=False)
    told = [0.0]

    def watch(now: Any) -> bool:
        if err.is_terminal:
            live.start()
            live.update(screen(config, now, crew.restarts), refresh=True)
        elif time.monotonic() - told[0] > LINE:
            told[0] = time.monotonic()
            err.print(line(config, now))
        return not asked

    def interrupt(number: int, _: Any) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield watch, lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        live.stop()
