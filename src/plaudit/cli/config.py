"""`plaudit config`: the keys and choices of training configs, and examples to copy."""

import inspect
import json
import linecache
import re
import shutil
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import dropwhile, islice, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from plaudit.cli.common import out
from plaudit.cli.options import command, comments, group
from plaudit.errors import DataError, TargetNotEmpty, UnknownName, did_you_mean

if TYPE_CHECKING:
    from pydantic import BaseModel

    from plaudit.registry import Registry

config = group("config", "Show config keys and choices; copy examples.")

COMMENT_COLUMN = 44  # where a comment starts, if the value leaves room


@command(config, "list")
def config_list() -> None:
    """List the blocks of a training config, the choices of each, and the example files."""
    out.print("Blocks of a training config, for 'plaudit config show BLOCK':")
    out.print(f"  {', '.join(blocks())}", soft_wrap=True)
    out.print("\nChoices, for 'plaudit config show KIND.NAME':")
    for kind, registry in registries().items():
        out.print(f"  {kind + ':':11}{', '.join(registry.names())}", soft_wrap=True)
    out.print("\nExamples, for 'plaudit config copy NAME':")
    out.print(f"  {', '.join(_examples())}", soft_wrap=True)


@command(config, "show")
def config_show(
    name: str = "",  # A block like run, or a choice like learner.sac; none: the whole tree.
) -> None:
    """Print keys with their defaults and meaning, as YAML; '???' is what has no default."""
    kind, _, chosen = name.partition(".")
    choices, tree = registries(), blocks()
    if chosen and kind in choices:
        lines = [f"{kind}:", f"  type: {chosen}", *_yaml(choices[kind].get(chosen), 2)]
    elif name in tree:
        lines = [f"{name}:", *_yaml(tree[name][0], 2, tree[name][1])]
    elif not name:
        on = {key: block for key, (_, block) in tree.items() if block is not None}
        lines = [line for key, block in on.items() for line in (f"{key}:", *_yaml(type(block), 2, block))]
    else:
        names = [*tree, *(f"{kind}.{one}" for kind, registry in choices.items() for one in registry.names())]
        raise UnknownName(f"there is no block or choice '{name}'; {did_you_mean(name, names)}")
    for line in lines:
        out.print(line, soft_wrap=True)


@command(config, "copy")
def config_copy(
    name: str,  # An example that 'plaudit config list' shows.
    target: Path | None = None,  # The file or folder to write; default: the example's name, here.
) -> None:
    """Copy an example config or plugin to edit and run. Nothing is overwritten."""
    examples = _examples()
    if name not in examples:
        raise UnknownName(f"there is no example '{name}'; {did_you_mean(name, examples)}")
    source = examples[name]
    target = target or Path(source.name)
    if target.exists():
        raise TargetNotEmpty(f"{target} exists already; name another one: plaudit config copy {name} TARGET")
    if not target.parent.is_dir():
        raise DataError(f"{target.parent} is not a folder; create it first, or name a file in another")
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copyfile(source, target)
    from plaudit.report.verdict import Verdict

    why = f"It is a copy of the example '{name}'."
    out.print(Verdict(f"{target} is ready to edit.", why, *_use(name, target), tone="good"))


def _use(name: str, path: Path) -> tuple[str, str]:
    """What to do with the copy of an example, and the command."""
    from plaudit.config import read_yaml
    from plaudit.report.verdict import quoted

    if name == "rlinf":
        run = "bash examples/embodiment/run_embodiment.sh maniskill_collect_reward_data"
        return "Collect reward data in it, then train as in RLinf's guide", f"cd {quoted(path)} && {run}"
    if path.suffix != ".yaml":
        return "Edit it; docs/ has a page for each kind of plugin", ""
    keys, file = read_yaml(path), quoted(path)
    if keys.get("type"):
        return "Edit it, then label with it", f"plaudit label STORE --config {file}"
    if "reward_training" in keys or "encoder" in keys:
        return "Edit it, then train a judge", f"plaudit train-reward --config {file}"
    if name.startswith("online"):
        return "Edit it, then start the run", f"plaudit online --config {file}"
    return "Edit it, then start the run", f"plaudit {'collect' if 'collect' in keys else 'train'} --config {file}"


def _examples() -> dict[str, Path]:
    """Name -> file or folder: in a wheel inside the package, in a checkout at its top."""
    package = Path(__file__).parents[1]
    recipes = "rlinf/examples/embodiment/config/*.yaml"
    patterns = ("configs/*.yaml", "plugins/my_*", "policies/openpi_*", "rlinf", recipes)
    folders = (package / "examples", package.parents[1] / "examples")
    return {path.stem: path for one in folders for pattern in patterns for path in sorted(one.glob(pattern))}


def registries() -> Mapping[str, "Registry"]:
    """The registry of each kind of choice."""
    from plaudit import registry

    every = [value for value in vars(registry).values() if isinstance(value, registry.Registry)]
    return {one.kind.split()[0]: one for one in every}


def blocks() -> "dict[str, tuple[type[BaseModel], BaseModel | None]]":
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

    meaning = key_comments(cls)
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
            yield f"{text + '  ':{COMMENT_COLUMN}}# {meaning[name]}" if meaning.get(name) else text
            if block:
                yield from _yaml(type(block), indent + 2, block)


def key_comments(cls: type) -> dict[str, str]:
    """Field -> its comment in the source, or that of a base class."""
    by_name: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.startswith("plaudit") or base is cls:
            by_name |= {name: text for name, text in _own_comments(base).items() if text or name not in by_name}
    return by_name


@cache
def _own_comments(cls: type) -> dict[str, str]:
    """Of the fields in the class itself. `inspect.getsource` would parse the whole module for each class."""
    try:
        lines = linecache.getlines(str(inspect.getsourcefile(cls)))
    except TypeError:  # a class that was made at run time
        return {}
    body = dropwhile(lambda line: not re.match(rf"class {cls.__name__}\b", line), lines)
    return comments(takewhile(lambda line: line[0] in " \n)", islice(body, 1, None)))
