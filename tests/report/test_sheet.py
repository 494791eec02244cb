import numpy as np

from conftest import counting_episode
from plaudit.report import video
from plaudit.report.video import contact_sheet
from plaudit.rule import DecisionRule, labels_from_scores
from plaudit.types import JudgeId, Labels, Scores


def colors(picture) -> set[tuple[int, ...]]:
    return {tuple(pixel) for pixel in np.asarray(picture).reshape(-1, 3)}


def test_frames_stand_in_order_and_success_has_a_blue_edge():
    episode = counting_episode(7, first=100, size=(40, 40))
    labels = Labels.from_cutoff(steps=7, cutoff=5, source="human")
    picture = np.asarray(contact_sheet(episode, labels, title="t", frames=8, columns=8, cell_width=46))
    row = picture[video._HEADER + video._CAPTION + 23]
    for t in range(8):
        x = video._MARGIN + t * (46 + video._GAP)
        assert tuple(row[x]) == (video._SUCCESS if t >= 5 else video._FAILURE)
        assert tuple(row[x + 23]) == (100 + t,) * 3


def test_the_strip_has_every_step_even_those_between_the_frames_shown():
    episode = counting_episode(99, size=(8, 8))
    label = np.zeros(100)
    label[50] = 1  # a flicker of one frame
    picture = contact_sheet(episode, Labels.from_targets(label, source="vlm"), title="t", frames=2)
    strip = np.asarray(picture)[-video._STRIP - video._MARGIN + 20]
    blue = (strip == video._SUCCESS).all(axis=1)
    assert 3 <= blue.sum() <= 8
    assert abs(np.flatnonzero(blue).mean() / len(strip) - 0.505) < 0.02


def test_an_episode_without_labels_is_drawn_as_not_labeled():
    found = colors(contact_sheet(counting_episode(5), None, title="t"))
    assert video._UNKNOWN in found
    assert np.asarray(contact_sheet(counting_episode(5), None, title="t")).shape[2] == 3


def test_a_judges_probability_is_drawn_over_the_strip():
    steps = 30
    probability = np.linspace(0, 1, steps).astype("f4")
    episode, scores = counting_episode(steps), Scores(np.append(np.float32(0), probability))
    labels = labels_from_scores(JudgeId("classifier"), DecisionRule(decode="per_frame"), episode, scores)
    assert video._CURVE in colors(contact_sheet(episode, labels, title="t"))


def test_a_repeated_observation_is_not_shown():
    short = contact_sheet(counting_episode(5, padded="last"), None, title="t", columns=8)
    full = contact_sheet(counting_episode(5), None, title="t", columns=8)
    assert full.width - short.width == 160 + video._GAP
