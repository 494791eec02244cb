"""The commands of the tutorials, in their order and in short form. docs/tutorial_robot.md and docs/so101.md have tests
of their own (test_robot_tutorial.py, tests/robots/test_so101.py).
"""

import re
import shlex

import pytest

from command import plaudit
from test_docs import ROOT, shown_commands, subcommand

SHORT = {
    "--target-success 30 --target-failure 30": "--target-success 8 --target-failure 8",
    "--target-success 60 --target-failure 120": "--target-success 8 --target-failure 8",
    "collect.target_success=200 collect.target_failure=200": "collect.target_success=8 collect.target_failure=8 "
    "run.num_envs=8 demos.scripted=10",
    "--episodes 20": "--episodes 3",
    "--episodes 50": "--episodes 4",
    "fit.steps=200": "fit.steps=5",
    "fit.steps=1500": "fit.steps=20",
    "run.max_steps=20000": "run.max_steps=100 evaluation.episodes=2 audit.on_alarm=warn",
    "run.max_steps=6000": "run.max_steps=100 evaluation.episodes=2 learner.check_episodes=0 learner.random_steps=50 "
    "run.num_envs=2 env.max_steps=10",
    "run.max_steps=400": "run.max_steps=400 evaluation.episodes=2",
    "run.max_episodes=200": "run.max_episodes=3 audit.on_alarm=warn judge.force=true "
    "evaluation.episodes=2 learner.utd_ratio=0.02",
    "--lr 1e-3": "--lr 3e-3 epochs=3 batch_size=32 image_size=[32,32]",
    "pickcube_train_reward.yaml": "pickcube_train_reward.yaml epochs=2",
    "judge=./judge": "judge=./judge judge.force=true judge.rule.threshold=0.001",
    "--model judge --skip-labeled": "--model judge --skip-labeled force=true",
    "--target-success 450 --target-failure 600": "--target-success 6 --target-failure 6",
    "pickcube_train_reward_keypoints.yaml": "pickcube_train_reward_keypoints.yaml epochs=1",
    # A judge of so little data that sees success everywhere: it accepts the demonstrations.
    "run.name=pickcube": "run.name=pickcube judge.force=true judge.rule.threshold=0.001 audit.on_alarm=warn "
    "run.max_steps=100 run.num_envs=2 evaluation.episodes=2 learner.pretrain_updates=10",
}
NOT_RUN = {  # how a command begins -> why it is not executed here
    "train --config FILE": "needs a recipe of the user",
    "serve": "waits for people; tests/web drives its pages",
    "label episodes --judge human": "waits for a person; tests/judges/human drives the window",
    "data label episodes cutoffs.json": "needs a file of the user; tests/data/test_cutoffs.py",
    "judge exam": "fails with so little data; tests/judges runs exams that pass",
    "judge plan": "tests/test_cli_plan.py",
    "judge eval STORE": "needs a file of RLinf; tests/judges/classifier reads such files",
    "judge export": "needs the model of the user; tests/judges/classifier",
    "eval path/to": "needs an installed LeRobot; `make interop`",
    "online --config examples/configs/online_igris_b.yaml": "needs a robot; tests/integration uses a twin",
    "run --policy_yaml": "needs a robot; tests/integration/test_robot_tutorial.py",
    "collect --config FILE": "collects 5,000 episodes; tests/test_cli_collect.py",
    "record demos --robot lerobot": "needs a robot; tests/robots/test_so101.py",
}


def tutorial_commands(name: str) -> list[str]:
    """Without comments, and without the names of commands in sentences."""
    shown = [re.sub(r" +#.*", "", line) for line in shown_commands(ROOT / f"docs/tutorial_{name}.md")]
    lines = [
        line.removeprefix("plaudit ") for line in shown if line != f"plaudit {subcommand(line)}" and "..." not in line
    ]
    return [line for line in lines if not line.startswith(tuple(NOT_RUN))]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("lerobot", ["judge/report.html", "labeled/meta/info.json", "policy/policy.yaml"]),
        ("simulator", ["judge/report.html", "runs/lift/report.html", "runs/pendulum/report.html"]),
        ("rlinf", ["runs/reward_checkpoints/reward_model/report.html"]),
        ("hil_serl", ["judge/report.html", "runs/hil/report.html"]),
        ("pretrained", ["clone/policy.yaml", "runs/better/report.html"]),
    ],
)
def test_the_commands_of_a_tutorial_work_in_their_order(tmp_path, name, made):
    for line in tutorial_commands(name):
        for long, short in SHORT.items():
            line = line.replace(long, short)
        plaudit(*shlex.split(line), cwd=tmp_path)
    assert not [file for file in made if not (tmp_path / file).exists()]


def test_what_is_not_run_is_in_a_tutorial():
    shown = [line for page in (ROOT / "docs").glob("tutorial_*.md") for line in shown_commands(page)]
    stale = [start for start in NOT_RUN if not any(line.startswith(f"plaudit {start}") for line in shown)]
    assert not stale
