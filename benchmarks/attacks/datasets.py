"""Attacks on whatever reads other people's files: data sets, images, videos, pickles, .npy, JSON, YAML, weights.

Tiny data sets of every layout are damaged in every way that is listed below and imported; the import must end in
success or a sentence, with the episodes beside the damaged one taken. A stranger's marks are laid out as bait: a file
outside of the data set, an address that somebody listens at, a program that a decoder might start. What a refused
file costs in memory is what all processes of an import take together, above a normal one.
"""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from attacks.copies import KINDS, copies, hostile_tables
from attacks.damage import (
    Damage,
    bombs,
    column_damage,
    file_damage,
    image_damage,
    json_damage,
    path_damage,
    pickle_damage,
    video_damage,
)
from attacks.hostile import BAD_JSON, BAD_YAML, LABEL_FILES, Bait
from attacks.media import HEAVY, NPY, PICKLES
from attacks.one_episode import one_bad_episode
from attacks.sets import EPISODES, make_sets
from attacks.tally import Tally, sample
from attacks.watch import peak_of_all, watched, woken
from plaudit.config import read_values
from plaudit.data.cutoffs import read_cutoffs
from plaudit.data.formats.decoder import load_npy, load_pickle
from plaudit.data.normalize import Normalizer
from plaudit.data.transfer import import_dataset
from plaudit.errors import PlauditError

QUICK, FULL = 3, 400  # of each class
SLOW = 60.0  # s that nothing here may take


def attacks(folder: Path, rng: np.random.Generator, quick: bool) -> Iterator[Tally]:
    bait = Bait.lay(folder / "bait")
    try:
        sound = make_sets(folder / "sound")
        normal = {name: _normal(path, folder / "normal") for name, path in sound.items()}
        kinds: dict[str, Iterator[tuple[str, str, Damage]]] = {
            "every key of the metadata": json_damage(sound),
            "columns of the tables": column_damage(sound),
            "files cut, emptied, exchanged": file_damage(sound, rng),
            "paths that lead out": path_damage(sound, bait),
            "images": image_damage(bait),
            "videos": video_damage(bait),
            "tables and sizes that unfold": bombs(),
            "pickles and npy": pickle_damage(bait),
        }
        copied = list(hostile_tables())
        for name, damages in kinds.items():
            tried = [one for one in damages if not quick or not one[1].endswith(HEAVY)]
            copied += [one for one in tried if one[0] in KINDS]
            chosen = sample(tried, rng, QUICK if quick else FULL)
            yield _import_each(f"data sets: {name}", chosen, sound, normal, folder / "work", bait)
        yield copies(sample(copied, rng, QUICK if quick else FULL), sound, folder / "work", bait)
        yield one_bad_episode(sound, folder / "work", lambda every: sample(every, rng, QUICK if quick else FULL))
        yield _read_each("files by themselves", folder / "files", bait, rng, quick)
    finally:
        bait.close()


def _normal(path: Path, target: Path) -> int:
    """Bytes that a sound import takes; all of its episodes must come."""
    with peak_of_all() as peak:
        report = import_dataset(path, target)
    assert len(report.ids) == EPISODES and not report.failed, (path, report.failed)
    shutil.rmtree(target)
    return peak.bytes


def _import_each(
    name: str,
    damages: list[tuple[str, str, Damage]],
    sound: dict[str, Path],
    normal: dict[str, int],
    work: Path,
    bait: Bait,
) -> Tally:
    tally = Tally(name)
    for kind, what, damage in damages:
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(sound[kind], work / "set", symlinks=True)
        damage(work / "set")
        tally.tried += 1
        said: list[str] = []
        with peak_of_all() as peak, watched(SLOW) as late:
            try:
                report = import_dataset(work / "set", work / "store")
                said = list(report.failed)
            except PlauditError as error:
                said = [str(error)]
            except Exception as error:  # noqa: BLE001 - which is what is looked for
                tally.breach("tracebacks", f"{kind}, {what}: {type(error).__name__}: {str(error)[:200]}")
        tally.named += bool(said)
        tally.extra_bytes = max(tally.extra_bytes, peak.bytes - normal[kind])
        if late():
            tally.breach("tracebacks", f"{kind}, {what}: it hung")
        for sentence in said:
            if "\n  File " in sentence or len(sentence) > 5000:
                tally.breach("tracebacks", f"{kind}, {what}: no sentence: {sentence[:200]}")
        if bait.is_in(work / "store"):
            tally.breach("paths_read", f"{kind}, {what}")
        for breach in bait.taken():
            tally.breach(breach, f"{kind}, {what}")
    shutil.rmtree(work, ignore_errors=True)
    return tally


def _read_each(name: str, folder: Path, bait: Bait, rng: np.random.Generator, quick: bool) -> Tally:
    """Files that commands read one by one: configs, label files, statistics, pickles."""
    tally = Tally(name)
    folder.mkdir()
    pickles = {label: make for label, make in PICKLES.items() if not quick or label not in HEAVY}
    readers: list[tuple[str, Callable[[Path], Any], dict[str, Any]]] = [
        ("a.yaml", lambda path: read_values(path, []), BAD_YAML | BAD_JSON),
        ("a.json", lambda path: read_values(path, []), BAD_JSON),
        ("labels.yaml", read_cutoffs, LABEL_FILES | BAD_YAML | BAD_JSON),
        ("stats.json", Normalizer.load, BAD_JSON),
        ("a.pkl", load_pickle, pickles),
        ("stats.pkl", Normalizer.load, pickles),
        ("a.npy", load_npy, NPY),
    ]
    for file, read, contents in readers:
        for label, content in sample(list(contents.items()), rng, QUICK if quick else FULL):
            data: bytes = content if isinstance(content, bytes) else content(bait)
            (folder / file).write_bytes(data)
            read_one(tally, f"{file}, {label}", lambda path=folder / file, read=read: read(path), bait)
    return tally


def read_one(tally: Tally, what: str, read: Callable[[], Any], bait: Bait) -> None:
    """Count what comes of reading something: it must end in success or a sentence, in time and within bounds."""
    tally.tried += 1
    with peak_of_all() as peak, watched(SLOW) as late, woken(SLOW + 5):
        try:
            read()
        except PlauditError as error:
            tally.named += 1
            if len(str(error)) > 5000:
                tally.breach("tracebacks", f"{what}: no sentence")
        except Exception as error:  # noqa: BLE001 - which is what is looked for
            tally.breach("tracebacks", f"{what}: {type(error).__name__}: {str(error)[:200]}")
    tally.extra_bytes = max(tally.extra_bytes, peak.bytes - peak.before)
    if late():
        tally.breach("tracebacks", f"{what}: it hung")
    for breach in bait.taken():
        tally.breach(breach, what)
