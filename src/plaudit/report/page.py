"""What all our HTML pages share: one file that stands alone, one look, a few pieces.

Every piece escapes the words it is given; what it returns is HTML and goes into a page as it is.
"""

import base64
import io
from collections.abc import Mapping, Sequence
from html import escape as escape_html

import numpy as np
from PIL import Image

from plaudit.plain import plain
from plaudit.types import ByteArray

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 1340px; margin: 32px auto; padding: 0 20px }
h1 { font-size: 22px; margin: 0 0 4px } h2 { font-size: 17px; margin: 32px 0 10px }
.facts { color: #555; margin: 0 0 20px } .bad { color: #b3261e } .good { color: #22754a } .faint { color: #777 }
p.faint { max-width: 340px; margin: 0 }
p.bad { background: #fdf0ef; border-left: 4px solid #b3261e; padding: 6px 12px; margin: 0 0 8px; border-radius: 4px }
.row { display: flex; flex-wrap: wrap; gap: 16px; align-items: flex-start } .row.wide { gap: 0 56px }
svg { border: 1px solid #e4e4e0; border-radius: 6px } .row + table { margin-top: 14px }
pre { background: #f7f7f5; padding: 14px; border-radius: 6px; overflow-x: auto }
table { border-collapse: collapse; margin: 0 0 20px } td { font-variant-numeric: tabular-nums }
td, th { padding: 3px 18px 3px 0; text-align: left; vertical-align: top } tr + tr td { border-top: 1px solid #eeeeea }
figure { margin: 0; width: 152px; font-size: 12px; line-height: 1.35 }
figure img { width: 100%; border-radius: 4px; display: block; margin-bottom: 4px; image-rendering: pixelated }
figure.wide { width: 260px }
figure.sheet { width: auto; margin: 0 0 14px }
figure.sheet img { width: auto; max-width: 100%; border: 1px solid #e4e4e0; image-rendering: auto }
figure.film { width: 480px; max-width: 100%; font-size: 14px }
figure.film video { width: 100%; border-radius: 6px; display: block; margin-bottom: 6px }
.figures { display: flex; flex-wrap: wrap; gap: 8px 44px; margin: 0 0 22px }
.figures b { display: block; font-size: 30px; line-height: 1.2; color: #222; font-variant-numeric: tabular-nums }
.figures div { color: #555; max-width: 220px; line-height: 1.35 }
:root { color-scheme: light dark }
@media (prefers-color-scheme: dark) {
  body { background: #16181b; color: #dcdcd8 } .figures b { color: #f0f0ec }
  .facts, .figures div { color: #a8aaad } .faint { color: #8b8e92 } .bad { color: #f2877f } .good { color: #63c08e }
  p.bad { background: #3a1f1e; border-color: #f2877f } pre { background: #1f2226 } tr + tr td { border-color: #2c3035 }
  svg { filter: invert(0.9) hue-rotate(180deg) } figure.sheet img { border-color: #2c3035; filter: brightness(0.9) }
}
"""
_THUMBNAIL = (320, 240)  # pixels, width and height, that no picture on a page exceeds


def escape(text: str) -> str:
    """As HTML, without what turns the order of letters around or ends a line."""
    return escape_html(plain(text))


def page(title: str, summary: str, *body: str) -> str:
    """A whole page; the summary stands under the title, the body is HTML."""
    return f"""<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>
<style>{_STYLE}</style><h1>{escape(title)}</h1><p class="facts">{escape(summary)}</p>
{"".join(body)}</html>
"""


def row(*pieces: str, wide: bool = False) -> str:
    """Side by side, as many as fit."""
    return f'<div class="row{" wide" if wide else ""}">{"".join(pieces)}</div>\n'


def section(heading: str, *body: str) -> str:
    return f"<section><h2>{escape(heading)}</h2>\n{''.join(body)}</section>\n"


def words(text: str, look: str = "") -> str:
    """A span; look is one of good, bad and faint."""
    return f'<span class="{look}">{escape(text)}</span>'


def note(text: str) -> str:
    """A faint line or two under a table."""
    return f'<p class="faint">{escape(text)}</p>\n'


def warning(text: str) -> str:
    """A red sentence that nobody overlooks."""
    return f'<p class="bad">{escape(text)}</p>\n'


def table(rows: Sequence[Sequence[str]], header: Sequence[str] = ()) -> str:
    """Cells are HTML: `words` makes them."""
    top = "<tr>" + "".join(f"<th>{cell}</th>" for cell in header) + "</tr>" if header else ""
    lines = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>\n" for cells in rows)
    return f"<table>{top}{lines}</table>\n"


def facts_table(facts: Mapping[str, str]) -> str:
    return table([(words(name, "faint"), words(value)) for name, value in facts.items()])


def figures(numbers: Mapping[str, str]) -> str:
    """A line of large numbers, each with a few words under it: words -> number."""
    cells = (f"<div><b>{escape(number)}</b>{escape(meaning)}</div>" for meaning, number in numbers.items())
    return f'<div class="figures">{"".join(cells)}</div>\n'


def video(mp4: bytes, *caption: str) -> str:
    """A film inside the page, over and over without a sound, with lines of HTML under it."""
    source = "data:video/mp4;base64," + base64.b64encode(mp4).decode()
    film = f'<video src="{source}" autoplay loop muted playsinline controls></video>'
    return f'<figure class="film">{film}<figcaption>{"<br>".join(caption)}</figcaption></figure>\n'


def picture(image: ByteArray, *caption: str) -> str:
    """uint8 [H, W, 3] inside the page, no larger than it is shown, with lines of HTML under it."""
    thumbnail = Image.fromarray(np.ascontiguousarray(image))
    thumbnail.thumbnail(_THUMBNAIL)
    return _figure(thumbnail, "wide" if image.shape[1] > 1.5 * image.shape[0] else "", *caption)


def sheet(image: Image.Image) -> str:
    """A picture as large as it is, which says itself what it shows."""
    return _figure(image, "sheet")


def _figure(image: Image.Image, look: str, *caption: str) -> str:
    """JPEG: as PNG a few dozen camera images are ten megabytes."""
    file = io.BytesIO()
    image.save(file, format="JPEG", quality=92, subsampling=0)
    source = "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()
    said = f"<figcaption>{'<br>'.join(caption)}</figcaption>" if caption else ""
    shape = f' class="{look}"' if look else ""
    return f'<figure{shape}><img src="{source}" alt="">{said}</figure>\n'
