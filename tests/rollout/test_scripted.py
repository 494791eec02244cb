from collections import Counter

import numpy as np
import pytest

pytest.importorskip("plaudit.envs.panda.cameras", exc_type=ImportError)  # the tests below need MuJoCo 4

from conftest import same_episode
from plaudit.data.store import Store
from plaudit.envs.adapters.mujoco import FetchConfig
from plaudit.envs.panda import PandaConfig
from plaudit.errors import EnvError
from plaudit.rollout import scripted
from plaudit.rollout.collector import EpisodeTargets
from plaudit.rollout.scripted import collect_scripted, record_demos

LIFT = PandaConfig(type="lift", obs="both", image_size=(8, 8))


def test_a_script_fills_a_store_to_its_targets_with_true_labels(store: Store):
    quota = collect_scripted(LIFT, store, EpisodeTargets(3, 6), noise=0.05, random_fraction=0.34, steps_after_success=4)
    assert quota.done and dict(quota.kept) == {"success": 3, "failure": 6} and len(store) == 9
    told = Counter(episode.meta["outcome"] for _, episode in store)
    assert told["success"] == 2 and told["off_center"] == 1 and told["random"] >= 1 and {"miss", "drop"} <= set(told)
    for episode_id, episode in store:
        labels = store.ledger.labels(episode_id)
        assert labels.judge.source == "simulator" and (labels.success[1:] == episode.success).all()
        if labels.success_once:
            assert labels.success[-5:].all() and episode.terminated  # it lingered
        else:
            assert episode.steps == LIFT.max_steps


def test_a_second_call_adds_what_is_missing_from_seeds_not_used_yet(store: Store):
    collect_scripted(LIFT, store, EpisodeTargets(2, 2))
    before = [episode.meta["seed"] for _, episode in store]
    collect_scripted(LIFT, store, EpisodeTargets(2, 3))
    after = [episode.meta["seed"] for _, episode in store]
    assert len(after) == 5 and after[:4] == before and after[4] > max(before)
    assert collect_scripted(LIFT, store, EpisodeTargets(2, 3)).done and len(store) == 5


def test_an_episode_that_comes_out_otherwise_counts_as_what_it_is(store: Store):
    quota = collect_scripted(LIFT, store, EpisodeTargets(0, 2), outcomes=("success",), noise=0.6, random_fraction=0.5)
    assert quota.kept["failure"] == 2 and quota.kept["success"] == 0


def test_targets_out_of_reach_are_given_up(store: Store):
    quota = collect_scripted(LIFT.model_copy(update={"max_steps": 2}), store, EpisodeTargets(1, 0))
    assert not quota.done and len(store) == 0 and quota.missing("success") == 1


def test_targets_that_next_to_no_attempt_reaches_are_given_up_and_attempts_are_counted(store: Store, monkeypatch):
    monkeypatch.setattr(scripted, "YIELD_ROLLOUTS", 2)
    tiny = LIFT.model_copy(update={"image_size": (1, 1), "max_steps": 12})  # too short for a success
    quota = collect_scripted(tiny, store, EpisodeTargets(success=30, failure=4), noise=0.8)
    assert not quota.done and quota.kept["failure"] == 4 and quota.missing("success") == 30
    assert 16 < quota.surplus["failure"] <= 64  # of two to four rollouts


def test_an_interruption_keeps_what_is_collected(store: Store):
    def stop_after_two(items):
        yield from items[:2]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        collect_scripted(LIFT, store, EpisodeTargets(4, 4), progress=stop_after_two)
    assert len(store) == 2 and all(store.ledger.labels(i) for i in store.ids)


@pytest.mark.parametrize(
    ("env", "targets", "more", "sentence"),
    [
        (FetchConfig(obs="both"), EpisodeTargets(1, 1), {}, "there is no scripted expert for 'fetch'"),
        (PandaConfig(type="lift"), EpisodeTargets(1, 1), {}, "a judge learns from images"),
        (LIFT, EpisodeTargets(1), {}, "a script needs both targets"),
        (LIFT, EpisodeTargets(1, 1), {"outcomes": ["miss"]}, "no outcome succeeds"),
        (LIFT, EpisodeTargets(1, 1), {"outcomes": ["success"], "random_fraction": 0}, "no outcome fails"),
        (LIFT, EpisodeTargets(1, 1), {"random_fraction": 2}, "random_fraction is 2; it is a share of the failures"),
        (LIFT, EpisodeTargets(1, 1), {"outcomes": ["mis"]}, "there is no outcome 'mis'; did you mean 'miss'?"),
    ],
)
def test_what_a_script_cannot_do_is_said_before_it_begins(store: Store, env, targets, more, sentence):
    with pytest.raises(EnvError) as caught:
        collect_scripted(env, store, targets, **more)
    assert sentence in str(caught.value)


def test_episodes_are_recorded_as_told_with_the_simulators_labels(tmp_path):
    with Store.create(tmp_path / "store") as store:
        report = record_demos(LIFT, store, episodes=7, outcomes=("success", "miss", "drop"), noise=0.1)
        assert report.ids == tuple(store.ids) and len(store) == 7 and report.missing == 0
        assert report.kept == {"success": 3, "miss": 2, "drop": 2}
        for episode_id, episode in store:
            labels = store.ledger.labels(episode_id)
            told = episode.meta["outcome"] == "success"
            assert labels.judge.source == "simulator" and labels.success_once == told == episode.terminated
            assert episode.frames["front"].shape == (episode.steps + 1, 8, 8, 3)
            assert episode.task == "lift the red cube" and episode.fps == 20
            assert np.abs(episode.actions).max() <= 1
        assert len({episode.meta["seed"] for _, episode in store}) == 7


def test_a_demonstration_goes_on_for_a_few_steps_after_its_success(tmp_path):
    with Store.create(tmp_path / "store") as store:
        record_demos(LIFT, store, episodes=2, noise=0.0, steps_after_success=3)
        for episode_id, episode in store:
            assert store.ledger.labels(episode_id).success[-4:].all() and episode.terminated


def test_the_same_arguments_record_the_same_episodes(tmp_path):
    stores = [Store.create(tmp_path / name) for name in "ab"]
    for store in stores:
        record_demos(LIFT, store, episodes=3, noise=0.2, seed=5)
    for (_, one), (_, other) in zip(*stores, strict=True):
        assert same_episode(one, other) and one.meta == other.meta


def test_what_ends_otherwise_is_left_out_counted_and_tried_again(tmp_path):
    with Store.create(tmp_path / "store") as store:
        report = record_demos(LIFT, store, episodes=4, noise=0.45)  # about every third succeeds
        assert report.left_out["success"] > 0 and report.missing == 0
        assert all(store.ledger.labels(i).success_once for i in store.ids) and len(store) == 4


def test_what_ends_otherwise_is_kept_when_told_so(tmp_path):
    with Store.create(tmp_path / "store") as store:
        report = record_demos(LIFT, store, episodes=6, noise=0.45, keep_all=True)
        assert not report.left_out and len(store) == 6
        assert {store.ledger.labels(i).success_once for i in store.ids} == {True, False}


def test_what_never_comes_out_is_given_up(tmp_path):
    with Store.create(tmp_path / "store") as store:
        report = record_demos(LIFT.model_copy(update={"max_steps": 2}), store, episodes=2)
        assert report.ids == () and report.missing == 2 and report.left_out["success"] >= 20


def test_an_interruption_keeps_the_demonstrations_so_far(tmp_path):
    def stop_after_two(items):
        yield from items[:2]
        raise KeyboardInterrupt

    with Store.create(tmp_path / "store") as store:
        with pytest.raises(KeyboardInterrupt):
            record_demos(LIFT, store, episodes=9, noise=0.0, progress=stop_after_two)
        assert len(store) == 2 and all(store.ledger.labels(i) for i in store.ids)


def test_there_are_experts_for_the_built_in_tasks_only(tmp_path):
    with (
        Store.create(tmp_path / "store") as store,
        pytest.raises(EnvError, match="there is no scripted expert for 'fetch'; there is for: lift, pick_place, push"),
    ):
        record_demos(FetchConfig(), store, episodes=1)
