"""Three Ray nodes for all tests that need some; see three_nodes.py."""

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def nodes() -> Iterator[Any]:
    from plaudit.cluster.state import own_addresses  # imports what the adapters' environment has not got
    from three_nodes import three_nodes

    if not own_addresses():
        pytest.skip("a cluster of several nodes needs an address other than 127.0.0.1")
    with three_nodes("fourth") as nodes:
        yield nodes
