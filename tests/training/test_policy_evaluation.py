from pathlib import Path

from plaudit.training.evaluation import evaluate_run, record_videos
from plaudit.training.run_folder import RunFolder
from plaudit.training.seeds import EVAL_SEEDS, TEST_SEEDS, seed_batches, train_seed
from training_runs import create, train

TINY = (
    "learner=sac env=lift run.num_envs=2 run.max_steps=200 learner.utd_ratio=0.02 learner.batch_size=16 "
    "learner.hidden_dims=[8] evaluation.episodes=2"
)


def run(folder: Path, words: str) -> RunFolder:
    made = create(folder, words)
    train(made)
    return made


def test_no_training_episode_has_a_seed_of_an_evaluation_and_no_evaluation_one_of_the_test():
    assert list(seed_batches(EVAL_SEEDS, 3, 2)) == [[EVAL_SEEDS, EVAL_SEEDS + 1], [EVAL_SEEDS + 2, EVAL_SEEDS + 3]]
    training = {train_seed(run, episode) for run in (0, 1, 10**9) for episode in (0, 1, 10**6)}
    assert max(training) < EVAL_SEEDS < TEST_SEEDS


def test_the_newest_policy_is_examined_and_nothing_of_the_run_changes(tmp_path):
    made = run(tmp_path / "run", TINY)
    before = (made.path / "metrics.jsonl").read_text()
    result = evaluate_run(made, 3)
    assert (result.episodes, result.agreements) == (3, 3)  # the simulator is the judge
    assert 0 <= result.successes <= 3 and result.judge_successes == result.successes
    assert evaluate_run(made, 3) == result and (made.path / "metrics.jsonl").read_text() == before


def test_the_first_and_the_last_policy_are_filmed_in_a_size_for_people(tmp_path):
    made = run(tmp_path / "run", TINY + " env.max_steps=8")
    paths = record_videos(made)
    assert paths == [made.path / "videos/first.mp4", made.path / "videos/last.mp4"]
    assert all(path.stat().st_size for path in paths)


def test_a_simulation_that_shows_nothing_is_not_filmed(tmp_path):
    words = "learner=sac env=gymnasium env.id=Pendulum-v1 env.max_steps=5 run.num_envs=2 run.max_steps=10"
    assert record_videos(run(tmp_path / "run", words + " evaluation.episodes=1")) == []
