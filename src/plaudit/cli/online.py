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

from plaudit.cli.common import (
    AllowCode,
    AllowHost,
    AllowUntrained,
    Auto,
    RobotParams,
    RobotTopics,
    corrected_success,
    err,
    out,
    progress,
    stop,
    tell,
)
from plaudit.errors import ClusterError, DataError, MissingExtra, PlauditError

LINE_INTERVAL_S = 10.0  # between two lines where there is no terminal
DRAW_INTERVAL_S = 0.25  # between two drawings where there is one
DEFAULT_ALGORITHM = "as the config says, else rtc where the policy returns chunks for a robot, and sequential elsewhere"
RAY = "PLAUDIT_RAY"  # environment variable: --ray where it is not given


Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="env=lift learner=sac judge=runs/judge demos.store=demos ..."),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "--train_config",
        "--train-config",
        help="A YAML file to start from, like those in examples/configs.",
    ),
]
RobotName = Annotated[str | None, typer.Option(help="The robot, as robot=.")]
Algorithm = Annotated[
    str | None,
    typer.Option(
        "--inference_algorithm",
        "--inference-algorithm",
        help="rtc: infer while the robot moves; sequential: it waits meanwhile.",
        show_default=DEFAULT_ALGORITHM,
    ),
]
PolicyFile = Annotated[Path | None, typer.Option("--policy_yaml", "--policy-yaml", help="A policy to start from.")]
HumanLabeler = Annotated[
    bool, typer.Option("--human_reward_labeler", "--human-reward-labeler", help="A human labels episodes in a window.")
]
RayAddress = Annotated[
    str | None,
    typer.Option(
        envvar=RAY,
        metavar="ADDRESS",
        help="Run the workers as actors of a Ray cluster: HOST:PORT of its head, 'auto' for the one that this machine "
        "belongs to, 'local' for one of this machine alone. Without it, or with 'none': in this process.",
    ),
]
Serial = Annotated[
    bool, typer.Option("--serial", help="In this process, one call after the other; such a run can be repeated.")
]


def online(
    overrides: Overrides = None,
    config: ConfigFile = None,
    robot: RobotName = None,
    algorithm: Algorithm = None,
    policy_yaml: PolicyFile = None,
    params: RobotParams = None,
    topics: RobotTopics = None,
    human: HumanLabeler = False,
    auto: Auto = None,
    ray: RayAddress = None,
    serial: Serial = False,
    address: Annotated[str | None, typer.Option(hidden=True, help="--ray, or 'none' for --serial.")] = None,
    resume: Annotated[Path | None, typer.Option(help="The folder of a run to resume.", metavar="RUN")] = None,
    folder: Annotated[Path, typer.Option(help="The folder that run folders are written to.")] = Path("runs"),
    allow_untrained: AllowUntrained = False,
    allow_code: AllowCode = None,
    allow_host: AllowHost = None,
) -> None:
    """Train a policy while the robot runs: episodes are labeled, the learner updates, new weights go to the robot.

    Ctrl-C lets the workers finish their current call; the same command resumes the run. Returns 1 when the run ended
    early by itself.
    """
    from plaudit.cluster.run import workers_for
    from plaudit.training.demos import open_demos
    from plaudit.training.normalization import check_trained, resolve_normalizer
    from plaudit.training.online import OnlineTrainer
    from plaudit.training.run_folder import RunFolder

    if address is not None:
        ray, serial = address, serial or address == "none"
    ray = None if ray == "none" else ray
    _check_ray(ray, serial)
    flags = {
        "robot": robot,
        "policy.inference": algorithm,
        "policy.path": None if policy_yaml is None else str(policy_yaml.absolute()),
        "judge": "human" if human else None,
        "policy.inference.allow_untrained": "true" if allow_untrained else None,
    }
    files = {"inference_runtime_params_config": params, "inference_runtime_topics_config": topics}
    run = _open_run(config, overrides or [], flags, files, resume, folder)
    out.print(f"{run.path}: tensorboard --logdir {run.path}")
    err.print("starting the workers: robot, judge and learner")
    trainer = None
    try:
        open_demos(run, progress)
        run = RunFolder(run.path, resolve_normalizer(run), is_new=run.is_new)
        run = RunFolder(run.path, _with_operator(run.config, auto, serial), is_new=run.is_new)
        if run.is_new:
            check_trained(run.config)
        with workers_for(run, ray, serial=serial) as workers:
            trainer = OnlineTrainer(run, workers)
            _train(run, workers, trainer)
    except KeyboardInterrupt:
        stop("interrupted; resume with the same command")
    finally:
        if trainer is None or not trainer.started:
            run.discard_if_empty()


def _open_run(
    config: Path | None,
    overrides: list[str],
    flags: dict[str, str | None],
    files: dict[str, Path | None],
    resume: Path | None,
    folder: Path,
) -> Any:
    """The run that the arguments describe, or that --resume names."""
    from plaudit.training.config_file import load_training_config
    from plaudit.training.run_folder import RunFolder

    empty = not overrides and config is None and not any([*flags.values(), *files.values()])
    if resume is not None:
        if not empty:
            raise DataError("--resume continues a run as it was configured; leave out the other arguments")
        run = RunFolder.reopen(resume, "online")
        _check_calibrated(run.config)
        _check_certificate(run.config)
        return run
    if empty:
        raise DataError(
            "say what to run: --config FILE, like examples/configs/online_sim_sac.yaml, or env= (or robot=), learner= "
            "and judge="
        )
    robot_files = {key: str(path.absolute()) for key, path in files.items() if path is not None}
    wanted = load_training_config("online", config, overrides, robot_files=robot_files, flags=flags)
    _check_judge(wanted)
    _check_calibrated(wanted)
    _check_certificate(wanted)
    path = wanted.run.resume_dir
    return RunFolder.resume_named(path, wanted) if path else RunFolder.open(folder / wanted.run_name, wanted)


def _with_operator(config: Any, auto: bool | None, serial: bool) -> Any:
    """The config, with whether an operator attends; not where nothing else happens while one is waited for."""
    from plaudit.rollout.operator_input import resolve_auto
    from plaudit.rollout.reset import check_reset

    if serial and auto is False:
        raise DataError("--serial has no operator: everything would wait for them; leave out --no-auto or --serial")
    operator = resolve_auto(config.operator, True if serial else auto, config.robot, config.teleop)
    check_reset(config.policy.inference.reset, operator)
    return config.model_copy(update={"operator": operator})


def _check_judge(config: Any) -> None:
    """Refuse a model that is not there, failed its checks or measures no progress where that is paid for, and data of
    its retraining that are not there, before anything is made or changed."""
    from plaudit.data.store import Store
    from plaudit.judges.classifier.judge import load_reward_model
    from plaudit.training.config import classifier_of
    from plaudit.training.reward import check_measures_progress

    config.judge.config.build_progress("cpu")
    judge, retrain = classifier_of(config), config.judge.retrain
    if judge is not None:
        check_measures_progress(load_reward_model(judge.model, "cpu", force=judge.force), config)
        for data in retrain.data if retrain is not None else ():
            Store.open(data)


def _check_calibrated(config: Any) -> None:
    """A judge whose probabilities mean nothing yet is not in charge of a robot, unless it is forced."""
    from plaudit.judges.config import uncalibrated_warning
    from plaudit.training.reward import check_robot_judge

    judge = config.judge.config
    if not judge.needs_calibration:
        return
    warning = uncalibrated_warning(judge)
    check_robot_judge(config, warning)
    tell("warning", warning)


def _check_certificate(config: Any) -> None:
    """Nor one without a certificate; whether it is this judge's shows when the judge is loaded, before anything
    moves."""
    from plaudit.judges.certificate import certificate_status
    from plaudit.training.reward import check_robot_judge

    if config.judge.config.needs_certificate:
        check_robot_judge(config, certificate_status(config.judge.certificate_path, None)[1])


def _check_ray(ray: str | None, serial: bool) -> None:
    if ray is not None and serial:
        raise DataError("--serial is for this process, and --ray for a cluster; give one of them")
    if ray is not None and find_spec("ray") is None:
        raise ClusterError(f"{MissingExtra('ray', 'cluster')}; or run in this process: leave out --ray (or {RAY})")


def _train(run: Any, workers: Any, trainer: Any) -> None:
    from plaudit.data.disk import disk_error
    from plaudit.rollout.timing import held_warning
    from plaudit.training.event_log import EventLog

    events = EventLog(run)
    failure: PlauditError | None = None
    aborted = False
    with _display(run.config, workers, events) as (callback, stopped):
        try:
            trainer.run(callback)
        except PlauditError as error:
            failure = error
        except KeyboardInterrupt:
            aborted = True
            workers.stop_rollout()
    if busy := workers.busy:
        err.print(f"waiting for the current call of {' and '.join(busy)}, which cannot be interrupted")
    if trainer.started:
        events.update(trainer.progress, workers.restarts)
        for worker, message in trainer.progress.errors.items():
            tell("warning", f"{worker}: {message}")
        for warning in (held_warning(trainer.progress.held_fraction), trainer.progress.learner_warning):
            if warning:
                tell("warning", warning)
        ended = "aborted by Ctrl-C" if aborted else _reason(trainer.progress, failure, stopped())
        events.write(trainer.progress, "ended", ended)
        try:
            _finish(run, trainer.progress)
        except OSError as error:  # a full disk may be what ended it
            tell("error", f"{disk_error(error, run.path, 'its report was not written')}")
    if aborted:
        raise KeyboardInterrupt
    if failure is not None:
        for line in str(failure).splitlines():
            tell("error", line)
        raise typer.Exit(1)
    if stopped():
        stop("stopped; resume with the same command")
    if trainer.progress.alarm is not None:
        stops = run.config.audit.on_alarm == "stop"
        tell("alarm" if stops else "warning", trainer.progress.alarm)
        raise typer.Exit(1 if stops else 0)


def _reason(progress: Any, failure: PlauditError | None, stopped: bool) -> str:
    """Why the run ended."""
    if failure is not None:
        return f"failed: {failure}"
    if stopped:
        by_operator = progress.operator is not None and progress.operator.stopped
        return f"stopped by {'the operator' if by_operator else 'Ctrl-C'}"
    evaluated = "" if progress.eval_success is None else f", {progress.eval_success:.0%} on eval seeds"
    return f"finished: {progress.episodes:,} episodes{evaluated}"


def _finish(run: Any, progress: Any) -> None:
    """Write the report, however the run ended; the policy is in its folder already."""
    from plaudit.report.run import write_run_report

    run.close()
    report = write_run_report(run.path)
    evaluated = "" if progress.eval_success is None else f", {progress.eval_success:.0%} true success on eval seeds"
    out.print(
        f"{run.path}: {progress.episodes:,} episodes, {progress.updates:,} updates, policy v{progress.policy.version}"
        f"{evaluated}{corrected_success(progress.judge_metrics)}; see {report}"
    )


@contextmanager
def _display(config: Any, workers: Any, events: Any) -> Iterator[Any]:
    """The loop's callback, which shows how things stand and logs events; and whether Ctrl-C was pressed, or an operator
    has stopped the run. The operator's keys are read meanwhile.

    Pressed once, it lets the workers finish their current call, also after an operator has stopped the run; pressed
    again, or before the loop begins, it interrupts.
    """
    from plaudit.cli.operator import OperatedRun
    from plaudit.training.display import Display, stopping_message

    asked: list[int] = []
    by_operator: list[bool] = []
    shown = [""]  # what was printed last, where there is no terminal
    operated = OperatedRun(config.operator, workers)
    display, live = Display(config), Live(console=err, transient=True, auto_refresh=False)
    drawn = [0.0]

    def callback(progress: Any) -> bool:
        if not drawn[0]:
            events.write(progress, "started", "run resumed" if progress.episodes else "run started")
        events.update(progress, workers.restarts)
        if operated.update(progress.operator) and not by_operator:
            by_operator.append(True)
        stopping = bool(asked or by_operator)  # if it comes later than this, the next call sees it
        line = stopping_message(progress) if stopping else ""
        due = time.monotonic() - drawn[0] >= (DRAW_INTERVAL_S if live.is_started else LINE_INTERVAL_S)
        if due or line != shown[0]:
            drawn[0], shown[0] = time.monotonic(), line
            if live.is_started:
                live.update(display.screen(progress, workers.restarts, stopping), refresh=True)
            else:
                err.print(line or display.line(progress))
        return not stopping

    def interrupt(number: int, _: Any) -> None:
        if asked or not drawn[0]:
            raise KeyboardInterrupt
        asked.append(number)

    before = signal.signal(signal.SIGINT, interrupt)
    if err.is_terminal:
        live.start()
    try:
        with operated.listen():
            yield callback, lambda: bool(asked or by_operator)
    finally:
        signal.signal(signal.SIGINT, before)
        live.stop()
