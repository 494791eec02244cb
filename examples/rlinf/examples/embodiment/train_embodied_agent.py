"""RLinf's entry point: runs a recipe with Plaudit.

    python examples/embodiment/train_embodied_agent.py --config-path examples/embodiment/config/ \
        --config-name maniskill_ppo_cnn reward.collect_data=True

A recipe with the block `reward_training` trains a reward model, any other one trains a policy. The run's name has the
time, so that stage 3 does not meet the run of stage 1; `run.name=...` sets another name.
"""

import argparse
import os
import sys
from datetime import datetime
from pathlib import Path

from plaudit.cli import main

HERE = Path(__file__).resolve().parent

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Run a recipe of RLinf with Plaudit.")
    parser.add_argument("--config-path", type=Path, default=HERE / "config")
    parser.add_argument("--config-name", required=True)
    arguments, overrides = parser.parse_known_args()
    os.environ.setdefault("EMBODIED_PATH", str(HERE))
    path = arguments.config_path / f"{arguments.config_name}.yaml"
    if not path.is_file():
        names = ", ".join(sorted(file.stem for file in arguments.config_path.glob("*.yaml")))
        sys.exit(f"error: {path} does not exist; --config-path has: {names or 'no .yaml file'}")
    command = "train-reward" if "\nreward_training:" in f"\n{path.read_text()}" else "train"
    if command == "train" and not any(word.startswith("run.name=") for word in overrides):
        overrides.append(f"run.name={arguments.config_name}_{datetime.now():%Y%m%d_%H%M%S}")
    sys.argv = ["plaudit", command, "--config", str(path), *overrides]
    main()
