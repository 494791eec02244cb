"""The console of the commands: a rich console that escapes all text."""

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from plaudit.trust import plain


class PlainConsole(Console):
    """A rich console that interprets nothing in its text: no markup, no emoji codes, no control characters."""

    def __init__(self, **options: Any):
        super().__init__(highlight=False, markup=False, emoji=False, soft_wrap=True, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Escape all text; only `control` segments, which are rich's own, pass as they are."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(plain(segment.text), segment.style)
