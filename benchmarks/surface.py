"""Everything that users can name: commands, flags, config keys, registry names and file formats, one line each.

    python benchmarks/surface.py > after.txt
    python benchmarks/surface.py --compare before.txt     exits 1 if a name of before.txt is missing now
    python benchmarks/surface.py --base 777a96e           the same, with the names of another revision

Classes are looked up by name in the package's source, so a revision may keep them in any module.
"""

import argparse
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from io import BytesIO
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from pydantic import BaseModel
from pydantic_core import PydanticUndefined
from typer.main import get_command

import plaudit
from plaudit.errors import PlauditError

PACKAGE = Path(plaudit.__file__).parent
# The config classes of commands; those of plugins come from the registries.
CONFIGS = {"train": "TrainingConfig", "train-reward": "RewardTrainJob", "train-policy": "TrainPolicyConfig"}
RENAMED = {"unlike": "ood"}  # keys of the base revision that have another name now
CONFIGS |= {"judge tune": "TuneConfig", "run": "RunConfig"}


def surface() -> list[str]:
    """All lines, sorted."""
    from plaudit import registry

    registries = [value for value in vars(registry).values() if isinstance(value, registry.Registry)]
    lines = {*_commands(get_command(_find("alias", "app")), "plaudit")}
    for one in registries:
        kind = one.kind.split()[0]
        lines |= {f"registry {kind} {name}" for name in one.names()}
        for name in one.names():
            try:
                lines |= {*_keys(one.get(name), f"{kind}.{name}")}
            except (ImportError, PlauditError) as error:
                print(f"{kind}.{name} is left out: {error}", file=sys.stderr)
    for command, name in CONFIGS.items():
        lines |= {*_keys(_find("class", name), command)}
    lines |= {f"format {name}" for name in get_args(_find("alias", "FormatName"))}
    return sorted(lines)


def _commands(command: Any, path: str) -> Iterator[str]:
    subcommands: Mapping[str, Any] = getattr(command, "commands", {})
    if not subcommands:
        yield f"command {path}"
    for param in command.get_params(typer.Context(command)):
        if param.name == "help":
            continue
        kind = _kind(param)
        default = "" if callable(param.default) else f" = {_plain(param.default)}"
        if param.param_type_name == "argument":
            yield f"argument {path} {param.name}: {kind}{default}"
        for flag in [*param.opts, *param.secondary_opts] if param.param_type_name == "option" else ():
            yield f"flag {path} {flag}: {'flag' if param.is_flag else kind}{default}"
    for name, subcommand in subcommands.items():
        yield from _commands(subcommand, f"{path} {name}")


def _kind(param: Any) -> str:
    """The type of a parameter; versions of typer differ in where they keep it."""
    if hasattr(param, "type_descriptor"):
        return _type(param.type_descriptor.annotation)
    choices = getattr(param.type, "choices", None)
    return "|".join(map(str, choices)) if choices else param.type.name


def _keys(cls: type[BaseModel], prefix: str, above: tuple[type, ...] = ()) -> Iterator[str]:
    for name, field in cls.model_fields.items():
        key = f"{prefix}.{name}"
        blocks = [one for one in _parts(field.annotation) if isinstance(one, type) and issubclass(one, BaseModel)]
        blocks = [one for one in blocks if one not in above]
        default = field.get_default(call_default_factory=True)  # type: ignore[call-arg]
        if isinstance(default, BaseModel) and type(default) not in (*blocks, *above):
            blocks.append(type(default))
        if not blocks:
            required = default is PydanticUndefined
            yield f"key {key}: {_type(field.annotation)}{'' if required else f' = {_plain(default)}'}"
        for block in blocks:
            yield f"key {key}: block{' or none' if default is None else ''}"
            yield from _keys(block, key, (*above, cls))


def _parts(annotation: Any) -> list[Any]:
    if get_origin(annotation) in (Union, UnionType):
        return [part for each in get_args(annotation) for part in _parts(each)]
    return [annotation]


def _type(annotation: Any) -> str:
    """As it is written in source, without modules and bounds."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(args[0])
    if origin in (Union, UnionType):
        return " | ".join(map(_type, args)).replace("NoneType", "None")
    if origin is Literal:
        return "|".join(map(str, args))
    if origin is not None:
        return f"{_type(origin)}[{', '.join('...' if one is ... else _type(one) for one in args)}]"
    return getattr(annotation, "__name__", str(annotation))


def _plain(value: Any) -> str:
    if isinstance(value, BaseModel):
        return value.model_dump_json()
    return re.sub(r"PosixPath\('([^']*)'\)", r"\1", str(value) if isinstance(value, str) else repr(value))


def _find(kind: str, name: str) -> Any:
    """A class or a type alias of the package, wherever it is defined."""
    pattern = re.compile(rf"^class {name}\b" if kind == "class" else rf"^(type )?{name}\b.*=", re.MULTILINE)
    for path in sorted(PACKAGE.rglob("*.py")):
        if pattern.search(path.read_text()):
            module = ".".join(["plaudit", *path.relative_to(PACKAGE).with_suffix("").parts])
            return getattr(import_module(module.removesuffix(".__init__")), name)
    raise SystemExit(f"no file of {PACKAGE} defines {name}; update benchmarks/surface.py")


def _surface_of(revision: str) -> list[str]:
    """The lines of another revision, from git."""
    root = Path(__file__).parents[1]
    archive = subprocess.run(["git", "archive", revision, "src"], cwd=root, check=True, capture_output=True).stdout
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=BytesIO(archive)) as files:
            files.extractall(folder, filter="data")
        environment = {**os.environ, "PYTHONPATH": f"{folder}/src"}
        done = subprocess.run([sys.executable, __file__], env=environment, check=True, capture_output=True, text=True)
    return done.stdout.splitlines()


def compare(before: Sequence[str], now: Sequence[str]) -> int:
    """Print the names that are lost, new or changed; returns how many are lost."""
    before = [re.sub(r"\b(" + "|".join(RENAMED) + r")(?=: )", lambda name: RENAMED[name[0]], line) for line in before]
    old, new = ({line.partition(": ")[0]: line for line in lines} for lines in (before, now))
    lost, added = sorted(old.keys() - new.keys()), sorted(new.keys() - old.keys())
    changed = sorted(name for name in old.keys() & new.keys() if old[name] != new[name])
    for line in (
        *(f"lost: {old[name]}" for name in lost),
        *(f"new: {new[name]}" for name in added),
        *(f"changed: {old[name]} -> {new[name].partition(': ')[2]}" for name in changed),
    ):
        print(line)
    print(f"{len(old)} names before, {len(new)} now: {len(lost)} lost, {len(added)} new, {len(changed)} changed")
    return len(lost)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compare", type=Path, metavar="FILE", help="lines to compare with")
    parser.add_argument("--base", metavar="REV", help="a git revision to compare with")
    args = parser.parse_args()
    if args.compare is not None and not args.compare.is_file():
        parser.error(f"{args.compare} does not exist; write it with: python benchmarks/surface.py > {args.compare}")
    lines = surface()
    if args.compare is None and args.base is None:
        print("\n".join(lines))
    elif compare(args.compare.read_text().splitlines() if args.compare else _surface_of(args.base), lines):
        sys.exit(1)


if __name__ == "__main__":
    main()
