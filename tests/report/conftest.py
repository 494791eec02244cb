"""The tests of reports look at their charts."""

import pytest


@pytest.fixture
def empty_charts() -> None:
    """Overrides that of all other tests: charts are written."""
