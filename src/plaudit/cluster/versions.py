"""What software a machine runs, and whether two of them can work together.

A node carries its versions as labels from its start, so that a cluster that cannot work is refused before the first
actor is made, not when an array arrives that one side cannot read.
"""

import os
import platform
from collections.abc import Mapping
from importlib import metadata

from plaudit import __version__
from plaudit.errors import MissingExtra

PACKAGES = ("python", "ray", "torch", "plaudit")


def need_ray() -> None:
    """Say which extra brings Ray, where it is not installed."""
    try:
        import ray  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingExtra("ray", "cluster") from error


def own_versions() -> dict[str, str]:
    """Of this machine, without importing any of them."""
    found = {"python": platform.python_version(), "plaudit": __version__}
    return found | {name: metadata.version(name) for name in ("ray", "torch")}


def own_labels() -> dict[str, str]:
    """What a node of this machine carries. A label has letters, digits, dots, dashes and underscores."""
    labels = {f"plaudit.{name}": version.replace("+", "_") for name, version in own_versions().items()}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if all(number.isdecimal() for number in visible):  # the numbers of the GPUs that this machine may use
        labels["plaudit.gpus"] = "_".join(visible)
    return labels


def versions_of(labels: Mapping[str, str]) -> dict[str, str]:
    """Those that a node carries."""
    named = {name: labels.get(f"plaudit.{name}") for name in PACKAGES}
    return {name: version.replace("_", "+") for name, version in named.items() if version is not None}


def gpus_of(labels: Mapping[str, str], count: int) -> tuple[str, ...]:
    """What CUDA calls the GPUs of a node: their numbers, counted from 0 unless it was started with some of them."""
    named = labels.get("plaudit.gpus", "").split("_")
    return tuple(named) if len(named) == count and all(named) else tuple(map(str, range(count)))


def difference(ours: Mapping[str, str], theirs: Mapping[str, str]) -> str | None:
    """What differs, in words; None when they can work together.

    Builds of one torch for different GPUs (2.13.0+cpu, 2.13.0+cu130) go together. What a node does not tell is not held
    against it: one that was started by hand carries no labels, and `plaudit cluster check` asks it.
    """
    apart = [name for name in PACKAGES if name in theirs and _release(theirs[name]) != _release(ours[name])]
    return ", ".join(f"{name} {theirs[name]} instead of {ours[name]}" for name in apart) or None


def _release(version: str) -> str:
    return version.split("+")[0]
