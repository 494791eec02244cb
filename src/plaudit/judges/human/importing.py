"""What can be opened for labelling: a store as it is, any other data set as a store that is made of it.

A data set of another layout has no ledger, and nothing is ever written into other people's data, so its episodes are
copied into a store beside it, or where one says. Opening it again finds that store and adds what is new.
"""

from pathlib import Path

from plaudit.data.formats import ReadOptions
from plaudit.data.store import is_store
from plaudit.data.transfer import import_dataset
from plaudit.errors import DataError, StoreLocked
from plaudit.types import ProgressFn


def open_or_import(
    path: Path, into: Path | None = None, progress: ProgressFn = iter, options: ReadOptions | None = None
) -> tuple[Path, list[str]]:
    """The store to label, and sentences for the user on how it came about."""
    if is_store(path):
        if into is not None and into != path:
            raise DataError(f"{path} is a store already, and its labels belong into it; leave out {into}")
        return path, []
    store = into or path.with_name(f"{path.name}.store")
    try:
        report = import_dataset(path, store, options, progress)
    except PermissionError as error:
        raise DataError(
            f"{store} cannot be made ({error.strerror}); say where the store of {path} should be"
        ) from error
    except StoreLocked as error:
        return store, [f"{error}; it is labelled as it is now, and what is added meanwhile appears by itself"]
    count = len(report.ids) + report.already_imported
    told = [f"{path} is labelled as the store {store}, which has its {count} episodes; {path} itself is not changed"]
    return store, [*told, *report.notes, *report.failed]
