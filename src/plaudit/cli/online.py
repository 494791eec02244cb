"""`plaudit online`: the whole loop."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.live import Live

from plaudit.cli.common import AllowCode, AllowHost, RobotParams, RobotTopics, err, folder_name, out, stop, tell
from plaudit.errors import ClusterError, DataError, MissingExtra, PlauditError

LINE = 10.0  # s between two lines where there is no terminal
ADDRESS = "PLAUDIT_ADDRESS"  # environment variable: --address where it is not given
DRAW = 0.25  # s between two drawings where there is one


def online(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="robot=sim robot.env.type=lift learner=sac judge=classifier ..."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "--train_config",
            "--train-config",
            help="A YAML file to start from, like those in examples/configs.",
        ),
    ] = None,
    robot: Annotated[str | None, typer.Option(help="The robot, as robot=.")] = None,
    algorithm: Annotated[
        str | None,
        typer.Option(
            "--inference_algorithm", "--inference-algorithm", help="The inference algorithm: rtc or sequential."
        ),
    ] = None,
    policy_yaml: Annotated[
        Path | None, typer.Option("--policy_yaml", "--policy-yaml", help="A policy to start from.")
    ] = None,
    params: RobotParams = None,
    topics: RobotTopics = None,
    human: Annotated[
        bool,
        typer.Option("--human_reward_labeler", "--human-reward-labeler", help="A human labels episodes in a window."),
    ] = False,
    address: Annotated[
        str | None,
        typer.Option(
            envvar=ADDRESS,
            help="Of a cluster's head; 'local' for a cluster of this machine alone, 'none' for this process and no "
            "Ray. Without it, the cluster that this machine belongs to, or else local.",
        ),
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="The folder of a run to resume.", metavar="RUN")] = None,
    folder: Annotated[Path, typer.Option(help="The folder that run folders are written to.")] = Path("runs"),
    allow_code: AllowCode = None,
    allow_host: AllowHost = None,
) -> None:
    """Train a policy while the robot runs: episodes are labeled, the learner updates, new weights go to the robot.

    Ctrl-C lets the workers finish their current call; the same command resumes the run. Returns 1 when the run ended
    early by itself.
    """
    from plaudit.cluster.run import ClusterRunConfig, workers_for
    from plaudit.training.online import OnlineTrainer
    from plaudit.training.online_config import load_online
    from plaudit.training.online_folder import OnlineFolder

    flags = (robot, algorithm, policy_yaml, params, topics, human or None)
    nothing = not overrides and config is None and all(flag is None for flag in flags)
    if resume is not None:
        if not nothing:
            raise DataError("--resume goes on with a run as it was configured; leave out the other arguments")
        run = OnlineFolder.reopen(resume, ClusterRunConfig)
        _check_ray(address)
    elif nothing:
        raise DataError(
            "say what to run: --config FILE, like examples/configs/online_sim_sac.yaml, or robot=, learner= and judge="
        )
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
        _check_judge(asked)
        name = asked.name or folder_name(f"{asked.executor.name}_{asked.learner_name}_{asked.seed}")
        _check_ray(address)
        run = OnlineFolder.open(folder / name, asked)
    out.print(f"{run.path}: tensorboard --logdir {run.path}")
    err.print("getting ready: workers are started, the robot is looked at, the judge and the learner are built")
    trainer = None
    try:
        run.settle_units()
        if run.config.units is None and not run.config.simulated:
            tell(
                "warning",
                f"nothing says what actions from -1 to 1 are on {run.config.executor.name}, and they are sent as they "
                "are; give it demonstrations (demos=), or statistics (units=, from plaudit data stats --range)",
            )
        with workers_for(run.config, run.path, address) as workers:
            trainer = OnlineTrainer(run.config, run, workers)
            _train(run, workers, trainer)
    except KeyboardInterrupt:
        stop("interrupted; the same command goes on")
    finally:
        if trainer is None or not trainer.started:
            run.take_back()


def _check_judge(config: Any) -> None:
    """A reward model that is not there, or is not to be believed, is told of before anything is made or changed; and
    so are data that its successors are to learn from."""
    from plaudit.data.store import Store
    from plaudit.judges.classifier.judge import ClassifierJudgeConfig
    from plaudit.judges.classifier.loader import load_reward_model

    if isinstance(config.judge, ClassifierJudgeConfig):
        load_reward_model(config.judge.model, "cpu", force=config.judge.force)
        for data in config.retrain.data if config.retrain is not None else ():
            Store.open(data)


def _check_ray(address: str | None) -> None:
    if address != "none" and find_spec("ray") is None:
        raise ClusterError(f"{MissingExtra('ray', 'cluster')}; or do without it: --address none, or {ADDRESS}=none")


def _train(run: Any, workers: Any, trainer: Any) -> None:
    from plaudit.data.journal import disk_error
    from plaudit.training.events import Chronicle

    chronicle = Chronicle(run.path)
    failure: PlauditError | None = None
    with _watching(run.config, workers, chronicle) as (watch, asked):
        try:
            trainer.run(watch)
        except PlauditError as error:
            failure = error
    if trainer.started:
        chronicle.note(trainer.now, workers.restarts)
        for part, sentence in trainer.now.troubles.items():
            tell("warning", f"{part}: {sentence}")
        chronicle.tell(trainer.now, "ended", _why(trainer.now, failure, asked()))
        try:
            _leave(run, trainer)
        except OSError as error:  # a full disk may be what ended it
            tell("error", f"{disk_error(error, run.path, 'its policy and its report were not written')}")
    if failure is not None:
        for sentence in str(failure).splitlines():
            tell("error", sentence)
        raise typer.Exit(1)
    if asked():
        stop("stopped; the same command goes on")
    if trainer.now.alarm is not None:
        stopped = run.config.audit.on_alarm == "stop"
        tell("alarm" if stopped else "warning", trainer.now.alarm)
        raise typer.Exit(1 if stopped else 0)


def _why(now: Any, failure: PlauditError | None, asked: bool) -> str:
    if failure is not None:
        return f"it stopped: {failure}"
    if asked:
        return "somebody stopped it"
    held = "" if now.evaluated is None else f", {now.evaluated:.0%} on seeds held back"
    return f"it came to its end: {now.counts.episodes:,} episodes{held}"


def _leave(run: Any, trainer: Any) -> None:
    """What a run leaves behind, however it ended."""
    from plaudit.report.run import write_run_report

    now = trainer.now
    if now.state.version:
        run.save_policy(trainer.policy_config)
    run.close()
    report = write_run_report(run.path)
    held = "" if now.evaluated is None else f", {now.evaluated:.0%} true success on seeds held back"
    out.print(
        f"{run.path}: {now.counts.episodes:,} episodes, {now.updates:,} updates, weights {now.state.version}"
        f"{held}; see {report}"
    )


@contextmanager
def _watching(config: Any, workers: Any, chronicle: Any) -> Iterator[Any]:
    """Shows how things stand and writes down what happens; and whether Ctrl-C was pressed.

    Pressed once, it lets everybody come to the end of what they do; pressed again, or before anybody does anything, it
    interrupts.
    """
    from plaudit.training.display import STOPPING, Display

    asked: list[int] = []
    view, live = Display(config), Live(console=err, transient=True, auto_refresh=False)
    drawn = [0.0]

    def watch(now: Any) -> bool:
        if not drawn[0]:
            chronicle.tell(now, "begun", "the loop begins" if not now.counts.episodes else "the loop goes on")
        chronicle.note(now, workers.restarts)
        stopping = bool(asked)  # if it comes later than this, the next look tells
        if time.monotonic() - drawn[0] < (DRAW if live.is_started else LINE) and not stopping:
            return True
        drawn[0] = time.monotonic()
        if live.is_started:
            live.update(view.screen(now, workers.restarts, stopping), refresh=True)
        else:
            err.print(STOPPING if stopping else view.line(now))
        return not stopping

    def interrupt(number: int, _: Any) -> None:
        if asked or not drawn[0]:
            raise KeyboardInterrupt
        asked.append(number)

    before = signal.signal(signal.SIGINT, interrupt)
    if err.is_terminal:
        live.start()
    try:
        yield watch, lambda: bool(asked)
    finally:
        signal.signal(signal.SIGINT, before)
        live.stop()
