from pathlib import Path

from plaudit.judges.detector import SuccessDetector
from plaudit.judges.simulator import SimulatorJudge
from plaudit.training.config import load_train_config
from plaudit.training.evaluation import examine, film
from plaudit.training.run_folder import RunFolder
from plaudit.training.trainer import HELD_BACK, make_learner, play_held_back, train

TINY = (
    "learner=sac env=lift num_envs=2 steps=200 learner.utd_ratio=0.02 learner.batch_size=16 "
    "learner.hidden_dims=[8] evaluation.episodes=2"
)


def run(folder: Path, words: str) -> RunFolder:
    made = RunFolder.create(folder, load_train_config(None, words.split()))
    train(made, lambda _: True, lambda _: iter)
    return made


def test_episodes_are_held_back_and_an_offset_gives_others(tmp_path):
    config = load_train_config(None, TINY.split())
    simulation = config.env.build(2)
    learner = make_learner(config, simulation)
    rounds = list(play_held_back(simulation, learner, 3, SuccessDetector(SimulatorJudge(), 2), offset=7))
    assert [round.seeds for round in rounds] == [(HELD_BACK + 7, HELD_BACK + 8), (HELD_BACK + 9, HELD_BACK + 10)]


def test_the_newest_policy_is_examined_and_nothing_of_the_run_changes(tmp_path):
    made = run(tmp_path / "run", TINY)
    before = (made.path / "metrics.jsonl").read_text()
    outcome = examine(made, 3)
    assert (outcome.episodes, outcome.agreed) == (3, 3)  # the simulator is the judge
    assert 0 <= outcome.true == outcome.judged <= 3
    assert examine(made, 3) == outcome and (made.path / "metrics.jsonl").read_text() == before


def test_the_first_and_the_last_policy_are_filmed_in_a_size_for_people(tmp_path):
    made = run(tmp_path / "run", TINY + " env.max_steps=8")
    paths = film(made)
    assert [path.name for path in paths] == ["first.mp4", "last.mp4"] and all(path.stat().st_size for path in paths)


def test_a_simulation_that_shows_nothing_is_not_filmed(tmp_path):
    words = "learner=sac env=gymnasium env.id=Pendulum-v1 env.max_steps=5 num_envs=2 steps=10 evaluation.episodes=1"
    assert film(run(tmp_path / "run", words)) == []
