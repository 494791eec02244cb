import numpy as np
import pytest

pytest.importorskip("plaudit.envs.panda.mujoco_batch", exc_type=ImportError)  # the tests below need MuJoCo 4

from conftest import same_episode
from plaudit.data.store import Store
from plaudit.envs.adapters.fetch import FetchConfig
from plaudit.envs.panda.config import PandaConfig
from plaudit.errors import EnvError
from plaudit.rollout.demos import record_demos

LIFT = PandaConfig(type="lift", obs="both", image_size=(16, 16))


def test_episodes_are_recorded_as_told_with_the_simulators_labels(tmp_path):
    with Store.create(tmp_path / "store") as store:
        report = record_demos(LIFT, store, episodes=7, outcomes=("success", "miss", "drop"), noise=0.1)
        assert report.ids == tuple(store.ids) and len(store) == 7 and report.missing == 0
        assert report.kept == {"success": 3, "miss": 2, "drop": 2}
        for episode_id, episode in store:
            labels = store.ledger.labels(episode_id)
            told = episode.meta["outcome"] == "success"
            assert labels.judge.source == "simulator" and labels.success_once == told == episode.terminated
            assert episode.frames["front"].shape == (episode.steps + 1, 16, 16, 3)
            assert episode.task == "lift the red cube" and episode.fps == 20
            assert np.abs(episode.actions).max() <= 1
        assert len({episode.meta["seed"] for _, episode in store}) == 7


def test_a_demonstration_goes_on_for_a_few_steps_after_its_success(tmp_path):
    with Store.create(tmp_path / "store") as store:
        record_demos(LIFT, store, episodes=2, noise=0.0, linger=3)
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


def test_an_interruption_keeps_what_is_recorded(tmp_path):
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
