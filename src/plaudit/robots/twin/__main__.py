"""python -m plaudit.robots.twin --robot igris_b [--log FILE] [--fault late=400@2.5] ...

The same as `plaudit robot twin`, without the packages of the command line, so that it starts quickly.
"""

import argparse
import math
import sys
from pathlib import Path
from typing import Any

from plaudit.config import load
from plaudit.errors import PlauditError
from plaudit.registry import ROBOT_REGISTRY
from plaudit.robots.twin.twin import FAULTS, run_twin
from plaudit.trust import plain

FILES = ("inference_runtime_params_config", "inference_runtime_topics_config")


def main() -> None:
    """Run a twin with the arguments of the command line."""
    faults = ", ".join(FAULTS)
    parser = argparse.ArgumentParser(prog="python -m plaudit.robots.twin", description="A robot's twin on its topics.")
    parser.add_argument("--robot", default="igris_b", help="a ROS 2 robot")
    parser.add_argument(f"--{FILES[0]}", "--params", type=Path, dest=FILES[0], help="JSON, as for the robot")
    parser.add_argument(f"--{FILES[1]}", "--topics", type=Path, dest=FILES[1], help="JSON, as for the robot")
    parser.add_argument("--config", type=Path, help="the robot's settings, JSON or YAML")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the robot")
    parser.add_argument("--log", type=Path, help="log every message to this file")
    parser.add_argument("--fault", action="append", default=[], help=f"KIND[=VALUE][@SECONDS], of {faults}")
    parser.add_argument("--watchdog_ms", type=float, default=500.0, help="hold after this long without a command")
    parser.add_argument("--seconds", type=float, default=math.inf, help="how long to run")
    args = vars(parser.parse_args())
    try:
        settings = args["set"] + [f"{key}={args[key]}" for key in FILES if args[key] is not None]
        config: Any = load(ROBOT_REGISTRY.get(args["robot"]), args["config"], settings)
        options = {key: args[key] for key in ("log", "watchdog_ms", "seconds")}
        run_twin(config, faults=args["fault"], **options)
    except PlauditError as error:
        sys.exit(plain(f"error: {error}"))


if __name__ == "__main__":
    main()
