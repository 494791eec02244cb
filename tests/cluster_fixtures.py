"""Three Ray nodes for all tests that need some; see three_nodes.py."""

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def nodes() -> Iterator[Any]:
    from three_nodes import three_nodes  # imports what the adapters' environment has not got

    with three_nodes("fourth") as nodes:
        yield nodes
