"""Which parameters of a test `make test` runs; `make test-all` runs them all."""

from collections.abc import Iterable
from typing import Any

import pytest


def slow_but(*fast: str, of: Iterable[str]) -> list[Any]:
    """Parameters of a test: all of these, marked as slow except for the fast ones."""
    return [name if name in fast else pytest.param(name, marks=pytest.mark.slow) for name in of]
