"""`plaudit config`: the keys, choices and examples of training configs."""

import inspect
import json
import shutil
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from plaudit.cli.common import out
from plaudit.cli.options import command, comments, group
from plaudit.errors import DataError, TargetNotEmpty, UnknownName, did_you_mean

if TYPE_CHECKING:
    from pydantic import BaseModel

    from plaudit.registry import Registry

config = group("config", "Show config keys and choices; copy example configs.")

COMMENT_COLUMN = 44  # where a comment starts, if the value leaves room


@command(config, "list")
def config_list() -> None:
    """List the blocks of a training config, the choices of each, and the example files."""
    out.print("Blocks of a training config, for 'plaudit config show BLOCK':")
    out.print(f"  {', '.join(_blocks())}", soft_wrap=True)
    out.print("\nChoices, for 'plaudit config show KIND.NAME':")
    for kind, registry in _registries().items():
        out.print(f"  {kind + ':':11}{', '.join(registry.names())}", soft_wrap=True)
    out.print("\nExamples, for 'plaudit config copy NAME':")
    out.print(f"  {', '.join(_examples())}", soft_wrap=True)


@command(config, "show")
def config_show(
    name: str = "",  # A block like run, or a choice like learner.sac; none: the whole tree.
) -> None:
    """Print keys with their defaults and meaning, as YAML; '???' is what has no default."""
    kind, _, chosen = name.partition(".")
    registries, blocks = _registries(), _blocks()
    if chosen and kind in registries:
        lines = [f"{kind}:", f"  type: {chosen}", *_yaml(registries[kind].get(chosen), 2)]
    elif name in blocks:
        lines = [f"{name}:", *_yaml(blocks[name][0], 2, blocks[name][1])]
    elif not name:
        on = {key: block for key, (_, block) in blocks.items() if block is not None}
        lines = [line for key, block in on.items() for line in (f"{key}:", *_yaml(type(block), 2, block))]
    else:
        names = [*blocks, *(f"{kind}.{one}" for kind, registry in registries.items() for one in registry.names())]
        raise UnknownName(f"there is no block or choice '{name}'; {did_you_mean(name, names)}")
    for line in lines:
        out.print(line, soft_wrap=True)


@command(config, "copy")
def config_copy(
    name: str,  # An example that 'plaudit config list' shows.
    target: Path | None = None,  # The file to write; default: NAME.yaml here.
) -> None:
    """Copy an example config to edit and run. Nothing is overwritten."""
    examples = _examples()
    if name not in examples:
        raise UnknownName(f"there is no example '{name}'; {did_you_mean(name, examples)}")
    target = target or Path(f"{name}.yaml")
    if target.exists():
        raise TargetNotEmpty(f"{target} exists already; name another file: plaudit config copy {name} FILE")
    if not target.parent.is_dir():
        raise DataError(f"{target.parent} is not a folder; create it first, or name a file in another")
    shutil.copyfile(examples[name], target)
    out.print(f"wrote {target}")


def _examples() -> dict[str, Path]:
    """Name -> file: in a wheel inside the package, in a checkout at its top."""
    package = Path(__file__).parents[1]
    folders = (package / "examples/configs", package.parents[1] / "examples/configs")
    return {path.stem: path for folder in folders for path in sorted(folder.glob("*.yaml"))}


def _registries() -> Mapping[str, "Registry"]:
    from plaudit import registry

    registries = [value for value in vars(registry).values() if isinstance(value, registry.Registry)]
    return {one.kind.split()[0]: one for one in registries}


def _blocks() -> "dict[str, tuple[type[BaseModel], BaseModel | None]]":
    """The class and the default of each block of a training config whose keys do not depend on a choice.

    Blocks that are off by default come last.
    """
    from pydantic import BaseModel

    from plaudit.training.config import TrainingConfig

    on: dict[str, Any] = {}
    off: dict[str, Any] = {}
    for name, field in TrainingConfig.model_fields.items():
        if isinstance(field.default, BaseModel):
            on[name] = (type(field.default), field.default)
        for cls in get_args(field.annotation) if field.default is None else ():
            if isinstance(cls, type) and issubclass(cls, BaseModel):
                off[name] = (cls, None)
    return on | off


def _yaml(cls: "type[BaseModel]", indent: int, values: "BaseModel | None" = None) -> Iterator[str]:
    """The keys of a config class with their comments in the source. values: default: those of the class"""
    from pydantic import BaseModel

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
    """Field -> its comment in the source; including base classes."""
    by_name: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.startswith("plaudit") or base is cls:
            try:
                by_name |= comments(textwrap.dedent(inspect.getsource(base)).splitlines())
            except (OSError, TypeError):  # a class that was made at run time
                continue
    return by_name
