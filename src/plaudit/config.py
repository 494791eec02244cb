"""The typed, strict config tree: YAML or JSON in, frozen objects out.

A config class derives from `Config`; a key it does not know, a value of the wrong type and a file that is not there are
each answered with a sentence that names the key, the nearest known one and the place it stood in. OmegaConf reads the
file (`${oc.env:HOME}`, `a.b=c` overrides), pydantic checks it. Values are checked as JSON in strict mode: "3" is not a
number and 1 is not a boolean, while a list may fill a tuple and a string a path.
"""

import io
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails
from yaml import YAMLError

from plaudit.errors import BadFile, ConfigError, nearest
from plaudit.untrusted import MAX_YAML, check_yaml, read_own

ModelT = TypeVar("ModelT", bound=BaseModel)
Location = tuple[str | int, ...]

MAX_WRITTEN_OUT = 10_000_000  # characters of a config with what its ${...} stand for
_REFERENCE = re.compile(r"\$\{([^${}]*)\}")  # the innermost


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
    file_tree = read_file(Path(path)) if path is not None else OmegaConf.create({})
    try:
        for override in overrides:
            check_yaml(override.partition("=")[2])
        override_tree = OmegaConf.from_dotlist(list(overrides))
        both = OmegaConf.merge(file_tree, override_tree)
        _check_references(OmegaConf.to_container(both))
        merged: Any = OmegaConf.to_container(both, resolve=True)
    except (OmegaConfBaseException, YAMLError, ValueError) as error:
        raise ConfigError([((), f"{path or 'command line'}: {_first_line(error)}")]) from error
    except RecursionError as error:
        raise ConfigError([((), f"{path or 'command line'}: its ${{...}} refer to each other too deep")]) from error
    given: Any = OmegaConf.to_container(override_tree)
    return merged, given


def _check_references(tree: Any) -> None:
    """ValueError where `${...}` would write out more than a config has: ten that each stand for two of another do.

    Where a name stands in several places, the largest counts.
    """
    named: dict[str, list[Any]] = {}
    known: dict[str, float] = {}
    for where, value in _values(tree):
        named.setdefault(where, []).append(value)

    def size_of(value: Any) -> float:
        if isinstance(value, dict | list):
            return 1 + sum(map(size_of, value.values() if isinstance(value, dict) else value))
        text, total = str(value), float(len(str(value)))
        while found := _REFERENCE.search(text):
            names = [name for name in re.split(r"[.\[\]]", found[1]) if name in named]
            total += size_of_name(names[-1]) if names and ":" not in found[1] else 0
            text = f"{text[: found.start()]}?{text[found.end() :]}"
        return total

    def size_of_name(name: str) -> float:
        if name not in known:
            known[name] = 0  # a circle, which OmegaConf refuses
            known[name] = max(map(size_of, named[name]))
        return known[name]

    if size_of(tree) > MAX_WRITTEN_OUT:
        raise ValueError(f"its ${{...}} stand for more than {MAX_WRITTEN_OUT:,} characters")


def _values(tree: Any) -> Iterable[tuple[str, Any]]:
    """Every key and what it holds, at every depth."""
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        yield str(key), value
        if isinstance(value, dict | list):
            yield from _values(value)


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


def read_file(path: Path) -> Any:
    """A config file as OmegaConf's tree, which keeps its `${...}`."""
    if not path.is_file():
        beside = [p.name for p in path.parent.glob("*") if p.suffix in (".yaml", ".yml", ".json")]
        where = path.parent.absolute()
        none = f"{where} has no YAML or JSON file" if where.is_dir() else f"there is no folder {where} either"
        advice = nearest(path.name, beside) if beside else none
        raise ConfigError([((), f"{path}: there is no such file; {advice}")])
    try:
        text = read_own(path, 4 * MAX_YAML).decode()
        check_yaml(text)
        tree = OmegaConf.load(io.StringIO(text))
    except BadFile as error:
        raise ConfigError([((), str(error))]) from error
    except Exception as error:  # the constructors of tagged values (!!bool x) raise whatever they meet
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
