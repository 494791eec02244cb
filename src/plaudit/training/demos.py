"""The demonstrations of a run: a store that the config names, or scripted ones made at the start."""

import shutil
from collections.abc import Callable
from typing import Any

from plaudit.data.store import Store
from plaudit.errors import DataError
from plaudit.rollout.scripted import record_demos
from plaudit.training.config import TrainingConfig, demo_seed
from plaudit.training.run_folder import RunFolder
from plaudit.types import PEOPLE

LINGER_STEPS = 10  # after success, so that a judge that needs several frames sees it too


def check_demos(config: TrainingConfig) -> None:
    """Refuse a store without labels that will not be labeled."""
    if config.demos.store is None:
        return
    if not len(Store.open(config.demos.store).ledger) and not config.relabels_demos:
        raise DataError(f"{config.demos.store} has no labels; label it first (plaudit label)")


def unseen_success(successes: int, count: int) -> str:
    """A warning if the judge sees success in less than half of the demonstrations; "" otherwise."""
    if 2 * successes >= count:
        return ""
    return (
        f"the judge sees success in {successes or 'none'} of the {count} demonstrations. They may end with their first "
        "frame of success, where a careful judge needs a few more (record them with --steps-after-success 10). Or its "
        "rule is too strict (judge.rule), or they show another task."
    )


def copy_exclusions(demos: Store, labeled: Store) -> None:
    """Copy people's exclusions of demonstrations to a run's own labels of them, and what revokes an exclusion.

    labeled: the same demonstrations with the run's ledger
    """
    changed = [i for i in demos.ids if demos.ledger.is_excluded(i) != labeled.ledger.is_excluded(i)]
    labels = ((i, demos.ledger.labels(i, PEOPLE)) for i in changed)
    labeled.ledger.extend([(i, one) for i, one in labels if one is not None])


def open_demos(folder: RunFolder, progress: Callable[[str], Any]) -> Store | None:
    """The demonstrations; None where there are none. Scripted ones are made the first time."""
    config, path = folder.config, folder.demo_store
    if path is None:
        return None
    if config.demos.scripted and not path.exists():
        part = path.with_name(".demos.part")  # a run that is killed meanwhile makes the same ones again
        shutil.rmtree(part, ignore_errors=True)
        with Store.create(part) as store:
            record_demos(
                config.simulation,
                store,
                episodes=config.demos.scripted,
                noise=config.demos.noise,
                seed=demo_seed(config.run.seed),
                steps_after_success=LINGER_STEPS if config.relabels_demos else 0,
                progress=progress("demonstrations"),
            )
        part.rename(path)
    return Store.open(path)
