"""Runs that improve a trained policy: they make it better, resume exactly, and show judged next to true success."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import glow
from command import plaudit
from plaudit.data.normalize import Normalizer
from plaudit.learners.bc import train_flow
from plaudit.policies.config import FlowConfig, VelocityNetConfig
from plaudit.policies.loader import load_policy, save_policy
from plaudit.training.config_file import load_training_config
from plaudit.training.run_folder import RunFolder
from plaudit.types import Observation
from training_runs import create, train

METHODS = {
    "success": "learner=weighted_bc learner.utd_ratio=2",
    "advantage": "learner=weighted_bc learner.method=advantage learner.utd_ratio=2",
    "conditioned": "learner=weighted_bc learner.method=conditioned learner.utd_ratio=2 learner.guidance=2",
    "steer": "learner=steer",
    "dsrl": "learner=dsrl",
    "expo": "learner=expo learner.num_samples=4 learner.edit_warmup=100",
    "residual": "learner=expo learner.num_samples=1 learner.select=false learner.edit_scale=0.5 learner.edit_penalty=0",
}
SMALL = "learner.batch_size=32 learner.random_steps=100 run.num_envs=8 evaluation.episodes=64 evaluation.freq=100000"
slow_but_dsrl = [name if name == "dsrl" else pytest.param(name, marks=pytest.mark.slow) for name in METHODS]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """It turns the lamp up or down, by turns: a clone of somebody who did both alike."""
    rng = np.random.default_rng(0)
    chunks = np.clip(rng.normal(0.05, 0.6, (600, 3, 1)), -1, 1).astype(np.float32)
    light = rng.uniform(0, 1, 600)
    state = np.stack([light, 1 - light], axis=1).astype(np.float32)
    config = FlowConfig(state_dim=2, action_dim=1, horizon=3, velocity_net=VelocityNetConfig(width=32, depth=1))
    normalizer = Normalizer.of(state, chunks)
    trained = train_flow(config.build(), Observation({}, state), chunks, normalizer, steps=300, batch_size=128)
    return save_policy(tmp_path_factory.mktemp("base"), config, trained.weights(), normalizer).parent


def words(base: Path, method: str, more: str = "") -> str:
    hidden = "" if "steps" in method else "learner.hidden_dims=[32]"
    return (
        f"env=glow:GlowConfig env.goal=0.7 env.obs=state {METHODS[method]} learner.base={base} {SMALL} {hidden} {more}"
    )


def test_the_example_is_a_whole_config(base: Path):
    preset = Path(__file__).parents[2] / "examples/configs/pretrained_push_dsrl.yaml"
    assert load_training_config("train", preset, [f"learner.base={base}"]).max_steps


def evaluations(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "eval/success_once" in line]


@pytest.mark.parametrize("method", slow_but_dsrl[3:])
def test_each_method_with_critics_makes_its_base_better(tmp_path: Path, base: Path, method: str):
    """The first evaluation is that of the base; the judge is the simulator."""
    train(create(tmp_path / "run", words(base, method, "run.max_steps=700 learner.gamma=0.9")))
    first, *_, last = evaluations(tmp_path / "run")
    assert first["step"] == 0 and first["eval/success_once"] < 0.6
    assert last["eval/success_once"] > first["eval/success_once"] + 0.2


@pytest.mark.parametrize("method", slow_but_dsrl)
def test_a_run_that_was_stopped_and_resumed_goes_on_as_one_that_was_not(tmp_path: Path, base: Path, method: str):
    more = "run.max_steps=400 run.checkpoint_freq=100 learner.utd_ratio=0.1"
    more += " learner.check_episodes=0" if method == "dsrl" else ""
    train(create(tmp_path / "whole", words(base, method, more)))
    rounds = iter(range(100))
    train(create(tmp_path / "parts", words(base, method, more)), lambda _: next(rounds) < 1)
    train(RunFolder.reopen(tmp_path / "parts"))
    curves = [(tmp_path / name / "metrics.jsonl").read_text().splitlines() for name in ("whole", "parts")]
    told = [[{k: v for k, v in json.loads(line).items() if "time/" not in k} for line in curve] for curve in curves]
    assert told[0] == told[1]


def test_judged_and_true_success_stand_side_by_side(tmp_path: Path, base: Path):
    """A judge that calls success too early: every evaluation shows what it would have paid."""
    glow.saved(glow.bright_model(0.45), tmp_path / "judge")
    run = words(base, "success", "run.max_steps=200 audit.on_alarm=warn").replace("obs=state", "obs=both")
    run += f" policy.cameras=[] judge=classifier judge.model={tmp_path / 'judge'} judge.rule.decode=per_frame"
    plaudit("train", *run.split(), "run.name=run", cwd=tmp_path)
    for line in evaluations(tmp_path / "runs/run"):
        assert line["eval/judge_success_once"] > line["eval/success_once"] + 0.1
    page = (tmp_path / "runs/run/report.html").read_text()
    assert "true success on eval seeds" in page and "by the judge" in page


@pytest.mark.parametrize(
    "method", ["steer", *[pytest.param(m, marks=pytest.mark.slow) for m in ("success", "expo", "dsrl")]]
)
def test_a_robot_is_driven_by_the_improved_policy(tmp_path: Path, base: Path, method: str):
    run = words(base, method, "run.max_episodes=6 run.name=run learner.random_steps=0").replace("run.num_envs=8", "")
    run += " policy.inference=sequential policy.inference.realtime=false evaluation.episodes=2 run.publish_freq=5"
    run += " learner.check_episodes=0" if method == "dsrl" else ""
    plaudit("online", *run.split(), "--serial", cwd=tmp_path)
    spec = load_policy(tmp_path / "runs/run/policy/policy.yaml")
    assert spec.policy["type"] == (
        "flow" if method == "success" else METHODS[method].split()[0].removeprefix("learner=")
    )
    chunk = spec.build().predict(Observation({}, np.float32([0.3, 0.7])), Normalizer.identity(2, 1))
    assert chunk.shape == (3, 1) and np.abs(chunk).max() <= 1
