"""How a command is declared: the parameters of a function are its arguments and options, their comments the help.

    @command(env, "record")
    def env_record(
        store: Path,  # The store to add to; created if it does not exist.
        *,
        episodes: Positive = 20,  # Number of episodes to keep.
    ) -> None:
        ...

Parameters before the `*` are positional. An `Option` in the type adds what name, type and default do not say. LeRobot
and openpi read their help from comments too (draccus, tyro).
"""

import linecache
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, wraps
from importlib import import_module
from inspect import Parameter, Signature, signature
from itertools import dropwhile, takewhile
from pathlib import Path
from time import monotonic
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand
from typer.main import get_command

from plaudit import __version__
from plaudit.cli.common import out, starting
from plaudit.trust import allow_code, allow_host

MAX_COUNT, MAX_SEED = 2**31 - 1, 2**63 - 1
MIN_FPS, MAX_FPS = 1e-3, 1e5
NAMES = {"output": ("--output", "-o"), "output_dir": ("--output-dir", "-o")}
FunctionT = TypeVar("FunctionT", bound=Callable[..., None])

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def top(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    """Train robot policies from what the camera sees."""
    if version:
        out.print(f"plaudit {__version__}")
        raise typer.Exit


def group(name: str, help: str) -> typer.Typer:
    """A new group of commands."""
    commands = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
    app.add_typer(commands, name=name, help=help)
    return commands


class Option:
    """Settings of `typer.Option` or `typer.Argument`: other names, `min`, `max`, `metavar`, ..."""

    def __init__(self, *names: str, **settings: Any):
        self.names, self.settings = names, settings


def command(
    commands: typer.Typer, name: str, *, reads_config: bool = False, **settings: Any
) -> Callable[[FunctionT], FunctionT]:
    """Register a function as a command. reads_config: add --allow-code and --allow-host"""

    def add(function: FunctionT) -> FunctionT:
        commands.command(name, **settings)(with_parameters(function, parameters_of(function), reads_config))
        return function

    return add


def parameters_of(function: Callable[..., Any]) -> list[Parameter]:
    """The parameters of a command, as typer needs them."""
    hints, help = get_type_hints(function, include_extras=True), _parameter_comments(function)
    return [
        parameter.replace(annotation=_annotation(parameter, hints[name], help.get(name)))
        for name, parameter in signature(function).parameters.items()
    ]


def with_parameters(
    function: Callable[..., Any], parameters: Iterable[Parameter], reads_config: bool = False
) -> Callable[..., Any]:
    """A function that typer calls with these parameters."""

    @wraps(function)
    def run(**given: Any) -> None:
        function(**{name: value for name, value in given.items() if name not in ALLOW})

    allow = [Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=kind) for name, kind in ALLOW.items()]
    run.__signature__ = made = Signature([*parameters, *(allow if reads_config else ())])  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in made.parameters.values()}
    del run.__wrapped__  # its annotations are not these
    return run


def _annotation(parameter: Parameter, hint: Any, help: str | None) -> Any:
    """The type of a parameter with its typer.Option or typer.Argument."""
    if hint is typer.Context:
        return hint
    given = next((one for one in (hint, *get_args(hint)) if get_origin(one) is Annotated), None)
    kind, declared = get_args(given)[:2] if given is not None else (hint, Option())
    kind = kind if given in (None, hint) else kind | None  # Positive | None
    names, settings = declared.names, {"help": help, **declared.settings}
    assert settings["help"], f"parameter {parameter.name} has no comment"
    is_option = parameter.kind is Parameter.KEYWORD_ONLY
    if {int, float} & {kind, *get_args(kind)}:
        settings.setdefault("max", MAX_COUNT)
        settings |= {"callback": finite} if is_option and "callback" not in settings else {}
    if not is_option:
        return Annotated[kind, typer.Argument(**settings)]
    if list[str] in (kind, *get_args(kind)):
        settings.setdefault("metavar", "<str>")  # of one value; typer shows the type in Python's words
    if not names and parameter.default is False:
        names = (f"--{parameter.name.replace('_', '-')}",)  # without a --no- form
    return Annotated[kind, typer.Option(*(names or NAMES.get(parameter.name, ())), **settings)]


def _parameter_comments(function: Callable[..., Any]) -> dict[str, str]:
    code = function.__code__
    lines = linecache.getlines(code.co_filename)[code.co_firstlineno - 1 :]
    lines = list(dropwhile(lambda line: not line.startswith("def "), lines))
    return comments(takewhile(lambda line: not line.startswith(")"), lines))


def comments(lines: Iterable[str]) -> dict[str, str]:
    """Name -> the comment after it, or else the lines above it; of parameters, or of fields of a class."""
    by_name: dict[str, str] = {}
    above, name = "", ""
    for line in lines:
        code, _, after = line.rstrip().partition("  # ")
        if line.startswith("    # "):
            above = " ".join([above, line.strip().lstrip("# ")]).strip()
            continue
        if match := re.match(r"    (\w+):", code):
            name = match[1]
            by_name[name] = above
        if name and after and (match or re.match(r"    [\])}]", code)):
            by_name[name] = after
        above = ""
    return by_name


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


def _allow_each(allow: Callable[..., None]) -> Callable[[list[str] | None], None]:
    return lambda names: allow(*(names or ()))


@dataclass(frozen=True)
class Flag:
    """A flag that sets a key of a config class; its type and its bounds are those of the key."""

    key: str
    help: str
    name: str = ""  # made from the key, unless given
    default: str = ""  # as the help shows it; the default of the key, unless given
    kind: Any = None  # instead of the key's type, with `convert`
    convert: Callable[[Any], Any] = lambda value: value  # to the value of the key
    metavar: str | None = None


def config_command(config: str, *flags: Flag) -> type[TyperCommand]:
    """A class of commands with these flags, for `command(cls=...)`.

    `context.obj` has the keys that were given, and `context.meta["began"]` the monotonic time at the start. The config
    class is imported when such a command is used: `plaudit --help` must not wait for it.

    config: "module:Class"
    """

    class ConfigCommand(TyperCommand):
        def get_params(self, ctx: Any) -> list[Any]:
            *params, help_option = super().get_params(ctx)
            return [*params, *_flag_options(config, flags), help_option]

        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            ctx.meta["began"] = monotonic()
            rest = super().parse_args(ctx, args)
            values = [(flag, ctx.params.pop(flag.key)) for flag in flags]
            ctx.obj = {flag.key: flag.convert(value) for flag, value in values if value not in (None, [], ())}
            return rest

    return ConfigCommand


@cache
def _flag_options(config: str, flags: tuple[Flag, ...]) -> list[Any]:
    """The options of a command that has these flags and nothing else."""
    module, _, name = config.partition(":")
    with starting():
        cls = getattr(import_module(module), name)
    parameters = [
        Parameter(flag.key, Parameter.KEYWORD_ONLY, default=None, annotation=_flag_annotation(flag, cls))
        for flag in flags
    ]
    single = typer.Typer(add_completion=False)
    single.command()(with_parameters(lambda: None, parameters))
    return get_command(single).params


def _flag_annotation(flag: Flag, cls: Any) -> Any:
    """The type of a flag with its option, from the JSON schema of the key."""
    from pydantic import TypeAdapter

    name = flag.name or f"--{flag.key.replace('_', '-')}"
    if flag.kind is not None:
        settings: dict[str, Any] = {"show_default": flag.default or False, "metavar": flag.metavar}
        return Annotated[flag.kind | None, typer.Option(name, help=flag.help, **settings)]
    field = cls.model_fields[flag.key]
    schema = TypeAdapter(field.rebuild_annotation()).json_schema()
    schema = schema.get("anyOf", [schema])[0]  # without None
    kinds = {"integer": int, "number": float, "boolean": bool, "string": str, "array": list[str]}
    kind: Any = Literal[tuple(schema["enum"])] if "enum" in schema else kinds[schema["type"]]
    step = 1 if kind is int else 0  # a float at an open end is refused by the config class
    settings = {name: schema[f"{name}imum"] for name in ("min", "max") if f"{name}imum" in schema}
    if "exclusiveMinimum" in schema:
        settings["min"] = schema["exclusiveMinimum"] + step
    if "exclusiveMaximum" in schema:
        settings["max"] = schema["exclusiveMaximum"] - step
    settings["show_default"] = flag.default or (str(field.default) if settings else False)
    callback = finite if "min" in settings else None
    return Annotated[kind | None, typer.Option(name, help=flag.help, callback=callback, **settings)]


# Numbers. Each has a lower and an upper bound.
Count = Annotated[int, Option(min=0)]
Positive = Annotated[int, Option(min=1)]
Share = Annotated[float, Option(min=0, max=1)]
Fps = Annotated[float, Option(min=0, max=MAX_FPS, callback=frame_rate)]

# Options of several commands.
IMAGES_HELP = "How frames are stored: raw, lossless, jpeg:90, video:18; for one camera: video,wrist=lossless."
StoreImages = Annotated[str | None, Option(metavar="CODEC", show_default="raw", help=IMAGES_HELP)]
Overrides = Annotated[list[str] | None, Option(metavar="KEY=VALUE")]
Robot = Annotated[str, Option(help="igris_b, igris_c, sim, lerobot, or my_module:MyConfig.")]
PolicyYaml = Annotated[Path, Option("--policy_yaml", "--policy-yaml")]
Algorithm = Annotated[
    str | None,
    Option(
        *("--inference_algorithm", "--inference-algorithm"),
        help="rtc infers while the robot moves; sequential lets the robot wait. Or my_module:MyEngine.",
        show_default="the config's; else rtc for chunks on a robot, sequential otherwise",
    ),
]
PARAMS = ("--inference_runtime_params_config", "--inference-runtime-params-config", "--params")
TOPICS = ("--inference_runtime_topics_config", "--inference-runtime-topics-config", "--topics")
RobotParams = Annotated[Path | None, Option(*PARAMS, help="JSON whose keys replace those of the robot's params.")]
RobotTopics = Annotated[Path | None, Option(*TOPICS, help="JSON whose keys replace those of the robot's topics.")]


def robot_files(params: Path | None, topics: Path | None) -> dict[str, str]:
    """The keys of a robot's config that these two flags set."""
    files = {"inference_runtime_params_config": params, "inference_runtime_topics_config": topics}
    return {key: str(path.absolute()) for key, path in files.items() if path is not None}


Auto = Annotated[
    bool | None,
    Option(
        "--auto/--no-auto",
        help="Run episodes one after the other, without an operator who starts and marks them.",
        show_default="in a simulation, or without a terminal",
    ),
]
View = Annotated[
    Literal["browser", "none"] | None,
    Option(
        help="A page with the newest camera frames, for this machine only.",
        show_default="browser where a person attends and the extra web is installed",
    ),
]
AllowUntrained = Annotated[
    bool, Option(help="Allow an untrained policy, or one without action statistics, on a real robot.")
]
# Added to commands that read a config. They act when they are parsed.
ALLOW = {
    "allow_code": Annotated[
        list[str] | None,
        typer.Option(
            help="Allow a file to name code of this package; repeatable.",
            metavar="PACKAGE",
            callback=_allow_each(allow_code),
        ),
    ],
    "allow_host": Annotated[
        list[str] | None,
        typer.Option(
            help="Allow a file to name this machine as a server; repeatable.",
            metavar="HOST",
            callback=_allow_each(allow_host),
        ),
    ],
}
