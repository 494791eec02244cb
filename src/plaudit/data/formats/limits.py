"""How large the episodes of a foreign data set may be.

A few bytes of a stranger can stand for any amount of memory: a run of equal values in a table, a black video, a
length that somebody wrote into a JSON file. What a file unfolds to is counted before it is unfolded.
"""

from pathlib import Path

from plaudit.errors import BadFile

MAX_EDGE = 16_384  # pixels of an image
MAX_PIXELS = 1 << 26  # of an image
MAX_WIDTH = 1 << 20  # numbers in one row of a column
MAX_ROWS = 1 << 26  # of a table
MAX_TEXT = 10_000  # characters of a task
GB = 1 << 30

# What may come out of a file of any size, and how many times its own size beyond that. Cameras that stand still
# give 1,000 to 1; a black one gives more, and is one of several.
FREE = 256 << 20
RATIO = 2000
TABLE_RATIO = 200  # of numbers


def size_text(nbytes: int) -> str:
    """Bytes on a disk, for people."""
    return f"{nbytes / 1e9:,.1f} GB" if nbytes >= 1e8 else f"{nbytes / 1e6:,.1f} MB"


def check_decoded_size(
    nbytes: int,
    compressed: int,
    where: Path,
    what: str,
    most: float,
    ratio: int = RATIO,
    source: str = "bytes on disk",
) -> None:
    """Refuse what is too large for an episode, or much larger than the bytes it comes from.

    compressed: how many these are
    most: bytes
    source: what they are, for the sentence
    """
    if nbytes > most:
        raise BadFile(
            where,
            f"{what} would take {nbytes / GB:,.1f} GB in memory, and {most / GB:,.1f} GB is the limit; "
            "give --max-episode-gb where this is no mistake",
        )
    if nbytes > max(FREE, ratio * compressed):
        raise BadFile(
            where,
            f"{what} would take {nbytes / GB:,.1f} GB in memory out of {compressed:,} {source}, more than any "
            "recording does; copy it again from its source",
        )
