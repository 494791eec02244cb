from collections import Counter

import pytest

pytest.importorskip("plaudit.envs.panda.mujoco_batch", exc_type=ImportError)  # the tests below need MuJoCo 4

from plaudit.data.store import Store
from plaudit.envs.adapters.fetch import FetchConfig
from plaudit.envs.panda.config import PandaConfig
from plaudit.errors import EnvError
from plaudit.rollout.collector import EpisodeTargets
from plaudit.rollout.scripted import collect

LIFT = PandaConfig(type="lift", obs="both", image_size=(8, 8))


def test_a_script_fills_a_store_to_its_targets_with_true_labels(store: Store):
    intake = collect(LIFT, store, EpisodeTargets(3, 6), noise=0.05, random_share=0.34, linger=4)
    assert intake.done and dict(intake.kept) == {"success": 3, "failure": 6} and len(store) == 9
    told = Counter(episode.meta["outcome"] for _, episode in store)
    assert told["success"] == 3 and told["random"] >= 1 and {"miss", "drop"} <= set(told)
    for episode_id, episode in store:
        labels = store.ledger.labels(episode_id)
        assert labels.judge.source == "simulator" and (labels.success[1:] == episode.success).all()
        if labels.success_once:
            assert labels.success[-5:].all() and episode.terminated  # it lingered
        else:
            assert episode.steps == LIFT.max_steps


def test_a_second_call_adds_what_is_missing_from_seeds_not_used_yet(store: Store):
    collect(LIFT, store, EpisodeTargets(2, 2))
    before = [episode.meta["seed"] for _, episode in store]
    collect(LIFT, store, EpisodeTargets(2, 3))
    after = [episode.meta["seed"] for _, episode in store]
    assert len(after) == 5 and after[:4] == before and after[4] > max(before)
    assert collect(LIFT, store, EpisodeTargets(2, 3)).done and len(store) == 5


def test_an_episode_that_comes_out_otherwise_counts_as_what_it_is(store: Store):
    intake = collect(LIFT, store, EpisodeTargets(0, 2), outcomes=("success",), noise=0.6, random_share=0.5)
    assert intake.kept["failure"] == 2 and intake.kept["success"] == 0


def test_targets_out_of_reach_are_given_up(store: Store):
    intake = collect(LIFT.model_copy(update={"max_steps": 2}), store, EpisodeTargets(1, 0))
    assert not intake.done and len(store) == 0 and intake.missing("success") == 1


def test_an_interruption_keeps_what_is_collected(store: Store):
    def stop_after_two(items):
        yield from items[:2]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        collect(LIFT, store, EpisodeTargets(4, 4), progress=stop_after_two)
    assert len(store) == 2 and all(store.ledger.labels(i) for i in store.ids)


@pytest.mark.parametrize(
    ("env", "targets", "more", "sentence"),
    [
        (FetchConfig(obs="both"), EpisodeTargets(1, 1), {}, "there is no scripted expert for 'fetch'"),
        (PandaConfig(type="lift"), EpisodeTargets(1, 1), {}, "a judge learns from images"),
        (LIFT, EpisodeTargets(1), {}, "a script needs both targets"),
        (LIFT, EpisodeTargets(1, 1), {"outcomes": ["miss"]}, "no outcome succeeds"),
        (LIFT, EpisodeTargets(1, 1), {"outcomes": ["success"], "random_share": 0}, "no outcome fails"),
        (LIFT, EpisodeTargets(1, 1), {"random_share": 2}, "random_share is 2; it is a share of the failures"),
        (LIFT, EpisodeTargets(1, 1), {"outcomes": ["mis"]}, "there is no outcome 'mis'; did you mean 'miss'?"),
    ],
)
def test_what_a_script_cannot_do_is_said_before_it_begins(store: Store, env, targets, more, sentence):
    with pytest.raises(EnvError) as caught:
        collect(env, store, targets, **more)
    assert sentence in str(caught.value)
