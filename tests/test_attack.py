"""The quick form of every attack: `benchmarks/attack.py` counts what came through, and nothing may."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from waiting import stretch

SCRIPT = Path(__file__).parents[1] / "benchmarks/attack.py"


@pytest.mark.slow
def test_no_attack_comes_through():
    command = [sys.executable, str(SCRIPT), "--quick"]  # of all kinds in one process: each would import torch
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, timeout=stretch(180))
    bars = [line for line in done.stdout.splitlines() if line.startswith("BAR ")]
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(bars) == 9 and all(bar.endswith(" pass") for bar in bars), done.stdout
