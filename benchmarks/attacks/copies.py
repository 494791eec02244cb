"""Damaged LeRobot data sets, copied with labels: the copy ends in success or a sentence, and holds nothing from outside
of the data set."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from attacks.damage import Damage
from attacks.hostile import Bait
from attacks.sets import LENGTH
from attacks.tally import Tally
from attacks.watch import peak_of_all, watched
from plaudit.data.formats.lerobot.relabel import EpisodeLabels
from plaudit.data.lerobot_labels import write_labeled_copy
from plaudit.errors import PlauditError
from plaudit.types import Labels

KINDS = ("v2.0", "v2.1", "v3 video", "v3 images")
LABELS = {n: EpisodeLabels(Labels.from_cutoff(steps=LENGTH, cutoff=n, source="human")) for n in range(2)}
SLOW = 60.0  # s that no copy may take


def hostile_tables() -> Iterator[tuple[str, str, Damage]]:
    """Tables that no episode is listed in, which only a copy reads."""

    def shared_text(folder: Path) -> None:
        """Two gigabytes in a few kilobytes: one text, named by each row."""
        text = pa.DictionaryArray.from_arrays(pa.array([0] * 256, pa.int32()), pa.array([b"x" * (8 << 20)]))
        options = {"compression": "zstd", "store_schema": False, "dictionary_pagesize_limit": 1 << 26}
        pq.write_table(pa.table({"text": text}), folder / "data/extra.parquet", **options)

    for kind in KINDS:
        yield kind, "a table whose rows share a text", shared_text
        for target in ("extra.parquet", "/etc/passwd", "/dev/zero", "nothing"):
            yield kind, f"a table that is a link to {target}", _link("data/extra.parquet", target)
        yield kind, "a folder that is a link to /etc", _link("extra", "/etc")


def _link(name: str, target: str) -> Damage:
    return lambda folder: (folder / name).symlink_to(target)


def copies(damages: list[tuple[str, str, Damage]], sound: dict[str, Path], work: Path, bait: Bait) -> Tally:
    """Each data set, damaged and copied; beside it the most that a sound one takes."""
    tally = Tally("data sets: copies with labels")
    normal = max(_normal(sound[kind], work) for kind in {kind for kind, _, _ in damages})
    for kind, what, damage in damages:
        shutil.copytree(sound[kind], work / "set", symlinks=True)
        damage(work / "set")
        tally.tried += 1
        with _cleared(work), peak_of_all() as peak, watched(SLOW) as late:
            try:
                write_labeled_copy(work / "set", work / "out", LABELS)
            except PlauditError as error:
                tally.named += 1
                if "\n" in str(error) or len(str(error)) > 5000:
                    tally.breach("tracebacks", f"{kind}, {what}: no sentence: {str(error)[:200]}")
                if [path.name for path in work.iterdir()] != ["set"]:
                    tally.breach("tracebacks", f"{kind}, {what}: half a copy is left")
            except Exception as error:  # noqa: BLE001 - which is what is looked for
                tally.breach("tracebacks", f"{kind}, {what}: {type(error).__name__}: {str(error)[:200]}")
            if bait.is_copied(work / "out"):
                tally.breach("paths_read", f"{kind}, {what}")
        tally.extra_bytes = max(tally.extra_bytes, peak.bytes - normal)
        if late():
            tally.breach("tracebacks", f"{kind}, {what}: it hung")
        for breach in bait.taken():
            tally.breach(breach, f"{kind}, {what}")
    return tally


def _normal(path: Path, work: Path) -> int:
    """Bytes that a sound copy takes."""
    with _cleared(work), peak_of_all() as peak:
        assert write_labeled_copy(path, work / "out", LABELS).episodes == len(LABELS)
    return peak.bytes


@contextmanager
def _cleared(work: Path) -> Iterator[None]:
    """Empty when the block has ended."""
    try:
        yield
    finally:
        shutil.rmtree(work)
