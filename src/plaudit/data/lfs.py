"""Files that a Git LFS checkout left as pointers: a few lines of text where the data should be."""

from pathlib import Path

from plaudit.errors import BadFile

_FIRST_LINE = b"version https://git-lfs.github.com/spec/"


def is_pointer(path: Path) -> bool:
    """Whether the file is a Git LFS pointer."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(_FIRST_LINE)) == _FIRST_LINE


def unreadable(path: Path, what: str) -> BadFile:
    """The error for a file that could not be read: `what`, unless the file is a pointer."""
    if is_pointer(path):
        what = "this is a Git LFS pointer and not the file itself; run 'git lfs pull' in its repository"
    return BadFile(path, what)
