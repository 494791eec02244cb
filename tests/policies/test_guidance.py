import numpy as np
import pytest

from plaudit.errors import PolicyError
from plaudit.policies.guidance import blend, blend_with_previous, compute_guided_prefix_weights, shift_chunk

COUNTING = np.arange(6, dtype=np.float32)[:, None]  # action = step


def test_the_weights_are_those_of_the_paper():
    published = [1, 1, 1, 1, 0.7123, 0.4876, 0.3158, 0.1888, 0.0993, 0.0413, 0.0097, 0, 0, 0, 0, 0]
    weights = compute_guided_prefix_weights(horizon=16, delay=4, executed=5)
    assert weights.dtype == np.float32
    assert np.abs(weights - published).max() < 5e-5


def test_a_delay_beyond_what_is_left_binds_all_that_is_left():
    beyond = compute_guided_prefix_weights(horizon=6, delay=5, executed=4)
    assert beyond.tolist() == [1, 1, 0, 0, 0, 0]
    assert beyond.tolist() == compute_guided_prefix_weights(horizon=6, delay=2, executed=4).tolist()


def test_a_chunk_that_ran_out_binds_nothing():
    assert not compute_guided_prefix_weights(horizon=4, delay=3, executed=4).any()


def test_without_delay_the_weights_only_fall():
    weights = compute_guided_prefix_weights(horizon=8, delay=0, executed=3)
    assert (np.diff(weights) <= 0).all() and 0 < weights[0] < 1 and not weights[5:].any()


@pytest.mark.parametrize(
    ("horizon", "delay", "executed", "said"),
    [
        (0, 0, 0, "at least one action"),
        (8, -1, 0, "delay is -1"),
        (8, 0, 9, "executed is 9; of a chunk of 8"),
        (8, 0, -1, "executed is -1"),
    ],
)
def test_numbers_that_make_no_sense_are_named(horizon, delay, executed, said):
    with pytest.raises(PolicyError, match=said):
        compute_guided_prefix_weights(horizon, delay, executed)


def test_what_remains_of_a_chunk_ends_in_its_last_action():
    assert shift_chunk(COUNTING, 4)[:, 0].tolist() == [4, 5, 5, 5, 5, 5]
    assert shift_chunk(COUNTING, 9)[:, 0].tolist() == [5, 5, 5, 5, 5, 5]


def test_a_blend_is_the_previous_chunk_where_bound_and_the_new_one_where_free():
    new = np.full((6, 1), 100, np.float32)
    goes_on = blend_with_previous(COUNTING, new, delay=2, executed=1)
    assert goes_on[:2, 0].tolist() == [1, 2]  # steps 1 and 2 of the previous chunk
    assert goes_on[5, 0] == 100
    assert (np.diff(goes_on[:, 0]) > 0).all()


def test_chunks_of_different_shapes_are_not_blended():
    with pytest.raises(PolicyError, match=r"chunks of \[6, 1\] and \[5, 1\] cannot be blended"):
        blend(COUNTING, COUNTING[:5], np.ones(5, np.float32))
