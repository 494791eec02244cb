"""One HTML page for every report: a list of blocks, rendered by one template (page.html.j2).

    write_page(path, "lift with sac", "30,000 steps in 3 min", [
        Tiles({"success on eval seeds": "96%"}),
        Section("Learning", [Row([Chart(line_chart(...))])]),
    ])

A page is one file that needs no network: images, videos and charts are inside it. Blocks hold plain text, which the
template escapes, because tasks, notes and camera names come from data. A control character is shown as `\\x1b` and a
tag as text. Charts are the only markup.
"""

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup
from PIL import Image as PillowImage

from plaudit.data.disk import write_atomic
from plaudit.trust import plain
from plaudit.types import ByteArray

_MAX_THUMBNAIL = (320, 240)  # pixels, width and height
_JPEG_QUALITY = 92  # as PNG, a few dozen camera images are ten megabytes


@dataclass(frozen=True)
class Span:
    """Text with a color."""

    text: str
    style: Literal["good", "bad", "muted", ""] = ""


Cell = str | Span


class Block:
    """A piece of a page; the template draws it by the name of its class."""

    @property
    def kind(self) -> str:
        return type(self).__name__


@dataclass(frozen=True)
class Text(Block):
    """A paragraph."""

    text: str
    style: Literal["muted", "warning", ""] = ""


@dataclass(frozen=True)
class Tiles(Block):
    """A row of large numbers, each with a few words under it."""

    tiles: Mapping[str, str]  # meaning -> number


@dataclass(frozen=True)
class Table(Block):
    """Rows of cells."""

    rows: Sequence[Sequence[Cell]]
    header: Sequence[Cell] = ()


@dataclass(frozen=True)
class Chart(Block):
    """An SVG drawing of report/plots.py."""

    svg: Markup


@dataclass(frozen=True)
class ImageBlock(Block):
    """An image inside the page, with lines of text under it."""

    source: str  # a data: URL
    caption: Sequence[Cell] = ()
    style: Literal["wide", "sheet", ""] = ""
    alt: str = ""


@dataclass(frozen=True)
class Video(Block):
    """An MP4 inside the page, playing in a loop without sound."""

    source: str  # a data: URL
    caption: str


@dataclass(frozen=True)
class Code(Block):
    """Preformatted text; folded behind its summary where there is one."""

    text: str
    summary: str = ""


@dataclass(frozen=True)
class Row(Block):
    """Blocks side by side, as many as fit."""

    blocks: Sequence[Block]
    style: Literal["wide", ""] = ""


@dataclass(frozen=True)
class Section(Block):
    """Blocks under a heading."""

    heading: str
    blocks: Sequence[Block] = field(default_factory=list)


def render_page(title: str, summary: str, blocks: Sequence[Block]) -> str:
    """The page as HTML; the summary stands under the title."""
    return _template().render(title=title, summary=summary, blocks=blocks)


def write_page(path: Path, title: str, summary: str, blocks: Sequence[Block]) -> Path:
    """Write the page; returns its path. A link at that path is replaced, not followed."""
    write_atomic(path, render_page(title, summary, blocks).encode())
    return path


def key_value_table(values: Mapping[str, str]) -> Table:
    """A line for each name and its value."""
    return Table([(Span(name, "muted"), value) for name, value in values.items()])


def count_mistakes(count: int) -> Span:
    """A number that should be zero: red where it is not."""
    return Span(f"{count:,}", "bad" if count else "")


def count_correct(count: int) -> Span:
    """A number of correct predictions: green unless there are none."""
    return Span(f"{count:,}", "good" if count else "")


def video_block(mp4: bytes, caption: str) -> Video:
    """A video from the bytes of its file."""
    return Video("data:video/mp4;base64," + base64.b64encode(mp4).decode(), caption)


def thumbnail(image: ByteArray, *caption: Cell) -> ImageBlock:
    """A camera image, uint8 [H, W, 3], no larger than it is shown."""
    small = PillowImage.fromarray(np.ascontiguousarray(image))
    small.thumbnail(_MAX_THUMBNAIL)
    return ImageBlock(_jpeg(small), caption, "wide" if image.shape[1] > 1.5 * image.shape[0] else "")


def image_block(image: PillowImage.Image, alt: str = "") -> ImageBlock:
    """An image in its own size that needs no caption, like a contact sheet."""
    return ImageBlock(_jpeg(image), style="sheet", alt=alt)


def _jpeg(image: PillowImage.Image) -> str:
    file = io.BytesIO()
    image.save(file, format="JPEG", quality=_JPEG_QUALITY, subsampling=0)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()


@cache
def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_without_controls,
        trim_blocks=True,
    )
    environment.tests["span_cell"] = lambda value: isinstance(value, Span)
    return environment.get_template("page.html.j2")


def _without_controls(value: Any) -> Any:
    """Called on every value that the template prints, before it is escaped."""
    return plain(value) if isinstance(value, str) and not isinstance(value, Markup) else value
