"""One HTML page for every report: pieces of HTML in the frame of one template (page.html.j2).

    write_page(path, "lift with sac", run_verdict(run), [
        tiles({"success on eval seeds": "96%"}),
        section("Learning", row([chart(line_chart(...))])),
    ])

A page begins with its verdict and links to its sections. It is one file that needs no network: images, videos and
charts are inside it. It runs no script. Text that is not `Markup` is escaped,
because tasks, notes and camera names come from data: a tag is shown as text and a control character as `\\x1b`.
"""

import base64
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup
from PIL import Image

from plaudit.data.disk import write_atomic
from plaudit.judges.human.palette import DARK, LIGHT, variables
from plaudit.report.verdict import Verdict
from plaudit.trust import plain
from plaudit.types import ByteArray

_INTERVAL = re.compile(r"\([-\d.,]+%? (?:to|or) [\w.,%-]+\)")  # (0.4% to 1.2%), (3 or more)
_MAX_THUMBNAIL = (320, 240)  # pixels, width and height
_JPEG_QUALITY = 92  # as PNG, a few dozen camera images are ten megabytes


def fill(template: str, *values: str) -> Markup:
    """HTML with these values in it."""
    return Markup(template).format(*(one if isinstance(one, Markup) else plain(one) for one in values))


def join(pieces: Iterable[Markup]) -> Markup:
    return Markup("\n").join(pieces)


def span(words: str, style: Literal["good", "bad", "muted", ""] = "") -> Markup:
    """Words in a color."""
    return fill('<span class="{}">{}</span>', style, words)


def text(words: str, style: Literal["muted", "warning", ""] = "") -> Markup:
    """A paragraph."""
    return fill('<p class="{}">{}</p>', style, words)


def tiles(numbers: Mapping[str, str]) -> Markup:
    """A row of large numbers, by what each means."""
    shown = join(fill("<div><b>{}</b>{}</div>", number, meaning) for meaning, number in numbers.items())
    return fill('<div class="tiles">{}</div>', shown)


def table(rows: Iterable[Sequence[str]], header: Sequence[str] = ()) -> Markup:
    """Rows of cells. An interval in brackets stays on one line."""

    def line(cells: Sequence[str], tag: str) -> Markup:
        row = fill("<tr>{}</tr>", Markup("").join(fill(f"<{tag}>{{}}</{tag}>", cell) for cell in cells))
        return Markup(_INTERVAL.sub(lambda one: one[0].replace(" ", "\u00a0"), row))

    head = fill("<thead>{}</thead>", line(header, "th")) if header else Markup("")
    return fill("<table>{}<tbody>{}</tbody></table>", head, join(line(cells, "td") for cells in rows))


def key_value_table(values: Mapping[str, str]) -> Markup:
    """A line for each name and its value."""
    return table((span(name, "muted"), value) for name, value in values.items())


def chart(svg: Markup) -> Markup:
    """A drawing of report/plots.py. It fills its row up to 1.5 times its size; a wide one scrolls on a phone."""
    width = re.search(r'width="([\d.]+)"', svg)
    own = 390 if width is None else float(width[1])
    size = f"flex-basis: {own:.0f}px; max-width: min(100%, {1.5 * own:.0f}px)"
    inner = fill('<div style="min-width: {}px">{}</div>', f"{0.7 * own:.0f}", svg)
    return fill('<div class="chart" style="{}">{}</div>', size, inner)


def code(words: str, summary: str = "") -> Markup:
    """Preformatted text; folded behind its summary if there is one."""
    shown = fill("<pre>{}</pre>", words)
    return folded(summary, shown) if summary else shown


def folded(summary: str, *blocks: Markup) -> Markup:
    """Blocks that are shown by a click."""
    return fill("<details><summary>{}</summary>{}</details>", summary, join(blocks))


def row(blocks: Iterable[Markup], style: Literal["wide", "grid", ""] = "") -> Markup:
    """Blocks side by side, as many as fit. grid: all of one width"""
    return fill('<div class="row {}">{}</div>', style, join(blocks))


def section(heading: str, *blocks: Markup) -> Markup:
    """Blocks under a heading."""
    return fill("<section><h2>{}</h2>\n{}</section>", heading, join(blocks))


def count_mistakes(count: int) -> Markup:
    """A number that should be zero: in the color of failure where it is not."""
    return span(f"{count:,}", "bad" if count else "")


def count_correct(count: int) -> Markup:
    """A number of correct predictions: in the color of success unless there are none."""
    return span(f"{count:,}", "good" if count else "")


def video(mp4: bytes, caption: str) -> Markup:
    """A video that plays in a loop without sound, from the bytes of its file."""
    source = "data:video/mp4;base64," + base64.b64encode(mp4).decode()
    player = fill('<video src="{}" autoplay loop muted playsinline controls></video>', source)
    return fill('<figure class="video">{}<figcaption>{}</figcaption></figure>', player, caption)


def thumbnail(image: ByteArray, *caption: str) -> Markup:
    """A camera image, uint8 [H, W, 3], no larger than it is shown, with lines of text under it."""
    small = Image.fromarray(np.ascontiguousarray(image))
    small.thumbnail(_MAX_THUMBNAIL)
    lines = Markup("<br>").join(fill("{}", line) for line in caption)
    style = "wide" if image.shape[1] > 1.5 * image.shape[0] else ""
    return fill('<figure class="{}">{}<figcaption>{}</figcaption></figure>', style, _image(small), lines)


def sheet(image: Image.Image, alt: str = "") -> Markup:
    """An image in its own size that needs no caption, like a contact sheet."""
    return fill('<figure class="sheet">{}</figure>', _image(image, alt))


def _image(image: Image.Image, alt: str = "") -> Markup:
    file = io.BytesIO()
    image.save(file, format="JPEG", quality=_JPEG_QUALITY, subsampling=0)
    source = "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()
    return fill('<img src="{}" alt="{}">', source, alt)


def verdict_panel(verdict: Verdict) -> Markup:
    """The three lines of a verdict."""
    lines = join(fill("<dt>{}</dt><dd>{}</dd>", word, _with_code(line)) for word, line in verdict.lines.items())
    return fill('<dl class="verdict {}">{}</dl>', verdict.tone, lines)


def _with_code(line: str) -> Markup:
    """A command at the end of a line is code."""
    words, found, command = line.partition(": plaudit ")
    return fill("{}:<code>plaudit {}</code>", words, command) if found else fill("{}", line)


def render_page(title: str, verdict: Verdict, blocks: Sequence[Markup]) -> str:
    """The page as HTML."""
    body, contents = _with_anchors(join(blocks))
    colors = {"light": variables(LIGHT), "dark": variables(DARK)}
    top = {"title": plain(title), "verdict": verdict_panel(verdict), "contents": contents}
    return _template().render(**top, **colors, body=body)


_SECTION = re.compile("</section>|<section><h2>(.*?)</h2>")  # text is escaped, so nothing else matches


def _with_anchors(body: Markup) -> tuple[Markup, list[tuple[str, Markup]]]:
    """The body with an id for each section, and id and heading of those that are in no other section."""
    contents: list[tuple[str, Markup]] = []
    depth = 0

    def number(match: re.Match[str]) -> str:
        nonlocal depth
        if match[1] is None:
            depth -= 1
            return match[0]
        depth += 1
        if depth > 1:
            return match[0]
        contents.append((f"s{len(contents) + 1}", Markup(match[1])))
        return f'<section id="{contents[-1][0]}"><h2>{match[1]}</h2>'

    return Markup(_SECTION.sub(number, body)), contents


def write_page(path: Path, title: str, verdict: Verdict, blocks: Sequence[Markup]) -> Path:
    """Write the page; returns its path. A link at that path is replaced, not followed."""
    write_atomic(path, render_page(title, verdict, blocks).encode())
    return path


@cache
def _template() -> Template:
    loader = FileSystemLoader(Path(__file__).parent)
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined).get_template("page.html.j2")
