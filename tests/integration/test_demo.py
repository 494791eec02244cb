"""The demo in small: every stage, but too little of each for a policy to come of it."""

import io
import json
import re
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from plaudit.data.store import Store
from plaudit.errors import DataError, TargetNotEmpty
from plaudit.judges.epochs import TrainingInterrupted
from plaudit.training.config_file import load_training_config
from plaudit.training.demo import FROM_CAMERAS, FROM_STATE, DemoConfig, DemoDisplay, run_demo
from plaudit.training.setup import learner_env_spec

SMALL = DemoConfig(
    cameras=("front",),
    target_success=6,
    target_failure=6,
    judge=("encoder=small", "encoder.widths=[8,16]", "epochs=2", "hidden_dim=32", "val_fraction=0.3"),
    policy=(
        *("learner=sac", "learner.hidden_dims=[16]", "learner.utd_ratio=0.05", "learner.batch_size=32"),
        *("env=lift", "env.obs=both", "policy.cameras=[]", "demos.scripted=2", "run.num_envs=4", "run.max_steps=400"),
        *("judge.force=true", "judge.rule.threshold=0.01"),  # a judge of so little is unsure and may fail a control
        *("evaluation.episodes=4", "evaluation.freq=200"),
    ),
    sees="the state of the simulation",
    eval_episodes=4,
)


def screen(said: io.StringIO, epochs: int | None = None, rounds: int | None = None) -> DemoDisplay:
    """Somebody who watches, and wants no more after so many epochs or rounds."""

    def bar(most: int | None):
        @contextmanager
        def watching(_: object):
            seen: list[object] = []
            yield lambda now: not seen.append(now) and len(seen) != most, lambda: len(seen) == most

        return watching

    return DemoDisplay(Console(file=said, width=400), lambda _: iter, bar(epochs), bar(rounds))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Of a demo that was stopped in its second stage and in its third, and then went on to its end."""
    folder = tmp_path_factory.mktemp("runs") / "demo"
    for wanted in ({"epochs": 1}, {"rounds": 1}):
        with pytest.raises(TrainingInterrupted):
            run_demo(folder, screen(io.StringIO(), **wanted), config=SMALL)
    run_demo(folder, screen(io.StringIO()), config=SMALL)
    (folder / "report.html").unlink()  # which has no charts
    return folder


@pytest.fixture
def reported(folder, written_charts) -> Path:
    """The same with the last page as a user gets it."""
    if not (folder / "report.html").exists():
        run_demo(folder, screen(io.StringIO()), config=SMALL)
    return folder


def test_each_stage_leaves_what_its_command_leaves(folder):
    store = Store.open(folder / "data")
    succeeded = [labels.success_once for i in store.ids if (labels := store.ledger.labels(i)) is not None]
    assert (succeeded.count(True), succeeded.count(False)) == (6, 6)
    for name in ("judge/model.json", "judge/report.html", "run/policy/model.safetensors", "run/report.html"):
        assert (folder / name).exists(), name


def test_a_stage_that_was_stopped_went_on_where_it_was(folder):
    epochs = [json.loads(line)["epoch"] for line in (folder / "judge/curve.jsonl").read_text().splitlines()]
    assert epochs == [1, 2]
    metrics = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in metrics if "judge/success_once" in line] == sorted(
        {line["step"] for line in metrics}
    )
    assert len(Store.open(folder / "data")) == 12


def test_a_demo_that_is_done_is_only_reported_again(reported):
    folder, said, before = reported, io.StringIO(), (reported / "demo.json").read_text()
    (folder / "report.html").unlink()
    outcome = run_demo(folder, screen(said, epochs=0, rounds=0), config=SMALL)
    assert (folder / "demo.json").read_text() == before and (folder / "report.html").exists()
    assert outcome.episodes == 4
    assert f"{outcome.success_rate:.0%} true success on 4 test seeds" in said.getvalue()
    assert len(re.findall(r"^\d\. ", said.getvalue(), re.MULTILINE)) == 4


def test_the_report_stands_alone_and_has_curve_diagram_frames_and_films(reported):
    page = (reported / "report.html").read_text()
    assert not re.findall(r'(?:src|href)="(?!data:|#)', page)
    charts = [re.findall(r"<text[^>]*>([^<]*)", chart) for chart in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]
    assert {"judge", "simulator", "eval seeds"} <= set(charts[0])
    assert any("predicted P(success)" in words for words in charts)
    assert len(re.findall(r'<video src="data:video/mp4', page)) == 2
    assert len(re.findall(r'<img src="data:image/jpeg', page)) >= 3
    for command in ("collect", "train-reward", "train", "eval"):
        assert f"plaudit {command} " in page


@pytest.mark.parametrize(
    ("demo", "numbers", "cameras"), [(FROM_CAMERAS, 15, {"front", "wrist"}), (FROM_STATE, 32, set())]
)
def test_the_policy_of_the_demo_gets_the_cubes_position_only_with_obs_state(demo, numbers, cameras):
    config = load_training_config("train", None, demo.policy)
    with closing(config.env.build(1)) as env:
        spec = learner_env_spec(config, env)
    assert (spec.state_dim, set(spec.cameras)) == (numbers, cameras)


def test_the_report_says_what_the_policy_sees(reported):
    assert "The policy sees the state of the simulation." in (reported / "report.html").read_text()


def test_a_folder_of_another_demo_or_of_something_else_is_not_touched(folder, tmp_path):
    with pytest.raises(DataError, match="started with --seed 0"):
        run_demo(folder, screen(io.StringIO()), seed=1, config=SMALL)
    with pytest.raises(DataError, match="a policy that sees the state of the simulation"):
        run_demo(folder, screen(io.StringIO()), config=replace(SMALL, sees="a camera"))
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(TargetNotEmpty, match="not a demo"):
        run_demo(tmp_path, screen(io.StringIO()), config=SMALL)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
