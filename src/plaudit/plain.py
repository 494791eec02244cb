"""Words of somebody else, made harmless to show.

A task, a camera's name, a note or a file's name may hold characters that a terminal obeys (move up, change the title,
answer as if typed), that turn the order of letters around, or that are no characters at all. They are shown as what
they are, `\\x1b`, wherever Plaudit writes to a terminal, a page or a log; and passwords in URLs are not shown.
"""

import re
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from plaudit.trust import shown_url

_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 without tab and newline, DEL, C1
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # which way letters run
    "\u2028\u2029\ufff9-\ufffb"  # separators of lines and of annotations
    "\U000e0000-\U000e007f"  # tags, which nobody sees
    "\ud800-\udfff]"  # bytes of the command line and of file names that are no UTF-8
)


def plain(text: str) -> str:
    """
    >>> plain("up\\x1b[1A and back")
    'up\\\\x1b[1A and back'
    """
    return shown_url(_UNSAFE.sub(_escaped, text))


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    if 0xDC80 <= code <= 0xDCFF:  # how Python keeps a byte that it could not decode
        return f"\\x{code - 0xDC00:02x}"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


class PlainConsole(Console):
    """Rich's, that obeys no word it is given: no markup, no emoji codes, no control characters."""

    def __init__(self, **options: Any):
        super().__init__(highlight=False, markup=False, emoji=False, soft_wrap=True, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """All that is printed comes through here, of which only `control` segments are Rich's own commands."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(plain(segment.text), segment.style)
