"""Images, videos, pickles and .npy files that nobody should have to open."""

import io
import os
import pickle
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from attacks.hostile import SIZE, WIDE, Bait, video

# What takes seconds to make or to refuse, and is left to the long form.
HEAVY = ("a PNG that unfolds", "larger frames", "sets", "a memo", "copies", "one image often", "keys of one hash")


def _png(width: int, height: int, data: bytes = b"") -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack("!I", len(content)) + kind + content + struct.pack("!I", zlib.crc32(kind + content))

    header = struct.pack("!IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def _saved(kind: str, size: tuple[int, int] = WIDE) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, (1, 2, 3)).save(file, format=kind)
    return file.getvalue()


def _eps(bait: Bait) -> bytes:
    width, height = WIDE
    program = f"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 {width} {height}\n%%EndComments\n"
    return (program + f"(%pipe%touch {bait.folder}/mark) (w) file closefile\nshowpage\n%%EOF\n").encode()


_REFUSED = ("GIF", "TIFF", "PPM", "TGA", "ICO", "PCX", "SGI", "JPEG2000", "PDF")
_WEBP = b"WEBPVP8X" + struct.pack("<I", 10) + b"\x10\0\0\0" + b"\xfe\x3f\0" * 2 + b"\0" * 20
HOSTILE_IMAGES: dict[str, Callable[[Bait], bytes]] = {
    "EPS": _eps,
    "EPS by its other start": lambda bait: struct.pack("<IIIIIIIH", 0xC6D3D0C5, 32, 300, 0, 0, 0, 0, 0) + _eps(bait),
    **{
        kind: lambda bait, k=kind: _saved(k)
        for kind in ("GIF", "TIFF", "PPM", "TGA", "ICO", "PCX", "SGI", "JPEG2000", "PDF")
    },
    "none": lambda bait: b"",
    "half": lambda bait: _saved("PNG")[:40],
    "another size": lambda bait: _saved("PNG", (31, 16)),
    "a PNG of 60000x60000": lambda bait: _png(60_000, 60_000),
    "a PNG of 2**31": lambda bait: _png(2**31 - 1, 2**31 - 1),
    "a PNG that unfolds": lambda bait: _png(32, 16, zlib.compress(bytes(300 << 20))),
    "a PNG of no size": lambda bait: _png(0, 0),
    "a WEBP of 16383x16383": lambda bait: b"RIFF" + struct.pack("<I", 30) + _WEBP,
    "half a JPEG": lambda bait: _saved("JPEG")[:200],
    "a BMP of 60000x60000": lambda bait: _saved("BMP")[:18] + struct.pack("<ii", 60_000, 60_000) + _saved("BMP")[26:],
    "SVG": lambda bait: f"<svg><image href='{bait.url}/a.png'/></svg>".encode(),
    "the path of a file": lambda bait: str(bait.path("png")).encode(),
}


def _patched(folder: Path, box: bytes, offset: int, value: bytes) -> bytes:
    """The data set's own video with some bytes behind the name of a box exchanged."""
    data = next(folder.rglob("*.mp4")).read_bytes()
    at = data.find(box) + offset
    return data[:at] + value + data[at + len(value) :]


Video = Callable[[Bait, Path], bytes]
HOSTILE_VIDEOS: dict[str, Video] = {
    "HLS": lambda bait, folder: f"#EXTM3U\n#EXTINF:1,\n{bait.url}/a.ts\n#EXT-X-ENDLIST\n".encode(),
    "HLS of a file": lambda bait, folder: f"#EXTM3U\n#EXTINF:1,\n{bait.path('mp4')}\n#EXT-X-ENDLIST\n".encode(),
    "concat": lambda bait, folder: f"ffconcat version 1.0\nfile '{bait.path('mp4')}'\n".encode(),
    "DASH": lambda bait, folder: f"<?xml version='1.0'?><MPD><BaseURL>{bait.url}/</BaseURL></MPD>".encode(),
    "SDP": lambda bait, folder: b"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nm=video 5004 RTP/AVP 96\n",
    "ffmetadata": lambda bait, folder: b";FFMETADATA1\ntitle=x\n",
    "subtitles": lambda bait, folder: b"[Script Info]\nScriptType: v4.00+\n",
    "none": lambda bait, folder: b"",
    "text": lambda bait, folder: b"hello " * 1000,
    "zeros": lambda bait, folder: bytes(10_000),
    "a start and no more": lambda bait, folder: b"\0\0\0\x18ftypisom" + bytes(100),
    "Matroska and no more": lambda bait, folder: b"\x1a\x45\xdf\xa3" + b"\xff" * 1000,
    "ffv1 in Matroska": lambda bait, folder: video("ffv1", SIZE, 18, "matroska"),
    "an AVI": lambda bait, folder: video("mpeg4", SIZE, 18, "avi"),
    "a GIF": lambda bait, folder: _saved("GIF"),
    "sound alone": lambda bait, folder: b"RIFF" + struct.pack("<I", 36) + b"WAVEfmt " + bytes(28),
    "larger frames": lambda bait, folder: video("libx264", (1088, 1920), 18),
    "more frames": lambda bait, folder: video("libx264", SIZE, 500),
    "no frames": lambda bait, folder: video("libx264", SIZE, 1),
    "two thousand million samples": lambda bait, folder: _patched(folder, b"stsz", 8, b"\0\0\0\1\x7f\xff\xff\xff"),
    "samples beyond the end": lambda bait, folder: _patched(folder, b"stco", 12, b"\x7f\xff\xff\xff"),
    "a box of 2**32": lambda bait, folder: _patched(folder, b"moov", -4, b"\xff\xff\xff\xff"),
    "no time": lambda bait, folder: _patched(folder, b"mdhd", 16, b"\0\0\0\0"),
    "a size of 65535": lambda bait, folder: _patched(folder, b"avc1", 28, b"\xff\xff\xff\xff"),
    "another codec": lambda bait, folder: _patched(folder, b"avc1", 0, b"vp31"),
}


def _nested(count: int) -> bytes:
    return b"\x80\x04)" + b"\x85" * count + b"."


class _Runs:
    def __init__(self, bait: Bait):
        self._mark = f"touch '{bait.folder}/mark'"

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (self._mark,)


def _doubled(count: int) -> bytes:
    """A list that holds a list twice, that holds a list twice, ..."""
    return b"\x80\x04]\x94" + b"".join(b"h" + bytes([i]) + b"h" + bytes([i]) + b"\x86\x94" for i in range(count)) + b"."


def _copies() -> bytes:
    """A text that is made into bytes again and again."""
    text = b"X" + struct.pack("<I", 1 << 20) + b"x" * (1 << 20)
    start = b"\x80\x04c_codecs\nencode\nq\x00(" + text + b"X\x06\0\0\0latin1tq\x01]("
    return start + b"h\x00h\x01R" * 20_000 + b"e."


def _one_image_often() -> bytes:
    image = np.zeros((256, 256, 3), np.uint8)
    step = {"obs": {"main_images": image}, "action": np.zeros(2), "reward": 0.0, "done": False, "success": False}
    return pickle.dumps({"frames": [step] * 100_000, "success": True, "label": 1})


PICKLES: dict[str, Callable[[Bait], bytes]] = {
    "code": lambda bait: pickle.dumps(_Runs(bait)),
    "code within": lambda bait: pickle.dumps({"frames": [_Runs(bait)]}),
    "code by its first protocol": lambda bait: pickle.dumps(_Runs(bait), protocol=0),
    "fourteen bytes for 4 GB": lambda bait: b"\x80\x05\x96" + struct.pack("<Q", 4_200_000_000) + b".",
    "bytes for 4 GB": lambda bait: b"\x80\x04B" + struct.pack("<I", 4_200_000_000) + b".",
    "bytes for 2**60": lambda bait: b"\x80\x04\x8e" + struct.pack("<Q", 2**60) + b".",
    "a text for 4 GB": lambda bait: b"\x80\x04X" + struct.pack("<I", 4_200_000_000) + b".",
    "a number for 2 GB": lambda bait: b"\x80\x04\x8b" + struct.pack("<i", 2**31 - 1) + b".",
    "a negative length": lambda bait: b"\x80\x04\x8b" + struct.pack("<i", -5) + b".",
    "a frame for 2**60": lambda bait: b"\x80\x04\x95" + struct.pack("<Q", 2**60) + b".",
    "a number of a million digits": lambda bait: b"L" + b"1" * 1_000_000 + b"L\n.",
    "a number of a million bytes": lambda bait: b"\x80\x04\x8b" + struct.pack("<i", 10**6) + b"\x7f" * 10**6 + b".",
    "tuples within tuples": lambda bait: _nested(200_000),
    "tuples within tuples as a key": lambda bait: b"\x80\x04})" + b"\x85" * 200_000 + b"Ns.",
    "lists within lists": lambda bait: b"\x80\x04" + b"]" * 100_000 + b"a" * 99_999 + b".",
    "a list of itself": lambda bait: b"\x80\x04]\x94h\x00a.",
    "doubled": lambda bait: _doubled(100),
    "marks": lambda bait: b"\x80\x04" + b"(" * 200_000 + b".",
    "sets": lambda bait: b"\x80\x04(" + b"\x8f" * 3_000_000 + b"l.",
    "a memo": lambda bait: b"\x80\x04N" + b"\x94" * 3_000_000 + b".",
    "copies": lambda bait: _copies(),
    "one image often": lambda bait: _one_image_often(),
    "keys of one hash": lambda bait: pickle.dumps({i * (2**61 - 1): 0 for i in range(20_000)}),
    "another object": lambda bait: pickle.dumps(Path("x")),
    "a persistent object": lambda bait: b"Pabc\n.",
    "an extension": lambda bait: b"\x80\x02\x82\x01.",
    "no end": lambda bait: b"\x80\x04]",
    "nothing": lambda bait: b"",
    "zeros": lambda bait: bytes(1000),
    "a long name": lambda bait: b"c" + b"x" * 1_000_000 + b"\ny\n.",
}


def _npy(header: bytes, data: bytes = b"", version: int = 1) -> bytes:
    length = struct.pack("<H" if version == 1 else "<I", len(header))
    return b"\x93NUMPY" + bytes([version, 0]) + length + header + data


def _described(descr: str, shape: str) -> bytes:
    return f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()


NPY: dict[str, bytes] = {
    "brackets": _npy(b"[" * 50_000),
    "brackets of version 2": _npy(b"(" * 500_000, version=2),
    "a header for 4 GB": b"\x93NUMPY\x02\0" + struct.pack("<I", 4_200_000_000),
    "a shape of 2**60": _npy(_described("'<f4'", "(1152921504606846976,)")),
    "a shape of nothing": _npy(_described("'<f4'", "(0, 1152921504606846976)")),
    "a negative shape": _npy(_described("'<f4'", "(-1,)"), bytes(8)),
    "a shape of text": _npy(_described("'<f4'", "('x',)")),
    "a wide text": _npy(_described("'<U999999999'", "(1,)")),
    "fields": _npy(_described("[('a', 'O'), ('b', '<f4')]", "(1,)"), bytes(12)),
    "a type that is none": _npy(_described("'x'", "(1,)")),
    "no header": _npy(b""),
    "code in its header": _npy(b"__import__('os').system('touch mark')"),
    "cut": _npy(_described("'<f4'", "(100,)"), bytes(10)),
    "another version": b"\x93NUMPY\x09\0" + bytes(100),
    "nothing": b"",
}
