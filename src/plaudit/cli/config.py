"""Config classes on the command line: `plaudit config`, and flags that set keys of a config class."""

import ast
import inspect
import json
import shutil
import textwrap
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from inspect import Parameter, Signature
from io import StringIO
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer
from pydantic import BaseModel, TypeAdapter
from typer.core import TyperCommand
from typer.main import get_command

from plaudit.cli.common import out, starting
from plaudit.cli.options import argument, option
from plaudit.errors import DataError, TargetNotEmpty, UnknownName, did_you_mean

if TYPE_CHECKING:
    from plaudit.registry import Registry

config = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

COMMENT_COLUMN = 44  # where a comment starts, if the value leaves room


@config.command("list")
def config_list() -> None:
    """List the blocks of a training config, the choices of each, and the example files."""
    out.print("Blocks of a training config, for 'plaudit config show BLOCK':")
    out.print(f"  {', '.join([*_blocks(), *_blocks_left_out()])}", soft_wrap=True)
    out.print("\nChoices, for 'plaudit config show KIND.NAME':")
    for kind, registry in _registries().items():
        out.print(f"  {kind + ':':11}{', '.join(registry.names())}", soft_wrap=True)
    out.print("\nExamples, for 'plaudit config copy NAME':")
    out.print(f"  {', '.join(_examples())}", soft_wrap=True)


@config.command("show")
def config_show(
    name: Annotated[str, argument("A block like run, or a choice like learner.sac; none: the whole tree.")] = "",
) -> None:
    """Print keys with their defaults and meaning, as YAML; '???' is what has no default."""
    kind, _, chosen = name.partition(".")
    registries, blocks, left_out = _registries(), _blocks(), _blocks_left_out()
    if chosen and kind in registries:
        lines = [f"{kind}:", f"  type: {chosen}", *_yaml(registries[kind].get(chosen), 2)]
    elif name in blocks:
        lines = [f"{name}:", *_yaml(type(blocks[name]), 2, blocks[name])]
    elif name in left_out:
        lines = [f"{name}:", *_yaml(left_out[name], 2)]
    elif not name:
        lines = [line for key, block in blocks.items() for line in (f"{key}:", *_yaml(type(block), 2, block))]
    else:
        names = [
            *blocks,
            *left_out,
            *(f"{kind}.{one}" for kind, registry in registries.items() for one in registry.names()),
        ]
        raise UnknownName(f"there is no block or choice '{name}'; {did_you_mean(name, names)}")
    for line in lines:
        out.print(line, soft_wrap=True)


@config.command("copy")
def config_copy(
    name: Annotated[str, argument("An example that 'plaudit config list' shows.")],
    target: Annotated[Path | None, argument("The file to write; default: NAME.yaml here.")] = None,
) -> None:
    """Copy an example config to edit and run. Nothing is overwritten."""
    examples = _examples()
    if name not in examples:
        raise UnknownName(f"there is no example '{name}'; {did_you_mean(name, examples)}")
    target = target or Path(f"{name}.yaml")
    if target.exists():
        raise TargetNotEmpty(f"{target} exists already; name another file: plaudit config copy {name} FILE")
    if not target.parent.is_dir():
        raise DataError(f"{target.parent} is no folder; make it first, or name a file in another")
    shutil.copyfile(examples[name], target)
    out.print(f"wrote {target}")


def _examples() -> dict[str, Path]:
    """Name -> file: in a wheel beside the package, in a checkout at its top."""
    package = Path(__file__).parents[1]
    folders = (package / "examples/configs", package.parents[1] / "examples/configs")
    return {path.stem: path for folder in folders for path in sorted(folder.glob("*.yaml"))}


def _registries() -> Mapping[str, "Registry"]:
    from plaudit import registry

    registries = [value for value in vars(registry).values() if isinstance(value, registry.Registry)]
    return {one.kind.split()[0]: one for one in registries}


def _blocks() -> dict[str, BaseModel]:
    """The blocks of a training config whose keys do not depend on a choice, with their defaults."""
    from plaudit.training.config import TrainingConfig

    defaults = {name: field.default for name, field in TrainingConfig.model_fields.items()}
    return {name: default for name, default in defaults.items() if isinstance(default, BaseModel)}


def _blocks_left_out() -> dict[str, type[BaseModel]]:
    """The classes of those blocks that are not there unless they are asked for."""
    from plaudit.training.config import TrainingConfig

    return {
        name: cls
        for name, field in TrainingConfig.model_fields.items()
        for cls in get_args(field.annotation)
        if field.default is None and isinstance(cls, type) and issubclass(cls, BaseModel)
    }


# Keys of a config class as YAML and as flags


def _yaml(cls: type[BaseModel], indent: int, values: BaseModel | None = None) -> Iterator[str]:
    """The keys of a config class with their comments in the source. values: default: those of the class"""
    comments = _comments(cls)
    for name, field in cls.model_fields.items():
        value: Any = "???"
        if values is not None:
            value = getattr(values, name)
        elif not field.is_required():
            value = field.get_default(call_default_factory=True)
        if name == "config" and isinstance(value, BaseModel):  # the judge's own keys are on the level of the block
            yield from _yaml(type(value), indent, value)
        elif name != "type":
            block = value if isinstance(value, BaseModel) else None
            shown = "" if block else f" {value if value == '???' else json.dumps(value, default=str)}"
            text = f"{' ' * indent}{name}:{shown}"
            yield f"{text + '  ':{COMMENT_COLUMN}}# {comments[name]}" if comments.get(name) else text
            if block:
                yield from _yaml(type(block), indent + 2, block)


def _comments(cls: type) -> dict[str, str]:
    """Field -> the comment after it, or else the lines above it; including base classes."""
    comments: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.startswith("plaudit") or base is cls:
            comments |= _own_comments(base)
    return comments


def _own_comments(cls: type) -> dict[str, str]:
    try:
        source = textwrap.dedent(inspect.getsource(cls))
    except (OSError, TypeError):  # a class that was made at run time
        return {}
    after: dict[int, str] = {}
    above: dict[int, str] = {}
    for token in tokenize.generate_tokens(StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, text = token.start[0], token.string.lstrip("# ")
            if token.line.strip() == token.string:
                above[row] = f"{above.pop(row - 1, '')} {text}".strip()
            else:
                after[row] = text
    (tree,) = ast.parse(source).body
    fields = [node for node in getattr(tree, "body", []) if isinstance(node, ast.AnnAssign)]
    return {
        node.target.id: after.get(node.end_lineno or 0) or above.get(node.lineno - 1, "")
        for node in fields
        if isinstance(node.target, ast.Name)
    }


@dataclass(frozen=True)
class Flag:
    """A flag that sets a key of a config class; its type and its bounds are those of the key."""

    key: str
    help: str = ""  # the comment of the key in the source, unless given
    name: str = ""  # made from the key, unless given
    default: str = ""  # as the help shows it; the default of the key, unless given


def config_command(config: str, *flags: Flag) -> type[TyperCommand]:
    """A class of commands with these flags, for `app.command(cls=...)`.

    `context.obj` has the keys that were given, and `context.meta["began"]` the monotonic time at the start. The config
    class is imported when such a command is used: `plaudit --help` must not import torch.

    config: "module:Class"
    """

    class ConfigCommand(TyperCommand):
        def get_params(self, ctx: Any) -> list[Any]:
            *params, help_option = super().get_params(ctx)
            return [*params, *_options(config, flags), help_option]

        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            ctx.meta["began"] = monotonic()
            rest = super().parse_args(ctx, args)
            values = {flag.key: ctx.params.pop(flag.key) for flag in flags}
            ctx.obj = {key: value for key, value in values.items() if value not in (None, [], ())}
            return rest

    return ConfigCommand


@cache
def _options(config: str, flags: tuple[Flag, ...]) -> list[Any]:
    """The options of a command that has these flags and nothing else."""
    module, _, name = config.partition(":")
    with starting():
        cls: type[BaseModel] = getattr(import_module(module), name)
    comments = _comments(cls)
    parameters = [
        Parameter(flag.key, Parameter.KEYWORD_ONLY, default=None, annotation=_annotation(flag, cls, comments))
        for flag in flags
    ]

    def command(**_: Any) -> None: ...

    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    app = typer.Typer(add_completion=False)
    app.command()(command)
    return get_command(app).params


def _annotation(flag: Flag, cls: type[BaseModel], comments: Mapping[str, str]) -> Any:
    """The type of a flag with its option, from the JSON schema of the key."""
    field = cls.model_fields[flag.key]
    schema = TypeAdapter(field.rebuild_annotation()).json_schema()
    schema = schema.get("anyOf", [schema])[0]  # without None
    kinds = {"integer": int, "number": float, "boolean": bool, "string": str, "array": list[str]}
    kind: Any = Literal[tuple(schema["enum"])] if "enum" in schema else kinds[schema["type"]]
    step = 1 if kind is int else 0  # a float at an open end is refused by the config class
    bounds = {name: schema[f"{name}imum"] for name in ("min", "max") if f"{name}imum" in schema}
    if "exclusiveMinimum" in schema:
        bounds["min"] = schema["exclusiveMinimum"] + step
    if "exclusiveMaximum" in schema:
        bounds["max"] = schema["exclusiveMaximum"] - step
    default = flag.default or (str(field.default) if bounds else False)
    name = flag.name or f"--{flag.key.replace('_', '-')}"
    return Annotated[kind | None, option(flag.help or comments[flag.key], name, show_default=default, **bounds)]
