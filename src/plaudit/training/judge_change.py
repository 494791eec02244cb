"""Resuming a synchronous run with another judge.

The new judge labels again what the last one labeled, from the newest checkpoint on, and its audit starts anew. Which
judges the run had before stands in judge/history.jsonl.
"""

import json
from collections.abc import Sequence

from plaudit.data.disk import write_atomic
from plaudit.errors import JudgeError
from plaudit.training.config_file import load_training_config
from plaudit.training.reward import check_judge_fits, live_judge
from plaudit.training.run_folder import RunFolder


def with_judge(run: RunFolder, overrides: Sequence[str]) -> RunFolder:
    """The run as it is to continue.

    overrides: judge=... and judge.*=...
    """
    if run.config.judge.is_simulator:
        raise JudgeError(
            f"the simulator gives the rewards of {run.path}; start a new run with {' '.join(overrides)} instead"
        )
    config = load_training_config("train", run.path / "config.yaml", overrides)
    judge, state = live_judge(config), run.newest_state()
    check_judge_fits(judge, config, dict.fromkeys(config.env.cameras, config.env.image_size))
    before = state["judge"] if state else None
    if before == judge.id.fingerprint:
        raise JudgeError(f"{run.path} has this judge already ({before}); name another")
    entry = json.dumps({"step": state["step"] if state else 0, "judge": run.config.judge.name, "fingerprint": before})
    history = run.judge / "history.jsonl"
    lines = history.read_text().splitlines() if history.exists() else []
    if entry not in lines[-1:]:  # it is, where this was killed before the config was written
        run.judge.mkdir(exist_ok=True)
        write_atomic(history, "".join(f"{line}\n" for line in (*lines, entry)).encode())
    return run.with_config(config)
