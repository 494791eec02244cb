"""Flags of `lerobot-record`, read as ours, so that its users can paste their command.

    plaudit record demos --robot.type=so101_follower --robot.port=/dev/ttyACM0 --dataset.num_episodes=50

`--robot.x` and `--teleop.x` become `robot.options.x` and `teleop.options.x`.
"""

from collections.abc import Iterator

import typer
from typer.core import TyperCommand

from plaudit.registry import ROBOT_REGISTRY, TELEOP_REGISTRY

FLAGS = {"--dataset.num_episodes": "--episodes", "--dataset.single_task": "--task"}
KEYS = {"--dataset.fps": "robot.fps"}
UNNEEDED = {  # flag -> what to do here
    "--dataset.repo_id": "the store's folder is the first argument",
    "--dataset.root": "the store's folder is the first argument",
    "--dataset.episode_time_s": "write --steps with the number of control steps, seconds times rate",
    "--dataset.reset_time_s": "leave it out, every episode waits for the start key",
    "--dataset.push_to_hub": "leave it out, nothing is uploaded; plaudit data export writes a LeRobot data set",
    "--resume": "leave it out, the same command continues a store",
    "--play_sounds": "write operator.cue=speech",
    "--display_data": "use --view browser or --view none",
}
DEVICES = {"robot": ROBOT_REGISTRY, "teleop": TELEOP_REGISTRY}


class LeRobotFlags(TyperCommand):
    """A command that also takes these flags."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:
        """Translate, then parse."""
        return super().parse_args(ctx, list(translated(args)))


def translated(args: list[str]) -> Iterator[str]:
    """The arguments with lerobot's flags replaced.

    >>> list(translated(["--robot.type=so101_follower", "--dataset.num_episodes", "5"]))
    ['--robot', 'lerobot', 'robot.robot_type=so101_follower', '--episodes', '5']
    """
    words = iter(args)
    for word in words:
        flag, equals, value = word.partition("=")
        device, _, key = flag.removeprefix("--").partition(".")
        is_device = flag.startswith("--") and device in DEVICES and bool(key)
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
        elif value in DEVICES[device].names() or ":" in value:
            yield from (f"--{device}", value)
        else:
            yield from (f"--{device}", "lerobot", f"{device}.{device}_type={value}")
