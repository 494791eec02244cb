"""The typed, strict config tree: YAML or JSON in, frozen objects out.

A config class derives from `Config`; a key it does not know, a value of the wrong type and a file that is not there are
each answered with a sentence that names the key, the nearest known one and the place it stood in. OmegaConf reads the
file (`${other.key}`, `a.b=c` overrides), pydantic checks it. Values are checked as JSON in strict mode: "3" is not a
number and 1 is not a boolean, while a list may fill a tuple and a string a path.

A file may come from somebody else. It is read within bounds, its templates reach other keys of it and the few
environment variables that `plaudit.trust` names, and what is made of it knows that it came from a file.
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

from omegaconf import OmegaConf
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from plaudit.errors import ConfigError, nearest
from plaudit.trust import from_file
from plaudit.untrusted import check_yaml
from plaudit.yaml_file import UNREADABLE, first_line, read_yaml

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
        with from_file(path, given):
            return parse(cls, translate(merged))
    except ConfigError as error:
        raise ConfigError(
            (where, f"{place_of(where, path, given)}: {sentence}") for where, sentence in error.problems
        ) from None


def read_tree(path: str | Path | None, overrides: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Plain values, not checked yet: file and overrides together, and the overrides alone.

    Whoever makes something of the first does so within `plaudit.trust.from_file(path, overrides)`, as `load` does.
    """
    file_tree = read_yaml(Path(path)) if path is not None else OmegaConf.create({})
    override_tree = _overrides(overrides)
    try:
        merged: Any = OmegaConf.to_container(OmegaConf.merge(file_tree, override_tree), resolve=True)
    except UNREADABLE as error:
        raise ConfigError([((), f"{path or 'command line'}: {first_line(error)}")]) from error
    given: Any = OmegaConf.to_container(override_tree)
    return merged, given


def _overrides(overrides: Sequence[str]) -> Any:
    """`a.b=c`, each by itself, so that a mistake is told with the one it is in."""
    tree = OmegaConf.create({})
    for override in overrides:
        try:
            if "\0" in override:
                raise ValueError("it has a zero byte")
            check_yaml(override.partition("=")[2])
            override.encode()  # what is no UTF-8 on the command line cannot be written down
            tree = OmegaConf.merge(tree, OmegaConf.from_dotlist([override]))
            OmegaConf.to_container(tree)
        except UNREADABLE as error:
            said = override if len(override) <= 80 else f"{override[:77]}..."
            raise ConfigError([((), f"command line: '{said}' cannot be read: {first_line(error)}")]) from error
    return tree


def place_of(where: Location, path: str | Path | None, given: Mapping[str, Any]) -> str:
    """Where a key stood: in the file, or on the command line."""
    return "command line" if path is None or _has(given, where) else str(path)


def parse(cls: type[ModelT], values: Mapping[str, Any]) -> ModelT:
    """Check plain values against a config class."""
    try:
        text = json.dumps(values)
    except (TypeError, ValueError) as error:  # bytes, a date, a set: YAML has more than JSON
        raise ConfigError([((), f"a value is of a kind that no config has: {first_line(error)}")]) from None
    try:
        return cls.model_validate_json(text, strict=True)
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
