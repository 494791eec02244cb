"""The page of an online run."""

from pathlib import Path


def write_online_report(folder: Path) -> Path:
    return folder / "report.html"
