"""Reading a YAML or JSON file that may come from somebody else.

A few bytes of YAML can ask for gigabytes: aliases of aliases, templates of templates, fifty thousand brackets. So it is
measured before anything is built of it. A template may stand for another key of the same file, `${a.b}`, or for one of
the few environment variables that hold folders (`plaudit.trust.PLACES`). OmegaConf's others are not for files: they
read the environment, and so whatever is secret in it.

OmegaConf is imported where it is used: the processes of a robot read no file, and it is a sixth of all they import.
"""

import io
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from plaudit.errors import BadFile, ConfigError, did_you_mean
from plaudit.trust import PLACES
from plaudit.untrusted import MAX_JSON, MAX_YAML, Root, brief, check_yaml, parse_json

MAX_FILLED = 10_000  # values of a file that OmegaConf goes through, a few seconds
MOST_LETTERS = 16 << 20  # of all values, with templates filled in

_PLACE = re.compile(r"\$\{oc\.env:(" + "|".join(PLACES) + r")(,[\w./-]*)?\}")
_OTHER_KEY = re.compile(r"\$\{([\w-]+(?:\.[\w-]+)*)\}")

Location = tuple[str | int, ...]


def unreadable() -> tuple[type[Exception], ...]:
    """What damaged text makes yaml and OmegaConf raise: `a[b` an AssertionError or an IndexError deep inside, a key
    that is a list a TypeError."""
    from omegaconf.errors import OmegaConfBaseException

    return (
        *(OmegaConfBaseException, yaml.YAMLError, ValueError, TypeError, AttributeError, AssertionError, LookupError),
        *(OverflowError, RecursionError),
    )


def read_yaml(path: Path, root: Root | None = None) -> dict[Any, Any]:
    """A file as plain values, its templates not filled in yet.

    root: the folder of somebody else that it is in; None: the user named the file, and it may be a link
    """
    if not path.exists() or path.is_dir():
        beside = [p.name for p in path.parent.glob("*") if p.suffix in (".yaml", ".yml", ".json")]
        where = path.parent.absolute()
        none = f"{where} has no YAML or JSON file" if where.is_dir() else f"there is no folder {where} either"
        advice = did_you_mean(path.name, beside) if beside else none
        raise ConfigError([((), f"{path}: there is no such file; {advice}")])
    try:
        tree = _parse(path, root or Root.of_named_file(path))
    except BadFile as error:
        raise ConfigError([((), str(error))]) from error
    except unreadable() as error:
        kind = "JSON" if path.suffix == ".json" else "YAML"
        raise ConfigError([((), f"{path}: this is not valid {kind}: {first_line(error)}")]) from error
    if not isinstance(tree, dict):
        raise ConfigError([((), f"{path}: a config is a mapping of keys to values, this is {brief(tree)}")])
    _check_templates(path, tree)
    return tree


def _parse(path: Path, root: Root) -> Any:
    if path.suffix == ".json":  # a reward model's has hundreds of KB, which YAML's parser would take seconds for
        return parse_json(root.read(path, MAX_JSON))
    text = root.read(path, 4 * MAX_YAML).decode()
    check_yaml(text, MAX_FILLED)
    from omegaconf import OmegaConf

    try:
        return OmegaConf.to_container(OmegaConf.load(io.StringIO(text)))
    except OSError:  # a number or a date by itself, which it has no tree for
        return text.strip()


def merge_overrides(tree: dict[Any, Any], overrides: Any) -> Any:
    """The same with overrides in their places and templates filled in, as OmegaConf does it."""
    if not overrides and not any(isinstance(value, str) and "${" in value for _, value in _leaves(tree)):
        return tree  # a reward model's description: OmegaConf would take half a minute for 50,000 values
    count = sum(1 for _ in _leaves(tree))
    if count > MAX_FILLED:
        raise ValueError(f"it has {count:,} values, and templates and overrides are for at most {MAX_FILLED:,}")
    from omegaconf import OmegaConf

    return OmegaConf.to_container(OmegaConf.merge(OmegaConf.create(tree), overrides), resolve=True)


def dump_yaml(tree: Mapping[str, Any]) -> str:
    """Plain values as text that `read_yaml` reads as the same values: a string like 1e3 is in quotes."""
    from omegaconf import OmegaConf

    return OmegaConf.to_yaml(OmegaConf.create(dict(tree)))


def first_line(error: Exception) -> str:
    """The first line of an error's message; of yaml's, what is wrong and in which line."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem and error.problem_mark:
        return f"{' '.join(error.problem.split())} in line {error.problem_mark.line + 1}"
    return " ".join(str(error).split("\n")[0].split())


def _check_templates(path: Path, tree: dict[Any, Any]) -> None:
    """`${other.key}` and the places that are known; whatever else a template can do is not for a file to ask for."""
    found = [(where, value) for where, value in _leaves(tree) if isinstance(value, str) and "${" in value]
    for where, value in found:
        if "${" in _OTHER_KEY.sub("", _PLACE.sub("", value)):
            key = ".".join(map(str, where))
            message = (
                f"{path}: key '{key}' has a template that a file may not have: {value[:80]}; other keys (${{a.b}}) and "
                f"${{oc.env:{PLACES[0]}}} can be filled in, anything else is for the command line"
            )
            raise ConfigError([(where, message)])
    if found and _letters(tree, tree, {}) > MOST_LETTERS:
        raise ConfigError([((), f"{path}: its templates lead to each other, and make too much of it")])


def _letters(tree: Any, node: Any, known: dict[int, int]) -> int:
    """Of all values in a node with its templates filled in; `known` is by the identity of nodes, as for aliases."""
    if id(node) not in known:
        known[id(node)] = MOST_LETTERS + 1
        if isinstance(node, dict | list):
            inner = list(node.values() if isinstance(node, dict) else node)
            known[id(node)] = 1 + sum(_letters(tree, part, known) for part in inner)
        else:
            named = _OTHER_KEY.findall(node) if isinstance(node, str) else []
            known[id(node)] = len(str(node)) + sum(_letters(tree, _at(tree, key), known) for key in named)
    return known[id(node)]


def _at(tree: Any, key: str) -> Any:
    for step in key.split("."):
        if isinstance(tree, list) and step.isdecimal() and int(step) < len(tree):
            tree = tree[int(step)]
        elif isinstance(tree, dict):
            tree = tree.get(step, tree.get(int(step)) if step.isdecimal() else None)
        else:
            return None
    return tree


def _leaves(tree: Any, where: Location = ()) -> Iterator[tuple[Location, Any]]:
    if isinstance(tree, dict | list):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from _leaves(value, (*where, key if isinstance(key, int) else str(key)))
    else:
        yield where, tree
