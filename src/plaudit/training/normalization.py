"""What a learner's actions, which lie within [-1, 1], are on a robot.

A simulation takes them as they are. A robot has units of its own, and statistics lead there and back. With those of a
data set, mean and standard deviation, a learner would never leave one deviation around the mean, so what counts is a
range:

    units              statistics that were named, or those of the policy that the run begins with: as they are
    demonstrations     the least and the greatest that each joint was told in them
    who acts           where neither is there, three standard deviations around the mean of the robot's own statistics

They stay what they were when the run began, in its folder, go to every machine with the config, and lie beside the
policy that is learned.
"""

from pathlib import Path
from typing import Any

from plaudit.data.normalize import Normalizer
from plaudit.data.store import Store
from plaudit.errors import TrainingError
from plaudit.training.online_config import ConfigT, OnlineConfig

FILE = "units.json"
SPREAD = 3.0  # standard deviations
BEYOND = 0.02  # share of what is demonstrated that a policy may be unable to say


def with_units(config: ConfigT, folder: Path) -> ConfigT:
    """A config that needs no file for them any more; decided the first time, and read from the folder after that."""
    if config.simulated:
        return config
    kept, acting = folder / FILE, config.executor.normalizer
    units = Normalizer.load(kept) if kept.exists() else _decided(config)
    if units is not None and not kept.exists():
        units.save(kept)
    tree = None if units is None else units.tree
    driven: dict[str, Any] | None = tree
    if config.act_with == "policy":
        driven = None if acting is None else Normalizer.load(acting).tree
    executor = config.executor.model_copy(update={"normalizer": driven})
    return config.model_copy(update={"executor": executor, "units": tree})


def _decided(config: OnlineConfig) -> Normalizer | None:
    if config.units is not None:
        named = Normalizer.load(config.units)
        _check(config, named)
        return named
    if config.demos is not None:
        return Normalizer.from_store(Store.open(config.demos), by_range=True)
    if config.executor.normalizer is not None:
        return Normalizer.load(config.executor.normalizer).widened(SPREAD)
    return None


def _check(config: OnlineConfig, units: Normalizer) -> None:
    if config.demos is None:
        return
    beyond = units.beyond(Store.open(config.demos))
    if beyond > BEYOND:
        raise TrainingError(
            f"{beyond:.0%} of what {config.demos} demonstrates lies beyond what the policy can say, which is -1 to 1 "
            "in the units that were named; take the demonstrations' own range: plaudit data stats "
            f"{config.demos} --range, and write units=stats.json"
        )
