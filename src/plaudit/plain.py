"""Escapes text from files and other people before it is shown.

A task, a camera's name, a note or a file's name may contain characters that control a terminal (move the cursor, change
the title, send input), that reverse the direction of text, or that are invalid. They are shown escaped, as `\\x1b`,
wherever Plaudit writes to a terminal, a page or a log; passwords in URLs are hidden.
"""

import re
import sys
from typing import TextIO

from plaudit.trust import shown_url

_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 without tab and newline, DEL, C1
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # direction of text
    "\u2028\u2029\ufff9-\ufffb"  # line and annotation separators
    "\U000e0000-\U000e007f"  # invisible tags
    "\ud800-\udfff]"  # bytes of arguments and file names that are not UTF-8
)


def plain(text: str) -> str:
    """The text with unsafe characters escaped and passwords in URLs hidden.

    >>> plain("up\\x1b[1A and back")
    'up\\\\x1b[1A and back'
    """
    return shown_url(_UNSAFE.sub(_escape, text))


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    if 0xDC80 <= code <= 0xDCFF:  # how Python represents a byte that it could not decode
        return f"\\x{code - 0xDC00:02x}"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def print_plain(text: str, file: TextIO | None = None) -> None:
    """Print escaped text. This is the only `print` in the package; commands use the consoles of `plaudit.cli`.

    file: standard error by default
    """
    print(plain(text), file=file or sys.stderr, flush=True)
