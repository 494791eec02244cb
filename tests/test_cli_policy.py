"""`plaudit train-policy`, as a user types it."""

from dataclasses import replace

import pytest

from conftest import counting_episode, labeled_store
from plaudit.contracts import check_policy
from plaudit.data.normalize import STATE, Normalizer
from plaudit.policies.loader import load_policy
from plaudit.types import Labels
from test_cli import plaudit

SMALL = [
    "policy.velocity_net.width=16",
    "policy.velocity_net.depth=1",
    "policy.horizon=4",
    "fit.batch_size=16",
    "fit.steps=20",
]


def test_a_store_becomes_the_folder_of_a_policy(tmp_path):
    store = labeled_store(tmp_path / "demos", counting_episode(steps=6), counting_episode(steps=6, first=3), cutoff=5)
    said = plaudit("train-policy", "demos", *SMALL, "-o", "taught", cwd=tmp_path)
    assert "taught/policy.yaml: " in said and "learned for 20 steps, loss" in said
    spec = load_policy(tmp_path / "taught/policy.yaml")
    check_policy(spec.build(), store.episode(0).observation(1), Normalizer.load(spec.normalizer), action_dim=1)
    assert "taught holds a policy already" in plaudit("train-policy", "demos", "-o", "taught", cwd=tmp_path, ok=False)


def test_it_says_which_episodes_it_clones_and_its_statistics_are_theirs(tmp_path):
    store = labeled_store(tmp_path / "demos", counting_episode(steps=6), cutoff=5)
    failed = Labels.from_cutoff(steps=6, cutoff=None, source="human")
    store.ledger.append(store.append(counting_episode(steps=6, first=100)), failed)
    store.append(counting_episode(steps=6))
    said = plaudit("train-policy", "demos", *SMALL, "-o", "taught", cwd=tmp_path)
    assert "cloning 2 of 3 episodes: 1 successful, 1 unlabeled; left out: 1 failed" in said
    stats = Normalizer.load(tmp_path / "taught/normalizer.json").stats[STATE]
    assert stats.mean.tolist() == [30, -3], "states are 10 x and -1 x the frame numbers 0 to 6"


def test_a_store_of_failures_is_refused_unless_they_are_asked_for(tmp_path):
    labeled_store(tmp_path / "demos", counting_episode(steps=6))
    said = plaudit("train-policy", "demos", *SMALL, "-o", "taught", cwd=tmp_path, ok=False)
    assert "demos has no episode to clone: 1 failed" in said and "fit.include_failures=true" in said
    words = ("fit.include_failures=true", "-o", "taught")
    assert "cloning 1 of 1 episode: 1 failed" in plaudit("train-policy", "demos", *SMALL, *words, cwd=tmp_path)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--policy", "gaussian"], "a 'gaussian' policy does not learn from a store; 'flow' does"),
        (["--camera", "frnt"], "camera 'frnt' is not in demos; did you mean 'front'?"),
        (["policy.horizn=3"], "unknown key 'horizn'; did you mean 'horizon'?"),
        (["fit.step=3"], "command line: unknown key 'fit.step'; did you mean 'steps'?"),
    ],
)
def test_mistakes_are_answered_in_a_sentence(tmp_path, words, sentence):
    labeled_store(tmp_path / "demos", counting_episode())
    assert sentence in plaudit("train-policy", "demos", *words, cwd=tmp_path, ok=False)


def test_demonstrations_of_several_tasks_make_the_task_an_input(tmp_path):
    store = labeled_store(tmp_path / "demos", counting_episode(steps=6), cutoff=5)
    store.append(replace(counting_episode(steps=6), task="push the cube"))
    said = plaudit("train-policy", "demos", *SMALL, "-o", "taught", cwd=tmp_path)
    assert "the policy takes the task as input, one of 2: " in said
    assert "push the cube" in load_policy(tmp_path / "taught/policy.yaml").config.tasks


def test_a_policy_is_continued_with_its_own_statistics_and_only_where_it_fits(tmp_path):
    store = labeled_store(tmp_path / "demos", counting_episode(steps=6), cutoff=5)
    plaudit("train-policy", "demos", *SMALL, "-o", "taught", cwd=tmp_path)
    store.append(counting_episode(steps=20))
    said = plaudit("train-policy", "demos", "--start", "taught", "fit.steps=3", "-o", "more", cwd=tmp_path)
    assert "learned for 3 steps" in said
    assert (tmp_path / "more/normalizer.json").read_text() == (tmp_path / "taught/normalizer.json").read_text()
    words = ("--start", "taught", "--no-cameras")
    assert "looks at camera" in plaudit("train-policy", "demos", *words, "-o", "other", cwd=tmp_path, ok=False)
