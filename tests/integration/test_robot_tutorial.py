"""The commands of docs/tutorial_robot.md, in their order and in short form, against the twin."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from plaudit.data.store import Store
from plaudit.types import HUMAN
from test_docs import ROOT, shown_commands
from twins import free_endpoint
from waiting import stretch, wait_until

SHORT = {"--episodes 20": "--episodes 2", "--steps 400": "--steps 200", "fit.steps=700": "fit.steps=10"}
SHORT |= {"run.max_episodes=100": "run.max_episodes=3", "run.max_episodes=40": "run.max_episodes=3"}
# A busy machine is slow, and nothing is lost or late because of it.
PATIENT = {"HZ": 10, "silent_after_ms": 60_000, "late_after_ms": 60_000, "max_delta_deg": 10, "start_speed": 2.0}
NOT_RUN = ("robot", "serve")  # started by the test, or tested elsewhere


def tutorial_commands() -> list[str]:
    lines = [re.sub(r" +#.*", "", line) for line in shown_commands(ROOT / "docs/tutorial_robot.md")]
    return [line.removeprefix("plaudit ") for line in lines if line.count(" ") > 1]  # and no names in sentences


@contextmanager
def twin(folder: Path, endpoint: str, leader: str) -> Iterator[None]:
    """The twin of the tutorial, in another process."""
    words = f"robot twin igris_b --task lift --leader {leader} --params small.json --log {leader}.jsonl".split()
    command = [sys.executable, "-m", "plaudit", *words, "--set", f"transport.connect=[{endpoint}]"]
    with subprocess.Popen(command, cwd=folder) as process:
        try:
            wait_until(lambda: (folder / f"{leader}.jsonl").exists() or process.poll() is not None)
            yield
        finally:
            process.terminate()
    assert process.returncode == 0


@pytest.mark.slow
def test_the_tutorial_records_clones_runs_learns_and_corrects(tmp_path):
    endpoint = free_endpoint()
    small = {"mono_image_resize": {"width": 96, "height": 72}, "first_message_s": stretch(20), **PATIENT}
    (tmp_path / "small.json").write_text(json.dumps(small))
    commands = [line for line in tutorial_commands() if not line.startswith(NOT_RUN)]
    split = next(i for i, line in enumerate(commands) if line.startswith("record corrections"))
    assert len(commands) == 8 and split == 6

    def run(lines: list[str]) -> None:
        for line in lines:
            for long, short in SHORT.items():
                line = line.replace(long, short)
            words = [*shlex.split(line), *settings(line)]
            command = [sys.executable, "-m", "plaudit", *words]
            done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=stretch(120))
            assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"

    def settings(line: str) -> list[str]:
        if line.startswith(("record", "run")):
            patience = ["teleop.timeout_s=60"] if "--teleop" in line else []
            return [
                f"robot.transport.connect=[{endpoint}]",
                *patience,
                f"policy.inference.startup_timeout_s={stretch(120)}",
            ]
        if line.startswith("online"):
            pretraining = ["learner.pretrain_updates=5"] if "learner=dagger" in line else []
            short = ["learner.batch_size=16", "learner.utd_ratio=0.02", *pretraining]
            return [f"robot.transport.connect=[{endpoint}]", *short]
        return []

    with twin(tmp_path, endpoint, "always"):
        run(commands[:split])
    with twin(tmp_path, endpoint, "help"):
        run(commands[split:])
    demos = Store.open(tmp_path / "demos")
    assert all(demos.ledger.labels(i).success_once and episode.success.any() for i, episode in demos)
    own = [episode for _, episode in Store.open(tmp_path / "episodes")]
    assert len(own) == 2 and not any(episode.control_mode.any() for episode in own)
    corrected = [episode for _, episode in Store.open(tmp_path / "corrections")]
    assert any(0 < np.count_nonzero(episode.control_mode == HUMAN) < episode.steps for episode in corrected)
    for name in ("learn", "correct"):
        assert (tmp_path / "runs" / name / "report.html").exists()
