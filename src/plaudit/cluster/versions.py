"""The software versions of machines, and whether two of them can work together.

A node has its versions as labels, so that a cluster of different versions is refused before the first actor is created,
not when an array arrives that one side cannot read.
"""

import os
import platform
from collections.abc import Mapping
from importlib import metadata
from importlib.util import find_spec

from plaudit import __version__
from plaudit.errors import MissingExtra

PACKAGES = ("python", "ray", "torch", "plaudit")


def need_ray() -> None:
    """Raise `MissingExtra` where Ray is not installed."""
    if find_spec("ray") is None:  # not imported: it reads its environment variables when it is
        raise MissingExtra("ray", "cluster")


def own_versions() -> dict[str, str]:
    """Of this machine, without importing the packages."""
    installed = {name: metadata.version(name) for name in ("ray", "torch")}
    return {"python": platform.python_version(), "plaudit": __version__, **installed}


def own_labels() -> dict[str, str]:
    """The labels of a node of this machine; their characters are letters, digits, dots, dashes and underscores."""
    labels = {f"plaudit.{name}": version.replace("+", "_") for name, version in own_versions().items()}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if all(number.isdecimal() for number in visible):
        labels["plaudit.gpus"] = "_".join(visible)
    return labels


def versions_of(labels: Mapping[str, str]) -> dict[str, str]:
    """From the labels of a node."""
    named = {name: labels.get(f"plaudit.{name}") for name in PACKAGES}
    return {name: version.replace("_", "+") for name, version in named.items() if version is not None}


def gpus_of(labels: Mapping[str, str], count: int) -> tuple[str, ...]:
    """The ids of a node's GPUs in CUDA_VISIBLE_DEVICES: from 0 on, unless it was started with some of them."""
    visible = labels.get("plaudit.gpus", "").split("_")
    return tuple(visible) if len(visible) == count and all(visible) else tuple(map(str, range(count)))


def difference(ours: Mapping[str, str], theirs: Mapping[str, str]) -> str | None:
    """Which versions differ, for a message; None when two machines can work together.

    Builds of one torch for different GPUs (2.13.0+cpu, 2.13.0+cu130) do not differ, and neither does a version that is
    not known: a node that was started by hand has no labels, and `plaudit cluster check` reads its versions.
    """
    differing = [name for name in PACKAGES if name in theirs and not _same_release(theirs[name], ours[name])]
    return ", ".join(f"{name} {theirs[name]} instead of {ours[name]}" for name in differing) or None


def _same_release(one: str, other: str) -> bool:
    return one.partition("+")[0] == other.partition("+")[0]
