"""The typed, strict config tree: YAML or JSON in, frozen objects out.

A config class derives from `Config`; a key it does not know, a value of the wrong type and a file that is not there are
each answered with a sentence that names the key, the nearest known one and the place it stood in. OmegaConf reads the
file (`${oc.env:HOME}`, `a.b=c` overrides), pydantic checks it. Values are checked as JSON in strict mode: "3" is not a
number and 1 is not a boolean, while a list may fill a tuple and a string a path.
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails
from yaml import YAMLError

from plaudit.errors import ConfigError, nearest

ModelT = TypeVar("ModelT", bound=BaseModel)
Location = tuple[str | int, ...]


class Config(BaseModel):
    """Base of every config class."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def load(
    cls: type[ModelT],
    path: str | Path | None = None,
    overrides: Sequence[str] = (),
    translate: Callable[[dict[str, Any]], dict[str, Any]] = dict,
) -> ModelT:
    """Read `cls` from a file and `a.b=c` overrides; the overrides win.

    translate: keys under other names -> those of `cls`, in plain values that are not checked yet
    """
    merged, given = read_tree(path, overrides)
    try:
        return parse(cls, translate(merged))
    except ConfigError as error:
        raise ConfigError(
            (where, f"{place_of(where, path, given)}: {sentence}") for where, sentence in error.problems
        ) from None


def read_tree(path: str | Path | None, overrides: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Plain values, not checked yet: file and overrides together, and the overrides alone."""
    file_tree = _read(Path(path)) if path is not None else OmegaConf.create({})
    try:
        override_tree = OmegaConf.from_dotlist(list(overrides))
        merged: Any = OmegaConf.to_container(OmegaConf.merge(file_tree, override_tree), resolve=True)
    except (OmegaConfBaseException, YAMLError) as error:
        raise ConfigError([((), f"{path or 'command line'}: {_first_line(error)}")]) from error
    given: Any = OmegaConf.to_container(override_tree)
    return merged, given


def place_of(where: Location, path: str | Path | None, given: Mapping[str, Any]) -> str:
    """Where a key stood: in the file, or on the command line."""
    return "command line" if path is None or _has(given, where) else str(path)


def parse(cls: type[ModelT], values: Mapping[str, Any]) -> ModelT:
    """Check plain values against a config class."""
    try:
        return cls.model_validate_json(json.dumps(values), strict=True)
    except ValidationError as error:
        raise ConfigError(p for detail in error.errors() for p in _problems(cls, detail)) from None


def spelled_out(override: str, short: Collection[str], like: str) -> str:
    """`learner=sac` is short for `learner.type=sac`, where `learner` is one of `short`.

    like: an example, for whoever wrote something without a value
    """
    key, equals, value = override.partition("=")
    if not equals:
        raise ConfigError([((), f"command line: '{override}' is not KEY=VALUE, like {like}")])
    return f"{key}.type={value}" if key in short and not value.startswith("{") else override


def refuse_other_names(tree: Mapping[str, Any], hints: Mapping[str, str]) -> None:
    """Keys that other stacks have for the same things are an error that says what to write here.

    hints: a key -> what to write instead of it and of what is in it, unless a longer one fits; `algorithm.`, with a dot
        at its end, is only what is in it
    """
    strange = [
        (where, f"key '{'.'.join(where)}' goes by another name here; {hint}")
        for where in _leaves(tree)
        if (hint := _hint(".".join(where), hints))
    ]
    if strange:
        raise ConfigError(strange)


def _leaves(tree: Any, where: tuple[str, ...] = ()) -> Iterable[tuple[str, ...]]:
    if not isinstance(tree, dict) or not tree:
        yield where
        return
    for key, value in tree.items():
        yield from _leaves(value, (*where, str(key)))


def _hint(key: str, hints: Mapping[str, str]) -> str | None:
    fitting = [name for name in hints if key == name or key.startswith(f"{name.removesuffix('.')}.")]
    return hints[max(fitting, key=len)] if fitting else None


def _read(path: Path) -> Any:
    if not path.is_file():
        beside = [p.name for p in path.parent.glob("*") if p.suffix in (".yaml", ".yml", ".json")]
        where = path.parent.absolute()
        none = f"{where} has no YAML or JSON file" if where.is_dir() else f"there is no folder {where} either"
        advice = nearest(path.name, beside) if beside else none
        raise ConfigError([((), f"{path}: there is no such file; {advice}")])
    try:
        tree = OmegaConf.load(path)
    except (OmegaConfBaseException, YAMLError, UnicodeDecodeError) as error:
        raise ConfigError([((), f"{path}: this is not valid YAML: {_first_line(error)}")]) from error
    if not OmegaConf.is_dict(tree):
        raise ConfigError([((), f"{path}: a config is a mapping of keys to values, this is something else")])
    return tree


def _problems(cls: type[BaseModel], detail: ErrorDetails) -> list[tuple[Location, str]]:
    where, kind = detail["loc"], detail["type"]
    key = ".".join(map(str, where))
    inner = detail.get("ctx", {}).get("error")
    if isinstance(inner, ConfigError):  # from a section that the registry chose the class of
        return [
            ((*where, *deeper), sentence.replace("key '", f"key '{key}.", 1)) for deeper, sentence in inner.problems
        ]
    if kind == "extra_forbidden":
        return [(where, f"unknown key '{key}'; {nearest(str(where[-1]), _keys_at(cls, where[:-1]))}")]
    if kind == "missing":
        return [(where, f"key '{key}' is missing; it has no default")]
    if inner is not None:
        return [(where, f"key '{key}': {inner}" if where else str(inner))]  # a mistake of the whole has no key
    return [(where, f"key '{key}' is {json.dumps(detail['input'], default=str)}: {detail['msg'].lower()}")]


def _keys_at(cls: type[BaseModel], where: Location) -> list[str]:
    """The field names of the model that `where` points into, through optional fields, lists and dictionaries."""
    model: Any = cls
    for step in where:
        if isinstance(model, type) and issubclass(model, BaseModel) and step in model.model_fields:
            model = model.model_fields[str(step)].annotation
        model = next((m for m in (model, *get_args(model)) if isinstance(m, type) and issubclass(m, BaseModel)), model)
    is_model = isinstance(model, type) and issubclass(model, BaseModel)
    return [field.alias or name for name, field in model.model_fields.items()] if is_model else []


def _has(tree: Any, where: Location) -> bool:
    for step in where:
        if not isinstance(tree, dict) or step not in tree:
            return False
        tree = tree[step]
    return bool(where)


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split("\n")[0].split())
