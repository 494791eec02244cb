"""What every server of pages needs: the socket, the files of the pages, and images."""

import io
import socket
from pathlib import Path
from typing import Any

from PIL import Image

from plaudit.errors import DataError, MissingExtra
from plaudit.judges.human.palette import DARK, LIGHT, variables

try:
    from starlette.responses import FileResponse, Response
    from starlette.routing import BaseRoute, Mount, Route
    from starlette.staticfiles import StaticFiles
except ModuleNotFoundError as problem:
    raise MissingExtra("starlette", "web") from problem

STATIC = Path(__file__).parent / "static"
PALETTE = f":root {{ {variables(LIGHT)} color-scheme: light }} :root.dark {{ {variables(DARK)} color-scheme: dark }}"
UNCHANGED = {"Cache-Control": "no-cache"}  # kept by a browser as long as it is the same


class _Static(StaticFiles):
    """The files of the pages, which a browser keeps as long as they are the same."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers.update(UNCHANGED)
        return response


def page_routes(page: str) -> list[BaseRoute]:
    """A page at /, the colors, and the other files of the pages."""
    return [
        Route("/static/palette.css", lambda _: Response(PALETTE, media_type="text/css", headers=UNCHANGED)),
        Route("/", lambda _: FileResponse(STATIC / page, headers=UNCHANGED)),
        Mount("/static", _Static(directory=STATIC)),
    ]


def encode_image(image: Image.Image) -> tuple[bytes, str]:
    """The encoded image and its media type. Small images are exact."""
    if image.width * image.height > 256**2:
        return as_jpeg(image, quality=88), "image/jpeg"
    data = io.BytesIO()
    image.save(data, "PNG", compress_level=1)
    return data.getvalue(), "image/png"


def as_jpeg(image: Image.Image, quality: int) -> bytes:
    """The file of an image."""
    data = io.BytesIO()
    image.save(data, "JPEG", quality=quality)
    return data.getvalue()


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens. port: 0 for any free one"""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With its protocol named, asyncio sends small answers at once (TCP_NODELAY): 1 ms instead of 40.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise DataError(f"cannot listen on {host}:{port}: {error.strerror}; choose another --port or --host") from error
    listening.listen(128)
    return listening
