"""The reference pages of the documentation: every config key and every command, as Markdown made from the code.

A key's type and range come from the JSON schema of its config class, and its description from the comment in the
source, as in `plaudit config show`. A command's flags come from the parser.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, get_args

import typer
from pydantic import BaseModel
from typer.main import get_command

from plaudit.cli import load_app
from plaudit.cli.config import blocks, key_comments, registries

NAMES = {"integer": "int", "number": "float", "boolean": "bool", "string": "text", "null": "null", "object": "mapping"}
KINDS = {
    "env": "Simulated tasks",
    "robot": "Robots",
    "teleop": "Teleoperation",
    "inference": "Inference",
    "policy": "Policies",
    "judge": "Judges",
    "learner": "Learners",
    "encoder": "Image encoders",
}
OF_COMMANDS = {  # a command with a config of its own -> the class
    "train-reward": "plaudit.judges.classifier.train_job:RewardTrainJob",
    "train-policy": "plaudit.learners.config:TrainPolicyConfig",
    "run": "plaudit.rollout.run:RunConfig",
}


@dataclass(frozen=True)
class Key:
    """One key of a config class."""

    name: str  # dotted
    kind: str  # int, float, text, list of int, ...
    range: str
    default: str
    description: str


def keys_of(cls: type[BaseModel], before: str = "", values: BaseModel | None = None) -> Iterator[Key]:
    """The keys of a config class, those of its blocks too. values: the default of a block, if not the class's own"""
    descriptions, schema = key_comments(cls), cls.model_json_schema()
    for name, field in cls.model_fields.items():
        value: Any = field.get_default(call_default_factory=True) if not field.is_required() else ...
        if values is not None:
            value = getattr(values, name)
        block = type(value) if isinstance(value, BaseModel) else _block(field.annotation)
        if name == "config" and isinstance(value, BaseModel):  # the judge's own keys are on the level of the block
            yield from keys_of(type(value), before, value)
        elif name != "type":
            shape = _Shape(schema["properties"][name], schema.get("$defs", {}))
            kind = "block" if block else shape.name()
            yield Key(before + name, kind, shape.range(), _shown(value), descriptions.get(name, ""))
            if block:
                inner = value if isinstance(value, BaseModel) else None
                yield from keys_of(block, f"{before}{name}.", inner)


def _block(annotation: Any) -> type[BaseModel] | None:
    """The one config class that a key takes besides null."""
    classes = [one for one in (annotation, *get_args(annotation)) if isinstance(one, type)]
    models = [one for one in classes if issubclass(one, BaseModel)]
    return models[0] if len(models) == 1 and set(classes) <= {models[0], type(None)} else None


def _shown(value: Any) -> str:
    """A default: JSON, "required", or nothing where a block shows its own."""
    if value is ...:
        return "required"
    return "" if isinstance(value, BaseModel) else f"`{json.dumps(value, default=str)}`"


class _Shape:
    """The JSON schema of one key."""

    def __init__(self, schema: dict[str, Any], definitions: dict[str, Any]):
        self.schema, self.definitions = schema, definitions

    def options(self) -> list[dict[str, Any]]:
        """The alternatives, with references followed."""
        schema = self.schema
        if "$ref" in schema:
            schema = self.definitions[schema["$ref"].rpartition("/")[2]]
        inner = schema.get("anyOf") or schema.get("oneOf")
        if not inner:
            return [schema]
        return [option for one in inner for option in _Shape(one, self.definitions).options()]

    def name(self) -> str:
        return " or ".join(dict.fromkeys(self._one(option) for option in self.options()))

    def _one(self, schema: dict[str, Any]) -> str:
        if "enum" in schema or "const" in schema:
            return " or ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
        if schema.get("type") == "array":
            items = schema.get("prefixItems") or [schema.get("items", {})]
            return f"list of {_Shape(items[0], self.definitions).name()}"
        if schema.get("properties"):
            return "block"
        return NAMES.get(str(schema.get("type")), "any")

    def range(self) -> str:
        """Its bounds: "above 0, to 1000"; for a list those of its items."""
        for schema in self.options():
            if schema.get("type") == "array":
                items = schema.get("prefixItems") or [schema.get("items", {})]
                return _Shape(items[0], self.definitions).range()
            low, high = _bound(schema, "minimum", "exclusiveMinimum"), _bound(schema, "maximum", "exclusiveMaximum")
            if low or high:
                from_low = low and (f"above {low[1]}," if low[0] else low[1])
                to_high = high and (f"below {high[1]}" if high[0] else f"to {high[1]}")
                return f"{from_low or ''} {to_high or ''}".strip(" ,")
        return ""


def _bound(schema: dict[str, Any], closed: str, open_: str) -> tuple[bool, str] | None:
    """Whether a bound itself is excluded, and the number."""
    if closed not in schema and open_ not in schema:
        return None
    value: Any = schema.get(closed, schema.get(open_))
    return closed not in schema, f"{value:,}" if abs(value) < 10**7 else f"{value:.3g}".replace("e+0", "e").replace(
        "e+", "e"
    )


def table(keys: list[Key]) -> str:
    """A Markdown table of keys."""
    rows = [
        f"| `{key.name}` | {_cell(key.kind)} | {key.range} | {_cell(key.default)} | {_cell(key.description)} |"
        for key in keys
    ]
    head = ["| key | type | range | default | description |", "|---|---|---|---|---|"]
    return "\n".join(["<div class=keys markdown>", "", *head, *rows, "", "</div>"])


def _cell(text: str) -> str:
    return _escape(text).replace("|", "\\|")


def _escape(text: str) -> str:
    """Text that is not Markdown but for code in backticks: no tags and no links."""
    parts = text.split("`")
    parts[::2] = [part.replace("<", "&lt;").replace("[", "&#91;") for part in parts[::2]]
    return "`".join(parts)


@cache
def all_keys() -> dict[str, list[Key]]:
    """The keys of each block, each built-in choice (`learner=sac`) and each command with a config of its own."""
    keys = {name: list(keys_of(cls, f"{name}.", value)) for name, (cls, value) in blocks().items()}
    for kind, registry in registries().items():
        for name in registry.names():
            if registry.get(name).__module__.startswith("plaudit."):
                keys[f"{kind}={name}"] = list(keys_of(registry.get(name), f"{kind}."))
    for name, path in OF_COMMANDS.items():
        module, _, cls = path.partition(":")
        keys[f"plaudit {name}"] = list(keys_of(getattr(import_module(module), cls)))
    return keys


@cache
def choices() -> list[tuple[str, str, str]]:
    """The pages of keys: path, title, Markdown. One for blocks, one for each kind of choice, one for commands."""
    intro = {
        "training": (
            "Blocks of a training config",
            "Keys of `plaudit train` and `plaudit online`, in a file or as `key=value`.",
        )
    }
    intro |= {
        kind: (title, f"Choose one with `{kind}=NAME` or `{kind}: {{type: NAME}}`.") for kind, title in KINDS.items()
    }
    intro["commands"] = ("Keys of other commands", "The `key=value` words of commands that do not learn from rewards.")
    texts = {page: [f"# {title}", text] for page, (title, text) in intro.items()}
    for title, keys in all_keys().items():
        kind, _, name = title.partition("=")
        page = kind if name else "commands" if title.startswith("plaudit ") else "training"
        texts[page] += [f"## `{title}`"]
        if name:
            texts[page] += [_first_paragraph(registries()[kind].get(name))]
        texts[page] += [table(keys)]
    return [(f"reference/keys/{page}.md", intro[page][0], "\n\n".join(text)) for page, text in texts.items()]


def _first_paragraph(cls: type) -> str:
    return (cls.__doc__ or "").strip().partition("\n\n")[0].replace("\n", " ")


@cache
def commands() -> list[tuple[str, str, str]]:
    """A page for each command or group of commands: path, title, Markdown."""
    top: Any = get_command(load_app())
    pages = []
    for name, command in top.commands.items():
        inner = getattr(command, "commands", {})
        text = [f"# `plaudit {name}`", _help(command)]
        if inner:
            for sub, one in inner.items():
                text += [f"## `plaudit {name} {sub}`", _help(one), _flags(one, f"plaudit {name} {sub}")]
        else:
            text += [_flags(command, f"plaudit {name}")]
        pages.append((f"reference/commands/{name}.md", f"plaudit {name}", "\n\n".join(text)))
    return pages


def _help(command: Any) -> str:
    return _escape((command.help or "").strip())


def _flags(command: Any, words: str) -> str:
    """The usage of a command and a table of its arguments and flags."""
    context = typer.Context(command, info_name=words)
    rows = []
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record:
            rows.append(f"| `{record[0].replace('|', '/')}` | {_cell(record[1])} |")
    usage = f"```text\n{words} {' '.join(command.collect_usage_pieces(context))}\n```"
    return "\n".join(
        [usage, "", "<div class=keys markdown>", "", "| argument or flag | meaning |", "|---|---|", *rows, "", "</div>"]
    )
