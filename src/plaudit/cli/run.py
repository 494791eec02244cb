"""`plaudit run`: a policy drives a robot, and what happens is recorded."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from plaudit.cli.common import open_or_create, out, stop, tell
from plaudit.cli.options import (
    MAX_SEED,
    Algorithm,
    AllowUntrained,
    Auto,
    Option,
    Overrides,
    PolicyYaml,
    Positive,
    Robot,
    RobotParams,
    RobotTopics,
    StoreImages,
    View,
    app,
    command,
    robot_files,
)
from plaudit.errors import DataError, PlauditError, RolloutError, format_count
from plaudit.trust import check_code

if TYPE_CHECKING:
    from plaudit.rollout.operator import OperatorConfig, OperatorStatus
    from plaudit.rollout.run import RecordedEpisode, RunConfig
    from plaudit.web.live import LiveView

INFERENCE = "policy.inference"  # keys below it are about the run; other keys of the policy belong to its file


@command(app, "run", reads_config=True)
def run_(
    # Keys, like policy.device=cuda:1 or policy.inference.max_action_delta=0.05.
    overrides: Overrides = None,
    *,
    robot: Robot,
    policy_yaml: PolicyYaml,  # The policy's file.
    algorithm: Algorithm = None,
    episodes: Positive = 1,  # Number of episodes.
    steps: Positive = 1000,  # Maximum number of steps of an episode.
    store: Path = Path("episodes"),  # The store to record to; created if it does not exist.
    store_images: StoreImages = None,
    task: str = "",  # The task text, recorded with each episode.
    # Seed of the first episode, in a simulation.
    seed: Annotated[int | None, Option(min=0, max=MAX_SEED)] = None,
    teleop: str = "none",  # keyboard, gamepad, spacemouse, topic, lerobot, none or my_module:MyConfig.
    auto: Auto = None,
    view: View = None,
    params: RobotParams = None,
    topics: RobotTopics = None,
    allow_untrained: AllowUntrained = False,
) -> None:
    """Run a policy on a robot and record what was sent and observed.

    Ctrl-C tells the robot to hold and keeps the episode so far. A lost camera, policy process or server ends the
    episode. The run continues if it is back within policy.inference.patience_s. Returns 1 when something failed. The
    episode so far is always kept, and its meta says how it ended.
    """
    from plaudit.rollout.operator import resolve_auto
    from plaudit.rollout.run import check_attended
    from plaudit.rollout.teleop import restore_terminal

    config, policy = load_run_and_policy(
        policy_yaml,
        overrides or [],
        algorithm,
        robot=robot,
        teleop=teleop,
        robot_files=robot_files(params, topics),
        max_episode_steps=steps,
        **({"allow_untrained": True} if allow_untrained else {}),
    )
    operator = resolve_auto(config.operator, auto, config.robot, config.teleop)
    check_attended(config.inference, config.forecast, operator)
    keys = nullcontext() if config.teleop is None else restore_terminal()
    with open_or_create(store, store_images) as opened, keys, running(lambda: config.start(policy)) as engine:
        spec = engine.env_spec
        out.print(f"{spec.name}: {spec.fps:g} Hz, {spec.action_dim} joints, {len(spec.cameras)} cameras")
        out.print(f"control has {engine.priority}")
        if engine.inference_summary:
            out.print(f"inference: {engine.inference_summary}")
        duration = f"{spec.max_steps:,} steps each: {spec.max_steps / spec.fps:.0f} s"
        out.print(f"{format_count(episodes, 'episode')} of at most {duration}")
        with _summary(engine, opened), live_view(view, engine, operator) as live:
            for _ in drive(engine, opened, config, operator, episodes, task=task, seed=seed, view=live):
                pass


@contextmanager
def running(start: Callable[[], Any], result: Callable[[], str] = str) -> Iterator[Any]:
    """Start an engine and run this block; an error or Ctrl-C ends the command with a message.

    result: what to add after Ctrl-C
    """
    state = "no episode had started"
    try:
        with start() as engine:
            state = "the robot was commanded to hold"
            yield engine
    except RolloutError as error:
        tell("error", f"{error}; {state}")
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        stop(f"interrupted; {state}{result()}")


def load_run_and_policy(
    policy_yaml: Path, overrides: list[str], algorithm: str | None, **settings: Any
) -> tuple[Any, Any]:
    """The configs of the run and of its policy; settings: of `plaudit.rollout.run.load_run`"""
    from plaudit.policies.loader import load_policy
    from plaudit.rollout.run import load_run

    for typed in (settings["robot"], settings["teleop"], algorithm):
        if typed is not None and ":" in typed:
            check_code(typed)  # a package that is named here is allowed in the policy's file too
    of_policy = [one for one in overrides if one.startswith("policy.") and not one.startswith(INFERENCE)]
    policy = load_policy(policy_yaml, of_policy)
    if algorithm is None and policy.horizon == 1:
        out.print("sequential inference, since this policy returns one action at a time")
    config = load_run(
        [one for one in overrides if one not in of_policy],
        algorithm=algorithm or ("sequential" if policy.horizon == 1 else "rtc"),
        horizon=policy.horizon,
        normalizer=None if policy.normalizer is None else str(policy.normalizer),
        **settings,
    )
    return config, policy


QUESTION = "scene ready?"  # at the gate
WORDS = {"gate": (QUESTION, "bold yellow"), "episode": ("running", "green"), "held": ("EMERGENCY STOP", "bold red")}


class OperatorConsole:
    """Prints a line when the operator has something to do, or has done something.

    operator = Operator(listener=OperatorConsole(config).show)
    """

    def __init__(self, config: "OperatorConfig", view: "LiveView | None" = None):
        """view: shows the same on a page"""
        from plaudit.rollout.operator import Cue, OperatorStatus

        self._config, self._view, self._cue = config, view, Cue(config.cue)
        self._shown = OperatorStatus()

    def show(self, status: "OperatorStatus") -> None:
        """What is new in it."""
        from plaudit.rollout.operator import hotkeys

        before, self._shown = self._shown, status
        words, style = WORDS.get(status.phase, (status.message, ""))
        hot = hotkeys(self._config, status.phase)
        if self._view is not None:
            hint = "; ".join(filter(None, (status.forecast, status.hint)))
            self._view.show(phase=status.phase, words=words, keys=hot, hint=hint)
        if status.messages != before.messages and status.message:
            out.print(Text(f"  {status.message}"))
        if status.hint and not before.hint:
            out.print(Text(f"  {status.forecast}; {status.hint}", "bold yellow"))
        if status.phase == before.phase or status.phase == "idle":
            return
        keys = [Text.assemble((key, "bold"), f" {word}") for key, word in hot]
        out.print(Text("  ").join([Text(words, style), *keys]))
        if status.phase == "gate":
            self._cue.give(QUESTION)


def drive(
    engine: Any,
    store: Any,
    run: "RunConfig",
    config: "OperatorConfig",
    count: int,
    *,
    task: str,
    seed: int | None,
    discarded_count: bool = True,
    countdown: int = 0,
    view: "LiveView | None" = None,
) -> "Iterator[RecordedEpisode]":
    """Record episodes, with an operator where their config says so, and print how each ended.

    discarded_count: whether episodes that the operator discards count
    countdown: s from the operator's start to the first step
    view: a page that shows what the operator can do
    """
    from plaudit.rollout.operator import Operator, listen_at_robot, listen_at_terminal
    from plaudit.rollout.rerun import streaming
    from plaudit.rollout.run import advising, record_episodes

    if config.attended and "web" in config.sources:
        raise DataError("operator.sources=web works only in plaudit online; use terminal, gamepad or topic")
    patience_s, console = run.inference.patience_s, OperatorConsole(config, view)

    def on_fault(fault: str) -> None:
        tell("warning", f"{fault}; the robot holds; the run waits up to {patience_s:g} s")

    operator = Operator(config.gate, console.show, countdown) if config.attended else None
    with ExitStack() as stack:
        if operator is not None:
            stack.enter_context(listen_at_robot(config, operator.send, run.robot))
            stack.enter_context(listen_at_terminal(config, operator.send))
        stack.enter_context(advising(run.forecast, engine, operator))
        stack.enter_context(streaming(run.rerun, engine))
        options: dict[str, Any] = {"operator": operator, "patience_s": patience_s, "on_fault": on_fault}
        options |= {"task": task, "seed": seed, "discarded_count": discarded_count}
        for done in record_episodes(engine, store, count, **options):
            where = f"discarded, kept as episode {done.id} of {done.store}" if done.discarded else f"episode {done.id}"
            more = f"; {done.left} to go" if done.left else ""
            out.print(f"{where}: {done.episode.steps:,} steps, ended by: {done.episode.meta['ended']}{more}")
            yield done
    if operator is not None and operator.status.stopped:
        stop("stopped by the operator")


@contextmanager
def live_view(choice: str | None, engine: Any, config: Any) -> "Iterator[LiveView | None]":
    """Show the cameras on a page during this block, and print its address. choice: None where the user has made none"""
    if choice == "none" or (choice is None and not (config.attended and sys.stdin.isatty())):
        yield None
        return
    try:
        if not engine.env_spec.cameras:
            raise DataError(f"{engine.env_spec.name} has no cameras to show")
        from plaudit.web.live import LiveView

        view = LiveView(engine)
    except PlauditError as error:
        if choice is not None:
            raise
        tell("note", f"no live view of the cameras: {error}")
        yield None
        return
    with view:
        tunnel = f" (through ssh -L {view.port}:localhost:{view.port} {gethostname()})"
        tunnel = tunnel if "SSH_CONNECTION" in os.environ else ""
        out.print(f"live view of the cameras: {view.address}{tunnel}", highlight=False)
        yield view


@contextmanager
def _summary(engine: Any, store: Any) -> Iterator[None]:
    """At the end, print what was added to the store."""
    from plaudit.report.verdict import Verdict, label_command
    from plaudit.rollout.recording import held_warning

    before = len(store)
    try:
        yield
    finally:
        if added := store.ids[before:]:
            ends = ", ".join(sorted({str(store.entry(i).line["meta"]["ended"]) for i in added}))
            versions = sorted({store.entry(i).line["meta"]["weights"] for i in added})
            latency = engine.latency
            held, expired = latency.held_fraction, latency.lost_chunks.get("expired_chunks", 0)
            slow = held_warning(held, expired)
            result = (
                f"{'Control had gaps' if slow else 'Recorded without gaps'}: {format_count(len(added), 'episode')}."
            )
            why = f"{held:.1%} of control steps had no command. Ended by: {ends}; weights {versions}."
            label = "Label what was recorded", label_command(store.folder)
            out.print(Verdict(result, why, *label, tone="bad" if slow else "good"))
            table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
            late = ((f"  late {name}", f"{count:,}") for name, count in latency.histogram() if count)
            for row in (*latency.table(), *late):
                table.add_row(*row)
            out.print(table)
            if slow:
                tell("warning", slow)
