"""Resuming a synchronous run with another judge.

The new judge labels again what the last one labeled, from the newest checkpoint on, and its audit starts anew. Which
judges the run had before stands in judge/history.jsonl.
"""

import json
from collections.abc import Sequence

from plaudit.data.disk import Folder, write_atomic
from plaudit.errors import JudgeError
from plaudit.files import MAX_JSON
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
    step, before = (state["step"], state["judge"]) if state else (0, None)
    history = run.judge / "history.jsonl"
    kept = Folder(run.judge).read(history.name, MAX_JSON) if history.exists() else b""
    lines = kept.decode().splitlines()
    # The last change was of a judge that took no step: it was not usable, or the command was killed.
    unused = (
        lines[-1:] and lines[-1].startswith(f'{{"step": {step}, ') and lines[-1].endswith(f" {json.dumps(before)}}}")
    )
    if before == judge.id.fingerprint and not unused:
        raise JudgeError(f"{run.path} has this judge already ({before}); name another")
    if before == judge.id.fingerprint:
        lines.pop()
    elif not unused:
        lines.append(json.dumps({"step": step, "judge": run.config.judge.name, "fingerprint": before}))
    run.judge.mkdir(exist_ok=True)
    write_atomic(history, "".join(f"{line}\n" for line in lines).encode())
    return run.with_config(config)
