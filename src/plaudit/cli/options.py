"""Options and arguments of commands: how they are declared, and those that several commands share.

episodes: Annotated[int, option("Number of episodes to keep.", min=1)] = 20
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from plaudit.trust import allow_code, allow_host

MAX_COUNT, MAX_SEED = 2**31 - 1, 2**63 - 1
MIN_FPS, MAX_FPS = 1e-3, 1e5


def option(help: str, *names: str, min: float | None = None, max: float | None = None, **settings: Any) -> Any:
    """An option. A number has a `min`; its `max` is MAX_COUNT unless given, and it must be finite.

    names: only if they differ from the parameter's name, or if a flag has no `--no-` form
    settings: other arguments of `typer.Option`
    """
    if min is not None:
        max = MAX_COUNT if max is None else max
        settings.setdefault("callback", finite)
    return typer.Option(*names, help=help, min=min, max=max, **settings)


def argument(help: str, min: float | None = None, **settings: Any) -> Any:
    """A positional argument. settings: other arguments of `typer.Argument`"""
    return typer.Argument(help=help, min=min, max=None if min is None else MAX_COUNT, **settings)


def finite(value: float | None) -> float | None:
    """Refuse infinity and NaN."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a finite number; write one like 0.5")
    return value


def frame_rate(value: float) -> float:
    """Refuse a number that is not a frame rate; 0 means not given."""
    if finite(value) and value < MIN_FPS:
        raise typer.BadParameter(f"{value} is below {MIN_FPS} frames per second; write a rate like 30")
    return value


def is_count(text: str) -> bool:
    """Whether `int` reads it as a number from 0 on; `isdigit` also accepts "²", which `int` does not."""
    return text.isascii() and text.isdecimal() and len(text) <= 18


def split_names(text: str | None) -> list[str] | None:
    """'human, cutoff' -> ["human", "cutoff"]; None if not given."""
    return None if text is None else [name.strip() for name in text.split(",")]


def _each(allow: Callable[..., None]) -> Callable[[list[str] | None], list[str] | None]:
    def allow_all(names: list[str] | None) -> list[str] | None:
        allow(*(names or ()))
        return names

    return allow_all


ALGORITHM = ("--inference_algorithm", "--inference-algorithm")
ALGORITHM_HELP = "rtc infers while the robot moves; sequential lets the robot wait. Or my_module:MyEngine."
PARAMS = ("--inference_runtime_params_config", "--inference-runtime-params-config")
TOPICS = ("--inference_runtime_topics_config", "--inference-runtime-topics-config")
RobotParams = Annotated[Path | None, option("A robot's inference_runtime_params.json.", *PARAMS)]
RobotTopics = Annotated[Path | None, option("A robot's inference_runtime_topics.json.", *TOPICS)]
Auto = Annotated[
    bool | None,
    option(
        "Run episodes one after the other, without an operator who starts and marks them.",
        "--auto/--no-auto",
        show_default="in a simulation, or without a terminal",
    ),
]
AllowUntrained = Annotated[
    bool, option("Allow an untrained policy, or one without action statistics, on a real robot.", "--allow-untrained")
]
# These two act as soon as they are parsed, so a command only has to declare them.
AllowCode = Annotated[
    list[str] | None,
    option("Allow a file to name code of this package; repeatable.", metavar="PACKAGE", callback=_each(allow_code)),
]
AllowHost = Annotated[
    list[str] | None,
    option("Allow a file to name this machine as a server; repeatable.", metavar="HOST", callback=_each(allow_host)),
]
