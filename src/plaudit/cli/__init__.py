"""The command line. Its packages are imported by `main`, which takes a moment in which Ctrl-C may be pressed."""

import os
import sys

try:
    import signal  # takes milliseconds, and nothing can handle Ctrl-C before
except KeyboardInterrupt:
    os.write(2, b"interrupted\n")
    sys.exit(130)


# In the order of `plaudit --help`.
COMMANDS = (
    *("serve", "record", "collect", "label", "train-reward", "train-progress", "train", "run", "train-policy"),
    "serve-policy",
    *("online", "report", "eval", "demo", "data", "hub", "env", "robot", "judge", "cluster", "config"),
    "doctor",
)
# The modules of this package that define commands with other names.
MODULES = {"collect": "env", "train-reward": "reward", "train-progress": "reward", "train-policy": "train"}
MODULES |= {"eval": "report", "demo": "report", "serve-policy": "serve"}


def main() -> None:
    """The entry point of the `plaudit` command. Only the module of its command is imported."""
    with quiet_imports():
        from importlib import import_module

        name = sys.argv[1] if sys.argv[1:] and sys.argv[1] in COMMANDS else "commands"
        import_module(f"plaudit.cli.{MODULES.get(name, name)}")
        from plaudit.cli.common import run_app
        from plaudit.cli.options import app

    run_app(app)


class quiet_imports:
    """While packages are imported and nothing else is done: Ctrl-C ends the process at once, without a traceback.

    Not by a KeyboardInterrupt, which some packages turn into an ImportError of their own. This module imports next to
    nothing itself (no contextlib, no typing). Ctrl-C while Python itself starts still prints a traceback.
    """

    def __enter__(self) -> None:
        self._before = signal.signal(signal.SIGINT, _exit)

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)


def _exit(*_: object) -> None:
    os.write(2, b"interrupted\n")
    os._exit(130)
