"""The first frame that counts: called as it happens, or decoded from the whole."""

import math

import numpy as np
import pytest

from plaudit.judges.calibration import fit_cutoff_offset
from plaudit.judges.metrics import EpisodePrediction, causal_metrics, offline_metrics
from plaudit.rule import DecisionRule, decode_cutoff

NAN = math.nan


def scored(probability, truth, episode: int = 0) -> EpisodePrediction:
    return EpisodePrediction(np.array(probability, "f4"), np.array(truth, "f4"), episode)


def likeliest(p: np.ndarray, even: float) -> int | None:
    """By trying them all: failure before, success from there on; NaN says nothing."""
    clipped = np.clip(p, 1e-4, 1 - 1e-4)
    yes, no = np.nan_to_num(np.log(clipped / even)), np.nan_to_num(np.log((1 - clipped) / (1 - even)))
    likelihood = [no[:c].sum() + yes[c:].sum() for c in range(len(p) + 1)]
    best = int(np.flatnonzero(likelihood >= np.max(likelihood) - 1e-9)[-1])  # of two that are alike, the later
    return None if best == len(p) else best


@pytest.mark.parametrize("even", [0.5, 0.2, 0.97])
@pytest.mark.parametrize("seed", range(40))
def test_decode_cutoff_is_the_most_likely_of_all_cutoffs(seed, even):
    rng = np.random.default_rng(seed)
    p = np.clip(rng.random(12) + (np.arange(12) - rng.integers(0, 14)) / 10, 0, 1)
    p[rng.random(12) < 0.1] = NAN
    assert decode_cutoff(p, threshold=even) == likeliest(p, even)


def test_nothing_at_all_decodes_to_never():
    assert decode_cutoff([]) is None and decode_cutoff([NAN, NAN]) is None


def test_a_threshold_that_nothing_reaches_decodes_to_never():
    assert decode_cutoff([0.1, 1.0, 1.0], threshold=1.0000001) is None


def test_decoded_errors_count_failures_that_are_given_a_cutoff():
    found = offline_metrics([scored([0, 1, 0, 1, 1], [0, 0, 0, 1, 1]), scored([0, 1, 1], [0, 0, 0]), scored([0], [0])])
    assert found.errors == (0,)
    assert (found.fn, found.fp, found.tn) == (0, 1, 1)


def test_the_shift_is_the_median_error_at_the_same_strictness():
    episodes = [scored([0.1, 0.6, 0.6, 0.99, 0.99], [0, 1, 1, 1, 1])] * 4
    assert fit_cutoff_offset(episodes) == 0
    assert fit_cutoff_offset(episodes, threshold=0.9) == 2
    assert offline_metrics(episodes, offset=2, threshold=0.9).errors == (0, 0, 0, 0)


def test_the_shift_of_a_single_episode_is_half_believed():
    late = scored([0.1] + [0.6] * 8 + [0.99] * 20, [0] + [1] * 28)
    assert [fit_cutoff_offset([late] * count, threshold=0.9) for count in (1, 3, 20)] == [4, 6, 8]


def test_decode_cutoff_is_not_fooled_by_a_flicker_and_prefers_never_where_it_cannot_tell():
    assert decode_cutoff([0.1, 0.9, 0.1, 0.1, 0.9, 0.9]) == 4
    assert decode_cutoff([0.1, 0.2, 0.1]) is None
    assert decode_cutoff([0.5, 0.5]) is None


def test_onset_errors_by_hand():
    episodes = [
        scored([0, 0, 1, 1, 1], [0, 0, 0, 1, 1]),  # one too early
        scored([0, 0, 0, 0, 1], [0, 1, 1, 1, 1]),  # three too late
        scored([0, 0, 0, 0, 0], [0, 0, 0, 0, 1]),  # missed
        scored([0, 1, 0, 0, 0], [0, 0, 0, 0, 0]),  # falsely called
        scored([0, 0, 0, 0, 0], [0, 0, 0, 0, 0]),
    ]
    found = causal_metrics(episodes, DecisionRule(decode="per_frame"))
    assert found.errors == (-1, 3, None)
    assert (found.onset_median, found.onset_p90) == (2, pytest.approx(2.8))
    assert (found.fn, found.fp, found.tn) == (1, 1, 1)


def test_a_call_where_the_truth_is_not_known_is_neither_right_nor_wrong():
    episodes = [scored([1, 0, 0, 1], [NAN, 0, 0, 1]), scored([0, 1], [0, NAN]), scored([1, 1], [NAN, NAN])]
    found = causal_metrics(episodes, DecisionRule(decode="per_frame"))
    assert found.errors == (0,)
    assert (found.fp, found.tn) == (0, 1)
