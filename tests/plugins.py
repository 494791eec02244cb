"""Packages of somebody else, as pip would have installed them."""

from pathlib import Path

import pytest


def install(monkeypatch: pytest.MonkeyPatch, folder: Path, name: str, entry_points: str) -> None:
    """Put a package that has these entry points on the path, for the rest of a test."""
    metadata = folder / f"{name}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(entry_points)
    monkeypatch.syspath_prepend(folder)
