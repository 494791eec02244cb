"""`plaudit online`, and the entry scripts that run it with other defaults."""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib.util import find_spec
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.live import Live
from rich.text import Text

from plaudit.cli.common import (
    corrected_success,
    err,
    on_ctrl_c,
    out,
    progress,
    run_app,
    stop,
    tell,
    with_stores,
    writing_report,
)
from plaudit.cli.options import (
    Algorithm,
    AllowUntrained,
    Auto,
    Option,
    Overrides,
    PolicyYaml,
    Robot,
    RobotParams,
    RobotTopics,
    app,
    command,
    parameters_of,
    robot_files,
    with_parameters,
)
from plaudit.cli.train import ONLINE_HELP
from plaudit.errors import ClusterError, DataError, MissingExtra, PlauditError, format_count

LINE_INTERVAL_S = 10.0  # between two lines without a terminal
DRAW_INTERVAL_S = 0.25  # between two updates of the screen
LIVE_INTERVAL_S = 0.5  # between two updates of the pages
RAY = "PLAUDIT_RAY"  # environment variable: the default of --ray


@command(app, "online", reads_config=True, epilog=ONLINE_HELP)
def online(
    overrides: Overrides = None,  # Config keys: env=lift learner=sac judge=runs/judge demos.store=demos ...
    *,
    # A YAML file, like those in examples/configs.
    config: Annotated[Path | None, Option("--config", "--train_config", "--train-config")] = None,
    robot: Robot | None = None,
    algorithm: Algorithm = None,
    policy_yaml: PolicyYaml | None = None,  # A policy to start from.
    params: RobotParams = None,
    topics: RobotTopics = None,
    # A human labels episodes in a window.
    human: Annotated[bool, Option("--human_reward_labeler", "--human-reward-labeler")] = False,
    auto: Auto = None,
    # Run the workers on a Ray cluster: HOST:PORT of its head, 'auto' for this machine's cluster, 'local' for a new one
    # on this machine. Without it, or with 'none', they run in this process.
    ray: Annotated[str | None, Option(envvar=RAY, metavar="ADDRESS")] = None,
    serial: bool = False,  # Run in this process, one call after the other; reproducible.
    address: Annotated[str | None, Option(hidden=True)] = None,  # --ray, or 'none' for --serial.
    resume: Annotated[Path | None, Option(metavar="RUN")] = None,  # The folder of a run to resume.
    folder: Path = Path("runs"),  # The folder that run folders are written to.
    allow_untrained: AllowUntrained = False,
) -> None:
    """Train a policy while the robot runs: episodes are labeled, the learner updates, new weights go to the robot.

    Ctrl-C lets the workers finish their current call; the same command resumes the run. Returns 1 when the run failed
    or an audit alarm stopped it.
    """
    from plaudit.cluster.connect import workers_for
    from plaudit.rollout.operator import resolve_auto
    from plaudit.rollout.run import check_attended
    from plaudit.training.online import OnlineTrainer
    from plaudit.training.run_folder import RunFolder
    from plaudit.training.setup import check_trained, open_demos, resolve_normalizer
    from plaudit.training.trackers import check_trackers

    if address is not None:
        ray, serial = address, serial or address == "none"
    ray = None if ray == "none" else ray
    if ray is not None and serial:
        raise DataError("--serial runs in this process and --ray on a cluster; give only one of them")
    if serial and auto is False:
        raise DataError("--serial has no operator; leave out --no-auto or --serial")
    if ray is not None and find_spec("ray") is None:
        raise ClusterError(f"{MissingExtra('ray', 'cluster')}; or run in this process: leave out --ray (or {RAY})")
    flags = {
        "robot": robot,
        "policy.inference": algorithm,
        "policy.path": None if policy_yaml is None else str(policy_yaml.absolute()),
        "judge": "human" if human else None,
        "policy.inference.allow_untrained": "true" if allow_untrained else None,
    }
    run = _open_run(config, overrides or [], flags, robot_files(params, topics), resume, folder)
    out.print(f"{run.path}: tensorboard --logdir {run.path}")
    err.print("starting the workers: robot, judge and learner")
    trainer = None
    try:
        check_trackers(run.config.run.trackers)
        open_demos(run, progress)
        run = RunFolder(run.path, resolve_normalizer(run), is_new=run.is_new)
        settings = run.config  # a serial run has no operator: everything would wait for them
        operator = resolve_auto(settings.operator, True if serial else auto, settings.robot, settings.teleop)
        check_attended(settings.policy.inference, settings.forecast, operator)
        run = RunFolder(run.path, settings.model_copy(update={"operator": operator}), is_new=run.is_new)
        if run.is_new:
            check_trained(run.config)
        with workers_for(run, ray, serial=serial, on_wait=err.print) as workers:
            run.on_warning = partial(tell, "warning")
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
    files: dict[str, str],
    resume: Path | None,
    folder: Path,
) -> Any:
    """The run that the arguments describe, or that --resume names."""
    from plaudit.training.config_file import load_training_config
    from plaudit.training.run_folder import RunFolder

    empty = not overrides and config is None and not files and not any(flags.values())
    if resume is not None:
        if not empty:
            raise DataError("--resume continues a run as it was configured; leave out the other arguments")
        run = RunFolder.reopen(resume, "online")
        _check_judge(run.config, is_new=False)
        return run
    if empty:
        raise DataError(
            "name what to run: --config FILE, like examples/configs/online_sim_sac.yaml, or env= (or robot=), learner= "
            "and judge="
        )
    wanted = with_stores(load_training_config("online", config, overrides, robot_files=files, flags=flags))
    _check_judge(wanted, is_new=True)
    path = wanted.run.resume_dir
    return RunFolder.resume_named(path, wanted) if path else RunFolder.open(folder / wanted.run_name, wanted)


def _check_judge(config: Any, *, is_new: bool) -> None:
    """Validate the judge before anything is created. The workers check later that a certificate belongs to it.

    A judge that is not calibrated, or has no certificate, is refused on a robot unless it is forced.
    is_new: also load its model, its progress output and its retraining data
    """
    from plaudit.data.store import Store
    from plaudit.judges.certificate import certificate_status
    from plaudit.judges.classifier.config import classifier_stage
    from plaudit.judges.classifier.judge import load_reward_model
    from plaudit.judges.config import uncalibrated_warning
    from plaudit.training.rollout_judge import check_measures_progress, check_robot_judge

    judge, classifier, retrain = config.judge.config, classifier_stage(config.judge.config), config.judge.retrain
    if is_new:
        judge.build_progress("cpu")
    if is_new and classifier is not None:
        check_measures_progress(load_reward_model(classifier.model, "cpu", force=classifier.force), config)
        for data in retrain.data if retrain is not None else ():
            Store.open(data)
    if judge.needs_calibration:
        warning = uncalibrated_warning(judge)
        check_robot_judge(config, warning)
        tell("warning", warning)
    if judge.needs_certificate:
        check_robot_judge(config, certificate_status(config.judge.certificate_path, None)[1])


def _train(run: Any, workers: Any, trainer: Any) -> None:
    """Run the training, write its report in any case, and exit with its code."""
    from plaudit.data.disk import disk_error
    from plaudit.report.run import write_run_report
    from plaudit.report.run_data import RunData
    from plaudit.report.verdict import run_verdict

    events = trainer.events
    failure: PlauditError | None = None
    aborted = False
    with _display(run, workers, trainer) as (callback, stopped):
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
        events.update(trainer.state, workers.restarts)
        for worker, message in trainer.state.errors.items():
            tell("warning", f"{worker}: {message}")
        for warning in trainer.state.warnings.values():
            tell("warning", warning)
        state = trainer.state
        evaluated = "" if state.eval_success is None else f", {state.eval_success:.0%}"
        if aborted:
            ended = "aborted by Ctrl-C"
        elif failure is not None:
            ended = f"failed: {failure}"
        elif stopped():
            by_operator = state.operator is not None and state.operator.stopped
            ended = f"stopped by {'the operator' if by_operator else 'Ctrl-C'}"
        else:
            ended = f"finished: {format_count(state.episodes, 'episode')}{evaluated and f'{evaluated} on eval seeds'}"
        events.write(state, "ended", ended)
        counts = f"{format_count(state.episodes, 'episode')}, {format_count(state.updates, 'update')}"
        counts += f", policy v{state.policy.version}"
        success = f"{evaluated} true success on eval seeds" if evaluated else ""
        try:
            with writing_report():
                run.close()
                report = write_run_report(run.path)
            out.print(run_verdict(RunData.load(run.path)))
            out.print(f"{run.path}: {counts}{success}{corrected_success(state.judge_metrics)}; see {report}")
        except OSError as error:  # a full disk may be what ended it
            tell("error", f"{disk_error(error, run.path, 'its report was not written')}")
    if aborted:
        raise KeyboardInterrupt
    if failure is not None:
        tell("error", *str(failure).splitlines())
        raise typer.Exit(1)
    if stopped():
        stop("stopped; resume with the same command")
    if trainer.state.alarm is not None:
        stops = run.config.audit.on_alarm == "stop"
        tell("alarm" if stops else "warning", trainer.state.alarm)
        raise typer.Exit(1 if stops else 0)


@contextmanager
def _display(run: Any, workers: Any, trainer: Any) -> Iterator[Any]:
    """The loop's callback, which shows progress and logs events; and whether Ctrl-C or an operator stopped the run.

    Before the loop begins, what it waits for is shown.

    The first Ctrl-C lets the workers finish their current call. The second one, or one before the loop begins,
    interrupts. The operator's keys are read meanwhile.
    """
    from plaudit.cli.run import QUESTION
    from plaudit.rollout.operator import Cue, listen_at_terminal
    from plaudit.training.display import Display, stopping_message
    from plaudit.training.live import LiveSocket

    config, operator, events = run.config, run.config.operator, trainer.events
    cue, phase = Cue(operator.cue if operator.attended else "none"), "idle"
    asked: list[int] = []  # signals
    by_operator = False
    shown, drawn_at = "", 0.0  # the last message while the run stops, where there is no terminal
    display, live, published_at = Display(config), Live(console=err, transient=True, auto_refresh=False), 0.0
    by_web = operator.attended and "web" in operator.sources
    pages = LiveSocket(run.path, workers.operate if by_web else None)

    def callback(progress: Any) -> bool:
        nonlocal phase, by_operator, shown, drawn_at, published_at
        if not drawn_at:
            events.write(progress, "started", "run resumed" if progress.episodes else "run started")
        events.update(progress, workers.restarts)
        if progress.operator is not None:
            if progress.operator.phase == "gate" and phase != "gate":
                cue.give(QUESTION)
            phase, by_operator = progress.operator.phase, by_operator or progress.operator.stopped
        if time.monotonic() - published_at >= LIVE_INTERVAL_S:
            published_at = time.monotonic()
            pages.publish(display.live(progress, workers.busy))
        stopping = bool(asked) or by_operator  # if it comes later than this, the next call sees it
        line = stopping_message(progress) if stopping else ""
        due = time.monotonic() - drawn_at >= (DRAW_INTERVAL_S if live.is_started else LINE_INTERVAL_S)
        if due or line != shown:
            drawn_at, shown = time.monotonic(), line
            if live.is_started:
                live.update(display.screen(progress, workers.restarts, stopping), refresh=True)
            else:
                err.print(line or display.line(progress))
        return not stopping

    def interrupt(number: int, _: Any) -> None:
        if asked or not drawn_at:
            raise KeyboardInterrupt
        asked.append(number)

    def wait_for(what: str) -> None:
        if live.is_started:
            live.update(Text(what), refresh=True)
        else:
            err.print(what)

    trainer.on_wait = wait_for
    with on_ctrl_c(interrupt):
        if err.is_terminal:
            live.start()
        try:
            with pages, listen_at_terminal(operator, workers.operate) if operator.attended else nullcontext():
                yield callback, lambda: bool(asked) or by_operator
        finally:
            live.stop()


def run_script(
    description: str, *, train_config: Path, policy_yaml: Path | None = None, always: Sequence[str] = ()
) -> NoReturn:
    """An entry script at the repository root: `plaudit online` on a cluster with other defaults; --robot is required.

        python run_online_rl.py --robot igris_b --inference_algorithm rtc --train_config my_run.yaml

    always: `a.b=c` overrides that make it this script
    """
    defaults: dict[str, Any] = {"config": train_config, "policy_yaml": policy_yaml, "robot": Parameter.empty}
    left_out = ("ray", "serial", "address", "resume", "folder")
    parameters = [one.replace(default=defaults.get(one.name, one.default)) for one in parameters_of(online)]

    def script(**given: Any) -> None:
        overrides = [*(given.pop("overrides") or []), *always]
        online(overrides, **given, ray=os.environ.get(RAY, "auto"))

    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    kept = [one for one in parameters if one.name not in left_out]
    app.command(help=description)(with_parameters(script, kept, reads_config=True))
    run_app(app)
