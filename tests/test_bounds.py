"""Every number that a user or a file can set has a lower and an upper bound, and is neither NaN nor infinite."""

import pkgutil
from collections.abc import Iterator
from importlib import import_module
from inspect import isclass
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
import typer
from annotated_types import Ge, GroupedMetadata, Gt, Le, Lt
from pydantic.fields import FieldInfo

import plaudit
from command import plaudit as run_command
from conftest import counting_episode, labeled_store
from plaudit.cli import load_app
from plaudit.cli.options import finite, frame_rate
from plaudit.config import Config, parse
from plaudit.errors import ConfigError
from plaudit.learners.config import SacConfig
from plaudit.training.config_file import load_training_config


def config_classes(base: type = Config) -> Iterator[type[Config]]:
    for found in base.__subclasses__():
        yield found
        yield from config_classes(found)


def flatten(metadata: Any) -> Iterator[Any]:
    for item in metadata:
        if isinstance(item, FieldInfo):
            yield from flatten(item.metadata)
        elif isinstance(item, GroupedMetadata):
            yield from item
        else:
            yield item


def numbers(hint: Any, metadata: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The constraints of each number in a type."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        yield from numbers(args[0], (*metadata, *flatten(args[1:])))
    elif hint in (int, float):
        yield metadata
    elif origin is not Literal:
        within = metadata if origin in (Union, UnionType) else ()  # constraints of a tuple are about its length
        for arg in args:
            yield from numbers(arg, within)


def is_bounded(metadata: tuple[Any, ...]) -> bool:
    return all(any(isinstance(item, kinds) for item in metadata) for kinds in ((Ge, Gt), (Le, Lt)))


def test_every_number_of_a_config_has_a_lower_and_an_upper_bound():
    for module in pkgutil.walk_packages(plaudit.__path__, "plaudit."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    classes = [
        found
        for found in config_classes()
        if found.__module__.startswith("plaudit.") and "testing" not in found.__module__
    ]
    assert len(classes) > 50
    unbounded = [
        f"{found.__qualname__}.{name}"
        for found in classes
        for name, field in found.model_fields.items()
        if not all(map(is_bounded, numbers(field.annotation, tuple(flatten(field.metadata)))))
    ]
    assert not unbounded


def commands(group: typer.Typer, path: str = "plaudit") -> Iterator[tuple[str, Any]]:
    for inner in group.registered_groups:
        yield from commands(inner.typer_instance, f"{path} {inner.name}")
    for command in group.registered_commands:
        yield f"{path} {command.name}", command.callback


def test_every_number_of_the_command_line_has_a_lower_and_an_upper_bound():
    unbounded, count = [], 0
    for command, function in commands(load_app()):
        for name, hint in get_type_hints(function, include_extras=True).items():
            kind, *metadata = get_args(hint) if get_origin(hint) is Annotated else (hint,)
            kinds = {kind, *get_args(kind)} & {int, float}  # sizes, which are tuples, are checked by a config
            option = next((item for item in metadata if not isclass(item)), None)
            count += bool(kinds)
            ends = option is not None and option.min is not None and option.max is not None
            if kinds and not (ends and (float not in kinds or option.callback in (finite, frame_rate))):
                unbounded.append(f"{command} {name}")
    assert count > 40 and not unbounded


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e300, 0])
def test_a_number_that_is_none_is_refused_by_its_key(value):
    with pytest.raises(ConfigError, match=r"key 'lr' is"):
        parse(SacConfig, {"lr": value})


@pytest.mark.parametrize("key", ["run.num_threads=1000000", "run.num_envs=1000000000", "learner.batch_size=9999999"])
def test_a_number_that_is_far_too_large_is_refused_by_its_key(key):
    with pytest.raises(ConfigError, match=rf"command line: key '{key.partition('=')[0]}' is .*: input should be less"):
        load_training_config("train", None, ["env=lift", "learner=sac", "judge=simulator", key])


@pytest.mark.parametrize(
    "words",
    [
        ("train-reward", "store", "--batch-size", 10**9),
        ("train-reward", "store", "--hidden-dim", 10**12),
        ("train-reward", "store", "--history", 10**9),
        ("train-reward", "store", "--lr", "1e300"),
        ("env", "bench", "lift", "--num-envs", 100_000),
        ("data", "import", "in", "store", "--fps", "1e308"),
        ("data", "import", "in", "store", "--fps", "1e-300"),
        ("data", "export", "store", "new", "--fps", "1000001.7"),
    ],
)
def test_an_option_that_is_far_too_large_or_small_is_told(tmp_path, words):
    assert f"'{words[-2]}'" in run_command(*words, cwd=tmp_path, ok=False)


def test_a_rate_that_no_video_has_is_told_before_anything_is_written(tmp_path):
    labeled_store(tmp_path / "store", counting_episode(fps=500.0)).close()
    said = run_command("data", "export", "store", "new", cwd=tmp_path, ok=False)
    assert "a video of codec av1 has 0.001 to 240 frames per second, not 500" in said
    assert not (tmp_path / "new").exists()
