"""The typed, strict config tree: YAML or JSON in, frozen objects out.

A config class derives from `Config`. An unknown key, a value of the wrong type and a missing file each give an error
that names the key, the most similar key and the file. OmegaConf fills in templates (`${other.key}`), and pydantic
checks the values. They are checked as JSON in strict mode: "3" is not a number and 1 is not a boolean, but a list may
fill a tuple and a string a path.

A file may come from somebody else, and a few bytes of YAML can ask for gigabytes: aliases of aliases, templates of
templates. So a file is measured before anything is built from it. A template may only name another key of the same
file, `${a.b}`, or one of the folders in `plaudit.trust.PLACES`; OmegaConf's other templates read the environment.

A parser of YAML is imported only where a file or an override is read, and OmegaConf only where there is a template:
its objects take half a millisecond for each value.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from inspect import Parameter, signature
from itertools import takewhile
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic_core import ErrorDetails

from plaudit import trust
from plaudit.errors import BadFile, ConfigError, ContractError, did_you_mean
from plaudit.files import MAX_JSON, Root, brief, parse_json

LONGEST = 200  # characters of a key or a value that an error message repeats
MOST_PROBLEMS = 20  # in the error message of one config
OTHER_TYPE = 2  # see `_distance`
MAX_FILLED = 10_000  # values of a file whose templates OmegaConf fills in, a few seconds
MOST_LETTERS = 16 << 20  # characters of all values with templates filled in

# What is raised for damaged text and for tagged values (`!!bool x`).
_YAML_ERRORS = (ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RecursionError)
_MISSING = object()
_PLACE = re.compile(r"\$\{oc\.env:(" + "|".join(trust.PLACES) + r")(,[\w./-]*)?\}")
_STEP = r"(?:\\[.\[\]=]|[^.\[\]=])+"  # of a key; a backslash makes a dot, a bracket or an equals sign part of it
_OVERRIDE = re.compile(rf"({_STEP}(?:\.{_STEP}|\[{_STEP}\])*)(?:=(.*))?", re.DOTALL)
_OTHER_KEY = re.compile(r"\$\{([\w-]+(?:\.[\w-]+)*)\}")

ModelT = TypeVar("ModelT", bound=BaseModel)
Location = tuple[str | int, ...]


# The numbers of config classes. Each has a lower and an upper bound: a value far outside the usual range is a mistake
# that would otherwise end in a traceback or fill the memory. A test checks every field.
Seed = Annotated[int, Field(ge=0, lt=2**63)]  # what torch and numpy both take
PositiveInt = Annotated[int, Field(gt=0, le=10**9)]  # steps, episodes, frames
NonNegativeInt = Annotated[int, Field(ge=0, le=10**9)]
SmallInt = Annotated[int, Field(gt=0, le=1000)]  # threads, networks of an ensemble, actions of a chunk
FrameOffset = Annotated[int, Field(ge=-(10**6), le=10**6)]
NumEnvs = Annotated[int, Field(gt=0, le=16_384)]  # environments side by side
BatchSize = Annotated[int, Field(gt=0, le=65_536)]
Width = Annotated[int, Field(gt=0, le=65_536)]  # numbers in a vector: units of a layer, joints
Edge = Annotated[int, Field(gt=0, le=16_384)]  # pixels of an image
Number = Annotated[float, Field(ge=-1e9, le=1e9)]
Channels = tuple[Number, Number, Number]  # red, green, blue
PositiveFloat = Annotated[float, Field(gt=0, le=1e9)]
NonNegativeFloat = Annotated[float, Field(ge=0, le=1e9)]
Fraction = Annotated[float, Field(ge=0, le=1)]
LearningRate = Annotated[float, Field(gt=0, le=10)]
Hertz = Annotated[float, Field(ge=1e-3, le=1000)]  # control steps or frames per second

# Values that a file may not choose freely; see `plaudit.trust`.
CodeName = Annotated[str, AfterValidator(trust.check_code)]
ServerUrl = Annotated[str, AfterValidator(trust.check_no_secret), AfterValidator(trust.check_host)]
KeyVariable = Annotated[str, AfterValidator(trust.check_key_variable)]
LocalFilesOnly = Annotated[bool, AfterValidator(trust.check_local_files_only)]


class Config(BaseModel):
    """Base of every config class."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


@cache
def config_from_init(cls: type, context: tuple[str, ...] = ()) -> type[BaseModel]:
    """A config class for a class that has none: its fields are the arguments of `__init__`, its `build()` makes one.

    An `__init__` with an argument `config: SomeConfig` gets the whole config instead, with the fields of that class.
    context: arguments of `__init__` that are not part of the config; `build()` takes them, in this order
    """
    init = f"{cls.__qualname__}.__init__"
    try:
        hints = get_type_hints(cls.__init__, include_extras=True)
        arguments = signature(cls).parameters
    except (NameError, TypeError, ValueError) as error:
        raise ContractError(f"the arguments of {init} cannot be read: {error}") from error
    base: type[Config] = Config
    fields: dict[str, Any] = {}
    for name, argument in arguments.items():
        hint = hints.get(name)
        if name in context:
            continue
        if name == "config" and isinstance(hint, type) and issubclass(hint, Config):
            base = hint
            continue
        where = f"argument '{name}' of {init}"
        if argument.kind not in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY):
            raise ContractError(f"{where} has no name or no end; take arguments that a config file can set, one by one")
        if hint is None:
            raise ContractError(f"{where} has no type; write one, like {name}: int, so that a config is checked")
        fields[name] = (hint, ... if argument.default is Parameter.empty else argument.default)
    if base is not Config and fields:
        raise ContractError(
            f"{init} takes a config and '{next(iter(fields))}', which no config file could set; make it a field of "
            f"{base.__name__}"
        )
    try:
        made: type[BaseModel] = create_model(cls.__name__, __base__=base, __module__=cls.__module__, **fields)
        made.model_json_schema()  # what has none cannot stand in a file
    except PydanticUserError as error:
        kinds = ", ".join(f"{name}: {getattr(kind, '__name__', kind)}" for name, (kind, _) in fields.items())
        raise ContractError(
            f"{init} takes ({kinds}), of which a config file cannot give all; take numbers, text, lists and config "
            "classes, or register a config class with build()"
        ) from error

    def build(self: BaseModel, *values: Any) -> Any:
        given = {name: value for name, value in zip(context, values, strict=True) if name in arguments}
        own = {"config": self} if base is not Config else {name: getattr(self, name) for name in fields}
        return cls(**given, **own)

    def reduce(self: BaseModel) -> tuple[Any, ...]:
        return _rebuild, (cls.__module__, cls.__qualname__, context, self.model_dump(mode="json"))

    made.__qualname__, made.__doc__ = cls.__qualname__, cls.__doc__
    setattr(made, "build", build)  # noqa: B010 - of a model that pyright has no fields of
    setattr(made, "__reduce__", reduce)  # noqa: B010 - a class that is made at run time is found by no import
    return made


def _rebuild(module: str, name: str, context: tuple[str, ...], values: dict[str, Any]) -> BaseModel:
    """In another process."""
    return parse(config_from_init(attrgetter(name)(import_module(module)), context), values)


def load(
    cls: type[ModelT],
    path: str | Path | None = None,
    overrides: Sequence[str] = (),
    translate: Callable[[dict[str, Any]], dict[str, Any]] = dict,
    typed: Collection[str] = (),
    root: Root | None = None,
) -> ModelT:
    """Read `cls` from a file and `a.b=c` overrides; the overrides win.

    translate: converts the plain values to the keys of `cls` before they are checked
    typed: blocks that are dropped from the file when an override changes their `type`
    root: the folder from others that the file is in; None: the user named the file
    """
    merged, given = read_values(path, overrides, typed, root)
    try:
        with trust.from_file(path, given):
            return parse(cls, translate(merged))
    except ConfigError as error:
        raise ConfigError(
            (where, f"{key_location(where, path, given)}: {message}") for where, message in error.problems
        ) from None


def read_values(
    path: str | Path | None, overrides: Sequence[str], typed: Collection[str] = (), root: Root | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Plain values that are not checked yet: file and overrides merged, and the overrides alone.

    Use the merged values inside `plaudit.trust.from_file(path, overrides)`, as `load` does.
    typed, root: see `load`
    """
    file_tree = read_yaml(Path(path), root) if path is not None else {}
    override_tree = parse_overrides(overrides)
    for block in typed:
        *above, name = block.split(".")
        old, new = (_at(tree, above) for tree in (file_tree, override_tree))
        chosen = _at(new, [name, "type"])
        before = _at(old, [name, "type"]) if isinstance(_at(old, [name]), dict) else _at(old, [name])
        if None not in (chosen, before) and chosen != before:
            del old[name]
    try:
        merged = _fill_in(file_tree, override_tree)
    except _YAML_ERRORS as error:
        raise ConfigError([((), f"{path or 'command line'}: {first_line(error)}")]) from error
    return merged, override_tree


def parse_overrides(overrides: Sequence[str]) -> dict[str, Any]:
    """Parse `a.b=c` overrides one by one, so that an error names the right one."""
    tree: dict[str, Any] = {}
    for override in overrides:
        try:
            keys, value = _parse_override(override)
            for key in reversed(keys):
                value = {key: value}
            tree = merge(tree, value)
        except _YAML_ERRORS as error:
            text = trust.hide_secrets(override)
            text = text if len(text) <= 80 else f"{text[:77]}..."
            raise ConfigError(
                [((), f"command line: '{text}' cannot be read: {trust.hide_secrets(first_line(error))}")]
            ) from error
    return tree


def _parse_override(override: str) -> tuple[list[str], Any]:
    """`a.b=c` and `a[b]=c` as (["a", "b"], "c")."""
    match = _OVERRIDE.fullmatch(override)
    if "\0" in override or match is None:
        raise ValueError("it has a zero byte" if match else "it is not KEY=VALUE")
    override.encode()  # bytes that are not UTF-8 cannot be written to a file
    key, text = match.groups()
    from plaudit.yaml_text import load_yaml

    value = load_yaml(text or "")
    steps = [re.sub(r"\\([.\[\]=])", r"\1", step) for step in re.findall(_STEP, key)]
    return steps, _copy(value)


def merge(old: Any, new: Any) -> Any:
    """Mappings are merged key by key; of other values the new one counts."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    return {**old, **{key: merge(old.get(key), value) for key, value in new.items()}}


def _copy(tree: Any) -> Any:
    """Values of the types that a config has; what aliases stand for is written out."""
    if isinstance(tree, dict):
        if strange := [type(key).__name__ for key in tree if not isinstance(key, str | int | float)]:
            raise ValueError(f"a key has a type that no config has: {strange[0]}")
        return {key: _copy(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_copy(value) for value in tree]
    if not isinstance(tree, str | int | float | None):
        raise ValueError(f"a value has a type that no config has: {type(tree).__name__}")
    return tree


def key_location(where: Location, path: str | Path | None, given: Mapping[str, Any]) -> str:
    """Where a key comes from: the file or the command line."""
    typed = bool(where) and _at(given, where, _MISSING) is not _MISSING
    return "command line" if path is None or typed else str(path)


def parse(cls: type[ModelT], values: Mapping[str, Any]) -> ModelT:
    """Check plain values against a config class."""
    try:
        text = json.dumps(values)
    except (TypeError, ValueError) as error:  # bytes, a date, a set: YAML has more types than JSON
        raise ConfigError([((), f"a value has a type that no config has: {first_line(error)}")]) from None
    try:
        return cls.model_validate_json(text, strict=True)
    except ValidationError as error:
        details = _one_per_key(values, error.errors())
        problems = [problem for detail in details for problem in _problems(cls, detail)]
        more = len(problems) - MOST_PROBLEMS
        left_out = [((), f"and {more:,} more like these")] if more > 0 else []
        raise ConfigError([*problems[:MOST_PROBLEMS], *left_out]) from None


def expand_type_override(override: str, short: Collection[str], like: str) -> str:
    """`learner=sac` is short for `learner.type=sac`, where `learner` is one of `short`.

    like: an example for the error message
    """
    key, equals, value = override.partition("=")
    if not equals:
        raise ConfigError([((), f"command line: '{override}' is not KEY=VALUE, like {like}")])
    return f"{key}.type={value}" if key in short and not value.startswith("{") else override


def reject_foreign_keys(tree: Mapping[str, Any], hints: Mapping[str, str]) -> None:
    """Raise for keys that other stacks use for the same things, with the key to use instead.

    hints: a key -> what to write instead of it and of the keys inside it; the longest match counts. `algorithm.`, with
        a dot at the end, matches only the keys inside it
    """
    # A list is one value, whatever it contains.
    locations = {tuple(takewhile(lambda step: isinstance(step, str), where)): None for where, _ in _leaves(tree)}
    strange = []
    for where in locations:
        key = ".".join(map(str, where))
        fitting = [name for name in hints if key == name or key.startswith(f"{name.removesuffix('.')}.")]
        if fitting:
            strange.append((where, f"key '{key}' goes by another name here; {hints[max(fitting, key=len)]}"))
    if strange:
        raise ConfigError(strange)


def _leaves(tree: Any, where: Location = ()) -> Iterator[tuple[Location, Any]]:
    """Each value that is not a mapping or a list with items, and its location."""
    if isinstance(tree, dict | list) and tree:
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from _leaves(value, (*where, key if isinstance(key, int) else str(key)))
    else:
        yield where, tree


def read_yaml(path: Path, root: Root | None = None) -> dict[Any, Any]:
    """A file as plain values, with templates not filled in yet.

    root: the folder from others that it is in; None: the user named the file, and it may be a link
    """
    if not path.exists() or path.is_dir():
        others = [p.name for p in path.parent.glob("*") if p.suffix in (".yaml", ".yml", ".json")]
        where = path.parent.absolute()
        none = f"{where} has no YAML or JSON file" if where.is_dir() else f"there is no folder {where} either"
        advice = did_you_mean(path.name, others) if others else none
        raise ConfigError([((), f"{path}: there is no such file; {advice}")])
    try:
        tree = _parse(path, root or Root.of_named_file(path))
    except BadFile as error:
        raise ConfigError([((), str(error))]) from error
    except _YAML_ERRORS as error:
        kind = "JSON" if path.suffix == ".json" else "YAML"
        raise ConfigError([((), f"{path}: this is not valid {kind}: {first_line(error)}")]) from error
    if not isinstance(tree, dict):
        raise ConfigError([((), f"{path}: a config is a mapping of keys to values, this is {brief(tree)}")])
    _check_templates(path, tree)
    return tree


def _parse(path: Path, root: Root) -> Any:
    if path.suffix == ".json":  # a reward model's description has hundreds of KB, for which a YAML parser takes seconds
        return parse_json(root.read(path, MAX_JSON))
    from plaudit.yaml_text import MAX_YAML, load_yaml

    tree = load_yaml(root.read(path, 4 * MAX_YAML).decode(), MAX_FILLED)
    return {} if tree is None else _copy(tree)


def _fill_in(tree: dict[Any, Any], overrides: dict[str, Any]) -> Any:
    """The values with overrides applied and templates filled in by OmegaConf."""
    merged = merge(tree, overrides)
    if not _has_templates(merged):
        return merged
    count = sum(1 for _ in _leaves(tree))
    if count > MAX_FILLED:
        raise ValueError(f"it has {count:,} values, and templates are for at most {MAX_FILLED:,}")
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        return OmegaConf.to_container(OmegaConf.merge(OmegaConf.create(tree), overrides), resolve=True)
    except (OmegaConfBaseException, AssertionError) as error:
        raise ValueError(f"a template cannot be filled in: {first_line(error)}") from error


def _has_templates(tree: Any) -> bool:
    return any(isinstance(value, str) and "${" in value for _, value in _leaves(tree))


def dump_yaml(tree: Mapping[str, Any]) -> str:
    """Plain values as text that `read_yaml` reads back unchanged: a string like 1e3 is in quotes."""
    if _has_templates(tree):
        from omegaconf import OmegaConf

        return OmegaConf.to_yaml(OmegaConf.create(dict(tree)))  # refuses a template that it could not read back
    from plaudit.yaml_text import to_yaml

    return to_yaml(tree)


def first_line(error: Exception) -> str:
    """The first line of an error's message."""
    return " ".join(str(error).split("\n")[0].split())


def _check_templates(path: Path, tree: dict[Any, Any]) -> None:
    """Refuse templates other than `${other.key}` and the allowed folders."""
    templates = [(where, value) for where, value in _leaves(tree) if isinstance(value, str) and "${" in value]
    for where, value in templates:
        if "${" in _OTHER_KEY.sub("", _PLACE.sub("", value)):
            key = ".".join(map(str, where))
            message = (
                f"{path}: key '{key}' has a template that a file may not have: {value[:80]}; other keys (${{a.b}}) and "
                f"${{oc.env:{trust.PLACES[0]}}} can be filled in, anything else is for the command line"
            )
            raise ConfigError([(where, message)])
    if templates and _letters(tree, tree, {}) > MOST_LETTERS:
        raise ConfigError([((), f"{path}: its templates lead to each other, and make too much of it")])


def _letters(tree: Any, node: Any, sizes: dict[int, int]) -> int:
    """The characters of all values in a node with its templates filled in; `sizes` caches them by the node's id."""
    if id(node) not in sizes:
        sizes[id(node)] = MOST_LETTERS + 1
        if isinstance(node, dict | list):
            inner = list(node.values() if isinstance(node, dict) else node)
            sizes[id(node)] = 1 + sum(_letters(tree, part, sizes) for part in inner)
        else:
            named = _OTHER_KEY.findall(node) if isinstance(node, str) else []
            sizes[id(node)] = len(str(node)) + sum(_letters(tree, _at(tree, key.split(".")), sizes) for key in named)
    return sizes[id(node)]


def _at(tree: Any, steps: Iterable[str | int], missing: Any = None) -> Any:
    """The value at a location in a tree."""
    for step in steps:
        number = int(step) if isinstance(step, int) or step.isdecimal() else None
        if isinstance(tree, list) and number is not None and number < len(tree):
            tree = tree[number]
        elif isinstance(tree, dict) and (key := step if step in tree else number) in tree and key is not None:
            tree = tree[key]
        else:
            return missing
    return tree


def _one_per_key(values: Any, details: Sequence[ErrorDetails]) -> list[ErrorDetails]:
    """For a key that takes several types, pydantic reports one error per type, with the type's name in the location.

    Returns the errors of the most similar type, without its name; or one error that names all types.
    """
    errors: list[ErrorDetails] = []
    kinds: dict[Location, dict[str | int, list[ErrorDetails]]] = {}
    for detail in details:
        at = _kind_at(values, detail)
        if at is None:
            errors.append(detail)
        else:
            kinds.setdefault(detail["loc"][:at], {}).setdefault(detail["loc"][at], []).append(detail)
    for where, by_kind in kinds.items():
        nearest = min(by_kind.values(), key=lambda details: _distance(details, len(where)))
        if _distance(nearest, len(where)) == OTHER_TYPE:
            expected = [details[0]["msg"].removeprefix("Input should be ") for details in by_kind.values()]
            nearest = nearest[:1]
            nearest[0]["msg"] = f"Input should be {' or '.join(expected)}"
        for detail in nearest:
            detail["loc"] = (*where, *detail["loc"][len(where) + 1 :])
        errors += nearest
    return errors


def _kind_at(values: Mapping[str, Any], detail: ErrorDetails) -> int | None:
    """The position of a type's name in a location: the first step that is no key of the values. None if it has none."""
    steps = detail["loc"][:-1] if detail["type"] == "missing" else detail["loc"]
    tree: Any = values
    for at, step in enumerate(steps):
        try:
            tree = tree[step]
        except (KeyError, IndexError, TypeError):
            return at
    return None


def _distance(details: Sequence[ErrorDetails], depth: int) -> int:
    """How far a value is from a type: 0 if only something inside it is wrong, 1 if the type fits, else OTHER_TYPE.

    depth: of the value's key
    """
    if len(details[0]["loc"]) > depth + 1:
        return 0
    return OTHER_TYPE if details[0]["type"].endswith("_type") else 1


def _problems(cls: type[BaseModel], detail: ErrorDetails) -> list[tuple[Location, str]]:
    where, kind = detail["loc"], detail["type"]
    key = ".".join(map(str, where))
    key = key if len(key) <= LONGEST else f"{key[:LONGEST]}..."
    inner = detail.get("ctx", {}).get("error")
    if isinstance(inner, ConfigError):  # from a section whose class the registry chose
        return [((*where, *deeper), message.replace("key '", f"key '{key}.", 1)) for deeper, message in inner.problems]
    if kind == "extra_forbidden":
        return [(where, f"unknown key '{key}'; {did_you_mean(str(where[-1])[:LONGEST], _keys_at(cls, where[:-1]))}")]
    if kind == "missing":
        return [(where, f"key '{key}' is missing; it has no default")]
    if inner is not None:
        message = trust.hide_secrets(str(inner))
        return [(where, f"key '{key}': {message}" if where else message)]  # an error of the whole config has no key
    value = json.dumps(detail["input"], default=str)
    value = trust.hide_secrets(value if len(value) <= LONGEST else brief(detail["input"]), key)
    message = detail["msg"][:300].lower().replace("a valid array", "a list in brackets, like [1, 2]")
    return [(where, f"key '{key}' is {value}: {message}")]


def _keys_at(cls: type[BaseModel], where: Location) -> list[str]:
    """The field names of the model that `where` points into, through optional fields, lists and dictionaries."""
    model: Any = cls
    for step in where:
        if isinstance(model, type) and issubclass(model, BaseModel) and step in model.model_fields:
            model = model.model_fields[str(step)].annotation
        model = next((m for m in (model, *get_args(model)) if isinstance(m, type) and issubclass(m, BaseModel)), model)
    is_model = isinstance(model, type) and issubclass(model, BaseModel)
    return [field.alias or name for name, field in model.model_fields.items()] if is_model else []
