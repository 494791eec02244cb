"""`plaudit record`: demonstrations by teleoperation, or corrections of a policy.

It also reads the flags of `lerobot-record`, so that its users can paste their command:

    plaudit record demos --robot.type=so101_follower --robot.port=/dev/ttyACM0 --dataset.num_episodes=50

`--robot.x` and `--teleop.x` become `robot.options.x` and `teleop.options.x`.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from plaudit.cli.common import open_or_create, out, tell
from plaudit.cli.options import (
    MAX_SEED,
    AllowUntrained,
    Auto,
    Count,
    Option,
    Overrides,
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
from plaudit.cli.run import drive, live_view, load_run_and_policy, running
from plaudit.errors import ConfigError, DataError, PlauditError, format_count

if TYPE_CHECKING:
    from plaudit.data.store import Store
    from plaudit.report.verdict import Verdict
    from plaudit.rollout.run import RecordedEpisode

FLAGS = {"--dataset.num_episodes": "--episodes", "--dataset.single_task": "--task"}
KEYS = {"--dataset.fps": "robot.fps"}
UNNEEDED = {  # flag -> what to do here
    "--dataset.repo_id": "name the store's folder as the first argument",
    "--dataset.root": "name the store's folder as the first argument",
    "--dataset.episode_time_s": "use --steps, the number of control steps (seconds times rate)",
    "--dataset.reset_time_s": "leave it out: every episode waits for the start key",
    "--dataset.push_to_hub": "leave it out: nothing is uploaded; plaudit data export writes a LeRobot data set",
    "--resume": "leave it out: the same command continues a store",
    "--play_sounds": "write operator.cue=speech",
    "--display_data": "use --view browser or --view none",
}


class LeRobotFlags(TyperCommand):
    """A command that also takes the flags of `lerobot-record`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Translate, then parse."""
        return super().parse_args(ctx, list(translated(args)))


def translated(args: list[str]) -> Iterator[str]:
    """The arguments with lerobot's flags replaced.

    >>> list(translated(["--robot.type=so101_follower", "--dataset.num_episodes", "5"]))
    ['--robot', 'lerobot', 'robot.robot_type=so101_follower', '--episodes', '5']
    """
    from plaudit.registry import ROBOT_REGISTRY, TELEOP_REGISTRY

    devices, words = {"robot": ROBOT_REGISTRY, "teleop": TELEOP_REGISTRY}, iter(args)
    for word in words:
        flag, equals, value = word.partition("=")
        device, _, key = flag.removeprefix("--").partition(".")
        is_device = flag.startswith("--") and device in devices and bool(key)
        if flag in UNNEEDED:
            raise typer.BadParameter(f"{flag} is a flag of lerobot-record; in plaudit, {UNNEEDED[flag]}")
        if not (is_device or flag in FLAGS or flag in KEYS):
            yield word
            continue
        if not equals:
            value = next(words, "")
        if flag in FLAGS:
            yield from (FLAGS[flag], value)
        elif flag in KEYS:
            yield f"{KEYS[flag]}={value}"
        elif key != "type":
            yield f"{device}.options.{key}={value}"
        elif value in devices[device].names() or ":" in value:
            yield from (f"--{device}", value)
        else:
            yield from (f"--{device}", "lerobot", f"{device}.{device}_type={value}")


@command(app, "record", reads_config=True, cls=LeRobotFlags)
def record(
    store: Path,  # The store to add to; created if it does not exist.
    # Config keys, like teleop.step_size=0.02 or operator.keys.success=g.
    overrides: Overrides = None,
    *,
    robot: Robot = "sim",
    env: Annotated[str | None, Option(help="With --robot sim: lift, pick_place or push.")] = None,
    teleop: str = "keyboard",  # keyboard, gamepad, spacemouse, topic, lerobot or my_module:MyConfig.
    policy: Path | None = None,  # File of a policy that acts while you correct it.
    episodes: Positive = 20,  # Number of episodes that the store should have.
    steps: Positive = 1000,  # Maximum number of steps of an episode.
    store_images: StoreImages = None,
    task: str = "",  # Task text stored with each episode; by default that of the simulated task.
    # Seed of the first episode, in a simulation.
    seed: Annotated[int | None, Option(min=0, max=MAX_SEED)] = None,
    countdown: Count = 3,  # Seconds from the start key to the first step.
    playback: bool = False,  # Write a video of the last episode next to the store.
    auto: Auto = None,
    view: View = None,
    params: RobotParams = None,
    topics: RobotTopics = None,
    allow_untrained: AllowUntrained = False,
) -> None:
    """Record demonstrations by teleoperation.

    Before each episode, press the start key. Mark its end with success or failure, discard it, or repeat it. The same
    command continues a store that has fewer episodes. With --policy, a policy acts and your corrections are recorded.
    """
    from plaudit.rollout.operator import resolve_auto
    from plaudit.rollout.run import check_attended
    from plaudit.rollout.teleop import restore_terminal

    if env is not None and robot != "sim":
        raise ConfigError([((), f"--env {env} is a simulated task, but --robot is {robot}; leave one of them out")])
    with open_or_create(store, store_images) as opened, restore_terminal(), ExitStack() as stack:
        config, spec = _load(
            overrides or [],
            policy,
            robot=robot,
            env=env,
            teleop=teleop,
            robot_files=robot_files(params, topics),
            max_episode_steps=steps,
            **({"allow_untrained": True} if allow_untrained else {}),
        )
        if len(opened.ids) >= episodes:
            count = format_count(len(opened.ids), "episode")
            out.print(f"{store} already has {count}; increase --episodes to record more")
            return
        stack.enter_context(_shared_keyboard(config, auto := _is_auto(config, auto)))
        operator = resolve_auto(config.operator, auto, config.robot, config.teleop)
        check_attended(config.inference, config.forecast, operator)
        if opened.ids:
            out.print(f"{store} has {len(opened.ids)} of {format_count(episodes, 'episode')}")

        def result() -> str:
            count = f"{len(opened.ids)} of {format_count(episodes, 'episode')}"
            return f". {store} has {count}; run the same command again to continue"

        with running(lambda: _engine(config, spec), result) as engine:
            out.print(f"{engine.env_spec.name}: {engine.env_spec.fps:g} Hz; {_how_to_move(engine, config)}")
            with live_view(view, engine, operator) as live:
                options: dict[str, Any] = {"task": task or _instruction(config.robot), "discarded_count": False}
                options |= {"seed": None if seed is None else _next_seed(opened, seed)}
                options |= {"countdown": countdown, "view": live}
                for done in drive(engine, opened, config, operator, episodes - len(opened.ids), **options):
                    if playback and not done.discarded:
                        _play_back(opened, done)
        out.print(_verdict(opened, episodes))


def _load(overrides: list[str], policy: Path | None, *, env: str | None, **settings: Any) -> tuple[Any, Any]:
    """The configs of the run and of the policy, with what suits the device unless the user has set it."""
    from plaudit.envs.panda.scene import TASKS
    from plaudit.rollout.teleop import KeyboardConfig

    simulated, teleop = settings["robot"] == "sim", settings["teleop"]
    defaults: dict[str, Any] = {}
    if teleop == "keyboard":  # keys that no command of the operator has
        defaults["teleop.keys"] = f"[{','.join(KeyboardConfig.hand['keys'])}]"
    # Without a policy the person always acts. On a robot the gamepad's button must be held all the same.
    if teleop in ("keyboard", "spacemouse", "lerobot") or (teleop == "gamepad" and simulated):
        defaults["teleop.always"] = str(policy is None).lower()
    if simulated:
        defaults |= {} if env is None else {"robot.env.type": env}
        defaults |= {"robot.env.obs": "both"} if env in TASKS else {}  # a person needs images, and so do most policies
        defaults |= {"policy.inference.idle_action": "zero"}
    given = {one.partition("=")[0] for one in overrides}
    overrides = [*(f"{key}={value}" for key, value in defaults.items() if key not in given), *overrides]
    if policy is not None:
        return load_run_and_policy(policy, overrides, None, **settings)
    from plaudit.rollout.run import load_run

    return load_run(overrides, algorithm="sequential", **settings), None


def _engine(config: Any, policy: Any) -> Any:
    from plaudit.rollout.engine import TeleopOnly

    return TeleopOnly(config.robot, config.inference, config.teleop) if policy is None else config.start(policy)


def _is_auto(config: Any, flag: bool | None) -> bool | None:
    """Unless the flag or the config decide, a person attends where there is a terminal, in a simulation too."""
    from plaudit.rollout.operator import has_terminal

    auto = config.operator.auto if flag is None else flag
    return False if auto is None and has_terminal() else auto


def _shared_keyboard(config: Any, auto: bool | None) -> AbstractContextManager[None]:
    """Where the operator's keys are the terminal's, the listener reads those of the teleoperator too."""
    from plaudit.rollout.operator import has_terminal
    from plaudit.rollout.teleop import SHARED_KEYS, KeyboardConfig

    both = isinstance(config.teleop, KeyboardConfig) and "terminal" in config.operator.sources
    return SHARED_KEYS.shared() if both and not auto and has_terminal() else nullcontext()


def _verdict(store: "Store", wanted: int) -> "Verdict":
    """What was recorded. Nothing learns from episodes that ended without a mark before they are labeled."""
    from plaudit.report.verdict import Verdict, label_command, quoted

    unlabeled = sum(store.ledger.labels(i) is None for i in store.ids)
    more = f"; {unlabeled} without a label" if unlabeled else ""
    why = f"{store.folder}: {len(store.ids)} of {format_count(wanted, 'episode')}{more}."
    if unlabeled:
        return Verdict("Partly usable: some episodes have no label.", why, "Label them", label_command(store.folder))
    train = f"plaudit train-policy {quoted(store.folder)}"
    return Verdict("Usable: every episode has a label.", why, "Train a policy on them", train, "good")


def _instruction(robot: Any) -> str:
    """What a simulated task is called in words; "" for others."""
    from plaudit.envs.panda import PandaConfig
    from plaudit.envs.panda.scene import TASKS
    from plaudit.robots.sim import SimRobotConfig

    if not isinstance(robot, SimRobotConfig) or not isinstance(robot.env, PandaConfig):
        return ""
    return TASKS[robot.env.type].instruction


def _how_to_move(engine: Any, config: Any) -> str:
    """What to press; an error where a key of the operator would move a joint too."""
    from plaudit.rollout.teleop import SHARED_KEYS, KeyboardConfig

    if not isinstance(config.teleop, KeyboardConfig):
        return "use the device"
    pairs = config.teleop.used_keys(engine.env_spec.action_dim)
    for name, key in config.operator.keys if SHARED_KEYS.in_use else ():
        if key.lower() in "".join(pairs):
            raise DataError(
                f"key '{key}' stands for {name} (operator.keys.{name}) and moves the robot (teleop.keys: "
                f"{' '.join(pairs)}); set one of the two to another key"
            )
    return f"key pairs, one per action dimension: {' '.join(pairs)}"


def _next_seed(store: "Store", first: int) -> int:
    """After the seeds of all its episodes, so that none begins like another."""
    seeds = (store.entry(i).line["meta"].get("seed", first - 1) for i in store.ids)
    return max((first - 1, *seeds)) + 1


def _play_back(store: "Store", done: "RecordedEpisode") -> None:
    """Write the episode as a video; an episode without cameras has none."""
    from plaudit.report.video import save_episode_video

    path = store.folder.with_name(f"{store.folder.name}.last.mp4")
    if not done.episode.frames:
        return
    try:
        save_episode_video(done.episode, path)
    except (PlauditError, OSError) as error:
        tell("warning", f"no video of episode {done.id}: {error}")
    else:
        out.print(f"playback: {path}")
