"""RBM-EVAL's metrics, next to their definition written out."""

import json
from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest
from scipy.stats import pearsonr

from command import plaudit
from five_judges import NAME, PushJudgeConfig, push_store
from plaudit.data.store import Store
from plaudit.judges.ranking import QUALITIES, RankedEpisode, alignment, kendall, rank_by_source, ranked_episodes
from plaudit.types import Labels


def written_out(groups):
    """Tau-a of one episode of each quality, the mean over all ways to take them."""
    present = [(rank, values) for rank, values in enumerate(groups) if values]
    taus = []
    for chosen in product(*(values for _, values in present)):
        ranked = list(zip((rank for rank, _ in present), chosen))
        signs = [np.sign(a[0] - b[0]) * np.sign(a[1] - b[1]) for a, b in combinations(ranked, 2)]
        taus.append(sum(signs) / (len(ranked) * (len(ranked) - 1) / 2))
    return np.mean(taus)


@pytest.mark.parametrize("sizes", [(3, 2, 4), (2, 0, 5), (0, 3, 1), (1, 1, 1)])
def test_tau_is_the_mean_over_all_ways_to_take_an_episode_of_each_quality(sizes):
    rng = np.random.default_rng(sum(sizes))
    groups = [rng.integers(0, 5, size).tolist() for size in sizes]  # with equal values
    qualities = [quality for quality, size in zip(QUALITIES, sizes) for _ in range(size)]
    values = [float(value) for group in groups for value in group]
    assert kendall(qualities, values) == pytest.approx(written_out(groups))


def test_tau_by_hand():
    assert kendall(["failure", "suboptimal", "successful"], [0.1, 0.5, 0.9]) == 1
    assert kendall(["failure", "suboptimal", "successful"], [0.9, 0.5, 0.1]) == -1
    assert kendall(["failure", "suboptimal", "successful"], [0.1, 0.9, 0.5]) == pytest.approx(1 / 3)
    assert kendall(["failure", "successful"], [0.5, 0.5]) == 0
    assert np.isnan(kendall(["failure", "failure"], [0.1, 0.2]))


def test_alignment_takes_five_frames():
    values = np.array([0, 9, 9, 1, 9, 9, 3, 9, 9, 2, 9, 9, 4], float)  # frames 0, 3, 6, 9 and 12
    assert alignment(values) == pytest.approx(pearsonr([0, 1, 2, 3, 4], [0, 1, 3, 2, 4])[0])
    assert alignment(np.array([0.1, 0.4, 0.2])) == pytest.approx(pearsonr([0, 1, 2], [0.1, 0.4, 0.2])[0])
    assert alignment(np.full(9, 0.5)) == 0


def test_data_sets_and_tasks_are_apart():
    def episode(source, task, quality, *values):
        return RankedEpisode(source, task, quality, np.array(values))

    koch, franka = rank_by_source(
        [
            episode("koch", "stack", "successful", 0.0, 0.9),
            episode("koch", "stack", "failure", 0.0, 0.2),
            episode("koch", "fold", "suboptimal", 0.0, 0.3),
            episode("koch", "fold", "failure", 0.0, 0.8),
            episode("koch", "fold", "failure", 0.0, 0.3),
            episode("koch", "wipe", "successful", 1.0, 0.0),  # the only one of its task
            episode("franka", "stack", "failure", 0.0, 1.0),  # better than the success of the other set
        ]
    )[::-1]
    assert (koch.source, koch.episodes, koch.tasks) == ("koch", 6, 2)
    assert koch.kendall.value == pytest.approx((1 - 0.5) / 2)
    assert koch.pairs_in_order == pytest.approx((1 + 0 + 0.5) / 3)
    assert koch.alignment.value == pytest.approx((1 - 1) / 2)
    assert (franka.episodes, franka.tasks) == (1, 0) and np.isnan(franka.pairs_in_order)
    assert franka.to_json()["kendall"] == [None, None, None]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Successes and failures, one suboptimal episode without a reference label, and one of a person."""
    folder = tmp_path_factory.mktemp("ranking")
    plain, rated = push_store(folder / "plain", 7, 7), Store.create(folder / "rated")
    for i in plain.ids:
        labels = plain.ledger.labels(i)
        quality = "suboptimal" if i == 13 else "successful" if labels.success_once else "failure"
        meta = {"quality_label": quality, "data_source": "push", "is_robot": i != 12}
        new = rated.append(replace(plain.episode(i), meta=meta))
        if quality != "suboptimal":
            rated.ledger.append(new, Labels.from_targets(labels.targets, "human"))
    return rated


def test_episodes_without_a_reference_label_are_ranked_and_people_are_not(store):
    config = PushJudgeConfig(kind="good")
    episodes = ranked_episodes(store, config, config.build(), store.ids, {})
    assert [one.quality for one in episodes].count("suboptimal") == 1 and len(episodes) == 13
    (ranking,) = rank_by_source(episodes)
    assert ranking.kendall.value > 0.6 and ranking.alignment.value > 0.5


def test_the_arena_shows_the_ranking(store, tmp_path):
    out = tmp_path / "arena"
    plaudit("judge", "arena", store.folder, f"--judge={NAME},kind=good", "--output-dir", out, cwd=tmp_path)
    good, clock, constant = json.loads((out / "arena.json").read_text())["judges"]
    assert good["rankings"][0]["episodes"] == 13
    assert clock["rankings"][0]["alignment"][0] == pytest.approx(1)  # no proof of anything
    assert clock["rankings"][0]["kendall"][0] == constant["rankings"][0]["kendall"][0] == 0
    assert "<h2>Ranking by quality</h2>" in (out / "report.html").read_text()
