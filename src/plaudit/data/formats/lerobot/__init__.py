"""LeRobot data sets: v2.0, v2.1 and v3.0 in, v3.0 out."""

from plaudit.data.formats.lerobot.reader import detect, read
from plaudit.data.formats.lerobot.writer import write

__all__ = ["detect", "read", "write"]
