"""A run with Ray that a scheduler ends: Ray takes the signal for itself when it starts."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import glow
from plaudit.data.store import Store
from waiting import stretch, wait_until


@pytest.mark.slow
@pytest.mark.cluster
def test_a_run_with_ray_that_is_terminated_keeps_its_episodes_and_writes_its_report(tmp_path: Path):
    glow.saved(glow.bright_model(0.8), tmp_path / "judge")
    words = [word.replace("=glow", "=glow:GlowConfig") for word in glow.online(tmp_path / "judge")]
    command = [
        sys.executable,
        "-m",
        "plaudit",
        "online",
        *words,
        "run.name=run",
        "run.max_episodes=100000",
        "--ray",
        "local",
        "--folder",
        str(tmp_path),
    ]
    with tempfile.TemporaryDirectory(prefix="n", dir="/tmp") as short:
        world = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PLAUDIT_CLUSTER_DIR": f"{short}/c"}
        world |= {"RAY_AUTH_TOKEN_PATH": f"{short}/token"}
        run = subprocess.Popen(command, env=world, stderr=subprocess.PIPE, text=True)
        try:
            chronicle = tmp_path / "run/events.jsonl"
            wait_until(lambda: run.poll() is not None or chronicle.exists(), seconds=120)
            wait_until(lambda: run.poll() is not None or len(Store.open(tmp_path / "run/episodes")) > 1)
            run.send_signal(signal.SIGTERM)
            _, said = run.communicate(timeout=stretch(120))
        finally:
            run.kill()
    assert run.returncode == 130, said
    assert "stopped; resume with the same command" in said
    assert json.loads(chronicle.read_text().splitlines()[-1])["event"] == "ended"
    assert (tmp_path / "run/report.html").exists()
