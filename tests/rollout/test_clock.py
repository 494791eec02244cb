import gc
from collections.abc import Iterator

import pytest

from plaudit.rollout.engine import gc_disabled


@pytest.fixture
def collector() -> Iterator[None]:
    frozen = gc.get_freeze_count() > 0  # what was imported; see conftest.py
    gc.unfreeze()
    yield
    gc.unfreeze()
    gc.enable()
    if frozen:
        gc.freeze()


@pytest.mark.usefixtures("collector")
@pytest.mark.parametrize(("enabled", "frozen"), [(True, False), (False, True)])
def test_garbage_collection_is_off_for_an_episode_and_then_as_it_was(enabled: bool, frozen: bool):
    if not enabled:
        gc.disable()
    if frozen:
        gc.freeze()
    with pytest.raises(OSError, match="a wire came off"), gc_disabled():
        assert not gc.isenabled()
        raise OSError("a wire came off")
    assert (gc.isenabled(), gc.get_freeze_count() > 0) == (enabled, frozen)
