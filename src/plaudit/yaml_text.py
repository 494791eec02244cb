"""YAML texts of plain values, measured before anything is built from them.

A text may come from somebody else, and a few bytes of it can ask for gigabytes by aliases of aliases. It is read as
OmegaConf reads it, which fills in the templates of a config: see `plaudit.config`.
"""

import re
from collections.abc import Mapping
from typing import Any

import yaml

from plaudit.files import MAX_DEPTH, DuplicateKey

MAX_YAML = 1 << 20  # characters; the parser does about 0.1 MB a second
MAX_NODES = 50_000  # values of a YAML file once its aliases are written out
MAX_NUMBER = 400  # characters of an unquoted YAML value that begins like a number: some are read in quadratic time

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def load_yaml(text: str, nodes: int = MAX_NODES) -> Any:
    """The values of a text of at most so many nodes; what its tags (`!!bool x`) raise passes."""
    try:
        check_yaml(text, nodes)
        return yaml.load(text, _Loader)  # a SafeLoader
    except yaml.YAMLError as error:
        raise ValueError(_first_line(error)) from error


def to_yaml(tree: Mapping[str, Any]) -> str:
    """Plain values as text that `load_yaml` reads back unchanged."""
    return yaml.dump(dict(tree), Dumper=_Dumper, default_flow_style=False, allow_unicode=True, sort_keys=False)


def parse_yaml(text: str) -> Any:
    """A YAML text of plain values; ValueError if it is too large, too deep, not YAML, or has a key twice."""
    try:
        check_yaml(text)
        return yaml.load(text, _UniqueLoader)  # a SafeLoader
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())[:300]) from error
    except ValueError:
        raise
    except Exception as error:  # the constructors of tagged values (!!bool x, !!timestamp x) raise whatever they meet
        raise ValueError(f"a value that is not what its tag says ({type(error).__name__})") from error


def check_yaml(text: str, nodes: int = MAX_NODES) -> None:
    """ValueError for a YAML text that is too large or too deep, or whose aliases multiply.

    It reads the parser's events one by one, so that nothing is built from a text that is refused.
    """
    if len(text) > MAX_YAML:
        raise ValueError(f"{len(text):,} characters of YAML; the limit is {MAX_YAML:,}")
    if text.count("${") > MAX_NODES // 25:
        raise ValueError("it has too many ${...}")
    sizes: dict[str, int] = {}  # anchor -> values under it, aliases written out
    above: list[tuple[str | None, int]] = []  # of each open list or mapping: anchor, and values counted before it
    count = 0
    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in sizes:
                raise ValueError(f"alias *{event.anchor[:30]} stands for something that is not complete before it")
            count += sizes[event.anchor]
        elif isinstance(event, yaml.ScalarEvent):
            count += 1
            if event.implicit[0] and len(event.value) > MAX_NUMBER and event.value[:1] in "+-.0123456789":
                raise ValueError(f"a number of {len(event.value):,} characters; put text into quotes")
            if event.anchor:
                sizes[event.anchor] = 1
        elif isinstance(event, yaml.CollectionStartEvent):
            above.append((event.anchor, count))
            count += 1
            if len(above) > MAX_DEPTH:
                raise ValueError(f"it nests more than {MAX_DEPTH} levels deep")
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = above.pop()
            if anchor:
                sizes[anchor] = count - before
        if count > nodes:
            raise ValueError(f"it stands for more than {nodes:,} values")


def _first_line(error: yaml.YAMLError) -> str:
    """What is wrong and in which line."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem and error.problem_mark:
        return f"{' '.join(error.problem.split())} in line {error.problem_mark.line + 1}"
    return " ".join(str(error).split("\n")[0].split())


class _Dumper(_DUMPER):
    """Writes what OmegaConf does, without its tree of objects, which takes most of the time."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: Any, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="'" if _is_quoted(text) else None)


def _is_quoted(text: str) -> bool:
    """Whether OmegaConf would read a number or a truth value where yaml reads a string."""
    try:
        float(text)
    except ValueError:
        return text.lower() in ("y", "n")
    return True


_Dumper.add_representer(str, _represent_text)


class _Loader(_LOADER):
    """Reads 1e3 as a number and a date as text, as OmegaConf does, and refuses a mapping that has a key twice."""

    def __init__(self, text: str):
        super().__init__(text)
        self._flat: set[yaml.MappingNode] = set()

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Before merges (`<<`) are written out into the mapping, which may be merged into others first."""
        if node in self._flat:
            return
        self._flat.add(node)
        seen = set()
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:str":
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"duplicate key {key.value}", key.start_mark)
                seen.add(key.value)
        super().flatten_mapping(node)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in _LOADER.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)[eE][-+]?\d+\Z"), list("-+0123456789.")
)


class _UniqueLoader(yaml.SafeLoader):
    """Refuses a mapping that has a key twice, before merges (`<<`) are written out."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node: Any = super().compose_mapping_node(anchor)
        seen = set()
        for key_node, _ in node.value:
            if isinstance(key_node, yaml.ScalarNode) and not key_node.tag.endswith(":merge"):
                key: Any = self.construct_object(key_node)
                if key in seen:
                    raise DuplicateKey(key)
                seen.add(key)
        return node
